"""Rounds of Flower's strategies for central differential privacy, as released and repaired."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
from flwr.common import Code, FitRes, Status, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server.strategy import (
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedAvg,
    dp_adaptive_clipping,
    dp_fixed_clipping,
)

import askgauss as ag
from askgauss.integrations.flower import audited
from askgauss.sampling import EveryStep
from museum.outcomes import Outcome, of_audit

CLIENTS, ROUNDS, NOISE, CLIP = 30, 40, 2.0, 0.1
SHAPES = ((50, 15), (750,))


class Even(FedAvg):
    """Every client counts once, whatever it reports."""

    def aggregate_fit(self, server_round: int, results: Any, failures: Any) -> Any:
        for _, result in results:
            result.num_examples = 1
        return super().aggregate_fit(server_round, results, failures)


class SteadyNoise(DifferentialPrivacyServerSideAdaptiveClipping):
    """Noise for the norm that updates were clipped to, not for the next round's."""

    def aggregate_fit(self, server_round: int, results: Any, failures: Any) -> Any:
        clipped_to, add = self.clipping_norm, dp_adaptive_clipping.add_gaussian_noise_to_params
        dp_adaptive_clipping.add_gaussian_noise_to_params = lambda params, noise, _, clients: add(
            params, noise, clipped_to, clients
        )
        try:
            return super().aggregate_fit(server_round, results, failures)
        finally:
            dp_adaptive_clipping.add_gaussian_noise_to_params = add


def clip(update: list[Any], norm: float) -> bool:
    """Scale an update to the norm, in place; whether it was within the norm already."""
    for array in update:
        array[~np.isfinite(array)] = 0.0
    length = float(np.sqrt(sum(float((array.astype(float) ** 2).sum()) for array in update)))
    if length > norm:
        for array in update:
            array *= norm / length
    return length <= norm


def clip_answer(answer: list[Any], current: list[Any], norm: float) -> None:
    """The same for parameters a client answered."""
    update = [np.subtract(new, old) for new, old in zip(answer, current, strict=True)]
    clip(update, norm)
    answer[:] = [old + moved for old, moved in zip(current, update, strict=True)]


def fixed(variant: str) -> Outcome:
    """Fixed clipping; clients have between 1 and 500 examples."""
    options = {"noise_multiplier": NOISE, "clipping_norm": CLIP, "num_sampled_clients": CLIENTS}
    if variant == "mended":
        dp_fixed_clipping.compute_clip_model_update = clip_answer
    base = Even() if variant == "mended" else FedAvg()
    return _rounds(DifferentialPrivacyServerSideFixedClipping(base, **options), NOISE)


def adaptive(variant: str) -> Outcome:
    """Adaptive clipping; clients have as many examples each."""
    # Of updates and count together; the strategy itself keeps the updates' own, which is larger.
    noise = 1.0
    options = {"noise_multiplier": noise, "num_sampled_clients": CLIENTS}
    kind, base = DifferentialPrivacyServerSideAdaptiveClipping, FedAvg
    if variant == "mended":
        dp_adaptive_clipping.adaptive_clip_inputs_inplace = clip
        kind, base = SteadyNoise, Even
    return _rounds(kind(base(), initial_clipping_norm=CLIP, **options), noise, most=2)


def _rounds(strategy: Any, noise: float, most: int = 501) -> Outcome:
    logging.getLogger("flwr").setLevel(logging.ERROR)
    np.random.seed(1)  # noqa: NPY002  (Flower draws its noise from it)
    rng = np.random.default_rng(0)
    watched = audited(strategy, present=250, absent=1200)
    current = [np.zeros(shape, np.float32) for shape in SHAPES]
    for number in range(1, ROUNDS + 1):
        # What configure_fit does first; it would ask a client manager for clients next.
        strategy.current_round_params = current
        results = [(None, _answer(current, rng, most)) for _ in range(CLIENTS)]
        parameters, _ = watched.aggregate_fit(number, results, [])
        current = parameters_to_ndarrays(parameters)
    law = EveryStep()
    claim = ag.PrivacyClaim(
        epsilon=law.epsilon(noise_multiplier=noise, steps=ROUNDS, delta=1e-5),
        delta=1e-5,
        noise_multiplier=noise,
        steps=ROUNDS,
        sampling=law,
        unit="user",
    )
    return of_audit(watched.result(claim=claim), scores=watched.transcript().scores())


def _answer(current: list[Any], rng: np.random.Generator, most: int) -> FitRes:
    scale = rng.uniform(0.3, 2.0) * CLIP / np.sqrt(sum(array.size for array in current))
    moved = [(old + rng.normal(0, scale, old.shape)).astype(np.float32) for old in current]
    status = Status(Code.OK, "")
    return FitRes(status, ndarrays_to_parameters(moved), int(rng.integers(1, most)), {})
