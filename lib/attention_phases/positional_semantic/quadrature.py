"""Nodes for averages over Gaussian vectors: scrambled Sobol points, with an error bar from independent scrambles."""

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray
from scipy.special import ndtri
from scipy.stats import qmc

from attention_phases.estimates import Estimate

Array = NDArray[np.float64]
_BITS = 30  # resolution of the Sobol points; half a step keeps them off 0, where the normal quantile is infinite


def gaussian_nodes(
    dimension: int, log2_nodes: int, n_scrambles: int, rng: np.random.Generator
) -> Float[Array, "scrambles nodes dimension"]:
    """Standard normal nodes of equal weight: `n_scrambles` independent randomisations of 2^log2_nodes Sobol points.

    The mean over the nodes of one scramble is an unbiased estimate of the Gaussian average. The scatter of the
    scrambles' means gives its standard error.
    """
    scrambles = [
        qmc.Sobol(dimension, scramble=True, bits=_BITS, rng=child).random_base2(log2_nodes)
        for child in rng.spawn(n_scrambles)
    ]
    return np.asarray(ndtri(np.stack(scrambles) + 2.0 ** -(_BITS + 1)))


def mean_over_scrambles(values: Float[Array, "scrambles nodes"]) -> Estimate:
    """Mean over all nodes, and its standard error from the scatter of the scrambles' means."""
    means = values.mean(axis=1)
    return Estimate(float(means.mean()), float(means.std(ddof=1) / np.sqrt(len(means))))
