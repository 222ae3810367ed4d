"""Noise of a banded mechanism, as a training loop would ask for it."""

from __future__ import annotations

import os
import tempfile

import numpy as np
import torch
from museum.outcomes import Outcome, main, of_audit
from pfl.internal.ops import pytorch_ops
from pfl.internal.ops.selector import set_framework_module
from pfl.privacy.ftrl_mechanism import BandedMatrixFactorizationMechanism, ForwardSubstitution
from pfl.privacy.privacy_accountant import PLDPrivacyAccountant
from pfl.stats import MappedVectorStatistics

import askgauss as ag
from askgauss.mechanisms.matrix import MatrixMechanism
from askgauss.recording.linear_recorder import LinearRecorder

STEPS, EPSILON, DELTA, PLACES = 64, 4.0, 1e-5, 12_000


def show(variant: str) -> Outcome:
    set_framework_module(pytorch_ops)
    # It writes its matrix where it is.
    os.chdir(tempfile.mkdtemp())
    mechanism = BandedMatrixFactorizationMechanism(
        1.0,
        STEPS,
        STEPS,
        lambda times: PLDPrivacyAccountant(
            num_compositions=times,
            sampling_probability=1.0,
            mechanism="gaussian",
            epsilon=EPSILON,
            delta=DELTA,
        ),
    )
    noise = float(mechanism._relative_noise_stddev)
    if variant == "mended":
        gram = mechanism.query_matrix @ mechanism.query_matrix.T
        mechanism._C = np.linalg.cholesky(gram[::-1, ::-1])[::-1, ::-1].T.copy()
        mechanism._C_inv_noise = ForwardSubstitution(mechanism._C, STEPS - 1)
    canaries = ag.DiracCanaries(present=4000, absent=4000, dimension=PLACES, seed=0)
    plan = MatrixMechanism(strategy=mechanism.query_matrix.astype(float))
    recorder = LinearRecorder(canaries, plan, noise_multiplier=noise)
    for step in range(STEPS):
        clean = np.zeros(PLACES)
        canaries.plant(clean, recorder.sample(), clip_norm=1.0)
        given = MappedVectorStatistics({"weights": torch.from_numpy(clean).float()})
        noisy, _ = mechanism.add_noise(given, 1, seed=1000 + step)
        released = noisy["weights"].double().numpy()
        recorder.observe(canaries.project(released), background=np.zeros(canaries.size))
    transcript = recorder.transcript()
    claim = ag.PrivacyClaim(epsilon=EPSILON, delta=DELTA)
    longest = float(np.linalg.norm(mechanism.query_matrix, axis=0).max())
    true = float(ag.gaussian.epsilon(DELTA, 0.0, noise, longest, noise))
    return of_audit(ag.audit(transcript, claim=claim), true=true, scores=transcript.scores())


main(show)
