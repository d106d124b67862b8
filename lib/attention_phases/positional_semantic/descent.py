"""Minima of many small objectives at once, for any number of tokens and columns: what `proximal_map` asks for.

The objective of a sample with fields w (L, r) is ``1/2 sum_l (h_l - w_l)^T V^-1 (h_l - w_l) + ell(h)``. Every sample is
descended from several starts by damped Newton steps; the samples are the last axis of each array. Two tokens and one
column are compiled: `two_token_descent`.
"""

from typing import NamedTuple, Self

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from attention_phases._arrays import Array
from attention_phases.errors import ConvergenceError
from attention_phases.positional_semantic.sample_loss import SampleLoss

_BLOCK = 8192  # samples descended together: what they need stays in the cache


class Limits(NamedTuple):
    """When a descent ends, and which minima count as one."""

    length: float = 1e-6  # of the last Newton step, relative; the error left is of the order of its square
    apart: float = 1e-2  # minima of one sample closer than this (relative) are taken for one
    max_steps: int = 2000  # for r > 1 and large V valleys are long and bent, as rotations of h change little


class Minima(NamedTuple):
    """Of each sample the lowest minimum and its rival, the lowest one that is somewhere else.

    Where there is none the rival is the lowest minimum again, and its objective infinite.
    """

    lowest: Float[Array, "L r n"]
    value: Float[Array, " n"]
    rival: Float[Array, "L r n"]
    rival_value: Float[Array, " n"]


def minima(
    w: Float[Array, "L r n"],
    loss: SampleLoss,
    precision: Float[Array, "r r"],
    near: Minima | None,
    limits: Limits,
) -> Minima:
    """A search, or from minima `near` those that they have moved to. ConvergenceError where a descent does not end."""

    def of(block: slice) -> Minima:
        objective = Objective(w[..., block], loss.take(block), precision)
        if near is None:
            return _search(objective, limits)
        return _track(objective, Minima(*(part[..., block] for part in near)), limits)

    parts = [of(slice(start, start + _BLOCK)) for start in range(0, w.shape[-1], _BLOCK)]
    return Minima(*(np.concatenate(part, axis=-1) for part in zip(*parts, strict=True)))


def _search(objective: "Objective", limits: Limits) -> Minima:
    """Descents from w, from minus the minimum below w, and from the starts within reach of a lower one."""
    shape = objective.w.shape
    n = shape[-1]
    first, value = descend(objective, objective.w.reshape(-1, n), limits)
    starts = np.concatenate([-first[:, None], _starts(objective.w).reshape(len(first), -1, n)], axis=1)
    start, sample = np.nonzero(objective.within_reach(starts, value))
    points = np.repeat(first[:, None], 1 + starts.shape[1], axis=1)
    values = np.full(points.shape[1:], np.inf)
    values[0] = value
    points[:, 1 + start, sample], values[1 + start, sample] = descend(
        objective.take(sample), starts[:, start, sample], limits, known=first[:, sample]
    )
    each = np.arange(n)
    best = values.argmin(axis=0)
    lowest, value = points[:, best, each], values[best, each]
    values[_near(points, lowest[:, None], limits)] = np.inf
    second = values.argmin(axis=0)
    rival_value = values[second, each]
    rival = np.where(np.isfinite(rival_value), points[:, second, each], lowest)
    return Minima(lowest.reshape(shape), value, rival.reshape(shape), rival_value)


def _track(objective: "Objective", near: Minima, limits: Limits) -> Minima:
    """Descents from the two lowest minima of other objectives nearby."""
    shape = near.lowest.shape
    flat = (-1, shape[-1])
    first, value = descend(objective, near.lowest.reshape(flat), limits)
    second, second_value = first.copy(), np.full(shape[-1], np.inf)
    two = np.flatnonzero(np.isfinite(near.rival_value))
    second[:, two], second_value[two] = descend(
        objective.take(two), near.rival.reshape(flat)[:, two], limits, known=first[:, two]
    )
    second = np.where(np.isfinite(second_value), second, first)
    swap = second_value < value
    lowest, rival = np.where(swap, second, first), np.where(swap, first, second)
    return Minima(
        lowest.reshape(shape), np.minimum(value, second_value), rival.reshape(shape), np.maximum(value, second_value)
    )


def _near(a: Float[Array, "k *n"], b: Float[Array, "k *n"], limits: Limits) -> NDArray[np.bool_]:
    """Whether two points are taken for the same minimum."""
    return _squares(a - b) <= limits.apart**2 * (1 + _squares(b))


def _squares(a: Float[Array, "k *n"]) -> Float[Array, " *n"]:
    """Sum over the first axis of the squares."""
    result: Array = a[0] * a[0]
    for row in a[1:]:
        result += row * row
    return result


def descend(
    objective: "Objective", point: Float[Array, "k n"], limits: Limits, known: Float[Array, "k n"] | None = None
) -> tuple[Float[Array, "k n"], Float[Array, " n"]]:
    """Descend each sample to a local minimum by damped Newton steps; returns the points and their objectives.

    A descent that comes near a minimum that is `known` already stops there; its objective is given as infinite.
    """
    state = objective.evaluate(point)
    found, values = point.copy(), state[0].copy()
    index = np.arange(point.shape[1])
    damping = np.zeros(len(index))
    for _ in range(limits.max_steps):
        if not len(index):
            return found, values
        step = objective.newton_step(state, damping)
        candidate = point + step
        new = objective.evaluate(candidate)
        finished = _squares(step) <= limits.length**2 * (1 + _squares(point))
        accepted = (new[0] <= state[0]) | finished
        refused = np.flatnonzero(~accepted)
        if len(refused):
            candidate[:, refused], new[:, refused] = point[:, refused], state[:, refused]
        point, state = candidate, new
        if len(refused) or damping.any():
            relaxed = np.where(damping > 0.01 * objective.stiffness, damping / 8, 0.0)
            damping = np.where(accepted, relaxed, np.maximum(4 * damping, objective.stiffness))
        if known is not None:
            merged = _near(point, known, limits)
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
        f"{len(index)} of {found.shape[1]} descents of the proximal map did not end in {limits.max_steps} steps",
        last=found,
        residual=float(np.abs(state[1 : 1 + len(point)]).max()),
    )


class Objective:
    """The objectives of n samples. The k = L r unknowns of each are the rows of h, one after the other.

    The rows of a `state` are value, gradient (k) and Hessian (k k) at a point.
    """

    def __init__(self, w: Float[Array, "L r n"], loss: SampleLoss, precision: Float[Array, "r r"]) -> None:
        self.stiffness = float(np.linalg.eigvalsh(precision)[-1])  # the scale of damping
        self.w, self._loss, self._precision = w, loss, precision

    def evaluate(self, point: Float[Array, "k n"]) -> Float[Array, "rows n"]:
        """The states at a point."""
        n_tokens, rank, n = self.w.shape
        size = n_tokens * rank
        fields = point.reshape(self.w.shape)
        value, gradient, hessian = self._loss.derivatives(fields)
        away = fields - self.w
        pulled = (self._precision[:, :, None] * away[:, None]).sum(axis=2)  # (L, r, n)
        hessian = hessian.reshape(size, size, n)
        hessian += np.kron(np.eye(n_tokens), self._precision)[..., None]
        value += 0.5 * (away * pulled).sum(axis=(0, 1))
        return np.concatenate([value[None], (gradient + pulled).reshape(size, n), hessian.reshape(size**2, n)])

    def newton_step(self, state: Float[Array, "rows n"], damping: Float[Array, " n"]) -> Float[Array, "k n"]:
        """``-(H + damping)^-1 gradient``, with the moduli of H's eigenvalues where it is not positive definite."""
        size = self.w.shape[0] * self.w.shape[1]
        gradient, hessian = state[1 : size + 1], state[size + 1 :].reshape(size, size, -1)
        shifted = hessian.copy()
        shifted[np.arange(size), np.arange(size)] += damping
        solution, positive = eliminate(shifted, -gradient[:, None])
        step = solution[:, 0]
        if not positive.all():
            bad = ~positive
            values, vectors = np.linalg.eigh(shifted[..., bad].transpose(2, 0, 1))
            values = np.maximum(np.abs(values), 0.001 * self.stiffness)
            along = np.einsum("nij,in->nj", vectors, -gradient[:, bad]) / values
            step[:, bad] = np.einsum("nij,nj->in", vectors, along)
        return step

    def within_reach(self, starts: Float[Array, "k starts n"], value: Float[Array, " n"]) -> NDArray[np.bool_]:
        """From which starts a lower minimum may be found, (starts, n).

        Those no farther from w than 1.5 times a lower minimum can be, since ell is nowhere negative.
        """
        away = starts.reshape(*self.w.shape[:2], -1, self.w.shape[-1]) - self.w[:, :, None]
        near: NDArray[np.bool_] = np.einsum("ab,lasn,lbsn->sn", self._precision, away, away) <= 1.5**2 * 2 * value
        return near

    def take(self, keep: NDArray[np.intp]) -> Self:
        """The objectives of some of the samples."""
        other = object.__new__(type(self))
        other.stiffness, other._precision = self.stiffness, self._precision
        other.w, other._loss = self.w[..., keep], self._loss.take(keep)
        return other


def eliminate(
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


def _starts(w: Float[Array, "L r n"]) -> Float[Array, "L r starts n"]:
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
