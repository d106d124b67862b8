"""Time and accuracy of a fixed point of state evolution, beside the textbook way to compute one.

The textbook way, as honest versions of what is in use: the product of two 12-point rules of degree 7, one for
(xi_1, xi_2) and one for (eta_1, eta_2); the proximal map of each node from w; damped iteration until no overlap changes
by more than 1e-4. Three times: as a loop over the 144 nodes with SciPy's BFGS at its defaults, the loss written as the
paper prints it, with the softmax of a matrix and a trace; the same loop with the loss reduced, for two tokens, to two
logistic functions; and with all nodes in one array and plain gradient descent. Damping is 0.5, or 0.8 on the positional
branch, where 0.5 does not converge.

Both ways start without knowledge of the answer: ours from its own guess; the textbook way from Q = Q* (with noise of
1 %: exactly at Q* nothing is left of eta) or from Q along 1_d, with V = 1. The published experiments start at Q = 1_d;
from there the textbook iteration ends elsewhere, at m = 0.08, so it gets a start at 0.3 of that length.
What fixed points share is not in ours: compiled code (kept on disk), and a task's nodes.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from attention_phases._blas import one_thread
from attention_phases.positional_semantic import FixedPoint, SampleLoss, Task, solve_state_evolution
from attention_phases.positional_semantic.published_rule import degree_seven_rule
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import softmax

if TYPE_CHECKING:
    from collections.abc import Callable

Array = NDArray[np.float64]
TASK = Task()
ALPHAS = np.linspace(1.2, 3.0, 7)
BRANCHES = ("semantic", "positional")
OVERLAPS = ("q", "m", "V", "theta")


class Overlaps(NamedTuple):
    """What the textbook iteration is about."""

    q: float
    m: float
    V: float
    theta: float


def proximal_as_printed(w: Array, teacher: Array, V: float) -> Array:
    """Minimisers (2, n), each by BFGS; ell(h; s) = tr[(S(h) - T(s)) Sigma (S(h) - T(s))^T]/2, S = softmax(h h^T)."""
    covariance = TASK.sigma**2 * np.eye(2)

    def one(field: Array, diagonal: Array) -> Array:
        wanted = np.array([[diagonal[0], 1 - diagonal[0]], [1 - diagonal[1], diagonal[1]]])

        def objective(h: Array) -> float:
            error = softmax(np.outer(h, h), axis=1) - wanted
            return float(np.sum((h - field) ** 2) / (2 * V) + np.trace(error @ covariance @ error.T) / 2)

        return np.asarray(minimize(objective, field, method="BFGS").x)

    return np.stack([one(w[:, k], teacher[:, k]) for k in range(w.shape[1])], axis=1)


def proximal_reduced(w: Array, teacher: Array, V: float) -> Array:
    """Minimisers (2, n), each by BFGS, of the same in two logistic functions."""
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


def timed(alpha: float, branch: str, accuracy: float) -> tuple[FixedPoint, float, float]:
    """A fixed point, and the seconds and processor seconds that it takes."""
    begin, cpu = time.perf_counter(), time.process_time()
    point = solve_state_evolution(TASK, alpha, branch, accuracy=accuracy)  # type: ignore[arg-type]
    return point, time.perf_counter() - begin, time.process_time() - cpu


def worst_error(point: FixedPoint) -> float:
    """The largest relative standard error of the order parameters that do not vanish and of both errors."""
    names = (*OVERLAPS, "train_loss", "test_error")
    return float(max(point.standard_error[name] / abs(getattr(point, name)) for name in names if getattr(point, name)))


def deviation(found: Overlaps | FixedPoint, exact: FixedPoint) -> float:
    """The largest relative deviation of an order parameter that does not vanish."""
    pairs = [(getattr(found, name), float(getattr(exact, name))) for name in OVERLAPS]
    return float(max(abs(abs(value) / right - 1) for value, right in pairs if right))


def print_ours(accuracy: float) -> None:
    """Fixed points on both branches."""
    begin = time.perf_counter()
    for branch in BRANCHES:
        for alpha in ALPHAS:
            timed(float(alpha), branch, accuracy)
    first = time.perf_counter() - begin
    print(
        f"accuracy {accuracy:g} (a first round, which builds the nodes, took {first:.1f} s)\n"
        f"{'branch':11} {'alpha':>6} {'seconds':>8} {'CPU s':>8} {'nodes':>8} {'largest error':>14} {'residual':>9}"
    )
    times = []
    for branch in BRANCHES:
        for alpha in ALPHAS:
            point, seconds, cpu = timed(float(alpha), branch, accuracy)
            times.append((seconds, cpu))
            print(
                f"{branch:11} {alpha:6.2f} {seconds:8.3f} {cpu:8.3f} {point.n_nodes:8d} "
                f"{worst_error(point):14.1e} {point.residual:9.1e}"
            )
    (median, median_cpu), (most, most_cpu) = np.median(times, axis=0), np.max(times, axis=0)
    print(f"median {median:.3f} s ({median_cpu:.3f} CPU s), largest {most:.3f} s ({most_cpu:.3f} CPU s)\n")


def print_ratios(alpha: float) -> None:
    """The textbook way and ours, branch by branch."""
    print(
        f"alpha = {alpha:.4g}; the ratio is that of processor seconds, which other programs disturb least\n"
        f"{'branch':11} {'way':24} {'seconds':>8} {'CPU s':>8} {'steps':>6} {'ratio':>7}  largest deviation"
    )
    starts = {
        "semantic": (0.5, Overlaps(TASK.sigma**2, 0.0, 1.0, 0.99 * TASK.sigma**2)),
        "positional": (0.8, Overlaps(0.3**2 * TASK.sigma**2, 0.3, 1.0, 0.0)),
    }
    for branch in BRANCHES:
        exact, _, _ = timed(alpha, branch, 1e-4)
        ours = [timed(alpha, branch, 2e-3) for _ in range(9)]
        seconds, cpu = (float(np.median([run[k] for run in ours])) for k in (1, 2))
        print(f"{branch:11} {'ours':24} {seconds:8.3f} {cpu:8.3f} {'':6} {'':7}  {deviation(ours[0][0], exact):.1e}")
        damping, start = starts[branch]
        for name, proximal in (
            ("textbook, vectorised", proximal_vectorised),
            ("textbook, loop, reduced", proximal_reduced),
            ("textbook, loop", proximal_as_printed),
        ):
            begin, begin_cpu = time.perf_counter(), time.process_time()
            found, steps = textbook(alpha, start, damping, proximal)
            there, there_cpu = time.perf_counter() - begin, time.process_time() - begin_cpu
            print(
                f"{branch:11} {name:24} {there:8.2f} {there_cpu:8.2f} {steps:6d} {there_cpu / cpu:7.1f}  "
                f"{deviation(found, exact):.1e}",
                flush=True,
            )


@one_thread
def main() -> None:
    """Print the tables."""
    for accuracy in (2e-3, 1e-4):
        print_ours(accuracy)
    for alpha in (11 / 7, 2.4):
        print_ratios(alpha)


if __name__ == "__main__":
    main()
