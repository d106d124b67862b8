"""Whether two copies of the student, trained on the same data, come to agree.

Replica symmetry assumes that they do. Let the fields of two copies, given the teacher's, have the means and variances
of a fixed point of state evolution, but be apart by the share x in (0, 1] of what is not fixed by overlaps:

    w^a_l = c_l m + theta s_l/sigma^2 + kappa^(1/2) [(1 - x)^(1/2) zeta_l + x^(1/2) zeta^a_l],    a = 1, 2,

so that Var(w^1_l - w^2_l) = 2 x kappa, with kappa = q - theta theta^T/sigma^2. Both go through the proximal map of the
same samples. One step of state evolution for the pair (`state_evolution`, with q^ between the copies) gives

    Var(w^1_l - w^2_l) = alpha V E[sum_k (g^1_k - g^2_k)(g^1_k - g^2_k)^T] V.

The ratio of the new variance to the old tends to the replicon as x goes to 0 where g is smooth; where g jumps it grows
as x^(-1/2). Below 1 the copies approach each other.
"""

import numpy as np

from attention_phases import _checks
from attention_phases._blas import one_thread
from attention_phases.estimates import Estimate
from attention_phases.positional_semantic.averages import Point, kappa, limiting_loss, root
from attention_phases.positional_semantic.proximal import proximal_map
from attention_phases.positional_semantic.quadrature import gaussian_nodes, mean_over_scrambles
from attention_phases.positional_semantic.state_evolution import FixedPoint
from attention_phases.positional_semantic.teacher_student import Seed

_SCRAMBLES = 8


@one_thread
def distance_ratio(point: FixedPoint, share: float, *, log2_nodes: int = 16, seed: Seed = 0) -> Estimate:
    """By which factor one step multiplies the squared distance of two copies that are apart by `share`.

    Args:
        point: a fixed point of state evolution.
        share: x, in (0, 1]: squared distance over 2 tr kappa.
        log2_nodes: 2^log2_nodes scrambled Sobol nodes in all, in eight scrambles, for L (3 r + t) variables.
        seed: whole number or NumPy Generator; fixes the nodes.

    Raises:
        ValueError: names the argument, what it must be and what it got.
    """
    if not isinstance(point, FixedPoint):
        raise ValueError(f"point must be a FixedPoint; got {_checks.shown(point)}")
    share = _checks.real("share", share, 0, 1, open_low=True)
    log2_nodes = _checks.integer("log2_nodes", log2_nodes, 8, 21)
    seed = _checks.seed(seed)
    task = point.task
    n_tokens, r, t = task.n_tokens, task.student_rank, task.teacher_rank
    here = Point.of(task, point.overlaps)
    covariance = kappa(task, here)
    rng = np.random.default_rng([seed, log2_nodes])
    nodes = gaussian_nodes(n_tokens * (3 * r + t), log2_nodes - 3, _SCRAMBLES, rng)
    z = nodes.reshape(-1, n_tokens, 3 * r + t)  # (N, L, 3 r + t)
    common, first, second, s = np.split(z, [r, 2 * r, 3 * r], axis=2)
    s = task.sigma * s
    loss = limiting_loss(task, np.moveaxis(s, 0, -1))
    mean = task.positions[:, None] * here.m + s @ here.theta.T / task.sigma**2
    factor = root(covariance)
    copies = [mean + (np.sqrt(1 - share) * common + np.sqrt(share) * own) @ factor for own in (first, second)]
    forces = [proximal_map(np.moveaxis(w, 0, -1), loss, here.V).residual for w in copies]
    apart = np.einsum("ab,lbn->lan", here.V, forces[0] - forces[1])
    squares = point.alpha * (apart**2).sum(axis=(0, 1)) / (2 * share * np.trace(covariance))
    return mean_over_scrambles(squares.reshape(_SCRAMBLES, -1))
