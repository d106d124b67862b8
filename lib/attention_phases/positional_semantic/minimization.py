"""Minimisers of the empirical risk, and what is known of the student that they find."""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike
from scipy.optimize import OptimizeResult, minimize
from scipy.sparse.linalg import eigsh, minres

from attention_phases import _checks
from attention_phases._arrays import Array, IntArray
from attention_phases._blas import one_thread
from attention_phases.errors import ConvergenceError
from attention_phases.positional_semantic.empirical_risk import (
    EmpiricalRisk,
    OutOfEvaluationsError,
    Slope,
    inverse_curvature,
)
from attention_phases.positional_semantic.teacher_student import (
    Dataset,
    Seed,
    generalization_error,
    order_parameters,
)

Start = Literal["semantic", "positional", "mixed", "random"]
Method = Literal["lbfgs", "gradient_descent", "adam"]

_NEAR = 1e-3  # gradient_norm below which a point is taken to be in the quadratic neighbourhood of a minimum


@dataclass(frozen=True)
class Descent:
    """What was recorded on the way of a minimisation, one entry a recorded step (the last step always is).

    Attributes:
        steps: (T,), number of updates made before.
        train_loss: (T,), R/d.
        q, m, theta: (T,) where r = t = 1, else (T, r, r), (T, r), (T, r, t): order parameters.
    """

    steps: IntArray
    train_loss: Float[Array, " T"]
    q: Array
    m: Array
    theta: Array


@dataclass(frozen=True)
class Fit:
    """A student, and what is known of it.

    Attributes:
        query: Q, (d, r), in the gauge of `gauge_rotation`.
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

    What is checked is the gradient: a point that has converged is stationary. A descent ends at a saddle only if it is
    started on its ridge; at the origin, which is always stationary, "lbfgs" looks for a way down.

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
    _checks.instance("dataset", dataset, Dataset)
    _checks.choice("method", method, ("lbfgs", "gradient_descent", "adam"))
    tolerance = _checks.real("tolerance", tolerance, 0, open_low=True)
    max_evaluations = _checks.integer("max_evaluations", max_evaluations, 1)
    n_steps = _checks.integer("n_steps", n_steps, 0)
    if learning_rate is not None:
        rate = _checks.real("learning_rate", learning_rate, 0, _checks.LARGEST, open_low=True)
    else:
        rate = 0.01 if method == "adam" else 0.15
    recorder = _Recorder(dataset, None if record_every is None else _checks.integer("record_every", record_every, 1))
    query = starting_query(dataset, start, _checks.generator(seed, stream=1))  # the sample's seed may be the same

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


def _reference(dataset: Dataset) -> Float[Array, "d t+1"]:
    return np.hstack([dataset.teacher_query, np.ones((dataset.dimension, 1))])


def starting_query(dataset: Dataset, start: Start | ArrayLike, rng: np.random.Generator) -> Float[Array, "d r"]:
    """The Q, (d, r), from which `minimize_risk` starts; a ValueError names what is wrong with `start`."""
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

    The basins hold many minima. The first steps of L-BFGS alone are long, and often end in a higher one of them than
    plain gradient descent; after a start along the gradient they do not. At the end, the line search compares risks,
    and near a minimum their differences drown in rounding; Newton's steps do not. The origin is a stationary point of
    every risk, and seldom a minimum: a descent that ends there goes on along the softest direction, if that leads down.
    """
    with contextlib.suppress(OutOfEvaluationsError):
        if not _at_origin(descent.query):
            _descend(descent, tolerance)
        if _at_origin(descent.query) and _leave_origin(descent):
            _descend(descent, tolerance)


def _descend(descent: _Descending, tolerance: float) -> None:
    for method in (_follow_gradient, _quasi_newton, _newton):
        if descent.slope.relative_norm > tolerance:
            method(descent, tolerance)


def _at_origin(query: Float[Array, "d r"]) -> bool:
    return bool(np.linalg.norm(query) < 1e-6 * np.sqrt(len(query)))


def _leave_origin(descent: _Descending) -> bool:
    """Make a small step from Q = 0 along the direction of lowest curvature, if that is negative."""
    shape = descent.query.shape
    hessian, size = descent.risk.hessian(np.zeros(shape)), descent.query.size
    if size < 10:  # too few for Lanczos' method
        values, vectors = np.linalg.eigh(hessian @ np.eye(size))
    else:
        start = np.random.default_rng(0).standard_normal(size)
        values, vectors = eigsh(hessian, k=1, which="SA", v0=start, tol=1e-2)
    if values[0] >= 0:
        return False
    candidate = 1e-3 * np.sqrt(len(descent.query)) * vectors[:, 0].reshape(shape)
    descent.move(candidate, descent.risk.slope(candidate))
    return True


def _follow_gradient(descent: _Descending, tolerance: float) -> None:
    """Steps of gradient descent, each the inverse of twice the largest curvature at the start; less where R rises."""
    rate = inverse_curvature(descent.risk, descent.query) / 2
    for _ in range(30):
        candidate = descent.query - rate * descent.slope.gradient
        new = descent.risk.slope(candidate)
        if new.risk > descent.slope.risk:
            rate /= 2
            continue
        descent.move(candidate, new)
        if new.relative_norm <= tolerance:
            return


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
