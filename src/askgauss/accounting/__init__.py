"""How private DP-SGD is: what an accountant claims, and what a measured leak amounts to.

The mechanism throughout is the Poisson-subsampled Gaussian under add/remove neighbours. In units of
the noise, one step shows of a canary one draw of

    absent   N(0, 1)
    present  (1 - q) N(0, 1) + q N(C / sigma, 1)        C / sigma = 1 / noise multiplier

and the run is ``steps`` independent draws. Its epsilon has no closed form, and the two sides of it
serve two purposes that are never interchanged:

* A *claim* must not be too low. `dpsgd_epsilon`, `dpsgd_delta`, `history_epsilon`,
  `dpsgd_noise_multiplier` and `dpsgd_tradeoff` come from dp-accounting's privacy loss distribution
  (connect the dots, Doroshenko et al., arXiv 2207.04380), which errs upwards.
* An *audit* must not be too high. `dpsgd_epsilon_lower` and `dpsgd_signal_to_noise` compose a step
  that can be computed from the true one, so leaks no more than it, and err downwards.

`replaced_epsilon_lower` is the same for a record that is exchanged for its opposite, which shows

    one       (1 - q) N(0, 1) + q N( C / sigma, 1)
    other     (1 - q) N(0, 1) + q N(-C / sigma, 1)

They are some parts in 10 000 apart at ordinary settings, and both exact at sampling rate 1. The
*power* of an audit needs neither side, only speed: `dpsgd_epsilon_lower` on the `COARSE` grid and
`quick_signal_to_noise` are right to two parts in a thousand, and decide nothing. A monitored run
cannot wait: `quick_upper` and the `SMALL` grid bound epsilon in milliseconds.
"""

from askgauss.accounting.lower import (
    COARSE,
    FINE,
    SMALL,
    Grid,
    dpsgd_epsilon_lower,
    dpsgd_signal_to_noise,
    quick_signal_to_noise,
    replaced_epsilon_lower,
    schedule_epsilon_lower,
    schedule_factor,
    schedule_levels,
)
from askgauss.accounting.upper import (
    dpsgd_delta,
    dpsgd_epsilon,
    dpsgd_noise_multiplier,
    dpsgd_tradeoff,
    fixed_size_epsilon,
    history_epsilon,
    quick_upper,
    truncated_epsilon,
)

__all__ = [
    "COARSE",
    "FINE",
    "SMALL",
    "Grid",
    "dpsgd_delta",
    "dpsgd_epsilon",
    "dpsgd_epsilon_lower",
    "dpsgd_noise_multiplier",
    "dpsgd_signal_to_noise",
    "dpsgd_tradeoff",
    "fixed_size_epsilon",
    "history_epsilon",
    "quick_signal_to_noise",
    "quick_upper",
    "replaced_epsilon_lower",
    "schedule_epsilon_lower",
    "schedule_factor",
    "schedule_levels",
    "truncated_epsilon",
]
