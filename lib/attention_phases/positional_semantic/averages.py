"""The averages over one sample that state evolution is made of, the map that they give, and the free energy.

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
not. On a lattice, averages of M converge about eight times faster than those of g where g jumps; with Sobol points, or
where kappa is small, those of g are better. Any mixture of the two holds as well, and may scatter less than either.
Fixed points of the map are the stationary points of

    epsilon_t = alpha E[min_h ...] + (tr q^ V - tr V^ q)/2 + m^ m + tr theta^^T theta
                - tr D^-1 (sigma^2 q^ + m^ m^^T + sigma^4 theta^ theta^^T)/2

in all eight variables (`free_energy`), where this equals ``alpha E ell(h*) + lambda tr q/(2 sigma^2)``.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from jaxtyping import Float

from attention_phases import _checks
from attention_phases._arrays import Array
from attention_phases.positional_semantic.proximal import ProximalPoint, global_minima
from attention_phases.positional_semantic.quadrature import GaussianRule, lattice_rule, sobol_rule
from attention_phases.positional_semantic.sample_loss import SampleLoss
from attention_phases.positional_semantic.teacher_student import Task
from attention_phases.positional_semantic.two_token_averages import two_token_averages
from attention_phases.positional_semantic.two_token_descent import two_token_losses

_PREFERENCE = 3.0  # how much more averages by parts may scatter than Stein's form
_MIXTURE = 0.75  # share of averages by parts that scatters less than all, where h* does not jump
_FAR = 16  # of so many nodes in a lattice's ball, there is one outside
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
class Point:
    """Overlaps as arrays."""

    q: Float[Array, "r r"]
    m: Float[Array, " r"]
    V: Float[Array, "r r"]
    theta: Float[Array, "r t"]

    @classmethod
    def of(cls, task: Task, overlaps: Overlaps) -> "Point":
        """Overlaps that somebody gave. ValueError where they are no numbers of the task's shapes."""
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
        """The same, with floats where r = t = 1."""
        if self.theta.size == 1:
            return Overlaps(float(self.q[0, 0]), float(self.m[0]), float(self.V[0, 0]), float(self.theta[0, 0]))
        return Overlaps(self.q, self.m, self.V, self.theta)


@dataclass(frozen=True, eq=False)
class Averages:
    """What the equations need, by each of R randomisations; hats are per unit of alpha.

    Attributes:
        q_hat, m_hat, V_hat, theta_hat: (r, r, R), (r, R), (r, r, R), (r, t, R).
        loss: E ell(h*), (R,).
        envelope: E of the minimised objective, (R,).
        by_parts: the share of averages by parts in the hats; Stein's form has the rest.
        proximal: the minima at the nodes.
    """

    q_hat: Float[Array, "r r R"]
    m_hat: Float[Array, "r R"]
    V_hat: Float[Array, "r r R"]
    theta_hat: Float[Array, "r t R"]
    loss: Float[Array, " R"]
    envelope: Float[Array, " R"]
    by_parts: float
    proximal: ProximalPoint


class Model:
    """The nodes of a task, and the teacher's answers at them."""

    def __init__(self, task: Task, rule: GaussianRule) -> None:
        r = task.student_rank
        self.task, self.rule = task, rule
        nodes = rule.nodes.reshape(task.n_tokens, r + task.teacher_rank, -1)
        self.zeta = np.ascontiguousarray(nodes[:, :r])  # (L, r, N)
        self.teacher_fields = task.sigma * nodes[:, r:]  # (L, t, N)
        self._bounds = np.append(rule.starts, rule.n_nodes)
        self.loss = limiting_loss(task, self.teacher_fields)

    def fields(self, point: Point) -> Float[Array, "L r N"]:
        """w at each node."""
        return self._fields(point, root(kappa(self.task, point)))

    def _fields(self, point: Point, width: Float[Array, "r r"]) -> Float[Array, "L r N"]:
        w = _apply(width, self.zeta)
        if point.theta.any():
            w += _apply(point.theta / self.task.sigma**2, self.teacher_fields)
        if point.m.any():
            w += self.task.positions[:, None, None] * point.m[:, None]
        return w

    def test_loss(self, point: Point) -> Float[Array, " R"]:
        """E ell(w)."""
        w = self.fields(point)
        compiled = self.task.n_tokens == 2 and self.task.student_rank == 1
        return self.rule.means(two_token_losses(w, self.loss) if compiled else self.loss.value(w))

    def averages(
        self,
        point: Point,
        by_parts: float | None = None,
        near: ProximalPoint | None = None,
        smooth: bool = True,
    ) -> Averages:
        """The averages at one point; by_parts is the share of those by parts (module docstring).

        None: all of it if `smooth`, else three quarters; but none of it where that scatters far less.
        """
        width = root(kappa(self.task, point))
        proximal = global_minima(self._fields(point, width), self.loss, point.V, near)
        shares, preference = choices(by_parts, smooth)
        if self.zeta.shape[:2] == self.teacher_fields.shape[:2] == (2, 1):
            return self._two_token_averages(point, shares, preference, proximal)
        return self.general_averages(point, width, shares, preference, proximal)

    def _two_token_averages(
        self, point: Point, shares: Float[Array, " shares"], preference: float, proximal: ProximalPoint
    ) -> Averages:
        task = self.task
        rows, chosen = two_token_averages(
            proximal.objective,
            proximal.minimizer[:, 0],
            proximal.fields[:, 0],
            self.zeta[:, 0],
            self.teacher_fields[:, 0],
            self.rule.weights,
            self._bounds,
            task.positions,
            float(kappa(task, point)[0, 0]),
            float(point.V[0, 0]),
            float(point.theta[0, 0]),
            task.sigma**2,
            shares,
            preference,
        )
        q_hat, m_hat, V_hat, theta_hat = rows[:4, None]
        return Averages(q_hat[None], m_hat, V_hat[None], theta_hat[None], rows[4], rows[5], chosen, proximal)

    def general_averages(
        self,
        point: Point,
        width: Float[Array, "r r"],
        shares: Float[Array, " shares"],
        preference: float,
        proximal: ProximalPoint,
    ) -> Averages:
        """The averages for any L, r and t, at minima that were found."""
        task, variance, means = self.task, self.task.sigma**2, self.rule.means
        inverse_root = np.asarray(np.linalg.inv(width), dtype=np.float64)
        g = proximal.residual
        envelope, quadratic = means(np.stack([proximal.objective, 0.5 * (_apply(proximal.V, g) * g).sum(axis=(0, 1))]))
        V_stein = -np.einsum("abR,bc->acR", means(_products(g, self.zeta)), inverse_root)
        V_stein = (V_stein + V_stein.swapaxes(0, 1)) / 2
        weighted = (proximal.objective - envelope.mean()) * self.zeta
        mass = task.n_tokens * (envelope - envelope.mean()) * np.eye(task.student_rank)[..., None]
        curvature = means(_products(weighted, self.zeta)) - mass
        V_parts = np.einsum("ab,bcR,cd->adR", inverse_root, curvature, inverse_root)
        scatter = np.array([(share * V_parts + (1 - share) * V_stein).std(axis=-1).sum() for share in shares])
        scatter[1:] *= preference
        share = float(shares[np.argmin(scatter)])
        V_hat = share * V_parts + (1 - share) * V_stein
        minus_g = share * _apply(inverse_root, weighted) - (1 - share) * g  # or what stands for it
        theta_hat = np.einsum("abR,bt->atR", V_hat, point.theta) - means(_products(minus_g, self.teacher_fields))
        return Averages(
            q_hat=means(_products(g, g)),
            m_hat=-means(np.tensordot(task.positions, minus_g, axes=1)),
            V_hat=V_hat,
            theta_hat=theta_hat / variance,
            loss=envelope - quadratic,
            envelope=envelope,
            by_parts=share,
            proximal=proximal,
        )


def choices(by_parts: float | None, smooth: bool) -> tuple[Float[Array, " shares"], float]:
    """Shares of averages by parts to choose from, the preferred one first, and how much more that one may scatter."""
    if by_parts is not None:
        return np.array([float(by_parts)]), 1.0
    return np.array([1.0 if smooth else _MIXTURE, 0.0]), _PREFERENCE


def kappa(task: Task, point: Point) -> Float[Array, "r r"]:
    """Covariance of the fields given the teacher's."""
    return point.q - point.theta @ point.theta.T / task.sigma**2


def limiting_loss(task: Task, teacher_fields: Float[Array, "L t N"]) -> SampleLoss:
    """ell of samples with these fields of the teacher as d grows: their Gram matrices are sigma^2 and sigma^2 T."""
    variance = task.sigma**2
    attention = task.teacher_attention(np.moveaxis(teacher_fields, -1, 0))
    teacher = np.ascontiguousarray(np.moveaxis(attention, 0, -1))
    identity = variance * np.eye(task.n_tokens)[..., None]
    return SampleLoss(identity, variance * teacher, variance * (teacher**2).sum(axis=(0, 1)))


def root(matrix: Float[Array, "r r"]) -> Float[Array, "r r"]:
    """Symmetric square root of a positive definite matrix."""
    if matrix.size == 1:
        values, vectors = matrix[0], np.ones((1, 1))
    else:
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


@lru_cache(maxsize=8)
def model(task: Task, log2_nodes: int, seed: int) -> Model:
    """About 2^log2_nodes nodes, in `_REPLICAS` independent randomisations, closed under zeta -> -zeta.

    Under that flip m^ and theta^ are odd in m and theta together, as they are in the exact average.
    """
    r, t, n_tokens = task.student_rank, task.teacher_rank, task.n_tokens
    return Model(task, _rule(n_tokens, r, t, log2_nodes, seed))


@lru_cache(maxsize=8)
def _rule(n_tokens: int, r: int, t: int, log2_nodes: int, seed: int) -> GaussianRule:
    dimension = n_tokens * (r + t)
    rng = np.random.default_rng([seed, log2_nodes])
    each = log2_nodes - 1 - int(np.log2(_REPLICAS))
    if dimension == 4:
        rule = lattice_rule(dimension, each, _REPLICAS, rng, np.kron(_DIFFERENCES, np.eye(2)), 2**each // _FAR)
    else:
        rule = sobol_rule(dimension, each, _REPLICAS, rng)
    return rule.closed_under(np.tile(np.repeat([-1.0, 1.0], [r, t]), n_tokens))


def hats(alpha: float, averages: Averages) -> tuple[Array, Array, Array, Array]:
    """q^, m^, V^ and theta^."""
    parts = (averages.q_hat, averages.m_hat, averages.V_hat, averages.theta_hat)
    q_hat, m_hat, V_hat, theta_hat = (alpha * part.mean(axis=-1) for part in parts)
    return q_hat, m_hat, V_hat, theta_hat


def next_point(task: Task, alpha: float, averages: Averages) -> Point:
    """What the map makes of the point at which the averages were taken."""
    q_hat, m_hat, V_hat, theta_hat = hats(alpha, averages)
    D, spread = _student(task, q_hat, m_hat, V_hat, theta_hat)
    inverse = np.asarray(np.linalg.inv(D), dtype=np.float64)
    variance = task.sigma**2
    return Point(
        variance * inverse @ spread @ inverse, inverse @ m_hat, variance * inverse, variance**2 * inverse @ theta_hat
    )


def residual(task: Task, alpha: float, point: Point, averages: Averages) -> float:
    """The largest relative change of a diagonal order parameter under one step of the map."""
    new = next_point(task, alpha, averages)
    worst = 0.0
    for name in ("q", "V", "m", "theta"):
        old, moved = getattr(point, name), getattr(new, name)
        some = old != 0
        worst = max(worst, float(np.abs(moved[some] / old[some] - 1).max(initial=0)))
    return worst


def free_energy(task: Task, alpha: float, point: Point, averages: Averages) -> float:
    """The functional of the module docstring, at a point and the hats that follow from it."""
    q_hat, m_hat, V_hat, theta_hat = hats(alpha, averages)
    D, spread = _student(task, q_hat, m_hat, V_hat, theta_hat)
    couplings = (
        0.5 * np.trace(q_hat @ point.V - V_hat @ point.q) + m_hat @ point.m + np.trace(theta_hat.T @ point.theta)
    )
    return float(alpha * averages.envelope.mean() + couplings - 0.5 * np.trace(np.linalg.solve(D, spread)))


def _student(
    task: Task,
    q_hat: Float[Array, "r r"],
    m_hat: Float[Array, " r"],
    V_hat: Float[Array, "r r"],
    theta_hat: Float[Array, "r t"],
) -> tuple[Float[Array, "r r"], Float[Array, "r r"]]:
    """D, and ``sigma^2 q^ + m^ m^^T + sigma^4 theta^ theta^^T``."""
    variance = task.sigma**2
    D = task.regularization * np.eye(task.student_rank) + variance * V_hat
    return D, variance * q_hat + np.outer(m_hat, m_hat) + variance**2 * theta_hat @ theta_hat.T
