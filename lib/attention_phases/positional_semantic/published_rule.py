"""State evolution with the fixed rule of 144 nodes with which the published curves were computed.

Cui, Behrens, Krzakala, Zdeborova, NeurIPS 2024 (arXiv 2402.03902). Not a way to solve the equations (`state_evolution`
is), but to find out which numbers a rule this coarse gives for them: the averages over (xi_1, xi_2), the student's
fields, and over (eta_1, eta_2), what is left of the teacher's, each take the 12-point rule of degree seven,

    w_l = c_l m + sqrt(q) xi_l,    s_l = theta xi_l/sqrt(q) + sqrt(sigma^2 - theta^2/q) eta_l,

and the map of `averages` is iterated with damping. L = 2, r = t = 1.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from attention_phases import _checks
from attention_phases._arrays import Array
from attention_phases.errors import ConvergenceError
from attention_phases.positional_semantic.averages import Overlaps, Point, free_energy, limiting_loss, model
from attention_phases.positional_semantic.proximal import proximal_map
from attention_phases.positional_semantic.teacher_student import Task

DAMPING = {"semantic": 0.5, "positional": 0.8}  # the positional point is unstable under less
_TOLERANCE = 1e-6  # largest change of an overlap in the last step
_MOST_STEPS = 2000


@dataclass(frozen=True)
class CoarsePoint:
    """A fixed point of the coarse map, and its two errors by the same nodes."""

    q: float
    m: float
    V: float
    theta: float
    train_loss: float
    test_error: float

    @property
    def overlaps(self) -> Overlaps:
        """The order parameters alone."""
        return Overlaps(self.q, self.m, self.V, self.theta)


@dataclass(frozen=True)
class Errors:
    """Both errors at some overlaps, and the functional of `averages`, which is the training loss at a solution."""

    train_loss: float
    test_error: float
    free_energy: float


def degree_seven_rule() -> tuple[Float[Array, "2 12"], Float[Array, " 12"]]:
    """Nodes and weights for two standard normal variables, exact for polynomials of degree seven.

    Four points (r, 0), ... with r^2 = 6 and weight 1/36, and two times four (a, a), ..., where the a^2 are the roots of
    x^2 - 9 x/2 + 9/4, as the moments up to x^6 and x^4 y^2 demand.
    """
    near, far = (9 - np.sqrt(45)) / 4, (9 + np.sqrt(45)) / 4
    share = (2 / 3 - 8 / 9 * near) / (far - near)
    corners = np.array([[1, 1, -1, -1], [1, -1, 1, -1]])
    axes = np.sqrt(6) * np.array([[1, -1, 0, 0], [0, 0, 1, -1]])
    nodes = np.concatenate([axes, np.sqrt(far) * corners, np.sqrt(near) * corners], axis=1)
    return nodes, np.repeat([1 / 36, share / 4, (8 / 9 - share) / 4], 4)


def coarse_point(task: Task, alpha: float, branch: str, start: CoarsePoint | None = None) -> CoarsePoint:
    """Where damped iteration of the coarse map ends, from a start on the branch or near it.

    Args:
        task: what is learned from what; L = 2, r = t = 1.
        alpha: n/d, > 0.
        branch: "semantic" or "positional".
        start: such as the point at another alpha; None: overlaps of the size that the running example has.

    Raises:
        ValueError: names the argument, what it must be and what it got.
        ConvergenceError: it did not come to rest.
    """
    _checks.instance("task", task, Task)
    if (shape := (task.n_tokens, task.student_rank, task.teacher_rank)) != (2, 1, 1):
        raise ValueError(f"task must have two tokens and rank one; got (L, r, t) = {shape}")
    alpha = _checks.real("alpha", alpha, 0, open_low=True)
    damping = DAMPING[_checks.choice("branch", branch, list(DAMPING))]
    if start is not None:
        here = np.array([start.q, start.m, start.V, start.theta])
    elif branch == "semantic":
        here = np.array([0.4 * task.sigma**2, 0, 15, 0.6 * task.sigma**2])
    else:
        here = np.array([0.2 * task.sigma**2, 0.25, 15, 0])
    for _ in range(_MOST_STEPS):
        new, train_loss, test_error = _step(task, alpha, here)
        if np.abs(new - here).max() < _TOLERANCE:
            q, m, V, theta = new.tolist()
            return CoarsePoint(q, m, V, theta, train_loss, test_error)
        here = damping * here + (1 - damping) * new
    raise ConvergenceError(
        f"the {branch} point at alpha = {alpha:g} did not come to rest in {_MOST_STEPS} steps",
        last=None,
        residual=float(np.abs(new - here).max()),
    )


def errors_at(task: Task, alpha: float, overlaps: Overlaps) -> Errors:
    """alpha E ell(h*) + lambda tr q/(2 sigma^2), E ell(w) and the functional, with the library's own nodes (2^14).

    The overlaps need not solve the equations: so the error of overlaps can be told from that of averages.

    Raises:
        ValueError: names the argument, what it must be and what it got.
    """
    _checks.instance("task", task, Task)
    alpha = _checks.real("alpha", alpha, 0, open_low=True)
    point, nodes = Point.of(task, overlaps), model(task, 14, 0)
    averages = nodes.averages(point)
    penalty = task.regularization * float(np.trace(point.q)) / (2 * task.sigma**2)
    return Errors(
        alpha * float(averages.loss.mean()) + penalty,
        float(nodes.test_loss(point).mean()),
        free_energy(task, alpha, point, averages),
    )


def _step(task: Task, alpha: float, here: Float[Array, " 4"]) -> tuple[Float[Array, " 4"], float, float]:
    """One step of the map from (q, m, V, theta), and both errors there."""
    q, m, V, theta = here
    pair, weight = degree_seven_rule()
    xi, eta = np.repeat(pair, 12, axis=1), np.tile(pair, 12)
    weights = np.repeat(weight, 12) * np.tile(weight, 12)
    variance = task.sigma**2
    left = np.sqrt(variance - theta**2 / q)
    w = task.positions[:, None] * m + np.sqrt(q) * xi
    loss = limiting_loss(task, (theta / np.sqrt(q) * xi + left * eta)[:, None])
    found = proximal_map(w[:, None], loss, V)
    g = found.residual[:, 0]
    q_hat = alpha * weights @ (g**2).sum(axis=0)
    m_hat = alpha * weights @ (task.positions @ g)
    theta_hat = alpha * weights @ (g * eta).sum(axis=0) / left
    V_hat = -alpha * weights @ (g * xi).sum(axis=0) / np.sqrt(q) + theta * theta_hat / q
    D = task.regularization + variance * V_hat
    spread = variance * q_hat + m_hat**2 + variance**2 * theta_hat**2
    new = np.array([variance * spread / D**2, m_hat / D, variance / D, variance**2 * theta_hat / D])
    train_loss = alpha * weights @ (found.objective - V * (g**2).sum(axis=0) / 2) + task.regularization * q / (
        2 * variance
    )
    return new, float(train_loss), float(weights @ loss.value(w[:, None]))
