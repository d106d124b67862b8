"""A number with its error."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

Array = NDArray[np.float64]


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
