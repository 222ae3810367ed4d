"""Bounds of one confusion matrix, by the auditors that read one."""

from __future__ import annotations

import askgauss as ag
from askgauss.auditors.thresholding import ConfusionEvidence


def clopper_pearson_epsilon(matrix, *, delta, confidence):
    evidence = ConfusionEvidence(trials=(matrix,))
    return ag.ClopperPearson().epsilon_lower(evidence, delta=delta, confidence=confidence)


def gaussian_dp_epsilon(matrix, *, delta, confidence):
    evidence = ConfusionEvidence(trials=(matrix,))
    return ag.GaussianDP().epsilon_lower(evidence, delta=delta, confidence=confidence)
