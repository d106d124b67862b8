"""The shape of the empirical risk: sections, curvatures, and paths between minima."""

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike
from scipy.interpolate import make_interp_spline
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh

from attention_phases import _checks
from attention_phases._arrays import Array
from attention_phases._blas import one_thread
from attention_phases.errors import ConvergenceError
from attention_phases.positional_semantic.empirical_risk import EmpiricalRisk, inverse_curvature
from attention_phases.positional_semantic.teacher_student import Dataset

_DENSE = 400  # rows of a Hessian that is still cheap as a matrix
_PARALLEL = 1e-9  # sine of an angle below which two students are on one line


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
    first: ArrayLike,
    second: ArrayLike,
    *,
    extent: float = 1.5,
    resolution: int = 61,
) -> RiskPlane:
    """R/d on the square grid of the plane that reaches `extent` times as far as the farther of the two students.

    The students, `first` and `second`, are of shape (d, r).
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
def lowest_curvatures(dataset: Dataset, query: ArrayLike, k: int = 4) -> Float[Array, " k"]:
    """The k lowest eigenvalues of the Hessian of R at Q, ascending; lambda is the curvature of the penalty alone.

    `query` is Q, (d, r).
    All positive at a minimum, but for the r (r - 1)/2 zeros that the invariance Q -> Q O makes where r > 1.

    Their error is some 1e-8 of the largest curvature.

    Raises:
        ValueError: names the argument, what it must be and what it got.
        ConvergenceError: Lanczos' method stopped before that; `last` has the curvatures that it found.
    """
    risk = EmpiricalRisk(dataset)
    query = _checks.array("query", query, (dataset.dimension, dataset.task.student_rank))
    k = _checks.integer("k", k, 1, query.size)
    hessian = risk.hessian(query)
    if query.size <= max(_DENSE, 2 * k):  # the whole matrix costs less than Lanczos' method
        values: Array = np.linalg.eigvalsh(hessian @ np.eye(query.size))[:k]
        return values
    inverse = inverse_curvature(risk, query)
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
        start = rng.standard_normal(query.size)
        try:
            pair: tuple[Array, Array] = eigsh(operator, k=k, which="SA", v0=start, tol=1e-8)
        except ArpackNoConvergence as error:
            raise ConvergenceError(f"no curvatures: {error}", error.eigenvalues - shift, math.nan) from None
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
        train_loss: (k,), R/d. To the resolution of the k points, its largest value bounds from above the lowest pass
            between the two minima.
    """

    queries: Float[Array, "k d r"]
    arc: Float[Array, " k"]
    train_loss: Float[Array, " k"]


@one_thread
def path_between(
    dataset: Dataset,
    first: ArrayLike,
    second: ArrayLike,
    *,
    n_points: int = 21,
    n_steps: int = 100,
) -> RiskPath:
    """The straight segment between two minima (`n_steps` = 0), or a path that climbs less.

    The minima, `first` and `second`, are of shape (d, r).
    The string method (E, Ren, Vanden-Eijnden 2007, simplified form): the inner points make a step of gradient descent,
    its length the inverse of the largest curvature at the two ends (where the risk would rise: none), and are spread
    evenly along their line again; `n_steps` times, or until two points meet. The result is a path, not the best one:
    the landscape between the minima is rough. It is the straight segment, if that climbs less.

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
    rate = min(inverse_curvature(risk, end) for end in (first, second))
    evenly = np.linspace(0, 1, n_points)
    queries = (1 - evenly[:, None, None]) * first + evenly[:, None, None] * second
    straight = queries.copy()
    for _ in range(n_steps):
        for query in queries[1:-1]:
            slope = risk.slope(query)
            candidate = query - rate * slope.gradient
            if risk.value(candidate) < slope.risk:
                query[:] = candidate
        arc = _arc(queries)
        if np.diff(arc).min() <= 0:
            break
        queries[1:-1] = make_interp_spline(arc, queries, k=1)(evenly[1:-1])
    paths = [RiskPath(path, _arc(path), _losses(risk, path)) for path in (queries, straight)]
    return min(paths, key=lambda path: path.train_loss.max())


def _losses(risk: EmpiricalRisk, queries: Float[Array, "k d r"]) -> Float[Array, " k"]:
    return np.array([risk.value(query) for query in queries]) / risk.dataset.dimension


def _arc(queries: Float[Array, "k d r"]) -> Float[Array, " k"]:
    """Length along a broken line, from 0 to 1."""
    arc: Array = np.concatenate([[0], np.cumsum(np.linalg.norm(np.diff(queries, axis=0), axis=(1, 2)))])
    arc /= arc[-1]
    return arc
