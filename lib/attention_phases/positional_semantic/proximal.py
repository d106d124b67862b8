"""The proximal map of the per-sample loss, at its global minimum.

State evolution and GAMP both ask, for each sample with local fields w (L, r), response V and loss ell, for

    h* = argmin_h  1/2 sum_l (h_l - w_l)^T V^-1 (h_l - w_l) + ell(h),        g = V^-1 (h* - w) = -grad ell(h*)

(`SampleLoss` is ell). The objective is not convex: ell is even, and where V is large or w is small several minima
compete. Every sample is therefore descended from several starts, by Newton's method with analytic derivatives, and the
lowest minimum is taken. For L = 2, r = 1 there are two unknowns and S_11, S_22 are logistic functions of them.

The derivative of g follows from the stationarity of h*, with H the Hessian of ell at h*:

    V^-1 (dh* - dw) = -H dh*      =>      dg/dw = -H (1 + V H)^-1.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, Self

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike, NDArray

from attention_phases import _checks
from attention_phases.errors import ConvergenceError
from attention_phases.positional_semantic.sample_loss import SampleLoss, TwoTokenLoss

Array = NDArray[np.float64]
_BLOCK = 8192  # samples descended together: what they need stays in the cache
_ROOT2 = np.sqrt(2)
_MAX_STEPS = 200
_STEP = 1e-6  # relative length of the last Newton step; the error left is of the order of its square
_APART = 1e-2  # minima of one sample closer than this (relative) are taken for one


@dataclass(frozen=True, eq=False)
class ProximalPoint:
    """Global minima of n samples.

    Attributes:
        minimizer: h*, (L, r, n).
        objective: value of the whole objective at h*, (n,): the Moreau envelope of ell at w.
        residual: g = V^-1 (h* - w), (L, r, n).
        rival: the lowest other local minimum that was found, (L, r, n); equal to h* where there is none.
        rival_objective: the objective there, (n,); infinite where there is none.
        V: the response, (r, r).
        loss: ell.
    """

    minimizer: Float[Array, "L r n"]
    objective: Float[Array, " n"]
    residual: Float[Array, "L r n"]
    rival: Float[Array, "L r n"]
    rival_objective: Float[Array, " n"]
    V: Float[Array, "r r"]
    loss: SampleLoss

    @cached_property
    def derivative(self) -> Float[Array, "L r L r n"]:
        """dg/dw of each sample, away from the points where h* jumps."""
        n_tokens, rank, n = self.minimizer.shape
        size = n_tokens * rank
        # from V^-1 (dh* - dw) = -H dh*:  dg/dw = -V^-1 (V^-1 + H)^-1 H
        hessian = self.loss.hessian(self.minimizer).reshape(size, size, n)
        precision = np.kron(np.eye(n_tokens), np.linalg.inv(self.V))
        solution, _ = _eliminate(hessian + precision[..., None], hessian)
        result = -np.tensordot(precision, solution, axes=1)
        return np.ascontiguousarray(result).reshape(n_tokens, rank, n_tokens, rank, n)


def proximal_map(
    fields: Float[ArrayLike, "L r n"],
    loss: SampleLoss,
    V: float | Float[ArrayLike, "r r"],
    near: ProximalPoint | None = None,
) -> ProximalPoint:
    """Minimise ``1/2 sum_l (h_l - w_l)^T V^-1 (h_l - w_l) + ell(h)`` over h, for each of n samples.

    Args:
        fields: w, (L, r, n).
        loss: ell of each sample; n samples.
        V: the response, > 0 for r = 1, else symmetric and positive definite.
        near: the result for the same samples at fields and V a few per cent away. Its two lowest minima of each sample
            are then followed to where they are now, and the lower one is taken: several times faster than a new search,
            and wrong only where another minimum has become the lowest in between.

    Raises:
        ValueError: names the argument, what it must be and what it got.
        ConvergenceError: a descent did not end at a stationary point (`last`: the minimisers found, (L, r, n)).
    """
    n_tokens, _, n = loss.cross.shape
    w = _checks.array("fields", fields, (n_tokens, None, n))
    rank = w.shape[1]
    response = _response(V, rank)
    precision = np.asarray(np.linalg.inv(response), dtype=np.float64)

    def block_minima(block: slice) -> _Minima:
        objective, starts = _objective(w[..., block], loss.take(block), precision)
        if near is None:
            return _search(objective, w[..., block], starts)
        return _track(objective, near.minimizer[..., block], near.rival[..., block], near.rival_objective[block])

    minima = [block_minima(slice(start, start + _BLOCK)) for start in range(0, n, _BLOCK)]
    minimizer, objective, rival, rival_objective = (np.concatenate(part, axis=-1) for part in zip(*minima, strict=True))
    residual = np.einsum("ab,lbn->lan", precision, minimizer - w)
    return ProximalPoint(minimizer, objective, residual, rival, rival_objective, response, loss)


def _response(V: float | Float[ArrayLike, "r r"], rank: int) -> Float[Array, "r r"]:
    if np.ndim(V) == 0 and rank == 1:
        return np.array([[_checks.real("V", V, 0, open_low=True)]])
    matrix = _checks.array("V", V, (rank, rank))
    if np.abs(matrix - matrix.T).max() > 1e-9 * np.abs(matrix).max() or np.linalg.eigvalsh(matrix)[0] <= 0:
        raise ValueError(f"V must be symmetric and positive definite; got {_checks.shown(matrix.tolist())}")
    return (matrix + matrix.T) / 2


_Minima = tuple[Float[Array, "L r n"], Float[Array, " n"], Float[Array, "L r n"], Float[Array, " n"]]
"""The lowest minimum of each sample and its objective, and the next lowest that is somewhere else and its objective."""


def _objective(
    w: Float[Array, "L r n"], loss: SampleLoss, precision: Float[Array, "r r"]
) -> tuple["_Objective", Float[Array, "k starts n"]]:
    """The objective of some samples, and where to start a search of its minima besides w."""
    n_tokens, rank, n = w.shape
    if n_tokens == 2 and rank == 1:
        two = _TwoTokenObjective(w[:, 0], loss.two_tokens, float(precision[0, 0]))
        return two, _two_token_starts(w[:, 0], loss.two_tokens)
    return _GeneralObjective(w, loss, precision), _general_starts(w).reshape(n_tokens * rank, -1, n)


def _search(objective: "_Objective", w: Float[Array, "L r n"], starts: Float[Array, "k starts n"]) -> _Minima:
    """A descent from w; where that does not prove its minimum the lowest one, descents from the other starts too."""
    n = w.shape[-1]
    first, value = _descend(objective, w.reshape(-1, n))
    minimizer, lowest = first.copy(), value.copy()
    rival, rival_value = first.copy(), np.full(n, np.inf)
    open_ = np.flatnonzero(~objective.certified(value))
    if len(open_):
        starts = np.concatenate([-first[:, None], starts], axis=1)
        start, sample = np.nonzero(objective.within_reach(starts, value)[:, open_])
        points = np.repeat(first[:, None, open_], 1 + starts.shape[1], axis=1)
        values = np.full(points.shape[1:], np.inf)
        values[0] = value[open_]
        points[:, 1 + start, sample], values[1 + start, sample] = _descend(
            objective.take(open_[sample]), starts[:, start, open_[sample]], known=first[:, open_[sample]]
        )
        each = np.arange(len(open_))
        best = values.argmin(axis=0)
        minimizer[:, open_], lowest[open_] = points[:, best, each], values[best, each]
        values[_near(points, minimizer[:, None, open_])] = np.inf
        second = values.argmin(axis=0)
        rival_value[open_] = values[second, each]
        rival[:, open_] = np.where(np.isfinite(rival_value[open_]), points[:, second, each], minimizer[:, open_])
    return minimizer.reshape(w.shape), lowest, rival.reshape(w.shape), rival_value


def _track(
    objective: "_Objective",
    minimizer: Float[Array, "L r n"],
    rival: Float[Array, "L r n"],
    rival_value: Float[Array, " n"],
) -> _Minima:
    """Descents from the two lowest minima at other fields nearby."""
    shape, n = minimizer.shape, minimizer.shape[-1]
    first, value = _descend(objective, minimizer.reshape(-1, n))
    second, second_value = first.copy(), np.full(n, np.inf)
    two = np.flatnonzero(np.isfinite(rival_value))
    second[:, two], second_value[two] = _descend(objective.take(two), rival.reshape(-1, n)[:, two], known=first[:, two])
    second = np.where(np.isfinite(second_value), second, first)
    swap = second_value < value
    lowest, higher = np.where(swap, second, first), np.where(swap, first, second)
    return (
        lowest.reshape(shape),
        np.minimum(value, second_value),
        higher.reshape(shape),
        np.maximum(value, second_value),
    )


def _near(a: Float[Array, "k *n"], b: Float[Array, "k *n"]) -> NDArray[np.bool_]:
    """Whether two points are taken for the same minimum."""
    return _squares(a - b) <= _APART**2 * (1 + _squares(b))


def _squares(a: Float[Array, "k *n"]) -> Float[Array, " *n"]:
    """Sum over the first axis of the squares."""
    result: Array = a[0] * a[0]
    for row in a[1:]:
        result += row * row
    return result


class _Objective(Protocol):
    """The objective of n samples. The rows of a `state` are its value, gradient (k) and Hessian at a point."""

    stiffness: float  # the largest eigenvalue of V^-1: the scale of damping

    def evaluate(self, point: Float[Array, "k n"]) -> Float[Array, "rows n"]: ...

    def newton_step(self, state: Float[Array, "rows n"], damping: Float[Array, " n"]) -> Float[Array, "k n"]:
        """``-(H + shift)^-1 gradient``; the shift is the damping, and more where H is not positive definite."""
        ...

    def take(self, keep: NDArray[np.intp]) -> Self: ...

    def certified(self, value: Float[Array, " n"]) -> NDArray[np.bool_]:
        """Whether a local minimum with this objective is proved to be the only one so low."""
        ...

    def within_reach(self, starts: Float[Array, "k starts n"], value: Float[Array, " n"]) -> NDArray[np.bool_]:
        """From which starts a minimum below `value` may be found, (starts, n)."""
        ...


def _descend(
    objective: _Objective, point: Float[Array, "k n"], known: Float[Array, "k n"] | None = None
) -> tuple[Float[Array, "k n"], Float[Array, " n"]]:
    """Descend each sample to a local minimum by damped Newton steps; returns the points and their objectives.

    A descent that comes near a minimum that is `known` already stops there; its objective is given as infinite.
    """
    state = objective.evaluate(point)
    found, values = point.copy(), state[0].copy()
    index = np.arange(point.shape[1])
    damping = np.zeros(len(index))
    for _ in range(_MAX_STEPS):
        if not len(index):
            return found, values
        step = objective.newton_step(state, damping)
        candidate = point + step
        new = objective.evaluate(candidate)
        finished = _squares(step) <= _STEP**2 * (1 + _squares(point))
        accepted = (new[0] <= state[0]) | finished
        refused = np.flatnonzero(~accepted)
        if len(refused):
            candidate[:, refused], new[:, refused] = point[:, refused], state[:, refused]
        point, state = candidate, new
        if len(refused) or damping.any():
            relaxed = np.where(damping > 0.01 * objective.stiffness, damping / 8, 0.0)
            damping = np.where(accepted, relaxed, np.maximum(4 * damping, objective.stiffness))
        if known is not None:
            merged = _near(point, known)
            state[0, merged] = np.inf
            finished |= merged
        left = np.flatnonzero(~finished)
        if len(left) < 0.8 * len(index):  # until then the finished ones take further steps, of no length
            found[:, index], values[index] = point, state[0]
            index, point, state, damping = index[left], point[:, left], state[:, left], damping[left]
            known = None if known is None else known[:, left]
            objective = objective.take(left)
    found[:, index] = point
    raise ConvergenceError(
        f"{len(index)} of {found.shape[1]} descents of the proximal map did not end in {_MAX_STEPS} steps",
        last=found,
        residual=float(np.abs(state[1 : 1 + len(point)]).max()),
    )


class _TwoTokenObjective:
    """L = 2, r = 1: ``[(h_1 - w_1)^2 + (h_2 - w_2)^2]/(2 V) + ell(h)``, ell as in `TwoTokenLoss`.

    ``S_11 = 1/(1 + exp(-z_1))`` with ``z_1 = h_1 (h_1 - h_2)``, and S_22 with ``z_2 = h_2 (h_2 - h_1)``.
    """

    def __init__(self, w: Float[Array, "2 n"], loss: TwoTokenLoss, precision: float) -> None:
        n = w.shape[1]
        self.stiffness = precision
        shared = (loss.first, loss.second, loss.stiffness, loss.rest)
        self._data = np.vstack([w, *(np.broadcast_to(row, n) for row in shared)])

    def evaluate(self, point: Float[Array, "2 n"]) -> Float[Array, "6 n"]:
        x, y = point
        w1, w2, t1, t2, a, rest = self._data
        precision = self.stiffness
        difference = x - y
        with np.errstate(over="ignore"):  # exp overflows to infinity where S vanishes
            s1 = 1 / (1 + np.exp(-x * difference))
            s2 = 1 / (1 + np.exp(y * difference))
        slope1, slope2 = s1 * (1 - s1), s2 * (1 - s2)  # dS/dz
        error1, error2 = s1 - t1, s2 - t2
        away1, away2 = x - w1, y - w2
        e1, e2 = a * error1 * slope1, a * error2 * slope2  # d ell/dz
        f1 = a * slope1 * (slope1 + error1 * (1 - 2 * s1))  # d^2 ell/dz^2
        f2 = a * slope2 * (slope2 + error2 * (1 - 2 * s2))
        zx, zy = x + difference, y - difference  # dz_1/dx and dz_2/dy; dz_1/dy = -x, dz_2/dx = -y
        state = np.empty((6, len(x)))
        state[0] = 0.5 * (a * (error1 * error1 + error2 * error2) + precision * (away1 * away1 + away2 * away2)) + rest
        state[1] = e1 * zx - e2 * y + precision * away1
        state[2] = e2 * zy - e1 * x + precision * away2
        state[3] = f1 * zx * zx + f2 * y * y + 2 * e1 + precision
        state[4] = -f1 * zx * x - f2 * zy * y - e1 - e2
        state[5] = f1 * x * x + f2 * zy * zy + 2 * e2 + precision
        return state

    def newton_step(self, state: Float[Array, "6 n"], damping: Float[Array, " n"]) -> Float[Array, "2 n"]:
        _, g1, g2, h11, h12, h22 = state
        mean, half = 0.5 * (h11 + h22), 0.5 * (h11 - h22)
        radius = np.sqrt(half * half + h12 * h12)
        lowest = mean - radius
        shift = damping + np.where(lowest > 0, 0.0, 0.02 * self.stiffness - 2 * lowest)  # lowest becomes its modulus
        a, b = h11 + shift, h22 + shift
        determinant = a * b - h12 * h12
        step = np.empty((2, len(g1)))
        step[0], step[1] = h12 * g2 - b * g1, h12 * g1 - a * g2
        step /= determinant
        return step

    def certified(self, value: Float[Array, " n"]) -> NDArray[np.bool_]:
        """A lower minimum would lie in the disc ``|h - w|^2 <= 2 V (value - rest)``: not if all is convex there.

        The Hessian of ell is ``sum_i (d^2 ell/dz_i^2) grad z_i grad z_i^T + (d ell/dz_i) hess z_i``. On the disc S_ii
        changes by at most a quarter of what z_i does. The first factor is ``a S' (-3 S^2 + 2 (1 + t) S - t)``, positive
        between two values of S; the eigenvalues of hess z_i are 1 - sqrt 2 and 1 + sqrt 2.
        """
        w1, w2, t1, t2, a, rest = self._data
        squared = 2 * np.maximum(value - rest, 0) / self.stiffness
        radius = np.sqrt(squared)
        negative = np.zeros(len(value))
        proved = np.ones(len(value), dtype=bool)
        for u, v, t in ((w1, w2, t1), (w2, w1, t2)):
            with np.errstate(over="ignore"):
                s = 1 / (1 + np.exp(u * (v - u)))
            reach = np.sqrt((2 * u - v) ** 2 + u * u) * radius
            below = s - (reach + 0.5 * (_ROOT2 - 1) * squared) / 4
            above = s + (reach + 0.5 * (_ROOT2 + 1) * squared) / 4
            proved &= ((2 * (1 + t) - 3 * below) * below >= t) & ((2 * (1 + t) - 3 * above) * above >= t)
            negative += np.maximum((_ROOT2 - 1) * (above - t), (_ROOT2 + 1) * (t - below))
        proved &= 0.25 * a * negative < self.stiffness
        return proved

    def within_reach(self, starts: Float[Array, "2 starts n"], value: Float[Array, " n"]) -> NDArray[np.bool_]:
        """The last start always, the others where they are no farther from w than 1.5 times the disc's radius."""
        w, rest = self._data[:2], self._data[5]
        reach = 1.5**2 * 2 * (value - rest) / self.stiffness
        near: NDArray[np.bool_] = _squares(starts - w[:, None]) <= reach
        near[-1] = True
        return near

    def _with(self, data: Float[Array, "6 n"]) -> Self:
        other = object.__new__(type(self))
        other.stiffness, other._data = self.stiffness, data
        return other

    def take(self, keep: NDArray[np.intp]) -> Self:
        return self._with(self._data[:, keep])


def _two_token_starts(w: Float[Array, "2 n"], loss: TwoTokenLoss) -> Float[Array, "2 starts n"]:
    """Points from which, from w and from minus the minimum below w, the lowest minimum is reached.

    They are w/2; the projections of w on the axes and on the diagonal, where one or both of z_1, z_2 vanish; and the
    point where S_11, S_22 have the values that ell asks for, on the side of w (h and -h have the same ell).
    """
    w1, w2 = w
    none, middle = np.zeros_like(w1), 0.5 * (w1 + w2)
    first, second = (np.clip(t, 0.02, 0.98) for t in (loss.first, loss.second))
    z1, z2 = np.log(first / (1 - first)), np.log(second / (1 - second))
    difference = np.sqrt(np.maximum(z1 + z2, 0.05))  # (h_1 - h_2)^2 = z_1 + z_2
    wanted = np.stack([z1, -z2]) / difference
    wanted *= np.where((wanted * w).sum(axis=0) >= 0, 1.0, -1.0)
    starts = [0.5 * w, np.stack([w1, none]), np.stack([none, w2]), np.stack([middle, middle]), wanted]
    return np.stack(starts, axis=1)


class _GeneralObjective:
    """Any L and r. The k = L r unknowns of a sample are the rows of h, one after the other."""

    def __init__(self, w: Float[Array, "L r n"], loss: SampleLoss, precision: Float[Array, "r r"]) -> None:
        self.stiffness = float(np.linalg.eigvalsh(precision)[-1])
        self._w, self._loss, self._precision = w, loss, precision

    def evaluate(self, point: Float[Array, "k n"]) -> Float[Array, "rows n"]:
        n_tokens, rank, n = self._w.shape
        size = n_tokens * rank
        fields = point.reshape(self._w.shape)
        value, gradient, hessian = self._loss.derivatives(fields)
        away = fields - self._w
        pulled = (self._precision[:, :, None] * away[:, None]).sum(axis=2)  # (L, r, n)
        hessian = hessian.reshape(size, size, n)
        hessian += np.kron(np.eye(n_tokens), self._precision)[..., None]
        value += 0.5 * (away * pulled).sum(axis=(0, 1))
        return np.concatenate([value[None], (gradient + pulled).reshape(size, n), hessian.reshape(size**2, n)])

    def newton_step(self, state: Float[Array, "rows n"], damping: Float[Array, " n"]) -> Float[Array, "k n"]:
        size = self._w.shape[0] * self._w.shape[1]
        gradient, hessian = state[1 : size + 1], state[size + 1 :].reshape(size, size, -1)
        shifted = hessian.copy()
        shifted[np.arange(size), np.arange(size)] += damping
        solution, positive = _eliminate(shifted, -gradient[:, None])
        step = solution[:, 0]
        if not positive.all():
            bad = ~positive
            values, vectors = np.linalg.eigh(shifted[..., bad].transpose(2, 0, 1))
            values = np.maximum(np.abs(values), 0.02 * self.stiffness)
            along = np.einsum("nij,in->nj", vectors, -gradient[:, bad]) / values
            step[:, bad] = np.einsum("nij,nj->in", vectors, along)
        return step

    def certified(self, value: Float[Array, " n"]) -> NDArray[np.bool_]:
        return np.zeros(len(value), dtype=bool)

    def within_reach(self, starts: Float[Array, "k starts n"], value: Float[Array, " n"]) -> NDArray[np.bool_]:
        """Those no farther from w than 1.5 times a lower minimum can be, since ell is nowhere negative."""
        away = starts.reshape(*self._w.shape[:2], -1, self._w.shape[-1]) - self._w[:, :, None]
        near: NDArray[np.bool_] = np.einsum("ab,lasn,lbsn->sn", self._precision, away, away) <= 1.5**2 * 2 * value
        return near

    def _with(self, w: Float[Array, "L r n"], loss: SampleLoss) -> Self:
        other = object.__new__(type(self))
        other.stiffness, other._precision, other._w, other._loss = self.stiffness, self._precision, w, loss
        return other

    def take(self, keep: NDArray[np.intp]) -> Self:
        return self._with(self._w[..., keep], self._loss.take(keep))


def _eliminate(
    matrix: Float[Array, "k k n"], right: Float[Array, "k c n"]
) -> tuple[Float[Array, "k c n"], NDArray[np.bool_]]:
    """Solve each sample's symmetric system, without pivoting, and say which matrices are positive definite.

    Solutions for the others may be meaningless.
    """
    size = len(right)
    reduced, solution = matrix.copy(), right.copy()
    positive = np.ones(right.shape[-1], dtype=bool)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        for i in range(size):
            positive &= reduced[i, i] > 0
            for j in range(i + 1, size):
                ratio = reduced[j, i] / reduced[i, i]
                reduced[j, i + 1 :] -= ratio * reduced[i, i + 1 :]
                solution[j] -= ratio * solution[i]
        for i in reversed(range(size)):
            for j in range(i + 1, size):
                solution[i] -= reduced[i, j] * solution[j]
            solution[i] /= reduced[i, i]
    return solution, positive


def _general_starts(w: Float[Array, "L r n"]) -> Float[Array, "L r starts n"]:
    """w/2; w with all tokens but one, or all columns but one, set to zero; and its mean over the tokens."""
    n_tokens, rank, _ = w.shape
    starts = [0.5 * w, np.broadcast_to(w.mean(axis=0), w.shape)]
    for token in range(n_tokens):
        alone = np.zeros_like(w)
        alone[token] = w[token]
        starts.append(alone)
    if rank > 1:
        for column in range(rank):
            alone = np.zeros_like(w)
            alone[:, column] = w[:, column]
            starts.append(alone)
    return np.stack(starts, axis=2)
