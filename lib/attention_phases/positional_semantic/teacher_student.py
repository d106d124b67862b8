"""The teacher-student task: tokens, the mixed teacher, and what is measured of a student.

Cui, Behrens, Krzakala, Zdeborova, NeurIPS 2024 (arXiv 2402.03902), section 2. A sample is a sentence of L tokens,
``x`` of shape (L, d), with rows ``x_l ~ N(0, sigma^2 I_d)``. The teacher answers with

    y = T(x) x,     T(x) = (1 - omega) softmax((x Q*)(x Q*)^T/d) + omega A,

the student with ``f_Q(x) = softmax((x + p) Q Q^T (x + p)^T/d) (x + p)``, where ``p_l = positions[l] 1_d/sqrt(d)``.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from attention_phases import _checks
from attention_phases._arrays import Array
from attention_phases._blas import one_thread
from attention_phases.estimates import Estimate
from attention_phases.positional_semantic.quadrature import gaussian_nodes, mean_over_scrambles
from attention_phases.positional_semantic.sample_loss import SampleLoss, attention

Seed = int | np.random.Generator
_MOST_NUMBERS = 2**40  # of a dataset: 8 TiB


@dataclass(frozen=True, eq=False, init=False)
class Task:
    """What is learned from what: the tokens, the teacher, and the student's architecture.

    Attributes:
        omega: weight of the positional part of the teacher's attention, in [0, 1].
        sigma: standard deviation of each entry of a token, in [1e-3, 30]: outside, rounding spoils the risk, the parts
            of which are of order 1/d (the positions) and sigma^2 (the tokens).
        regularization: lambda, the weight of ``|Q|^2/2`` in the empirical risk, in [0, 1e12].
        positional_attention: A, (L, L), row-stochastic: the teacher's positional attention. It sets L >= 2.
        student_rank: r, the number of columns of the student's query matrix Q.
        teacher_rank: t, the number of columns of the teacher's query matrix Q*.
        positions: (L,), the coordinate of each position along 1_d/sqrt(d). Default: evenly spaced from 1 to -1.

    Raises:
        ValueError: names the argument, what it must be and what it got.
    """

    omega: float
    sigma: float
    regularization: float
    positional_attention: Float[Array, "L L"]
    student_rank: int
    teacher_rank: int
    positions: Float[Array, " L"]

    def __init__(
        self,
        omega: float = 0.3,
        sigma: float = 0.5,
        regularization: float = 0.01,
        positional_attention: ArrayLike = ((0.6, 0.4), (0.4, 0.6)),
        student_rank: int = 1,
        teacher_rank: int = 1,
        positions: ArrayLike | None = None,
    ) -> None:
        matrix = _row_stochastic("positional_attention", positional_attention)
        n_tokens = len(matrix)
        evenly = np.linspace(1, -1, n_tokens)
        along = evenly if positions is None else _checks.array("positions", positions, (n_tokens,))
        values = {
            "omega": _checks.real("omega", omega, 0, 1),
            "sigma": _checks.real("sigma", sigma, 1e-3, 30),
            "regularization": _checks.real("regularization", regularization, 0, _checks.LARGEST),
            "positional_attention": _read_only(matrix),
            "student_rank": _checks.integer("student_rank", student_rank, 1),
            "teacher_rank": _checks.integer("teacher_rank", teacher_rank, 1),
            "positions": _read_only(along),
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @property
    def n_tokens(self) -> int:
        """L, the number of tokens of a sentence."""
        return len(self.positional_attention)

    def teacher_attention(self, fields: Float[Array, "*n L t"]) -> Float[Array, "*n L L"]:
        """T = (1 - omega) softmax(s s^T) + omega A of the teacher's local fields ``s = x Q*/sqrt(d)``."""
        return (1 - self.omega) * attention(fields) + self.omega * self.positional_attention

    @one_thread
    def sample(self, d: int, alpha: float, seed: Seed, teacher_query: str | ArrayLike = "gaussian") -> "Dataset":
        """Draw a teacher and ``n = round(alpha d)`` sentences with its answers.

        Args:
            d: dimension of a token, >= 1.
            alpha: samples per dimension, > 0; at least one sample must come out.
            seed: a whole number, or a NumPy generator, which is advanced.
            teacher_query: Q*. "gaussian": entries N(0, 1). "orthonormal": columns orthogonal, each of norm sqrt(d)
                (no scatter of ``|Q*|^2/d``, so sharper tests of the theory at finite d). Or an array (d, t).

        Raises:
            ValueError: names the argument, what it must be and what it got.
        """
        d = _checks.integer("d", d, 1)
        alpha = _checks.real("alpha", alpha, 0, _checks.LARGEST, open_low=True)
        n = round(alpha * d)
        most = _MOST_NUMBERS // (self.n_tokens * d)
        if not 1 <= n <= most:
            raise ValueError(
                f"alpha must give at least 1 and at most {most} samples, round(alpha d); got alpha = {alpha:g}, d = {d}"
            )
        rng = _checks.generator(seed)
        query = self._teacher_query(d, teacher_query, rng)
        tokens = rng.standard_normal((n, self.n_tokens, d))
        tokens *= self.sigma
        teacher = self.teacher_attention(tokens @ query / np.sqrt(d))
        tokens += (self.positions / np.sqrt(d))[:, None]
        tokens.flags.writeable = False  # a Dataset would make a copy
        return Dataset(self, tokens, teacher, query)

    def _teacher_query(self, d: int, kind: str | ArrayLike, rng: np.random.Generator) -> Float[Array, "d t"]:
        if not isinstance(kind, str):
            return _read_only(_checks.array("teacher_query", kind, (d, self.teacher_rank)))
        _checks.choice("teacher_query", kind, ("gaussian", "orthonormal"))
        if kind == "orthonormal" and d < self.teacher_rank:
            raise ValueError(f"d must be at least teacher_rank = {self.teacher_rank} for orthonormal columns; got {d}")
        query = rng.standard_normal((d, self.teacher_rank))
        return _read_only(np.sqrt(d) * np.linalg.qr(query).Q if kind == "orthonormal" else query)

    def _key(self) -> tuple[object, ...]:
        arrays = self.positional_attention.tobytes(), self.positions.tobytes()
        return self.omega, self.sigma, self.regularization, self.student_rank, self.teacher_rank, *arrays

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Task) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())


@dataclass(frozen=True, eq=False)
class Dataset:
    """n sentences and the teacher's answers to them.

    The targets are not stored: they follow from the tokens and the teacher's attention, which is d times smaller.

    Attributes:
        task: the task it was drawn from.
        tokens: ``x + p``, (n, L, d): what the student reads.
        teacher_attention: T(x) of each sentence, (n, L, L).
        teacher_query: Q*, (d, t).

    The arrays cannot be written to; one that can is copied.

    Raises:
        ValueError: a shape does not fit the task, or an entry is not finite.
    """

    task: Task
    tokens: Float[Array, "n L d"]
    teacher_attention: Float[Array, "n L L"]
    teacher_query: Float[Array, "d t"]

    def __post_init__(self) -> None:
        _checks.instance("task", self.task, Task)
        n_tokens = self.task.n_tokens
        tokens = _checks.array("tokens", self.tokens, (None, n_tokens, None))
        n, _, d = tokens.shape
        arrays = {
            "tokens": tokens,
            "teacher_attention": _checks.array("teacher_attention", self.teacher_attention, (n, n_tokens, n_tokens)),
            "teacher_query": _checks.array("teacher_query", self.teacher_query, (d, self.task.teacher_rank)),
        }
        for name, values in arrays.items():
            as_it_is = values.flags.c_contiguous and not values.flags.writeable
            object.__setattr__(self, name, values if as_it_is else _read_only(values))

    @property
    def n_samples(self) -> int:
        """n, the number of sentences."""
        return len(self.tokens)

    @property
    def dimension(self) -> int:
        """d, the dimension of a token."""
        return int(self.tokens.shape[2])

    @property
    def alpha(self) -> float:
        """n/d."""
        return self.n_samples / self.dimension

    @property
    @one_thread
    def targets(self) -> Float[Array, "n L d"]:
        """y = T(x) x of each sentence, made anew at each call."""
        result: Array = self.teacher_attention @ self.tokens
        shift = self.teacher_attention @ self.task.positions / np.sqrt(self.dimension)  # (n, L)
        result -= shift[..., None]
        return result

    @cached_property
    @one_thread
    def sample_loss(self) -> SampleLoss:
        """``|y - S (x + p)|^2/(2 d)`` of each sentence as a quadratic form in its attention S.

        Only scalar products of tokens enter: the Gram matrix ``G = X X^T/d`` of ``X = x + p``, and the products of x
        with X, which are G less the products of p with X, that is the tokens' sums over their d entries.
        """
        d, along = self.dimension, self.task.positions
        gram = self.tokens @ self.tokens.swapaxes(1, 2) / d  # (n, L, L)
        with_position = along[:, None] * (self.tokens.sum(axis=2) / d**1.5)[:, None, :]  # p_l . X_k / d
        of_tokens = gram - with_position  # x X^T/d
        pure = of_tokens - with_position.swapaxes(1, 2) + np.outer(along, along) / d  # x x^T/d
        teacher = self.teacher_attention
        constant = np.einsum("nlk,nkj,nlj->n", teacher, pure, teacher)
        return SampleLoss(*(np.ascontiguousarray(np.moveaxis(a, 0, -1)) for a in (gram, teacher @ of_tokens, constant)))


@one_thread
def generalization_error(
    task: Task,
    query: ArrayLike,
    teacher_query: ArrayLike,
    *,
    log2_nodes: int = 11,
    n_scrambles: int = 8,
    seed: Seed = 0,
) -> Estimate:
    """epsilon_g = E |y - f_Q(x)|^2/(2 d) on a fresh sentence, for a given student and teacher of finite dimension.

    `query` is Q, (d, r), and `teacher_query` is Q*, (d, t).
    No fresh sentences are drawn. Attention depends on a token only through its k <= r + t + 1 components in the span
    of Q, Q* and 1_d; the other d - k components enter the squared error linearly, so their average is exact:

        epsilon_g = E [sigma^2 (d - k) |T - S|^2 + |(T - S) x_span - S p|^2] / (2 d).

    What is left is a Gaussian average over L k numbers, taken with `n_scrambles` scrambles of 2^`log2_nodes` Sobol
    points. The standard error is that of this average. As d grows the value tends to E sigma^2/2 |T - S|^2, the
    epsilon_g of state evolution.

    Raises:
        ValueError: names the argument, what it must be and what it got.
    """
    query, teacher_query = _queries(task, query, teacher_query)
    d = len(query)
    log2_nodes = _checks.integer("log2_nodes", log2_nodes, 0, 24)
    n_scrambles = _checks.integer("n_scrambles", n_scrambles, 2, 4096)
    rng = _checks.generator(seed)
    basis = np.linalg.qr(np.hstack([query, teacher_query, np.ones((d, 1))])).Q  # (d, k), columns orthonormal
    k = basis.shape[1]
    nodes = gaussian_nodes(task.n_tokens * k, log2_nodes, n_scrambles, rng)
    tokens = task.sigma * nodes.reshape(n_scrambles, -1, task.n_tokens, k)  # components in the span
    position = np.outer(task.positions, basis.sum(axis=0) / np.sqrt(d))  # (L, k)
    teacher = task.teacher_attention(tokens @ (basis.T @ teacher_query) / np.sqrt(d))
    student = attention((tokens + position) @ (basis.T @ query) / np.sqrt(d))
    outside = task.sigma**2 * (d - k) * ((teacher - student) ** 2).sum(axis=(-2, -1))
    inside = (((teacher - student) @ tokens - student @ position) ** 2).sum(axis=(-2, -1))
    return mean_over_scrambles((outside + inside) / (2 * d))


@dataclass(frozen=True)
class OrderParameters:
    """What the theory keeps of a student; floats where r = t = 1, arrays otherwise.

    Attributes:
        q: sigma^2 Q^T Q/d, (r, r): its size.
        m: Q^T 1_d/d, (r,): its projection on the positions. The mean of the local fields at position l is
            ``m_l = positions[l] m``.
        theta: sigma^2 Q^T Q*/d, (r, t): its projection on the teacher.
    """

    q: float | Float[Array, "r r"]
    m: float | Float[Array, " r"]
    theta: float | Float[Array, "r t"]


def order_parameters(task: Task, query: ArrayLike, teacher_query: ArrayLike) -> OrderParameters:
    """The order parameters q, m, theta of a student's query matrix.

    `query` is Q, (d, r), and `teacher_query` is Q*, (d, t).

    Raises:
        ValueError: names the argument, what it must be and what it got.
    """
    query, teacher_query = _queries(task, query, teacher_query)
    d = len(query)
    q = task.sigma**2 * query.T @ query / d
    m = query.sum(axis=0) / d
    theta = task.sigma**2 * query.T @ teacher_query / d
    if task.student_rank == task.teacher_rank == 1:
        return OrderParameters(float(q[0, 0]), float(m[0]), float(theta[0, 0]))
    return OrderParameters(q, m, theta)


def _queries(task: Task, query: ArrayLike, teacher_query: ArrayLike) -> tuple[Float[Array, "d r"], Float[Array, "d t"]]:
    """Student and teacher as arrays that fit the task and each other, or a ValueError."""
    _checks.instance("task", task, Task)
    student = _checks.array("query", query, (None, task.student_rank))
    return student, _checks.array("teacher_query", teacher_query, (len(student), task.teacher_rank))


def _row_stochastic(name: str, value: ArrayLike) -> Float[Array, "L L"]:
    matrix = _checks.array(name, value, (None, None))
    rows, columns = matrix.shape
    if rows != columns or rows < 2:
        raise ValueError(f"{name} must be a square matrix with L >= 2 rows; got shape {matrix.shape}")
    if matrix.min() < 0:
        raise ValueError(f"{name} must have no negative entry; got {matrix.min():g}")
    sums = matrix.sum(axis=1)
    worst = int(np.abs(sums - 1).argmax())
    if abs(sums[worst] - 1) > 1e-9:
        raise ValueError(f"{name} must have rows that sum to 1; row {worst} sums to {sums[worst]:.10g}")
    return matrix


def _read_only(values: Array) -> Array:
    copy = values.copy()
    copy.flags.writeable = False
    return copy
