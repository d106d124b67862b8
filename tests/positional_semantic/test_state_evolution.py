"""Facts about state evolution: its averages, its fixed points, and the minima of the risk that it describes."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from attention_phases.errors import ConvergenceError
from attention_phases.positional_semantic import (
    FixedPoint,
    NoSuchPointError,
    Overlaps,
    Task,
    averages,
    generalization_error,
    map_eigenvalues,
    minimize_risk,
    solve_state_evolution,
    state_evolution,
    state_evolution_step,
)
from attention_phases.positional_semantic.branches import Branch, BranchEquations
from attention_phases.positional_semantic.continuation import jacobian, newton, turning_point, walk
from attention_phases.positional_semantic.quadrature import sobol_rule
from numpy.typing import NDArray
from scipy import stats
from scipy.optimize import minimize

Array = NDArray[np.float64]
EXAMPLE = Task()
ALPHA = 11 / 7  # of the published tables
OTHER = Task(omega=0.2, sigma=0.7, regularization=0.03, positional_attention=[[0.3, 0.7], [0.8, 0.2]])


@cache
def solved(
    branch: Any, alpha: float = ALPHA, task: Task = EXAMPLE, accuracy: float = 2e-3, seed: int = 0
) -> FixedPoint:
    return solve_state_evolution(task, alpha, branch, accuracy=accuracy, seed=seed)


# --- the averages -------------------------------------------------------------------------------------------


def brute_force_envelope(w: Array, teacher: Array, V: float, variance: float) -> Array:
    """min_h |h - w|^2/(2 V) + sigma^2/2 |S(h) - T|^2 for L = 2, r = 1, on grids that are refined around their minimum.

    w is (2, N); teacher is (2, N), T_11 and T_22.
    """

    def objective(h: Array) -> Array:
        scores = h * (h - h[::-1])
        student = 1 / (1 + np.exp(-scores))
        return np.asarray((((h - w) ** 2) / (2 * V) + variance * (student - teacher) ** 2).sum(axis=0))

    half_width = np.full(w.shape[1], 2.0)
    best, lowest = w.copy(), objective(w)
    for n_points in (61, 7, 7, 7, 7, 7):
        centre = best.copy()
        for first in np.linspace(-1, 1, n_points):
            for second in np.linspace(-1, 1, n_points):
                h = centre + half_width * np.array([[first], [second]])
                value = objective(h)
                lower = value < lowest
                best, lowest = np.where(lower, h, best), np.where(lower, value, lowest)
        half_width = half_width * 2 / (n_points - 1)
    return lowest


@pytest.mark.slow
@pytest.mark.parametrize(
    ("branch", "q", "m", "V", "theta"),
    [("semantic", 0.0972, 0.0, 15.46, 0.1386), ("positional", 0.05, 0.2552, 13.25, 0.0)],
)
def test_averages_agree_with_another_rule_and_a_brute_force_map(
    branch: str, q: float, m: float, V: float, theta: float
) -> None:
    """Gauss-Hermite in each of the four directions, and minima on grids: nothing is shared with the library."""
    variance, omega = 0.25, 0.3
    nodes, weights = np.polynomial.hermite_e.hermegauss(12)
    z = np.stack([a.ravel() for a in np.meshgrid(*[nodes] * 4, indexing="ij")])
    weight = np.prod([a.ravel() for a in np.meshgrid(*[weights] * 4, indexing="ij")], axis=0)
    weight /= weight.sum()
    # (+, -) combinations of the tokens: the integrand varies faster along the second
    zeta, eta = ((np.stack([z[i] + z[j], z[i] - z[j]]) / np.sqrt(2)) for i, j in ((0, 1), (2, 3)))
    s = np.sqrt(variance) * eta
    kappa = q - theta**2 / variance
    w = m * np.array([[1], [-1]]) + theta / variance * s + np.sqrt(kappa) * zeta
    teacher = (1 - omega) / (1 + np.exp(-s * (s - s[::-1]))) + omega * 0.6
    envelope = brute_force_envelope(w, teacher, V, variance)
    envelope = envelope - weight @ envelope
    V_hat = weight @ (envelope * ((zeta**2).sum(axis=0) - 2)) / kappa
    m_hat = -weight @ (envelope * (zeta[0] - zeta[1])) / np.sqrt(kappa)
    theta_hat = (theta * V_hat - weight @ (envelope * (zeta * s).sum(axis=0)) / np.sqrt(kappa)) / variance
    D = EXAMPLE.regularization + variance * ALPHA * V_hat
    step = state_evolution_step(EXAMPLE, ALPHA, Overlaps(q, m, V, theta))
    # the 12-point rule's own error: it changes by 0.4 % between 12 and 16 points
    assert pytest.approx(variance / D, rel=0.01) == step.V
    if branch == "positional":
        assert step.m == pytest.approx(ALPHA * m_hat / D, rel=0.01)
    else:
        assert step.theta == pytest.approx(variance**2 * ALPHA * theta_hat / D, rel=0.01)


@pytest.mark.parametrize(
    "overlaps", [Overlaps(0.097, 0.0, 15.5, 0.139), Overlaps(0.05, 0.255, 13.2, 0.0), Overlaps(0.1, 0.1, 5.0, 0.1)]
)
@pytest.mark.parametrize("task", [EXAMPLE, OTHER])
def test_both_forms_of_the_averages_agree(task: Task, overlaps: Overlaps) -> None:
    """By parts on a lattice, and Stein's form with Sobol points."""
    point = averages.Point.of(task, replace(overlaps, q=overlaps.q * (task.sigma / 0.5) ** 2))
    lattice = averages.model(task, 16, 0).averages(point, by_parts=True)
    sobol = averages.Model(task, sobol_rule(4, 14, 8, np.random.default_rng(3))).averages(point, by_parts=False)
    for name in ("q_hat", "m_hat", "V_hat", "theta_hat", "loss", "envelope"):
        one, other = getattr(lattice, name), getattr(sobol, name)
        error = np.hypot(one.std(axis=-1, ddof=1), other.std(axis=-1, ddof=1)) / np.sqrt(8)
        # six points, seven averages, seven degrees of freedom at the least: t beyond 7 once in a hundred runs
        assert (np.abs(one.mean(axis=-1) - other.mean(axis=-1)) < 7 * error + 2e-4 * np.abs(one).max()).all()


@pytest.mark.parametrize("by_parts", [None, 1.0, 0.25, 0.0])
@pytest.mark.parametrize("smooth", [True, False])
def test_two_tokens_have_the_averages_of_the_general_case(by_parts: float | None, smooth: bool) -> None:
    """Compiled in one pass over the nodes, and by NumPy for any L, r, t."""
    for task in (EXAMPLE, OTHER):
        model = averages.model(task, 11, 0)
        point = averages.Point.of(task, Overlaps(0.4 * task.sigma**2, 0.1, 8.0, 0.3 * task.sigma**2))
        compiled = model.averages(point, by_parts, smooth=smooth)
        shares, preference = averages.choices(by_parts, smooth)
        width = averages.root(averages.kappa(task, point))
        general = model.general_averages(point, width, shares, preference, compiled.proximal)
        assert compiled.by_parts == general.by_parts
        for name in ("q_hat", "m_hat", "V_hat", "theta_hat", "loss", "envelope"):
            one, other = getattr(compiled, name), getattr(general, name)
            assert one.shape == other.shape
            np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-11 * np.abs(other).max())


def test_flipping_the_student_flips_m_and_theta_exactly() -> None:
    there = state_evolution_step(EXAMPLE, 2.0, Overlaps(0.1, 0.1, 10.0, 0.08), log2_nodes=12)
    back = state_evolution_step(EXAMPLE, 2.0, Overlaps(0.1, -0.1, 10.0, -0.08), log2_nodes=12)
    assert (back.q, back.V) == pytest.approx((there.q, there.V), rel=1e-10)
    assert (back.m, back.theta) == pytest.approx((-there.m, -there.theta), rel=1e-8)


def test_rotating_the_student_rotates_the_map() -> None:
    task = Task(student_rank=2, teacher_rank=2)
    angle = 0.7
    O = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])  # noqa: E741
    theta = np.array([[0.12, 0.01], [0.03, 0.08]])
    q = np.array([[0.11, 0.01], [0.01, 0.09]]) + theta @ theta.T
    V, m = np.array([[5.0, 0.4], [0.4, 4.0]]), np.array([0.1, -0.05])
    there = state_evolution_step(task, 2.0, Overlaps(q, m, V, theta))
    turned = state_evolution_step(task, 2.0, Overlaps(O.T @ q @ O, O.T @ m, O.T @ V @ O, O.T @ theta))
    # the nodes are not closed under rotations: 2^16 of them in eight dimensions are good to a per cent or so
    np.testing.assert_allclose(turned.q, O.T @ there.q @ O, atol=0.02 * np.abs(there.q).max())
    np.testing.assert_allclose(turned.m, O.T @ there.m, atol=0.02 * np.abs(there.m).max())
    np.testing.assert_allclose(turned.V, O.T @ there.V @ O, atol=0.02 * np.abs(there.V).max())
    np.testing.assert_allclose(turned.theta, O.T @ there.theta, atol=0.02 * np.abs(there.theta).max())


# --- fixed points -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("branch", ["semantic", "positional", "uninformed"])
def test_one_more_step_of_the_map_leads_nowhere(branch: str) -> None:
    point = solved(branch)
    assert point.converged
    assert point.residual < 1e-3
    step = state_evolution_step(EXAMPLE, ALPHA, point.overlaps, log2_nodes=17, seed=5)
    for name in ("q", "V", "m", "theta"):
        value = getattr(point, name)
        # other nodes: at a fixed point of theirs up to the standard error, stretched by the map's slope (-4 at most)
        assert getattr(step, name) == pytest.approx(
            value, abs=10 * point.standard_error[name] + 2e-3 * abs(value) + 1e-4
        )


def test_the_table_of_the_running_example() -> None:
    """Converged values at alpha = 11/7; the published ones, with a rule of 12 points in each pair of variables, are
    3.5 % off in V and 1 % in theta (15.46 against 14.92, 0.1386 against 0.1400)."""
    semantic, positional = (solved(branch, accuracy=2e-4) for branch in ("semantic", "positional"))
    assert semantic.q == pytest.approx(0.09724, rel=5e-4)
    assert pytest.approx(15.459, rel=5e-4) == semantic.V
    assert semantic.theta == pytest.approx(0.13857, rel=5e-4)
    assert semantic.m == 0
    assert positional.q == pytest.approx(0.04995, rel=1e-3)
    assert pytest.approx(13.249, rel=1e-3) == positional.V
    assert positional.m == pytest.approx(0.25524, rel=1e-3)
    assert positional.theta == 0
    assert semantic.train_loss < positional.train_loss


@pytest.mark.parametrize("branch", ["semantic", "positional", "uninformed"])
@pytest.mark.parametrize("alpha", [1.0, 3.0])
def test_two_roads_to_the_training_loss(branch: str, alpha: float) -> None:
    point = solved(branch, alpha)
    error = np.hypot(point.standard_error["train_loss"], point.standard_error["free_energy"])
    assert abs(point.train_loss - point.free_energy) < 3 * error + 1e-4 * point.train_loss


@pytest.mark.parametrize("branch", ["semantic", "positional"])
def test_derivative_of_the_training_loss_by_lambda(branch: str) -> None:
    """d epsilon_t/d lambda = tr q/(2 sigma^2)."""
    low, here, high = (
        solve_state_evolution(replaced(regularization=0.01 * factor), ALPHA, branch, accuracy=2e-4)  # type: ignore[arg-type]
        for factor in (0.95, 1.0, 1.05)
    )
    slope = (high.train_loss - low.train_loss) / 0.001
    # of this slope a loss's error of 2e-5, the largest at this accuracy, is 0.1 %, and the third derivative takes 0.1 %
    assert slope == pytest.approx(float(here.q) / (2 * 0.25), rel=5e-3)


@pytest.mark.parametrize("branch", ["semantic", "positional", "uninformed"])
def test_the_marginal_cost_is_the_derivative_of_the_training_loss_by_alpha(branch: str) -> None:
    low, here, high = (
        solve_state_evolution(EXAMPLE, factor * ALPHA, branch, accuracy=2e-4)  # type: ignore[arg-type]
        for factor in (0.95, 1.0, 1.05)
    )
    slope = (high.train_loss - low.train_loss) / (0.1 * ALPHA)
    # a loss's error of 2e-4 is common to both ends but for a small part; the third derivative takes 0.1 %
    assert slope == pytest.approx(here.marginal_cost, rel=5e-3)
    assert here.standard_error["marginal_cost"] < 1e-3 * here.marginal_cost


def test_the_marginal_cost_of_rank_two_is_the_average_of_the_minimised_objective() -> None:
    task = Task(student_rank=2)
    point = solve_state_evolution(task, 3.0, "mixed", accuracy=0.02)
    values = averages.model(task, 14, 5).averages(averages.Point.of(task, point.overlaps)).envelope
    error = np.hypot(values.std(ddof=1) / np.sqrt(len(values)), point.standard_error["marginal_cost"])
    assert abs(values.mean() - point.marginal_cost) < 4 * error


def replaced(**changes: Any) -> Task:
    values: dict[str, Any] = {
        "omega": 0.3,
        "sigma": 0.5,
        "regularization": 0.01,
        "positional_attention": [[0.6, 0.4], [0.4, 0.6]],
    }
    return Task(**(values | changes))


@pytest.mark.slow
def test_standard_errors_are_those_of_other_seeds() -> None:
    points = [solved("positional", 2.0, seed=seed) for seed in range(12)]
    for name in ("q", "m", "V", "train_loss", "test_error"):
        values = np.array([getattr(point, name) for point in points])
        claimed = np.sqrt(np.mean([point.standard_error[name] ** 2 for point in points]))
        ratio = values.var(ddof=1) / claimed**2
        # twelve seeds against errors of seven degrees of freedom each
        low, high = stats.f(11, 12 * 7).ppf([1e-4, 1 - 1e-4])
        assert (
            low < ratio < high * 1.5
        )  # what is cut off in the tail is common to the seeds' errors, not to their scatter


def test_same_seed_same_point_and_another_start_the_same_root() -> None:
    point = solved("semantic")
    again = solve_state_evolution(EXAMPLE, ALPHA, "semantic")
    assert (again.q, again.V, again.theta, again.train_loss) == (point.q, point.V, point.theta, point.train_loss)
    from_afar = solve_state_evolution(EXAMPLE, ALPHA, "semantic", start=solved("semantic", 3.0))
    assert from_afar.theta == pytest.approx(point.theta, rel=1e-4)


@pytest.mark.slow
def test_accuracy_is_kept() -> None:
    for branch in ("semantic", "positional"):
        point = solved(branch, accuracy=1e-4)
        for name in ("q", "m", "V", "theta", "train_loss", "test_error"):
            assert point.standard_error[name] <= 1e-4 * abs(getattr(point, name))
        coarse = solved(branch)
        for name in ("q", "m", "V", "theta"):
            assert getattr(coarse, name) == pytest.approx(getattr(point, name), rel=1e-2)


def test_many_samples_give_the_minimiser_of_the_population_risk() -> None:
    """As alpha grows, V goes to zero and q, m to the minimum of E ell(w): Delta vanishes, so q = sigma^2 m^2."""
    point = solved("positional", 3000.0)
    model = averages.model(EXAMPLE, 14, 3)

    def population_risk(x: Array) -> float:
        m, q = x[0], 0.25 * x[0] ** 2 + np.exp(x[1])
        fields = model.fields(averages.Point(np.array([[q]]), np.array([m]), np.eye(1), np.zeros((1, 1))))
        return float(model.rule.means(model.loss.value(fields)).mean())

    best = minimize(population_risk, [0.25, -6.0], method="Nelder-Mead", options={"xatol": 1e-5, "fatol": 1e-14})
    assert point.V < 0.01
    assert point.m == pytest.approx(best.x[0], rel=2e-3)
    assert point.q == pytest.approx(0.25 * point.m**2, rel=5e-3)
    assert point.test_error == pytest.approx(best.fun, rel=2e-3)


def test_the_map_is_unstable_along_m() -> None:
    """About -4.65 at the positional point: what iteration needs damping for. theta decouples, as it vanishes there."""
    point = solved("positional")
    values = map_eigenvalues(EXAMPLE, ALPHA, point.overlaps)
    assert len(values) == 4
    assert values[0] == pytest.approx(-4.65, abs=0.15)
    assert np.abs(values[1:]).max() < 1


def test_V_hat_may_be_negative() -> None:
    point = solved("uninformed")
    assert EXAMPLE.sigma**2 / EXAMPLE.regularization < point.V


# --- existence ----------------------------------------------------------------------------------------------


def test_below_its_end_the_semantic_branch_does_not_exist() -> None:
    with pytest.raises(NoSuchPointError, match=r"the semantic branch does not exist at alpha = 0\.4") as caught:
        solve_state_evolution(EXAMPLE, 0.4, "semantic")
    assert 0.5 < caught.value.alpha < 0.75
    above = solve_state_evolution(EXAMPLE, 1.1 * caught.value.alpha, "semantic", accuracy=0.01)
    assert above.theta > 0


def test_a_branch_is_found_far_from_where_its_guess_works() -> None:
    """With many samples the student is that of the population risk, and V falls as 1/alpha."""
    near, far = (solve_state_evolution(Task(), alpha) for alpha in (400, 3000))
    assert float(near.V) * 400 == pytest.approx(float(far.V) * 3000, rel=0.01)
    with pytest.raises(NoSuchPointError, match=r"the semantic branch does not exist at alpha = 0\.01"):
        solve_state_evolution(Task(), 0.01)


def test_positional_attention_without_a_positional_teacher() -> None:
    """At omega = 0 the positions are noise to fit; with many samples they are of no use."""
    task = Task(omega=0.0)
    with pytest.raises(NoSuchPointError, match="positional"):
        solve_state_evolution(task, 4.0, "positional")


def test_a_branch_that_few_nodes_show_beyond_its_end_is_refused() -> None:
    """With 2^11 nodes the semantic branch reaches down to about 0.68, with 2^14 and more to about 0.73."""
    with pytest.raises(NoSuchPointError, match=r"the semantic branch does not exist at alpha = 0\.7:") as caught:
        solve_state_evolution(EXAMPLE, 0.7, "semantic")
    assert 0.72 < caught.value.alpha < 0.74
    assert caught.value.reason == "vanishes"


def test_a_walk_goes_round_the_fold_of_the_positional_branch() -> None:
    """At omega = 0.1 the branch turns back at about alpha = 7: above there are two roots, below none.

    An eigenvalue of the map passes through 1 on the way.
    """
    task, alpha = Task(omega=0.1), 8.0
    with pytest.raises(NoSuchPointError) as caught:
        solve_state_evolution(task, 5.0, "positional")
    assert caught.value.reason == "fold"
    assert 6.7 < caught.value.alpha < 7.3
    equations = BranchEquations(Branch(task, "positional"), 13, 0)
    upper = solve_state_evolution(task, alpha, "positional")
    at = equations.evaluate(equations.branch.unknowns(averages.Point.of(task, upper.overlaps)), np.log(alpha))
    at, slopes, _ = newton(equations, at, jacobian(equations, at), 1e-4)
    turns = []
    for before, after in walk(equations, at, slopes, -1.0, 1e-4):
        if after.direction != before.direction:
            turns.append(np.exp(turning_point(before, after)))
        if turns and after.at.alpha > alpha:
            break
    # found with 2^14 nodes and with 2^13: with 2^11 and 2^12 it comes out at 7.1 and 6.8
    assert turns == pytest.approx([caught.value.alpha], rel=0.03)
    at, _, converged = newton(equations, equations.evaluate(after.at.x, np.log(alpha)), after.slopes, 1e-4)
    assert converged
    lower = equations.branch.point(at.x).public()
    assert lower.m < 0.9 * upper.m
    step = state_evolution_step(task, alpha, lower, log2_nodes=15)
    # other nodes; the map's slope along m is about -30
    assert step.m == pytest.approx(lower.m, rel=0.1)
    assert pytest.approx(lower.V, rel=0.02) == step.V
    above_one = [np.sum(map_eigenvalues(task, alpha, overlaps).real > 1) for overlaps in (upper.overlaps, lower)]
    # one is that of theta on both sides: at this omega the semantic part is learned from any start
    assert above_one == [1, 2]


@pytest.mark.parametrize("alpha", [1.25, 5.0])
def test_the_mixed_point_of_a_rank_one_student_is_a_pass_above_both_valleys(alpha: float) -> None:
    found = solved("mixed", alpha)
    assert min(float(found.m), float(found.theta)) > 0
    assert found.residual < 1e-3
    for valley in ("semantic", "positional"):
        low = solved(valley, alpha)
        error = np.hypot(found.standard_error["train_loss"], low.standard_error["train_loss"])
        assert found.train_loss > low.train_loss + 3 * error


def test_the_pass_ends_where_the_positional_point_loses_its_stability() -> None:
    """theta vanishes there, so the map's eigenvalue along theta at the positional point is 1."""
    with pytest.raises(NoSuchPointError, match="vanishes") as caught:
        solve_state_evolution(Task(), 20.0, "mixed")
    values = map_eigenvalues(
        Task(), caught.value.alpha, solve_state_evolution(Task(), caught.value.alpha, "positional").overlaps
    )
    assert np.abs(values - 1).min() < 0.02


def test_accuracy_out_of_reach_is_an_error_with_the_last_point(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_evolution, "_FINEST", 14)
    with pytest.raises(ConvergenceError, match="did not reach accuracy 1e-05: relative standard error") as caught:
        solve_state_evolution(EXAMPLE, ALPHA, "positional", accuracy=1e-5)
    assert not isinstance(caught.value, NoSuchPointError)
    assert isinstance(caught.value.last, FixedPoint)
    kept = solve_state_evolution(EXAMPLE, ALPHA, "positional", accuracy=1e-5, must_converge=False)
    assert kept.m == pytest.approx(caught.value.last.m)


def test_a_root_that_is_not_found_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_evolution, "root_from_guess", lambda *_: None)
    with pytest.raises(ConvergenceError, match="no semantic solution was found") as caught:
        solve_state_evolution(EXAMPLE, ALPHA, "semantic")
    assert not isinstance(caught.value, NoSuchPointError)


# --- replica symmetry ---------------------------------------------------------------------------------------


def test_the_map_jumps_on_the_positional_branch() -> None:
    positional, semantic = solved("positional", accuracy=2e-4), solved("semantic", 3.0)
    assert positional.jump_density > 5 * positional.standard_error["jump_density"]
    assert positional.replicon == np.inf
    assert semantic.jump_density == pytest.approx(0, abs=1e-4)
    assert semantic.replicon == pytest.approx(semantic.pointwise_replicon)
    assert semantic.replicon < 1


def test_pointwise_replicon_by_hand() -> None:
    """For r = 1 it is alpha V^2 E |dg/dw|^2."""
    point = solved("semantic", 3.0)
    model = averages.model(EXAMPLE, 14, 9)
    derivative = model.averages(averages.Point.of(EXAMPLE, point.overlaps)).proximal.derivative
    expected = 3.0 * float(point.V) ** 2 * model.rule.means((derivative**2).sum(axis=(0, 1, 2, 3))).mean()
    assert point.pointwise_replicon == pytest.approx(expected, rel=0.02)


# --- the minima of the empirical risk -----------------------------------------------------------------------


CASES = [
    (2.0, EXAMPLE, "semantic"),
    (3.0, Task(omega=0.6, sigma=0.6, regularization=0.02), "semantic"),
    (2.5, OTHER, "semantic"),
    (4.0, Task(omega=0.1, sigma=0.4, regularization=0.005, positional_attention=[[0.8, 0.2], [0.3, 0.7]]), "semantic"),
    (1.5, Task(omega=0.7, regularization=0.05), "positional"),
    (3.0, Task(student_rank=2), "mixed"),
    (4.0, Task(student_rank=2, teacher_rank=2), "semantic"),
    (3.0, Task(positional_attention=[[0.5, 0.3, 0.2], [0.2, 0.6, 0.2], [0.2, 0.3, 0.5]]), "semantic"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("alpha", "task", "branch"), CASES)
def test_minima_of_the_empirical_risk_tend_to_the_fixed_point(alpha: float, task: Task, branch: Any) -> None:
    """At 16 seeds and two sizes, extrapolated in 1/d; teachers are orthonormal."""
    point = solve_state_evolution(task, alpha, branch, accuracy=2e-3)
    dimensions = (200, 400)
    measured = np.array(
        [[observables(task, minimum(task, d, alpha, seed, branch)) for seed in range(16)] for d in dimensions]
    )
    means, variances = measured.mean(axis=1), measured.var(axis=1, ddof=1) / 16
    limit = 2 * means[1] - means[0]
    expected, errors = observables(task, point), expected_errors(point)
    scatter = np.sqrt(4 * variances[1] + variances[0] + errors**2)
    scores = (limit - expected) / scatter
    # 8 cases of 4 observables, 15 degrees of freedom: 1 % of the runs fail at this quantile
    quantile = stats.t(15).ppf(1 - 0.01 / (2 * 4 * len(CASES)))
    assert (np.abs(scores) < quantile).all(), scores


def minimum(task: Task, d: int, alpha: float, seed: int, branch: Any) -> Any:
    dataset = task.sample(d, alpha, seed, teacher_query="orthonormal")
    return minimize_risk(dataset, branch, seed=seed)


def observables(task: Task, point: Any) -> Array:
    """What does not depend on the gauge: tr q, the size of m or of theta, and both errors."""
    overlap = np.sqrt(np.sum(np.square(point.m)) + np.sum(np.square(point.theta)) / task.sigma**4)
    return np.array([np.trace(np.atleast_2d(point.q)), overlap, point.train_loss, point.test_error])


def expected_errors(point: FixedPoint) -> Array:
    error = point.standard_error
    overlap = np.hypot(np.linalg.norm(error["m"]), np.linalg.norm(error["theta"]) / point.task.sigma**2)
    return np.array([np.trace(np.atleast_2d(error["q"])), overlap, error["train_loss"], error["test_error"]])


@pytest.mark.slow
def test_the_rank_two_student_of_a_rank_one_teacher_is_best_mixed() -> None:
    task = Task(student_rank=2)
    mixed, alone = solved("mixed", 3.0, task), solved("semantic", 3.0)
    np.testing.assert_allclose(np.diag(mixed.q), [0.110, 0.014], atol=1e-3)
    np.testing.assert_allclose(np.asarray(mixed.m), [0, 0.207], atol=1e-3)
    np.testing.assert_allclose(np.asarray(mixed.theta)[:, 0], [0.161, 0], atol=1e-3)
    assert mixed.train_loss < alone.train_loss
    assert mixed.test_error < alone.test_error


def test_test_error_is_that_of_a_finite_student_as_d_grows() -> None:
    d = 40000
    rng = np.random.default_rng(0)
    point = solved("semantic", 3.0)
    teacher = np.sqrt(d) * np.linalg.qr(rng.standard_normal((d, 1))).Q
    noise = rng.standard_normal((d, 1))
    noise -= teacher * (teacher.T @ noise) / d
    noise *= np.sqrt(d) / np.linalg.norm(noise)
    theta = float(point.theta) / 0.25
    student = theta * teacher + np.sqrt(float(point.q) / 0.25 - theta**2) * noise
    student -= student.mean()
    error = generalization_error(EXAMPLE, student, teacher)
    assert point.test_error == pytest.approx(error.value, rel=3e-3)


# --- bad input ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"alpha": 0}, r"alpha must be a number in \(0, inf\); got 0"),
        ({"alpha": -1.0}, "alpha must be a number in"),
        ({"alpha": np.nan}, "alpha must be a number in"),
        (
            {"branch": "semantics"},
            "branch must be one of 'semantic', 'positional', 'mixed', 'uninformed'; got 'semantics'",
        ),
        ({"accuracy": 0.0}, "accuracy must be a number in"),
        ({"seed": 0.5}, "seed must be a whole number"),
        ({"task": None}, "task must be a Task; got None"),
        ({"start": Overlaps(0.1, 0.0, np.nan, 0.1)}, "V must be a number in"),
        ({"start": Overlaps(0.01, 0.0, 1.0, 0.1)}, "start must have V > 0 and q > sigma"),
        ({"start": Overlaps(0.1, 0.2, 1.0, 0.0)}, "start must have overlaps that do not vanish on the semantic branch"),
    ],
)
def test_bad_input_is_refused(changes: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {"task": EXAMPLE, "alpha": 2.0, "branch": "semantic"}
    with pytest.raises(ValueError, match=message):
        solve_state_evolution(**(arguments | changes))


def test_a_task_without_rank_or_with_a_wrong_matrix_is_refused() -> None:
    with pytest.raises(ValueError, match="student_rank must be a whole number of at least 1"):
        Task(student_rank=0)
    with pytest.raises(ValueError, match=r"positional_attention must have rows that sum to 1; row 1 sums to 0\.9"):
        Task(positional_attention=[[0.6, 0.4], [0.5, 0.4]])


def test_overlaps_of_the_wrong_shape_are_refused() -> None:
    with pytest.raises(ValueError, match=r"q must be a real array of shape \(2, 2\)"):
        state_evolution_step(Task(student_rank=2), 1.0, Overlaps(0.1, 0.0, 1.0, 0.0))
