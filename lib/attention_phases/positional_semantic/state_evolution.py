"""State evolution: what the minimum of the empirical risk is like as d grows, with n = alpha d samples.

Cui, Behrens, Krzakala, Zdeborova, NeurIPS 2024 (arXiv 2402.03902), Result 4.2, for isotropic tokens; any L, r, t.
Order parameters of the student: q = sigma^2 Q^T Q/d, m = Q^T 1_d/d, theta = sigma^2 Q^T Q*/d, and the response V.
A sample's local fields, given those of the teacher, s_l ~ N(0, sigma^2 I_t), are

    w_l = c_l m + theta s_l/sigma^2 + kappa^(1/2) zeta_l,    kappa = q - theta theta^T/sigma^2,    zeta_l ~ N(0, I_r),

with c_l = positions[l]. The proximal map (`proximal_map`) gives g_l, and with D = lambda + sigma^2 V^

    q^     = alpha E sum_l g_l g_l^T       q     = sigma^2 D^-1 (sigma^2 q^ + m^ m^^T + sigma^4 theta^ theta^^T) D^-1
    m^     = alpha E sum_l c_l g_l         m     = D^-1 m^
    V^     = -alpha E sum_l dg_l/dw_l      V     = sigma^2 D^-1
    theta^ = alpha E sum_l dg_l/ds_l       theta = sigma^4 D^-1 theta^.

g = -dM/dw is minus the gradient of the Moreau envelope M, the minimised objective, which is continuous where g jumps.
Gaussian integration by parts moves all derivatives onto the weights,

    m^ = -alpha kappa^(-1/2) E sum_l c_l zeta_l M,
    V^ = alpha kappa^(-1/2) E[sum_l (zeta_l zeta_l^T - 1) M] kappa^(-1/2),
    theta^ = (V^ theta - alpha kappa^(-1/2) E sum_l zeta_l s_l^T M)/sigma^2,

or, with one derivative left (Stein's form), V^ = -alpha E[sum_l g_l zeta_l^T] kappa^(-1/2) and
theta^ = (V^ theta + alpha E sum_l g_l s_l^T)/sigma^2. Both hold with jumps; the mean of the pointwise derivative does
not. On a lattice, averages of M converge about eight times faster than those of g where g jumps;
with Sobol points, or where
kappa is small, those of g are better. The solutions are the stationary points of

    epsilon_t = alpha E[min_h ...] + (tr q^ V - tr V^ q)/2 + m^ m + tr theta^^T theta
                - tr D^-1 (sigma^2 q^ + m^ m^^T + sigma^4 theta^ theta^^T)/2

in all eight variables (`free_energy`), where this equals ``alpha E ell(h*) + lambda tr q/(2 sigma^2)``.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from attention_phases import _checks
from attention_phases._blas import one_thread
from attention_phases.errors import ConvergenceError
from attention_phases.positional_semantic.proximal import ProximalPoint, proximal_map
from attention_phases.positional_semantic.quadrature import GaussianRule, lattice_rule, sobol_rule
from attention_phases.positional_semantic.sample_loss import SampleLoss
from attention_phases.positional_semantic.teacher_student import Task

Array = NDArray[np.float64]
BranchName = Literal["semantic", "positional", "mixed", "uninformed"]

_BRANCHES = ("semantic", "positional", "mixed", "uninformed")
_ROUGH = 1e-3  # relative accuracy of roots while a branch is searched and followed
_VANISHING = 0.02  # overlaps below this (as cosines) are taken for zero
_PREFERENCE = 3.0  # how much more averages by parts may scatter
_GAIN = 1.3  # errors shrink about by this many powers of two with each doubling of the nodes
_SEARCH = 12  # log2 of the number of nodes with which a branch is searched and followed
_FINEST = 21
_MOST_PLACES = 200  # on the way along a branch
_REPLICAS = 8  # independent randomisations of the nodes
_DIFFERENCES = np.array([[1.0, 1.5], [1.0, -1.5]])  # attention of two tokens varies faster with their difference


@dataclass(frozen=True, eq=False)
class Overlaps:
    """The order parameters of one point. Floats where r = t = 1, else arrays.

    Attributes:
        q: (r, r); m: (r,), the mean of the fields at position l is positions[l] m; V: (r, r); theta: (r, t).
    """

    q: float | Float[Array, "r r"]
    m: float | Float[Array, " r"]
    V: float | Float[Array, "r r"]
    theta: float | Float[Array, "r t"]


@dataclass(frozen=True, eq=False)
class _Point:
    """Overlaps as arrays."""

    q: Float[Array, "r r"]
    m: Float[Array, " r"]
    V: Float[Array, "r r"]
    theta: Float[Array, "r t"]

    @classmethod
    def of(cls, task: Task, overlaps: Overlaps) -> "_Point":
        r, t = task.student_rank, task.teacher_rank
        shapes = {"q": (r, r), "m": (r,), "V": (r, r), "theta": (r, t)}
        arrays = {}
        for name, shape in shapes.items():
            value = getattr(overlaps, name)
            if np.ndim(value) == 0 and r == t == 1:
                value = np.full(shape, _checks.real(name, value))
            arrays[name] = _checks.array(name, value, shape)
        return cls(**arrays)

    def public(self) -> Overlaps:
        if self.theta.size == 1:
            return Overlaps(float(self.q[0, 0]), float(self.m[0]), float(self.V[0, 0]), float(self.theta[0, 0]))
        return Overlaps(self.q, self.m, self.V, self.theta)


@dataclass(frozen=True, eq=False)
class _Averages:
    """The averages over a sample that the equations need, by each of R randomisations; hats are per unit of alpha."""

    q_hat: Float[Array, "r r R"]
    m_hat: Float[Array, "r R"]
    V_hat: Float[Array, "r r R"]
    theta_hat: Float[Array, "r t R"]
    loss: Float[Array, " R"]  # E ell(h*)
    envelope: Float[Array, " R"]  # E of the minimised objective
    test_loss: Float[Array, " R"]  # E ell(w)
    by_parts: bool  # the form in which they were taken
    proximal: ProximalPoint


class _Model:
    """The nodes of a task, and the teacher's answers at them."""

    def __init__(self, task: Task, rule: GaussianRule) -> None:
        r, t, n_tokens = task.student_rank, task.teacher_rank, task.n_tokens
        self.task, self.rule = task, rule
        nodes = rule.nodes.reshape(n_tokens, r + t, -1)
        self.zeta = np.ascontiguousarray(nodes[:, :r])
        self.teacher_fields = task.sigma * nodes[:, r:]  # (L, t, N)
        teacher = np.ascontiguousarray(
            np.moveaxis(task.teacher_attention(np.moveaxis(self.teacher_fields, -1, 0)), 0, -1)
        )
        variance = task.sigma**2
        self.loss = SampleLoss(
            variance * np.eye(n_tokens)[..., None], variance * teacher, variance * (teacher**2).sum(axis=(0, 1))
        )

    def fields(self, point: _Point) -> Float[Array, "L r N"]:
        """w at each node."""
        task = self.task
        root = _root(_kappa(task, point))
        w = _apply(root, self.zeta)
        if point.theta.any():
            w += _apply(point.theta / task.sigma**2, self.teacher_fields)
        w += task.positions[:, None, None] * point.m[:, None]
        return w

    def averages(self, point: _Point, by_parts: bool | None = None, near: ProximalPoint | None = None) -> _Averages:
        """The averages at one point; by_parts says in which form (module docstring).

        None: by parts, which is smooth, if it scatters little more than the other.
        """
        task, variance, means = self.task, self.task.sigma**2, self.rule.means
        inverse_root = np.linalg.inv(_root(_kappa(task, point)))
        fields = self.fields(point)
        proximal = proximal_map(fields, self.loss, point.V, near)
        g = proximal.residual
        quadratic = 0.5 * _trace_products(_apply(proximal.V, g), g)
        envelope, loss = means(np.stack([proximal.objective, proximal.objective - quadratic]))
        forms: dict[bool, tuple[Array, Array]] = {}  # V^, and what stands for -g in m^ and theta^
        if by_parts is not True:
            V_hat = np.einsum("abR,bc->acR", -means(_products(g, self.zeta)), inverse_root)
            forms[False] = (V_hat + V_hat.swapaxes(0, 1)) / 2, -g
        if by_parts is not False:
            weighted = (proximal.objective - envelope.mean()) * self.zeta
            mass = task.n_tokens * (envelope - envelope.mean()) * np.eye(task.student_rank)[..., None]
            curvature = means(_products(weighted, self.zeta)) - mass
            V_hat = np.einsum("ab,bcR,cd->adR", inverse_root, curvature, inverse_root)
            forms[True] = V_hat, np.tensordot(inverse_root, weighted, axes=(1, 1)).swapaxes(0, 1)
        scatter = {form: float(V_hat.std(axis=-1).sum()) for form, (V_hat, _) in forms.items()}
        chosen = True in forms and scatter[True] < _PREFERENCE * scatter.get(False, np.inf)
        V_hat, minus_g = forms[chosen]
        theta_hat = np.einsum("abR,bt->atR", V_hat, point.theta) - means(_products(minus_g, self.teacher_fields))
        return _Averages(
            q_hat=means(_products(g, g)),
            m_hat=-means(np.tensordot(task.positions, minus_g, axes=1)),
            V_hat=V_hat,
            theta_hat=theta_hat / variance,
            loss=loss,
            envelope=envelope,
            test_loss=means(self.loss.value(fields)),
            by_parts=chosen,
            proximal=proximal,
        )


def _kappa(task: Task, point: _Point) -> Float[Array, "r r"]:
    return point.q - point.theta @ point.theta.T / task.sigma**2


def _root(matrix: Float[Array, "r r"]) -> Float[Array, "r r"]:
    """Symmetric square root of a positive definite matrix."""
    values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
    if values[0] <= 0:
        raise ValueError(
            f"q must exceed theta theta^T/sigma^2; the lowest eigenvalue of the difference is {values[0]:.3g}"
        )
    return np.asarray((vectors * np.sqrt(values)) @ vectors.T)


def _apply(matrix: Float[Array, "r s"], fields: Float[Array, "L s N"]) -> Float[Array, "L r N"]:
    """The matrix times each token's vector."""
    if matrix.size == 1:
        return np.asarray(matrix[0, 0] * fields)
    return np.asarray(np.tensordot(matrix, fields, axes=(1, 1)).swapaxes(0, 1))


def _products(a: Float[Array, "L r N"], b: Float[Array, "L s N"]) -> Float[Array, "r s N"]:
    """sum_l a_l b_l^T of each sample."""
    return np.asarray((a[:, :, None] * b[:, None]).sum(axis=0))


def _trace_products(a: Float[Array, "L r N"], b: Float[Array, "L r N"]) -> Float[Array, " N"]:
    return np.asarray((a * b).sum(axis=(0, 1)))


@lru_cache(maxsize=16)
def _model(task: Task, log2_nodes: int, seed: int) -> _Model:
    """About 2^log2_nodes nodes, in `_REPLICAS` independent randomisations, closed under zeta -> -zeta.

    Under that flip m^ and theta^ are odd in m and theta together, as they are in the exact average.
    """
    r, t, n_tokens = task.student_rank, task.teacher_rank, task.n_tokens
    dimension = n_tokens * (r + t)
    rng = np.random.default_rng([seed, log2_nodes])
    each = log2_nodes - 1 - int(np.log2(_REPLICAS))
    if dimension == 4:
        rule = lattice_rule(dimension, each, _REPLICAS, rng, np.kron(_DIFFERENCES, np.eye(2)))
    else:
        rule = sobol_rule(dimension, each, _REPLICAS, rng)
    signs = np.tile(np.repeat([-1.0, 1.0], [r, t]), n_tokens)
    return _Model(task, rule.closed_under(signs))


@one_thread
def state_evolution_step(
    task: Task, alpha: float, overlaps: Overlaps, *, log2_nodes: int = 16, seed: int = 0
) -> Overlaps:
    """One application of the map, undamped, with about 2^log2_nodes nodes.

    Raises:
        ValueError: names the argument, what it must be and what it got.
    """
    if not isinstance(task, Task):
        raise ValueError(f"task must be a Task; got {_checks.shown(task)}")
    alpha = _checks.real("alpha", alpha, 0, open_low=True)
    log2_nodes = _checks.integer("log2_nodes", log2_nodes, 8, _FINEST)
    seed = _checks.integer("seed", seed, 0)
    point = _Point.of(task, overlaps)
    averages = _model(task, log2_nodes, seed).averages(point)
    return _step(task, alpha, averages).public()


@one_thread
def map_eigenvalues(
    task: Task, alpha: float, overlaps: Overlaps, *, log2_nodes: int = 14, seed: int = 0
) -> Float[NDArray[np.complex128], " k"]:
    """Eigenvalues of the map's derivative at one point, largest modulus first, in all its order parameters.

    Where they belong to a fixed point and some modulus exceeds 1, undamped iteration leaves it; one that passes through
    1 as alpha changes marks the end of the branch. Differences of 1 %, 2^log2_nodes nodes: good to a per cent.

    Raises:
        ValueError: names the argument, what it must be and what it got.
    """
    point = _Point.of(task, overlaps)
    upper = np.triu_indices(task.student_rank)

    def flat(place: _Point) -> Array:
        return np.concatenate([place.q[upper], place.m, place.V[upper], place.theta.ravel()])

    def shaped(values: Array) -> Overlaps:
        split = np.cumsum([len(upper[0]), len(point.m), len(upper[0])])
        q, m, V, theta = np.split(values, split)
        full = [np.zeros_like(point.q), np.zeros_like(point.V)]
        for matrix, entries in zip(full, (q, V), strict=True):
            matrix[upper] = entries
            matrix.T[upper] = entries
        return _Point(full[0], m, full[1], theta.reshape(point.theta.shape)).public()

    here = flat(point)
    root = float(np.sqrt(np.trace(point.q)))
    size = _Point(
        np.full_like(point.q, root**2),
        np.full_like(point.m, root / task.sigma),
        np.full_like(point.V, np.trace(point.V)),
        np.full_like(point.theta, root * task.sigma),
    )
    columns = []
    for index, step in enumerate(0.01 * flat(size)):
        ends = []
        for sign in (1, -1):
            shifted = here.copy()
            shifted[index] += sign * step
            moved = state_evolution_step(task, alpha, shaped(shifted), log2_nodes=log2_nodes, seed=seed)
            ends.append(flat(_Point.of(task, moved)))
        columns.append((ends[0] - ends[1]) / (2 * step))
    values = np.linalg.eigvals(np.stack(columns, axis=1))
    return np.asarray(values[np.argsort(-np.abs(values))], dtype=np.complex128)


def _step(task: Task, alpha: float, averages: _Averages) -> _Point:
    variance = task.sigma**2
    q_hat, m_hat, V_hat, theta_hat = (
        alpha * part.mean(axis=-1) for part in (averages.q_hat, averages.m_hat, averages.V_hat, averages.theta_hat)
    )
    D = task.regularization * np.eye(task.student_rank) + variance * V_hat
    inverse = np.linalg.inv(D)
    spread = variance * q_hat + np.outer(m_hat, m_hat) + variance**2 * theta_hat @ theta_hat.T
    return _Point(
        variance * inverse @ spread @ inverse, inverse @ m_hat, variance * inverse, variance**2 * inverse @ theta_hat
    )


class _Branch:
    """The unknowns of a branch, and the equations that they solve.

    Flipping the sign of a column of h changes nothing, and so does flipping that of a column of s. A branch is
    invariant under some of these flips; what is odd under them vanishes, and the columns of h are each of one kind:
    aligned with a column of s (theta), with the positions (m), with neither, or, where r = 1, with both. This also
    fixes the gauge: rotations of Q change the kinds. What remains are the diagonals of

        Delta = V q^ V      (q = Delta + sigma^2 m m^T + theta theta^T/sigma^2)

    and V, whose logarithms are the first 2 r unknowns, and the entries of m and theta that do not vanish. Each equation
    is divided by its unknown, so that m = 0 and theta = 0, which always solve theirs, are no solutions here.
    """

    def __init__(self, task: Task, name: str) -> None:
        r, t = task.student_rank, task.teacher_rank
        aligned = {"semantic": min(r, t), "positional": 0, "mixed": min(t, max(r - 1, 1)), "uninformed": 0}[name]
        place = {"semantic": None, "positional": 0, "mixed": aligned if r > 1 else 0, "uninformed": None}[name]
        self.task, self.name = task, name
        self.m_columns = [] if place is None else [place]
        self.theta_columns = list(range(aligned))
        self.n_logarithms = 2 * r
        self.size = 2 * r + len(self.m_columns) + len(self.theta_columns)
        # the sign of det J where its own unknown governs each equation, as for large alpha; it changes at a fold
        self.orientation = (-1) ** (self.size - r)

    def guess(self, alpha: float) -> Float[Array, " k"]:
        """Far from any solution, but in its basin for most tasks."""
        task = self.task
        r, variance = task.student_rank, task.sigma**2
        delta = 0.05 * variance / (1 + alpha / 10)
        V = variance / (3 * task.regularization + 0.1 * variance**2 * alpha)
        overlaps = [0.28] * len(self.m_columns) + [0.6 * variance] * len(self.theta_columns)
        return np.concatenate([np.full(r, np.log(delta)), np.full(r, np.log(V)), overlaps])

    def point(self, x: Float[Array, " k"]) -> _Point:
        task = self.task
        r, t, variance = task.student_rank, task.teacher_rank, task.sigma**2
        m, theta = np.zeros(r), np.zeros((r, t))
        split = 2 * r + len(self.m_columns)
        m[self.m_columns] = x[2 * r : split]
        theta[self.theta_columns, self.theta_columns] = x[split:]
        q = np.diag(np.exp(x[:r])) + variance * np.outer(m, m) + theta @ theta.T / variance
        return _Point(q, m, np.diag(np.exp(x[r : 2 * r])), theta)

    def unknowns(self, point: _Point) -> Float[Array, " k"]:
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

    def natural(self, x: Float[Array, " k"]) -> Float[Array, " k"]:
        """The unknowns in the coordinates in which a branch is followed: overlaps as cosines of Q with 1_d and Q*."""
        task, r = self.task, self.task.student_rank
        size = np.sqrt(np.diag(self.point(x).q)) / task.sigma  # |Q|/sqrt(d), by column
        cosines = np.concatenate(
            [x[2 * r : 2 * r + len(self.m_columns)], x[2 * r + len(self.m_columns) :] / task.sigma**2]
        )
        columns = self.m_columns + self.theta_columns
        return np.concatenate([x[: 2 * r], cosines / size[columns]])

    def alpha_slope(self, at: "_Evaluation") -> Float[Array, " k"]:
        """Derivatives of the defects with respect to log alpha, in which all hats are linear."""
        task = self.task
        result = at.defect + 1
        V = np.exp(at.x[task.student_rank : self.n_logarithms])
        result[task.student_rank : self.n_logarithms] -= V * task.regularization / task.sigma**2
        return result

    def scale(self, x: Float[Array, " k"]) -> Float[Array, " k"]:
        """Changes of the unknowns are relative to this: 1 for logarithms, themselves for the others."""
        return np.concatenate([np.ones(self.n_logarithms), np.abs(x[self.n_logarithms :])])

    def defects(self, x: Float[Array, " k"], alpha: float, averages: _Averages) -> Float[Array, "k R"]:
        """How far each equation is from holding, relative to its unknown, for averages over R randomisations."""
        task, point = self.task, self.point(x)
        variance = task.sigma**2
        V, delta = np.diag(point.V)[:, None], np.exp(x[: task.student_rank])[:, None]
        diagonal = np.arange(task.student_rank)
        rows = [
            V**2 * alpha * averages.q_hat[diagonal, diagonal] / delta - 1,
            V * (task.regularization / variance + alpha * averages.V_hat[diagonal, diagonal]) - 1,
        ]
        if self.m_columns:
            k = self.m_columns
            rows.append(V[k] / variance * alpha * averages.m_hat[k] / point.m[k, None] - 1)
        if self.theta_columns:
            k = self.theta_columns
            rows.append(V[k] * variance * alpha * averages.theta_hat[k, k] / point.theta[k, k][:, None] - 1)
        return np.concatenate(rows)


@dataclass(frozen=True, eq=False)
class _Evaluation:
    """The equations at one point. Rows: the k defects, alpha E ell(h*), E ell(w)."""

    x: Float[Array, " k"]
    alpha: float
    rows: Float[Array, "k+2 R"]
    averages: _Averages

    @property
    def defect(self) -> Float[Array, " k"]:
        result: Array = self.rows[:-2].mean(axis=1)
        return result


class _Equations:
    """The equations of a branch with fixed nodes: smooth functions of the unknowns, but for q^ where h* jumps."""

    def __init__(self, branch: _Branch, log2_nodes: int, seed: int, follow: float = 0.05) -> None:
        """`follow`: over what relative change of the unknowns the samples' minima are followed, not searched anew."""
        self.branch, self.seed, self._follow = branch, seed, follow
        self._model = _model(branch.task, log2_nodes, seed)
        self._by_parts: bool | None = None  # once averages are taken by parts, they stay so
        self._searched: _Evaluation | None = None  # the last for which minima were searched, and not followed from it
        self.n_evaluations = 0

    def evaluate(self, x: Float[Array, " k"], alpha: float) -> _Evaluation:
        self.n_evaluations += 1
        last = self._searched
        close = last is not None and np.abs((x - last.x) / self.branch.scale(last.x)).max() < self._follow
        near = last.averages.proximal if last is not None and close else None
        averages = self._model.averages(self.branch.point(x), self._by_parts, near)
        self._by_parts = averages.by_parts or None
        rows = [self.branch.defects(x, alpha, averages), alpha * averages.loss[None], averages.test_loss[None]]
        result = _Evaluation(x, alpha, np.concatenate(rows), averages)
        if near is None:
            self._searched = result
        return result

    def jacobian(self, at: _Evaluation) -> Float[Array, "k+2 k"]:
        """Derivatives of all rows, by differences of 1 %: wide for the steps of q^, and exact enough."""
        scale = 0.01 * self.branch.scale(at.x)
        columns = []
        for i, step in enumerate(scale):
            shifted = at.x.copy()
            shifted[i] += step
            columns.append((self.evaluate(shifted, at.alpha).rows - at.rows).mean(axis=1) / step)
        return np.stack(columns, axis=1)

    @property
    def n_nodes(self) -> int:
        return self._model.rule.n_nodes

    def jump_density(self, at: _Evaluation) -> Float[Array, " R"]:
        """Density of w on the surfaces where two minima are equally low.

        The difference of their objectives has the gradient g - g' in w, so to first order a surface is at the distance
        difference/|g - g'|. Distances up to a width are counted, with weights that fall linearly to zero.
        """
        proximal = at.averages.proximal
        width = 0.1 * np.sqrt(
            np.trace(_kappa(self.branch.task, self.branch.point(at.x))) / self.branch.task.student_rank
        )
        some = np.flatnonzero(np.isfinite(proximal.rival_objective))
        kernel = np.zeros(self.n_nodes)
        precision = np.asarray(np.linalg.inv(proximal.V), dtype=np.float64)
        apart = _apply(precision, proximal.rival[..., some] - proximal.minimizer[..., some])
        distance = (proximal.rival_objective[some] - proximal.objective[some]) / np.sqrt(_trace_products(apart, apart))
        kernel[some] = np.maximum(1 - distance / width, 0) / width
        return self._model.rule.means(kernel)

    def pointwise_replicon(self, at: _Evaluation) -> float:
        proximal = at.averages.proximal
        r = self.branch.task.student_rank
        J = proximal.derivative  # (L, r, L, r, N)
        squares = self._model.rule.means(np.einsum("iajcN,ibjdN->abcdN", J, J)).mean(axis=-1)
        # X_cd -> V_ea [sum J_ac X_cd J_bd] V_bf
        V = proximal.V
        operator = np.einsum("ea,abcd,bf->efcd", V, squares, V).reshape(r * r, r * r)
        return float(at.alpha * np.abs(np.linalg.eigvals(operator)).max())

    def solve(
        self, start: _Evaluation, jacobian: Float[Array, "k+2 k"], tolerance: float, max_steps: int = 12
    ) -> tuple[_Evaluation, Float[Array, "k+2 k"], bool]:
        """Newton's method with Broyden's updates of the Jacobian, and a new one where progress is slow.

        It ends when the next step is below the tolerance, relative to `_Branch.scale`.
        """
        at, size = start, self.branch.size
        for count in range(max_steps):
            try:
                step = np.linalg.solve(jacobian[:size], -at.defect)
            except np.linalg.LinAlgError:
                return at, jacobian, False
            scale = self.branch.scale(at.x)
            relative = float(np.abs(step / scale).max())
            if relative <= tolerance:
                return at, jacobian, True
            step *= min(1.0, 0.5 / relative)
            new = self.evaluate(at.x + step, at.alpha)
            change = (new.rows - at.rows).mean(axis=1)
            weighted = step / scale**2
            jacobian = jacobian + np.outer(change - jacobian @ step, weighted / (weighted @ step))
            slow = np.abs(new.defect).max() > 0.3 * np.abs(at.defect).max()
            at = new
            if slow and count % 4 == 3:
                jacobian = self.jacobian(at)
        return at, jacobian, False


class NoSuchPointError(ConvergenceError):
    """The branch was followed towards the alpha that was asked for, and ends before. `last`: the last Overlaps on it.

    Attributes:
        alpha: where it ends.
        reason: "fold" (it turns back there, and the Jacobian is singular) or "vanishes" (its overlaps go to zero).
    """

    def __init__(self, message: str, last: Any, residual: float, alpha: float, reason: str) -> None:
        super().__init__(message, last, residual)
        self.alpha = alpha
        self.reason = reason


@dataclass(frozen=True, eq=False)
class FixedPoint:
    """A solution of state evolution. Floats where r = t = 1, else arrays shaped as in `Overlaps`.

    Attributes:
        task, alpha, branch: what was solved.
        q, m, V, theta: the order parameters. What vanishes by the branch's symmetry is exactly zero.
        train_loss: epsilon_t = alpha E ell(h*) + lambda tr q/(2 sigma^2).
        test_error: epsilon_g = E ell(w).
        free_energy: the variational formula of epsilon_t (module docstring): the same number by another road.
        standard_error: by name, of the numbers above and of jump_density: how far the value may be from that of exact
            averages, from the scatter of independent randomisations of the nodes. Of errors of the replica-symmetric
            theory it knows nothing.
        residual: the largest relative change of an order parameter under one more step of the map, undamped.
        converged: whether the equations hold at these nodes to a twentieth of the accuracy that was asked for.
        jump_density: density of the fields w on the surfaces where h* jumps: the probability that w is within a
            distance epsilon of one is ``2 epsilon jump_density`` for small epsilon.
        pointwise_replicon: alpha times the spectral radius of ``X -> V E[sum_ll' J_ll' X J_ll'^T] V``, with
            J_ll' = dg_l/dw_l', over the nodes, none of which is on a jump.
        replicon: the same for the exact average, which is infinite where h* jumps (the square of a step's derivative):
            here where jump_density exceeds three of its standard errors. Below 1 replica symmetry is stable.
        n_nodes, n_evaluations: how many nodes, and how many evaluations of the map with however many nodes.
    """

    task: Task
    alpha: float
    branch: str
    q: float | Array
    m: float | Array
    V: float | Array
    theta: float | Array
    train_loss: float
    test_error: float
    free_energy: float
    standard_error: dict[str, Any]
    residual: float
    converged: bool
    jump_density: float
    pointwise_replicon: float
    replicon: float
    n_nodes: int
    n_evaluations: int

    @property
    def overlaps(self) -> Overlaps:
        """The order parameters alone, as `state_evolution_step` takes them."""
        return Overlaps(self.q, self.m, self.V, self.theta)


@one_thread
def solve_state_evolution(
    task: Task,
    alpha: float,
    branch: BranchName = "semantic",
    start: FixedPoint | Overlaps | None = None,
    *,
    accuracy: float = 2e-3,
    seed: int = 0,
    must_converge: bool = True,
) -> FixedPoint:
    """A fixed point of state evolution on one branch.

    Branches: "semantic" (theta != 0 = m), "positional" (m != 0 = theta), "uninformed" (both 0), "mixed" (for r > 1 the
    first columns are aligned with the teacher and the next one with the positions; for r = 1 the one column with both).
    theta and m are then non-negative where their sign is free, theta is diagonal, q and V are diagonal.

    The root is found by Newton's method, with few nodes first and then with as many as the accuracy takes. Where it
    does not come out on the branch that was asked for, the branch is followed in alpha from where it does.

    Args:
        task: what is learned from what.
        alpha: n/d, > 0.
        branch: its name.
        start: a point nearby, such as the solution at another alpha.
        accuracy: largest relative standard error of order parameters (those that do not vanish) and of both errors.
        seed: whole number; fixes the nodes.
        must_converge: whether to raise where the equations are not solved, or to return with ``converged=False``.

    Raises:
        ValueError: names the argument, what it must be and what it got.
        NoSuchPointError: the branch does not reach this alpha; it was followed to where it ends.
        ConvergenceError: no solution was found, and that there is none was not shown (`last` is None); or the accuracy
            was not reached with 2^21 nodes (`last` is the FixedPoint, `residual` its residual).
    """
    if not isinstance(task, Task):
        raise ValueError(f"task must be a Task; got {_checks.shown(task)}")
    alpha = _checks.real("alpha", alpha, 0, open_low=True)
    name = _checks.choice("branch", branch, _BRANCHES)
    accuracy = _checks.real("accuracy", accuracy, 1e-6, 0.1)
    seed = _checks.integer("seed", seed, 0)
    equations = _Equations(_Branch(task, name), _SEARCH, seed, follow=0.5)
    if start is None:
        at, jacobian = _find(equations, alpha)
    else:
        overlaps = start.overlaps if isinstance(start, FixedPoint) else start
        first = equations.evaluate(equations.branch.unknowns(_Point.of(task, overlaps)), alpha)
        found = _on_branch(equations, *equations.solve(first, equations.jacobian(first), _ROUGH))
        at, jacobian = found or _find(equations, alpha)
    return _refine(equations, at, jacobian, accuracy, seed, must_converge)


_Found = tuple[_Evaluation, Float[Array, "k+2 k"]]


def _on_branch(
    equations: _Equations, at: _Evaluation, jacobian: Float[Array, "k+2 k"], converged: bool
) -> _Found | None:
    """The root, if it is on this branch: not on its continuation beyond a fold, nor with overlaps that are noise."""
    branch = equations.branch
    overlaps = branch.natural(at.x)[branch.n_logarithms :]
    if not converged or (overlaps < _VANISHING).any():
        return None
    sign = np.sign(np.linalg.det(jacobian[: branch.size]))
    return (at, jacobian) if sign == branch.orientation else None


def _newton_from_guess(equations: _Equations, alpha: float) -> _Found | None:
    """A root of this branch from the guess, after a few steps that bring Delta and V to their scales."""
    branch = equations.branch
    r = branch.task.student_rank
    at = equations.evaluate(branch.guess(alpha), alpha)
    for _ in range(5):
        x = at.x.copy()
        x[:r] += np.clip(0.5 * at.defect[:r], -0.5, 0.5)
        x[r : 2 * r] -= np.clip(0.5 * at.defect[r : 2 * r], -0.5, 0.5)
        at = equations.evaluate(x, alpha)
    return _on_branch(equations, *equations.solve(at, equations.jacobian(at), _ROUGH))


def _find(equations: _Equations, alpha: float) -> _Found:
    """The branch at this alpha: directly, or followed from another alpha."""
    found = _newton_from_guess(equations, alpha)
    if found is not None:
        return found
    end: NoSuchPointError | None = None
    for factor in (2.0, 0.5, 4.0, 0.25, 8.0, 0.125):
        found = _newton_from_guess(equations, factor * alpha)
        if found is None:
            continue
        try:
            return _follow(_Equations(equations.branch, _SEARCH, equations.seed), found, alpha)
        except NoSuchPointError as error:
            end = end or error
    if end is not None:
        raise end
    raise ConvergenceError(
        f"no {equations.branch.name} solution was found at alpha = {alpha:g}, nor from alpha/8 to 8 alpha",
        last=None,
        residual=np.inf,
    )


def _follow(equations: _Equations, start: _Found, alpha: float) -> _Found:
    """Follow a branch from a root to another alpha, by pseudo-arclength continuation.

    Raises:
        NoSuchPointError: it turns back before.
        ConvergenceError: it was lost on the way.
    """
    target = np.log(alpha)
    for before, after in _walk(equations, start, np.sign(target - np.log(start[0].alpha))):
        if (np.log(after.at.alpha) - target) * (np.log(before.at.alpha) - target) <= 0:
            nearer = min(before, after, key=lambda place: abs(np.log(place.at.alpha) - target))
            at = equations.evaluate(nearer.at.x, alpha)
            at, jacobian, converged = equations.solve(at, equations.jacobian(at), _ROUGH)
            if converged:
                return at, jacobian
            break
        if after.direction != before.direction:
            end = _turning_point(before, after)
            overlaps = equations.branch.natural(after.at.x)[equations.branch.n_logarithms :]
            reason = "vanishes" if (overlaps < 5 * _VANISHING).any() else "fold"
            raise NoSuchPointError(
                f"the {equations.branch.name} branch does not exist at alpha = {alpha:g}: followed from "
                f"alpha = {start[0].alpha:g}, it ends at about {end:.4g} ({reason})",
                last=equations.branch.point(before.at.x).public(),
                residual=float(np.abs(before.at.defect).max()),
                alpha=end,
                reason=reason,
            )
    raise ConvergenceError(
        f"the {equations.branch.name} branch could not be followed from alpha = {start[0].alpha:g} to {alpha:g}; "
        "whether it exists there is not known",
        last=None,
        residual=np.inf,
    )


@dataclass(frozen=True, eq=False)
class _Place:
    """A point of a branch: a root, the Jacobian there, and the unit tangent (scaled unknowns, then log alpha)."""

    at: _Evaluation
    jacobian: Float[Array, "k+2 k"]
    tangent: Float[Array, " k+1"]
    scale: Float[Array, " k"]

    @property
    def direction(self) -> float:
        """Whether alpha rises or falls along the tangent."""
        return float(np.sign(self.tangent[-1]))


def _turning_point(before: _Place, after: _Place) -> float:
    """alpha where the tangent turns, from the cubic in arc length that has both places' log alpha and slopes."""
    a, b = before.tangent[-1], after.tangent[-1]
    rise = np.log(after.at.alpha / before.at.alpha)
    arc = float(np.linalg.norm(np.append((after.at.x - before.at.x) / before.scale, rise)))
    u = np.linspace(0, 1, 1001)
    cubic = (u - 2 * u**2 + u**3) * arc * a + (3 * u**2 - 2 * u**3) * rise + (u**3 - u**2) * arc * b
    return float(before.at.alpha * np.exp(cubic.max() if a > 0 else cubic.min()))


def _walk(equations: _Equations, start: _Found, direction: float) -> Iterator[tuple[_Place, _Place]]:
    """Pairs of neighbouring places along the branch, leaving the start with alpha rising (+1) or falling (-1)."""
    branch, size = equations.branch, equations.branch.size
    scale = branch.scale(start[0].x)

    def place(at: _Evaluation, jacobian: Float[Array, "k+2 k"], towards: Float[Array, " k+1"]) -> _Place:
        wide = np.column_stack([jacobian[:size] * scale, branch.alpha_slope(at)])
        tangent = np.linalg.svd(wide).Vh[-1]
        return _Place(at, jacobian, tangent * (1 if tangent @ towards > 0 else -1), scale)

    here = place(*start, np.append(np.zeros(size), direction))
    length = 0.1
    for _ in range(_MOST_PLACES):
        there = None
        while there is None:
            guess = np.append(here.at.x / scale, np.log(here.at.alpha)) + length * here.tangent
            corrected = _correct(equations, guess, here.tangent, scale)
            if corrected is not None:
                there = place(*corrected, here.tangent)
                if there.tangent @ here.tangent < 0.8:  # too sharp a bend for one step
                    there = None
            if there is None:
                length /= 2
                if length < 1e-3:
                    return
        yield here, there
        here = there
        length = min(1.5 * length, 0.4)


def _correct(
    equations: _Equations, guess: Float[Array, " k+1"], tangent: Float[Array, " k+1"], scale: Float[Array, " k"]
) -> _Found | None:
    """The root nearest to a guess in the plane through it that is normal to the tangent."""
    size = equations.branch.size
    where = guess.copy()
    at = equations.evaluate(where[:size] * scale, float(np.exp(where[-1])))
    jacobian = equations.jacobian(at)
    for _ in range(6):
        bordered = np.vstack([np.column_stack([jacobian[:size] * scale, equations.branch.alpha_slope(at)]), tangent])
        step = np.linalg.solve(bordered, np.append(-at.defect, 0.0))
        if not np.isfinite(step).all() or np.abs(step).max() > 1:
            return None
        where = where + step
        at = equations.evaluate(where[:size] * scale, float(np.exp(where[-1])))
        if np.abs(step).max() < _ROUGH:
            return at, equations.jacobian(at)
    return None


def _refine(
    equations: _Equations,
    at: _Evaluation,
    jacobian: Float[Array, "k+2 k"],
    accuracy: float,
    seed: int,
    must_converge: bool,
) -> FixedPoint:
    """The root with as many nodes as the accuracy takes: more by what the errors so far suggest, until it is enough."""
    branch, n_evaluations = equations.branch, equations.n_evaluations
    log2_nodes, worst = _SEARCH, _worst_error(_fixed_point(equations, at, jacobian, True, 0))
    while True:
        log2_nodes = min(_FINEST, log2_nodes + max(1, round(float(np.log2(worst / accuracy)) / _GAIN + 0.3)))
        finer = _Equations(branch, log2_nodes, seed)
        at, jacobian, converged = finer.solve(finer.evaluate(at.x, at.alpha), jacobian, accuracy / 20)
        n_evaluations += finer.n_evaluations
        point = _fixed_point(finer, at, jacobian, converged, n_evaluations)
        worst = _worst_error(point)
        if not converged or worst <= accuracy or log2_nodes >= _FINEST:
            break
    if must_converge and not (converged and worst <= accuracy):
        what = f"relative standard error {worst:.2g}" if converged else f"residual {point.residual:.2g}"
        raise ConvergenceError(
            f"the {branch.name} solution at alpha = {at.alpha:g} did not reach accuracy {accuracy:g}: {what} "
            f"with {point.n_nodes} nodes",
            last=point,
            residual=point.residual,
        )
    return point


def _worst_error(point: FixedPoint) -> float:
    """The largest relative standard error of what does not vanish."""
    worst = 0.0
    for name in ("q", "m", "V", "theta", "train_loss", "test_error"):
        values, errors = np.atleast_1d(getattr(point, name)), np.atleast_1d(point.standard_error[name])
        some = values != 0
        worst = max(worst, float((errors[some] / np.abs(values[some])).max(initial=0)))
    return worst


def _fixed_point(
    equations: _Equations, at: _Evaluation, jacobian: Float[Array, "k+2 k"], converged: bool, n_evaluations: int
) -> FixedPoint:
    branch, task, size = equations.branch, equations.branch.task, equations.branch.size
    variance = task.sigma**2
    point = branch.point(at.x)
    # to first order, the root that the nodes of one randomisation alone would give
    dx = -np.linalg.solve(jacobian[:size], at.rows[:size] - at.rows[:size].mean(axis=1, keepdims=True))
    d_rows = at.rows[size:] - at.rows[size:].mean(axis=1, keepdims=True) + jacobian[size:] @ dx
    shifted = [branch.point(at.x + column) for column in dx.T]
    errors: dict[str, Any] = {
        name: _standard_error(np.stack([getattr(other, name) for other in shifted], axis=-1))
        for name in ("q", "m", "V", "theta")
    }
    trace_q = np.array([np.trace(other.q) for other in shifted])
    penalty = task.regularization / (2 * variance)
    errors["train_loss"] = float(_standard_error(d_rows[0] + penalty * trace_q))
    errors["test_error"] = float(_standard_error(d_rows[1]))
    errors["free_energy"] = float(_standard_error(at.alpha * at.averages.envelope))
    density = equations.jump_density(at)
    replicon = equations.pointwise_replicon(at)
    errors["jump_density"] = float(_standard_error(density))
    if task.student_rank == task.teacher_rank == 1:
        errors |= {name: float(errors[name].item()) for name in ("q", "m", "V", "theta")}
    public = point.public()
    jumps = density.mean() > 3 * errors["jump_density"]
    return FixedPoint(
        task=task,
        alpha=at.alpha,
        branch=branch.name,
        q=public.q,
        m=public.m,
        V=public.V,
        theta=public.theta,
        train_loss=float(at.rows[size].mean() + penalty * np.trace(point.q)),
        test_error=float(at.rows[size + 1].mean()),
        free_energy=_free_energy(task, at.alpha, point, at.averages),
        standard_error=errors,
        residual=_residual(task, at.alpha, point, at.averages),
        converged=converged,
        jump_density=float(density.mean()),
        pointwise_replicon=replicon,
        replicon=np.inf if jumps else replicon,
        n_nodes=equations.n_nodes,
        n_evaluations=n_evaluations,
    )


def _standard_error(values: Float[Array, "*k R"]) -> Float[Array, " *k"]:
    return np.asarray(values.std(axis=-1, ddof=1) / np.sqrt(values.shape[-1]))


def _residual(task: Task, alpha: float, point: _Point, averages: _Averages) -> float:
    """The largest relative change of a diagonal order parameter under one step of the map."""
    new = _step(task, alpha, averages)
    worst = 0.0
    for name in ("q", "V", "m", "theta"):
        old, moved = getattr(point, name), getattr(new, name)
        some = old != 0
        worst = max(worst, float(np.abs(moved[some] / old[some] - 1).max(initial=0)))
    return worst


def _free_energy(task: Task, alpha: float, point: _Point, averages: _Averages) -> float:
    """The functional of the module docstring, at a point and the hats that follow from it."""
    variance = task.sigma**2
    hats = [alpha * part.mean(axis=-1) for part in (averages.q_hat, averages.m_hat, averages.V_hat, averages.theta_hat)]
    q_hat, m_hat, V_hat, theta_hat = hats
    D = task.regularization * np.eye(task.student_rank) + variance * V_hat
    spread = variance * q_hat + np.outer(m_hat, m_hat) + variance**2 * theta_hat @ theta_hat.T
    couplings = (
        0.5 * np.trace(q_hat @ point.V - V_hat @ point.q) + m_hat @ point.m + np.trace(theta_hat.T @ point.theta)
    )
    return float(alpha * averages.envelope.mean() + couplings - 0.5 * np.trace(np.linalg.solve(D, spread)))
