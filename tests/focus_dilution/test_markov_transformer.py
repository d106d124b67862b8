"""Facts about Markov chains and the population model that reads them."""

from __future__ import annotations

import copy
import pickle
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from attention_phases.focus_dilution import (
    MarkovChain,
    Parameters,
    attention,
    conserved_quantities,
    excess_loss,
    forces,
    hessian_product,
    population_gradient,
    population_loss,
)
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Callable

Array = NDArray[np.float64]
ZERO = np.array([[0.2, 0.5, 0.0, 0.3], [0.1, 0.1, 0.8, 0.0], [0.0, 0.6, 0.1, 0.3], [0.25, 0.25, 0.25, 0.25]])


def birth_and_death(d: int, up: float, down: float) -> Array:
    """A transition matrix that goes up or down by one token."""
    transition = np.diag(np.full(d - 1, up), 1) + np.diag(np.full(d - 1, down), -1)
    np.fill_diagonal(transition, 1 - transition.sum(axis=1))
    return transition


CHAINS = {
    "lazy": MarkovChain.lazy([0.75, 0.19, 0.05, 0.01], 0.8),
    "moves on": MarkovChain.lazy([0.5, 0.1, 0.1, 0.1, 0.1, 0.1], -0.1),
    "with zeros": MarkovChain(ZERO),
    "random": MarkovChain(np.random.default_rng(0).dirichlet(np.full(6, 0.5), 6)),
    "periodic": MarkovChain([[0.0, 0.3, 0.7], [1.0, 0.0, 0.0], [1.0, 0.0, 0.0]]),
    "uniform": MarkovChain(np.full((5, 5), 0.2)),
}
chains = pytest.mark.parametrize("chain", CHAINS.values(), ids=CHAINS)


def point(chain: MarkovChain, seed: int = 0, width: int = 7, scale: float = 0.8) -> Parameters:
    return Parameters.gaussian(chain.n_tokens, width, scale, seed)


def moved(parameters: Parameters, direction: Parameters, by: float) -> Parameters:
    return Parameters(*(w + by * v for w, v in zip(parameters.arrays, direction.arrays, strict=True)))


def product(one: Parameters, other: Parameters) -> float:
    return sum(float((a * b).sum()) for a, b in zip(one.arrays, other.arrays, strict=True))


def loss_in_torch(chain: MarkovChain, *weights: torch.Tensor) -> torch.Tensor:
    W0, W1, WQ, WK = weights
    pi, P = (torch.tensor(np.array(values)) for values in (chain.stationary, chain.transition))
    a = torch.softmax(W0 @ WQ @ (W0 @ WK).T + pi.log(), dim=1)
    loss: torch.Tensor = -(pi[:, None] * P * torch.log_softmax(a @ W0 @ W1, dim=1)).sum()
    return loss


@chains
def test_stationary_distribution_is_left_eigenvector_to_rounding(chain: MarkovChain) -> None:
    np.testing.assert_allclose(chain.stationary @ chain.transition, chain.stationary, rtol=1e-13)
    assert chain.stationary.min() > 0
    assert abs(chain.stationary.sum() - 1) < 1e-14


@pytest.mark.parametrize("persistence", [-0.01, 0, 0.3, 0.999999])
def test_a_lazy_chain_has_the_distribution_it_was_made_from(persistence: float) -> None:
    pi = np.array([0.75, 0.19, 0.05, 0.01])
    chain = MarkovChain.lazy(pi, persistence)
    np.testing.assert_allclose(chain.stationary, pi, rtol=1e-12 if persistence < 0.9 else 1e-9)
    np.testing.assert_allclose(np.diag(chain.transition), persistence + (1 - persistence) * pi, rtol=1e-13)


def test_rare_tokens_keep_their_relative_accuracy() -> None:
    """A birth-death chain up a steep hill: detailed balance gives each entry, down to 1e-60."""
    for up, down in ((1e-6, 0.5), (0.5, 1e-6)):
        exact = (up / down) ** (np.arange(11) if up < down else np.arange(-10, 1))
        np.testing.assert_allclose(
            MarkovChain(birth_and_death(11, up, down)).stationary, exact / exact.sum(), rtol=1e-12
        )


def test_entropies_of_a_lazy_chain() -> None:
    pi = np.array([0.5, 0.3, 0.2])
    assert abs(MarkovChain.lazy(pi, 0).conditional_entropy - MarkovChain.lazy(pi, 0.5).unigram_entropy) < 1e-14
    stay, leave = 0.5 + 0.5 * pi, 0.5 * pi
    entropy = -(pi * (stay * np.log(stay) + (leave * np.log(leave)).sum() - leave * np.log(leave))).sum()
    assert abs(MarkovChain.lazy(pi, 0.5).conditional_entropy - entropy) < 1e-14


def test_a_chain_that_alternates_has_no_conditional_entropy() -> None:
    chain = MarkovChain([[0, 1], [1, 0]])
    assert chain.conditional_entropy == 0
    assert abs(chain.unigram_entropy - np.log(2)) < 1e-15


@chains
def test_sampled_pairs_have_the_chains_frequencies(chain: MarkovChain) -> None:
    tokens = chain.sample(4000, 5, seed=1)
    assert tokens.shape == (4000, 5)
    d = chain.n_tokens
    for t in range(4):  # at each time, so that the start is stationary too
        counts = np.zeros((d, d))
        np.add.at(counts, (tokens[:, t], tokens[:, t + 1]), 1)
        expected = 4000 * chain.stationary[:, None] * chain.transition
        assert (counts[expected == 0] == 0).all()
        assert (np.abs(counts - expected) <= 6 * np.sqrt(expected) + 1).all()


def test_a_long_cycle_is_sampled_step_by_step() -> None:
    """One next token in each of 400 rows: a draw that fell into a row beside its own would break the cycle."""
    d = 400
    tokens = MarkovChain(np.roll(np.eye(d), 1, axis=1)).sample(2000, 50, seed=2)
    np.testing.assert_array_equal(tokens, (tokens[:, :1] + np.arange(50)) % d)


def test_same_seed_same_sample() -> None:
    chain = CHAINS["random"]
    np.testing.assert_array_equal(chain.sample(3, 9, 5), chain.sample(3, 9, np.random.default_rng(5)))
    assert (chain.sample(3, 9, 5) != chain.sample(3, 9, 6)).any()


def test_chains_are_equal_when_their_transitions_are() -> None:
    assert MarkovChain(ZERO) == CHAINS["with zeros"]
    assert len({MarkovChain(ZERO), CHAINS["with zeros"], CHAINS["lazy"]}) == 2
    assert MarkovChain(ZERO) != "chain"


@chains
def test_loss_gradient_and_hessian_are_those_of_automatic_differentiation(chain: MarkovChain) -> None:
    at, along = point(chain), point(chain, seed=1)
    weights = tuple(torch.tensor(np.array(w), requires_grad=True) for w in at.arrays)
    loss = loss_in_torch(chain, *weights)
    assert abs(population_loss(at, chain) - loss.item()) < 1e-13
    for ours, theirs in zip(population_gradient(at, chain).arrays, torch.autograd.grad(loss, weights), strict=True):
        np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-11, atol=1e-13)
    directions = tuple(torch.tensor(np.array(v)) for v in along.arrays)
    hvp: Any = torch.autograd.functional.hvp
    _, products = hvp(lambda *w: loss_in_torch(chain, *w), weights, directions)
    for ours, theirs in zip(hessian_product(at, chain, along).arrays, products, strict=True):
        np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-10, atol=1e-12)


@chains
def test_gradient_and_hessian_are_limits_of_differences(chain: MarkovChain) -> None:
    """Differences over two steps, extrapolated: what is left is of order step^4 and rounding, 1e-16/step."""
    at, along, step = point(chain, 2), point(chain, 3), 2e-4

    def difference(h: float) -> tuple[float, Array]:
        ahead, behind = moved(at, along, h), moved(at, along, -h)
        change = moved(population_gradient(ahead, chain), population_gradient(behind, chain), -1)
        flat = np.concatenate([part.ravel() for part in change.arrays])
        return (population_loss(ahead, chain) - population_loss(behind, chain)) / (2 * h), flat / (2 * h)

    (slope, change), (slope_half, change_half) = difference(step), difference(step / 2)
    exact = np.concatenate([part.ravel() for part in hessian_product(at, chain, along).arrays])
    assert abs((4 * slope_half - slope) / 3 - product(population_gradient(at, chain), along)) < 1e-9
    np.testing.assert_allclose((4 * change_half - change) / 3, exact, rtol=1e-7, atol=1e-8)


@chains
def test_the_hessian_is_symmetric(chain: MarkovChain) -> None:
    at, one, other = (point(chain, seed) for seed in (4, 5, 6))
    forth, back = product(hessian_product(at, chain, one), other), product(hessian_product(at, chain, other), one)
    assert abs(forth - back) < 1e-12 * (1 + abs(forth))


@chains
def test_forces_are_derivatives_by_outputs_and_scores(chain: MarkovChain) -> None:
    at = point(chain)
    found = forces(at, chain)
    W0, _, _, WK = at.arrays
    gradient = population_gradient(at, chain)
    np.testing.assert_allclose(gradient.W1, -W0.T @ found.output_force, atol=1e-14)
    np.testing.assert_allclose(gradient.WQ, -W0.T @ found.score_force @ W0 @ WK, atol=1e-13)
    np.testing.assert_allclose(found.residual.sum(axis=1), 0, atol=1e-15)
    np.testing.assert_allclose(found.score_force.sum(axis=1), 0, atol=1e-14)
    np.testing.assert_allclose(attention(at, chain).sum(axis=1), 1, rtol=1e-13)


@chains
def test_the_gradient_leaves_conserved_quantities_as_they_are(chain: MarkovChain) -> None:
    """Their derivative along the gradient is zero: the quantities are quadratic, so a central difference is exact."""
    at = point(chain)
    along = population_gradient(at, chain)
    pairs = zip(conserved_quantities(moved(at, along, 1)), conserved_quantities(moved(at, along, -1)), strict=True)
    for ahead, behind in pairs:
        np.testing.assert_allclose(ahead, behind, atol=1e-12)


@chains
def test_the_loss_does_not_change_under_its_symmetries(chain: MarkovChain) -> None:
    at, rng = point(chain), np.random.default_rng(7)
    A, B = np.eye(7) + 0.2 * rng.standard_normal((2, 7, 7))
    W0, W1, WQ, WK = at.arrays
    inverse = np.linalg.inv(A)
    shift = rng.standard_normal((7, 1))
    changed = Parameters(W0 @ A, inverse @ (W1 + shift), inverse @ WQ @ B, inverse @ WK @ np.linalg.inv(B).T)
    assert abs(population_loss(changed, chain) - population_loss(at, chain)) < 1e-12


@chains
def test_without_weights_the_loss_is_that_of_a_uniform_guess(chain: MarkovChain) -> None:
    d = chain.n_tokens
    nothing = Parameters(np.zeros((d, 2)), np.zeros((2, d)), np.zeros((2, 2)), np.zeros((2, 2)))
    assert abs(population_loss(nothing, chain) - np.log(d)) < 1e-14
    np.testing.assert_allclose(attention(nothing, chain), np.tile(chain.stationary, (d, 1)), rtol=1e-14)
    assert all(np.allclose(part, 0, atol=1e-15) for part in population_gradient(nothing, chain).arrays)


def test_excess_loss_keeps_its_relative_accuracy_where_it_is_small() -> None:
    """Logits log P + s E from a one-hot attention have an excess of s^2/2 times a variance, to order s^3."""
    chain, d, big = CHAINS["random"], 6, 40.0
    change = np.random.default_rng(8).standard_normal((d, d))
    P = chain.transition
    variance = chain.stationary @ ((P * change**2).sum(axis=1) - (P * change).sum(axis=1) ** 2)
    for s in (1e-4, 1e-6):
        at = Parameters(np.eye(d), np.log(P) + s * change, big * np.eye(d), big * np.eye(d))
        assert abs(excess_loss(at, chain) / (0.5 * s**2 * variance) - 1) < 20 * s + 1e-16 / s


@pytest.mark.parametrize("scale", [1e-150, 1e-3, 1, 30, 1e3])  # scores up to 1e13
@chains
def test_nothing_overflows_for_scores_of_any_size(chain: MarkovChain, scale: float) -> None:
    rng = np.random.default_rng(9)
    at = Parameters(*(scale * rng.uniform(-1, 1, w.shape) for w in point(chain).arrays))
    assert np.isfinite(population_loss(at, chain))
    assert excess_loss(at, chain) >= 0
    assert all(np.isfinite(part).all() for part in population_gradient(at, chain).arrays)
    assert all(np.isfinite(part).all() for part in hessian_product(at, chain, at).arrays)


def test_arrays_cannot_be_written_to_and_do_not_follow_what_they_were_made_from() -> None:
    matrix = ZERO.copy()
    chain = MarkovChain(matrix)
    matrix[0] = 0.25
    assert chain == MarkovChain(ZERO)
    for values in (chain.transition, chain.stationary, point(chain).W0):
        with pytest.raises(ValueError, match="read-only"):
            values[0] = 1


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))])
def test_copies_are_the_same_and_cannot_be_written_to_either(again: Callable[[Any], Any]) -> None:
    chain, at = MarkovChain(ZERO), point(CHAINS["with zeros"])
    loss = population_loss(at, chain)  # fills what a chain computes once
    other, there = again(chain), again(at)
    assert other == chain
    assert population_loss(there, other) == loss
    for values in (other.transition, other.stationary, other.log_transition, other.log_stationary, *there.arrays):
        assert not values.flags.writeable


@pytest.mark.parametrize(
    ("transition", "message"),
    [
        ([[1.0]], "square matrix with d >= 2 rows; got shape"),
        ([[0.5, 0.5]], "square matrix"),
        ([0.5, 0.5], "real array of shape"),
        ([[np.nan, 1], [1, 0]], r"transition\[0, 0\] = nan"),
        ([[1.2, -0.2], [1, 0]], r"no negative entry; got transition\[0, 1\] = -0.2"),
        ([[0.5, 0.5], [0.4, 0.5]], "rows that sum to 1; row 1 sums to 0.9"),
        ([[1, 0], [0, 1]], "irreducible.*got 2 classes, tokens 0 and 1"),
        ([[0.5, 0.5, 0], [0.5, 0.5, 0], [0.1, 0.1, 0.8]], "irreducible"),
        ("P", "real array"),
        (birth_and_death(200, 1e-3, 0.9), "stationary probabilities of at least 2.2e-308.*token [0-9]+ is smaller"),
        (birth_and_death(200, 0.9, 1e-3), "stationary probabilities of at least 2.2e-308.*token [0-9]+ is smaller"),
    ],
)
def test_what_is_no_irreducible_chain_is_refused(transition: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"transition must.*{message}"):
        MarkovChain(transition)


@pytest.mark.parametrize(
    ("stationary", "persistence", "message"),
    [
        ([0.5, 0.5], 1, r"persistence must be in \[-1, 1\)"),
        ([0.5, 0.4, 0.1], -0.2, r"persistence must be in \[-0.111111, 1\).*got -0.2"),
        ([0.5, 0.5], np.nan, "persistence must be a number"),
        ([0.5, 0.4], 0, "stationary must have entries that sum to 1; they sum to 0.9"),
        ([1.1, -0.1], 0, r"stationary must have positive entries; got stationary\[1\] = -0.1"),
        ([1.0, 0.0], 0, "stationary must have positive entries"),
        ([1.0], 0, "stationary must have d >= 2"),
        ([0.5, 0.22, 0.16, 0.1, 0.04, -0.02], 0.3, r"must have positive entries; got stationary\[5\] = -0.02"),
        ([0.5, 0.2, 0.15, 0.1, 0.05, 0], 0.3, r"stationary must have positive entries; got stationary\[5\] = 0"),
    ],
)
def test_what_is_no_lazy_chain_is_refused(stationary: Any, persistence: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MarkovChain.lazy(stationary, persistence)


@chains
def test_a_distribution_that_is_not_stationary_is_refused(chain: MarkovChain) -> None:
    pi = chain.stationary
    np.testing.assert_allclose(MarkovChain(chain.transition, pi).stationary, pi, rtol=1e-13)
    off = pi.copy()
    off[:2] += 1e-5 * pi[0] * np.array([1, -1])
    with pytest.raises(ValueError, match=r"stationary must be the distribution with pi P = pi.*; got stationary\["):
        MarkovChain(chain.transition, off)
    with pytest.raises(ValueError, match=f"stationary must have {len(pi)} entries, as transition has rows; got 2"):
        MarkovChain(chain.transition, [0.5, 0.5])
    with pytest.raises(ValueError, match="stationary must have entries that sum to 1"):
        MarkovChain(chain.transition, 1.1 * pi)


def test_at_the_lowest_persistence_the_rarest_token_never_stays() -> None:
    chain = MarkovChain.lazy([0.5, 0.4, 0.1], -0.1 / 0.9)
    assert 0 <= chain.transition[2, 2] < 1e-16


def test_what_does_not_fit_is_refused() -> None:
    chain, at = CHAINS["lazy"], point(CHAINS["lazy"])
    with pytest.raises(ValueError, match=r"W1 must be a real array of shape \(7, 4\); got shape \(7, 3\)"):
        Parameters(at.W0, at.W1[:, :3], at.WQ, at.WK)
    with pytest.raises(ValueError, match="WK must be finite"):
        Parameters(at.W0, at.W1, at.WQ, np.full((7, 7), np.inf))
    with pytest.raises(ValueError, match="parameters must be for the chain's 6 tokens; got 4"):
        population_loss(at, CHAINS["random"])
    with pytest.raises(ValueError, match="direction must have width 7; got 3"):
        hessian_product(at, chain, point(chain, width=3))
    with pytest.raises(ValueError, match="chain must be a MarkovChain"):
        attention(at, ZERO)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="init_scale must be > 0: 0 is an exact critical point"):
        Parameters.gaussian(4, 7, 0, 0)
    for largest in (1e-200, 1e300, np.inf):
        with pytest.raises(ValueError, match="init_scale must be"):
            Parameters.gaussian(4, 7, largest, 0)
    with pytest.raises(ValueError, match="width must be a whole number of at least 1"):
        Parameters.gaussian(4, 0, 1, 0)
    with pytest.raises(ValueError, match="parameters must be a Parameters; got MarkovChain"):
        population_loss(chain, at)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="parameters must be a Parameters; got None"):
        conserved_quantities(None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="length must be a whole number"):
        chain.sample(1, 0, 0)
