"""Time and accuracy of a fixed point of state evolution, beside the textbook way to compute one.

The textbook way, as honest versions of what is in use: the product of two 12-point rules of degree 7, one for
(xi_1, xi_2) and one for (eta_1, eta_2); scipy's BFGS for each proximal map, started at w; damped iteration until no
overlap changes by more than 1e-4. Once as a loop over the 144 nodes, and once with all nodes in one array.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from attention_phases.positional_semantic import FixedPoint, SampleLoss, Task, solve_state_evolution
from numpy.typing import NDArray
from scipy.optimize import minimize

if TYPE_CHECKING:
    from collections.abc import Callable

Array = NDArray[np.float64]
TASK = Task()
ALPHAS = np.linspace(1.2, 3.0, 7)
BRANCHES = ("semantic", "positional")


class Overlaps(NamedTuple):
    """What the textbook iteration is about."""

    q: float
    m: float
    V: float
    theta: float


def degree_seven_rule() -> tuple[Array, Array]:
    """The fully symmetric 12-point rule of degree 7 for two standard normal variables: nodes (2, 12), weights (12,).

    Points (r, 0) with r^2 = 6 and weight 1/36, and (s, s) with s^2 the two roots of x^2 - 9 x/2 + 9/4, follow from the
    moments up to x^6 and x^4 y^2.
    """
    far, near = (9 + np.sqrt(45)) / 4, (9 - np.sqrt(45)) / 4
    # b + c = 8/9 and b far + c near = 2/3, for four points each
    b = (2 / 3 - 8 / 9 * near) / (far - near)
    sets = [
        (np.sqrt(6), 0.0, 1 / 36),
        (np.sqrt(far), np.sqrt(far), b / 4),
        (np.sqrt(near), np.sqrt(near), (8 / 9 - b) / 4),
    ]
    nodes, weights = [], []
    for x, y, weight in sets:
        corners = {(x, y), (-x, y), (x, -y), (-x, -y)} if y else {(x, 0.0), (-x, 0.0), (0.0, x), (0.0, -x)}
        nodes += sorted(corners)
        weights += [weight] * len(corners)
    return np.array(nodes).T, np.array(weights)


def proximal_loop(w: Array, teacher: Array, V: float) -> Array:
    """Minimisers (2, n), each by BFGS."""
    variance = TASK.sigma**2

    def one(field: Array, wanted: Array) -> Array:
        def objective(h: Array) -> float:
            student = 1 / (1 + np.exp(-h * (h - h[::-1])))
            return float(((h - field) ** 2).sum() / (2 * V) + variance * ((student - wanted) ** 2).sum())

        return np.asarray(minimize(objective, field, method="BFGS").x)

    return np.stack([one(w[:, k], teacher[:, k]) for k in range(w.shape[1])], axis=1)


def proximal_vectorised(w: Array, teacher: Array, V: float) -> Array:
    """Minimisers (2, n), by gradient descent with backtracking on all nodes at once, started at w."""
    n = w.shape[1]
    matrices = np.array([[teacher[0], 1 - teacher[0]], [1 - teacher[1], teacher[1]]])
    variance = TASK.sigma**2
    loss = SampleLoss(variance * np.eye(2)[..., None], variance * matrices, variance * (matrices**2).sum(axis=(0, 1)))
    h, rate = w.copy(), np.full(n, V)

    def objective(point: Array) -> tuple[Array, Array]:
        value, gradient = loss.value_and_gradient(point[:, None])
        return value + ((point - w) ** 2).sum(axis=0) / (2 * V), gradient[:, 0] + (point - w) / V

    value, gradient = objective(h)
    for _ in range(2000):
        candidate = h - rate * gradient
        new_value, new_gradient = objective(candidate)
        lower = new_value <= value
        h, value, gradient = (
            np.where(lower, a, b) for a, b in ((candidate, h), (new_value, value), (new_gradient, gradient))
        )
        rate = np.where(lower, 1.2 * rate, 0.5 * rate)
        if np.abs(gradient).max() < 1e-5:  # BFGS's default
            break
    return h


def textbook(
    alpha: float, start: Overlaps, damping: float, proximal: Callable[[Array, Array, float], Array]
) -> tuple[Overlaps, int]:
    """The damped iteration, and how many steps it took; NaN where 400 were not enough."""
    pair, weight = degree_seven_rule()
    xi, eta = np.repeat(pair, 12, axis=1), np.tile(pair, 12)
    weights = np.repeat(weight, 12) * np.tile(weight, 12)
    variance, rho = TASK.sigma**2, TASK.sigma**2
    here = start
    for count in range(1, 401):
        q, m, V, theta = here
        left = np.sqrt(rho - theta**2 / q)
        w = m * np.array([[1], [-1]]) + np.sqrt(q) * xi
        s = theta / np.sqrt(q) * xi + left * eta
        teacher = (1 - TASK.omega) / (1 + np.exp(-s * (s - s[::-1]))) + TASK.omega * 0.6
        g = (proximal(w, teacher, V) - w) / V
        q_hat = alpha * weights @ (g**2).sum(axis=0)
        m_hat = alpha * weights @ (g[0] - g[1])
        theta_hat = alpha * weights @ (g * eta).sum(axis=0) / left
        V_hat = -alpha * weights @ (g * xi).sum(axis=0) / np.sqrt(q) + theta * theta_hat / q
        D = TASK.regularization + variance * V_hat
        new = Overlaps(
            variance * (variance * q_hat + m_hat**2 + variance * rho * theta_hat**2) / D**2,
            m_hat / D,
            variance / D,
            variance * rho * theta_hat / D,
        )
        moved = max(abs(a - b) for a, b in zip(new, here, strict=True))
        here = Overlaps(*(damping * a + (1 - damping) * b for a, b in zip(here, new, strict=True)))
        if moved < 1e-4:
            return here, count
    return Overlaps(*[np.nan] * 4), 400


def timed(alpha: float, branch: str, accuracy: float) -> tuple[FixedPoint, float]:
    """A fixed point and its time; that of building the nodes, which all fixed points share, is spent before."""
    begin = time.perf_counter()
    point = solve_state_evolution(TASK, alpha, branch, accuracy=accuracy)  # type: ignore[arg-type]
    return point, time.perf_counter() - begin


def worst_error(point: FixedPoint) -> float:
    """The largest relative standard error of the order parameters that do not vanish and of both errors."""
    names = ("q", "m", "V", "theta", "train_loss", "test_error")
    return float(max(point.standard_error[name] / abs(getattr(point, name)) for name in names if getattr(point, name)))


def main() -> None:
    """Print the tables."""
    for accuracy in (2e-3, 1e-4):
        for branch in BRANCHES:  # builds the nodes
            timed(2.0, branch, accuracy)
        times = []
        print(
            f"accuracy {accuracy:g}\n"
            f"{'branch':11} {'alpha':>6} {'seconds':>8} {'nodes':>8} {'largest error':>14} {'residual':>9}"
        )
        for branch in BRANCHES:
            for alpha in ALPHAS:
                point, seconds = timed(float(alpha), branch, accuracy)
                times.append(seconds)
                print(
                    f"{branch:11} {alpha:6.2f} {seconds:8.3f} {point.n_nodes:8d} "
                    f"{worst_error(point):14.1e} {point.residual:9.1e}"
                )
        print(f"median {np.median(times):.3f} s, largest {max(times):.3f} s\n")
        if accuracy == 2e-3:
            default = float(np.median(times))
    print(
        "textbook, alpha = 11/7\n"
        f"{'branch':11} {'damping':>7} {'proximal':>11} {'seconds':>8} {'steps':>6} {'ratio':>7}  error of V"
    )
    for branch, damping, start in (
        ("semantic", 0.5, Overlaps(0.1, 0.0, 15.0, 0.14)),
        ("positional", 0.8, Overlaps(0.05, 0.25, 13.0, 0.0)),
    ):
        exact, _ = timed(11 / 7, branch, 1e-4)
        for name, proximal in (("vectorised", proximal_vectorised), ("loop", proximal_loop)):
            begin = time.perf_counter()
            found, steps = textbook(11 / 7, start, damping, proximal)
            seconds = time.perf_counter() - begin
            error = found.V / float(exact.V) - 1
            print(
                f"{branch:11} {damping:7.1f} {name:>11} {seconds:8.2f} {steps:6d} "
                f"{seconds / default:7.1f}  {error:+.1%}",
                flush=True,
            )


if __name__ == "__main__":
    main()
