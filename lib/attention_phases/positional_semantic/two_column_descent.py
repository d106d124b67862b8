"""Minima of many small objectives at once, for two tokens and two columns, compiled: what `descent` does for others.

The four unknowns of a sample are h = (h_1, h_2), two vectors of two columns. Its objective is, for P = V^-1,

    1/2 sum_l (h_l - w_l)^T P (h_l - w_l) + a/2 [(S_11 - t_1)^2 + (S_22 - t_2)^2] + rest,
    S_ll = 1/(1 + exp(-z_l)),    z_1 = h_1 . (h_1 - h_2),    z_2 = h_2 . (h_2 - h_1).

z_1 and z_2 do not change when both tokens are rotated or reflected alike. Each minimum of ell is therefore one of two
circles of minima, and the first term leaves a few points of each, at the ends of long and bent valleys. One search
takes some microseconds, a fortieth of what NumPy takes for the same steps.
"""

import math

import numba
import numpy as np
from jaxtyping import Float

from attention_phases._arrays import Array
from attention_phases.errors import ConvergenceError
from attention_phases.positional_semantic.descent import Limits, Minima
from attention_phases.positional_semantic.sample_loss import SampleLoss

Sample = tuple[float, float, float, float]  # t_1, t_2, a, rest
Precision = tuple[float, float, float, float]  # P_11, P_12, P_22, and the lowest eigenvalue
Point = tuple[float, float, float, float]  # h_11, h_12, h_21, h_22: token, column

_STARTS = 13  # of a search, beside w
_LEAST = 1e-3  # damping, relative to the lower of P's eigenvalues: small, as valleys are nearly flat along a circle
_ROOT2 = math.sqrt(2)
# compiled at the first call and kept beside this file; division by zero gives infinity; other threads run meanwhile
_compiled = numba.njit(cache=True, error_model="numpy", nogil=True)


def two_column_minima(
    w: Float[Array, "2 2 n"], loss: SampleLoss, precision: Float[Array, "2 2"], near: Minima | None, limits: Limits
) -> Minima:
    """A search, or from minima `near` those that they have moved to. ConvergenceError where a descent does not end."""
    n, two = w.shape[-1], loss.two_tokens
    samples = np.empty((8, n))
    samples[:4] = w.reshape(4, n)
    samples[4], samples[5], samples[6], samples[7] = two.first, two.second, two.stiffness, two.rest
    p = (precision[0, 0], precision[0, 1], precision[1, 1], np.linalg.eigvalsh(precision)[0])
    points, values = np.empty((8, n)), np.empty((2, n))
    if near is None:
        search(samples, p, limits, points, values)
    else:
        points[:4], points[4:] = near.lowest.reshape(4, n), near.rival.reshape(4, n)
        values[0], values[1] = near.value, near.rival_value
        track(samples, p, limits, points, values)
    failed = np.isnan(values[0])
    lowest, rival = points[:4].reshape(w.shape), points[4:].reshape(w.shape)
    if failed.any():
        pulled = np.tensordot(precision, lowest - w, axes=(1, 1)).swapaxes(0, 1)
        gradient = loss.value_and_gradient(lowest)[1] + pulled
        raise ConvergenceError(
            f"{failed.sum()} of {n} searches of the proximal map did not end in {limits.max_steps} steps",
            last=lowest,
            residual=float(np.abs(gradient[..., failed]).max()),
        )
    return Minima(lowest, values[0], rival, values[1])


@_compiled
def evaluate(h: Point, w: Point, sample: Sample, p: Precision, gradient: Array, hessian: Array) -> float:
    """The objective; its derivatives are written to `gradient` (4) and to the lower triangle of `hessian` (4, 4)."""
    t1, t2, a, rest = sample
    p11, p12, p22, _ = p
    x1, y1, x2, y2 = h
    u, v = x1 - x2, y1 - y2
    s1, s2 = 1 / (1 + math.exp(-x1 * u - y1 * v)), 1 / (1 + math.exp(x2 * u + y2 * v))
    slope1, slope2 = s1 * (1 - s1), s2 * (1 - s2)  # dS/dz
    error1, error2 = s1 - t1, s2 - t2
    e1, e2 = a * error1 * slope1, a * error2 * slope2  # d ell/dz
    f1 = a * slope1 * (slope1 + error1 * (1 - 2 * s1))  # d^2 ell/dz^2
    f2 = a * slope2 * (slope2 + error2 * (1 - 2 * s2))
    away = (x1 - w[0], y1 - w[1], x2 - w[2], y2 - w[3])
    pulled1, pulled2 = p11 * away[0] + p12 * away[1], p12 * away[0] + p22 * away[1]
    pulled3, pulled4 = p11 * away[2] + p12 * away[3], p12 * away[2] + p22 * away[3]
    # gradients of z_1 and z_2
    a1, a2, a3, a4 = x1 + u, y1 + v, -x1, -y1
    b1, b2, b3, b4 = -x2, -y2, x2 - u, y2 - v
    gradient[0], gradient[1] = e1 * a1 + e2 * b1 + pulled1, e1 * a2 + e2 * b2 + pulled2
    gradient[2], gradient[3] = e1 * a3 + e2 * b3 + pulled3, e1 * a4 + e2 * b4 + pulled4
    mixed = -e1 - e2
    hessian[0, 0] = f1 * a1 * a1 + f2 * b1 * b1 + 2 * e1 + p11
    hessian[1, 0] = f1 * a2 * a1 + f2 * b2 * b1 + p12
    hessian[1, 1] = f1 * a2 * a2 + f2 * b2 * b2 + 2 * e1 + p22
    hessian[2, 0] = f1 * a3 * a1 + f2 * b3 * b1 + mixed
    hessian[2, 1] = f1 * a3 * a2 + f2 * b3 * b2
    hessian[2, 2] = f1 * a3 * a3 + f2 * b3 * b3 + 2 * e2 + p11
    hessian[3, 0] = f1 * a4 * a1 + f2 * b4 * b1
    hessian[3, 1] = f1 * a4 * a2 + f2 * b4 * b2 + mixed
    hessian[3, 2] = f1 * a4 * a3 + f2 * b4 * b3 + p12
    hessian[3, 3] = f1 * a4 * a4 + f2 * b4 * b4 + 2 * e2 + p22
    quadratic = away[0] * pulled1 + away[1] * pulled2 + away[2] * pulled3 + away[3] * pulled4
    return 0.5 * (a * (error1 * error1 + error2 * error2) + quadratic) + rest


@_compiled
def _newton_step(gradient: Array, hessian: Array, shift: float, factor: Array, step: Array) -> bool:
    """``-(H + shift)^-1 gradient`` by Cholesky's method; False where that matrix is not positive definite."""
    for i in range(4):
        for j in range(i + 1):
            total = hessian[i, j]
            for k in range(j):
                total -= factor[i, k] * factor[j, k]
            if i > j:
                factor[i, j] = total / factor[j, j]
            else:
                total += shift
                if not total > 0:
                    return False
                factor[i, i] = math.sqrt(total)
    for i in range(4):
        total = -gradient[i]
        for k in range(i):
            total -= factor[i, k] * step[k]
        step[i] = total / factor[i, i]
    for i in range(3, -1, -1):
        total = step[i]
        for k in range(i + 1, 4):
            total -= factor[k, i] * step[k]
        step[i] = total / factor[i, i]
    return True


@_compiled
def _squared(h: Point) -> float:
    return h[0] * h[0] + h[1] * h[1] + h[2] * h[2] + h[3] * h[3]


@_compiled
def _near(h: Point, other: Point, apart: float) -> bool:
    squared = (h[0] - other[0]) ** 2 + (h[1] - other[1]) ** 2 + (h[2] - other[2]) ** 2 + (h[3] - other[3]) ** 2
    return bool(squared <= apart * apart * (1 + _squared(other)))


@_compiled
def descend(
    h: Point, w: Point, sample: Sample, p: Precision, known: Point, limits: Limits, scratch: tuple[Array, ...]
) -> tuple[Point, float]:
    """The minimum below h, by damped Newton steps, and its objective.

    The objective is given as infinite where the descent came near the minimum that is known already (NaN: none is), as
    NaN where it did not end. `scratch`: room for a gradient, a Hessian, both at the next point, a factor and a step.
    """
    gradient, hessian, new_gradient, new_hessian, factor, step = scratch
    value = evaluate(h, w, sample, p, gradient, hessian)
    lowest = p[3]
    damping = 0.0
    for _ in range(limits.max_steps):
        shift = damping
        while not _newton_step(gradient, hessian, shift, factor, step):
            shift = max(3 * shift, _LEAST * lowest)
        length = step[0] * step[0] + step[1] * step[1] + step[2] * step[2] + step[3] * step[3]
        finished = length <= limits.length**2 * (1 + _squared(h))
        moved = (h[0] + step[0], h[1] + step[1], h[2] + step[2], h[3] + step[3])
        new = evaluate(moved, w, sample, p, new_gradient, new_hessian)
        if new <= value or finished:
            h, value = moved, new
            gradient, new_gradient = new_gradient, gradient
            hessian, new_hessian = new_hessian, hessian
            damping = damping / 8 if damping > _LEAST * lowest else 0.0
        else:
            damping = max(4 * shift, _LEAST * lowest)
        if _near(h, known, limits.apart):
            return h, math.inf
        if finished:
            return h, value
    return h, math.nan


@_compiled
def certified(value: float, w: Point, sample: Sample, p: Precision) -> bool:
    """Whether a local minimum with this objective is proved to be the only one so low.

    As for one column (`two_token_descent.certified`): all lower ones are in a ball around w, and there are none if the
    objective is convex there. The eigenvalues of hess z_l are those of one column, twice.
    """
    t1, t2, a, rest = sample
    x1, y1, x2, y2 = w
    squared = 2 * max(value - rest, 0.0) / p[3]
    radius, negative = math.sqrt(squared), 0.0
    for ux, uy, vx, vy, t in ((x1, y1, x2, y2, t1), (x2, y2, x1, y1, t2)):
        s = 1 / (1 + math.exp(ux * (vx - ux) + uy * (vy - uy)))
        reach = math.sqrt((2 * ux - vx) ** 2 + (2 * uy - vy) ** 2 + ux * ux + uy * uy) * radius
        below = s - (reach + 0.5 * (_ROOT2 - 1) * squared) / 4
        above = s + (reach + 0.5 * (_ROOT2 + 1) * squared) / 4
        if (2 * (1 + t) - 3 * below) * below < t or (2 * (1 + t) - 3 * above) * above < t:
            return False
        negative += max((_ROOT2 - 1) * (above - t), (_ROOT2 + 1) * (t - below))
    return 0.25 * a * negative < p[3]


@_compiled
def _wanted(w: Point, sample: Sample) -> Point:
    """Where S_11, S_22 have the values that ell asks for, with h_1 - h_2 along w_1 - w_2, and the rest as in w."""
    t1, t2 = min(max(sample[0], 0.02), 0.98), min(max(sample[1], 0.02), 0.98)
    z1, z2 = math.log(t1 / (1 - t1)), math.log(t2 / (1 - t2))
    length = math.sqrt(max(z1 + z2, 0.05))  # |h_1 - h_2|^2 = z_1 + z_2
    x, y = w[0] - w[2], w[1] - w[3]
    size = math.sqrt(x * x + y * y) + 1e-300
    x, y = x / size, y / size
    across = 0.5 * ((w[1] + w[3]) * x - (w[0] + w[2]) * y)  # of the tokens' mean, left as it is
    along = 0.5 * (z1 - z2) / length
    mx, my = along * x - across * y, along * y + across * x
    return (
        mx + 0.5 * length * x,
        my + 0.5 * length * y,
        mx - 0.5 * length * x,
        my - 0.5 * length * y,
    )


@_compiled
def _start(i: int, w: Point, m: Point, sample: Sample) -> Point:
    """The starts of a search beside w; m is the minimum below w."""
    x1, y1, x2, y2 = w
    if i == 0:
        return (-m[0], -m[1], -m[2], -m[3])
    if i == 1:
        return (-m[0], m[1], -m[2], m[3])
    if i == 2:
        return (m[0], -m[1], m[2], -m[3])
    if i == 3:
        return (0.5 * x1, 0.5 * y1, 0.5 * x2, 0.5 * y2)
    if i == 4:
        return (x1, y1, 0.0, 0.0)
    if i == 5:
        return (0.0, 0.0, x2, y2)
    if i == 6:
        return (0.5 * (x1 + x2), 0.5 * (y1 + y2), 0.5 * (x1 + x2), 0.5 * (y1 + y2))
    if i == 7:
        return (x1, 0.0, x2, 0.0)
    if i == 8:
        return (0.0, y1, 0.0, y2)
    wanted = _wanted(w, sample)
    if i == 9:
        return wanted
    if i == 10:
        return (-wanted[0], wanted[1], -wanted[2], wanted[3])
    if i == 11:
        return (wanted[0], -wanted[1], wanted[2], -wanted[3])
    return (-wanted[0], -wanted[1], -wanted[2], -wanted[3])


@_compiled
def _scratch() -> tuple[Array, ...]:
    return np.empty(4), np.empty((4, 4)), np.empty(4), np.empty((4, 4)), np.empty((4, 4)), np.empty(4)


@_compiled
def search(samples: Array, p: Precision, limits: Limits, points: Array, values: Array) -> None:
    """The two lowest minima of each sample.

    There is a descent from w. Where that does not prove its minimum the lowest one, others start from points from which
    the lowest one is reached: reflections of that minimum; w/2; w with one token or one column set to zero; the mean of
    the tokens; and `_wanted` and its reflections. They are tried where they are no farther from w than 1.5 times a
    lower minimum can be, since ell is at least `rest`; `_wanted` itself always is.

    `points` (8, n) receives the lowest minimum and its rival, `values` (2, n) their objectives as in `Minima`; the
    first is NaN where a descent did not end.
    """
    scratch = _scratch()
    nothing = (math.nan, math.nan, math.nan, math.nan)
    for k in range(samples.shape[1]):
        w = (samples[0, k], samples[1, k], samples[2, k], samples[3, k])
        sample = (samples[4, k], samples[5, k], samples[6, k], samples[7, k])
        best, value = descend(w, w, sample, p, nothing, limits, scratch)
        other, other_value = best, math.inf
        if not certified(value, w, sample, p):
            reach = 1.5 * 1.5 * 2 * (value - sample[3])
            first = best
            for i in range(_STARTS):
                start = _start(i, w, first, sample)
                if i != 9:
                    ax, ay, bx, by = start[0] - w[0], start[1] - w[1], start[2] - w[2], start[3] - w[3]
                    if p[0] * (ax * ax + bx * bx) + 2 * p[1] * (ax * ay + bx * by) + p[2] * (ay * ay + by * by) > reach:
                        continue
                new_point, new = descend(start, w, sample, p, first, limits, scratch)
                if math.isnan(new):
                    value = math.nan
                elif new < value:
                    if not _near(new_point, best, limits.apart):
                        other, other_value = best, value
                    best, value = new_point, new
                elif new < other_value and not _near(new_point, best, limits.apart):
                    other, other_value = new_point, new
        if other_value == math.inf:
            other = best
        _keep(k, best, value, other, other_value, points, values)


@_compiled
def track(samples: Array, p: Precision, limits: Limits, points: Array, values: Array) -> None:
    """Replace the two minima of each sample, found for other w or P, by those below them; arguments as for `search`."""
    scratch = _scratch()
    nothing = (math.nan, math.nan, math.nan, math.nan)
    for k in range(samples.shape[1]):
        w = (samples[0, k], samples[1, k], samples[2, k], samples[3, k])
        sample = (samples[4, k], samples[5, k], samples[6, k], samples[7, k])
        start = (points[0, k], points[1, k], points[2, k], points[3, k])
        best, value = descend(start, w, sample, p, nothing, limits, scratch)
        other, other_value = best, math.inf
        if values[1, k] < math.inf:
            start = (points[4, k], points[5, k], points[6, k], points[7, k])
            other, other_value = descend(start, w, sample, p, best, limits, scratch)
            if other_value == math.inf:
                other = best
            if other_value < value:
                best, value, other, other_value = other, other_value, best, value
        if math.isnan(other_value):
            value = math.nan
        _keep(k, best, value, other, other_value, points, values)


@_compiled
def _keep(k: int, best: Point, value: float, other: Point, other_value: float, points: Array, values: Array) -> None:
    for i in range(4):
        points[i, k], points[4 + i, k] = best[i], other[i]
    values[0, k], values[1, k] = value, other_value
