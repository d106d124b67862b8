"""Nodes for averages over Gaussian vectors, with an error bar from independent randomisations.

Two families. Scrambled Sobol points (`gaussian_nodes`, `sobol_rule`) serve any dimension. In four dimensions a smooth
average converges much faster on a lattice (`lattice_rule`): the trapezoidal rule of the whole space, exact to high
order for what varies little from one point to the next. A random rotation and a random shift make each lattice an
unbiased estimate, but for the tail that is cut off; a few random points there supply it.
"""

import itertools
import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import ArrayLike
from scipy.optimize import brentq
from scipy.special import gammaincc, gammainccinv, ndtri
from scipy.stats import qmc

from attention_phases._arrays import Array, IntArray
from attention_phases.estimates import Estimate, standard_error

_BITS = 30  # resolution of the Sobol points; half a step keeps them off 0, where the normal quantile is infinite
_SPREAD = 0.02


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
    return Estimate(float(means.mean()), float(standard_error(means)))


@dataclass(frozen=True, eq=False)
class GaussianRule:
    """Independent randomisations of one rule, one after the other.

    Attributes:
        nodes: (dimension, N).
        weights: (N,); those of one randomisation sum to about 1.
        starts: (R,), index of the first node of each randomisation.
    """

    nodes: Float[Array, "dimension N"]
    weights: Float[Array, " N"]
    starts: Int[IntArray, " R"]

    @property
    def n_nodes(self) -> int:
        """N, of all randomisations together."""
        return len(self.weights)

    def closed_under(self, signs: ArrayLike) -> "GaussianRule":
        """Each randomisation together with its image under a flip of some coordinates' signs: twice as many nodes."""
        flipped = self.nodes * np.asarray(signs, dtype=np.float64)[:, None]
        ends = np.append(self.starts, self.n_nodes)
        order = np.concatenate(
            [np.r_[low:high, self.n_nodes + low : self.n_nodes + high] for low, high in itertools.pairwise(ends)]
        )
        nodes = np.concatenate([self.nodes, flipped], axis=1)[:, order]
        return GaussianRule(nodes, np.tile(self.weights / 2, 2)[order], 2 * self.starts)

    def means(self, values: Float[Array, "*k N"]) -> Float[Array, "*k R"]:
        """The Gaussian average of some functions, by each randomisation."""
        result: Array = np.add.reduceat(values * self.weights, self.starts, axis=-1)
        return result


def sobol_rule(dimension: int, log2_nodes: int, n_randomisations: int, rng: np.random.Generator) -> GaussianRule:
    """Scrambled Sobol points of equal weight: `n_randomisations` times 2^log2_nodes of them."""
    nodes = gaussian_nodes(dimension, log2_nodes, n_randomisations, rng)
    n = 2**log2_nodes
    flat = np.ascontiguousarray(nodes.reshape(-1, dimension).T)
    return GaussianRule(flat, np.full(flat.shape[1], 1 / n), n * np.arange(n_randomisations))


def lattice_rule(
    dimension: int,
    log2_nodes: int,
    n_randomisations: int,
    rng: np.random.Generator,
    frame: ArrayLike,
    n_far: int = 0,
) -> GaussianRule:
    """Randomly rotated and shifted lattices D_n inside a ball, with Gaussian weights.

    Each of the randomisations has about 2^log2_nodes nodes, and n_far more outside the ball: random points of the
    Gaussian's tail, with its mass. Without them the tail is missing in all randomisations alike, and the error of their
    mean is not seen in their scatter. A smooth radial map, ``z = u (1 + 0.02 |u|^2)`` of lattice
    points u, spreads them where the weights are small. The ball grows slowly with their number, so that the tail
    outside and the discreteness inside stay of one order. A factor in the weights makes the rule exact for polynomials
    in |z|^2 of degree 3.

    `frame` has orthogonal columns; the rule is finer along a longer one, in proportion to its length.
    """
    axes = np.asarray(frame, dtype=np.float64)
    lengths = np.linalg.norm(axes, axis=0)
    squeeze = (
        axes / lengths**2 * lengths.prod() ** (1 / dimension)
    )  # columns: the frame's directions, shorter where finer
    n = 2**log2_nodes
    radius = brentq(lambda u: u * (1 + _SPREAD * u**2) - 4.95 * (n / 512) ** 0.085, 0, 20)
    volume = math.pi ** (dimension / 2) / math.gamma(dimension / 2 + 1) * radius**dimension
    basis = _checkerboard(dimension) * (volume / n) ** (1 / dimension)
    moments = np.cumprod([1.0, dimension, dimension + 2, dimension + 4])  # of |z|^0, |z|^2, |z|^4, |z|^6
    nodes, weights = [], []
    tail = gammaincc(dimension / 2, (radius * (1 + _SPREAD * radius**2)) ** 2 / 2)  # mass outside
    for child in rng.spawn(n_randomisations):
        rotation = np.linalg.qr(child.standard_normal((dimension, dimension))).Q
        turned = basis @ rotation @ squeeze.T
        points = _points_in_ball(turned, child.random(dimension) @ turned, radius)
        squares = (points**2).sum(axis=0)
        stretch = 1 + _SPREAD * squares
        weight = volume / n * stretch ** (dimension - 1) * (1 + 3 * _SPREAD * squares)  # the map's Jacobian
        points *= stretch
        squares *= stretch**2
        weight *= np.exp(-squares / 2) / (2 * math.pi) ** (dimension / 2)
        if n_far:
            levels = (np.arange(n_far) + child.random(n_far)) / n_far
            far = 2 * gammainccinv(dimension / 2, tail * levels)  # |z|^2, one of each n_far-th part of the tail
            away = child.standard_normal((dimension, n_far))
            points = np.concatenate([points, away * np.sqrt(far / (away**2).sum(axis=0))], axis=1)
            squares = np.append(squares, far)
            weight = np.append(weight, np.full(n_far, tail / n_far))
        powers = squares ** np.arange(4)[:, None]
        weight *= np.linalg.solve((powers * weight) @ powers.T, moments) @ powers
        nodes.append(points)
        weights.append(weight)
    starts = np.concatenate([[0], np.cumsum([len(weight) for weight in weights])[:-1]])
    return GaussianRule(np.concatenate(nodes, axis=1), np.concatenate(weights), starts)


def _checkerboard(dimension: int) -> Float[Array, "dimension dimension"]:
    """Basis of the lattice D_n (whole numbers with an even sum), scaled to one point per unit volume."""
    basis = np.eye(dimension) - np.eye(dimension, k=1)
    basis[-1, -2:] = 1
    return np.asarray(basis / abs(np.linalg.det(basis)) ** (1 / dimension))


def _points_in_ball(
    basis: Float[Array, "dimension dimension"], shift: Float[Array, " dimension"], radius: float
) -> Float[Array, "dimension n"]:
    """All points ``k basis + shift``, k whole, with norm at most the radius.

    In the frame of the basis' orthogonal factor the coordinates depend on k one after the other, so the whole numbers
    are enumerated one coordinate at a time, within the bounds that the coordinates before leave.
    """
    frame, triangle = np.linalg.qr(basis.T)  # basis = triangle^T frame^T; coordinate i takes k_j with j >= i
    dimension = len(shift)
    offset = shift @ frame
    chosen = np.zeros((dimension, 1))
    left = np.full(1, radius**2)
    for i in reversed(range(dimension)):
        centre = triangle[i, i + 1 :] @ chosen[i + 1 :] + offset[i]
        scale = triangle[i, i]
        reach = np.sqrt(left)
        ends = np.stack([-reach - centre, reach - centre]) / scale
        low, high = np.ceil(ends.min(axis=0)), np.floor(ends.max(axis=0))
        counts = np.maximum(high - low + 1, 0).astype(np.int64)
        parent = np.repeat(np.arange(len(counts)), counts)
        first = np.repeat(np.cumsum(counts) - counts, counts)
        k = low[parent] + np.arange(len(parent)) - first
        chosen = chosen[:, parent]
        chosen[i] = k
        left = np.maximum(left[parent] - (centre[parent] + scale * k) ** 2, 0)
    return np.ascontiguousarray(frame @ (triangle @ chosen + offset[:, None]))
