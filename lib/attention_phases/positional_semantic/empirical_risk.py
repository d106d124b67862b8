"""The empirical risk of a data set, with its gradient and Hessian.

Cui, Behrens, Krzakala, Zdeborova, NeurIPS 2024 (arXiv 2402.03902), section 2:

    R(Q) = sum_mu |y_mu - f_Q(x_mu)|_F^2/(2 d) + lambda/2 |Q|_F^2,      epsilon_t = min R/d.

Every function of Q here works with the local fields ``h = (x + p) Q/sqrt(d)``, (L, r) a sample: the squared errors
and their derivatives are small forms in them (`SampleLoss`), so one evaluation of the risk and its gradient costs
one product with the (n L, d) matrix of tokens and one with its transpose.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.sparse.linalg import LinearOperator, eigsh

from attention_phases import _checks
from attention_phases._arrays import Array
from attention_phases.positional_semantic.teacher_student import Dataset


class Slope(NamedTuple):
    """Risk and gradient at one point.

    `scale` is ``|X^T g|/sqrt(d) + lambda |Q| + floor``: the two parts that cancel at a stationary point, and a floor
    that counts only where they vanish: a thousandth of ``lambda sqrt(d) + sigma^2 sqrt(n)``, of which the first is the
    penalty's part at ``|Q| = sqrt(d)`` and the second what the losses' part is at most, in order of magnitude, where
    attention is neither even nor saturated.
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
    """R(Q) of a dataset, with its gradient and Hessian. Q is an array of shape (d, r); R is of order d.

    Attributes:
        n_evaluations: gradients and Hessian products computed so far; each costs the same two products with the tokens.

    Raises:
        ValueError: names the argument, what it must be and what it got.
        OutOfEvaluationsError: at the gradient or Hessian product after the `max_evaluations`-th.
    """

    def __init__(self, dataset: Dataset, max_evaluations: int | None = None) -> None:
        _checks.instance("dataset", dataset, Dataset)
        self.dataset = dataset
        self._rows = dataset.tokens.reshape(-1, dataset.dimension)  # (n L, d), a view
        self._root = np.sqrt(dataset.dimension)
        task = dataset.task
        self._floor = 1e-3 * (task.regularization * self._root + task.sigma**2 * np.sqrt(dataset.n_samples))
        if max_evaluations is not None:
            _checks.integer("max_evaluations", max_evaluations, 0)
        self._max_evaluations = max_evaluations
        self.n_evaluations = 0

    def _count(self) -> None:
        if self.n_evaluations == self._max_evaluations:
            raise OutOfEvaluationsError
        self.n_evaluations += 1

    def fields(self, query: Float[Array, "d r"]) -> Float[Array, "L r n"]:
        """Local fields ``(x + p) Q/sqrt(d)``, samples last."""
        query = _checks.array("query", query, (self.dataset.dimension, self.dataset.task.student_rank))
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
        query = np.asarray(query, dtype=np.float64)
        fields = self.fields(query)
        strength = self.dataset.task.regularization

        def product(direction: Array) -> Array:
            self._count()
            d_query = direction.reshape(query.shape)
            change = self.dataset.sample_loss.hessian_product(fields, self.fields(d_query))
            return np.ravel(self._pull_back(change) + strength * d_query)

        return LinearOperator((query.size, query.size), matvec=product, rmatvec=product, dtype=np.float64)


def inverse_curvature(risk: EmpiricalRisk, query: Float[Array, "d r"]) -> float:
    """The inverse of the largest eigenvalue in size of the Hessian, to a few per cent; 0 where the Hessian is 0."""
    hessian, start = risk.hessian(query), np.random.default_rng(0).standard_normal(query.size)
    image = hessian.matvec(start)
    if not image.any():
        return 0.0
    if query.size == 1:
        return float(np.abs(start / image)[0])
    return 1 / float(np.abs(eigsh(hessian, k=1, v0=start, tol=0.05, return_eigenvectors=False))[0])
