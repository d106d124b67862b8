"""Facts about the root finder and about following a curve of roots, on equations whose roots are known."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import pytest
from attention_phases.positional_semantic.continuation import jacobian, newton, turning_point, walk
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Values:
    x: Array
    parameter: float
    values: Array


class Cubic:
    """``u^3 - u = parameter, v = 2 u``: folds at u = -1/sqrt(3) and u = 1/sqrt(3), where the parameter is +-0.385."""

    def evaluate(self, x: Array, parameter: float) -> Values:
        u, v = x
        return Values(x, parameter, np.array([u**3 - u - parameter, v - 2 * u]))

    def parameter_slope(self, at: Values) -> Array:
        return np.array([-1.0, 0.0])

    def scale(self, x: Array) -> Array:
        return np.ones(2)


FOLD = 2 / (3 * np.sqrt(3))


def test_differences_are_near_the_derivatives() -> None:
    slopes = jacobian(Cubic(), Cubic().evaluate(np.array([2.0, 4.0]), 6.0))
    # a step of 0.01 in u^3: 3 u^2 + 0.03 u + 0.0001
    np.testing.assert_allclose(slopes, np.array([[11.0601, 0.0], [-2.0, 1.0]]), rtol=1e-9)


def test_newton_finds_a_root_and_says_where_there_is_none() -> None:
    at = Cubic().evaluate(np.array([1.5, 2.0]), 0.0)
    root, _, converged = newton(Cubic(), at, jacobian(Cubic(), at), 1e-9)
    assert converged
    np.testing.assert_allclose(root.x, [1, 2], atol=1e-8)

    class Parabola(Cubic):
        def evaluate(self, x: Array, parameter: float) -> Values:
            return Values(x, parameter, np.array([x[0] ** 2 + 1, x[1] - x[0]]))

    at = Parabola().evaluate(np.array([1.5, 2.0]), 0.0)
    assert not newton(Parabola(), at, jacobian(Parabola(), at), 1e-9)[2]


@pytest.mark.parametrize("direction", [1.0, -1.0])
def test_a_walk_goes_round_both_folds(direction: float) -> None:
    start = direction * -2.0  # a root at parameter -+6, to be followed inwards
    at = Cubic().evaluate(np.array([start, 2 * start]), start**3 - start)
    pairs = itertools.takewhile(
        lambda pair: abs(pair[0].at.x[0]) <= 2.0, walk(Cubic(), at, jacobian(Cubic(), at), direction, 1e-6)
    )
    turns = []
    for before, after in pairs:
        u, v = after.at.x
        assert u**3 - u == pytest.approx(after.at.parameter, abs=1e-5)
        assert v == pytest.approx(2 * u, abs=1e-5)
        if after.direction != before.direction:
            turns.append(turning_point(before, after))
            # the sign of the determinant tells the sides of a fold apart
            assert np.linalg.det(before.slopes) * np.linalg.det(after.slopes) < 0
    assert turns == pytest.approx([direction * FOLD, -direction * FOLD], abs=2e-3)
    assert direction * after.at.x[0] > 1.5


def test_short_steps_do_not_leap_from_one_piece_of_a_curve_to_the_next() -> None:
    """``u^2 = parameter^2 - 0.01``: two pieces, which end at 0.1 and -0.1 and point at each other."""

    class Pieces(Cubic):
        def evaluate(self, x: Array, parameter: float) -> Values:
            u, v = x
            return Values(x, parameter, np.array([u**2 - parameter**2 + 0.01, v - u]))

        def parameter_slope(self, at: Values) -> Array:
            return np.array([-2 * at.parameter, 0.0])

    start = Pieces().evaluate(np.full(2, np.sqrt(0.99)), 1.0)
    steps = itertools.islice(walk(Pieces(), start, jacobian(Pieces(), start), -1.0, 1e-6, longest=0.05), 60)
    pairs = list(itertools.takewhile(lambda pair: pair[1].at.x[0] > -0.8, steps))
    assert min(after.at.parameter for _, after in pairs) > 0.099
    (turn,) = [turning_point(*pair) for pair in pairs if pair[0].direction != pair[1].direction]
    assert turn == pytest.approx(0.1, abs=0.01)
    assert pairs[-1][1].at.x[0] < -0.7


def test_a_walk_stops_where_the_curve_does() -> None:
    class Cut(Cubic):
        def evaluate(self, x: Array, parameter: float) -> Values:
            found = super().evaluate(x, parameter)
            return found if parameter < 0 else Values(x, parameter, np.full(2, np.nan))

    at = Cut().evaluate(np.array([-2.0, -4.0]), -6.0)
    places = list(walk(Cut(), at, jacobian(Cut(), at), 1.0, 1e-6))
    assert -0.01 < places[-1][1].at.parameter < 0
