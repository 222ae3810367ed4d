"""Audits of a finished model: membership scores of records, and what they show.

The adversary is black-box: it sees losses, logits or probabilities of the finished model. A bound
on epsilon needs membership that was randomised before training (`askgauss.Membership`), and nothing
about the scores; `observational` says what can be said without.
"""

from askgauss.blackbox.membership import Membership
from askgauss.blackbox.observational import ObservationalReport, label_inference, observational
from askgauss.blackbox.record_scores import (
    calibrate,
    calibrated,
    lira,
    logit_confidence,
    losses,
    rmia,
)
from askgauss.blackbox.reference_models import References, train_references

__all__ = [
    "Membership",
    "ObservationalReport",
    "References",
    "calibrate",
    "calibrated",
    "label_inference",
    "lira",
    "logit_confidence",
    "losses",
    "observational",
    "rmia",
    "train_references",
]
