"""Numbers with their errors, and the straight line in 1/d that takes them to infinite size."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike
from scipy.stats import binomtest

from attention_phases import _checks
from attention_phases._arrays import Array


@dataclass(frozen=True)
class Estimate:
    """A value and the standard error of its computation (not of a fit to nature)."""

    value: float
    standard_error: float


def standard_error(values: Float[Array, "*k R"]) -> Float[Array, " *k"]:
    """Of the mean over R independent values, from their scatter."""
    n = values.shape[-1]
    deviations = values - values.sum(axis=-1, keepdims=True) / n
    return np.asarray(np.sqrt((deviations**2).sum(axis=-1) / (n * (n - 1))))


def share_of(hits: ArrayLike) -> tuple[float, float, float]:
    """Share of the true among the values (n,), and how far its 68 % interval (Wilson's) reaches down and up.

    Raises:
        ValueError: there are no values, or other ones than true and false.
    """
    values = np.asarray(hits)
    if values.dtype != bool or values.ndim != 1 or not len(values):
        raise ValueError(f"hits must be a list of True and False; got {_checks.shown(hits)}")
    ends = binomtest(int(values.sum()), len(values)).proportion_ci(0.68, method="wilson")
    mean = float(values.mean())
    return mean, mean - float(ends.low), float(ends.high) - mean


@dataclass(frozen=True)
class SizeLine:
    """A straight line in 1/d: what `extrapolate` returns.

    Attributes:
        limit: its value at d = infinity.
        slope: by which a unit of 1/d adds to it.
        covariance: of slope and limit, in this order.
        misfit: chi^2 for each degree of freedom, NaN with two sizes; about one where the line describes the means.
    """

    limit: Estimate
    slope: float
    covariance: Float[Array, "2 2"]
    misfit: float

    def at(self, sizes: ArrayLike) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
        """Values of the line at some sizes (n,), infinity among them, and their standard errors."""
        inverse = 1 / np.asarray(sizes, dtype=float)
        design = np.stack([inverse, np.ones_like(inverse)])
        variances = np.einsum("in,ij,jn->n", design, self.covariance, design)
        return self.limit.value + self.slope * inverse, np.sqrt(variances)


def extrapolate(sizes: ArrayLike, means: ArrayLike, standard_errors: ArrayLike) -> SizeLine:
    """Fit a straight line in 1/d to means at two sizes d or more (n,), each with the weight of its standard error.

    The errors are taken as they are: how far the means scatter about the line changes `misfit` alone.

    Raises:
        ValueError: names the argument, what it must be and what it got.
    """
    d = _checks.array("sizes", sizes, (None,))
    if not (d > 0).all() or len(np.unique(d)) < 2:
        raise ValueError(f"sizes must have two different positive numbers or more; got {_checks.shown(sizes)}")
    mean = _checks.array("means", means, (len(d),))
    error = _checks.array("standard_errors", standard_errors, (len(d),))
    if not (error > 0).all():
        raise ValueError(f"standard_errors must be positive; got {_checks.shown(standard_errors)}")
    line, covariance = np.polyfit(1 / d, mean, 1, w=1 / error, cov="unscaled")
    freedom = len(d) - 2
    squares = float((((mean - np.polyval(line, 1 / d)) / error) ** 2).sum())
    limit = Estimate(float(line[1]), float(np.sqrt(covariance[1, 1])))
    return SizeLine(limit, float(line[0]), covariance, squares / freedom if freedom else float("nan"))
