"""What is refused, and how: each wrong argument by its name, with what it must be and what it was, before any work."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from attention_phases import _checks
from attention_phases.positional_semantic import (
    Dataset,
    EmpiricalRisk,
    Fit,
    Task,
    generalization_error,
    lowest_curvatures,
    minimize_risk,
    order_parameters,
    path_between,
    risk_on_plane,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

if TYPE_CHECKING:
    from collections.abc import Callable

deterministic = settings(derandomize=True, deadline=None, max_examples=40, database=None)


class Unprintable:
    """Has no repr."""

    def __repr__(self) -> str:
        raise RuntimeError("no repr")


class Hostile:
    """Fails when it is made into an array."""

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("no array")


# --- values ---------------------------------------------------------------------------------------------------------

ODD: list[Any] = [
    None, True, np.True_, np.array(True), np.array([0.5]), np.array([[0.5]]), np.array("0.5"), "0.5", b"0.5",
    bytearray(b"0.5"), 1j, np.complex128(0.5), [0.5], (), {}, {0.5}, [[1], [2, 3]], np.array([]), np.array(None),
    np.array(True, dtype=object), np.datetime64("2020"), np.timedelta64(1, "ns"), np.ma.masked,
    np.ma.array(0.5, mask=True), Unprintable(), Hostile(), object, iter([0.5]), math.nan, np.float32("nan"), -math.inf,
    math.inf, np.longdouble("nan"), "a" * 1000,
]  # fmt: skip


def not_numbers(*, optional: bool = False) -> st.SearchStrategy[Any]:
    """What is no finite real number; without None, which stands for the default of an optional argument."""
    odd = [value for value in ODD if value is not None or not optional]
    return st.one_of(st.sampled_from(odd), st.text(max_size=4), st.complex_numbers(), st.lists(st.floats()))


def as_numpy(value: Any) -> st.SearchStrategy[Any]:
    """The same number, in the types in which it may come."""
    forms: list[Any] = [value, np.array(value), np.asarray(value)[()]]
    if isinstance(value, float):
        forms += [np.longdouble(value), Fraction(value)]
    else:
        forms += [np.int64(value)] + ([np.uint8(value)] if 0 <= value < 256 else [])
    return st.sampled_from(forms)


def numbers(low: float, high: float, *, open_low: bool = False) -> st.SearchStrategy[Any]:
    return st.floats(low, high, exclude_min=open_low).flatmap(as_numpy)


def outside(low: float, high: float) -> st.SearchStrategy[Any]:
    below = st.floats(max_value=low, exclude_max=True, allow_infinity=False)
    huge = st.sampled_from([10**400, -(10**5000)])  # no float, and the second not even a decimal text
    if high == math.inf:
        return below | huge
    return below | huge | st.floats(min_value=high, exclude_min=True, allow_infinity=False)


def integers_outside(low: int, high: int) -> st.SearchStrategy[Any]:
    whole = st.integers(max_value=low - 1) | st.integers(min_value=high + 1) | st.sampled_from([10**5000])
    return whole | st.floats() | st.sampled_from([np.int64(low - 1), np.float64(low), Fraction(low), np.array(low - 1)])


def bad_arrays(*shape: int, optional: bool = False) -> st.SearchStrategy[Any]:
    """Everything that is not a finite real array of this shape."""
    good = np.full(shape, 0.5)
    spoiled = []
    for value in (math.nan, math.inf, -math.inf, 1e13, -1e300):
        bad = good.copy()
        bad.flat[-1] = value
        spoiled += [bad, bad.tolist(), np.ma.array(good, mask=bad != good)]
    both = good.copy()
    both.flat[0], both.flat[-1] = math.inf, -math.inf
    wrong_types = [good.astype(kind) for kind in (bool, str, bytes, object, complex)]
    wrong_types += [
        np.full(shape, np.datetime64("2020")),
        good.astype("timedelta64[s]"),
        np.full(shape, Fraction(1, 2)),
    ]
    longer: Any = good.astype(np.longdouble) * np.longdouble("1e4000")
    wrong_shapes = arrays.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5).filter(
        lambda other: other != shape
    )
    odd = [[[0.5], [0.5, 0.5]], 0.5, True, Hostile(), Unprintable(), *([] if optional else [None])]
    return st.one_of(
        st.sampled_from([*spoiled, both, longer, *wrong_types, *odd]),
        wrong_shapes.map(lambda other: np.full(other, 0.5)),
    )


# --- calls ----------------------------------------------------------------------------------------------------------

D = 3
ENDS = np.ones((D, 1)), np.arange(1.0, D + 1)[:, None]


def small_dataset() -> Dataset:
    return Task().sample(D, 2, 0)


REALS: dict[tuple[str, str], tuple[Any, float, float, bool]] = {
    # (function, argument): the call, the interval, and whether its lower end is excluded
    ("Task", "omega"): (lambda _, v: Task(omega=v), 0, 1, False),
    ("Task", "sigma"): (lambda _, v: Task(sigma=v), 1e-3, 30, False),
    ("Task", "regularization"): (lambda _, v: Task(regularization=v), 0, 1e12, False),
    ("minimize_risk", "tolerance"): (
        lambda data, v: minimize_risk(data, tolerance=v, must_converge=False), 0, math.inf, True,
    ),
    ("minimize_risk", "learning_rate"): (
        lambda data, v: minimize_risk(data, method="adam", learning_rate=v, n_steps=3), 0, 1e12, True,
    ),
    ("risk_on_plane", "extent"): (lambda data, v: risk_on_plane(data, *ENDS, extent=v, resolution=3), 0, 1e6, True),
}  # fmt: skip
INTEGERS: dict[tuple[str, str], tuple[Any, int, int, int]] = {
    # (function, argument): the call, the limits, and the largest that is tried
    ("Task", "student_rank"): (lambda _, v: Task(student_rank=v), 1, _checks.MOST, 10**6),
    ("Task", "teacher_rank"): (lambda _, v: Task(teacher_rank=v), 1, _checks.MOST, 10**6),
    ("sample", "d"): (lambda _, v: Task().sample(v, 1, 0), 1, _checks.MOST, 20),
    ("minimize_risk", "max_evaluations"): (
        lambda data, v: minimize_risk(data, max_evaluations=v, must_converge=False), 1, _checks.MOST, 300,
    ),
    ("minimize_risk", "n_steps"): (lambda data, v: minimize_risk(data, method="adam", n_steps=v), 0, _checks.MOST, 20),
    ("minimize_risk", "record_every"): (
        lambda data, v: minimize_risk(data, method="adam", n_steps=5, record_every=v), 1, _checks.MOST, 10**6,
    ),
    ("generalization_error", "log2_nodes"): (
        lambda _, v: generalization_error(Task(), *ENDS, log2_nodes=v), 0, 24, 10,
    ),
    ("generalization_error", "n_scrambles"): (
        lambda _, v: generalization_error(Task(), *ENDS, n_scrambles=v, log2_nodes=3), 2, 4096, 20,
    ),
    ("risk_on_plane", "resolution"): (lambda data, v: risk_on_plane(data, *ENDS, resolution=v), 2, _checks.MOST, 9),
    ("path_between", "n_points"): (
        lambda data, v: path_between(data, *ENDS, n_points=v, n_steps=2), 3, _checks.MOST, 9,
    ),
    ("path_between", "n_steps"): (lambda data, v: path_between(data, *ENDS, n_steps=v), 0, _checks.MOST, 9),
    ("lowest_curvatures", "k"): (lambda data, v: lowest_curvatures(data, ENDS[0], v), 1, D, D),
}  # fmt: skip
SEEDS: dict[str, Any] = {
    "sample": lambda _, v: Task().sample(D, 2, v),
    "minimize_risk": lambda data, v: minimize_risk(data, "random", "adam", n_steps=1, seed=v),
    "generalization_error": lambda _, v: generalization_error(Task(), *ENDS, seed=v),
}
ARRAYS: dict[tuple[str, str], tuple[Any, tuple[int, ...]]] = {
    ("Task", "positions"): (lambda _, v: Task(positions=v), (2,)),
    ("sample", "teacher_query"): (lambda _, v: Task().sample(D, 2, 0, v), (D, 1)),
    ("Dataset", "tokens"): (
        lambda data, v: Dataset(data.task, v, data.teacher_attention, data.teacher_query), (6, 2, D),
    ),
    ("Dataset", "teacher_attention"): (
        lambda data, v: Dataset(data.task, data.tokens, v, data.teacher_query), (6, 2, 2),
    ),
    ("Dataset", "teacher_query"): (lambda data, v: Dataset(data.task, data.tokens, data.teacher_attention, v), (D, 1)),
    ("minimize_risk", "start"): (lambda data, v: minimize_risk(data, v, must_converge=False), (D, 1)),
    ("generalization_error", "teacher_query"): (lambda _, v: generalization_error(Task(), ENDS[0], v), (D, 1)),
    ("order_parameters", "teacher_query"): (lambda _, v: order_parameters(Task(), ENDS[0], v), (D, 1)),
    ("lowest_curvatures", "query"): (lambda data, v: lowest_curvatures(data, v, 1), (D, 1)),
    ("risk_on_plane", "first"): (lambda data, v: risk_on_plane(data, v, ENDS[1], resolution=3), (D, 1)),
    ("risk_on_plane", "second"): (lambda data, v: risk_on_plane(data, ENDS[1], v, resolution=3), (D, 1)),
    ("path_between", "first"): (lambda data, v: path_between(data, v, ENDS[1], n_points=3, n_steps=1), (D, 1)),
    ("path_between", "second"): (lambda data, v: path_between(data, ENDS[1], v, n_points=3, n_steps=1), (D, 1)),
}  # fmt: skip
WORDS: dict[tuple[str, str], Any] = {
    ("minimize_risk", "method"): lambda data, v: minimize_risk(data, method=v),
    ("minimize_risk", "start"): lambda data, v: minimize_risk(data, v),
    ("sample", "teacher_query"): lambda _, v: Task().sample(D, 2, 0, v),
}
DATASETS: dict[str, Any] = {
    "minimize_risk": lambda v: minimize_risk(v, method="no such method"),  # type: ignore[arg-type]
    "EmpiricalRisk": EmpiricalRisk,
    "risk_on_plane": lambda v: risk_on_plane(v, None, None),  # type: ignore[arg-type]
    "path_between": lambda v: path_between(v, None, None),  # type: ignore[arg-type]
    "lowest_curvatures": lambda v: lowest_curvatures(v, None),  # type: ignore[arg-type]
}


def refusal(call: Callable[[Dataset, Any], object], value: Any) -> str:
    """The message with which the value is refused; the data have not been touched by then."""
    dataset = small_dataset()
    with pytest.raises(ValueError, match=" must ") as caught:
        call(dataset, value)
    assert "sample_loss" not in dataset.__dict__  # the first thing that is computed of a dataset, and kept
    return str(caught.value)


def named(keys: Any) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("key", list(keys), ids=lambda key: key if isinstance(key, str) else ".".join(key))


# --- every argument -------------------------------------------------------------------------------------------------


@named(REALS)
@deterministic
@given(data=st.data())
def test_real_numbers(key: tuple[str, str], data: st.DataObject) -> None:
    call, low, high, open_low = REALS[key]
    bad = data.draw(not_numbers(optional=key[1] == "learning_rate") | outside(low, high))
    if open_low:
        bad = data.draw(st.sampled_from([bad, low, -low]))
    message = refusal(call, bad)
    assert message.startswith(f"{key[1]} must be a number in {'(' if open_low else '['}{low:g}, {high:g}")
    assert message.endswith(f"; got {_checks.shown(bad)}")
    good = data.draw(numbers(low, min(high, 1e300), open_low=open_low))
    call(small_dataset(), good)


@named(INTEGERS)
@deterministic
@given(data=st.data())
def test_whole_numbers(key: tuple[str, str], data: st.DataObject) -> None:
    call, low, high, largest = INTEGERS[key]
    bad = data.draw(not_numbers(optional=key[1] == "record_every") | integers_outside(low, high))
    message = refusal(call, bad)
    assert message.startswith(f"{key[1]} must be a whole number of at least {low} and at most {high}; got ")
    assert message.endswith(_checks.shown(bad))
    call(small_dataset(), data.draw(st.integers(low, largest).flatmap(as_numpy)))


@named(SEEDS)
@deterministic
@given(data=st.data())
def test_seeds(key: str, data: st.DataObject) -> None:
    bad = data.draw(
        not_numbers()
        | st.integers(max_value=-1)
        | st.floats()
        | st.sampled_from([np.random.RandomState(0), np.random.SeedSequence(0), np.random.PCG64(0), -(10**5000)])
    )
    message = refusal(SEEDS[key], bad)
    assert message == f"seed must be a whole number of at least 0 or a NumPy Generator; got {_checks.shown(bad)}"
    SEEDS[key](small_dataset(), data.draw(st.integers(0, 2**200)))
    SEEDS[key](small_dataset(), np.random.default_rng(1))


@named(ARRAYS)
@deterministic
@given(data=st.data())
def test_arrays(key: tuple[str, str], data: st.DataObject) -> None:
    call, shape = ARRAYS[key]
    bad = data.draw(bad_arrays(*shape, optional=key[1] == "positions"))
    message = refusal(call, bad)
    assert message.startswith(f"{key[1]} must ")
    assert "; got " in message
    size = 1e12 if key != ("path_between", "first") else 1e6
    exact = st.floats(-size, size)
    good = data.draw(
        arrays.arrays(np.float64, shape, elements=exact)
        | arrays.arrays(np.float32, shape, elements=st.floats(-1e3, 1e3, width=32))
        | arrays.arrays(np.int16, shape)
    )
    form = data.draw(st.sampled_from(["as it is", "read-only", "list", "Fortran", "matrix of masks", "strided"]))
    given_value: Any = good
    if form == "read-only":
        good.flags.writeable = False
    elif form == "list":
        given_value = good.tolist()
    elif form == "Fortran":
        given_value = np.asfortranarray(good)
    elif form == "matrix of masks":
        given_value = np.ma.array(good, mask=False)
    elif form == "strided":
        given_value = np.repeat(good, 2, axis=0)[::2]
    before = good.copy()
    try:
        call(small_dataset(), given_value)
    except ValueError as error:
        # two students that are fine each may be the same, or on one line through the origin
        assert str(error).startswith("first and second must ")  # noqa: PT017
        assert key[0] in {"risk_on_plane", "path_between"}
    np.testing.assert_array_equal(good, before)


@named(WORDS)
@deterministic
@given(word=st.text() | st.sampled_from(["Semantic", "semantic ", "sgd", "LBFGS", "", "a" * 500]))
def test_words(key: tuple[str, str], word: str) -> None:
    message = refusal(WORDS[key], word)
    assert message.startswith(f"{key[1]} must be one of '")
    assert message.endswith(f"; got {_checks.shown(word)}")


@deterministic
@given(value=not_numbers() | st.sampled_from([1, 0.5, ["lbfgs"]]))
def test_methods_that_are_no_words(value: Any) -> None:
    message = refusal(WORDS["minimize_risk", "method"], value)
    assert message.endswith(f"; got {_checks.shown(value)}")


@named(DATASETS)
@deterministic
@given(value=not_numbers() | st.sampled_from([Task(), np.ones((2, 2, 2)), Fit, Dataset]))
def test_datasets(key: str, value: Any) -> None:
    with pytest.raises(ValueError, match=r"^dataset must be a Dataset; got ") as caught:
        DATASETS[key](value)
    assert str(caught.value).endswith(_checks.shown(value))


# --- what depends on two arguments ----------------------------------------------------------------------------------


@deterministic
@given(
    matrix=arrays.arrays(
        np.float64, st.tuples(st.integers(1, 4), st.integers(1, 4)), elements=st.floats(0, 1, allow_subnormal=True)
    )
)
def test_positional_attention(matrix: Any) -> None:
    square = matrix.shape[0] == matrix.shape[1] > 1
    if not (square and np.allclose(matrix.sum(axis=1), 1, rtol=0, atol=1e-9)):
        with pytest.raises(
            ValueError, match=r"^positional_attention must (be a square matrix|have rows that sum to 1)"
        ):
            Task(positional_attention=matrix)
    if square and (matrix.sum(axis=1) > 1e-3).all():
        stochastic = matrix / matrix.sum(axis=1, keepdims=True)
        task = Task(positional_attention=stochastic)
        assert task.n_tokens == len(matrix)
        np.testing.assert_array_equal(task.positional_attention, stochastic)
        assert task.sample(4, 1, 0).targets.shape == (4, len(matrix), 4)


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        ([[0.5, 0.5], [0.6, 0.3]], "have rows that sum to 1; row 1 sums to 0.9"),
        ([[1.5, -0.5], [0.5, 0.5]], "have no negative entry; got -0.5"),
        ([[1.0]], "be a square matrix with L >= 2 rows; got shape (1, 1)"),
        ([[0.5, 0.5]], "be a square matrix with L >= 2 rows; got shape (1, 2)"),
        ([[0.5, 0.5], [math.nan, 1]], "positional_attention[1, 0] = nan"),
        ([[0.5, 0.5], [0.5]], "be a real array of shape (any, any); got [[0.5, 0.5], [0.5]]"),
    ],
)
def test_messages_about_the_positional_attention(matrix: Any, message: str) -> None:
    with pytest.raises(ValueError, match=r"^positional_attention must ") as caught:
        Task(positional_attention=matrix)
    assert message in str(caught.value)


@deterministic
@given(data=st.data(), d=st.integers(1, 50))
def test_alpha_must_give_a_sample(data: st.DataObject, d: int) -> None:
    bad = data.draw(not_numbers() | outside(0, 1e12) | st.sampled_from([0, -0.0, 5e-324, 0.4 / d, 1e12]))
    rng = np.random.default_rng(0)
    with pytest.raises(ValueError, match=r"^alpha must "):
        Task().sample(d, bad, rng)
    assert rng.random() == np.random.default_rng(0).random()  # nothing was drawn
    assert Task().sample(d, data.draw(numbers(0.6 / d, 3)), rng).n_samples >= 1


def test_more_samples_than_any_memory_holds_are_refused() -> None:
    with pytest.raises(
        ValueError, match=r"^alpha must give at least 1 and at most 549755 samples, .*; got alpha = 1e\+06"
    ):
        Task().sample(10**6, 1e6, 0)


def test_orthonormal_teachers_fit_into_their_space() -> None:
    rng = np.random.default_rng(0)
    with pytest.raises(ValueError, match=r"^d must be at least teacher_rank = 3 for orthonormal columns; got 2"):
        Task(teacher_rank=3).sample(2, 1, rng, "orthonormal")
    assert rng.random() == np.random.default_rng(0).random()


def test_mixed_starts_need_a_student_of_higher_rank() -> None:
    with pytest.raises(ValueError, match=r'^start must not be "mixed" .*; got student_rank = 1'):
        minimize_risk(small_dataset(), "mixed")


@pytest.mark.parametrize("second", [2 * ENDS[0], -ENDS[0], 0 * ENDS[0], (1 + 1e-12) * ENDS[0]])
def test_students_on_one_line_span_no_plane(second: Any) -> None:
    for pair in ((ENDS[0], second), (second, ENDS[0])):
        with pytest.raises(ValueError, match=r"^first and second must span a plane"):
            risk_on_plane(small_dataset(), *pair)


def test_one_dimension_has_no_plane() -> None:
    with pytest.raises(ValueError, match=r"^first and second must span a plane"):
        risk_on_plane(Task().sample(1, 2, 0), [[1.0]], [[2.0]])


def test_students_of_very_different_size_span_a_plane() -> None:
    plane = risk_on_plane(small_dataset(), ENDS[0], 1e-12 * ENDS[1], resolution=3)
    assert 0 < plane.second[1] < 1e-11


@pytest.mark.parametrize("second", [ENDS[0], (1 + 1e-12) * ENDS[0]])
def test_a_path_needs_two_ends(second: Any) -> None:
    with pytest.raises(ValueError, match=r"^first and second must be two different students"):
        path_between(small_dataset(), ENDS[0], second)


@deterministic
@given(rows=st.integers(1, 6), columns=st.integers(1, 3))
def test_queries_must_fit_the_task(rows: int, columns: int) -> None:
    query = np.ones((rows, columns))
    for function in (generalization_error, order_parameters):
        call: Any = function
        if columns != 1:
            with pytest.raises(ValueError, match=r"^query must be a real array of shape \(any, 1\); got shape"):
                call(Task(), query, ENDS[0])
        elif rows != D:
            with pytest.raises(
                ValueError, match=rf"^teacher_query must be a real array of shape \({rows}, 1\); got shape"
            ):
                call(Task(), query, ENDS[0])
        else:
            call(Task(), query, ENDS[0])


# --- other libraries ------------------------------------------------------------------------------------------------


def test_tensors_are_arrays_unless_they_cannot_be() -> None:
    import torch  # here, as it takes seconds to import and serves this test alone

    plain = torch.ones((D, 1), dtype=torch.float64)
    np.testing.assert_array_equal(_checks.array("start", plain, (D, 1)), np.ones((D, 1)))
    assert _checks.real("omega", torch.tensor(0.5), 0, 1) == 0.5
    assert _checks.integer("d", torch.tensor(3), 1) == 3
    bad = [
        plain.clone().requires_grad_(),
        plain.bfloat16(),
        plain.to_sparse(),
        plain.bool(),
        plain.to("meta"),
        plain[0],
    ]
    for tensor in bad:
        assert refusal(ARRAYS["minimize_risk", "start"][0], tensor).startswith(
            "start must be a real array of shape (3, 1)"
        )
    for tensor in (torch.tensor(True), torch.tensor(0.5, requires_grad=True), torch.ones(1), torch.tensor(0.5j)):
        assert refusal(REALS["Task", "omega"][0], tensor).startswith("omega must be a number in [0, 1]; got tensor(")


# --- the checks themselves ------------------------------------------------------------------------------------------


def test_messages_stay_short_and_in_one_line() -> None:
    for value in (np.ones((100, 100)), "x" * 10_000, {i: i for i in range(1000)}, 10**5000, Unprintable()):
        text = _checks.shown(value)
        assert len(text) <= 80
        assert "\n" not in text


def test_streams_of_one_seed_differ() -> None:
    draws = [_checks.generator(3, stream=stream).random() for stream in (None, 1, 2, 3)]
    assert len(set(draws)) == 4
    assert draws[1] == _checks.generator(3, stream=1).random()


def test_arrays_are_not_copied_without_need() -> None:
    given_array = np.ones((4, 2))
    assert _checks.array("x", given_array, (None, 2)) is given_array
    assert _checks.array("x", given_array.astype(np.float32), (4, 2)).dtype == np.float64


def test_the_wrong_entry_is_named() -> None:
    values = np.zeros((2, 3, 4))
    values[1, 0, 2] = -math.inf
    with pytest.raises(ValueError, match=r"x must be finite, .*; got x\[1, 0, 2\] = -inf"):
        _checks.array("x", values, (2, 3, 4))
    with pytest.raises(ValueError, match=r"x\[1\] = -9223372036854775808"):
        _checks.array("x", np.array([0, -(2**63)]), (2,))


def test_a_seed_as_a_number_is_itself_or_the_next_of_a_generator() -> None:
    assert [_checks.seed(value) for value in (0, np.int64(7), 10**30)] == [0, 7, 10**30]
    one, other = np.random.default_rng(3), np.random.default_rng(3)
    first = _checks.seed(one)
    assert type(first) is int
    assert first == _checks.seed(other)
    assert first != _checks.seed(one)
    for wrong in (-1, 0.5, "1", None, True):
        with pytest.raises(ValueError, match="seed must be a whole number of at least 0 or a NumPy Generator"):
            _checks.seed(wrong)
