"""Facts about the rank-one manifold and the flow on it."""

import time
import tracemalloc

import numpy as np
import pytest
from attention_phases.errors import ConvergenceError
from attention_phases.focus_dilution import (
    MarkovChain,
    Parameters,
    attention,
    nearly_symmetric_chain,
    population_gradient,
    population_loss,
)
from attention_phases.focus_dilution import dilution as module
from attention_phases.focus_dilution.condensation import condensation_rate, condensing_direction, unigram_profile
from attention_phases.focus_dilution.dilution import RankOnePoint, RankOneTrajectory, rank_one_flow
from attention_phases.focus_dilution.focus import focus_rate
from markov import CHAINS, follow

RUNNING = nearly_symmetric_chain(0.02, 0.3)


def random_point(chain: MarkovChain, seed: int) -> tuple[RankOnePoint, Parameters, np.ndarray]:
    """A point of the manifold, the weights there, and u."""
    rng = np.random.default_rng(seed)
    w0, w1 = rng.standard_normal((2, chain.n_tokens))
    u, q, k = rng.standard_normal((3, 3))
    u /= np.linalg.norm(u)
    weights = Parameters(np.outer(w0, u), np.outer(u, w1), np.outer(u, q), np.outer(u, k))
    return RankOnePoint(chain, w0, w1, float(q @ k)), weights, u


@pytest.mark.parametrize("name", CHAINS)
def test_manifold_is_invariant_and_the_forces_on_it_are_those_of_the_full_flow(name: str) -> None:
    chain = CHAINS[name]
    point, weights, u = random_point(chain, 1)
    assert point.loss == pytest.approx(population_loss(weights, chain), rel=1e-13)
    np.testing.assert_allclose(point.attention, attention(weights, chain), atol=1e-14)
    by_w0, by_w1, (by_scale,) = point.force
    q, k = weights.WQ.T @ u, weights.WK.T @ u
    expected = np.outer(by_w0, u), np.outer(u, by_w1), by_scale * np.outer(u, k), by_scale * np.outer(u, q)
    gradient = population_gradient(weights, chain)
    for rate, force in zip(gradient.arrays, expected, strict=True):
        np.testing.assert_allclose(-rate, force, atol=1e-13)


@pytest.mark.parametrize("name", CHAINS)
def test_derivative_of_the_force_is_the_one_of_finite_differences(name: str) -> None:
    chain = CHAINS[name]
    point, _, _ = random_point(chain, 2)
    d = chain.n_tokens
    x, step = np.concatenate([point.w0, point.w1, [point.score_scale]]), 1e-5

    def force(x: np.ndarray) -> np.ndarray:
        return np.concatenate(RankOnePoint(chain, x[:d], x[d:-1], x[-1]).force)

    shifts = step * np.eye(2 * d + 1)
    numerical = np.array([(force(x + shift) - force(x - shift)) / (2 * step) for shift in shifts])
    np.testing.assert_allclose(point.force_derivative, numerical, atol=1e-7)
    np.testing.assert_allclose(point.force_derivative, point.force_derivative.T, atol=1e-14)


@pytest.mark.parametrize("name", ["lazy", "irreversible, to rare tokens"])
def test_full_flow_from_the_manifold_stays_on_it_and_is_the_reduced_flow(name: str) -> None:
    chain = CHAINS[name]
    _, start, u = random_point(chain, 3)
    small = Parameters(*(0.1 * array for array in start.arrays))
    run = follow(chain, small, 30 / condensation_rate(chain), 1e-8)
    reduced = rank_one_flow(chain, run.times[-1], start=small)
    across = np.eye(3) - np.outer(u, u)
    for frame in run.frames:
        assert max(np.abs(frame.W0 @ across).max(), np.abs(across @ frame.WQ).max()) < 1e-12
    u = u * np.sign(u @ condensing_direction(small, chain))
    last = run.frames[-1]
    np.testing.assert_allclose(last.W0 @ u, reduced.w0[-1], atol=1e-5)
    np.testing.assert_allclose(last.W1.T @ u, reduced.w1[-1], atol=1e-5)
    np.testing.assert_allclose((last.WQ.T @ u) @ (last.WK.T @ u), reduced.score_scale[-1], atol=1e-5)


def test_full_flow_from_a_small_start_lies_on_the_reduced_one() -> None:
    start = Parameters.gaussian(6, 4, 1e-3, seed=4)
    run = follow(RUNNING, start, 400)
    reduced = rank_one_flow(RUNNING, 400, start=start)
    for query, key in ((0, 0), (5, 0), (1, 0), (3, 2)):
        theory = np.interp(run.times, reduced.times, reduced.attention[:, query, key])
        np.testing.assert_allclose(run.attention[:, query, key], theory, atol=2e-3)


@pytest.mark.parametrize("init_scale", [1e-8, 1e-12])
def test_a_tiny_start_is_not_taken_for_rest(init_scale: float) -> None:
    """The origin is a saddle; leaving it from a smaller start takes log(1/scale)/lambda_1 longer, and ends alike."""
    usual, tiny = rank_one_flow(RUNNING, init_scale=1e-4), rank_one_flow(RUNNING, init_scale=init_scale)
    assert tiny.converged
    assert tiny.loss[-1] == pytest.approx(usual.loss[-1], rel=1e-6)
    leaves = [run.times[np.argmax(run.loss < 0.9 * run.loss[0])] for run in (usual, tiny)]
    assert leaves[1] - leaves[0] == pytest.approx(np.log(1e-4 / init_scale) / condensation_rate(RUNNING), rel=0.05)


def test_conserved_quantity_and_falling_loss() -> None:
    run = rank_one_flow(RUNNING, init_scale=1e-2)
    conserved = (run.w0**2).sum(axis=1) - (run.w1**2).sum(axis=1) - 2 * np.abs(run.score_scale)
    np.testing.assert_allclose(conserved, conserved[0], atol=1e-6)
    assert np.diff(run.loss).max() < 1e-9
    assert run.converged
    assert run.residual <= module.AT_REST * focus_rate(RUNNING)
    assert run.times[0] == 0
    assert (np.diff(run.times) > 0).all()


@pytest.mark.parametrize("name", CHAINS)
def test_flow_passes_the_unigram_point_and_ends_where_no_token_pulls(name: str) -> None:
    chain = CHAINS[name]
    w0, w1 = unigram_profile(chain)
    passed = []
    for init_scale in (1e-4, 1e-7):
        run = rank_one_flow(chain, init_scale=init_scale)
        passed.append(np.min(np.abs(run.w0 - w0).max(axis=1) + np.abs(run.w1 - w1).max(axis=1)))
    assert passed[1] < 0.3 * passed[0] < 0.03  # the smaller the start, the longer the wait, and the closer it comes
    assert np.sign(run.score_scale[-1]) == np.sign(focus_rate(chain))
    end = RankOnePoint(chain, run.w0[-1], run.w1[-1], run.score_scale[-1])
    assert np.abs(end.slope).max() < 1e-6
    assert np.abs(end.score_force).max() < 1e-6
    assert np.abs(end.output_force @ end.w1).max() < 1e-6


@pytest.mark.parametrize("name", CHAINS)
def test_error_of_the_flow_is_the_stated_one(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    chain = CHAINS[name]
    whole = rank_one_flow(chain)
    midway = whole.times[np.argmax(np.abs(whole.score_scale) > 0.3 * np.abs(whole.score_scale[-1]))]
    for t_max, bound in ((midway, 1e-5), (whole.times[-1], 1e-6)):
        run = rank_one_flow(chain, t_max)
        with monkeypatch.context() as patch:
            patch.setattr(module, "_TOLERANCE", 1e-12)
            exact = rank_one_flow(chain, t_max)
        assert np.abs(run.w0[-1] - exact.w0[-1]).max() < bound
        assert np.abs(run.w1[-1] - exact.w1[-1]).max() < bound


def shares(run: RankOneTrajectory, query: int, key: int) -> np.ndarray:
    return run.attention[:, query, key]


def test_mass_moves_to_the_frequent_token_and_rare_embeddings_change_sign() -> None:
    run = rank_one_flow(RUNNING)
    after = run.w0[run.times > 100]  # after the unigram point, where all entries are positive
    assert (after[0] > 0).all()
    assert after[-1, 0] > after[0, 0]
    assert (after[-1, 3:] < 0).all()
    assert (np.diff(after[:, 5]) <= 1e-9).all()


def test_attention_of_a_rare_query_on_the_frequent_token_rises_and_then_falls_below_its_base_rate() -> None:
    run = rank_one_flow(RUNNING)
    rare, frequent = shares(run, 5, 0), shares(run, 0, 0)
    assert rare[0] == pytest.approx(0.5, abs=1e-6)
    assert rare.max() > 0.51
    assert rare[-1] < 0.27
    assert (np.diff(frequent) > -1e-6).all()  # the frequent query never dilutes
    assert frequent[-1] > 0.97


def test_in_the_restless_chain_attention_turns_to_rare_tokens() -> None:
    run = rank_one_flow(nearly_symmetric_chain(0, -0.1))
    assert run.score_scale[-1] < 0
    assert shares(run, 0, 0)[-1] == pytest.approx(0.34, abs=0.005)


@pytest.mark.parametrize("name", [*CHAINS, "running example"])
def test_flow_is_fast(name: str) -> None:
    chain = CHAINS.get(name, RUNNING)
    rank_one_flow(chain)
    best = np.inf
    for _ in range(10):
        begin = time.process_time()
        rank_one_flow(chain)
        best = min(best, time.process_time() - begin)
    assert best < 0.1


def test_memory_is_that_of_the_frames() -> None:
    """A frame has 2 d numbers, an attention matrix d^2; few of those are held at a time."""
    d = 100
    pi = 1 / np.arange(1, d + 1)
    chain = MarkovChain.lazy(pi / pi.sum(), 0.3)
    tracemalloc.start()
    run = rank_one_flow(chain, 1000)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    numbers = 4 * run.w0.size + 60 * d**2 + 10 * module._AT_ONCE  # the Jacobian of the solver has 4 d^2
    assert len(run.times) > 200  # of which the attention alone would be 2 million numbers
    assert peak < 8 * numbers


def test_nothing_moves_where_pi_is_uniform() -> None:
    run = rank_one_flow(MarkovChain.lazy(np.ones(5) / 5, 0.3), 50)
    np.testing.assert_allclose(run.w0, run.w0[:1].repeat(len(run.times), axis=0), rtol=1e-12)
    assert run.loss == pytest.approx(np.full(len(run.times), np.log(5)), abs=1e-12)


def test_start_without_scores_ends_at_the_unigram_point() -> None:
    rng = np.random.default_rng(5)
    start = Parameters(0.01 * rng.standard_normal((6, 3)), 0.01 * rng.standard_normal((3, 6)), *np.zeros((2, 3, 3)))
    run = rank_one_flow(RUNNING, start=start)
    assert run.converged
    assert run.loss[-1] == pytest.approx(RUNNING.unigram_entropy, abs=1e-9)


@pytest.mark.parametrize("asymmetry", [1e-3, 1e-4, 1e-6, 1e-8])
def test_a_wait_for_focus_that_rounding_hides_is_named(asymmetry: float) -> None:
    """For pi that is nearly uniform lambda_2 is of the fifth order of what is left."""
    chain = MarkovChain.lazy(0.2 + asymmetry * np.array([2, 1, 0, -1, -2]), 0.3)
    with pytest.raises(ConvergenceError, match=r"waits at the unigram point; lambda_2 = .* is so small") as caught:
        rank_one_flow(chain)
    run = caught.value.last
    assert not run.converged
    assert len(run.times) < 2000
    w0, _ = unigram_profile(chain)
    np.testing.assert_allclose(run.w0[-1], w0, rtol=1e-4)
    assert 0 < run.score_scale[-1] < 1e-5
    assert len(rank_one_flow(chain, 10).times) > 1  # to a given time it is followed


def test_flow_is_followed_as_long_as_rounding_allows() -> None:
    chain = MarkovChain.lazy(0.2 + 2e-3 * np.array([2, 1, 0, -1, -2]), 0.3)
    assert 2e-8 < focus_rate(chain) / condensation_rate(chain) < 1e-7
    run = rank_one_flow(chain)
    assert run.converged
    assert run.score_scale[-1] > 1


def test_flow_that_does_not_come_to_rest_says_so_and_how_far_it_came(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_STEPS", 20)
    with pytest.raises(ConvergenceError, match="after 20 steps, where it still moves") as caught:
        rank_one_flow(RUNNING)
    assert len(caught.value.last.times) == 21
    assert not caught.value.last.converged
    assert caught.value.residual == caught.value.last.residual > 0


def test_bad_arguments_are_named() -> None:
    with pytest.raises(ValueError, match="init_scale must be > 0: 0 is an exact critical point"):
        rank_one_flow(RUNNING, init_scale=0)
    with pytest.raises(ValueError, match="init_scale must be a number in"):
        rank_one_flow(RUNNING, init_scale=-1e-3)
    for init_scale in (1e300, 1e-300, 2):
        with pytest.raises(ValueError, match="init_scale must be"):
            rank_one_flow(RUNNING, init_scale=init_scale)
    with pytest.raises(ValueError, match="start must have an entry of W0, W1, WQ, WK of size 1e-60 or more"):
        rank_one_flow(RUNNING, start=Parameters(*(1e-60 * w for w in Parameters.gaussian(6, 2, 1e-3, 0).arrays)))
    with pytest.raises(ValueError, match="t_max must be a number in"):
        rank_one_flow(RUNNING, np.inf)
    nothing = Parameters(np.zeros((6, 2)), np.zeros((2, 6)), np.eye(2), np.eye(2))
    with pytest.raises(ValueError, match="start must have a part that grows"):
        rank_one_flow(RUNNING, start=nothing)
    w0, w1 = unigram_profile(RUNNING)
    with pytest.raises(ValueError, match="chain must be a MarkovChain"):
        RankOnePoint(np.eye(6), w0, w1, 0.0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"w0 must be a real array of shape \(6\); got shape \(5,\)"):
        RankOnePoint(RUNNING, w0[1:], w1, 0.0)
    with pytest.raises(ValueError, match=r"w1 must be finite.*w1\[0\] = nan"):
        RankOnePoint(RUNNING, w0, w1 * np.nan, 0.0)
    with pytest.raises(ValueError, match="score_scale must be a number"):
        RankOnePoint(RUNNING, w0, w1, np.inf)
    with pytest.raises(ValueError, match="chain must be a MarkovChain"):
        rank_one_flow("chain")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="start must be for the chain's 6 tokens; got 5"):
        rank_one_flow(RUNNING, start=Parameters.gaussian(5, 2, 0.1, 0))
