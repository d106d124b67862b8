"""Facts about approximate message passing: its fixed points, and its way there."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from attention_phases.errors import ConvergenceError
from attention_phases.positional_semantic import (
    Dataset,
    EmpiricalRisk,
    GampRun,
    Overlaps,
    Task,
    gamp,
    minimize_risk,
    proximal_map,
    state_evolution_step,
)
from attention_phases.positional_semantic.descent import Limits, Objective, descend

EXAMPLE = Task()


@cache
def data(d: int = 300, alpha: float = 3.0, seed: int = 1, task: Task = EXAMPLE) -> Dataset:
    return task.sample(d, alpha, seed, teacher_query="orthonormal")


@pytest.mark.parametrize(
    "task",
    [
        EXAMPLE,
        Task(positional_attention=[[0.3, 0.7], [0.8, 0.2]]),
        Task(student_rank=2, teacher_rank=2),
        Task(positional_attention=[[0.5, 0.3, 0.2], [0.2, 0.6, 0.2], [0.2, 0.3, 0.5]]),
    ],
)
def test_a_fixed_point_is_a_stationary_point_of_the_risk(task: Task) -> None:
    dataset = data(task=task)
    run = gamp(dataset, "semantic")
    assert run.converged
    slope = EmpiricalRisk(dataset).slope(run.query)
    assert slope.relative_norm <= 1e-8
    assert run.residual == pytest.approx(slope.relative_norm, rel=1e-3)
    assert run.train_loss == pytest.approx(slope.risk / dataset.dimension)


@pytest.mark.parametrize("alpha", [1.25, 11 / 7, 2.0, 3.0])
@pytest.mark.parametrize("start", ["semantic", "positional"])
def test_it_ends_at_a_stationary_point_from_either_start(start: Any, alpha: float) -> None:
    dataset = data(alpha=alpha)
    run = gamp(dataset, start)
    assert run.converged
    slope = EmpiricalRisk(dataset).slope(run.query)
    assert np.linalg.norm(slope.gradient) <= 1e-8 * slope.scale


def test_without_a_way_to_stay_samples_change_their_minima_for_ever() -> None:
    """On the positional branch, where the map jumps: always at the lowest minimum no run ends, staying each does."""
    for seed in range(4):
        dataset = data(500, 2.0, seed)
        for_ever = gamp(dataset, "positional", settled=0, max_iterations=500, must_converge=False)
        assert not for_ever.converged
        assert for_ever.settled_at is None
        assert for_ever.residual > 1e-4
        last = for_ever.overlaps.q[-100:]
        assert np.ptp(last) < 0.05 * last.mean()  # the overlaps have settled all the same
        assert gamp(dataset, "positional").converged


def test_samples_above_their_lowest_minimum_are_counted() -> None:
    """By descents from many starts, at the V that was settled on."""
    counts = []
    for seed in range(4):
        dataset = data(200, 0.3, seed)
        run = gamp(dataset, "semantic")
        counts.append(run.n_higher)
        V = run.overlaps.V[run.settled_at]
        h = EmpiricalRisk(dataset).fields(run.query)
        value, gradient = dataset.sample_loss.value_and_gradient(h)
        w = h + V * gradient
        value += V / 2 * (gradient**2).sum(axis=(0, 1))
        rng = np.random.default_rng(seed)
        general = Objective(w, dataset.sample_loss, np.array([[1 / V]]))
        lowest = np.full(len(value), np.inf)
        for _ in range(60):
            start = w[:, 0] * rng.uniform(-1, 1, len(value)) + rng.standard_normal((2, len(value)))
            lowest = np.minimum(lowest, descend(general, start, Limits())[1])
        assert run.n_higher == (lowest < value - 1e-9).sum()
    assert any(counts)


def test_V_is_held_and_only_lowered_once_the_overlaps_have_settled() -> None:
    for seed in range(3):
        run = gamp(data(200, 1.25, seed), "positional")
        held = run.overlaps.V[run.settled_at :]
        ratios = held[1:] / held[:-1]
        assert (np.isclose(ratios, 1, rtol=1e-12) | np.isclose(ratios, 0.8, rtol=1e-9)).all()


def test_where_nothing_can_be_learned_the_student_vanishes() -> None:
    """At large lambda the only minimum is Q = 0, since the losses are even in Q."""
    task = Task(regularization=10.0)
    run = gamp(data(task=task))
    assert run.converged
    assert run.overlaps.q[-1] < 1e-10


def test_a_step_that_adapts_does_not_diverge_where_a_fixed_one_does() -> None:
    dataset = EXAMPLE.sample(60, 3.0, 1)
    with pytest.raises(ConvergenceError, match="diverged"):
        gamp(dataset, "positional", 0.0, response=50.0)
    assert gamp(dataset, "positional", response=50.0).converged


def test_on_the_semantic_branch_it_is_the_minimum_that_descent_finds() -> None:
    run, fit = gamp(data()), minimize_risk(data())
    sign = np.sign(run.query.T @ fit.query).item()
    np.testing.assert_allclose(sign * run.query, fit.query, atol=1e-5 * np.abs(fit.query).max())
    assert abs(run.overlaps.theta[-1]) == pytest.approx(fit.theta, rel=1e-6)


def test_undamped_it_follows_state_evolution() -> None:
    """The first steps from Q*, at d = 2000, from the m that Q* has there.

    m is of order 1/sqrt(d), and each step multiplies it by about -4: what the steps themselves scatter by 1/sqrt(d) is
    amplified likewise.
    """
    V, d = 4.0, 2000
    run = gamp(data(d, 3.0), "semantic", 0.0, response=V, max_iterations=3, must_converge=False)
    seen = run.overlaps
    # Q* is all signal: what is left of q besides m and theta is a trifle, which state evolution needs
    overlaps: Any = Overlaps(0.25 * (1 + seen.m[0] ** 2 + 1e-9), seen.m[0], V, 0.25)
    for step in range(1, 4):
        overlaps = state_evolution_step(EXAMPLE, 3.0, overlaps, log2_nodes=14)
        assert seen.m[step] == pytest.approx(overlaps.m, abs=3 * 4 ** (step - 1) / np.sqrt(d))
        if abs(overlaps.m) < 0.3:
            for name in ("q", "V", "theta"):
                assert getattr(seen, name)[step] == pytest.approx(getattr(overlaps, name), rel=0.05), (step, name)


def test_without_the_onsager_term_another_point_is_reached() -> None:
    """The term is what makes the fixed point stationary: fields taken at X Q/sqrt(d) alone give another Q."""
    run = gamp(data())
    V = run.overlaps.V[-1]
    risk = EmpiricalRisk(data())
    h = risk.fields(run.query)
    _, gradient = data().sample_loss.value_and_gradient(h)
    with_term = proximal_map(h + V * gradient, data().sample_loss, V)
    without = proximal_map(h, data().sample_loss, V)
    np.testing.assert_allclose(with_term.residual, -gradient, atol=1e-6)
    assert np.abs(without.residual + gradient).max() > 100 * np.abs(with_term.residual + gradient).max()


def test_overlaps_start_at_the_start() -> None:
    run = gamp(data(), "positional", 0.9, response=7.0, max_iterations=3, must_converge=False)
    assert run.n_iterations == 3
    assert len(run.overlaps.q) == 4
    assert run.overlaps.q[0] == pytest.approx(0.25)
    assert run.overlaps.m[0] == pytest.approx(1)
    assert run.overlaps.V[0] == pytest.approx(7)
    assert not run.converged


def test_same_seed_same_run() -> None:
    runs = [gamp(data(), "random", 0.8, seed=3, max_iterations=5, must_converge=False) for _ in range(2)]
    np.testing.assert_array_equal(runs[0].query, runs[1].query)


def test_not_converging_and_diverging_are_errors_that_hold_the_overlaps() -> None:
    with pytest.raises(
        ConvergenceError, match=r"gamp with damping 0.5 stopped with residual .* \(iteration 3\)"
    ) as caught:
        gamp(data(), damping=0.5, max_iterations=3)
    assert isinstance(caught.value.last, GampRun)
    assert caught.value.last.n_higher is None
    assert caught.value.residual == caught.value.last.residual
    with pytest.raises(ConvergenceError, match=r"diverged: lambda \+ A is not positive") as caught:
        gamp(EXAMPLE.sample(60, 3.0, 1), "positional", 0.0, response=50.0)
    assert np.isfinite(caught.value.last.overlaps.q).all()
    assert not caught.value.last.converged


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"damping": 1.0}, "damping must be below 1; got 1"),
        ({"damping": -0.1}, "damping must be a number in"),
        ({"max_iterations": 0}, "max_iterations must be a whole number of at least 1"),
        ({"tolerance": 0.0}, "tolerance must be a number in"),
        ({"damping": np.nan}, "damping must be a number in"),
        ({"settled": -0.1}, r"settled must be a number in \[0, 1\]; got -0.1"),
        ({"response": -1.0}, "response must be symmetric and positive definite"),
        ({"start": "nowhere"}, "start must be one of"),
        ({"dataset": None}, "dataset must be a Dataset"),
    ],
)
def test_bad_input_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        gamp(**({"dataset": data()} | changes))
