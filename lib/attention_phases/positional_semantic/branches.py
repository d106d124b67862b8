"""The branches of solutions of state evolution: their unknowns, and the equations that these solve."""

import time
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Float

from attention_phases._arrays import Array
from attention_phases.positional_semantic.averages import Averages, Point, kappa, model
from attention_phases.positional_semantic.teacher_student import Task

_VANISHING = 0.02  # overlaps below this (as cosines) are taken for zero
BRANCHES = ("semantic", "positional", "mixed", "uninformed")


class OutOfTimeError(Exception):
    """The next evaluation would take longer than is left."""


class Clock:
    """A limit on the CPU time of a search, and where the search is.

    What the next evaluation takes is reckoned from the fastest so far, in proportion to the nodes.
    """

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self.alpha, self._pace = np.nan, np.inf
        self.restart()

    def restart(self) -> None:
        """All of the time is left again."""
        self._start = time.thread_time()

    def begin(self, alpha: float, n_nodes: int) -> float:
        """Before an evaluation: the time now, or OutOfTimeError."""
        self.alpha, now = alpha, time.thread_time()
        if now - self._start + (n_nodes * self._pace if np.isfinite(self._pace) else 0) > self.limit:
            raise OutOfTimeError
        return now

    def end(self, begun: float, n_nodes: int) -> None:
        """After it."""
        self._pace = min(self._pace, (time.thread_time() - begun) / n_nodes)


class Branch:
    """The unknowns of a branch, and the equations that they solve.

    Flipping the sign of a column of h changes nothing, and so does flipping that of a column of s. A branch is
    invariant under some of these flips; what is odd under them vanishes, and the columns of h are each of one kind:
    aligned with a column of s (theta), with the positions (m), with neither, or, where r = 1, with both. This also
    fixes the gauge: rotations of Q change the kinds. What remains are the diagonals of

        Delta = V q^ V      (q = Delta + sigma^2 m m^T + theta theta^T/sigma^2)

    and V, whose logarithms are the first 2 r unknowns, and the entries of m and theta that do not vanish. Each equation
    is divided by its unknown, so that m = 0 and theta = 0, which always solve theirs, are no solutions here.
    """

    def __init__(self, task: Task, name: str, clock: Clock | None = None) -> None:
        r, t = task.student_rank, task.teacher_rank
        aligned = {"semantic": min(r, t), "positional": 0, "mixed": min(t, max(r - 1, 1)), "uninformed": 0}[name]
        place = {"semantic": None, "positional": 0, "mixed": aligned if r > 1 else 0, "uninformed": None}[name]
        self.task, self.name, self.clock = task, name, clock or Clock(np.inf)
        self.m_columns = [] if place is None else [place]
        self.theta_columns = list(range(aligned))
        self._n_logarithms, self._diagonal = 2 * r, np.diag_indices(r)
        self.size = 2 * r + len(self.m_columns) + len(self.theta_columns)
        self._is_pass = name == "mixed" and r == 1
        # the sign of det J where its own unknown governs each equation, as for large alpha; it changes at a fold, and
        # a pass has one direction more in which the map runs away
        self.orientation = (-1) ** (self.size - r + self._is_pass)

    def guess(self, alpha: float) -> Float[Array, " k"]:
        """Far from any solution, but in its basin for most tasks."""
        task = self.task
        r, variance = task.student_rank, task.sigma**2
        delta = 0.08 * variance / (1 + alpha / 10)
        V = variance / (task.regularization + 0.14 * variance**2 * alpha)
        theta = (0.1 if self._is_pass else 0.6) * variance
        overlaps = [0.28] * len(self.m_columns) + [theta] * len(self.theta_columns)
        return np.concatenate([np.full(r, np.log(delta)), np.full(r, np.log(V)), overlaps])

    def relaxed(self, x: Float[Array, " k"], defects: Float[Array, " k"]) -> Float[Array, " k"]:
        """A step towards a root along those unknowns in which damped iteration is stable, by their own equations."""
        r, split = self.task.student_rank, self._n_logarithms + len(self.m_columns)
        step = np.clip(0.5 * defects, -0.5, 0.5)
        result = x.copy()
        result[:r] += step[:r]
        result[r : self._n_logarithms] -= step[r : self._n_logarithms]
        if not self._is_pass:
            result[split:] *= 1 + step[split:]
        return result

    def point(self, x: Float[Array, " k"]) -> Point:
        """The overlaps that belong to the unknowns."""
        task = self.task
        r, t, variance = task.student_rank, task.teacher_rank, task.sigma**2
        m, theta = np.zeros(r), np.zeros((r, t))
        split = 2 * r + len(self.m_columns)
        q, V = np.zeros((2, r, r))
        if self.m_columns:
            m[self.m_columns] = x[2 * r : split]
            q += variance * m[:, None] * m
        if self.theta_columns:
            theta[self.theta_columns, self.theta_columns] = x[split:]
            q += (theta[:, None] * theta).sum(axis=-1) / variance
        delta, V[self._diagonal] = np.exp(x[: 2 * r]).reshape(2, r)
        q[self._diagonal] += delta
        return Point(q, m, V, theta)

    def unknowns(self, point: Point) -> Float[Array, " k"]:
        """The unknowns of a point that was given as a start. ValueError where it has none."""
        variance = self.task.sigma**2
        delta = np.diag(point.q - variance * np.outer(point.m, point.m) - point.theta @ point.theta.T / variance)
        V = np.diag(point.V)
        overlaps = np.concatenate([point.m[self.m_columns], point.theta[self.theta_columns, self.theta_columns]])
        if delta.min() <= 0 or V.min() <= 0:
            raise ValueError(
                "start must have V > 0 and q > sigma^2 m m^T + theta theta^T/sigma^2; "
                f"got V = {V.tolist()} and a difference of {delta.tolist()}"
            )
        if not overlaps.all():
            raise ValueError(
                f"start must have overlaps that do not vanish on the {self.name} branch; got {overlaps.tolist()}"
            )
        return np.concatenate([np.log(delta), np.log(V), overlaps])

    def cosines(self, x: Float[Array, " k"]) -> Float[Array, " overlaps"]:
        """The overlaps as cosines of Q with 1_d and Q*."""
        task, r = self.task, self.task.student_rank
        size = np.sqrt(np.diag(self.point(x).q)) / task.sigma  # |Q|/sqrt(d), by column
        split = 2 * r + len(self.m_columns)
        overlaps = np.concatenate([x[2 * r : split], x[split:] / task.sigma**2])
        return np.asarray(overlaps / size[self.m_columns + self.theta_columns])

    def exists(self, x: Float[Array, " k"]) -> bool:
        """Whether the overlaps of a root are more than noise around zero."""
        return not (self.cosines(x) < _VANISHING).any()

    def parameter_slope(self, at: "Evaluation") -> Float[Array, " k"]:
        """Derivatives of the defects with respect to log alpha, in which all hats are linear."""
        task = self.task
        result = at.values[: self.size] + 1
        V = np.exp(at.x[task.student_rank : self._n_logarithms])
        result[task.student_rank : self._n_logarithms] -= V * task.regularization / task.sigma**2
        return result

    def scale(self, x: Float[Array, " k"]) -> Float[Array, " k"]:
        """Changes of the unknowns are relative to this: 1 for logarithms, themselves for the others."""
        result = np.abs(x)
        result[: self._n_logarithms] = 1
        return result

    def defects(self, x: Float[Array, " k"], alpha: float, averages: Averages) -> Float[Array, "k R"]:
        """How far each equation is from holding, relative to its unknown, for averages over R randomisations."""
        r, penalty, variance = self.task.student_rank, self.task.regularization, self.task.sigma**2
        split = self._n_logarithms + len(self.m_columns)
        delta, V = np.exp(x[: self._n_logarithms]).reshape(2, r, 1)
        rows = [
            V**2 * alpha * averages.q_hat[self._diagonal] / delta - 1,
            V * (penalty / variance + alpha * averages.V_hat[self._diagonal]) - 1,
        ]
        if self.m_columns:
            k = self.m_columns
            rows.append(V[k] / variance * alpha * averages.m_hat[k] / x[self._n_logarithms : split, None] - 1)
        if self.theta_columns:
            k = self.theta_columns
            rows.append(V[k] * variance * alpha * averages.theta_hat[k, k] / x[split:, None] - 1)
        return np.concatenate(rows)


@dataclass(frozen=True, eq=False)
class Evaluation:
    """The equations of a branch at one point; the parameter is log alpha.

    `rows`, (k + 1, R), are by each randomisation the k defects and alpha E ell(h*); `values` are their means.
    """

    x: Float[Array, " k"]
    parameter: float
    rows: Float[Array, "k+1 R"]
    averages: Averages

    @cached_property
    def values(self) -> Float[Array, " k+1"]:
        """Means over the randomisations."""
        return np.asarray(self.rows.sum(axis=1) / self.rows.shape[1])

    @property
    def alpha(self) -> float:
        """n/d."""
        return float(np.exp(self.parameter))


class BranchEquations:
    """The equations of a branch with fixed nodes: smooth functions of the unknowns, but for q^ where h* jumps."""

    def __init__(
        self, branch: Branch, log2_nodes: int, seed: int, *, follow: float = 0.05, smooth: bool = True
    ) -> None:
        """The equations with about 2^log2_nodes nodes.

        `follow`: over what relative change of the unknowns the samples' minima are followed, not searched anew.
        `smooth`: whether averages are by parts alone, which are smooth where h* jumps, or in a mixture that scatters
        less where it does not.
        """
        self.branch, self.log2_nodes, self.seed, self._follow = branch, log2_nodes, seed, follow
        self._smooth = smooth
        self.model = model(branch.task, log2_nodes, seed)
        self.scale, self.parameter_slope = branch.scale, branch.parameter_slope
        self._by_parts: float | None = None  # the share of averages by parts, once it is chosen
        self._searched: Evaluation | None = None  # the last for which minima were searched, and not followed from it
        self.n_evaluations = 0

    def evaluate(self, x: Float[Array, " k"], parameter: float) -> Evaluation:
        """The averages at one point, and what the equations make of them."""
        self.n_evaluations += 1
        last, alpha = self._searched, float(np.exp(parameter))
        begun = self.branch.clock.begin(alpha, self.n_nodes)
        close = last is not None and np.abs((x - last.x) / self.scale(last.x)).max() < self._follow
        near = last.averages.proximal if last is not None and close else None
        averages = self.model.averages(self.branch.point(x), self._by_parts, near, self._smooth)
        if averages.by_parts:  # if none are taken by parts, some may be later, at a better point
            self._by_parts = averages.by_parts
        rows = [self.branch.defects(x, alpha, averages), alpha * averages.loss[None]]
        result = Evaluation(x, parameter, np.concatenate(rows), averages)
        if near is None:
            self._searched = result
        self.branch.clock.end(begun, self.n_nodes)
        return result

    def test_loss(self, x: Float[Array, " k"]) -> Float[Array, " R"]:
        """E ell(w) by each randomisation."""
        return self.model.test_loss(self.branch.point(x))

    def test_loss_slope(self, x: Float[Array, " k"]) -> Float[Array, " k"]:
        """Its derivatives, by differences of 1 %."""
        here = self.test_loss(x).mean()
        steps = np.diag(0.01 * self.scale(x))
        return np.array([(self.test_loss(x + step).mean() - here) / step.sum() for step in steps])

    @property
    def n_nodes(self) -> int:
        """Of all randomisations together."""
        return self.model.rule.n_nodes

    def jump_density(self, at: Evaluation) -> Float[Array, " R"]:
        """Density of w on the surfaces where two minima are equally low.

        The difference of their objectives has the gradient g - g' in w, so to first order a surface is at the distance
        difference/|g - g'|. Distances up to a width are counted, with weights that fall linearly to zero.
        """
        proximal = at.averages.proximal
        width = 0.1 * np.sqrt(
            np.trace(kappa(self.branch.task, self.branch.point(at.x))) / self.branch.task.student_rank
        )
        some = np.flatnonzero(np.isfinite(proximal.rival_objective))
        kernel = np.zeros(self.n_nodes)
        precision = np.asarray(np.linalg.inv(proximal.V), dtype=np.float64)
        gap = proximal.rival[..., some] - proximal.minimizer[..., some]
        apart = np.tensordot(precision, gap, axes=(1, 1)).swapaxes(0, 1)
        distance = (proximal.rival_objective[some] - proximal.objective[some]) / np.sqrt((apart**2).sum(axis=(0, 1)))
        kernel[some] = np.maximum(1 - distance / width, 0) / width
        return self.model.rule.means(kernel)

    def pointwise_replicon(self, at: Evaluation) -> float:
        """alpha times the spectral radius of ``X -> V E[sum_ll' J_ll' X J_ll'^T] V``, J = dg/dw, over the nodes."""
        proximal = at.averages.proximal
        r = self.branch.task.student_rank
        J = proximal.derivative  # (L, r, L, r, N)
        squares = self.model.rule.means(np.einsum("iajcN,ibjdN->abcdN", J, J)).mean(axis=-1)
        # X_cd -> V_ea [sum J_ac X_cd J_bd] V_bf
        V = proximal.V
        operator = np.einsum("ea,abcd,bf->efcd", V, squares, V).reshape(r * r, r * r)
        return float(at.alpha * np.abs(np.linalg.eigvals(operator)).max())
