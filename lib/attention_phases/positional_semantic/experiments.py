"""Experiments and solutions of the running example, one point each, for chapters, stored tables and tests alike."""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import numpy as np
from jaxtyping import Float

from attention_phases import _checks
from attention_phases._arrays import Array
from attention_phases.errors import ConvergenceError
from attention_phases.positional_semantic.branch_ends import spinodal_alpha, stability_alpha
from attention_phases.positional_semantic.branches import Branch, BranchEquations
from attention_phases.positional_semantic.gamp import gamp
from attention_phases.positional_semantic.minimization import Fit, Method, minimize_risk
from attention_phases.positional_semantic.phase_transition import critical_alpha, linear_crossover_alpha
from attention_phases.positional_semantic.replica_symmetry import distance_ratio
from attention_phases.positional_semantic.state_evolution import (
    BranchName,
    NoSuchPointError,
    root_from_guess,
    root_near,
    solve_state_evolution,
)
from attention_phases.positional_semantic.teacher_student import Dataset, Seed, Task
from attention_phases.positional_semantic.thresholds import NoThresholdError, Threshold

GAMP_START = {"q": 0.2, "m": 0.02, "V": 6.0, "theta": 0.18}
GAMP_STEPS = 4
INFORMED: tuple[Literal["semantic", "positional"], ...] = ("semantic", "positional")
THRESHOLDS: dict[str, Callable[..., Threshold]] = {
    "critical": critical_alpha,
    "linear_crossover": linear_crossover_alpha,
    "semantic_begins": partial(spinodal_alpha, branch="semantic"),
    "semantic_is_minimum_from": partial(stability_alpha, branch="semantic"),
    "positional_begins": partial(spinodal_alpha, branch="positional", start=0.5),
    "positional_is_minimum_to": partial(stability_alpha, branch="positional", end="upper", start=0.8),
    "positional_ends": partial(spinodal_alpha, branch="positional", end="upper", start=0.5),
    "positional_begins_again": partial(spinodal_alpha, branch="positional", start=100.0),
}
_PATIENCE = 600.0  # seconds of CPU time for one threshold
ENDS_AND_CROSSINGS = ("critical", "linear_crossover", "semantic_begins", "positional_begins", "positional_ends")
RANK_TWO_THRESHOLDS: dict[str, Callable[..., Threshold]] = {
    "positional_born": partial(stability_alpha, branch="uninformed", overlap="m", end="upper", start=0.1),
    "semantic_born": partial(stability_alpha, branch="uninformed", overlap="theta", end="upper", start=0.6),
    "mixed_born": partial(stability_alpha, branch="positional", end="upper", start=0.6),
}
ATTENTIONS = {
    "symmetric": ((0.6, 0.4), (0.4, 0.6)),
    "averse": ((0.3, 0.7), (0.8, 0.2)),
    "three tokens": ((0.6, 0.3, 0.1), (0.2, 0.6, 0.2), (0.1, 0.3, 0.6)),
}


def informed_minima(d: int, alpha: float, seed: int, teacher_query: str) -> dict[str, Any]:
    """The minima reached from the two informed starts on one data set; columns semantic_theta, positional_theta, ..."""
    dataset = _dataset(d, alpha, seed, teacher_query)
    return {
        f"{start}_{column}": value
        for start in INFORMED
        for column, value in _row(minimize_risk(dataset, start)).items()
    }


def map_point(omega: float, alpha: float, d: int, seed: int) -> dict[str, Any]:
    """The minima from the two informed starts at a point of the (alpha, omega) plane, with a Gaussian teacher.

    The random numbers differ from point to point too, so that errors average out along a line through the plane. A
    minimum that was not reached is kept, with semantic_converged or positional_converged false.
    """
    task = Task(omega=omega)
    alpha, d = _checks.real("alpha", alpha, 0, open_low=True), _checks.integer("d", d, 1)
    seeds = [_checks.integer("seed", seed, 0), 4, d, round(1e6 * alpha), round(1e6 * task.omega)]
    dataset = task.sample(d, alpha, np.random.default_rng(seeds))
    fits = {start: minimize_risk(dataset, start, must_converge=False) for start in INFORMED}
    columns = ("theta", "m", "train_loss", "test_error", "converged")
    return {f"{start}_{column}": getattr(fit, column) for start, fit in fits.items() for column in columns}


def random_start(d: int, alpha: float, seed: int, method: Method) -> dict[str, Any]:
    """Where 5000 steps of a method end from a random start, and the losses of the two informed minima beside it.

    teacher_cosine and position_cosine are those of Q with Q* and with 1_d, in size.
    """
    dataset = _dataset(d, alpha, seed, "gaussian")
    fit = minimize_risk(dataset, "random", method, seed=np.random.default_rng([seed, 1]))
    size = np.linalg.norm(fit.query)
    cosines = {
        "teacher_cosine": np.linalg.norm(fit.query.T @ dataset.teacher_query)
        / size
        / np.linalg.norm(dataset.teacher_query),
        "position_cosine": np.linalg.norm(fit.query.sum(axis=0)) / size / np.sqrt(d),
    }
    informed = {f"{start}_train_loss": minimize_risk(dataset, start).train_loss for start in INFORMED}
    return {**_row(fit), **cosines, **informed}


def valley_floor(d: int, alpha: float, seed: int, valley: str) -> dict[str, Any]:
    """How many different minima 16 descents find that start in one valley and end in it.

    A start is the informed start of the valley, with noise of up to its own size mixed in, at 0.1 to 1 of its length.
    A descent has ended in the semantic valley if theta/sigma^2 is larger than m, in size. Two minima are different
    if their losses differ by more than 1e-6 of themselves; `spread` is the relative difference of highest and lowest.
    """
    losses = [fit.train_loss for fit in _descents_in_valley(_dataset(d, alpha, seed, "orthonormal"), seed, valley)]
    steps = np.diff(np.log(np.sort(losses)))
    minima = int((steps > 1e-6).sum()) + (len(losses) > 0)
    return {"descents": len(losses), "minima": minima, "spread": float(np.expm1(steps.sum()))}


def lowest_minimum(d: int, alpha: float, seed: int, valley: str) -> dict[str, Any]:
    """The minimum from the informed start of a valley, and the lowest of it and those of 16 more descents there.

    Starts as in `valley_floor`. Columns informed_m, lowest_m, ...; `descents` counts those that stayed in the valley.
    """
    dataset = _dataset(d, alpha, seed, "orthonormal")
    fits = _descents_in_valley(dataset, seed, valley)
    informed = minimize_risk(dataset, "semantic" if valley == "semantic" else "positional")
    lowest = min([informed, *fits], key=lambda fit: fit.train_loss)
    named = {"informed": informed, "lowest": lowest}
    rows = {f"{name}_{column}": value for name, fit in named.items() for column, value in _row(fit).items()}
    return rows | {"descents": len(fits)}


def fixed_point(omega: float, alpha: float, branch: BranchName) -> dict[str, Any]:
    """A solution of state evolution at the default accuracy, with standard errors (q_error, ...).

    `status` is "solved", or why there is none: the branch was followed and ends before ("fold" or "vanishes"), or "not
    found". All other columns are then empty.
    """
    columns = ("q", "m", "V", "theta", "train_loss", "test_error", "jump_density")
    empty = dict.fromkeys([*columns, *(f"{column}_error" for column in columns), "pointwise_replicon"], np.nan)
    try:
        point = solve_state_evolution(Task(omega=omega), alpha, branch)
    except NoSuchPointError as error:
        return {"status": error.reason} | empty
    except ConvergenceError:
        return {"status": "not found"} | empty
    values = {column: getattr(point, column) for column in (*columns, "pointwise_replicon")}
    errors = {f"{column}_error": point.standard_error[column] for column in columns}
    return {"status": "solved"} | empty | values | errors


def rank_two_point(omega: float, alpha: float, branch: BranchName) -> dict[str, Any]:
    """A solution of state evolution for a student of rank two and a teacher of rank one, at an accuracy of 1 %.

    The branch is looked for from the general guess, and else followed down from the double or four times the
    alpha. `status` is "solved" or "not found"; all other columns are then empty. The first column is the one with
    the teacher or, on the positional branch, the positions; the other one is free, or has the positions ("mixed").
    """
    columns = ("theta", "m", "q_first", "q_second", "train_loss", "test_error", "jump_density")
    empty = dict.fromkeys([*columns, "train_loss_error", "test_error_error", "pointwise_replicon"], np.nan)
    task = Task(omega, student_rank=2)
    equations = BranchEquations(Branch(task, branch), log2_nodes=12, seed=0, follow=0.3)
    for first in (alpha, 2 * alpha, 4 * alpha):
        found = root_from_guess(equations, first)
        for step in np.geomspace(first, alpha, 1 + round(5 * np.log2(first / alpha)))[1:]:
            found = found and root_near(equations, equations.evaluate(found[0].x, np.log(step)))
        if found:
            break
    if not found:
        return {"status": "not found"} | empty
    start = equations.branch.point(found[0].x).public()
    try:
        point = solve_state_evolution(task, alpha, branch, start, accuracy=0.01)
    except ConvergenceError:
        return {"status": "not found"} | empty
    return {
        "status": "solved",
        "theta": float(np.abs(point.theta).max()),
        "m": float(np.abs(point.m).max()),
        "q_first": float(np.diag(point.q)[0]),
        "q_second": float(np.diag(point.q)[1]),
        **{name: getattr(point, name) for name in columns[4:]},
        **{f"{name}_error": point.standard_error[name] for name in ("train_loss", "test_error")},
        "pointwise_replicon": point.pointwise_replicon,
    }


def rank_two_threshold(quantity: str, omega: float, accuracy: float) -> dict[str, Any]:
    """Where a branch is born out of another one, for a student of rank two and a teacher of rank one; as `threshold`.

    Positional and semantic branch are born out of the uninformed one, the mixed branch out of the positional one.
    """
    _checks.choice("quantity", quantity, list(RANK_TWO_THRESHOLDS))
    return _found(partial(RANK_TWO_THRESHOLDS[quantity], Task(omega, student_rank=2), accuracy=accuracy))


def threshold(
    quantity: str, omega: float, sigma: float, regularization: float, attention: str, accuracy: float
) -> dict[str, Any]:
    """One of the THRESHOLDS in alpha, for a student of rank one and a positional attention of ATTENTIONS.

    "positional_begins_again" is the lower end of that piece of the positional branch to which large alpha belongs;
    where there is one piece, it is that of "positional_begins".

    `status` is the kind of the threshold; where there is none it is what wins in all of the range (the branch that has
    no such end), and "not found" where the branch was not found, was lost, or took too long. Where the accuracy was not
    reached, the threshold is given as it is; `alpha_error` is its standard error.
    """
    _checks.choice("quantity", quantity, list(THRESHOLDS))
    _checks.choice("attention", attention, list(ATTENTIONS))
    task = Task(omega, sigma, regularization, ATTENTIONS[attention])
    return _found(partial(THRESHOLDS[quantity], task, accuracy=accuracy))


def _found(search: Callable[..., Threshold]) -> dict[str, Any]:
    try:
        found = search(time_limit=_PATIENCE)
    except NoThresholdError as none:
        return {"alpha": np.nan, "alpha_error": np.nan, "status": none.winner}
    except ConvergenceError as failure:
        if not isinstance(failure.last, Threshold):
            return {"alpha": np.nan, "alpha_error": np.nan, "status": "not found"}
        found = failure.last
    return {"alpha": found.value, "alpha_error": found.standard_error, "status": found.kind}


def copies_apart(alpha: float, branch: BranchName, share: float) -> dict[str, Any]:
    """`distance_ratio` at a solution of state evolution, and its standard error."""
    ratio = distance_ratio(solve_state_evolution(Task(), alpha, branch), share, log2_nodes=18)
    return {"ratio": ratio.value, "ratio_error": ratio.standard_error}


def _descents_in_valley(dataset: Dataset, seed: int, valley: str) -> list[Fit]:
    """The descents of `valley_floor` that end in the valley."""
    _checks.choice("valley", valley, ("semantic", "positional"))
    d = dataset.dimension
    direction = dataset.teacher_query if valley == "semantic" else np.ones((d, 1))
    rng = np.random.default_rng([seed, 2])
    fits = [
        minimize_risk(dataset, length * (direction + noise * rng.standard_normal((d, 1))))
        for length, noise in zip(10 ** rng.uniform(-1, 0, 16), rng.uniform(0, 1, 16), strict=True)
    ]
    return [
        fit for fit in fits if (np.abs(fit.theta) / dataset.task.sigma**2 > np.abs(fit.m)) == (valley == "semantic")
    ]


def query_with_overlaps(dataset: Dataset, q: float, m: float, theta: float, seed: Seed) -> Float[Array, "d 1"]:
    """A random student of rank one with exactly these order parameters, independent of the sentences.

    In the span of 1_d and Q* it has what m and theta ask for; the rest of q is a random direction across that span.

    Raises:
        ValueError: names the argument, what it must be and what it got; q must exceed what m and theta take of it.
    """
    _checks.instance("dataset", dataset, Dataset)
    size, places, teacher = (_checks.real(name, value) for name, value in {"q": q, "m": m, "theta": theta}.items())
    if dataset.task.student_rank != 1 or dataset.task.teacher_rank != 1:
        raise ValueError("dataset must be of a task with student_rank = teacher_rank = 1")
    d, variance = dataset.dimension, dataset.task.sigma**2
    span = np.column_stack([np.ones(d), dataset.teacher_query])
    inside = span @ np.linalg.solve(span.T @ span, [places * d, teacher * d / variance])
    outside = size * d / variance - inside @ inside
    if not outside > 0:
        raise ValueError(f"q must exceed {variance * (inside @ inside) / d:.4g}, the part of m and theta; got {size:g}")
    across = _checks.generator(seed).standard_normal(d)
    across -= span @ np.linalg.lstsq(span, across)[0]
    return np.asarray((inside + across * np.sqrt(outside) / np.linalg.norm(across))[:, None])


def gamp_steps(d: int, alpha: float, seed: int) -> dict[str, Any]:
    """The first GAMP_STEPS steps of undamped GAMP from GAMP_START; columns q_0, m_0, V_0, theta_0, q_1, ..."""
    dataset = _dataset(d, alpha, seed, "orthonormal")
    q, m, V, theta = GAMP_START.values()
    query = query_with_overlaps(dataset, q, m, theta, np.random.default_rng([seed, 3, d]))
    run = gamp(dataset, query, damping=0, response=V, max_iterations=GAMP_STEPS, must_converge=False)
    return {
        f"{name}_{step}": float(getattr(run.overlaps, name)[step])
        for step in range(GAMP_STEPS + 1)
        for name in GAMP_START
    }


def gamp_minimum(d: int, alpha: float, seed: int, valley: str) -> dict[str, Any]:
    """Where GAMP comes to rest from the informed start of a valley. V is the response when the overlaps settled."""
    _checks.choice("valley", valley, ("semantic", "positional"))
    dataset = _dataset(d, alpha, seed, "orthonormal")
    run = gamp(dataset, "semantic" if valley == "semantic" else "positional", max_iterations=5000, must_converge=False)
    overlaps = run.overlaps
    return {
        "theta": float(overlaps.theta[-1]),
        "m": float(overlaps.m[-1]),
        "q": float(overlaps.q[-1]),
        "V": float(overlaps.V[run.n_iterations if run.settled_at is None else run.settled_at]),
        "train_loss": run.train_loss,
        "gradient_norm": run.residual,
        "n_iterations": run.n_iterations,
        "n_higher": float("nan") if run.n_higher is None else float(run.n_higher),
    }


def _dataset(d: int, alpha: float, seed: int, teacher_query: str) -> Dataset:
    _checks.integer("seed", seed, 0)
    return Task().sample(d, alpha, np.random.default_rng([seed, 0, d]), teacher_query)


def _row(fit: Fit) -> dict[str, Any]:
    columns = ("theta", "m", "q", "train_loss", "test_error", "gradient_norm", "n_evaluations")
    return {column: getattr(fit, column) for column in columns}
