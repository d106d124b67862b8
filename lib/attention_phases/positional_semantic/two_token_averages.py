"""What `averages` computes, for two tokens and one column of student and teacher: one pass over the nodes, compiled."""

import math

import numba
import numpy as np
from jaxtyping import Float, Int

from attention_phases._arrays import Array, IntArray

# sums may be taken in any order
_compiled = numba.njit(cache=True, error_model="numpy", nogil=True, fastmath={"contract", "nsz", "reassoc", "arcp"})


@_compiled
def two_token_averages(
    objective: Float[Array, " N"],
    minimizer: Float[Array, "2 N"],
    fields: Float[Array, "2 N"],
    zeta: Float[Array, "2 N"],
    teacher_fields: Float[Array, "2 N"],
    weights: Float[Array, " N"],
    bounds: Int[IntArray, " R+1"],
    positions: Float[Array, " 2"],
    kappa: float,
    V: float,
    theta: float,
    variance: float,
    shares: Float[Array, " shares"],
    preference: float,
) -> tuple[Float[Array, "6 R"], float]:
    """q^, m^, V^, theta^, E ell(h*) and E M by each randomisation, and to which share the hats were taken by parts.

    The nodes of each randomisation lie between two of the bounds. The first share is taken,
    unless V^ scatters less by more than the factor `preference` with another.
    """
    n = len(bounds) - 1
    result, forms = np.empty((6, n)), np.zeros((2, 3, n))
    c1, c2 = positions
    for i in range(n):
        total = 0.0
        for k in range(bounds[i], bounds[i + 1]):
            total += weights[k] * objective[k]
        result[5, i] = total
    centre = result[5].mean()
    for i in range(n):
        forces, by_zeta, by_place, by_teacher, M_zeta, M_place, M_teacher = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
        for k in range(bounds[i], bounds[i + 1]):
            weight, M = weights[k], weights[k] * (objective[k] - centre)
            g1, g2 = (minimizer[0, k] - fields[0, k]) / V, (minimizer[1, k] - fields[1, k]) / V
            z1, z2 = zeta[0, k], zeta[1, k]
            s1, s2 = teacher_fields[0, k], teacher_fields[1, k]
            forces += weight * (g1 * g1 + g2 * g2)
            by_zeta += weight * (g1 * z1 + g2 * z2)
            by_place += weight * (c1 * g1 + c2 * g2)
            by_teacher += weight * (g1 * s1 + g2 * s2)
            M_zeta += M * (z1 * z1 + z2 * z2)
            M_place += M * (c1 * z1 + c2 * z2)
            M_teacher += M * (z1 * s1 + z2 * s2)
        result[0, i], result[4, i] = forces, result[5, i] - 0.5 * V * forces
        forms[0, 0, i], forms[0, 1, i], forms[0, 2, i] = -by_zeta / math.sqrt(kappa), by_place, by_teacher
        forms[1, 0, i] = (M_zeta - 2 * (result[5, i] - centre)) / kappa
        forms[1, 1, i], forms[1, 2, i] = -M_place / math.sqrt(kappa), -M_teacher / math.sqrt(kappa)
    chosen, least = shares[0], math.inf
    if len(shares) > 1:
        for share in shares:
            scatter = (share * forms[1, 0] + (1 - share) * forms[0, 0]).std()
            if share != shares[0]:
                scatter *= preference
            if scatter < least:
                chosen, least = share, scatter
    V_hat, m_hat, teacher = chosen * forms[1] + (1 - chosen) * forms[0]
    result[1], result[2], result[3] = m_hat, V_hat, (V_hat * theta + teacher) / variance
    return result, chosen
