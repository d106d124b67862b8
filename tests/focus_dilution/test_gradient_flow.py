"""Facts about the gradient flow and the solver that follows it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from attention_phases.focus_dilution import (
    ConvergenceError,
    MarkovChain,
    Parameters,
    Trajectory,
    attention,
    excess_loss,
    gradient_flow,
    population_gradient,
    population_loss,
)
from numpy.typing import NDArray
from scipy.integrate import solve_ivp

Array = NDArray[np.float64]
LAZY = MarkovChain.lazy([0.75, 0.19, 0.05, 0.01], 0.8)
CASES = {  # chain, width, scale of the start, time
    "lazy": (LAZY, 5, 1e-3, 1000.0),
    "one symmetry less": (MarkovChain.lazy([0.5, 0.14, 0.12, 0.1, 0.08, 0.06], 0.3), 8, 1e-2, 1000.0),
    "moves on": (MarkovChain.lazy([0.5, 0.1, 0.1, 0.1, 0.1, 0.1], -0.1), 5, 1e-3, 1000.0),
    "random": (MarkovChain(np.random.default_rng(0).dirichlet(np.full(6, 0.5), 6)), 8, 1e-2, 300.0),
    "periodic": (MarkovChain([[0.0, 0.3, 0.7], [1.0, 0.0, 0.0], [1.0, 0.0, 0.0]]), 2, 0.1, 300.0),
    "wide start": (LAZY, 6, 0.7, 100.0),
}
cases = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def scaled(of_outputs: float, of_scores: float) -> Parameters:
    """A start with one scale for W0 and W1 and one for W_Q and W_K."""
    W0, W1, WQ, WK = Parameters.gaussian(4, 3, 1, 0).arrays
    return Parameters(of_outputs * W0, of_outputs * W1, of_scores * WQ, of_scores * WK)


def second_solver(chain: MarkovChain, start: Parameters, times: Array) -> tuple[Array, Array]:
    """The excess loss and the last weights from SciPy's LSODA at a tolerance near rounding."""
    shapes = [part.shape for part in start.arrays]
    ends = np.cumsum([part.size for part in start.arrays])[:-1]

    def parameters(flat: Array) -> Parameters:
        return Parameters(*(part.reshape(s) for part, s in zip(np.split(flat, ends), shapes, strict=True)))

    def rate(_: float, flat: Array) -> Array:
        return -np.concatenate([part.ravel() for part in population_gradient(parameters(flat), chain).arrays])

    flat = np.concatenate([part.ravel() for part in start.arrays])
    found = solve_ivp(rate, (0, times[-1]), flat, "LSODA", t_eval=times, rtol=1e-10, atol=1e-13)
    return np.array([excess_loss(parameters(y), chain) for y in found.y.T]), found.y[:, -1]


@pytest.mark.slow
@cases
def test_the_flow_is_that_of_a_second_solver_within_its_tolerance(case: Any) -> None:
    chain, width, scale, t_max = case
    start = Parameters.gaussian(chain.n_tokens, width, scale, 1)
    times = np.geomspace(0.1, t_max, 12)
    exact, last = second_solver(chain, start, times)
    for rtol in (1e-2, 1e-4):
        found = gradient_flow(chain, start=start, times=times, rtol=rtol)
        np.testing.assert_array_equal(found.times, times)
        assert np.abs(found.excess_loss / exact - 1).max() < rtol
        weights = np.concatenate([part.ravel() for part in found.parameters[-1].arrays])
        assert np.abs(weights - last).max() < 10 * rtol * np.abs(last).max()


@cases
def test_the_loss_falls_and_conserved_quantities_stay(case: Any) -> None:
    chain, width, scale, t_max = case
    for rtol in (1e-3, 1e-6):
        found = gradient_flow(chain, width, scale, t_max, 2, rtol=rtol)
        assert (np.diff(found.loss) <= 1e-15).all()
        assert (found.excess_loss >= 0).all()
        assert 0 < found.drift < rtol / 3
        assert found.converged


@pytest.mark.slow
def test_a_tighter_tolerance_is_met() -> None:
    times = np.geomspace(1, 1e4, 30)
    best = gradient_flow(LAZY, times=times, rtol=1e-6)
    assert best.excess_loss[-1] < 1e-6
    for rtol in (1e-3, 1e-4, 1e-5):
        found = gradient_flow(LAZY, times=times, rtol=rtol)
        assert np.abs(found.excess_loss / best.excess_loss - 1).max() < rtol


def test_what_a_trajectory_holds_is_what_its_weights_give() -> None:
    found = gradient_flow(LAZY, 5, t_max=300, queries=[3, 0], seed=3)
    n = len(found.times)
    assert found.times[0] == 0
    assert found.times[-1] == 300
    assert found.attention.shape == (n, 2, 4)
    assert found.entropy.shape == (n, 2)
    assert found.singular_values.shape == (n, 4)
    assert found.norms.shape == (n, 4)
    assert len(found.parameters) == n
    for k in (0, n // 2, n - 1):
        at = found.parameters[k]
        a = attention(at, LAZY)[[3, 0]]
        assert abs(found.loss[k] - population_loss(at, LAZY)) < 1e-14
        np.testing.assert_array_equal(found.attention[k], a)
        np.testing.assert_allclose(found.entropy[k], -(a * np.log(a)).sum(axis=1), rtol=1e-13)
        np.testing.assert_allclose(found.singular_values[k] ** 2, np.linalg.eigvalsh(at.W0 @ at.W0.T)[::-1])
        np.testing.assert_allclose(found.norms[k], [np.sqrt((part**2).sum()) for part in at.arrays])
    at = found.parameters[0]
    for one, other in zip(at.arrays, Parameters.gaussian(4, 5, 1e-3, 3).arrays, strict=True):
        np.testing.assert_array_equal(one, other)


def test_frames_are_dense_in_stages_and_no_more_than_asked_for() -> None:
    every = gradient_flow(LAZY, t_max=1e4, rtol=1e-2, n_frames=10_000)
    assert len(every.times) == every.n_steps + 1
    assert np.diff(every.times).max() > 1000 * np.diff(every.times).min()
    for n_frames in (3, 4, 50, 51):
        few = gradient_flow(LAZY, t_max=1e4, rtol=1e-2, n_frames=n_frames)
        assert n_frames / 2 <= len(few.times) <= n_frames
        assert few.times[0] == 0
        assert few.times[-1] == 1e4
        assert np.isin(few.times, every.times).all()
        assert few.excess_loss[-1] == every.excess_loss[-1]


def test_a_first_step_that_is_tried_again_leaves_one_first_frame() -> None:
    found = gradient_flow(MarkovChain.lazy([0.75, 0.19, 0.05, 0.01], 0.3), 8, 0.03, 1.0, rtol=1e-6)
    assert found.n_rejected > 0
    assert (np.diff(found.times) > 0).all()


def test_scores_without_weights_stay_so() -> None:
    begin = Parameters.gaussian(4, 5, 1e-2, 0)
    nothing = np.zeros((5, 5))
    found = gradient_flow(LAZY, start=Parameters(begin.W0, begin.W1, nothing, nothing), t_max=300)
    assert not found.parameters[-1].WQ.any()
    assert not found.parameters[-1].WK.any()
    assert found.loss[-1] == pytest.approx(LAZY.unigram_entropy, abs=1e-5)
    assert found.drift < 1e-4


def test_same_seed_same_flow() -> None:
    one, same, other = (gradient_flow(LAZY, t_max=50, seed=s) for s in (4, np.random.default_rng(4), 5))
    np.testing.assert_array_equal(one.excess_loss, same.excess_loss)
    np.testing.assert_array_equal(one.parameters[-1].W0, same.parameters[-1].W0)
    assert one.excess_loss[-1] != other.excess_loss[-1]


def test_the_flow_turns_with_its_start() -> None:
    """A rotation of the embedding space and one of the heads' space turn the weights and leave the loss alone."""
    start, rng = Parameters.gaussian(4, 6, 1e-2, 6), np.random.default_rng(7)
    U, V = (np.linalg.qr(rng.standard_normal((6, 6))).Q for _ in range(2))
    W0, W1, WQ, WK = start.arrays
    times = [10.0, 100, 200]
    one = gradient_flow(LAZY, start=start, times=times)
    turned = gradient_flow(LAZY, start=Parameters(W0 @ U, U.T @ W1, U.T @ WQ @ V, U.T @ WK @ V), times=times)
    np.testing.assert_allclose(turned.excess_loss, one.excess_loss, rtol=1e-5)
    np.testing.assert_allclose(turned.parameters[-1].W0, one.parameters[-1].W0 @ U, atol=1e-4)


def test_a_smaller_start_waits_longer_by_the_logarithm_of_its_scale() -> None:
    """At the origin W0 and W1 grow at |pi| |pi - 1/d|; the loss is that of the unigram point halfway down."""
    pi = LAZY.stationary
    rate = np.linalg.norm(pi) * np.linalg.norm(pi - 0.25)
    halfway = (np.log(4) + LAZY.unigram_entropy) / 2
    times = np.linspace(10, 80, 141)
    arrivals = []
    for scale in (1e-4, 1e-8):
        found = gradient_flow(LAZY, init_scale=scale, times=times)
        arrivals.append(np.interp(-halfway, -found.loss, times))
    assert abs((arrivals[1] - arrivals[0]) * rate / np.log(1e4) - 1) < 0.01


def test_a_rank_one_start_stays_of_rank_one() -> None:
    rng = np.random.default_rng(8)
    u, b = (v / np.linalg.norm(v) for v in rng.standard_normal((2, 7)))
    w0, w1 = 0.1 * rng.standard_normal((2, 4))
    start = Parameters(np.outer(w0, u), np.outer(u, w1), 0.01 * np.outer(u, b), 0.01 * np.outer(u, b))
    last = gradient_flow(LAZY, start=start, t_max=100).parameters[-1]
    assert abs(last.W0 @ u).max() > 1
    np.testing.assert_allclose(last.W0, np.outer(last.W0 @ u, u), atol=1e-13)
    np.testing.assert_allclose(last.W1, np.outer(u, u @ last.W1), atol=1e-13)
    np.testing.assert_allclose(last.WQ, (u @ last.WQ @ b) * np.outer(u, b), atol=1e-13)
    np.testing.assert_allclose(last.WK, last.WQ, atol=1e-13)


@pytest.mark.slow
def test_a_large_chain() -> None:
    pi = 1 / np.arange(1, 101)
    chain = MarkovChain.lazy(pi / pi.sum(), 0.3)
    found = gradient_flow(chain, 32, t_max=300, queries=[0, 50])
    assert found.attention.shape[1:] == (2, 100)
    assert found.drift < 1e-4
    assert found.loss[-1] < chain.unigram_entropy < found.loss[0]


def test_too_few_steps_are_reported_with_what_was_reached() -> None:
    with pytest.raises(ConvergenceError, match="of 10000 in max_steps = 30 steps") as caught:
        gradient_flow(LAZY, max_steps=30)
    last = caught.value.last
    assert isinstance(last, Trajectory)
    assert not last.converged
    assert last.n_steps + last.n_rejected == 30
    assert 0 < last.times[-1] < 1e4
    assert caught.value.residual == last.drift
    with pytest.raises(ConvergenceError, match="max_steps = 5 steps"):
        gradient_flow(LAZY, times=[1e3], max_steps=5)


def test_weights_that_leave_what_can_be_computed_with_are_a_failure_of_the_solver(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("attention_phases._checks.LARGEST", 1.0)  # it bounds times too
    W0, scores = np.full((4, 2), 0.99), np.zeros((2, 2))
    W1 = np.outer([0.3, 0.3], LAZY.stationary - 0.25)  # what grows from the origin
    with pytest.raises(ConvergenceError, match="in max_steps = 300 steps") as caught:
        gradient_flow(LAZY, start=Parameters(W0, W1, scores, scores), t_max=1.0, max_steps=300)
    last = caught.value.last.parameters[-1]
    assert 0.99 < max(np.abs(part).max() for part in last.arrays) <= 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"width": 0}, "width must be a whole number of at least 1"),
        ({"init_scale": 0}, "init_scale must be > 0: 0 is an exact critical point, which the flow never leaves; got 0"),
        ({"init_scale": -1}, "init_scale must be a number in"),
        ({"init_scale": 1e-200}, "init_scale must be at least 1e-60; got 1e-200"),
        ({"init_scale": 1e300}, "init_scale must be a number in"),
        ({"t_max": np.inf}, "t_max must be a number in .*; got inf"),
        ({"t_max": 0}, r"t_max must be a number in \(0"),
        ({"seed": -1}, "seed must be"),
        ({"rtol": 0}, "rtol must be a number in"),
        ({"times": [1, 1]}, "times must be increasing"),
        ({"times": [-1, 1]}, "times must be increasing and at least 0"),
        ({"times": []}, "times must be a real array"),
        ({"times": [0]}, "times must .* end after 0"),
        ({"n_frames": 2}, "n_frames must be a whole number of at least 3"),
        ({"queries": [4]}, r"queries must be token numbers from 0 to 3; got \[4\]"),
        ({"queries": [-1]}, "queries must be token numbers from 0 to 3"),
        ({"queries": [0.5]}, "queries must be a list of token numbers"),
        ({"queries": []}, "queries must be a list of token numbers"),
        ({"queries": [[1], [2, 3]]}, r"queries must be a list of token numbers; got \[\[1\], \[2, 3\]\]"),
        ({"max_steps": 0}, "max_steps must be a whole number of at least 1"),
        ({"start": "here"}, "start must be a Parameters; got 'here'"),
        ({"start": Parameters.gaussian(3, 5, 1, 0)}, "start must be for the chain's 4 tokens; got 3"),
        ({"start": scaled(1e-70, 1e-70)}, "start must have an entry of W0, W1, WQ, WK of size 1e-60 or more"),
        ({"start": scaled(1e-2, 1e-70)}, "start must have an entry of WQ, WK of size 1e-60 or more"),
        ({"start": Parameters(*map(np.zeros, ((4, 2), (2, 4), (2, 2), (2, 2))))}, "start must not be a critical point"),
    ],
)
def test_what_makes_no_flow_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        gradient_flow(LAZY, **arguments)


def test_the_chain_must_be_one() -> None:
    with pytest.raises(ValueError, match="chain must be a MarkovChain"):
        gradient_flow(np.eye(2))  # type: ignore[arg-type]


def test_many_asked_times_do_not_hold_the_flow_at_a_saddle() -> None:
    """Tokens that are alike part slowly; with short steps, each of which moves them by less than the tolerance, too."""
    chain = MarkovChain.lazy((0.5, 0.1, 0.1, 0.1, 0.1, 0.1), 0.65)
    start = Parameters.gaussian(6, 8, 1e-5, 2)
    apart = []
    for arguments in ({"t_max": 700.0, "rtol": 1e-6}, {"times": np.linspace(0, 700, 351)}):
        last = gradient_flow(chain, start=start, **arguments).parameters[-1]
        apart.append(float(last.W0[1:].std(axis=0).max()))
    assert apart[0] > 1e-2
    assert abs(apart[1] / apart[0] - 1) < 0.05
