"""Weights as points of a space: as a vector, their Hessian, what lies along one direction, and what has been conserved.

The vector of weights is W0, W1, W_Q, W_K one after the other, each row by row: ``n = 2 d m + 2 m^2`` numbers.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh

from attention_phases import _checks
from attention_phases._arrays import Array
from attention_phases._blas import one_thread
from attention_phases.errors import ConvergenceError
from attention_phases.focus_dilution.dilution import RankOnePoint
from attention_phases.focus_dilution.markov_transformer import (
    Expansion,
    MarkovChain,
    Parameters,
    Weights,
    attention,
    conserved_quantities,
    fitting,
)
from attention_phases.focus_dilution.symmetry_breaking import RestingPoint

_UNIT = 1e-9  # by how much the length of a unit vector may differ from 1
_CURVATURE_TOLERANCE = 1e-3  # relative
_KRYLOV = 40  # vectors that Lanczos' method keeps


class Projection(NamedTuple):
    """What lies along a unit vector u of the embedding space, frame by frame.

    Attributes:
        w0: ``W0 u``, (T, d).
        w1: ``W1^T u``, (T, d).
        q: ``W_Q^T u``, (T, m).
        k: ``W_K^T u``, (T, m).
    """

    w0: Float[Array, "T d"]
    w1: Float[Array, "T d"]
    q: Float[Array, "T m"]
    k: Float[Array, "T m"]

    @property
    def score_scale(self) -> Float[Array, " T"]:
        """``s = q . k``, (T,): the scores along u are ``s w0 w0^T``."""
        result: Array = (self.q * self.k).sum(axis=1)
        return result


class GrowthRate(NamedTuple):
    """A local growth rate over a window: its median and its quartiles."""

    median: float
    lower: float
    upper: float


def flatten(parameters: Parameters) -> Float[Array, " n"]:
    """The vector of all weights, (n,)."""
    _checks.instance("parameters", parameters, Parameters)
    return np.concatenate([part.ravel() for part in parameters.arrays])


def unflatten(vector: ArrayLike, n_tokens: int, width: int) -> Parameters:
    """The weights that a vector (n,) of `flatten` holds.

    Raises:
        ValueError: names the argument, what it must be and what it got.
    """
    d, m = _checks.integer("n_tokens", n_tokens, 2), _checks.integer("width", width, 1)
    return Parameters(*_parts(_checks.array("vector", vector, (2 * d * m + 2 * m * m,)), d, m))


def hessian_operator(parameters: Parameters, chain: MarkovChain) -> LinearOperator:
    """The Hessian of L at given weights as a linear operator, (n, n), exact and symmetric.

    A product with a vector costs about as much as two gradients. The product with the identity is the matrix.

    Raises:
        ValueError: the parameters are for another number of tokens.
    """
    at = Expansion(fitting(parameters, chain), chain)
    d, m = parameters.n_tokens, parameters.width
    n = 2 * d * m + 2 * m * m

    def product(vector: Float[Array, " n"]) -> Float[Array, " n"]:
        along = at.flow_derivative(_parts(np.ravel(vector), d, m))
        return -np.concatenate([part.ravel() for part in along])

    return LinearOperator((n, n), matvec=product, rmatvec=product, dtype=np.float64)


@one_thread
def extreme_curvature(parameters: Parameters, chain: MarkovChain, which: str = "largest") -> float:
    """The largest or the smallest eigenvalue of the Hessian of L, to a relative 1e-3.

    Gradient descent with steps eta is stable only where the largest is below 2/eta. Minus the smallest is the fastest
    rate at which the linear flow leaves.

    Args:
        parameters: the weights.
        chain: as for `population_loss`.
        which: "largest" or "smallest".

    Raises:
        ValueError: names the argument, what it must be and what it got.
        ConvergenceError: Lanczos' method did not converge; `last` has the curvatures that it found.
    """
    which = _checks.choice("which", which, ("largest", "smallest"))
    hessian = hessian_operator(parameters, chain)
    n = hessian.shape[0]
    if n <= _KRYLOV:
        return float(np.linalg.eigvalsh(hessian @ np.eye(n))[-1 if which == "largest" else 0])
    begin = _checks.generator(0, stream=3).standard_normal(n)
    ends = {"largest": "LA", "smallest": "SA"}
    try:
        found = eigsh(
            hessian, 1, which=ends[which], tol=_CURVATURE_TOLERANCE, v0=begin, ncv=_KRYLOV, return_eigenvectors=False
        )
    except ArpackNoConvergence as error:
        raise ConvergenceError(
            f"the {which} curvature did not converge", last=error.eigenvalues, residual=_CURVATURE_TOLERANCE
        ) from error
    return float(found[0])


def conserved_change(start: Parameters, now: Parameters) -> tuple[Float[Array, "m m"], Float[Array, "m m"], Array]:
    """By how much the three `conserved_quantities` at `now` differ from those at `start`: zero along the flow.

    Raises:
        ValueError: `start` or `now` are no `Parameters`, or of different widths.
    """
    _checks.instance("start", start, Parameters)
    _checks.instance("now", now, Parameters)
    if now.width != start.width:
        raise ValueError(f"now must have width {start.width}, as start has; got {now.width}")
    before, after = conserved_quantities(start), conserved_quantities(now)
    first, second, third = (new - old for new, old in zip(after, before, strict=True))
    return first, second, third


def exact_weights(chain: MarkovChain, score: float) -> Parameters:
    """Weights of width d that predict the chain exactly: ``W0 = W_K = I, W_Q = score I, W1 = a^-1 log P``.

    Args:
        chain: all its transitions have positive probability.
        score: of a token for itself, not 0, which would make all rows of the attention equal.

    Raises:
        ValueError: names the argument, what it must be and what it got.
    """
    _checks.instance("chain", chain, MarkovChain)
    if not (chain.transition > 0).all():
        raise ValueError("chain must have positive transition probabilities: finite logits give no others")
    score = _checks.real("score", score, -_checks.LARGEST, _checks.LARGEST)
    if score == 0:
        raise ValueError("score must not be 0: all queries would read the same; got 0")
    identity = np.eye(chain.n_tokens)
    a = attention(Parameters(identity, identity, score * identity, identity), chain)
    W1 = np.asarray(np.linalg.solve(a, chain.log_transition))
    return Parameters(identity, W1, score * identity, identity)


def rank_one_weights(point: RankOnePoint | RestingPoint, width: int) -> Parameters:
    """The weights ``W0 = w0 u^T, W1 = u w1^T, W_Q = u q^T, W_K = u k^T`` at a point of the rank-one manifold.

    u and q are along the first and the second axis of the embedding space, ``|q| = |k|``, and k has the sign of s.

    Args:
        point: has w0 and w1, (d,), and the score scale s.
        width: m, >= 2.

    Raises:
        ValueError: names the argument, what it must be and what it got.
    """
    if not isinstance(point, RankOnePoint | RestingPoint):
        raise ValueError(f"point must be a RankOnePoint or a RestingPoint; got {_checks.shown(point)}")
    u, b = np.eye(_checks.integer("width", width, 2))[:2]
    WQ = np.sqrt(abs(point.score_scale)) * np.outer(u, b)
    return Parameters(np.outer(point.w0, u), np.outer(u, point.w1), WQ, np.sign(point.score_scale) * WQ)


def project(frames: Sequence[Parameters], u: ArrayLike) -> Projection:
    """What of the weights of T frames, such as `Trajectory.parameters`, lies along a unit vector u, (m,).

    Raises:
        ValueError: names the argument, what it must be and what it got.
    """
    if not isinstance(frames, list | tuple) or not frames or not all(isinstance(each, Parameters) for each in frames):
        raise ValueError(f"frames must be a list or tuple of Parameters, at least one; got {_checks.shown(frames)}")
    widths = {frame.width for frame in frames}
    if len(widths) > 1:
        raise ValueError(f"frames must all have the same width; got {sorted(widths)}")
    direction = unit_vector("u", u, frames[0].width)
    parts = ([w.W0 @ direction, w.W1.T @ direction, w.WQ.T @ direction, w.WK.T @ direction] for w in frames)
    return Projection(*(np.array(part) for part in zip(*parts, strict=True)))


def cosine(one: ArrayLike, other: ArrayLike) -> float:
    """The cosine of the angle between two arrays of the same shape, as vectors; neither may be zero.

    Raises:
        ValueError: one of them is not an array of finite numbers or is zero, or their shapes differ.
    """
    a, b = _direction("one", one), _direction("other", other)
    if a.shape != b.shape:
        raise ValueError(f"other must be of the shape of one, {a.shape}; got shape {b.shape}")
    return float((a * b).sum() / np.linalg.norm(a) / np.linalg.norm(b))


def local_growth_rate(times: ArrayLike, sizes: ArrayLike, low: float, high: float) -> GrowthRate:
    """Median and quartiles of ``d log(size)/dt`` between frames, over the frames whose size is in (low, high).

    Args:
        times: (T,), increasing.
        sizes: (T,), positive.
        low: above what does not grow.
        high: below where growth bends; more than ten frames must be between the two.

    Raises:
        ValueError: names the argument, what it must be and what it got.
    """
    t = _checks.array("times", times, (None,))
    if not (np.diff(t) > 0).all():
        raise ValueError(f"times must increase; got {_checks.shown(times)}")
    size = _checks.array("sizes", sizes, t.shape)
    inside = (size > _checks.real("low", low, 0)) & (size < _checks.real("high", high, low))
    if inside.sum() <= 10:
        raise ValueError(f"low and high must have more than ten sizes between them; got {inside.sum()}")
    local = np.diff(np.log(size[inside])) / np.diff(t[inside])
    lower, median, upper = np.percentile(local, [25, 50, 75])
    return GrowthRate(float(median), float(lower), float(upper))


def unit_vector(name: str, value: ArrayLike, length: int) -> Float[Array, " n"]:
    """`value` as a vector of length 1 with so many entries, or a ValueError."""
    vector = _checks.array(name, value, (length,))
    if abs(np.linalg.norm(vector) - 1) > _UNIT:
        raise ValueError(f"{name} must be a unit vector; got one of length {np.linalg.norm(vector):.6g}")
    return vector


def _direction(name: str, value: ArrayLike) -> Float[Array, "*shape"]:
    """`value` over its largest entry, or a ValueError."""
    try:
        raw = np.asarray(value)
    except Exception as error:  # rows of unequal length; or what the library that made the value raises
        raise ValueError(f"{name} must be a real array; got {_checks.shown(value)}") from error
    if raw.dtype.kind not in "fiu" or not np.isfinite(raw).all() or not raw.any():
        raise ValueError(f"{name} must be a real array of finite entries, not all zero; got {_checks.shown(value)}")
    scaled: Array = raw / np.abs(raw).max()
    return scaled


def _parts(vector: Float[Array, " n"], d: int, m: int) -> Weights:
    W0, W1, WQ, WK = np.split(vector, np.cumsum([d * m, d * m, m * m]))
    return Weights(W0.reshape(d, m), W1.reshape(m, d), WQ.reshape(m, m), WK.reshape(m, m))
