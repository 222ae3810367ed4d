"""Slow oracles of a sampled Gaussian shift: every count, many digits, no cleverness."""

from __future__ import annotations

import pytest
from mpmath import mp


def close(expected, rel):
    """Relative closeness only: these numbers get tiny, and pytest would forgive 1e-12."""
    return pytest.approx(expected, rel=rel, abs=0.0)


def normal_cdf(x):
    return mp.erfc(-x / mp.sqrt(2)) / 2


def components(shift, steps, rate):
    rate, shift = mp.mpf(rate), mp.mpf(shift)
    weights = [
        mp.binomial(steps, k) * rate**k * (1 - rate) ** (steps - k) for k in range(steps + 1)
    ]
    means = [shift * k / (rate * steps) for k in range(steps + 1)]
    return [(w, m) for w, m in zip(weights, means, strict=True) if w > 0]


def beyond(x, mixture):
    return mp.fsum(w * normal_cdf(m - x) for w, m in mixture)
