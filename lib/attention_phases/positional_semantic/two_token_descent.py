"""Minima of many small objectives at once, for two tokens and one column, compiled: what `descent` does for others.

With two unknowns x, y the objective of a sample (w_1, w_2, t_1, t_2, a, rest) is, for p = 1/V,

    p/2 [(x - w_1)^2 + (y - w_2)^2] + a/2 [(S_11 - t_1)^2 + (S_22 - t_2)^2] + rest,
    S_11 = 1/(1 + exp(-z_1)), z_1 = x (x - y),        S_22 = 1/(1 + exp(-z_2)), z_2 = y (y - x).

A sample takes about a microsecond, a sixth of what NumPy takes for the same steps. Threads take a block of samples at a
time; there are as many as Numba is allowed (NUMBA_NUM_THREADS; all cores if it is not set). What is done to a sample
depends on that sample alone: the digits of a result do not depend on the number of threads.
"""

import math
from concurrent.futures import ThreadPoolExecutor

import numba
import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from attention_phases.errors import ConvergenceError
from attention_phases.positional_semantic.descent import Limits, Minima
from attention_phases.positional_semantic.sample_loss import SampleLoss

Array = NDArray[np.float64]
Sample = tuple[float, float, float, float, float, float]
State = tuple[float, float, float, float, float, float]

_BLOCK = 1024  # samples that a thread takes at a time
_WORTH_A_THREAD = 4  # blocks; with fewer, starting a thread takes longer than it saves
_ROOT2 = math.sqrt(2)
# compiled at the first call and kept beside this file; division by zero gives infinity; other threads run meanwhile
_compiled = numba.njit(cache=True, error_model="numpy", nogil=True)


def two_token_minima(
    w: Float[Array, "2 1 n"], loss: SampleLoss, precision: float, near: Minima | None, limits: Limits
) -> Minima:
    """A search, or from minima `near` those that they have moved to. ConvergenceError where a descent does not end."""
    n, samples = w.shape[-1], _samples(w, loss)
    points, values = np.empty((4, n)), np.empty((2, n))
    if near is not None:
        points[:2], points[2:] = near.lowest[:, 0], near.rival[:, 0]
        values[0], values[1] = near.value, near.rival_value
    function = search if near is None else track

    def block(start: int) -> None:
        function(samples, precision, limits, start, min(start + _BLOCK, n), points, values)

    starts = range(0, n, _BLOCK)
    n_threads = min(numba.config.NUMBA_NUM_THREADS, len(starts) // _WORTH_A_THREAD)  # type: ignore[attr-defined]
    if n_threads <= 1:
        for start in starts:
            block(start)
    else:
        with ThreadPoolExecutor(n_threads) as pool:
            list(pool.map(block, starts))
    failed = np.isnan(values[0])
    if failed.any():
        h = points[:2, None]
        gradient = loss.value_and_gradient(h)[1] + precision * (h - w)
        raise ConvergenceError(
            f"{failed.sum()} of {n} searches of the proximal map did not end in {limits.max_steps} steps",
            last=h,
            residual=float(np.abs(gradient[..., failed]).max()),
        )
    return Minima(points[:2, None], values[0], points[2:, None], values[1])


def two_token_derivatives(
    w: Float[Array, "2 1 n"], loss: SampleLoss, precision: float, h: Float[Array, "2 1 n"]
) -> Float[Array, "2 1 2 1 n"]:
    """dg/dw at minima h: with T the Hessian of the objective it is ``p^2 T^-1 - p``."""
    result = np.empty((2, 1, 2, 1, w.shape[-1]))
    _derivatives(_samples(w, loss), precision, h[:, 0], result[:, 0, :, 0])
    return result


def two_token_losses(w: Float[Array, "2 1 n"], loss: SampleLoss) -> Float[Array, " n"]:
    """ell(w) of each sample."""
    result = np.empty(w.shape[-1])
    _losses(_samples(w, loss), result)
    return result


def _samples(w: Float[Array, "2 1 n"], loss: SampleLoss) -> Float[Array, "6 n"]:
    two = loss.two_tokens
    samples = np.empty((6, w.shape[-1]))
    samples[:2] = w[:, 0]
    samples[2], samples[3], samples[4], samples[5] = two.first, two.second, two.stiffness, two.rest
    return samples


@_compiled
def _losses(samples: Array, result: Array) -> None:
    for k in range(len(result)):
        sample = (samples[0, k], samples[1, k], samples[2, k], samples[3, k], samples[4, k], samples[5, k])
        result[k] = evaluate(samples[0, k], samples[1, k], sample, 0.0)[0]


@_compiled
def _derivatives(samples: Array, p: float, points: Array, result: Array) -> None:
    for k in range(points.shape[1]):
        sample = (samples[0, k], samples[1, k], samples[2, k], samples[3, k], samples[4, k], samples[5, k])
        _, _, _, h11, h12, h22 = evaluate(points[0, k], points[1, k], sample, p)
        factor = p * p / (h11 * h22 - h12 * h12)
        result[0, 0, k], result[1, 1, k] = factor * h22 - p, factor * h11 - p
        result[0, 1, k] = result[1, 0, k] = -factor * h12


@_compiled
def evaluate(x: float, y: float, sample: Sample, p: float) -> State:
    """The objective, its two first derivatives, and its second ones (xx, xy, yy)."""
    w1, w2, t1, t2, a, rest = sample
    difference = x - y
    s1, s2 = 1 / (1 + math.exp(-x * difference)), 1 / (1 + math.exp(y * difference))
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


@_compiled
def _near(x: float, y: float, other_x: float, other_y: float, apart: float) -> bool:
    squared = (x - other_x) ** 2 + (y - other_y) ** 2
    return bool(squared <= apart * apart * (1 + other_x * other_x + other_y * other_y))


@_compiled
def descend(
    x: float, y: float, sample: Sample, p: float, known: tuple[float, float], limits: Limits
) -> tuple[float, float, float]:
    """The minimum below (x, y), by damped Newton steps, and its objective.

    The objective is given as infinite where the descent came near the minimum that is known already (a NaN: none is),
    as NaN where it did not end.
    """
    state = evaluate(x, y, sample, p)
    damping = 0.0
    for _ in range(limits.max_steps):
        _, g1, g2, h11, h12, h22 = state
        a, b = h11 + damping, h22 + damping
        mean, half = 0.5 * (h11 + h22), 0.5 * (h11 - h22)
        if mean <= 0 or h11 * h22 <= h12 * h12:  # not convex: the lowest curvature is replaced by its modulus
            shift = 0.001 * p - 2 * (mean - math.sqrt(half * half + h12 * h12))
            a, b = a + shift, b + shift
        determinant = a * b - h12 * h12
        dx, dy = (h12 * g2 - b * g1) / determinant, (h12 * g1 - a * g2) / determinant
        finished = dx * dx + dy * dy <= limits.length**2 * (1 + x * x + y * y)
        new = evaluate(x + dx, y + dy, sample, p)
        if new[0] <= state[0] or finished:
            x, y, state = x + dx, y + dy, new
            damping = damping / 8 if damping > 0.01 * p else 0.0
        else:
            damping = max(4 * damping, p)
        if _near(x, y, known[0], known[1], limits.apart):
            return x, y, math.inf
        if finished:
            return x, y, state[0]
    return x, y, math.nan


@_compiled
def certified(value: float, sample: Sample, p: float) -> bool:
    """Whether a local minimum with this objective is proved to be the only one so low.

    A lower one would lie in the disc ``|h - w|^2 <= 2 V (value - rest)``: not if all is convex there. The Hessian of
    ell is ``sum_i (d^2 ell/dz_i^2) grad z_i grad z_i^T + (d ell/dz_i) hess z_i``. On the disc S_ii changes by at most a
    quarter of what z_i does. The first factor is ``a S' (-3 S^2 + 2 (1 + t) S - t)``, positive between two values of S;
    the eigenvalues of hess z_i are 1 - sqrt 2 and 1 + sqrt 2.
    """
    w1, w2, t1, t2, a, rest = sample
    squared = 2 * max(value - rest, 0.0) / p
    radius, negative = math.sqrt(squared), 0.0
    for u, v, t in ((w1, w2, t1), (w2, w1, t2)):
        s = 1 / (1 + math.exp(u * (v - u)))
        reach = math.sqrt((2 * u - v) ** 2 + u * u) * radius
        below = s - (reach + 0.5 * (_ROOT2 - 1) * squared) / 4
        above = s + (reach + 0.5 * (_ROOT2 + 1) * squared) / 4
        if (2 * (1 + t) - 3 * below) * below < t or (2 * (1 + t) - 3 * above) * above < t:
            return False
        negative += max((_ROOT2 - 1) * (above - t), (_ROOT2 + 1) * (t - below))
    return 0.25 * a * negative < p


@_compiled
def _wanted(sample: Sample) -> tuple[float, float]:
    """Where S_11, S_22 have the values that ell asks for, on the side of w (h and -h have the same ell)."""
    w1, w2, t1, t2, _, _ = sample
    t1, t2 = min(max(t1, 0.02), 0.98), min(max(t2, 0.02), 0.98)
    z1, z2 = math.log(t1 / (1 - t1)), math.log(t2 / (1 - t2))
    difference = math.sqrt(max(z1 + z2, 0.05))  # (x - y)^2 = z_1 + z_2
    x, y = z1 / difference, -z2 / difference
    return (x, y) if x * w1 + y * w2 >= 0 else (-x, -y)


@_compiled
def search(samples: Array, p: float, limits: Limits, low: int, high: int, points: Array, values: Array) -> None:
    """The two lowest minima of each sample from `low` to `high`.

    There is a descent from w. Where that does not prove its minimum the lowest one, others start from points from which
    the lowest one is reached: minus that minimum; w/2; the projections of w on the axes and on the diagonal, where one
    or both of z_1, z_2 vanish; and `_wanted`. All but the last are tried where they are no farther from w than 1.5
    times the radius of the disc that holds all lower minima.

    `points` (4, n) receives the lowest minimum and its rival, `values` (2, n) their objectives as in `Minima`; the
    first is NaN where a descent did not end.
    """
    for k in range(low, high):
        w1, w2 = samples[0, k], samples[1, k]
        sample = (w1, w2, samples[2, k], samples[3, k], samples[4, k], samples[5, k])
        x, y, value = descend(w1, w2, sample, p, (math.nan, math.nan), limits)
        other_x, other_y, other_value = x, y, math.inf
        if not certified(value, sample, p):
            middle = 0.5 * (w1 + w2)
            wanted_x, wanted_y = _wanted(sample)
            starts = ((-x, -y), (0.5 * w1, 0.5 * w2), (w1, 0.0), (0.0, w2), (middle, middle), (wanted_x, wanted_y))
            reach = 1.5 * 1.5 * 2 * (value - sample[5]) / p
            first_x, first_y = x, y
            for i in range(6):
                start_x, start_y = starts[i]
                if i < 5 and (start_x - w1) ** 2 + (start_y - w2) ** 2 > reach:
                    continue
                new_x, new_y, new = descend(start_x, start_y, sample, p, (first_x, first_y), limits)
                if math.isnan(new):
                    value = math.nan
                elif new < value:
                    if not _near(new_x, new_y, x, y, limits.apart):
                        other_x, other_y, other_value = x, y, value
                    x, y, value = new_x, new_y, new
                elif new < other_value and not _near(new_x, new_y, x, y, limits.apart):
                    other_x, other_y, other_value = new_x, new_y, new
        if other_value == math.inf:
            other_x, other_y = x, y
        points[0, k], points[1, k], points[2, k], points[3, k] = x, y, other_x, other_y
        values[0, k], values[1, k] = value, other_value


@_compiled
def track(samples: Array, p: float, limits: Limits, low: int, high: int, points: Array, values: Array) -> None:
    """Replace the two minima of each sample, found for other w or p, by those below them; arguments as for `search`."""
    for k in range(low, high):
        sample = (samples[0, k], samples[1, k], samples[2, k], samples[3, k], samples[4, k], samples[5, k])
        x, y, value = descend(points[0, k], points[1, k], sample, p, (math.nan, math.nan), limits)
        other_x, other_y, other_value = x, y, math.inf
        if values[1, k] < math.inf:
            other_x, other_y, other_value = descend(points[2, k], points[3, k], sample, p, (x, y), limits)
            if other_value == math.inf:
                other_x, other_y = x, y
            if other_value < value:
                x, y, value, other_x, other_y, other_value = other_x, other_y, other_value, x, y, value
        if math.isnan(other_value):
            value = math.nan
        points[0, k], points[1, k], points[2, k], points[3, k] = x, y, other_x, other_y
        values[0, k], values[1, k] = value, other_value
