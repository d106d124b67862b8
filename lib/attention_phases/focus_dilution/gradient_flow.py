"""Gradient flow of the population loss, followed through its stages to a stated accuracy.

The flow ``dW/dt = -dL/dW`` is stiff in an awkward way: late in training one curvature is a hundred times the next one,
and the flow creeps along the floor of a narrow, bent valley. So the solver is implicit: the Rosenbrock method RODAS of
order 4 (Hairer, Wanner, Solving Ordinary Differential Equations II, 1996, section IV.7), six stages a step, stiffly
accurate, with the exact Jacobian J, minus the Hessian of L.

Its linear systems ``(1/(gamma h) - J) x = b`` are symmetric and, as long as a step resolves what grows, positive
definite. They are solved by conjugate directions from Hessian products alone. Few curvatures are large, so few
directions are needed; a step keeps them all, and each of its systems starts from what the earlier ones have found.

Errors are measured relative to the weights, direction by direction of the embedding space. A direction that is still
tiny but grows is the stage to come; a norm of all weights would not see it.
"""

from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import ArrayLike
from scipy.linalg import solve_triangular

from attention_phases import _checks
from attention_phases._arrays import Array, IntArray
from attention_phases._blas import one_thread
from attention_phases.errors import ConvergenceError
from attention_phases.focus_dilution.markov_transformer import (
    Expansion,
    MarkovChain,
    Parameters,
    Seed,
    Weights,
    attention,
    conserved_quantities,
    has_size,
)

# Coefficients of RODAS, for stages u_i that solve (1/(gamma h) - J) u_i = f(y + sum_j a_ij u_j) + sum_j c_ij u_j/h.
# The step ends at y + sum_j a_6j u_j + u_6, and u_6 estimates its error.
_GAMMA = 0.25
_A = (
    (),
    (1.544,),
    (0.9466785280815826, 0.2557011698983284),
    (3.314825187068521, 2.896124015972201, 0.9986419139977817),
    (1.221224509226641, 6.019134481288629, 12.53708332932087, -0.6878860361058950),
    (1.221224509226641, 6.019134481288629, 12.53708332932087, -0.6878860361058950, 1.0),
)
_C = (
    (),
    (-5.6688,),
    (-2.430093356833875, -0.2063599157091915),
    (-0.1073529058151375, -9.594562251023355, -20.47028614809616),
    (7.496443313967647, -10.24680431464352, -33.99990352819905, 11.70890893206160),
    (8.083246795921522, -7.981132988064893, -31.52159432874371, 16.31930543123136, -6.058818238834054),
)
_LOCAL = 0.3  # tolerance of a step's estimated error, in units of rtol
_SOLVED = 0.01  # what a linear system may be wrong by, in units of that
_LEAST_WRONG = 1e-9  # nor may it be wrong by more than the step's tolerance, or this, of the flow
_FLOOR = (
    0.1  # directions of the embedding space smaller than this, in units of the start's entries, count as that large
)
_ROUNDING = 1e-14  # and nothing counts as so small that rounding spoils its error
_MOST_DIRECTIONS = 120  # of one step; where more are needed the step is made shorter


@dataclass(frozen=True, eq=False)
class Trajectory:
    """Training, frame by frame: T frames, d tokens, width m.

    Attributes:
        chain: what was learned.
        times: (T,), the first is 0.
        excess_loss: (T,), nats above the chain's conditional entropy.
        queries: (n_queries,), the tokens whose attention is kept.
        attention: (T, n_queries, d).
        singular_values: of the embedding W0, (T, min(d, m)), the largest first.
        parameters: the weights of each frame, a tuple of length T.
        n_steps: accepted steps of the solver.
        n_rejected: steps that were tried again with a shorter one.
        n_evaluations: of the gradient.
        n_products: of the Hessian with a direction.
        tolerance: the tolerance that was asked for.
        drift: largest change of an entry of a conserved quantity, over the largest entry of its parts.
        converged: whether the last frame is at the time that was asked for.
    """

    chain: MarkovChain
    times: Float[Array, " T"]
    excess_loss: Float[Array, " T"]
    queries: Int[IntArray, " n_queries"]
    attention: Float[Array, "T n_queries d"]
    singular_values: Float[Array, "T k"]
    parameters: tuple[Parameters, ...]
    n_steps: int
    n_rejected: int
    n_evaluations: int
    n_products: int
    tolerance: float
    drift: float
    converged: bool

    @property
    def loss(self) -> Float[Array, " T"]:
        """L in nats, (T,)."""
        return self.excess_loss + self.chain.conditional_entropy

    @property
    def entropy(self) -> Float[Array, "T n_queries"]:
        """Entropy of each query's attention in nats, (T, n_queries)."""
        a = self.attention
        result: Array = -(a * np.log(a, out=np.zeros_like(a), where=a > 0)).sum(axis=-1)
        return result

    @property
    def norms(self) -> Float[Array, "T 4"]:
        """Frobenius norms of W0, W1, W_Q and W_K, (T, 4)."""
        return np.array([[np.linalg.norm(weights) for weights in frame.arrays] for frame in self.parameters])


@one_thread
def gradient_flow(
    chain: MarkovChain,
    width: int = 16,
    init_scale: float = 1e-3,
    t_max: float = 1e4,
    seed: Seed = 0,
    *,
    start: Parameters | None = None,
    rtol: float = 1e-4,
    times: ArrayLike | None = None,
    n_frames: int = 400,
    queries: ArrayLike | None = None,
    max_steps: int = 20_000,
) -> Trajectory:
    """Follow the gradient flow of the population loss from small Gaussian weights, or from a given start.

    The result says how well the conserved quantities of the flow were kept; the solver does not make use of them.

    Args:
        chain: what is learned.
        width: m, >= 1.
        init_scale: standard deviation of the initial entries, at least 1e-60.
        t_max: where to stop, > 0 and finite.
        seed: of the initial weights.
        start: initial weights, in place of `width`, `init_scale` and `seed`.
        rtol: relative accuracy that the excess loss is meant to have along the flow, in [1e-10, 0.01].
        times: (T,), increasing and >= 0: frames at these times, which then replace `t_max`. Default: the solver's own
            steps, which are short in the stages and long on plateaus.
        n_frames: the largest number of frames without `times`, >= 3; where there are more steps, every second, fourth,
            ... of them is kept, and the last. Memory does not grow with `t_max`.
        queries: tokens whose attention is kept, default all.
        max_steps: accepted and rejected steps together.

    Raises:
        ValueError: names the argument, what it must be and what it got.
        ConvergenceError: the time was not reached in `max_steps` steps, or a conserved quantity drifted by more than
            `rtol`. Its residual is the drift, its last point the trajectory so far.
    """
    _checks.instance("chain", chain, MarkovChain)
    if start is None:
        start = Parameters.gaussian(chain.n_tokens, width, init_scale, seed)
    else:
        _checks.instance("start", start, Parameters)
        if start.n_tokens != chain.n_tokens:
            raise ValueError(f"start must be for the chain's {chain.n_tokens} tokens; got {start.n_tokens}")
        has_size("start", start)
    t_max = _checks.real("t_max", t_max, 0, _checks.LARGEST, open_low=True)
    stops = np.array([t_max]) if times is None else _times(times)
    rtol = _checks.real("rtol", rtol, 1e-10, 0.01)
    n_frames = _checks.integer("n_frames", n_frames, 3)
    max_steps = _checks.integer("max_steps", max_steps, 1)
    tokens = query_tokens(queries, chain)

    if not any(np.any(rate) for rate in Expansion(start.arrays, chain).flow):
        raise ValueError("start must not be a critical point, which the flow never leaves; the gradient vanishes there")
    solver = _Solver(chain, start, _LOCAL * rtol)
    frames = _Frames(n_frames if times is None else len(stops) + 1)
    if times is None:
        frames.add(solver)
    for stop in stops:
        while solver.time < stop and solver.n_steps + solver.n_rejected < max_steps:
            if solver.advance(stop) and times is None:
                frames.add(solver)
        if times is not None and solver.time == stop:
            frames.add(solver)
    frames.close(solver)
    result = _trajectory(chain, solver, frames, tokens, rtol, start, converged=solver.time == stops[-1])
    if not result.converged:
        raise ConvergenceError(
            f"the flow came to t = {solver.time:g} of {stops[-1]:g} in max_steps = {max_steps} steps",
            last=result,
            residual=result.drift,
        )
    if result.drift > rtol:
        raise ConvergenceError(
            f"a conserved quantity of the flow drifted by {result.drift:.1e}, more than rtol = {rtol:g}",
            last=replace(result, converged=False),
            residual=result.drift,
        )
    return result


class _UnresolvedError(Exception):
    """A step is too long for its linear systems."""


class _Solver:
    """A point that moves along the flow, step by step.

    Attributes:
        time, point: where it is; the point is a vector of all weights.
        rate: the flow there, a vector.
        excess_loss: there.
        n_steps, n_rejected, n_evaluations, n_products: as in `Trajectory`.
    """

    def __init__(self, chain: MarkovChain, start: Parameters, tolerance: float) -> None:
        d, m = start.n_tokens, start.width
        self._chain, self._tolerance = chain, tolerance
        self._shapes = ((d, m), (m, d), (m, m), (m, m))
        self._ends = np.cumsum([rows * columns for rows, columns in self._shapes])[:-1]
        self.n_steps = self.n_rejected = self.n_evaluations = self.n_products = 0
        self.time, self.point = 0.0, _vector(start.arrays)
        self._floor = _FLOOR * float(np.sqrt((self.point**2).mean()))
        self._directions: tuple[Array, Array] = (
            np.empty((_MOST_DIRECTIONS, len(self.point))),
            np.empty((_MOST_DIRECTIONS, len(self.point))),
        )
        self._arrive()
        change = float(np.linalg.norm(self._product(self.rate)))
        self._step = 0.1 * float(np.linalg.norm(self.rate)) / change if change > 0 else np.inf
        self._last_ratio = 1.0

    def weights(self, vector: Float[Array, " n"]) -> Weights:
        """A vector as four arrays, views of it."""
        parts = np.split(vector, self._ends)
        return Weights(*(part.reshape(shape) for part, shape in zip(parts, self._shapes, strict=True)))

    def advance(self, stop: float) -> bool:
        """Try a step that ends at `stop` at the latest; whether it was accepted."""
        h = min(self._step, stop - self.time)
        clipped = h < self._step
        try:
            point, error = self._attempt(h)
        except _UnresolvedError:
            self.n_rejected += 1
            self._step = h / 2
            return False
        ratio = self._size(error) / self._tolerance
        if not (ratio <= 1 and np.abs(point).max() <= _checks.LARGEST):  # larger, or not a number
            self.n_rejected += 1
            self._step = h * max(0.2, 0.9 * ratio**-0.25) if 1 < ratio < np.inf else h / 5
            return False
        self.n_steps += 1
        self.time = stop if clipped else self.time + h
        self.point = point
        growth = h * min(4.0, max(0.3, 0.9 * ratio**-0.2 * self._last_ratio**0.05)) if ratio > 0 else 4 * h
        self._step = max(growth, self._step) if clipped else growth
        self._last_ratio = max(ratio, 1e-2)
        self._arrive()
        return True

    def _arrive(self) -> None:
        """What is needed at a new point: the flow and its derivative, and the sizes that errors are measured by."""
        weights = self.weights(self.point)
        self._at = self._expansion(self.point)
        self.rate, self.excess_loss = _vector(self._at.flow), self._at.excess_loss
        floor = max(self._floor, _ROUNDING / self._tolerance * float(np.sqrt((self.point**2).mean())))
        self._scales = (
            _inverse_root(np.vstack([weights.W0, weights.W1.T]), floor),
            _inverse_root(np.vstack([weights.WQ.T, weights.WK.T]), floor),
        )

    def _attempt(self, h: float) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
        """The point after a step of length h, and an estimate of its error."""
        shift = 1 / (_GAMMA * h)
        found, images = self._directions  # p and (shift - J) p, with p . (shift - J) p = 1
        n_found = 0
        # no eigenvalue of shift - J is much below shift; and a short step must not stand still
        allowed = min(_SOLVED * self._tolerance * shift, max(self._tolerance, _LEAST_WRONG) * self._size(self.rate))
        stages: list[Array] = []
        point = self.point
        for a, c in zip(_A, _C, strict=True):
            right = self.rate
            if stages:
                point = self.point + sum(weight * u for weight, u in zip(a, stages, strict=True))
                right = _vector(self._expansion(point).flow)
            residual = right + sum((weight / h) * u for weight, u in zip(c, stages, strict=True))
            along = found[:n_found] @ residual
            u = along @ found[:n_found]
            residual -= along @ images[:n_found]
            while self._size(residual) > allowed:
                if n_found == _MOST_DIRECTIONS:
                    raise _UnresolvedError
                p = residual - (images[:n_found] @ residual) @ found[:n_found]
                image = shift * p - self._product(p)
                curvature = float(p @ image)
                if not curvature > 0:
                    raise _UnresolvedError
                p /= np.sqrt(curvature)
                image /= np.sqrt(curvature)
                found[n_found], images[n_found] = p, image
                n_found += 1
                length = float(p @ residual)
                u += length * p
                residual -= length * image
            stages.append(u)
        return point + stages[-1], stages[-1]

    def _expansion(self, point: Float[Array, " n"]) -> Expansion:
        self.n_evaluations += 1
        return Expansion(self.weights(point), self._chain)

    def _product(self, direction: Float[Array, " n"]) -> Float[Array, " n"]:
        """J times a direction."""
        self.n_products += 1
        return _vector(self._at.flow_derivative(self.weights(direction)))

    def _size(self, change: Float[Array, " n"]) -> float:
        """A change of the weights relative to them, direction by direction of the embedding space.

        With ``C = W0^T W0 + W1 W1^T`` it is the root of ``tr C^-1 (E0^T E0 + E1 E1^T)``, and likewise for W_Q, W_K.
        """
        E0, E1, EQ, EK = self.weights(change)
        of_outputs, of_scores = self._scales
        parts = (E0 @ of_outputs, E1.T @ of_outputs, EQ.T @ of_scores, EK.T @ of_scores)
        return float(np.sqrt(sum((part * part).sum() for part in parts)))


class _Frames:
    """Points of a run, at most so many: where there are more, every other one goes."""

    def __init__(self, limit: int) -> None:
        self._limit, self._stride, self._seen = limit, 1, 0
        self.times: list[float] = []
        self.points: list[Array] = []
        self.excess: list[float] = []

    def add(self, solver: _Solver) -> None:
        """The solver's point, if it is its turn."""
        if self._seen % self._stride == 0:
            self._append(solver)
            if len(self.times) == self._limit:
                self._stride *= 2
                for kept in (self.times, self.points, self.excess):
                    del kept[1::2]
        self._seen += 1

    def close(self, solver: _Solver) -> None:
        """The solver's last point, whether or not it is its turn."""
        if not self.times or self.times[-1] != solver.time:
            self._append(solver)

    def _append(self, solver: _Solver) -> None:
        self.times.append(solver.time)
        self.points.append(solver.point)
        self.excess.append(solver.excess_loss)


def _trajectory(
    chain: MarkovChain,
    solver: _Solver,
    frames: _Frames,
    queries: Int[IntArray, " n_queries"],
    rtol: float,
    start: Parameters,
    *,
    converged: bool,
) -> Trajectory:
    parameters = tuple(Parameters(*solver.weights(point)) for point in frames.points)
    at_start = conserved_quantities(start)
    return Trajectory(
        chain=chain,
        times=np.array(frames.times),
        excess_loss=np.array(frames.excess),
        queries=queries,
        attention=np.array([attention(frame, chain)[queries] for frame in parameters]),
        singular_values=np.array([np.linalg.svd(frame.W0, compute_uv=False) for frame in parameters]),
        parameters=parameters,
        n_steps=solver.n_steps,
        n_rejected=solver.n_rejected,
        n_evaluations=solver.n_evaluations,
        n_products=solver.n_products,
        tolerance=rtol,
        drift=max(_drift(frame, at_start) for frame in parameters),
        converged=converged,
    )


def _drift(parameters: Parameters, at_start: tuple[Array, Array, Array]) -> float:
    """Largest change of an entry of a conserved quantity since the start, over the largest entry of its parts."""
    W0, W1, WQ, WK = parameters.arrays
    parts = (
        max(np.abs(part).max() for part in (W0.T @ W0, W1 @ W1.T, WQ @ WQ.T, WK @ WK.T)),
        max(np.abs(part).max() for part in (WQ.T @ WQ, WK.T @ WK)),
        np.abs(W1).max(),
    )
    now = conserved_quantities(parameters)
    # parts that are all zero, as the scores' weights may be, have not changed
    return float(max(np.abs(a - b).max() / (part or 1.0) for a, b, part in zip(now, at_start, parts, strict=True)))


def _inverse_root(rows: Float[Array, "n m"], floor: float) -> Float[Array, "m m"]:
    """S with ``S S^T = (rows^T rows + n floor^2)^-1``, from a triangular factor, which keeps small directions."""
    n, m = rows.shape
    factor = np.linalg.qr(np.vstack([rows, np.sqrt(n) * floor * np.eye(m)]), mode="r")
    inverse: Array = solve_triangular(factor, np.eye(m))
    return inverse


def _vector(weights: Weights) -> Float[Array, " n"]:
    return np.concatenate([part.ravel() for part in weights])


def _times(times: ArrayLike) -> Float[Array, " T"]:
    """Increasing times of at least 0, or a ValueError."""
    values = _checks.array("times", times, (None,))
    steps = np.diff(values)
    if values[0] < 0 or values[-1] <= 0 or not (steps > 0).all():
        raise ValueError(f"times must be increasing and at least 0, and end after 0; got {_checks.shown(times)}")
    return values


def query_tokens(queries: ArrayLike | None, chain: MarkovChain) -> Int[IntArray, " n_queries"]:
    """Token numbers, or a ValueError."""
    if queries is None:
        return np.arange(chain.n_tokens)
    try:
        values = np.asarray(queries)
    except Exception as error:  # rows of unequal length; or what the library that made the value raises
        raise ValueError(f"queries must be a list of token numbers; got {_checks.shown(queries)}") from error
    if values.ndim != 1 or values.dtype.kind not in "iu" or values.size == 0:
        raise ValueError(f"queries must be a list of token numbers; got {_checks.shown(queries)}")
    if values.min() < 0 or values.max() >= chain.n_tokens:
        raise ValueError(f"queries must be token numbers from 0 to {chain.n_tokens - 1}; got {_checks.shown(queries)}")
    return values.astype(np.int64)
