"""Lines in 1/d through means with errors."""

from typing import Any

import numpy as np
import pytest
from attention_phases.estimates import extrapolate, share_of, standard_error
from scipy.stats import norm

SIZES = np.array([100, 200, 400, 800])


def test_means_on_a_line_are_extrapolated_exactly() -> None:
    line = extrapolate(SIZES, 3 - 50 / SIZES, [0.1, 0.2, 0.1, 0.3])
    assert np.isclose(line.limit.value, 3)
    assert np.isclose(line.slope, -50)
    assert line.misfit < 1e-20
    np.testing.assert_allclose(line.at([250, np.inf])[0], [2.8, 3])


def test_through_two_means_the_error_is_that_of_their_difference() -> None:
    """At sizes d and 2 d the limit is 2 y(2d) - y(d)."""
    line = extrapolate([100, 200], [1.0, 2.0], [0.3, 0.4])
    assert np.isclose(line.limit.value, 3)
    assert np.isclose(line.limit.standard_error, np.hypot(2 * 0.4, 0.3))
    assert np.isnan(line.misfit)
    values, errors = line.at([100, 200])
    np.testing.assert_allclose(values, [1, 2])
    np.testing.assert_allclose(errors, [0.3, 0.4])


def test_the_limit_scatters_by_its_standard_error_and_the_misfit_is_one() -> None:
    rng, error = np.random.default_rng(0), np.array([0.4, 0.3, 0.2, 0.2])
    lines = [extrapolate(SIZES, 3 - 50 / SIZES + error * rng.standard_normal(4), error) for _ in range(2000)]
    limits = np.array([line.limit.value for line in lines])
    misfits = np.array([line.misfit for line in lines])
    assert abs(limits.mean() - 3) < 4 * standard_error(limits)
    assert abs(limits.std() / lines[0].limit.standard_error - 1) < 4 / np.sqrt(2 * 2000)
    assert abs(misfits.mean() - 1) < 4 * standard_error(misfits)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"sizes": [100]}, "sizes must have two different positive numbers or more; got"),
        ({"sizes": [100, 100]}, "sizes must have two different"),
        ({"sizes": [100, -200]}, "sizes must have two different"),
        ({"sizes": [100, np.inf]}, "sizes must be finite"),
        ({"means": [1.0]}, r"means must be a real array of shape \(2\)"),
        ({"standard_errors": [0.1, 0.0]}, "standard_errors must be positive; got"),
        ({"standard_errors": [0.1, np.nan]}, "standard_errors must be finite"),
    ],
)
def test_what_is_no_row_of_means_is_refused_by_name(wrong: dict[str, Any], message: str) -> None:
    means: dict[str, Any] = {"sizes": [100, 200], "means": [1.0, 2.0], "standard_errors": [0.1, 0.1]}
    with pytest.raises(ValueError, match=message):
        extrapolate(**(means | wrong))


@pytest.mark.parametrize("hits", [0, 3, 10, 20])
def test_from_the_ends_of_its_interval_a_share_is_one_deviation_away(hits: int) -> None:
    """Wilson's interval: the deviation is that of a share whose truth lies at the end, 68 % of a normal variable's."""
    mean, down, up = share_of(np.arange(20) < hits)
    assert mean == hits / 20
    for end in (mean - down, mean + up):
        assert np.isclose(abs(mean - end), norm.isf(0.16) * np.sqrt(end * (1 - end) / 20))


@pytest.mark.parametrize("hits", [[], [0, 1], [[True]], 3, "ab"])
def test_what_is_no_list_of_truth_values_has_no_share(hits: Any) -> None:
    with pytest.raises(ValueError, match="hits must be a list of True and False; got"):
        share_of(hits)
