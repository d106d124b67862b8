"""Facts about students with given order parameters, and the first steps of GAMP from one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from attention_phases.positional_semantic import Task, order_parameters
from attention_phases.positional_semantic.experiments import (
    GAMP_START,
    GAMP_STEPS,
    gamp_minimum,
    gamp_steps,
    query_with_overlaps,
)

DATA = Task().sample(60, 2.0, 5)
GOOD: dict[str, Any] = {"dataset": DATA, "q": 0.1, "m": 0.2, "theta": 0.05, "seed": 1}


@pytest.mark.parametrize("teacher_query", ["gaussian", "orthonormal"])
def test_a_student_has_the_order_parameters_asked_for(teacher_query: str) -> None:
    dataset = Task().sample(50, 1.0, 4, teacher_query)
    query = query_with_overlaps(dataset, 0.11, -0.2, 0.07, seed=3)
    found = order_parameters(dataset.task, query, dataset.teacher_query)
    assert (found.q, found.m, found.theta) == pytest.approx((0.11, -0.2, 0.07), rel=1e-10)


def test_the_rest_of_a_student_is_random() -> None:
    first, same, other = (query_with_overlaps(DATA, 0.1, 0.0, 0.0, seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, same)
    size = np.linalg.norm(first)
    assert abs((first.T @ other).item()) < 5 * size**2 / np.sqrt(60)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"q": 0.01}, r"q must exceed 0\.\d+, the part of m and theta; got 0.01"),
        ({"m": np.nan}, "m must be a number"),
        ({"theta": "much"}, "theta must be a number"),
        ({"dataset": None}, "dataset must be a Dataset"),
        ({"dataset": Task(student_rank=2).sample(20, 1.0, 1)}, "student_rank = teacher_rank = 1"),
    ],
)
def test_bad_input_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        query_with_overlaps(**(GOOD | changes))


def test_steps_begin_at_the_start_and_are_the_same_each_time() -> None:
    row = gamp_steps(400, 2.0, 3)
    assert row == gamp_steps(400, 2.0, 3)
    assert len(row) == 4 * (GAMP_STEPS + 1)
    for name, value in GAMP_START.items():
        assert row[f"{name}_0"] == pytest.approx(value, rel=1e-10)


@pytest.mark.parametrize("valley", ["semantic", "positional"])
def test_gamp_rests_in_the_valley_where_it_starts(valley: str) -> None:
    row = gamp_minimum(100, 1.5, 2, valley)
    assert row["gradient_norm"] <= 1e-8
    larger = {"semantic": abs(row["theta"]) / 0.25, "positional": abs(row["m"])}
    assert max(larger, key=lambda name: larger[name]) == valley
    with pytest.raises(ValueError, match="valley must be one of"):
        gamp_minimum(100, 1.5, 2, "none")
