"""Facts about attention matrices and about the loss of one sample as a function of its local fields."""

from __future__ import annotations

import numpy as np
import pytest
from attention_phases.positional_semantic import SampleLoss, attention
from numpy.typing import NDArray

Array = NDArray[np.float64]
SHAPES = [(2, 1), (2, 2), (3, 1), (4, 3)]  # (L, r)


def naive_loss(tokens: Array, targets: Array, fields: Array) -> Array:
    """|y - S X|^2/(2 d) of each sample, from the (n, L, d) outputs; fields are (n, L, r)."""
    outputs = attention(fields) @ tokens
    result: Array = ((targets - outputs) ** 2).sum(axis=(1, 2)) / (2 * tokens.shape[2])
    return result


def random_loss(n_tokens: int, n: int, seed: int) -> tuple[SampleLoss, Array, Array]:
    """The losses of n samples with unrelated tokens and targets, and those tokens and targets."""
    rng = np.random.default_rng(seed)
    d = 7
    tokens, targets = rng.standard_normal((2, n, n_tokens, d))
    gram = tokens @ tokens.swapaxes(1, 2) / d
    cross = targets @ tokens.swapaxes(1, 2) / d
    constant = (targets**2).sum(axis=(1, 2)) / d
    return SampleLoss(np.moveaxis(gram, 0, -1), np.moveaxis(cross, 0, -1), constant), tokens, targets


def random_fields(n_tokens: int, rank: int, n: int, seed: int) -> Array:
    """(L, r, n)"""
    return np.random.default_rng(seed).standard_normal((n_tokens, rank, n))


@pytest.mark.parametrize("scale", [0, 1e-3, 1, 30, 1e6])
@pytest.mark.parametrize("shape", [(2, 1), (5, 3), (100, 3, 2), (2, 3, 4, 1)])
def test_rows_of_attention_are_probabilities(shape: tuple[int, ...], scale: float) -> None:
    matrices = attention(scale * np.random.default_rng(0).standard_normal(shape))
    assert matrices.shape == (*shape[:-1], shape[-2])
    assert matrices.min() >= 0
    np.testing.assert_allclose(matrices.sum(axis=-1), 1, rtol=1e-14)


@pytest.mark.parametrize(("n_tokens", "rank"), SHAPES)
def test_attention_becomes_hard_as_the_query_grows(n_tokens: int, rank: int) -> None:
    fields = np.random.default_rng(1).standard_normal((200, n_tokens, rank))
    scores = fields @ fields.swapaxes(1, 2)
    hard = np.eye(n_tokens)[scores.argmax(axis=2)]
    ordered = np.sort(scores, axis=2)
    gap = ordered[..., -1] - ordered[..., -2]
    for growth in (1.0, 3.0, 10.0, 100.0):
        away = np.abs(attention(growth * fields) - hard).max(axis=2)
        # the largest weight is 1/(1 + sum of the others' exp(-gap)), so at least 1 - (L - 1) exp(-gap)
        assert (away <= (n_tokens - 1) * np.exp(-(growth**2) * gap) + 1e-14).all()
    for growth in (1e12, 1e100):
        np.testing.assert_array_equal(attention(growth * fields), hard)


def test_attention_of_a_vanishing_query_is_uniform() -> None:
    fields = np.random.default_rng(2).standard_normal((10, 5, 2))
    np.testing.assert_array_equal(attention(0 * fields), np.full((10, 5, 5), 1 / 5))
    np.testing.assert_allclose(attention(1e-4 * fields), 1 / 5, atol=1e-6)


def test_attention_follows_a_permutation_of_the_tokens() -> None:
    fields = np.random.default_rng(3).standard_normal((4, 2))
    order = np.array([2, 0, 3, 1])
    np.testing.assert_allclose(attention(fields[order]), attention(fields)[np.ix_(order, order)], rtol=1e-14)


@pytest.mark.parametrize(("n_tokens", "rank"), SHAPES)
def test_quadratic_form_is_the_squared_error_of_the_outputs(n_tokens: int, rank: int) -> None:
    loss, tokens, targets = random_loss(n_tokens, 50, seed=4)
    fields = random_fields(n_tokens, rank, 50, seed=5)
    expected = naive_loss(tokens, targets, np.moveaxis(fields, -1, 0))
    np.testing.assert_allclose(loss.value(fields), expected, rtol=1e-12)
    np.testing.assert_allclose(loss.value_and_gradient(fields)[0], expected, rtol=1e-12)


def test_idealised_loss_is_the_distance_of_the_attention_matrices() -> None:
    sigma, n = 0.7, 20
    student, teacher = random_fields(3, 2, n, seed=6), random_fields(3, 1, n, seed=7)
    target = attention(np.moveaxis(teacher, -1, 0))
    loss = SampleLoss(
        gram=sigma**2 * np.eye(3)[:, :, None],
        cross=sigma**2 * np.moveaxis(target, 0, -1),
        constant=sigma**2 * (target**2).sum(axis=(1, 2)),
    )
    distance = ((attention(np.moveaxis(student, -1, 0)) - target) ** 2).sum(axis=(1, 2))
    np.testing.assert_allclose(loss.value(student), sigma**2 / 2 * distance, rtol=1e-12)
    np.testing.assert_allclose(loss.value(teacher), 0, atol=1e-15)


@pytest.mark.parametrize(("n_tokens", "rank"), SHAPES)
def test_gradient_agrees_with_finite_differences(n_tokens: int, rank: int) -> None:
    loss, _, _ = random_loss(n_tokens, 30, seed=8)
    fields = random_fields(n_tokens, rank, 30, seed=9)
    gradient = loss.value_and_gradient(fields)[1]
    step = 1e-3  # error of the five-point formula: step^4 from truncation, 1e-16/step from rounding
    numerical = np.empty_like(gradient)
    for index in np.ndindex(n_tokens, rank):
        shift = np.zeros((n_tokens, rank, 1))
        shift[index] = step
        values = [loss.value(fields + k * shift) for k in (-2, -1, 1, 2)]
        numerical[index] = (values[0] - 8 * values[1] + 8 * values[2] - values[3]) / (12 * step)
    np.testing.assert_allclose(gradient, numerical, rtol=0, atol=1e-6 * np.abs(gradient).max())


@pytest.mark.parametrize(("n_tokens", "rank"), SHAPES)
def test_hessian_product_agrees_with_differences_of_the_gradient(n_tokens: int, rank: int) -> None:
    loss, _, _ = random_loss(n_tokens, 30, seed=10)
    fields = random_fields(n_tokens, rank, 30, seed=11)
    direction = random_fields(n_tokens, rank, 30, seed=12)
    step = 1e-3
    values = [loss.value_and_gradient(fields + k * step * direction)[1] for k in (-2, -1, 1, 2)]
    numerical = (values[0] - 8 * values[1] + 8 * values[2] - values[3]) / (12 * step)
    product = loss.hessian_product(fields, direction)
    # the third directional derivatives of directions of size |v| enter as (step |v|)^4
    np.testing.assert_allclose(product, numerical, rtol=0, atol=1e-6 * np.abs(product).max())


def test_hessian_is_symmetric() -> None:
    loss, _, _ = random_loss(3, 40, seed=13)
    fields, a, b = (random_fields(3, 2, 40, seed=seed) for seed in (14, 15, 16))
    one, other = ((v * loss.hessian_product(fields, u)).sum(axis=(0, 1)) for u, v in ((a, b), (b, a)))
    np.testing.assert_allclose(one, other, rtol=0, atol=1e-12 * np.abs(one).max())


def test_hard_attention_has_a_finite_loss_and_no_gradient() -> None:
    loss, tokens, targets = random_loss(3, 40, seed=17)
    fields = random_fields(3, 1, 40, seed=18)
    value, gradient = loss.value_and_gradient(1e9 * fields)
    hard = np.eye(3)[np.moveaxis(fields[:, None, 0] * fields[None, :, 0], -1, 0).argmax(axis=2)]
    expected = ((targets - hard @ tokens) ** 2).sum(axis=(1, 2)) / (2 * tokens.shape[2])
    np.testing.assert_allclose(value, expected, rtol=1e-12)
    np.testing.assert_array_equal(gradient, 0)
