"""Dilution: the flow on the rank-one manifold, where attention first turns to some tokens and then away from them.

For a unit vector u in R^m, the weights

    W0 = w0 u^T,    W1 = u w1^T,    W_Q = u q^T,    W_K = u k^T,        w0, w1 in R^d, q, k in R^m

are invariant under the flow. On them the scores are ``z = s w0 w0^T`` with the score scale ``s = q . k``, token i's
logits are ``x_i w1`` with ``x_i = sum_k a_ik w0_k``, and everything follows from the slope of the loss in x,

    r_i = -dL/dx_i = pi_i (P_i - softmax(x_i w1)) . w1,        R_i = pi_i (P_i - softmax(x_i w1)):

    dw0/dt = (dx/dw0)^T r,    dw1/dt = R^T x,    d(q + k)/dt = g (q + k),    d(q - k)/dt = -g (q - k),
    g = -dL/ds = sum_i r_i w0_i Var_i,

where Var_i is the variance of w0 under row i of the attention. With ``tau = int g dt`` the score scale is
``s = (|q0 + k0|^2 e^{2 tau} - |q0 - k0|^2 e^{-2 tau})/4``: 2 d + 1 equations in all.

As summarised, Propositions 3.6 and 3.7 of Chen, Lin, Xu, Luo (ICML 2026, arXiv 2605.01199); derived here afresh.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike
from scipy.integrate import LSODA

from attention_phases import _checks
from attention_phases._arrays import Array
from attention_phases._blas import one_thread
from attention_phases.errors import ConvergenceError
from attention_phases.focus_dilution.condensation import above_uniform, condensation_rate, direction_of
from attention_phases.focus_dilution.focus import focus_rate
from attention_phases.focus_dilution.markov_transformer import (
    MarkovChain,
    Parameters,
    few_tokens,
    has_size,
    log_softmax,
    scale_of_start,
    softmax,
)

AT_REST = 1e-7  # the flow has ended where no rate is above this part of lambda_2
_TOLERANCE = 1e-8  # of a step, relative; see `rank_one_flow` for what it makes of the result
_MOST_STEPS = 10_000
_RESOLVED = np.finfo(float).eps / _TOLERANCE  # lambda_2/lambda_1 below which rounding is too much in a time 1/lambda_2
_AT_ONCE = 2**16  # numbers of an array of frames


@dataclass(frozen=True)
class RankOneTrajectory:
    """The flow on the rank-one manifold. The times are the solver's own: dense in the stages, sparse on plateaus.

    Attributes:
        chain: what it was computed for.
        times: (T,), in units of the flow, from 0.
        w0: (T, d), the embeddings along u.
        w1: (T, d), the projection to the logits along u.
        score_scale: (T,), s in ``z = s w0 w0^T``; negative where attention turns to rare tokens.
        loss: (T,), L in nats.
        growth: (T,), tau, the logarithm of the factor by which q + k has grown.
        residual: the largest rate of change, of an entry of w0 or w1 or of tau, at the last time; without tau where no
            focus can come, since the scores have no part that grows.
        converged: whether the flow has come to rest there: no rate is above 1e-7 lambda_2, or 1e-7 lambda_1 where no
            focus can come.
    """

    chain: MarkovChain
    times: Float[Array, " T"]
    w0: Float[Array, "T d"]
    w1: Float[Array, "T d"]
    score_scale: Float[Array, " T"]
    loss: Float[Array, " T"]
    growth: Float[Array, " T"]
    residual: float
    converged: bool

    @property
    def attention(self) -> Float[Array, "T d d"]:
        """a at each time."""
        scores = self.score_scale[:, None, None] * self.w0[:, :, None] * self.w0[:, None, :]
        return softmax(self.chain.log_stationary + scores)


class ScorePair(NamedTuple):
    """What the score scale starts from: |q + k|^2 and |q - k|^2 at time 0."""

    sum: float
    difference: float

    def scale(self, growth: Float[Array, "*T"]) -> Float[Array, "*T"]:
        """S at tau."""
        factor = np.exp(2 * growth)
        return (self.sum * factor - self.difference / factor) / 4

    def slope(self, growth: float) -> float:
        """ds/dtau at tau: |q|^2 + |k|^2."""
        factor = np.exp(2 * growth)
        return float(self.sum * factor + self.difference / factor) / 2

    def focuses(self, rate: float) -> bool:
        """Whether there is a part that grows, |q + k| or |q - k|, where lambda_2 is `rate`."""
        return (self.sum if rate > 0 else self.difference) > 0


class RankOneStart(NamedTuple):
    """A point of the rank-one manifold."""

    w0: Float[Array, " d"]
    w1: Float[Array, " d"]
    scores: ScorePair


@one_thread
def rank_one_flow(
    chain: MarkovChain,
    t_max: float | None = None,
    init_scale: float = 1e-3,
    *,
    start: Parameters | None = None,
) -> RankOneTrajectory:
    """The flow on the rank-one manifold, by LSODA with the analytic Jacobian.

    It starts on the growing line ``w0 = init_scale p, w1 = init_scale n`` of the origin with ``|q| = |k| = init_scale``
    and q = k or q = -k, whichever grows. Or it starts from the part of given weights that lies along the direction u in
    which they condense: the full flow from these weights follows it, up to the order of their scale, until a second
    direction has grown.

    Where W_Q and W_K are exactly 0 they remain so, in the full flow as here, and the flow ends at the unigram point.

    The error of a step is at most 1e-8, relative. Those of w0 and w1 are then some 1e-6 while a stage is under way,
    where a small error of its time shows, and 1e-7 or less at rest (measured against a tolerance of 1e-12).

    Args:
        chain: the Markov chain.
        t_max: when to stop, finite; None: where it comes to rest.
        init_scale: the scale of the start, from 1e-60 to 1; 0 is an exact critical point.
        start: weights to start from; init_scale then has no meaning.

    Raises:
        ValueError: names the argument, what it must be and what it got.
        ConvergenceError: t_max or rest are not reached in 10 000 steps; or, without t_max, lambda_2 is less than 2e-8
            lambda_1, and rounding errors hide what happens in the time 1/lambda_2, as for pi that is nearly uniform.
            `last` is the trajectory until then.
    """
    _checks.instance("chain", chain, MarkovChain)
    if t_max is not None:
        t_max = _checks.real("t_max", t_max, 0, open_low=True)
    if start is not None:
        u = direction_of("start", start, chain)
        has_size("start", start)
        begin = along(start, u)
    else:
        init_scale = scale_of_start(init_scale, 1.0)
        pi = chain.stationary
        above = above_uniform(pi)
        pair = ScorePair(4 * init_scale**2, 0) if focus_rate(chain) >= 0 else ScorePair(0, 4 * init_scale**2)
        size = float(np.linalg.norm(above)) or 1.0
        begin = RankOneStart(init_scale * pi / np.linalg.norm(pi), init_scale * above / size, pair)
    return integrate(chain, begin, t_max)


def along(parameters: Parameters, u: Float[Array, " m"]) -> RankOneStart:
    """The part of weights along u: ``W0 u``, ``W1^T u``, and ``q = W_Q^T u``, ``k = W_K^T u``."""
    W0, W1, WQ, WK = parameters.arrays
    q, k = WQ.T @ u, WK.T @ u
    return RankOneStart(W0 @ u, W1.T @ u, ScorePair(float((q + k) @ (q + k)), float((q - k) @ (q - k))))


def integrate(chain: MarkovChain, start: RankOneStart, t_max: float | None) -> RankOneTrajectory:
    """`rank_one_flow` from any point of the manifold, without checks."""
    few_tokens(chain)
    d, rate = chain.n_tokens, focus_rate(chain)
    focuses = start.scores.focuses(rate)
    # for what cannot be followed
    waits = t_max is None and focuses and 0 < abs(rate) < _RESOLVED * condensation_rate(chain)
    # where the scores have no part that grows, tau does not come to rest, and nothing depends on it
    counted = 2 * d + 1 if focuses and not waits else 2 * d
    rest = AT_REST * (abs(rate) * (counted > 2 * d) or condensation_rate(chain) or 1)

    def point(y: Array) -> RankOnePoint:
        return RankOnePoint.unchecked(chain, y[:d], y[d:-1], float(start.scores.scale(y[-1])))

    def rates(_: float, y: Array) -> Array:
        return np.concatenate(point(y).force)

    def jacobian(_: float, y: Array) -> Array:
        matrix = point(y).force_derivative
        matrix[:, -1] *= start.scores.slope(y[-1])
        return matrix

    def moves(change: Array, y: Array) -> bool:
        return bool(np.abs(change[:counted]).max() > rest * min(1.0, float(np.abs(y[:-1]).max())))

    y = np.concatenate([start.w0, start.w1, [0.0]])
    allowed = np.full(2 * d + 1, _TOLERANCE * np.abs(y).max())
    allowed[-1] = _TOLERANCE  # tau is a logarithm
    end = np.inf if t_max is None else t_max
    solver = LSODA(rates, 0.0, y, end, rtol=_TOLERANCE, atol=allowed, jac=jacobian)
    times, states, moving = [0.0], [y], t_max is not None or moves(rates(0.0, y), y)
    while solver.status == "running" and moving and len(times) <= _MOST_STEPS:
        solver.step()
        times.append(solver.t)
        states.append(solver.y.copy())
        if t_max is None and not moves((states[-1] - states[-2]) / (times[-1] - times[-2]), states[-1]):
            moving = moves(rates(solver.t, solver.y), solver.y)
    history = np.array(states)
    w0, w1, growth = history[:, :d], history[:, d:-1], history[:, -1]
    scale = start.scores.scale(growth)
    residual = float(np.abs(rates(0.0, states[-1])[:counted]).max())
    converged = residual <= rest and not waits
    trajectory = RankOneTrajectory(
        chain, np.array(times), w0, w1, scale, _losses(chain, w0, w1, scale), growth, residual, converged
    )
    if waits and not moving:
        wrong = (
            f"rank-one flow: at t = {times[-1]:g} it waits at the unigram point; lambda_2 = {rate:.1e} is so small "
            f"against lambda_1 = {condensation_rate(chain):.1e} that rounding moves the weights before focus comes"
        )
        raise ConvergenceError(wrong, trajectory, residual)
    if moving if t_max is None else solver.status != "finished":
        wrong = (
            f"rank-one flow: stopped at t = {times[-1]:g} after {len(times) - 1} steps, where it still moves; "
            f"lambda_1 = {condensation_rate(chain):.1e}, lambda_2 = {rate:.1e}"
        )
        raise ConvergenceError(wrong, trajectory, residual)
    return trajectory


def _losses(
    chain: MarkovChain, w0: Float[Array, "T d"], w1: Float[Array, "T d"], score_scale: Float[Array, " T"]
) -> Float[Array, " T"]:
    """L in nats, a few frames at a time: attention is (d, d) in each."""
    weight = chain.stationary[:, None] * chain.transition
    together = max(1, _AT_ONCE // weight.size)
    losses = []
    for j in range(0, len(w0), together):
        x0, x1, s = w0[j : j + together, :, None], w1[j : j + together, None], score_scale[j : j + together]
        a = softmax(s[:, None, None] * x0 * x0.transpose(0, 2, 1) + chain.log_stationary)
        losses.append(-(weight * log_softmax((a @ x0) * x1)[0]).sum(axis=(1, 2)))
    return np.concatenate(losses)


class RankOnePoint:
    """Loss, forces and their derivative at a point (w0, w1, s) of the rank-one manifold.

    Args:
        chain: the Markov chain.
        w0: (d,), the embeddings along u.
        w1: (d,), the projection to the logits along u.
        score_scale: s in ``z = s w0 w0^T``.

    Raises:
        ValueError: names the argument, what it must be and what it got.
    """

    def __init__(self, chain: MarkovChain, w0: ArrayLike, w1: ArrayLike, score_scale: float) -> None:
        _checks.instance("chain", chain, MarkovChain)
        embedding, projection = (
            _checks.array(name, values, (chain.n_tokens,)) for name, values in (("w0", w0), ("w1", w1))
        )
        self._set(chain, embedding, projection, _checks.real("score_scale", score_scale))

    @classmethod
    def unchecked(
        cls, chain: MarkovChain, w0: Float[Array, " d"], w1: Float[Array, " d"], score_scale: float
    ) -> "RankOnePoint":
        """The same without checks, which would take a solver a third of its time."""
        point = cls.__new__(cls)
        point._set(chain, w0, w1, score_scale)
        return point

    def _set(self, chain: MarkovChain, w0: Float[Array, " d"], w1: Float[Array, " d"], score_scale: float) -> None:
        few_tokens(chain)
        self.chain, self.w0, self.w1, self.score_scale = chain, w0, w1, score_scale
        self.attention = a = softmax(w0[:, None] * (score_scale * w0) + chain.log_stationary)
        self.x = a @ w0
        self.probabilities = softmax(self.x[:, None] * w1)
        self.residual = chain.transition - self.probabilities  # R
        self.residual *= chain.stationary[:, None]
        self.slope = self.residual @ w1  # r
        self._deviation = w0 - self.x[:, None]  # of w0_k from its mean under row i
        self._weighted = a * self._deviation
        self.variance = (self._weighted * self._deviation).sum(axis=1)

    @property
    def loss(self) -> float:
        """L in nats."""
        log_probabilities = log_softmax(self.x[:, None] * self.w1)[0]
        return float(-self.chain.stationary @ (self.chain.transition * log_probabilities).sum(axis=1))

    @property
    def output_force(self) -> Float[Array, "d d"]:
        """M = a^T R."""
        result: Array = self.attention.T @ self.residual
        return result

    @property
    def score_force(self) -> Float[Array, "d d"]:
        """``G_ik = r_i a_ik (w0_k - x_i)``."""
        result: Array = self.slope[:, None] * self._weighted
        return result

    @property
    def force(self) -> tuple[Float[Array, " d"], Float[Array, " d"], Float[Array, " 1"]]:
        """-dL/d(w0, w1, s)."""
        s, r = self.score_scale, self.slope
        pulls = r * self.w0
        by_w0 = r @ self.attention + s * (pulls @ self._weighted + r * self.variance)  # (dx/dw0)^T r
        return by_w0, self.x @ self.residual, np.array([pulls @ self.variance])

    @property
    def _x_by_w0(self) -> Float[Array, "d d"]:
        """``dx_i/dw0_k = a_ik (1 + s w0_i (w0_k - x_i)) + s delta_ik Var_i``."""
        matrix = self.attention + self.score_scale * self.w0[:, None] * self._weighted
        matrix[np.diag_indices_from(matrix)] += self.score_scale * self.variance
        return matrix

    @property
    def force_derivative(self) -> Float[Array, "2d+1 2d+1"]:
        """The derivative of `force` by (w0, w1, s): minus the Hessian of L on these coordinates. Symmetric.

        With x(w0, s) it is ``x'^T (d^2/dx^2) x'`` and, from the curvature of x, ``sum_i r_i x_i''``.
        """
        s, w0, r, a, e = self.score_scale, self.w0, self.slope, self.attention, self._deviation
        d, pi, p = len(w0), self.chain.stationary, self.probabilities
        diagonal = np.diag_indices(d)
        by_w0 = self._x_by_w0
        by_both = np.hstack([by_w0, (w0 * self.variance)[:, None]])  # dx/d(w0, s), (d, d + 1)
        mean = p @ self.w1
        spread = p @ self.w1**2 - mean**2  # variance of w1 under the predicted distribution
        force_by_x = self.residual - (pi * self.x)[:, None] * p * (self.w1 - mean[:, None])  # d(dw1_j/dt)/dx_i
        third = (self._weighted * e**2).sum(axis=1)
        variance_by_w0 = s * w0[:, None] * a * (e**2 - self.variance[:, None]) + 2 * self._weighted
        variance_by_w0[diagonal] += s * third

        by_w0_w0 = s * r[:, None] * variance_by_w0  # sum_i r_i d^2 x_i/dw0_k dw0_l, (k, l)
        score_part = 1 + s * w0[:, None] * e
        by_w0_w0 += (s * r[:, None] * self._weighted * (1 + score_part)).T
        along_row = s * (r * w0)[:, None] * a
        by_w0_w0 -= (along_row * score_part).T @ a + along_row.T @ by_w0
        by_w0_w0[diagonal] += (along_row * (1 + score_part)).sum(axis=0)

        result = np.empty((2 * d + 1, 2 * d + 1))
        outer = np.r_[0:d, 2 * d]  # the places of w0 and s
        block = -(by_both.T * (pi * spread)) @ by_both
        block[:d, :d] += by_w0_w0
        mixed = r * self.variance + (r * w0) @ variance_by_w0
        block[:d, d] += mixed
        block[d, :d] += mixed
        block[d, d] += r * w0**2 @ third
        result[np.ix_(outer, outer)] = block
        result[outer, d : 2 * d] = by_both.T @ force_by_x
        result[d : 2 * d, outer] = result[outer, d : 2 * d].T
        weighted = (pi * self.x**2)[:, None] * p
        result[d : 2 * d, d : 2 * d] = p.T @ weighted - np.diag(weighted.sum(axis=0))
        return result
