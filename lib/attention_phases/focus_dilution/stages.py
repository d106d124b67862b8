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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray
from scipy.interpolate import CubicHermiteSpline

from attention_phases import _checks
from attention_phases._blas import one_thread
from attention_phases.focus_dilution.condensation import condensation_rate, condensing_direction
from attention_phases.focus_dilution.dilution import RankOnePoint, along, rank_one_flow
from attention_phases.focus_dilution.markov_transformer import MarkovChain, Parameters, fitting
from attention_phases.focus_dilution.symmetry_breaking import settled, transverse_operator

Array = NDArray[np.float64]

_MOVED = 0.01  # total variation by which attention has visibly moved
_KEPT = 0.5  # a query has turned back where it keeps no more than this part of its move
_DONE = 0.9  # part of a change that ends it
_VISIBLE, _GROWN = 0.05, 0.25  # singular values of W0, over the first: where a new direction shows, where it has come
_ROUNDING = 1e-12  # an entropy of pi this close to log d leaves nothing to condense
_GROWTH = 0.1  # of the transverse part in a step of its prediction, once the rank-one flow is at rest; a logarithm
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
        ValueError: an array of the trajectory has a wrong shape, or the times do not increase.
    """
    times = _checks.array("trajectory.times", trajectory.times, (None,))
    if not (np.diff(times) > 0).all():
        raise ValueError(f"trajectory.times must increase; frame {int(np.diff(times).argmin()) + 1} does not")
    loss = _checks.array("trajectory.loss", trajectory.loss, times.shape)
    attention = _checks.array("trajectory.attention", trajectory.attention, (len(times), None, None))
    singular_values = _checks.array("trajectory.singular_values", trajectory.singular_values, (len(times), None))

    base_rates = attention[0, 0]
    level = _condensed(base_rates)
    if level >= math.log(len(base_rates)) - _ROUNDING:
        return []
    condensed = _first_above(times, -loss, -level)
    stages = [Stage("condensation", float(times[0]), condensed, 1)]
    begin, n_directions = float(times[0]), singular_values.shape[1]
    for cycle in range(1, n_directions + 1):
        later = times >= max(stages[-1].start, condensed)  # before condensation all singular values are small alike
        share = singular_values[later, cycle] / singular_values[later, 0] if cycle < n_directions else np.empty(0)
        shows, grown = (_first_above(times[later], share, level) for level in (_VISIBLE, _GROWN))
        window = (times >= begin) & (times <= shows)
        stages += _motion(times[window], attention[window], cycle)
        if shows == math.inf:
            break
        stages.append(Stage("symmetry-breaking", shows, grown, cycle))
        begin = grown
    return [replace(stage, standard_error=_reading_error(times, stage)) for stage in stages]


def _condensed(base_rates: Float[Array, " d"]) -> float:
    """The loss at which condensation ends."""
    entropy = float(-(base_rates * np.log(base_rates)).sum())
    return (1 - _DONE) * math.log(len(base_rates)) + _DONE * entropy


def _motion(times: Float[Array, " T"], attention: Float[Array, "T n_queries d"], cycle: int) -> list[Stage]:
    """Focus and dilution in the frames of one cycle."""
    if len(times) < 2:
        return []
    moved = _distance(attention, attention[0])  # (T, n_queries)
    farthest = np.maximum.accumulate(moved, axis=0)
    begin = _first_above(times, farthest.max(axis=1), _MOVED)
    if begin == math.inf:
        return []
    returned = (farthest >= _MOVED) & (moved <= _KEPT * farthest)
    turns = []  # (time, query, frame)
    for i in map(int, np.flatnonzero(returned.any(axis=0))):
        frame = int(moved[: returned[:, i].argmax() + 1, i].argmax())
        turns.append((_peak(times, moved[:, i], frame), i, frame))
    if not turns:
        envelope = farthest.max(axis=1)
        return [Stage("focus", begin, _first_above(times, envelope, _DONE * float(envelope[-1])), cycle)]
    turn, query, frame = min(turns)
    onwards = _distance(attention[frame:, query], attention[frame, query])
    end = _first_above(times[frame:], onwards, _DONE * float(onwards.max()))
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
def predict_timeline(chain: MarkovChain, parameters: Parameters, queries: Sequence[int] | None = None) -> list[Stage]:
    """The stages of the first cycle of the gradient flow from given weights, without following the flow.

    What lies along the direction u in which the weights condense follows the rank-one flow. What lies across grows in
    proportion to its start: by the transverse operator along that flow, and then by the one at its end. From both
    together `find_stages` reads the times. Neglected are terms of second order in the part across: at the start the
    square of the scale of the weights, at the end of symmetry breaking a few per cent of its growth. Where
    |lambda_2| is not large against the scale of the weights, they matter: the times of focus and dilution are then
    wrong by up to three quarters.

    No symmetry breaking is predicted where nothing grows across, and no stage at all where pi is uniform.

    Args:
        chain: the Markov chain.
        parameters: the weights at time 0.
        queries: the tokens whose attention is looked at, as in the trajectory to compare with; None: all.

    Raises:
        ValueError: the parameters are for another number of tokens, or have no part along the growing line; or a query
            is not a token.
        ConvergenceError: the rank-one flow does not come to rest.
    """
    fitting(parameters, chain)
    tokens = range(chain.n_tokens)
    chosen = [_checks.integer("queries", i, 0, len(tokens) - 1) for i in (tokens if queries is None else queries)]
    if not chosen:
        raise ValueError("queries must name at least one token; got none")
    if condensation_rate(chain) == 0:
        return []
    stages = find_stages(_prediction(chain, parameters, chosen))
    return [replace(stage, standard_error=None) for stage in stages if stage.cycle == 1]


@dataclass(frozen=True)
class _Prediction:
    times: Float[Array, " T"]
    loss: Float[Array, " T"]
    attention: Float[Array, "T n_queries d"]
    singular_values: Float[Array, "T 2"]


def _prediction(chain: MarkovChain, parameters: Parameters, queries: list[int]) -> _Prediction:
    times: list[float] = []
    points: list[RankOnePoint] = []
    singular_values: list[Array] = []
    for time, point, W0 in predicted_path(chain, parameters):
        times.append(time)
        points.append(point)
        singular_values.append(_two_largest(W0))
    return _Prediction(
        np.array(times),
        np.array([point.loss for point in points]),
        np.array([point.attention[queries] for point in points]),
        np.array(singular_values),
    )


def predicted_path(chain: MarkovChain, parameters: Parameters) -> Iterator[tuple[float, RankOnePoint, Array]]:
    """Time, point of the rank-one flow, and W0, (d, m), with what has grown across, until a second direction has come.

    Where none comes it ends with the rank-one flow.
    """
    across = _Across(parameters, condensing_direction(parameters, chain))
    condensed = _condensed(chain.stationary)
    before, previous = 0.0, np.zeros(0)
    for time, point, growth in _path(chain, parameters, across):
        operator = across.operator(point, growth)
        if time > before:
            across.advance((time - before) * (previous + operator) / 2)
        before, previous = time, operator
        W0 = across.embedding(point)
        yield time, point, W0
        first, second = _two_largest(W0)
        if point.loss <= condensed and second >= _GROWN * first:
            break


def _two_largest(W0: Float[Array, "d m"]) -> Float[Array, " 2"]:
    """The two largest singular values; the second is 0 where there is none."""
    return np.append(np.linalg.svd(W0, compute_uv=False), 0.0)[:2]


def _path(chain: MarkovChain, parameters: Parameters, across: "_Across") -> Iterator[tuple[float, RankOnePoint, float]]:
    """Time, point and tau along the rank-one flow, so dense that the part across grows by a tenth at most in a step.

    Then, for ever, at the end of that flow, if anything grows there.
    """
    d = chain.n_tokens
    flow = rank_one_flow(chain, start=parameters)
    points = [RankOnePoint(chain, *state) for state in zip(flow.w0, flow.w1, flow.score_scale, strict=True)]
    steps = np.diff(flow.times)
    if len(steps):
        slopes = np.array([np.concatenate(point.force) for point in points])
        state = CubicHermiteSpline(flow.times, np.column_stack([flow.w0, flow.w1, flow.growth]), slopes)
    size = float(np.linalg.norm(across.operator(points[0], flow.growth[0])))
    for j, step in enumerate(steps):
        before, size = size, float(np.linalg.norm(across.operator(points[j + 1], flow.growth[j + 1])))
        n = max(math.ceil(max(before, size) * step / _GROWTH), 1)
        for time in flow.times[j] + step * np.arange(n) / n:
            y = state(time)
            yield float(time), RankOnePoint(chain, y[:d], y[d:-1], across.scores.scale(y[-1])), float(y[-1])
    time, growth = float(flow.times[-1]), float(flow.growth[-1])
    end = settled(points[-1])
    yield time, end, growth
    rate = float(np.linalg.norm(across.operator(end, growth), 2))
    while across.present and rate > _STALLED * condensation_rate(chain):
        time += _GROWTH / rate
        yield time, end, growth


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

    @property
    def present(self) -> bool:
        """Whether there is anything across: not so where the width is 1."""
        return bool(self._X.any() or self._Z.any())

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

    def embedding(self, point: RankOnePoint) -> Float[Array, "d m"]:
        """``W0 = w0 u^T + X``."""
        result: Array = np.outer(point.w0, self._u) + self._X
        return result
