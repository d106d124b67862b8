"""Minima of many small objectives at once, for two tokens and one column, compiled: what `descent` does for others.

With two unknowns x, y the objective of a sample (w_1, w_2, t_1, t_2, a, rest) is, for p = 1/V,

    p/2 [(x - w_1)^2 + (y - w_2)^2] + a/2 [(S_11 - t_1)^2 + (S_22 - t_2)^2] + rest,
    S_11 = 1/(1 + exp(-z_1)), z_1 = x (x - y),        S_22 = 1/(1 + exp(-z_2)), z_2 = y (y - x).

`_LANES` samples are descended together, a Newton step of all of them at once. The loop over them has no branches, so
that the compiler makes vector instructions of it, and a sample that is done makes room for the next. A search takes a
few tenths of a microsecond a sample, where minima are followed less than one. Threads take a block of samples at a
time; there are as many as Numba is allowed (NUMBA_NUM_THREADS; all cores if it is not set). What is done to a sample
depends on that sample alone: the digits of a result do not depend on the number of threads.
"""

import math
from concurrent.futures import ThreadPoolExecutor

import numba
import numpy as np
from jaxtyping import Float

from attention_phases._arrays import Array
from attention_phases.errors import ConvergenceError
from attention_phases.positional_semantic.descent import Limits, Minima
from attention_phases.positional_semantic.sample_loss import SampleLoss

Sample = tuple[float, float, float, float, float, float]
Targets = tuple[Array, Array, Array, Array]
State = tuple[float, float, float, float, float, float]

_BLOCK = 4096  # samples that a thread takes at a time
_WORTH_A_THREAD = 4  # blocks; with fewer, a thread costs more than it saves
_LANES = 32
_STARTS = 6  # of a search, beside w
_BENT, _CURVED = (1 + math.sqrt(2)) / 2, 1 / (12 * math.sqrt(3))  # bounds of second derivatives, `certified`
# compiled at the first call and kept beside this file; division by zero gives infinity; other threads run meanwhile;
# a b + c may be rounded once
_compiled = numba.njit(cache=True, error_model="numpy", nogil=True, fastmath={"contract", "nsz"})
_inlined = numba.njit(cache=True, error_model="numpy", nogil=True, fastmath={"contract", "nsz"}, forceinline=True)


def two_token_minima(
    w: Float[Array, "2 1 n"], loss: SampleLoss, precision: float, near: Minima | None, limits: Limits
) -> Minima:
    """A search, or from minima `near` those that they have moved to. ConvergenceError where a descent does not end."""
    n = w.shape[-1]
    fields, targets = w[:, 0], _targets(loss, n)
    starts = (fields, fields, fields[0]) if near is None else (near.lowest[:, 0], near.rival[:, 0], near.rival_value)
    points, values = np.empty((4, n)), np.empty((2, n))

    def block(low: int, high: int) -> int:
        return descend(fields, targets, precision, limits, near is not None, starts, low, high, points, values)

    cuts = range(0, n, _BLOCK)
    n_threads = min(numba.config.NUMBA_NUM_THREADS, len(cuts) // _WORTH_A_THREAD)  # type: ignore[attr-defined]
    if n_threads <= 1:
        n_failed = block(0, n)
    else:
        with ThreadPoolExecutor(n_threads) as pool:
            n_failed = sum(pool.map(lambda low: block(low, min(low + _BLOCK, n)), cuts))
    if n_failed:
        failed = np.isnan(values[0])
        h = points[:2, None]
        gradient = loss.value_and_gradient(h)[1] + precision * (h - w)
        raise ConvergenceError(
            f"{n_failed} of {n} searches of the proximal map did not end in {limits.max_steps} steps",
            last=h,
            residual=float(np.abs(gradient[..., failed]).max()),
        )
    return Minima(points[:2, None], values[0], points[2:, None], values[1])


def two_token_derivatives(loss: SampleLoss, precision: float, h: Float[Array, "2 1 n"]) -> Float[Array, "2 1 2 1 n"]:
    """dg/dw at minima h: with T the Hessian of the objective it is ``p^2 T^-1 - p``."""
    result = np.empty((2, 1, 2, 1, h.shape[-1]))
    _derivatives(h[:, 0], _targets(loss, h.shape[-1]), precision, result[:, 0, :, 0])
    return result


def two_token_losses(w: Float[Array, "2 1 n"], loss: SampleLoss) -> Float[Array, " n"]:
    """ell(w) of each sample."""
    result = np.empty(w.shape[-1])
    _losses(w[:, 0], _targets(loss, len(result)), result)
    return result


def _targets(loss: SampleLoss, n: int) -> Targets:
    """t_1, t_2, a and rest of each sample."""
    two = loss.two_tokens
    return two.first, two.second, np.broadcast_to(two.stiffness, n), two.rest


@_compiled
def _losses(w: Array, targets: Targets, result: Array) -> None:
    for k in range(len(result)):
        result[k] = evaluate(w[0, k], w[1, k], _sample(w, targets, k), 0.0)[0]


@_compiled
def _derivatives(points: Array, targets: Targets, p: float, result: Array) -> None:
    for k in range(points.shape[1]):
        _, _, _, h11, h12, h22 = evaluate(points[0, k], points[1, k], _sample(points, targets, k), p)
        factor = p * p / (h11 * h22 - h12 * h12)
        result[0, 0, k], result[1, 1, k] = factor * h22 - p, factor * h11 - p
        result[0, 1, k] = result[1, 0, k] = -factor * h12


@_inlined
def _sample(w: Array, targets: Targets, k: int) -> Sample:
    first, second, stiffness, rest = targets
    return w[0, k], w[1, k], first[k], second[k], stiffness[k], rest[k]


@_inlined
def _logistic(z: float) -> float:
    """1/(1 + exp(-z)) by arithmetic alone: beyond 40 it is 1 or nothing in double precision."""
    z = 40.0 if z > 40.0 else z
    z = -40.0 if z < -40.0 else z
    u = z / -128
    tail = 1 / 5040 + u * (1 / 40320 + u * (1 / 362880 + u * (1 / 3628800 + u * (1 / 39916800 + u / 479001600))))
    power = 1 + u * (1 + u * (1 / 2 + u * (1 / 6 + u * (1 / 24 + u * (1 / 120 + u * (1 / 720 + u * tail))))))
    for _ in range(7):
        power *= power
    return 1 / (1 + power)


@_inlined
def evaluate(x: float, y: float, sample: Sample, p: float) -> State:
    """The objective, its two first derivatives, and its second ones (xx, xy, yy)."""
    w1, w2, t1, t2, a, rest = sample
    difference = x - y
    s1, s2 = _logistic(x * difference), _logistic(-y * difference)
    slope1, slope2 = s1 * (1 - s1), s2 * (1 - s2)  # dS/dz
    error1, error2 = s1 - t1, s2 - t2
    away1, away2 = x - w1, y - w2
    e1, e2 = a * error1 * slope1, a * error2 * slope2  # d ell/dz
    f1 = a * slope1 * (slope1 + error1 * (1 - 2 * s1))  # d^2 ell/dz^2
    f2 = a * slope2 * (slope2 + error2 * (1 - 2 * s2))
    zx, zy = x + difference, y - difference  # dz_1/dx and dz_2/dy; dz_1/dy = -x, dz_2/dx = -y
    return (
        0.5 * (a * (error1 * error1 + error2 * error2) + p * (away1 * away1 + away2 * away2)) + rest,
        e1 * zx - e2 * y + p * away1,
        e2 * zy - e1 * x + p * away2,
        f1 * zx * zx + f2 * y * y + 2 * e1 + p,
        -f1 * zx * x - f2 * zy * y - e1 - e2,
        f1 * x * x + f2 * zy * zy + 2 * e2 + p,
    )


@_inlined
def _near(x: float, y: float, other_x: float, other_y: float, apart: float) -> bool:
    squared = (x - other_x) ** 2 + (y - other_y) ** 2
    return bool(squared <= apart * apart * (1 + other_x * other_x + other_y * other_y))


# rows of `lanes`: what a lane works on, the point that it has reached and the objective there, the step that it tries,
# the minimum that is known already (a NaN: none is), and how it stands
_FIELDS, _POINT, _VALUE, _STEP, _KNOWN, _STATUS, _ROWS = (row * _LANES for row in (0, 6, 8, 9, 11, 13, 14))
_GOES_ON, _ENDED, _MERGED = 0.0, 1.0, 2.0


@_compiled
def _take_step(lanes: Float[Array, " rows"], p: float, limits: Limits) -> None:
    """One step of each lane's descent, by Newton's method; a step that leads up is tried again at a quarter.

    A descent ends with a short step, or near the minimum that is known.
    """
    length, apart = limits.length, limits.apart
    for k in range(_LANES):
        sample = (
            lanes[_FIELDS + k],
            lanes[_FIELDS + _LANES + k],
            lanes[_FIELDS + 2 * _LANES + k],
            lanes[_FIELDS + 3 * _LANES + k],
            lanes[_FIELDS + 4 * _LANES + k],
            lanes[_FIELDS + 5 * _LANES + k],
        )
        x, y, value = lanes[_POINT + k], lanes[_POINT + _LANES + k], lanes[_VALUE + k]
        dx, dy = lanes[_STEP + k], lanes[_STEP + _LANES + k]
        new_x, new_y = x + dx, y + dy
        new, g1, g2, h11, h12, h22 = evaluate(new_x, new_y, sample, p)
        half = 0.5 * (h11 - h22)
        lowest = 0.5 * (h11 + h22) - math.sqrt(half * half + h12 * h12)
        shift = 0.001 * p - 2 * lowest if lowest <= 0 else 0.0  # the lowest curvature is replaced by its modulus
        h11, h22 = h11 + shift, h22 + shift
        inverse = 1 / (h11 * h22 - h12 * h12)
        # a descent starts with a step of no length from a value of infinity
        short = (dx * dx + dy * dy <= length * length * (1 + new_x * new_x + new_y * new_y)) & (value < math.inf)
        accepted = (new <= value) | short
        x, y, value = (new_x, new_y, new) if accepted else (x, y, value)
        merged = _near(x, y, lanes[_KNOWN + k], lanes[_KNOWN + _LANES + k], apart)
        lanes[_POINT + k], lanes[_POINT + _LANES + k], lanes[_VALUE + k] = x, y, value
        lanes[_STEP + k] = (h12 * g2 - h22 * g1) * inverse if accepted else 0.25 * dx
        lanes[_STEP + _LANES + k] = (h12 * g1 - h11 * g2) * inverse if accepted else 0.25 * dy
        lanes[_STATUS + k] = _MERGED if merged else _ENDED if short else _GOES_ON


@_inlined
def _start(lanes: Float[Array, " rows"], lane: int, x: float, y: float, known_x: float, known_y: float) -> None:
    lanes[_POINT + lane], lanes[_POINT + _LANES + lane], lanes[_VALUE + lane] = x, y, math.inf
    lanes[_STEP + lane], lanes[_STEP + _LANES + lane] = 0.0, 0.0
    lanes[_KNOWN + lane], lanes[_KNOWN + _LANES + lane] = known_x, known_y


@_inlined
def certified(x: float, y: float, value: float, sample: Sample, p: float) -> bool:
    """Whether the local minimum h = (x, y) with this objective is proved to be the lowest one.

    A lower one h + u would lie in the disc ``|h + u - w|^2 <= 2 V (value - rest)``, so that |u| is at most the disc's
    radius and |h - w| together. With e = S - t at h, and ``dS = S' dz + r``, the objective there is higher, as h is
    stationary, by

        p/2 |u|^2 + a sum_i [e_i S'_i k_i(u) + e_i r_i + dS_i^2/2],        dz_i = grad z_i . u + k_i(u),

    with the quadratic forms k_1(u) = u_1 (u_1 - u_2), k_2(u) = u_2 (u_2 - u_1). Their eigenvalues are at most
    (1 + sqrt 2)/2, and ``|r| <= max |S''| dz^2/2``, with max |S''| = 1/(6 sqrt 3). What this can take from p/2 |u|^2
    must be less than nine tenths of it: then no other minimum is nearly as low either, unless it is close.
    """
    w1, w2, t1, t2, a, rest = sample
    s1, s2 = _logistic(x * (x - y)), _logistic(y * (y - x))
    error1, error2 = s1 - t1, s2 - t2
    c1, c2 = error1 * s1 * (1 - s1), error2 * s2 * (1 - s2)
    lowest = 0.5 * (c1 + c2 - math.sqrt((c1 - c2) ** 2 + (c1 + c2) ** 2))  # eigenvalue of sum_i e_i S'_i k_i
    farthest = math.sqrt(2 * max(value - rest, 0.0) / p) + math.sqrt((x - w1) ** 2 + (y - w2) ** 2)
    steepest1 = math.sqrt((2 * x - y) ** 2 + x * x) + _BENT * farthest
    steepest2 = math.sqrt((2 * y - x) ** 2 + y * y) + _BENT * farthest
    remainder = _CURVED * (abs(error1) * steepest1 * steepest1 + abs(error2) * steepest2 * steepest2)
    return a * (remainder - min(lowest, 0.0)) < 0.45 * p


@_inlined
def _wanted(sample: Sample) -> tuple[float, float]:
    """Where S_11, S_22 have the values that ell asks for, on the side of w (h and -h have the same ell)."""
    w1, w2, t1, t2, _, _ = sample
    t1, t2 = min(max(t1, 0.02), 0.98), min(max(t2, 0.02), 0.98)
    z1, z2 = math.log(t1 / (1 - t1)), math.log(t2 / (1 - t2))
    difference = math.sqrt(max(z1 + z2, 0.05))  # (x - y)^2 = z_1 + z_2
    x, y = z1 / difference, -z2 / difference
    return (x, y) if x * w1 + y * w2 >= 0 else (-x, -y)


@_inlined
def _further_starts(
    x: float, y: float, value: float, sample: Sample, p: float, starts: Float[Array, "2 starts"]
) -> int:
    """From where a search goes on after the minimum below w, and from how many points."""
    if certified(x, y, value, sample, p):
        return 0
    w1, w2 = sample[0], sample[1]
    middle, reach = 0.5 * (w1 + w2), 1.5 * 1.5 * 2 * (value - sample[5]) / p
    count = 0
    for start_x, start_y in ((-x, -y), (0.5 * w1, 0.5 * w2), (w1, 0.0), (0.0, w2), (middle, middle)):
        if (start_x - w1) ** 2 + (start_y - w2) ** 2 <= reach:
            starts[0, count], starts[1, count] = start_x, start_y
            count += 1
    starts[0, count], starts[1, count] = _wanted(sample)
    return count + 1


@_compiled
def descend(
    w: Array,
    targets: Targets,
    p: float,
    limits: Limits,
    follow: bool,
    near: tuple[Array, Array, Array],
    low: int,
    high: int,
    points: Array,
    values: Array,
) -> int:
    """The two lowest minima of each sample from `low` to `high`.

    There is a descent from w. Where that does not prove its minimum the lowest one, others start from points from which
    the lowest one is reached: minus that minimum; w/2; the projections of w on the axes and on the diagonal, where one
    or both of z_1, z_2 vanish; and `_wanted`. All but the last are tried where they are no farther from w than 1.5
    times the radius of the disc that holds all lower minima.

    To follow minima that were found for other w or p, `near` (lowest ones, rivals, their objectives), the descents
    start from these two instead; for a search its first part is w.

    `points` (4, n) receives the lowest minimum and its rival, `values` (2, n) their objectives as in `Minima`; the
    first is NaN where a descent did not end. Returns the number of such samples.
    """
    near_lowest, near_rival, near_rival_value = near
    lanes = np.zeros(_ROWS)
    working_on = np.full(_LANES, -1)  # which sample
    n_steps, n_done, n_starts = np.zeros(_LANES, np.int64), np.zeros(_LANES, np.int64), np.zeros(_LANES, np.int64)
    starts = np.empty((_LANES, 2, _STARTS))  # after the first
    first = np.empty((_LANES, 2))  # the minimum that the first one led to
    following, busy, n_failed = low, 0, 0
    while True:
        for lane in range(_LANES):
            k = working_on[lane]
            if k >= 0:
                status = lanes[_STATUS + lane]
                n_steps[lane] += 1
                if status == _GOES_ON and n_steps[lane] < limits.max_steps:
                    continue
                x, y, value = lanes[_POINT + lane], lanes[_POINT + _LANES + lane], lanes[_VALUE + lane]
                if n_done[lane] == 0:
                    if not follow:
                        n_starts[lane] = _further_starts(x, y, value, _sample(w, targets, k), p, starts[lane])
                    elif near_rival_value[k] < math.inf:
                        n_starts[lane] = 1
                        starts[lane, 0, 0], starts[lane, 1, 0] = near_rival[0, k], near_rival[1, k]
                    else:
                        n_starts[lane] = 0
                    first[lane, 0], first[lane, 1] = x, y
                    points[0, k], points[1, k], points[2, k], points[3, k] = x, y, x, y
                    values[0, k], values[1, k] = value, math.inf
                elif status != _MERGED:
                    apart = not _near(x, y, points[0, k], points[1, k], limits.apart)
                    if value < values[0, k]:
                        if apart:
                            points[2, k], points[3, k], values[1, k] = points[0, k], points[1, k], values[0, k]
                        points[0, k], points[1, k], values[0, k] = x, y, value
                    elif value < values[1, k] and apart:
                        points[2, k], points[3, k], values[1, k] = x, y, value
                if status == _GOES_ON:
                    values[0, k] = math.nan
                    n_failed += 1
                    n_starts[lane] = 0
                if n_done[lane] < n_starts[lane]:
                    start = n_done[lane]
                    _start(lanes, lane, starts[lane, 0, start], starts[lane, 1, start], first[lane, 0], first[lane, 1])
                    n_done[lane], n_steps[lane] = start + 1, 0
                    continue
                if values[1, k] == math.inf:
                    points[2, k], points[3, k] = points[0, k], points[1, k]
                working_on[lane] = -1
                busy -= 1
            if following < high:
                k = following
                following += 1
                busy += 1
                working_on[lane], n_steps[lane], n_done[lane] = k, 0, 0
                sample = _sample(w, targets, k)
                for row in range(6):
                    lanes[_FIELDS + row * _LANES + lane] = sample[row]
                _start(lanes, lane, near_lowest[0, k], near_lowest[1, k], math.nan, math.nan)
        if busy == 0:
            return n_failed
        _take_step(lanes, p, limits)
