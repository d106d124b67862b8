"""The empirical risk and its minima.

Cui, Behrens, Krzakala, Zdeborova, NeurIPS 2024 (arXiv 2402.03902), section 2:

    R(Q) = sum_mu |y_mu - f_Q(x_mu)|_F^2/(2 d) + lambda/2 |Q|_F^2,      epsilon_t = min R/d.

Every function of Q here works with the local fields ``h = (x + p) Q/sqrt(d)``, (L, r) a sample: the squared errors
and their derivatives are small forms in them (`SampleLoss`), so one evaluation of the risk and its gradient costs
one product with the (n L, d) matrix of tokens and one with its transpose.
"""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike, NDArray
from scipy.interpolate import make_interp_spline
from scipy.optimize import OptimizeResult, minimize
from scipy.sparse.linalg import LinearOperator, eigsh, minres

from attention_phases import _checks
from attention_phases._blas import one_thread
from attention_phases.errors import ConvergenceError
from attention_phases.positional_semantic.teacher_student import (
    Dataset,
    Seed,
    generalization_error,
    order_parameters,
)

Array = NDArray[np.float64]
Start = Literal["semantic", "positional", "mixed", "random"]
Method = Literal["lbfgs", "gradient_descent", "adam"]

_PARALLEL = 1e-9  # sine of an angle below which two students are on one line
_NEAR = 1e-3  # gradient_norm below which a point is taken to be in the quadratic neighbourhood of a minimum


class Slope(NamedTuple):
    """Risk and gradient at one point.

    `scale` is ``|X^T g|/sqrt(d) + lambda |Q| + floor``: the two parts that cancel at a stationary point,
    and a thousandth of their natural size at ``|Q| = sqrt(d)``, which counts only where those vanish. That size is
    ``lambda sqrt(d)`` for the one and ``sqrt(n) sigma^2 (1 + sigma^2)`` for the other, which has a part along the
    positions and a part elsewhere.
    """

    risk: float
    gradient: Float[Array, "d r"]
    scale: float

    @property
    def relative_norm(self) -> float:
        """The norm of the gradient divided by `scale`."""
        return float(np.linalg.norm(self.gradient)) / self.scale


class OutOfEvaluationsError(Exception):
    """A risk was to be evaluated once more than it may be."""


class EmpiricalRisk:
    """R(Q) of a dataset, with its gradient and Hessian. Q has shape (d, r); R is of order d.

    Attributes:
        n_evaluations: gradients and Hessian products computed so far; each costs the same two products with the tokens.

    Raises:
        OutOfEvaluationsError: at the gradient or Hessian product after the `max_evaluations`-th.
    """

    def __init__(self, dataset: Dataset, max_evaluations: int | None = None) -> None:
        _check_dataset(dataset)
        self.dataset = dataset
        self._rows = dataset.tokens.reshape(-1, dataset.dimension)  # (n L, d), a view
        self._root = np.sqrt(dataset.dimension)
        task = dataset.task
        size = task.sigma**2 * (1 + task.sigma**2) * np.sqrt(dataset.n_samples)
        self._floor = 1e-3 * (task.regularization * self._root + size)
        self._max_evaluations = max_evaluations
        self.n_evaluations = 0

    def _count(self) -> None:
        if self.n_evaluations == self._max_evaluations:
            raise OutOfEvaluationsError
        self.n_evaluations += 1

    def fields(self, query: Float[Array, "d r"]) -> Float[Array, "L r n"]:
        """Local fields ``(x + p) Q/sqrt(d)``, samples last."""
        flat = self._rows @ query
        flat /= self._root
        return np.ascontiguousarray(np.moveaxis(flat.reshape(*self.dataset.tokens.shape[:2], -1), 0, -1))

    def _pull_back(self, fields: Float[Array, "L r n"]) -> Float[Array, "d r"]:
        """The transpose of `fields`."""
        flat = np.moveaxis(fields, -1, 0).reshape(-1, fields.shape[1])
        result: Array = self._rows.T @ flat
        result /= self._root
        return result

    def value(self, query: Float[Array, "d r"]) -> float:
        """R(Q)."""
        penalty = self.dataset.task.regularization * float((query**2).sum()) / 2
        return float(self.dataset.sample_loss.value(self.fields(query)).sum()) + penalty

    def slope(self, query: Float[Array, "d r"]) -> Slope:
        """R(Q) and its gradient."""
        self._count()
        strength = self.dataset.task.regularization
        losses, gradients = self.dataset.sample_loss.value_and_gradient(self.fields(query))
        gradient = self._pull_back(gradients)
        scale = float(np.linalg.norm(gradient) + strength * np.linalg.norm(query) + self._floor)
        gradient += strength * query
        return Slope(float(losses.sum()) + strength * float((query**2).sum()) / 2, gradient, scale)

    def hessian(self, query: Float[Array, "d r"]) -> LinearOperator:
        """The Hessian of R at Q, as a linear operator on flattened (d r,) directions."""
        fields = self.fields(query)
        strength = self.dataset.task.regularization

        def product(direction: Array) -> Array:
            self._count()
            d_query = direction.reshape(query.shape)
            change = self.dataset.sample_loss.hessian_product(fields, self.fields(d_query))
            return np.ravel(self._pull_back(change) + strength * d_query)

        return LinearOperator((query.size, query.size), matvec=product, rmatvec=product, dtype=np.float64)


@dataclass(frozen=True)
class Descent:
    """What was recorded on the way of a minimisation, one entry a recorded step (the last step always is).

    Attributes:
        steps: (T,), number of updates made before.
        train_loss: (T,), R/d.
        q, m, theta: (T,) where r = t = 1, else (T, r, r), (T, r), (T, r, t): order parameters.
    """

    steps: NDArray[np.int64]
    train_loss: Float[Array, " T"]
    q: Array
    m: Array
    theta: Array


@dataclass(frozen=True)
class Fit:
    """A student, and what is known of it.

    Attributes:
        query: Q, (d, r), in the gauge of `fix_gauge`.
        q, m, theta: its order parameters (`OrderParameters`); floats where r = t = 1.
        train_loss: epsilon_t = R(Q)/d.
        test_error: epsilon_g (`generalization_error`), from the overlaps of this Q at this d; no fresh data.
        test_error_standard_error: standard error of that computation.
        gradient_norm: ``|grad R|/(|X^T g|/sqrt(d) + lambda |Q|)``: 0 at a stationary point, of order 1 far from one
            (`Slope` says what keeps the denominator from vanishing with Q or lambda).
        n_evaluations: gradients and Hessian products that were computed.
        converged: whether gradient_norm is at most the tolerance that was asked for.
        trajectory: what was recorded on the way, if asked for.
    """

    query: Float[Array, "d r"]
    q: float | Array
    m: float | Array
    theta: float | Array
    train_loss: float
    test_error: float
    test_error_standard_error: float
    gradient_norm: float
    n_evaluations: int
    converged: bool
    trajectory: Descent | None = None


@one_thread
def minimize_risk(
    dataset: Dataset,
    start: Start | ArrayLike = "semantic",
    method: Method = "lbfgs",
    *,
    seed: Seed = 0,
    tolerance: float = 1e-7,
    max_evaluations: int = 5000,
    n_steps: int = 5000,
    learning_rate: float | None = None,
    record_every: int | None = None,
    must_converge: bool = True,
) -> Fit:
    """A minimum of the empirical risk R(Q), from a given start.

    Args:
        dataset: the samples.
        start: "semantic" (Q*), "positional" (1_d), "mixed" (Q* and 1_d, for r > t), "random" (entries N(0, 1)), or
            an array (d, r). A student with more columns than its start is given small random ones besides (standard
            deviation 0.01: a column that is exactly zero stays so); with fewer, the first columns of the start.
        method: "lbfgs" runs until gradient_norm <= tolerance. "gradient_descent" (``Q <- Q - learning_rate grad R``;
            default 0.15 as in the paper) and "adam" (default 0.01) make n_steps steps, whatever comes out.
        seed: for the random numbers of the start, which are not those of a sample of the same seed.
        tolerance: on gradient_norm, see `Fit`.
        max_evaluations: where "lbfgs" gives up; all of its gradients and Hessian products count.
        n_steps: for the methods that make a fixed number of steps.
        learning_rate: for the same methods.
        record_every: record the trajectory at every so many steps.
        must_converge: whether "lbfgs" raises where it does not reach the tolerance, or returns with
            ``converged=False``. The methods of a fixed number of steps return, whatever comes out, but for divergence.

    Raises:
        ValueError: names the argument, what it must be and what it got.
        ConvergenceError: "lbfgs" stopped short of the tolerance (`last` is the Fit, `residual` its gradient_norm), or
            the steps of another method diverged, that is an entry of Q grew beyond 1e12 (`last` is the Fit before).
    """
    _check_dataset(dataset)
    _checks.choice("method", method, ("lbfgs", "gradient_descent", "adam"))
    tolerance = _checks.real("tolerance", tolerance, 0, open_low=True)
    max_evaluations = _checks.integer("max_evaluations", max_evaluations, 1)
    n_steps = _checks.integer("n_steps", n_steps, 0)
    if learning_rate is not None:
        rate = _checks.real("learning_rate", learning_rate, 0, _checks.LARGEST, open_low=True)
    else:
        rate = 0.01 if method == "adam" else 0.15
    recorder = _Recorder(dataset, None if record_every is None else _checks.integer("record_every", record_every, 1))
    query = _starting_query(dataset, start, _checks.generator(seed, stream=1))  # the sample's seed may be the same

    risk = EmpiricalRisk(dataset, max_evaluations if method == "lbfgs" else None)
    descent = _Descending(risk, query, recorder)
    if method == "lbfgs":
        _lbfgs(descent, tolerance)
        failed = must_converge and descent.slope.relative_norm > tolerance
        failure = f"lbfgs stopped with gradient_norm {descent.slope.relative_norm:.2g} above tolerance {tolerance:g}"
    else:
        update = _adam_update(query.shape, rate) if method == "adam" else lambda gradient: rate * gradient
        _fixed_steps(descent, update, n_steps)
        failed = descent.step < n_steps
        failure = f"{method} with learning_rate {rate:g} diverged at step {descent.step + 1}"
    recorder.note(descent.step, descent.query, descent.slope.risk, last=True)
    slope = descent.slope

    gauge = gauge_rotation(dataset, descent.query)
    query = descent.query @ gauge
    observed = order_parameters(dataset.task, query, dataset.teacher_query)
    error = generalization_error(dataset.task, query, dataset.teacher_query)
    fit = Fit(
        query=query,
        q=observed.q,
        m=observed.m,
        theta=observed.theta,
        train_loss=slope.risk / dataset.dimension,
        test_error=error.value,
        test_error_standard_error=error.standard_error,
        gradient_norm=slope.relative_norm,
        n_evaluations=risk.n_evaluations,
        converged=slope.relative_norm <= tolerance and not failed,
        trajectory=recorder.descent(gauge),
    )
    if failed:
        raise ConvergenceError(f"{failure} ({fit.n_evaluations} evaluations)", last=fit, residual=fit.gradient_norm)
    return fit


def gauge_rotation(dataset: Dataset, query: Float[Array, "d r"]) -> Float[Array, "r r"]:
    """The orthogonal O for which ``Q O`` is the representative that we report, out of all that have the same risk.

    For r = 1 it is the sign that makes positive the largest of the cosines of Q with the columns of Q* and with 1_d:
    the others then keep their own signs, which mean something. For r > 1 it turns Q as near as possible to the
    first r columns of (Q*, 1_d) (the orthogonal Procrustes problem); for r = t this makes theta symmetric and
    positive semidefinite.
    """
    reference = _reference(dataset)
    overlap = query.T @ reference  # (r, t + 1)
    rank = query.shape[1]
    if rank == 1:
        lengths = np.linalg.norm(reference, axis=0)
        cosines = overlap[0] / np.where(lengths > 0, lengths, 1)
        return np.array([[-1.0 if cosines[np.abs(cosines).argmax()] < 0 else 1.0]])
    square = np.zeros((rank, rank))
    used = min(rank, overlap.shape[1])
    square[:, :used] = overlap[:, :used]
    left, _, right = np.linalg.svd(square)
    rotation: Array = left @ right
    return rotation


def _check_dataset(dataset: object) -> None:
    if not isinstance(dataset, Dataset):
        raise ValueError(f"dataset must be a Dataset; got {_checks.shown(dataset)}")


def _reference(dataset: Dataset) -> Float[Array, "d t+1"]:
    return np.hstack([dataset.teacher_query, np.ones((dataset.dimension, 1))])


def _starting_query(dataset: Dataset, start: Start | ArrayLike, rng: np.random.Generator) -> Float[Array, "d r"]:
    d, rank = dataset.dimension, dataset.task.student_rank
    if not isinstance(start, str):
        return _checks.array("start", start, (d, rank)).copy()
    _checks.choice("start", start, ("semantic", "positional", "mixed", "random"))
    if start == "random":
        return rng.standard_normal((d, rank))
    reference = _reference(dataset)
    if start == "mixed" and rank < reference.shape[1]:
        raise ValueError(f'start must not be "mixed" for student_rank < teacher_rank + 1; got student_rank = {rank}')
    columns = {"semantic": reference[:, :-1], "positional": reference[:, -1:], "mixed": reference}[start][:, :rank]
    query = 0.01 * rng.standard_normal((d, rank))
    query[:, : columns.shape[1]] = columns
    return query


class _Recorder:
    """Notes the risk and the overlaps at every so many steps (None: never), and at the last."""

    def __init__(self, dataset: Dataset, every: int | None) -> None:
        self._task, self._d = dataset.task, dataset.dimension
        self._reference = _reference(dataset)
        self._every = every
        self._rows: dict[int, tuple[float, Array, Array]] = {}

    def note(self, step: int, query: Float[Array, "d r"], risk: float, *, last: bool = False) -> None:
        if self._every is not None and (last or step % self._every == 0):
            self._rows[step] = risk, query.T @ query, query.T @ self._reference

    def descent(self, gauge: Float[Array, "r r"]) -> Descent | None:
        """What was noted, in the gauge of the last point."""
        if self._every is None:
            return None
        risks, norms, overlaps = (np.array(column) for column in zip(*self._rows.values(), strict=True))
        turned = gauge.T @ overlaps / self._d  # (T, r, t + 1)
        variance = self._task.sigma**2
        q, theta, m = variance * gauge.T @ norms @ gauge / self._d, variance * turned[..., :-1], turned[..., -1]
        if self._task.student_rank == self._task.teacher_rank == 1:
            q, theta, m = q[:, 0, 0], theta[:, 0, 0], m[:, 0]
        return Descent(np.array(list(self._rows)), risks / self._d, q=q, m=m, theta=theta)


class _Descending:
    """The point that a minimisation has reached."""

    def __init__(self, risk: EmpiricalRisk, query: Float[Array, "d r"], recorder: _Recorder) -> None:
        self.risk, self.query, self.slope, self.step = risk, query, risk.slope(query), 0
        self._recorder = recorder
        recorder.note(0, query, self.slope.risk)

    def move(self, query: Float[Array, "d r"], slope: Slope) -> None:
        """Make one step, to a point where the risk is known."""
        self.query, self.slope, self.step = query, slope, self.step + 1
        self._recorder.note(self.step, query, slope.risk)


def _lbfgs(descent: _Descending, tolerance: float) -> None:
    """L-BFGS after a few steps of gradient descent, and a few of Newton's method after it where they are needed.

    The basins are rough inside: they hold many minima. The first steps of L-BFGS alone are long, and often end in a
    higher one of them than plain gradient descent; after a start along the gradient they do not. At the end, the line
    search compares risks, and near a minimum their differences drown in rounding; Newton's steps do not.
    """
    with contextlib.suppress(OutOfEvaluationsError):
        for method in (_follow_gradient, _quasi_newton, _newton):
            if descent.slope.relative_norm > tolerance:
                method(descent, tolerance)


def _follow_gradient(descent: _Descending, tolerance: float) -> None:
    """Steps of gradient descent, each the inverse of twice the largest curvature at the start; less where R rises."""
    rate = _inverse_curvature(descent.risk, descent.query) / 2
    for _ in range(30):
        candidate = descent.query - rate * descent.slope.gradient
        new = descent.risk.slope(candidate)
        if new.risk > descent.slope.risk:
            rate /= 2
            continue
        descent.move(candidate, new)
        if new.relative_norm <= tolerance:
            return


def _inverse_curvature(risk: EmpiricalRisk, query: Float[Array, "d r"]) -> float:
    """The inverse of the largest eigenvalue in size of the Hessian, to a few per cent; 0 where the Hessian is 0."""
    hessian, start = risk.hessian(query), np.random.default_rng(0).standard_normal(query.size)
    image = hessian.matvec(start)
    if not image.any():
        return 0.0
    if query.size == 1:
        return float(np.abs(start / image)[0])
    return 1 / float(np.abs(eigsh(hessian, k=1, v0=start, tol=0.05, return_eigenvectors=False))[0])


def _quasi_newton(descent: _Descending, tolerance: float) -> None:
    """SciPy's L-BFGS, until the tolerance or as far as it gets."""
    shape = descent.query.shape
    evaluated: dict[bytes, Slope] = {}  # since the last iteration: the callback is told the point, not its gradient

    def objective(flat: Array) -> tuple[float, Array]:
        slope = descent.risk.slope(flat.reshape(shape))
        evaluated[flat.tobytes()] = slope
        return slope.risk, slope.gradient.ravel()

    def iterated(intermediate_result: OptimizeResult) -> None:
        point = intermediate_result.x.copy()
        descent.move(point.reshape(shape), evaluated[point.tobytes()])
        evaluated.clear()
        if descent.slope.relative_norm <= tolerance:
            raise StopIteration

    unlimited = {"maxiter": _checks.MOST, "maxfun": _checks.MOST, "ftol": 0, "gtol": 0}
    start = descent.query.ravel()
    minimize(objective, start, jac=True, method="L-BFGS-B", callback=iterated, options={"maxcor": 20, **unlimited})


def _newton(descent: _Descending, tolerance: float) -> None:
    """Newton's method for ``grad R = 0``, close to a minimum only; the linear systems are solved by MINRES."""
    if descent.slope.relative_norm > _NEAR:
        return
    for _ in range(10):
        step, _ = minres(descent.risk.hessian(descent.query), -descent.slope.gradient.ravel(), rtol=1e-4, maxiter=200)
        candidate = descent.query + step.reshape(descent.query.shape)
        new = descent.risk.slope(candidate)
        uphill = float(step @ descent.slope.gradient.ravel()) >= 0  # the risks themselves differ by less than rounding
        if uphill or new.relative_norm >= descent.slope.relative_norm:
            return
        descent.move(candidate, new)
        if new.relative_norm <= tolerance:
            return


def _fixed_steps(descent: _Descending, update: Callable[[Array], Array], n_steps: int) -> None:
    """Updates ``Q <- Q - update(grad R)``: n_steps of them, or fewer where the next point is too far away."""
    for _ in range(n_steps):
        candidate = descent.query - update(descent.slope.gradient)
        if np.abs(candidate).max() > _checks.LARGEST:
            return
        descent.move(candidate, descent.risk.slope(candidate))


def _adam_update(shape: tuple[int, ...], learning_rate: float) -> Callable[[Array], Array]:
    """Kingma and Ba (2015), algorithm 1, with their constants."""
    first, second, step = np.zeros(shape), np.zeros(shape), 0

    def update(gradient: Array) -> Array:
        nonlocal first, second, step
        step += 1
        first = 0.9 * first + 0.1 * gradient
        second = 0.999 * second + 0.001 * gradient**2
        return learning_rate * (first / (1 - 0.9**step)) / (np.sqrt(second / (1 - 0.999**step)) + 1e-8)

    return update


@dataclass(frozen=True)
class RiskPlane:
    """The empirical risk on the plane through the origin and two students.

    The axes are orthonormal directions of Q-space, the first along the first student; the unit of length is that of
    the order parameter: a student at distance sqrt(x^2 + y^2) from the origin has ``tr q = x^2 + y^2``.

    Attributes:
        x: (k,), coordinates along the first axis; y: (k,), along the second.
        train_loss: (k, k), R/d; row i is y[i], column j is x[j].
        first, second: (2,), where the two students are.
    """

    x: Float[Array, " k"]
    y: Float[Array, " k"]
    train_loss: Float[Array, "k k"]
    first: Float[Array, " 2"]
    second: Float[Array, " 2"]


@one_thread
def risk_on_plane(
    dataset: Dataset,
    first: Float[ArrayLike, "d r"],
    second: Float[ArrayLike, "d r"],
    *,
    extent: float = 1.5,
    resolution: int = 61,
) -> RiskPlane:
    """R/d on the square grid of the plane that reaches `extent` times as far as the farther of the two students.

    Local fields are linear in Q, so the whole plane costs two products with the tokens.

    Raises:
        ValueError: names the argument, what it must be and what it got; also where the two students span no plane.
    """
    risk = EmpiricalRisk(dataset)
    shape = (dataset.dimension, dataset.task.student_rank)
    first, second = _checks.array("first", first, shape), _checks.array("second", second, shape)
    extent = _checks.real("extent", extent, 0, 1e6, open_low=True)
    resolution = _checks.integer("resolution", resolution, 2)
    if _sine(first, second) < _PARALLEL:
        raise ValueError("first and second must span a plane with the origin; got students on one line through it")
    unit = np.sqrt(dataset.dimension) / dataset.task.sigma  # |Q| of a student with tr q = 1
    axes, coordinates = np.linalg.qr(np.column_stack([first.ravel(), second.ravel()]))
    sign = np.sign(np.diag(coordinates))
    axes, coordinates = axes * sign, sign[:, None] * coordinates / unit
    reach = extent * np.linalg.norm(coordinates, axis=0).max()
    grid = np.linspace(-reach, reach, resolution)
    along_x, along_y = (unit * risk.fields(axis.reshape(shape)) for axis in axes.T)
    squared = grid**2
    train_loss = np.empty((resolution, resolution))
    for i, y in enumerate(grid):
        for j, x in enumerate(grid):
            train_loss[i, j] = dataset.sample_loss.value(x * along_x + y * along_y).sum() / dataset.dimension
    train_loss += dataset.task.regularization / (2 * dataset.task.sigma**2) * (squared[:, None] + squared)
    return RiskPlane(grid, grid, train_loss, coordinates[:, 0], coordinates[:, 1])


def _sine(first: Float[Array, "d r"], second: Float[Array, "d r"]) -> float:
    """The sine of the angle between two students; 0 where one of them is 0."""
    a, b = first.ravel(), second.ravel()
    lengths = np.linalg.norm(a), np.linalg.norm(b)
    if min(lengths) == 0:
        return 0.0
    a, b = a / lengths[0], b / lengths[1]
    return float(np.linalg.norm(b - (a @ b) * a))


@one_thread
def lowest_curvatures(dataset: Dataset, query: Float[ArrayLike, "d r"], k: int = 4) -> Float[Array, " k"]:
    """The k lowest eigenvalues of the Hessian of R at Q, ascending; lambda is the curvature of the penalty alone.

    All positive at a minimum, but for the r (r - 1)/2 zeros that the invariance Q -> Q O makes where r > 1.

    Raises:
        ValueError: names the argument, what it must be and what it got.
    """
    risk = EmpiricalRisk(dataset)
    query = _checks.array("query", query, (dataset.dimension, dataset.task.student_rank))
    k = _checks.integer("k", k, 1, query.size)
    hessian = risk.hessian(query)
    if 2 * k >= query.size:  # the whole matrix costs less than Lanczos' method
        values: Array = np.linalg.eigvalsh(hessian @ np.eye(query.size))[:k]
        return values
    inverse = _inverse_curvature(risk, query)
    if inverse == 0:
        return np.zeros(k)
    # ARPACK wants an error relative to the eigenvalue, which one that is 0 never meets: it then returns the next one
    shift = 2 / inverse
    rng = _checks.generator(0, stream=2)  # not the numbers of a Q* of seed 0, which can have no part along a zero mode

    def lowest(k: int, found: Float[Array, "size j"]) -> tuple[Float[Array, " k"], Float[Array, "size k"]]:
        def product(vector: Array) -> Array:
            result: Array = hessian.matvec(vector) + shift * (vector + 2 * found @ (found.T @ vector))
            return result

        operator = LinearOperator(hessian.shape, matvec=product, dtype=np.float64)
        pair: tuple[Array, Array] = eigsh(operator, k=k, which="SA", v0=rng.standard_normal(query.size), tol=1e-8)
        return pair

    values, vectors = lowest(k, np.empty((query.size, 0)))
    while True:  # Lanczos' method sees an eigenvalue with several vectors once: look again, without the vectors found
        value, vector = lowest(1, vectors)
        if value[0] > np.sort(values)[k - 1] - 1e-8 * shift:
            return np.sort(values)[:k] - shift
        values, vectors = np.append(values, value), np.hstack([vectors, vector])


@dataclass(frozen=True)
class RiskPath:
    """A path between two minima, from point to point.

    Attributes:
        queries: (k, d, r), equally spaced along the path, the two minima at the ends.
        arc: (k,), length along the path, from 0 to 1.
        train_loss: (k,), R/d. Its largest value bounds from above the lowest pass between the two minima.
    """

    queries: Float[Array, "k d r"]
    arc: Float[Array, " k"]
    train_loss: Float[Array, " k"]


@one_thread
def path_between(
    dataset: Dataset,
    first: Float[ArrayLike, "d r"],
    second: Float[ArrayLike, "d r"],
    *,
    n_points: int = 21,
    n_steps: int = 100,
) -> RiskPath:
    """The straight segment between two minima (`n_steps` = 0), or a path that climbs less.

    The string method (E, Ren, Vanden-Eijnden 2007, simplified form): the inner points make a step of gradient descent,
    its length the inverse of the largest curvature at the two ends, and are spread evenly along their line again;
    `n_steps` times. The result is a path, not the best one: the landscape between the minima is rough.

    Raises:
        ValueError: names the argument, what it must be and what it got.
    """
    risk = EmpiricalRisk(dataset)
    shape = (dataset.dimension, dataset.task.student_rank)
    first, second = _checks.array("first", first, shape), _checks.array("second", second, shape)
    n_points = _checks.integer("n_points", n_points, 3)
    n_steps = _checks.integer("n_steps", n_steps, 0)
    if np.linalg.norm(first - second) <= 1e-9 * np.linalg.norm(first):
        raise ValueError("first and second must be two different students; got the same one twice, to nine digits")
    rate = min(_inverse_curvature(risk, end) for end in (first, second))
    evenly = np.linspace(0, 1, n_points)
    queries = (1 - evenly[:, None, None]) * first + evenly[:, None, None] * second
    for _ in range(n_steps):
        for query in queries[1:-1]:
            query -= rate * risk.slope(query).gradient
        queries[1:-1] = make_interp_spline(_arc(queries), queries, k=1)(evenly[1:-1])
    train_loss = np.array([risk.value(query) for query in queries]) / dataset.dimension
    return RiskPath(queries, _arc(queries), train_loss)


def _arc(queries: Float[Array, "k d r"]) -> Float[Array, " k"]:
    """Length along a broken line, from 0 to 1."""
    arc: Array = np.concatenate([[0], np.cumsum(np.linalg.norm(np.diff(queries, axis=0), axis=(1, 2)))])
    arc /= arc[-1]
    return arc
