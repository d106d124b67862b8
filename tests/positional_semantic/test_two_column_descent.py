"""The compiled descents for two tokens and two columns find what other searches find."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from attention_phases.errors import ConvergenceError
from attention_phases.positional_semantic import Task, proximal_map
from attention_phases.positional_semantic.averages import Point, model
from attention_phases.positional_semantic.descent import Limits, Minima, minima
from attention_phases.positional_semantic.two_column_descent import two_column_minima

if TYPE_CHECKING:
    from attention_phases.positional_semantic.sample_loss import SampleLoss

TASK = Task(student_rank=2)
POINTS = {  # from solutions at alpha = 3, 1.5 and 0.5, and one with small fields and a matrix V that is not diagonal
    "mixed": Point(np.diag([0.11, 0.014]), np.array([0, 0.207]), np.diag([9.7, 11.6]), np.array([[0.161], [0]])),
    "semantic": Point(np.diag([0.064, 0.033]), np.zeros(2), np.diag([22.2, 35.8]), np.array([[0.101], [0]])),
    "positional": Point(np.diag([0.029, 0.045]), np.array([0.226, 0]), np.diag([16.8, 29.0]), np.zeros((2, 1))),
    "uninformed": Point(np.diag([0.0204, 0.0201]), np.zeros(2), np.diag([33.9, 33.93]), np.zeros((2, 1))),
    "small": Point(
        np.array([[0.006, 0.001], [0.001, 0.003]]),
        np.zeros(2),
        np.array([[60.0, 9.0], [9.0, 40.0]]),
        np.array([[0.001], [0]]),
    ),
}


def problem(name: str) -> tuple[np.ndarray, SampleLoss, np.ndarray]:
    nodes = model(TASK, 10, 0)
    return nodes.fields(POINTS[name]), nodes.loss, np.linalg.inv(POINTS[name].V)


@pytest.mark.parametrize("name", list(POINTS))
def test_the_minima_are_those_of_the_general_search(name: str) -> None:
    w, loss, precision = problem(name)
    found, general = (search(w, loss, precision, None, Limits()) for search in (two_column_minima, minima))
    assert np.allclose(found.value, general.value, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", list(POINTS))
def test_no_random_start_ends_lower(name: str) -> None:
    """Thirty starts a sample, of sizes from a third of a typical field to ten times it."""
    w, loss, precision = problem(name)
    found = two_column_minima(w, loss, precision, None, Limits())
    rng = np.random.default_rng(3)
    lowest = np.full(w.shape[-1], np.inf)
    for _ in range(30):
        start = rng.standard_normal(w.shape) * rng.choice([0.1, 0.3, 1.0, 3.0])
        near = Minima(start, found.value, start, np.full_like(found.value, np.inf))
        lowest = np.minimum(lowest, two_column_minima(w, loss, precision, near, Limits()).value)
    assert (lowest >= found.value * (1 - 1e-9)).all()
    assert np.median(lowest / found.value) == pytest.approx(1, abs=1e-9)  # the random starts are a search, too


@pytest.mark.parametrize("name", list(POINTS))
def test_the_gradient_vanishes_and_values_are_the_objective(name: str) -> None:
    w, loss, precision = problem(name)
    found = two_column_minima(w, loss, precision, None, Limits())
    for point, value in ((found.lowest, found.value), (found.rival, found.rival_value)):
        some = np.isfinite(value)
        away = point - w
        pulled = np.einsum("ab,lbn->lan", precision, away)
        ell, slope = loss.value_and_gradient(point)
        assert np.abs((slope + pulled)[..., some]).max(initial=0) < 1e-8
        assert np.allclose((ell + 0.5 * (away * pulled).sum(axis=(0, 1)))[some], value[some], rtol=1e-10)
    assert (found.rival_value >= found.value).all()


def test_followed_minima_are_those_of_a_search() -> None:
    w, loss, precision = problem("positional")
    before = two_column_minima(w, loss, precision, None, Limits())
    moved = two_column_minima(1.02 * w, loss, precision / 1.03, before, Limits())
    searched = two_column_minima(1.02 * w, loss, precision / 1.03, None, Limits())
    assert (np.abs(moved.value - searched.value) < 1e-9).mean() > 0.99


def test_the_proximal_map_of_one_active_column_is_that_of_one_column() -> None:
    """With no field and no response in the second column it stays empty."""
    one = model(Task(), 10, 0)
    w = one.fields(Point(np.array([[0.05]]), np.array([0.25]), np.array([[13.0]]), np.array([[0.0]])))
    single = proximal_map(w, one.loss, 13.0)
    both = proximal_map(np.concatenate([w, np.zeros_like(w)], axis=1), one.loss, np.diag([13.0, 1e-3]))
    assert np.allclose(both.objective, single.objective, rtol=1e-9)
    assert np.allclose(both.minimizer[:, 0], single.minimizer[:, 0], atol=1e-6)


def test_descents_that_do_not_end_are_told() -> None:
    w, loss, precision = problem("small")
    with pytest.raises(ConvergenceError, match="searches of the proximal map did not end in 2 steps") as error:
        two_column_minima(w, loss, precision, None, Limits(max_steps=2))
    assert error.value.last.shape == w.shape
