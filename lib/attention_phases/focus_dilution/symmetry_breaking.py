"""Symmetry breaking: at the end of the rank-one flow a second direction grows, slowly where tokens are alike.

Take weights near the rank-one manifold, with a unit vector v orthogonal to u:

    W0 = w0 u^T + X v^T,    W1 = u w1^T + v Y^T,    W_Q = u q^T + v y^T,    W_K = u k^T + v z^T.

The transverse part X, Y, y, z changes neither attention nor logits to first order. So

    dX/dt = T [Y; y; z],        d[Y; y; z]/dt = T^T X,        T = [M, (G w0) k^T, (G^T w0) q^T],

and the transverse part grows at the singular values of T, the same for each v. Where the rank-one flow has come to
rest, G = 0 and ``M w1 = 0``, and the rates are the singular values of M alone.

As summarised, Proposition 3.8 and Theorem 3.9 of Chen, Lin, Xu, Luo (ICML 2026, arXiv 2605.01199); derived here afresh.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from attention_phases import _checks
from attention_phases._arrays import Array
from attention_phases._blas import one_thread
from attention_phases.errors import ConvergenceError
from attention_phases.focus_dilution.condensation import unigram_profile
from attention_phases.focus_dilution.dilution import RankOnePoint, RankOneStart, ScorePair, integrate
from attention_phases.focus_dilution.focus import focus_rate
from attention_phases.focus_dilution.markov_transformer import MarkovChain

_SMALL = 1e-8  # |q|^2 of the start at the unigram point: the end depends on it to first order
_NEUTRAL = 1e-10  # curvatures this much smaller than the largest are zero by invariance
_NEWTON_STEPS = 5
_N_NEUTRAL = 4  # directions on the manifold in which no force acts
_SLOWEST = 1e-5  # relaxation slower than this part of the focus rate is none


@dataclass(frozen=True)
class RestingPoint:
    """Where the rank-one flow ends that leaves the unigram point along the focus direction, |q| = |k|.

    Attributes:
        chain: what it was computed for.
        w0: (d,), the embeddings along u.
        w1: (d,), the projection to the logits along u.
        score_scale: s in ``z = s w0 w0^T``.
        transverse: (d, d + 2), the operator T, with ``q = sqrt|s| b``, ``k = sign(s) q`` and its last two columns along
            the unit vector b.
        transverse_rates: (d,), its singular values, from the largest on.
        tangential_rates: (2 d + 2,), the growth rates on the manifold itself, in w0, w1, |q| and |k|, from the largest
            on. At least four are zero: two for the invariances of the loss, one for the sum of w1, which does not
            matter either, and one for the line of points with the same x on which the end lies. A positive one makes
            the end a saddle: tokens that are exactly alike stay so in the rank-one flow, and only there.
        residual: the largest of the forces -dL/d(w0, w1, s).
    """

    chain: MarkovChain
    w0: Float[Array, " d"]
    w1: Float[Array, " d"]
    score_scale: float
    transverse: Float[Array, "d d+2"]
    transverse_rates: Float[Array, " d"]
    tangential_rates: Float[Array, " 2d+2"]
    residual: float


@one_thread
def resting_point(chain: MarkovChain) -> RestingPoint:
    """The end of the rank-one flow, for a start that is infinitely small: followed to rest, then by Newton's method.

    It is the unigram point itself where the focus rate is zero.

    Raises:
        ValueError: `chain` is not a `MarkovChain`.
        ConvergenceError: the flow does not come to rest (`rank_one_flow` says why); or it creeps on for ever, as it
            does where transitions of probability 0 let the logits grow without end; `last` is its trajectory.
    """
    _checks.instance("chain", chain, MarkovChain)
    w0, w1 = unigram_profile(chain)
    rate = focus_rate(chain)
    if rate == 0:
        return _described(RankOnePoint(chain, w0, w1, 0.0))
    pair = ScorePair(4 * _SMALL, 0) if rate > 0 else ScorePair(0, 4 * _SMALL)
    end = integrate(chain, RankOneStart(w0, w1, pair), None)
    found = settled(RankOnePoint(chain, end.w0[-1], end.w1[-1], float(end.score_scale[-1])))
    if found is None:
        raise ConvergenceError(
            f"the rank-one flow has no end: at t = {end.times[-1]:g} it still creeps; "
            f"so it is where transitions of probability 0, or nearly 0, drive weights to infinity",
            end,
            end.residual,
        )
    return found


def symmetry_breaking_rate(chain: MarkovChain) -> float:
    """The largest growth rate of a second direction at the end of the rank-one flow, the top singular value of T.

    It is zero to rounding where there are two sorts of tokens, those of a sort exchangeable: there M = 0, and no second
    direction grows. Training stalls, unless tokens that are alike part along the first direction, for which a
    tangential rate is positive (`resting_point`). With an asymmetry delta of one sort the rate is proportional to delta
    as delta -> 0; the second singular value is then of order delta^2, and of order delta^3 for a lazy chain. The rate
    is zero also where the focus rate is zero.

    Raises:
        ValueError: `chain` is not a `MarkovChain`.
        ConvergenceError: as for `resting_point`.
    """
    return float(resting_point(chain).transverse_rates[0])


def settled(point: RankOnePoint) -> RestingPoint | None:
    """The end of the rank-one flow near a given point, or None where the flow creeps on for ever.

    By the shortest steps of Newton's method, until no force is left, to rounding.
    """
    rate = abs(focus_rate(point.chain))
    for _ in range(_NEWTON_STEPS):
        better = _newton_step(point)
        if not _residual(better) < _residual(point):
            break
        point = better
    found = _described(point)
    rates = found.tangential_rates
    n_growing = int((rates > _SLOWEST * rate).sum())  # none of them was in the start
    slowest = -rates[n_growing + _N_NEUTRAL]
    return found if slowest >= _SLOWEST * rate else None  # else residual/slowest, the distance to the end, is not small


def transverse_operator(point: RankOnePoint, q: Float[Array, " n"], k: Float[Array, " n"]) -> Float[Array, "d d+2n"]:
    """``T = [M, (G w0) k^T, (G^T w0) q^T]``, with q and k in any basis of a space that they lie in."""
    G = point.score_force
    return np.hstack([point.output_force, np.outer(G @ point.w0, k), np.outer(G.T @ point.w0, q)])


def _newton_step(point: RankOnePoint) -> RankOnePoint:
    """The shortest step to where the linearised forces vanish; it leaves alone what no force depends on."""
    d = len(point.w0)
    step = np.linalg.lstsq(point.force_derivative, -np.concatenate(point.force), rcond=_NEUTRAL)[0]
    with np.errstate(over="ignore", invalid="ignore"):  # far out, where the flow has no end
        return RankOnePoint.unchecked(
            point.chain, point.w0 + step[:d], point.w1 + step[d:-1], point.score_scale + float(step[-1])
        )


def _residual(point: RankOnePoint) -> float:
    with np.errstate(over="ignore", invalid="ignore"):
        return float(np.abs(np.concatenate(point.force)).max())


def _described(point: RankOnePoint) -> RestingPoint:
    s = point.score_scale
    q = np.array([np.sqrt(abs(s))])
    k = np.sign(s) * q
    transverse = transverse_operator(point, q, k)
    by_qk = np.zeros((2 * len(point.w0) + 1, 2 * len(point.w0) + 2))  # d(w0, w1, s)/d(w0, w1, |q|, |k|)
    by_qk[:, :-1] = np.eye(len(by_qk))
    by_qk[-1, -2:] = k[0], q[0]
    curvature = by_qk.T @ point.force_derivative @ by_qk
    force = float(point.force[2][0])
    curvature[-1, -2] += force
    curvature[-2, -1] += force
    transverse_rates = np.asarray(np.linalg.svd(transverse, compute_uv=False), dtype=np.float64)
    tangential_rates = np.asarray(np.linalg.eigvalsh(curvature)[::-1], dtype=np.float64)
    return RestingPoint(
        point.chain,
        point.w0,
        point.w1,
        s,
        transverse,
        transverse_rates,
        tangential_rates,
        _residual(point),
    )
