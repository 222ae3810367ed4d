"""Hockey-stick divergence of two one-dimensional Gaussians, and its inverse.

For two laws P and Q, delta(epsilon) is the largest value of P(S) - exp(epsilon) Q(S) over all
events S: the smallest delta for which the pair is (epsilon, delta)-close. Both orders of the pair
count, and the larger one is returned.

**Which order is larger.** The one with the wider Gaussian first, for every epsilon >= 0. Write
L = log p/q with P the wider one, and n for the Gaussian law with density proportional to
sqrt(p q). In some coordinate y, L = a y^2 - c and n has a mean m >= 0. Up to the positive factor
exp(epsilon / 2), delta of (P, Q) minus delta of (Q, P) is proportional to

    W(epsilon) = E_n[sinh((L - epsilon) / 2)^+] - E_n[sinh((-L - epsilon) / 2)^+],

with W(0) = 0 and W'' = W/4 + (f(epsilon) - f(-epsilon)) / 2, f the density of L under n. Let R >= r
be the y > 0 at which L is epsilon and -epsilon; r exists for epsilon <= c, beyond which the second
term of W is zero, and R + r falls as epsilon grows. Where R + r <= 2m, the map y -> R + r - y of
(-r, r) into (R, infinity) raises both n(y) and the sinh, so W >= 0. Where R + r > 2m,
n(R) + n(-R) <= n(r) + n(-r) and 1/R < 1/r, so f(epsilon) < f(-epsilon) and W has no negative
minimum; it starts at 0 and ends at W >= 0, hence is not negative there either.

**No cancellation.** In units of the narrow deviation, P = N(h, rho^2) and Q = N(0, 1). The region
L > epsilon lies right of one point and left of another. The right one, u in units of P and
v = rho u + h in units of Q, obeys v^2 - u^2 = 2 (epsilon + log rho), so its share of delta is

    phi(u) (M(u) - M(v) / rho),        M(x) = (1 - Phi(x)) / phi(x), the Mills ratio.

The left one's is the same with u + w for u and -h for h, where w = 2 rho h / (rho^2 - 1). M comes
from erfcx, the difference of two nearly equal M is integrated, and everything added is positive.
The inverse is found in u, in which log(delta / (1 - delta)) is close to a parabola.

The closed form is Lemma 1 of "Let's Ask Gauss". Equal deviations are Gaussian differential privacy
(Dong, Roth and Su, arXiv:1905.02383; Balle and Wang, arXiv:1805.06530).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any, NamedTuple, cast, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import erfcx, erfinv, ndtri_exp

from askgauss import _validate
from askgauss.exceptions import AskGaussError, InvalidArgumentError

__all__ = ["delta", "epsilon", "gdp_delta", "gdp_epsilon", "gdp_mu", "log_delta"]

# A float64 scalar stands in for an array without dimensions, because numpy is faster with it.
Array = NDArray[np.float64]
Flags = NDArray[np.bool_]

_LARGEST = sys.float_info.max
_RANGES = {
    "epsilon": (0.0, math.inf, ">= 0"),
    "delta": (0.0, math.nextafter(1.0, 0.0), "in [0, 1)"),
    "mu": (0.0, math.inf, ">= 0"),
    "mu1": (-_LARGEST, _LARGEST, "to be finite"),
    "mu2": (-_LARGEST, _LARGEST, "to be finite"),
    "sigma1": (math.ulp(0.0), _LARGEST, "> 0 and finite"),
    "sigma2": (math.ulp(0.0), _LARGEST, "> 0 and finite"),
}

_HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)
_LOG_2 = math.log(2.0)
_SQRT_2 = math.sqrt(2.0)
_SQRT_HALF = math.sqrt(0.5)
_SQRT_HALF_PI = math.sqrt(0.5 * math.pi)
_NODES, _WEIGHTS = (0.5 * half for half in np.polynomial.legendre.leggauss(4))
_NODES += 0.5

# Left of this u the smaller of delta and 1 - delta is the latter.
_TURN = -1.0
# Beyond this u even log(delta) overflows.
_FARTHEST = 1e160
# A larger ratio or gap makes delta 1 to the last digit, and epsilon more than a float can hold.
_DISJOINT = 1e200
# A smaller gap between equal deviations is lost to underflow and counts as none; so does a budget.
_IDENTICAL = 1e-300
# Arrays are worked off in blocks whose temporaries stay in the cache.
_BLOCK = 4096
# Far beyond need: random arguments over the whole range of floats take 12 at most.
_MOST_STEPS = 200
# Halley's method triples the digits, so a step this small is the last one.
_TOLERANCE = 1e-6

_ZERO: Array = np.zeros(())[()]
_ONE: Array = np.ones(())[()]


@overload
def delta(epsilon: float, mu1: float, sigma1: float, mu2: float, sigma2: float) -> float: ...
@overload
def delta(
    epsilon: ArrayLike, mu1: ArrayLike, sigma1: ArrayLike, mu2: ArrayLike, sigma2: ArrayLike
) -> Array: ...
def delta(
    epsilon: ArrayLike, mu1: ArrayLike, sigma1: ArrayLike, mu2: ArrayLike, sigma2: ArrayLike
) -> float | Array:
    """Hockey-stick divergence of two Gaussians, the larger of the two directions.

    Args:
        epsilon: Level, at least 0; infinity gives 0.
        mu1: Mean of the first Gaussian.
        sigma1: Standard deviation of the first Gaussian.
        mu2: Mean of the second Gaussian.
        sigma2: Standard deviation of the second Gaussian.

    Returns:
        The smallest delta such that the pair is (epsilon, delta)-close in both directions: a float
        if every argument is a number, else an array of the broadcast shape.

    >>> round(delta(0.5, 0.0, 1.0, 1.0, 1.3), 10)
    0.2495734153
    >>> delta([0.0, 1.0], 0.0, 1.0, 1.0, 2.0).round(6)
    array([0.390066, 0.271613])
    """
    return _map(_delta, epsilon=epsilon, mu1=mu1, sigma1=sigma1, mu2=mu2, sigma2=sigma2)


@overload
def log_delta(epsilon: float, mu1: float, sigma1: float, mu2: float, sigma2: float) -> float: ...
@overload
def log_delta(
    epsilon: ArrayLike, mu1: ArrayLike, sigma1: ArrayLike, mu2: ArrayLike, sigma2: ArrayLike
) -> Array: ...
def log_delta(
    epsilon: ArrayLike, mu1: ArrayLike, sigma1: ArrayLike, mu2: ArrayLike, sigma2: ArrayLike
) -> float | Array:
    """Natural logarithm of `delta`, accurate where delta itself underflows or is close to 1.

    Arguments are those of `delta`.

    Returns:
        log(delta), minus infinity where delta is exactly 0 (two identical Gaussians, or an infinite
        epsilon) or the logarithm itself too large for a float.

    >>> round(log_delta(1000.0, 0.0, 1.0, 1.0, 1.0), 3)
    -499514.859
    """
    return _map(_log_delta, epsilon=epsilon, mu1=mu1, sigma1=sigma1, mu2=mu2, sigma2=sigma2)


@overload
def epsilon(delta: float, mu1: float, sigma1: float, mu2: float, sigma2: float) -> float: ...
@overload
def epsilon(
    delta: ArrayLike, mu1: ArrayLike, sigma1: ArrayLike, mu2: ArrayLike, sigma2: ArrayLike
) -> Array: ...
def epsilon(
    delta: ArrayLike, mu1: ArrayLike, sigma1: ArrayLike, mu2: ArrayLike, sigma2: ArrayLike
) -> float | Array:
    """Smallest epsilon >= 0 at which the divergence of two Gaussians is at most ``delta``.

    Args:
        delta: Level in [0, 1). At 0 the answer is infinity, or 0 for two identical Gaussians.
        mu1: Mean of the first Gaussian.
        sigma1: Standard deviation of the first Gaussian.
        mu2: Mean of the second Gaussian.
        sigma2: Standard deviation of the second Gaussian.

    Returns:
        The inverse of `delta` in epsilon: a float if every argument is a number, else an array of
        the broadcast shape. There is no ceiling; a value too large for a float is infinity.

    >>> round(epsilon(1e-5, 1.0, 1.0, 0.0, 1.0), 4)
    4.3772
    >>> epsilon(1e-5, 0.0, 1.0, [0.0, 3.0], 1.0).round(4)
    array([ 0.    , 16.6755])
    """
    return _map(_epsilon, delta=delta, mu1=mu1, sigma1=sigma1, mu2=mu2, sigma2=sigma2)


@overload
def gdp_delta(epsilon: float, mu: float) -> float: ...
@overload
def gdp_delta(epsilon: ArrayLike, mu: ArrayLike) -> Array: ...
def gdp_delta(epsilon: ArrayLike, mu: ArrayLike) -> float | Array:
    """The delta of mu-Gaussian differential privacy at ``epsilon``.

    Args:
        epsilon: Level, at least 0.
        mu: Distance of two unit Gaussians, at least 0 and possibly infinite.

    Returns:
        `delta` of N(mu, 1) and N(0, 1).

    >>> round(gdp_delta(1.0, 1.0), 6)
    0.126937
    """
    return _map(lambda level, mu: _delta(level, mu, _ONE, _ZERO, _ONE), epsilon=epsilon, mu=mu)


@overload
def gdp_epsilon(delta: float, mu: float) -> float: ...
@overload
def gdp_epsilon(delta: ArrayLike, mu: ArrayLike) -> Array: ...
def gdp_epsilon(delta: ArrayLike, mu: ArrayLike) -> float | Array:
    """The epsilon of mu-Gaussian differential privacy at ``delta``.

    Args:
        delta: Level in [0, 1). At 0 the answer is infinity, or 0 where ``mu`` is 0.
        mu: Distance of two unit Gaussians, at least 0 and possibly infinite.

    Returns:
        `epsilon` of N(mu, 1) and N(0, 1).

    >>> gdp_epsilon(1e-5, [0.1, 1.0, 30.0]).round(3)
    array([3.41000e-01, 4.37700e+00, 5.77012e+02])
    """
    return _map(lambda level, mu: _epsilon(level, mu, _ONE, _ZERO, _ONE), delta=delta, mu=mu)


@overload
def gdp_mu(epsilon: float, delta: float) -> float: ...
@overload
def gdp_mu(epsilon: ArrayLike, delta: ArrayLike) -> Array: ...
def gdp_mu(epsilon: ArrayLike, delta: ArrayLike) -> float | Array:
    """The largest mu such that mu-Gaussian differential privacy implies (epsilon, delta).

    Args:
        epsilon: Claimed epsilon, at least 0.
        delta: Claimed delta in [0, 1). At 0 the answer is 0: Gaussian noise has no such claim.

    Returns:
        The inverse of `gdp_delta` in mu; infinity at an infinite epsilon.

    >>> round(gdp_mu(4.3772, 1e-5), 4)
    1.0
    """
    return _map(_gdp_mu, epsilon=epsilon, delta=delta)


class _Pair(NamedTuple):
    """A pair in units of its narrow member: N(gap, ratio^2) against N(0, 1)."""

    ratio: Array
    excess: Array  # ratio - 1, exact where the deviations are close
    log_ratio: Array
    gap: Array
    wide_gap: Array  # gap / ratio
    curve: Array  # ratio - 1 / ratio
    offset: Array  # the left boundary is at -(u + offset); infinite if there is none
    identical: Flags
    disjoint: Flags


def _pair(mu1: Array, sigma1: Array, mu2: Array, sigma2: Array) -> _Pair:
    wide, narrow = _larger(sigma1, sigma2), _smaller(sigma1, sigma2)
    distance = abs(mu1 - mu2)
    ratio, excess, gap = wide / narrow, (wide - narrow) / narrow, distance / narrow
    wide_gap = distance / wide
    identical = (excess == 0.0) & (gap < _IDENTICAL)
    disjoint = ratio + gap > _DISJOINT
    special = identical | disjoint
    if _any(special):  # Their answer is known; a harmless pair takes their place.
        ratio, excess = _where(special, 1.0, ratio), _where(special, 0.0, excess)
        gap, wide_gap = _where(special, 1.0, gap), _where(special, 1.0, wide_gap)
    curve = excess * (1.0 + 1.0 / ratio)
    offset = _where(gap == 0.0, 0.0, 2.0 * gap / curve)
    log_ratio = np.log1p(excess)
    return _Pair(ratio, excess, log_ratio, gap, wide_gap, curve, offset, identical, disjoint)


def _boundary(pair: _Pair, epsilon: Array) -> Array:
    """Where the region of log p/q > epsilon begins on the right, in units of the wide Gaussian."""
    radius = _SQRT_2 * np.sqrt(epsilon + pair.log_ratio)
    bent = np.sqrt(pair.curve / pair.ratio) * radius
    # The stable root of the quadratic, its factors ordered so that no square overflows.
    scale = np.hypot(pair.wide_gap, bent) + pair.gap
    u = radius * (radius / (pair.ratio * scale)) - pair.wide_gap * (pair.gap / scale)
    return _smaller(u, _FARTHEST)


def _log_delta(level: Array, mu1: Array, sigma1: Array, mu2: Array, sigma2: Array) -> Array:
    pair = _pair(mu1, sigma1, mu2, sigma2)
    u = _boundary(pair, level)
    parts = _parts(pair, u)
    answer = log_mass = _log_mass(u, parts.mass)
    if _any(parts.flipped):
        answer = _where(parts.flipped, np.log1p(-np.exp(log_mass)), log_mass)
    answer = _where(pair.disjoint, 0.0, answer)
    return _where(pair.identical | (level == math.inf), -math.inf, answer)


def _delta(level: Array, mu1: Array, sigma1: Array, mu2: Array, sigma2: Array) -> Array:
    return np.exp(_log_delta(level, mu1, sigma1, mu2, sigma2))


def _epsilon(level: Array, mu1: Array, sigma1: Array, mu2: Array, sigma2: Array) -> Array:
    pair = _pair(mu1, sigma1, mu2, sigma2)
    floor = _boundary(pair, _ZERO)
    low, high = _bounds(level)
    low = _smaller(_larger(low, floor), high)
    u = _solve(lambda u: _logit(u, _parts(pair, u)), level, low, high, start=high)
    difference, total = pair.excess * u + pair.gap, (pair.ratio + 1.0) * u + pair.gap
    answer = _larger(0.5 * difference * total - pair.log_ratio, 0.0)
    answer = _where(u > floor, answer, 0.0)  # Rounding alone could leave a little more.
    answer = _where(pair.disjoint | (level == 0.0), math.inf, answer)
    return _where(pair.identical, 0.0, answer)


def _gdp_mu(budget: Array, level: Array) -> Array:
    none = budget < _IDENTICAL
    special = none | (budget == math.inf)
    # With equal deviations v^2 - u^2 = radius^2 and mu = v - u. Where radius is small, delta
    # changes with the logarithm of mu, where it is large with u: u = radius sinh(s / unit) is both.
    radius = _SQRT_2 * np.sqrt(_where(special, 1.0, budget))
    unit = _larger(radius, 1.0)

    def logit(s: Array) -> tuple[Array, Array, Array]:
        s = s / unit
        u, v, mu = radius * np.sinh(s), radius * np.cosh(s), radius * np.exp(-s)
        mass, tail = _excess(_larger(u, _TURN), v, mu, _ZERO)
        flipped = u < _TURN
        mass = _where(flipped, _mills(_larger(-u, 0.0)) + tail, mass)
        fall = mu / unit
        return _logit(u, _Parts(mass, flipped, fall, fall * (u * (v / unit) + 1.0 / unit)))

    low, high = (unit * np.arcsinh(bound / radius) for bound in _bounds(level))
    mu = radius * np.exp(-_solve(logit, level, low, high, start=low) / unit)
    mu = _where(none, 2.0 * _SQRT_2 * erfinv(level), mu)
    mu = _where(budget == math.inf, math.inf, mu)
    return _where(level == 0.0, 0.0, mu)


class _Parts(NamedTuple):
    """delta and its derivatives at u, all over phi(u)."""

    mass: Array  # delta, or 1 - delta where that is the smaller one
    flipped: Flags  # which of the two
    fall: Array  # minus the first derivative in u
    bend: Array  # the second derivative in u


def _parts(pair: _Pair, u: Array) -> _Parts:
    # What epsilon >= 0 implies, these clamps keep under rounding.
    v = _larger(pair.ratio * u + pair.gap, -u)
    step = _larger(pair.excess * u + pair.gap, -2.0 * u)  # v - u
    speed = _larger(pair.curve * u + pair.gap, pair.wide_gap)  # d epsilon / du, over ratio
    width = 2.0 * speed / pair.curve  # between the two boundaries
    mass, tail = _excess(_larger(u, _TURN), v, step, pair.excess)
    turn = pair.ratio * _slope(v, tail) + u * tail
    weight = np.exp(-0.5 * pair.offset * width)  # phi at the left boundary, over phi(u)
    matters = weight > 1e-20
    if _any(matters):
        weight = _where(matters, weight, 0.0)
        left_u = _where(matters, u + pair.offset, abs(u))
        left_v = _larger(pair.ratio * left_u - pair.gap, left_u)
        step = pair.excess * _larger(u + pair.gap / (pair.ratio + 1.0), 0.0)
        left, left_tail = _excess(left_u, left_v, step, pair.excess)
        mass, tail = mass + weight * left, tail + weight * left_tail
        turn = turn + weight * (pair.ratio * _slope(left_v, left_tail) + left_u * left_tail)
    mass = mass / pair.ratio
    flipped = (u < _TURN) | (_log_mass(u, mass) > -_LOG_2)
    if _any(flipped):
        mass = _where(flipped, _between(u, width, pair.offset, weight) + tail / pair.ratio, mass)
    return _Parts(mass, flipped, speed * tail, speed * turn - pair.curve * tail)


def _between(u: Array, width: Array, offset: Array, weight: Array) -> Array:
    """Mass of a unit Gaussian between u - width and u, over phi(u)."""
    share = np.multiply.outer(_NODES, width)
    narrow = width * (_WEIGHTS @ np.exp(share * (u - 0.5 * share)))
    wide = _mills(-u) - weight * _mills(u + offset)
    return _where(width * _larger(abs(u), 1.0) < 0.05, narrow, wide)


def _excess(x: Array, y: Array, step: Array, excess: Array) -> tuple[Array, Array]:
    """(1 + excess) M(x) - M(y) for y = x + step, without cancellation, and M(y)."""
    at_x, at_y = _mills(x), _mills(y)
    drop = at_x - at_y
    near: Any = step < 0.05 * _larger(x, 1.0)
    if isinstance(near, np.ndarray):
        drop[near] = _drop(x[near], step[near])
    elif near:
        drop = _drop(x, step)
    return excess * at_x + drop, at_y


def _drop(x: Array, step: Array) -> Array:
    """M(x) - M(x + step) for a small step, as the integral of -M'."""
    nodes = x + np.multiply.outer(_NODES, step)
    return step * (_WEIGHTS @ _slope(nodes, _mills(nodes)))


def _mills(x: Array) -> Array:
    """M(x) = (1 - Phi(x)) / phi(x)."""
    return cast(Array, _SQRT_HALF_PI * erfcx(_SQRT_HALF * x))


def _slope(x: Array, mills: Array) -> Array:
    """-M'(x) = 1 - x M(x), or its asymptotic series where that cancels."""
    slope = 1.0 - x * mills
    distant = x > 30.0
    if _any(distant):
        t = 1.0 / (x * x)
        series = t * (1.0 - 3.0 * t * (1.0 - 5.0 * t * (1.0 - 7.0 * t * (1.0 - 9.0 * t))))
        slope = _where(distant, series, slope)
    return slope


def _log_mass(u: Array, mass: Array) -> Array:
    return np.log(mass) - (0.5 * u * u + _HALF_LOG_2PI)


def _logit(u: Array, parts: _Parts) -> tuple[Array, Array, Array]:
    """log(delta / (1 - delta)) and its first two derivatives in u."""
    log_mass = _log_mass(u, parts.mass)
    rest = -np.expm1(log_mass)
    both = parts.mass * rest
    sign = _where(parts.flipped, -1.0, 1.0)
    first = -parts.fall / both
    second = parts.bend / both - sign * (2.0 * rest - 1.0) * first * first
    return sign * (log_mass - np.log(rest)), first, second


def _bounds(level: Array) -> tuple[Array, Array]:
    """Below and above the u at which delta is level: 1 - 2 Phi(u) <= delta <= 2 (1 - Phi(u))."""
    return -_SQRT_2 * erfinv(level), -ndtri_exp(np.log(level) - _LOG_2)


def _solve(
    logit: Callable[[Array], tuple[Array, Array, Array]],
    level: Array,
    low: Array,
    high: Array,
    start: Array,
) -> Array:
    """The u in [low, high] where a falling delta meets the level, or low if it is below there.

    Halley's steps within a bracket, which is halved where a step would leave it.
    """
    target = np.log(level) - np.log1p(-level)
    u, floor, settled = start, low, level == 0.0
    for _ in range(_MOST_STEPS):
        value, first, second = logit(u)
        error = value - target
        above = error > 0.0
        low, high = _where(above, u, low), _where(above, high, u)
        newton = -error / first
        step = newton / (1.0 + _larger(0.5 * newton * second / first, -0.5))
        ahead = u + step
        last = abs(step) <= _TOLERANCE
        good = last | ((ahead > low) & (ahead < high))
        # The floor has not been looked at before the first step that leads below it.
        other = _where((ahead <= low) & (low <= floor), floor, 0.5 * (low + high))
        ahead = _where(good, _larger(_smaller(ahead, high), low), other)
        below = (u <= floor) & (error <= 0.0)
        u = _where(settled | below, u, ahead)
        settled = settled | last | below
        if _all(settled):
            return u
    raise AskGaussError("The inverse of delta did not converge. Please report the arguments.")


def _map(kernel: Callable[..., Array], **arguments: ArrayLike) -> float | Array:
    """Check the arguments, broadcast them, and apply an elementwise function."""
    values = [_number(name, value) for name, value in arguments.items()]
    with np.errstate(all="ignore"):
        if not any(isinstance(value, np.ndarray) for value in values):
            return float(kernel(*values))
        try:
            shape = np.broadcast_shapes(*(np.shape(value) for value in values))
        except ValueError as error:
            shapes = ", ".join(f"{n} {np.shape(v)}" for n, v in zip(arguments, values, strict=True))
            raise InvalidArgumentError(f"Expected shapes that broadcast, got {shapes}.") from error
        flat = [np.broadcast_to(value, shape).reshape(-1) for value in values]
        answer = np.empty(math.prod(shape))
        for begin in range(0, answer.size, _BLOCK):
            block = slice(begin, begin + _BLOCK)
            answer[block] = kernel(*(value[block] for value in flat))
        return answer.reshape(shape)


def _number(name: str, value: Any) -> Any:
    """A float64 scalar or array within the range of that name."""
    low, high, expected = _RANGES[name]
    if type(value) is float and low <= value <= high:
        return np.float64(value)
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise _validate.fail(name, value, expected) from error
    if array.dtype.kind not in "iuf":
        raise _validate.fail(name, value, expected)
    array = array.astype(np.float64, copy=False)
    outside = ~((array >= low) & (array <= high))
    if outside.any():
        first = tuple(int(i) for i in np.argwhere(outside)[0])
        place = f"[{', '.join(map(str, first))}]" if first else ""
        raise _validate.fail(name + place, float(array[first]), expected)
    return array[()]


# What numpy has under other names, several times faster on single numbers.


def _where(condition: Any, yes: Array | float, no: Array | float) -> Array:
    if isinstance(condition, np.ndarray):
        return np.where(condition, yes, no)
    return cast(Array, np.float64(yes if condition else no))


def _larger(first: Array, second: Array | float) -> Array:
    return _where(first > second, first, second)


def _smaller(first: Array, second: Array | float) -> Array:
    return _where(first < second, first, second)


def _any(condition: Any) -> bool:
    return bool(condition.any() if isinstance(condition, np.ndarray) else condition)


def _all(condition: Any) -> bool:
    return bool(condition.all() if isinstance(condition, np.ndarray) else condition)
