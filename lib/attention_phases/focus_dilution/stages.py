"""The timeline: when each stage happens, read from a trajectory, and predicted from its start alone.

A stage begins when what it changes has visibly moved, and ends when it has done so. Between stages the flow waits at a
saddle, where a part that is too small to be seen grows at the rate of the next stage. The criteria, by which both are
found, are these; attention is compared by total variation.

* Condensation lasts from the start until the loss has come 90 % of the way from log d to the entropy of pi.
* Focus begins when the attention of some query has moved by 0.01 since the cycle began. It ends where dilution begins;
  in a cycle without dilution, when 90 % of the cycle's largest move is done.
* Dilution begins when a query turns back: where its attention is farthest from where the cycle began, at least 0.01,
  if it then loses at least half of that. The first query to do so counts. It ends when 90 % of the way that this query
  still goes in the cycle is done.
* Symmetry breaking lasts from when, after condensation, the next singular value of W0, the second one in cycle 1, is
  5 % of the first until it is 25 %. Its begin ends the cycle, its end begins the next one.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Protocol

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike
from scipy.interpolate import CubicHermiteSpline
from scipy.special import entr

from attention_phases import _checks
from attention_phases._arrays import Array
from attention_phases._blas import one_thread
from attention_phases.focus_dilution.condensation import condensation_rate, condensing_direction
from attention_phases.focus_dilution.dilution import RankOnePoint, RankOneTrajectory, along, rank_one_flow
from attention_phases.focus_dilution.focus import focus_rate
from attention_phases.focus_dilution.gradient_flow import query_tokens
from attention_phases.focus_dilution.markov_transformer import (
    MarkovChain,
    Parameters,
    attention,
    fitting,
    population_loss,
    softmax,
)
from attention_phases.focus_dilution.symmetry_breaking import settled, transverse_operator

_MOVED = 0.01  # total variation by which attention has visibly moved
_KEPT = 0.5  # a query has turned back where it keeps no more than this part of its move
_DONE = 0.9  # part of a change that ends it
_VISIBLE, _GROWN = 0.05, 0.25  # singular values of W0, over the first: where a new direction shows, where it has come
_SUM_TOLERANCE = 1e-6  # how far from 1 a row of attention may sum
_ROUNDING = 1e-12  # an entropy of pi this close to log d leaves nothing to condense
_GROWTH = 0.1  # of the transverse part in a step of its prediction, once the rank-one flow is at rest; a logarithm
_READ = ("times", "loss", "attention", "singular_values")  # of a trajectory
_STALLED = 1e-12  # a transverse rate this much smaller than the condensation rate is zero


@dataclass(frozen=True)
class Stage:
    """A stage of learning.

    Attributes:
        name: "condensation", "focus", "dilution" or "symmetry-breaking".
        start: time at which it begins, in units of the flow.
        end: time at which it ends; inf where it does not end in what was seen.
        cycle: 1 for the first direction of the embedding, 2 for the second, and so on.
        standard_error: of the two times, where it is known: of a trajectory, that of a time of which no more is known
            than the two frames between which it lies, for the farther pair of frames.
    """

    name: str
    start: float
    end: float
    cycle: int
    standard_error: float | None = None


class Observed(Protocol):
    """What `find_stages` reads from a trajectory."""

    @property
    def times(self) -> Float[Array, " T"]:
        """(T,), increasing."""

    @property
    def loss(self) -> Float[Array, " T"]:
        """(T,), in nats."""

    @property
    def attention(self) -> Float[Array, "T n_queries d"]:
        """(T, n_queries, d); in the first frame at its base rates pi."""

    @property
    def singular_values(self) -> Float[Array, "T k"]:
        """(T, k), of W0, from the largest on."""


def find_stages(trajectory: Observed) -> list[Stage]:
    """The stages of a trajectory that starts near the origin, cycle by cycle, by the criteria above.

    Times between two frames are interpolated. A stage that has not begun is not in the list.

    Raises:
        ValueError: an array of the trajectory has a wrong shape or an entry that is not finite; the times do not
            increase from 0; the attention is none, or in the first frame not the same for all queries, to within 0.01;
            or the singular values are negative or not sorted.
    """
    lacks = [name for name in _READ if not hasattr(trajectory, name)]
    if lacks:
        raise ValueError(f"trajectory must have {', '.join(_READ)}; got {_checks.shown(trajectory)}")
    times = _checks.array("trajectory.times", trajectory.times, (None,))
    if times[0] != 0:
        raise ValueError(f"trajectory.times must begin at 0, as training does; got {times[0]:g}")
    if not (np.diff(times) > 0).all():
        raise ValueError(f"trajectory.times must increase; frame {int(np.diff(times).argmin()) + 1} does not")
    loss = _checks.array("trajectory.loss", trajectory.loss, times.shape)
    attention = _checks.array("trajectory.attention", trajectory.attention, (len(times), None, None))
    off = np.abs(attention.sum(axis=2) - 1)
    if attention.min() < 0 or off.max() > _SUM_TOLERANCE:
        raise ValueError(
            f"trajectory.attention must have rows that sum to 1, without a negative entry; "
            f"the smallest entry is {attention.min():g}, and a row is off by {off.max():.1e}"
        )
    apart = float(_distance(attention[0], attention[0, 0]).max())
    if apart > _MOVED:
        raise ValueError(
            f"trajectory must start near the origin, where attention is at the base rates pi for all queries; "
            f"those of the first frame differ by {apart:.2g}"
        )
    singular_values = _checks.array("trajectory.singular_values", trajectory.singular_values, (len(times), None))
    if singular_values.min() < 0 or (np.diff(singular_values, axis=1) > 0).any():
        raise ValueError("trajectory.singular_values must be >= 0 in each frame, and sorted from the largest on")
    return _stages(times, loss, attention.transpose(1, 0, 2), singular_values, attention[0, 0])


def _stages(
    times: Float[Array, " T"],
    loss: Float[Array, " T"],
    rows: Iterable[Float[Array, "T d"]],
    singular_values: Float[Array, "T k"],
    base_rates: Float[Array, " d"],
) -> list[Stage]:
    """The stages, from the attention of one query after the other."""
    level = _condensed(base_rates)
    if level >= math.log(len(base_rates)) - _ROUNDING:
        return []
    condensed = _first_above(times, -loss, -level)
    stages = [Stage("condensation", float(times[0]), condensed, 1)]
    begin, n_directions = float(times[0]), singular_values.shape[1]
    for cycle in range(1, n_directions + 1):
        later = times >= max(stages[-1].start, condensed)  # before condensation all singular values are small alike
        share = np.empty(0)
        if cycle < n_directions:
            first, this = singular_values[later, 0], singular_values[later, cycle]
            share = np.divide(this, first, out=np.zeros_like(this), where=first > 0)
        shows, grown = (_first_above(times[later], share, level) for level in (_VISIBLE, _GROWN))
        window = slice(np.searchsorted(times, begin), np.searchsorted(times, shows, side="right"))
        stages += _motion(times[window], (row[window] for row in rows), cycle)
        if shows == math.inf:
            break
        stages.append(Stage("symmetry-breaking", shows, grown, cycle))
        begin = grown
    return [replace(stage, standard_error=_reading_error(times, stage)) for stage in stages]


def _condensed(base_rates: Float[Array, " d"]) -> float:
    """The loss at which condensation ends."""
    entropy = float(entr(base_rates).sum())
    return (1 - _DONE) * math.log(len(base_rates)) + _DONE * entropy


def _motion(times: Float[Array, " T"], rows: Iterable[Float[Array, "T d"]], cycle: int) -> list[Stage]:
    """Focus and dilution in the frames of one cycle."""
    if len(times) < 2:
        return []
    envelope = np.zeros(len(times))  # how far the attention of any query has been
    first = math.inf, math.inf  # when the first query turns back, and when its dilution has ended
    for row in rows:
        moved = _distance(row, row[0])
        farthest = np.maximum.accumulate(moved)
        np.maximum(envelope, farthest, out=envelope)
        returned = (farthest >= _MOVED) & (moved <= _KEPT * farthest)
        if returned.any():
            frame = int(moved[: returned.argmax() + 1].argmax())
            turn = _peak(times, moved, frame)
            if turn < first[0]:
                onwards = _distance(row[frame:], row[frame])
                first = turn, _first_above(times[frame:], onwards, _DONE * float(onwards.max()))
    begin = _first_above(times, envelope, _MOVED)
    if begin == math.inf:
        return []
    turn, end = first
    if turn == math.inf:
        return [Stage("focus", begin, _first_above(times, envelope, _DONE * float(envelope[-1])), cycle)]
    return [Stage("focus", min(begin, turn), turn, cycle), Stage("dilution", turn, end, cycle)]


def _reading_error(times: Float[Array, " T"], stage: Stage) -> float:
    between = [int(np.searchsorted(times, t)) for t in (stage.start, stage.end) if times[0] < t < math.inf]
    return max((float(times[j] - times[j - 1]) for j in between), default=0.0) / math.sqrt(12)


def _distance(attention: Float[Array, "T *n d"], reference: Float[Array, "*n d"]) -> Float[Array, "T *n"]:
    """Total variation between rows."""
    result: Array = np.abs(attention - reference).sum(axis=-1) / 2
    return result


def _first_above(times: Float[Array, " T"], values: Float[Array, " T"], level: float) -> float:
    """When the values first reach the level, on the straight lines between frames; inf where they never do."""
    reached = values >= level
    if not reached.any():
        return math.inf
    j = int(reached.argmax())
    if j == 0:
        return float(times[0])
    part = (level - values[j - 1]) / (values[j] - values[j - 1])
    return float(times[j - 1] + part * (times[j] - times[j - 1]))


def _peak(times: Float[Array, " T"], values: Float[Array, " T"], j: int) -> float:
    """Where the parabola through the frames j - 1, j, j + 1 is highest; values[j] is the largest of the three."""
    (t0, t1, t2), (v0, v1, v2) = times[j - 1 : j + 2], values[j - 1 : j + 2]
    rise, fall = (v1 - v0) / (t1 - t0), (v2 - v1) / (t2 - t1)
    return float((t0 + t1) / 2 + (t2 - t0) / 2 * rise / (rise - fall)) if rise > fall else float(t1)


@one_thread
def predict_timeline(chain: MarkovChain, parameters: Parameters, queries: ArrayLike | None = None) -> list[Stage]:
    """The stages of the first cycle of the gradient flow from given weights, without following the flow.

    What lies along the direction u in which the weights condense follows the rank-one flow. What lies across grows in
    proportion to its start: by the transverse operator along that flow, and then by the one at its end. From both
    together the times are read as `find_stages` does it. Neglected are terms of second order in the part across: at the
    start the square of the scale of the weights, at the end of symmetry breaking a few per cent of its growth. Where
    |lambda_2| is not large against the scale of the weights, they matter: the times of focus and dilution are then
    wrong by up to three quarters.

    There is no stage at all where pi is uniform. There is no focus, nor what follows it, where the chain's focus rate
    is zero, and where W_Q and W_K are exactly zero: they remain so for ever. There is no symmetry breaking where
    nothing grows across. Where the rank-one flow has no end, since transitions of probability 0 drive the weights to
    infinity, only such symmetry breaking is predicted as comes before its rates fall below 1e-7 |lambda_2|.

    Args:
        chain: the Markov chain.
        parameters: the weights at time 0, near the origin.
        queries: the tokens whose attention is looked at, as in the trajectory to compare with; None: all.

    Raises:
        ValueError: the parameters are for another number of tokens, have no part along the growing line, or are not
            near the origin: they move a query's attention by more than 0.01 from pi, or their loss is more than 0.01
            nats above log d; or a query is not a token.
        ConvergenceError: the rank-one flow does not come to rest; `rank_one_flow` says why.
    """
    fitting(parameters, chain)
    chosen = query_tokens(queries, chain)
    _check_near_origin(chain, parameters)
    if condensation_rate(chain) == 0:
        return []

    times: list[float] = []
    states: list[tuple[Array, float, float]] = []  # w0, score scale, loss
    singular_values: list[Array] = []
    for time, point, values, _ in predicted_path(chain, parameters):
        times.append(time)
        states.append((point.w0, point.score_scale, point.loss))
        singular_values.append(values)
    w0, score_scale, loss = (np.array(values) for values in zip(*states, strict=True))
    rows = (softmax((score_scale * w0[:, i])[:, None] * w0 + chain.log_stationary) for i in chosen)
    stages = _stages(np.array(times), loss, rows, np.array(singular_values), chain.stationary)
    return [replace(stage, standard_error=None) for stage in stages if stage.cycle == 1]


def _check_near_origin(chain: MarkovChain, parameters: Parameters) -> None:
    moved = _distance(attention(parameters, chain), chain.stationary)
    if moved.max() > _MOVED:
        raise ValueError(
            f"parameters must be near the origin, with attention within {_MOVED:g} of pi; "
            f"that of token {int(moved.argmax())} is {moved.max():.2g} away"
        )
    loss = population_loss(parameters, chain)
    if loss > math.log(chain.n_tokens) + _MOVED:
        raise ValueError(
            f"parameters must be near the origin, with a loss of at most log d + {_MOVED:g} = "
            f"{math.log(chain.n_tokens) + _MOVED:.5g} nats; got {loss:.5g}"
        )


def predicted_path(
    chain: MarkovChain, parameters: Parameters
) -> Iterator[tuple[float, RankOnePoint, Float[Array, " 2"], "_Across"]]:
    """Time, point of the rank-one flow, two largest singular values of W0, and the part across, which moves on.

    It ends when the second direction has come, or where none comes, with the rank-one flow.
    """
    across = _Across(parameters, condensing_direction(parameters, chain))
    for time, point in _path(rank_one_flow(chain, start=parameters), across):
        values = across.singular_values(point)
        yield time, point, values, across
        if point.loss <= _condensed(chain.stationary) and values[1] >= _GROWN * values[0]:
            break


def _path(flow: RankOneTrajectory, across: "_Across") -> Iterator[tuple[float, RankOnePoint]]:
    """Times and points along the rank-one flow, and then at its end, until nothing more can come; `across` follows.

    The points are so dense that the part across grows by a tenth at most in a step.
    """
    chain, d = flow.chain, flow.chain.n_tokens
    history = np.column_stack([flow.w0, flow.w1, flow.growth])

    def at(y: Array) -> tuple[RankOnePoint, Array]:
        point = RankOnePoint.unchecked(chain, y[:d], y[d:-1], float(across.scores.scale(y[-1])))
        return point, across.operator(point, y[-1])

    here, T = at(history[0])
    yield 0.0, here
    for times, states in zip(pairwise(flow.times), pairwise(history), strict=True):
        there, T_there = at(states[1])
        step = float(times[1] - times[0])
        n = max(math.ceil(max(np.linalg.norm(T), np.linalg.norm(T_there)) * step / _GROWTH), 1)
        if n > 1:
            slopes = np.array([np.concatenate(point.force) for point in (here, there)])
            between = CubicHermiteSpline(times, np.array(states), slopes)
        for j in range(1, n + 1):
            time = float(times[0] + j / n * step)
            here, T_before, (here, T) = here, T, (there, T_there) if j == n else at(between(time))
            across.advance(step / n * (T_before + T) / 2)
            yield time, here
    yield from across.end(flow)


class _Across:
    """The part of weights across u: X is (d, m); ``Z = [Y; y; z]`` is (d + 4, m), with y and z along q and k alone."""

    def __init__(self, parameters: Parameters, u: Float[Array, " m"]) -> None:
        W0, W1, WQ, WK = parameters.arrays
        self._u, self.scores = u, along(parameters, u).scores
        q, k = WQ.T @ u, WK.T @ u
        basis = np.linalg.qr(np.column_stack([q, k]))[0]  # (m, 2); (m, 1) where m = 1
        self._sum, self._difference = basis.T @ (q + k), basis.T @ (q - k)
        project = np.eye(len(u)) - np.outer(u, u)
        self._X = W0 @ project
        self._Z = np.vstack([W1.T, (WQ @ basis).T, (WK @ basis).T]) @ project

    def operator(self, point: RankOnePoint, growth: float) -> Float[Array, "d d+4"]:
        """T, at a point that q + k has reached with this growth."""
        grown, shrunk = np.exp(growth) * self._sum, np.exp(-growth) * self._difference
        return transverse_operator(point, (grown + shrunk) / 2, (grown - shrunk) / 2)

    def advance(self, T: Float[Array, "d d+4"]) -> None:
        """Follow ``dX = T Z, dZ = T^T X`` for a unit of time, T of norm below 1, by five terms of the exponential."""
        X, Z = self._X, self._Z
        for order in range(1, 6):
            X, Z = T @ Z / order, T.T @ X / order
            self._X, self._Z = self._X + X, self._Z + Z

    def end(self, flow: RankOneTrajectory) -> Iterator[tuple[float, RankOnePoint]]:
        """Times and the point at the end of the rank-one flow, until what grows fastest there is as large as it."""
        if not self.scores.focuses(focus_rate(flow.chain)):
            return  # the unigram point, where M = 0
        found = settled(RankOnePoint(flow.chain, flow.w0[-1], flow.w1[-1], float(flow.score_scale[-1])))
        if found is None:
            return
        point = RankOnePoint(flow.chain, found.w0, found.w1, found.score_scale)
        left, rates, right = np.linalg.svd(self.operator(point, flow.growth[-1]), full_matrices=False)
        if rates[0] <= _STALLED * condensation_rate(flow.chain):
            return
        from_X, from_Z = left.T @ self._X, right @ self._Z
        grows, shrinks = (from_X + from_Z) / 2, (from_X - from_Z) / 2
        size = np.linalg.norm(grows[0])
        if size == 0:
            return
        still = self._X - left @ from_X  # where the operator is not of full rank
        for j in range(1, math.ceil(np.log(np.linalg.norm(point.w0) / size) / _GROWTH) + 1):
            growth = j * _GROWTH * rates[:, None] / rates[0]
            self._X = still + left @ (np.exp(growth) * grows + np.exp(-growth) * shrinks)
            yield float(flow.times[-1] + j * _GROWTH / rates[0]), point

    def embedding(self, point: RankOnePoint) -> Float[Array, "d m"]:
        """``W0 = w0 u^T + X``."""
        result: Array = np.outer(point.w0, self._u) + self._X
        return result

    def singular_values(self, point: RankOnePoint) -> Float[Array, " 2"]:
        """The two largest ones of W0; the second is 0 where there is none, to 1e-8 of the first."""
        W0 = self.embedding(point)
        squares = np.linalg.eigvalsh(W0.T @ W0 if W0.shape[1] <= W0.shape[0] else W0 @ W0.T)
        values: Array = np.sqrt(np.maximum(np.append(squares[::-1], 0.0)[:2], 0))
        return values
