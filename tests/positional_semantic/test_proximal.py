"""Facts about the proximal map of the per-sample loss."""

from __future__ import annotations

import numba
import numpy as np
import pytest
from attention_phases.errors import ConvergenceError
from attention_phases.positional_semantic import SampleLoss, Task, proximal, proximal_map, two_token_descent
from attention_phases.positional_semantic.descent import Limits, Objective, descend, minima
from numpy.typing import NDArray

Array = NDArray[np.float64]


def theory_loss(task: Task, n: int, rng: np.random.Generator) -> SampleLoss:
    """sigma^2/2 |S - T|^2 with random teachers."""
    fields = task.sigma * rng.standard_normal((n, task.n_tokens, task.teacher_rank))
    teacher = np.moveaxis(task.teacher_attention(fields), 0, -1)
    variance = task.sigma**2
    identity = np.eye(task.n_tokens)[..., None]
    return SampleLoss(variance * identity, variance * teacher, variance * (teacher**2).sum(axis=(0, 1)))


def gram_loss(n_tokens: int, n: int, rng: np.random.Generator) -> SampleLoss:
    """Losses of samples whose tokens and targets are unrelated."""
    d = 2 * n_tokens
    tokens, targets = 0.6 * rng.standard_normal((2, n, n_tokens, d))
    gram, cross = (np.moveaxis(a @ tokens.swapaxes(1, 2) / d, 0, -1) for a in (tokens, targets))
    return SampleLoss(gram, cross, (targets**2).sum(axis=(1, 2)) / d)


def random_loss(kind: str, n_tokens: int, n: int, rng: np.random.Generator) -> SampleLoss:
    if kind == "gram":
        return gram_loss(n_tokens, n, rng)
    rows = rng.dirichlet(np.ones(n_tokens), n_tokens)
    return theory_loss(Task(rng.uniform(0, 1), rng.uniform(0.3, 2), positional_attention=rows), n, rng)


def objective(h: Array, w: Array, loss: SampleLoss, V: Array) -> Array:
    """The objective of each sample, from the formula; h and w are (L, r, n)."""
    away = h - w
    result: Array = 0.5 * np.einsum("lan,ab,lbn->n", away, np.linalg.inv(V), away) + loss.value(h)
    return result


def samples_as_they_occur(kind: str, n: int, rng: np.random.Generator) -> tuple[Array, SampleLoss]:
    """Fields (2, 1, n) and losses, with overlaps and tasks that go beyond those of any fixed point in the book."""
    task = Task(omega=rng.uniform(0, 1), positional_attention=rng.dirichlet([1.0, 1.0], 2))
    if kind == "theory":
        loss = theory_loss(task, n, rng)
    else:
        d = 50
        loss = task.sample(d, n / d, rng).sample_loss
    w = rng.standard_normal((2, 1, n)) * np.sqrt(rng.uniform(0.01, 1.0, n))
    w += rng.uniform(0, 0.5, n) * np.array([1, -1])[:, None, None]
    return w, loss


@pytest.mark.parametrize("kind", ["theory", "gram"])
@pytest.mark.parametrize("V", [1e-3, 0.3, 3.0, 13.0, 30.0, 1000.0])
def test_no_point_of_a_fine_grid_lies_lower(kind: str, V: float) -> None:
    rng = np.random.default_rng([int(1000 * V), kind == "gram"])
    n = 400
    w, loss = samples_as_they_occur(kind, n, rng)
    point = proximal_map(w, loss, V)
    reach = np.sqrt(2 * V * loss.value(w))  # ell is nowhere negative: no minimum is farther from w
    lowest = np.full(n, np.inf)
    for first in np.linspace(-1, 1, 101):
        for second in np.linspace(-1, 1, 101):
            h = w + reach * np.array([first, second])[:, None, None]
            np.minimum(lowest, objective(h, w, loss, np.array([[V]])), out=lowest)
    assert (point.objective <= lowest * (1 + 1e-12) + 1e-14).all()


def missed(w: Array, loss: SampleLoss, V: float, rng: np.random.Generator, n_starts: int = 24) -> int:
    """Of how many samples the lowest minimum was not found: one of many random starts leads lower."""
    point = proximal_map(w, loss, V)
    general = Objective(w, loss, np.array([[1 / V]]))
    reach = np.sqrt(2 * V * loss.value(w))
    lower = np.zeros(w.shape[-1], dtype=bool)
    for k in range(n_starts):
        angle, radius = 2 * np.pi * rng.random(len(lower)), reach * np.sqrt(rng.random(len(lower)))
        start = w[:, 0] + (1.0 if k % 2 else 0.4) * radius * np.stack([np.cos(angle), np.sin(angle)])
        lower |= descend(general, start, Limits())[1] < point.objective - 1e-9
    return int(lower.sum())


@pytest.mark.slow
@pytest.mark.parametrize("V", [3.0, 13.0, 30.0, 1000.0])
def test_no_random_start_leads_lower_than_the_minimum(V: float) -> None:
    rng = np.random.default_rng(int(V))
    for kind in ("theory", "gram") * 3:
        assert missed(*samples_as_they_occur(kind, 4000, rng), V, rng) == 0


@pytest.mark.slow
def test_far_outside_what_occurs_few_minima_are_missed() -> None:
    rng = np.random.default_rng(12)
    n, count = 4000, 0
    for V in (13.0, 100.0, 1000.0):
        for kind in ("theory", "gram"):
            w = rng.standard_normal((2, 1, n)) * 10 ** rng.uniform(-1.5, 0.7, n)  # up to 15
            count += missed(w, random_loss(kind, 2, n, rng), V, rng)
    assert count < 1e-3 * 6 * n


@pytest.mark.parametrize(("n_tokens", "rank"), [(2, 1), (2, 2), (3, 1), (3, 2), (4, 1)])
@pytest.mark.parametrize("scale", [3.0, 13.0])
def test_no_descent_from_a_random_start_ends_lower(n_tokens: int, rank: int, scale: float) -> None:
    rng = np.random.default_rng([n_tokens, rank])
    n = 500
    task = Task(positional_attention=rng.dirichlet(np.full(n_tokens, 3.0), n_tokens), teacher_rank=rank)
    loss = theory_loss(task, n, rng)
    turn = np.linalg.qr(rng.standard_normal((rank, rank))).Q
    V = scale * turn @ np.diag(np.linspace(0.5, 1.5, rank)) @ turn.T
    w = 0.3 * rng.standard_normal((n_tokens, rank, n))
    point = proximal_map(w, loss, V)
    general = Objective(w, loss, np.linalg.inv(V))
    for spread in np.repeat([0.3, 1.0, 2.0], 5):
        start = w + spread * rng.standard_normal(w.shape)
        _, values = descend(general, start.reshape(n_tokens * rank, n), Limits())
        assert (point.objective <= values + 1e-12).all()


@pytest.mark.parametrize(("n_tokens", "rank"), [(2, 1), (2, 2), (3, 1)])
@pytest.mark.parametrize("kind", ["theory", "gram"])
def test_what_is_returned_fits_together(n_tokens: int, rank: int, kind: str) -> None:
    rng = np.random.default_rng(4)
    loss = random_loss(kind, n_tokens, 300, rng)
    V = 4.0 * np.eye(rank) + 1.0
    w = 0.5 * rng.standard_normal((n_tokens, rank, 300))
    point = proximal_map(w, loss, V)
    _, gradient = loss.value_and_gradient(point.minimizer)
    np.testing.assert_allclose(point.residual, -gradient, atol=1e-9)
    np.testing.assert_allclose(np.einsum("ab,lbn->lan", V, point.residual), point.minimizer - w, atol=1e-9)
    np.testing.assert_allclose(objective(point.minimizer, w, loss, V), point.objective, rtol=1e-9, atol=1e-14)
    elsewhere = np.isfinite(point.rival_objective)
    np.testing.assert_allclose(
        objective(point.rival, w, loss, V)[elsewhere], point.rival_objective[elsewhere], rtol=1e-9, atol=1e-14
    )
    np.testing.assert_array_equal(point.rival[..., ~elsewhere], point.minimizer[..., ~elsewhere])
    assert (point.rival_objective >= point.objective).all()


def as_compiled(w: Array, loss: SampleLoss) -> list[two_token_descent.Sample]:
    """Each sample as the compiled functions take it; w is (2, n)."""
    two = loss.two_tokens
    rows = np.broadcast_arrays(*w, two.first, two.second, two.stiffness, two.rest)
    return [(w1, w2, t1, t2, a, rest) for w1, w2, t1, t2, a, rest in np.stack(rows, axis=1).tolist()]


def test_two_tokens_agree_with_the_general_case() -> None:
    rng = np.random.default_rng(5)
    for kind in ("theory", "gram"):
        loss = random_loss(kind, 2, 500, rng)
        w, h = rng.standard_normal((2, 2, 500))
        value, *rest = Objective(w[:, None], loss, np.array([[0.2]])).evaluate(h)
        special = [
            two_token_descent.evaluate(x, y, s, 0.2) for (x, y), s in zip(h.T, as_compiled(w, loss), strict=True)
        ]
        np.testing.assert_allclose(np.transpose(special), [value, *rest[:4], rest[5]], rtol=1e-10, atol=1e-12)


def test_two_tokens_have_the_minima_of_the_general_search() -> None:
    rng = np.random.default_rng(15)
    w, loss = samples_as_they_occur("theory", 4000, rng)
    for V in (1.0, 13.0):
        special = proximal_map(w, loss, V)
        general = minima(w, loss, np.array([[1 / V]]), None, Limits())
        # the general search has other starts, and no test here says that it misses no minimum
        assert (special.objective <= general.value + 1e-12).all()
        assert np.mean(np.abs(special.objective - general.value) < 1e-12) > 0.99


def test_a_minimum_certified_as_the_only_one_is_never_beaten() -> None:
    rng = np.random.default_rng(6)
    n_certified = 0
    for V in (1.0, 5.0, 20.0):
        n = 20000
        w = rng.standard_normal((2, n)) * 10 ** rng.uniform(-1.5, 0.7, n)
        loss = theory_loss(Task(omega=0.2), n, rng)
        objective_ = Objective(w[:, None], loss, np.array([[1 / V]]))
        lowest, value = descend(objective_, w, Limits())
        samples = zip(lowest.T, value, as_compiled(w, loss), strict=True)
        certified = np.array([two_token_descent.certified(x, y, v, s, 1 / V) for (x, y), v, s in samples])
        n_certified += certified.sum()
        for spread in (0.5, 1.0, 3.0):
            _, other = descend(objective_, w + spread * rng.standard_normal(w.shape), Limits())
            assert (other >= value - 1e-12)[certified].all()
    assert n_certified > 10000


@pytest.mark.parametrize(("n_tokens", "rank"), [(2, 1), (2, 2), (3, 1)])
def test_minima_are_followed_to_where_a_search_finds_them(n_tokens: int, rank: int) -> None:
    rng = np.random.default_rng(16)
    n = 1000
    loss = theory_loss(Task(positional_attention=np.full((n_tokens, n_tokens), 1 / n_tokens)), n, rng)
    w, V = 0.4 * rng.standard_normal((n_tokens, rank, n)), 5.0 * np.eye(rank)
    followed = proximal_map(1.01 * w, loss, 1.01 * V, near=proximal_map(w, loss, V))
    searched = proximal_map(1.01 * w, loss, 1.01 * V)
    assert np.mean(np.abs(followed.objective - searched.objective) > 1e-10) < 0.005


def test_the_number_of_threads_changes_no_digit(monkeypatch: pytest.MonkeyPatch) -> None:
    w, loss = samples_as_they_occur("theory", 5000, np.random.default_rng(17))
    results = []
    for n_threads in (1, 2, 3):
        monkeypatch.setattr(numba.config, "NUMBA_NUM_THREADS", n_threads)
        results.append(proximal_map(w, loss, 10.0))
    for other in results[1:]:
        np.testing.assert_array_equal(other.minimizer, results[0].minimizer)
        np.testing.assert_array_equal(other.rival_objective, results[0].rival_objective)


@pytest.mark.parametrize(("n_tokens", "rank"), [(2, 1), (2, 2), (3, 1)])
def test_derivative_against_differences(n_tokens: int, rank: int) -> None:
    rng = np.random.default_rng(7)
    n, eps = 300, 1e-5
    loss = theory_loss(Task(positional_attention=np.full((n_tokens, n_tokens), 1 / n_tokens)), n, rng)
    V = 3.0 * np.eye(rank) + 0.5
    w = 0.5 * rng.standard_normal((n_tokens, rank, n))
    derivative = proximal_map(w, loss, V).derivative
    for token in range(n_tokens):
        for column in range(rank):
            step = np.zeros_like(w)
            step[token, column] = eps
            change = proximal_map(w + step, loss, V).residual - proximal_map(w - step, loss, V).residual
            error = np.abs(change / (2 * eps) - derivative[:, :, token, column]).max(axis=(0, 1))
            # where h* jumps between w - step and w + step the difference quotient is of order 1/eps
            assert np.mean(error > 1e-6) < 0.01
    np.testing.assert_allclose(derivative, derivative.transpose(2, 3, 0, 1, 4), atol=1e-12)


def test_h_and_w_change_sign_together() -> None:
    rng = np.random.default_rng(8)
    loss = random_loss("gram", 2, 300, rng)
    w = rng.standard_normal((2, 1, 300))
    there, back = proximal_map(w, loss, 10.0), proximal_map(-w, loss, 10.0)
    np.testing.assert_allclose(there.minimizer, -back.minimizer, atol=1e-9)


def test_small_and_large_V() -> None:
    rng = np.random.default_rng(9)
    loss = theory_loss(Task(), 200, rng)
    w = rng.standard_normal((2, 1, 200))
    _, gradient = loss.value_and_gradient(w)
    np.testing.assert_allclose(proximal_map(w, loss, 1e-6).residual, -gradient, atol=1e-5)
    # s -> T + A is attainable by a student wherever T_11 T_22 > (1 - T_11)(1 - T_22): the loss then goes to zero
    assert loss.value(proximal_map(w, loss, 1e6).minimizer).max() < 1e-5


@pytest.mark.parametrize("rank", [1, 2])
def test_a_descent_that_does_not_end_is_an_error(rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proximal, "_LIMITS", Limits(max_steps=2))
    rng = np.random.default_rng(10)
    w = rng.standard_normal((2, rank, 50))
    with pytest.raises(ConvergenceError, match=r"of the proximal map did not end in 2 steps") as caught:
        proximal_map(w, theory_loss(Task(), 50, rng), 10.0 * np.eye(rank))
    assert caught.value.residual > 0


def test_two_tokens_of_more_is_refused() -> None:
    with pytest.raises(ValueError, match="two_tokens needs L = 2; got L = 3"):
        _ = gram_loss(3, 2, np.random.default_rng(0)).two_tokens


@pytest.mark.parametrize(
    ("fields", "V", "message"),
    [
        (np.zeros((2, 1, 4)), 1.0, r"fields must be a real array of shape \(2, any, 3\); got shape \(2, 1, 4\)"),
        (np.full((2, 1, 3), np.nan), 1.0, "fields must be finite"),
        (np.zeros((2, 1, 3)), 0.0, r"V must be a number in \(0, inf\); got 0.0"),
        (np.zeros((2, 1, 3)), -1.0, "V must be a number"),
        (np.zeros((2, 2, 3)), 1.0, "V must be a real array"),
        (np.zeros((2, 2, 3)), [[1.0, 2.0], [2.0, 1.0]], "V must be symmetric and positive definite"),
        (np.zeros((2, 2, 3)), [[1.0, 0.5], [0.0, 1.0]], "V must be symmetric and positive definite"),
    ],
)
def test_bad_input_is_refused(fields: Array, V: float | list[list[float]], message: str) -> None:
    loss = gram_loss(2, 3, np.random.default_rng(0))
    with pytest.raises(ValueError, match=message):
        proximal_map(fields, loss, V)
