"""Real submissions, graded by `otter run`: what each fault costs, and what the student is told."""

from __future__ import annotations

import re
import sys
import zipfile
from typing import TYPE_CHECKING, NamedTuple

import pytest
from problem_sets.conftest import SETS, edited, mark, read, sentences

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from homework import Bundle

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform == "win32", reason="time limits need the timers of Linux and macOS"),
]
every_set = pytest.mark.parametrize("name", SETS)


class Fault(NamedTuple):
    """An answer with a fault, the points that it gets all the same, and what is said of it."""

    answer: str | None  # None: the cell is deleted
    score: float
    message: str


FAULTS = {
    "teacher-student-gamp": {
        "teacher_attention": Fault("def teacher_attention(s):\n    while True:\n        pass", 0, "was stopped"),
        "field_law": Fault("def field_law(Q, Q_star):\n    return 1 / 0, Q", 0, "at the line `return 1 / 0, Q` with"),
        "huber_force": Fault("def huber_force(w, y, V):\n    return (w - y) / (1 + V)", 0, "The force"),
        "gamp_step": Fault("def gamp_step(a, y, Q, g, V):\n    return 0 * Q, 0 * g, 0.5", 1, "not at a minimum"),
        "state_evolution_step": Fault(None, 0, "`state_evolution_step` is not there"),
        "robust_gain": Fault("def gain(seed):\n    return 1.0, 2.0", 0, "is the name spelt as in the question"),
        "field_distance": Fault("def field_distance(Q1, Q2):\n    return [0, 1]", 0, "must have the shape ()"),
    },
    "transition-baseline": {
        "baseline": Fault("def baseline():\n    return np.full((2, 2), 0.5), 0.001", 1, "W is wrong"),
        "origin": Fault("def origin():\n    return 0.02, 0.4", 1, "A threshold is wrong"),
        "penalty_slope": Fault(
            "def penalty_slope(semantic, positional):\n    return semantic.q - positional.q", 1, "The slope is wrong"
        ),
        "crossing": Fault("def crossing(alpha, difference):\n    return 1.4, 0.0", 0, "The error"),
        "table": Fault("table = ...", 0, "`table` is still empty"),
        "attention_wins": Fault("def attention_wins(*curves):\n    return 2.25, 'jump'", 1, "The place is"),
    },
    "condensation-focus": {
        "condensation": Fault(  # the rate of the chapter, without the learning rate
            "def condensation(pi):\n    return np.linalg.norm(pi) * np.linalg.norm(pi - 1 / len(pi)), 2", 1,
            "The rate is wrong by one constant factor. Look at the prefactors.",
        ),
        "conserved": Fault(
            "def conserved(W0, W1, WQ, WK):\n    return W0.T @ W0 - W1 @ W1.T - WQ @ WQ.T - WK @ WK.T", 1,
            "The matrix changes along the flow",
        ),
        "growth": Fault("def growth(seed):\n    return 0.46, 2.0", 0, "Another seed gives slightly other numbers"),
        "arrival": Fault("def arrival(pi):\n    return pi", 0, "must return 2 results"),
        "focus": Fault("def focus(P):\n    return np.nan", 0, "an entry that is infinite or not a number"),
        "flip": Fault("def flip():\n    return 0.31", 1, "attention still turns to one side"),
    },
    "dilution-text": {
        "tilted": Fault("def tilted(pi, w, t):\n    return pi, 0 * t", 1, "The attention"),
        "dilution": Fault("dilution = 1.0", 0, "`dilution` must be a function"),
        "escape_rate": Fault("def escape_rate(xi):\n    return 30 * np.linalg.norm(xi)", 1, "by one constant factor"),
        "letters": Fault("def letters(text):\n    return np.ones((27, 27)) / 27", 0, "After `a` comes `b`"),
        "culprits": Fault("def culprits(P):\n    print('done')", 0, "`culprits` returned nothing"),
        "memory": Fault("def memory(text):\n    return 'one', 'two'", 0, "must consist of real numbers"),
    },
}  # fmt: skip


@every_set
def test_the_solution_gets_all_points(name: str, published: Callable[[str], Bundle], tmp_path: Path) -> None:
    bundle = published(name)
    marks = mark(read(bundle.instructor), bundle.otter_run, tmp_path)
    assert marks.scores == marks.possible, marks.reports


@every_set
def test_the_notebook_as_it_is_handed_out_gets_no_point(
    name: str, published: Callable[[str], Bundle], tmp_path: Path
) -> None:
    bundle = published(name)
    marks = mark(read(bundle.student), bundle.gradescope, tmp_path)
    assert set(marks.scores.values()) == {0}
    for report in marks.reports.values():
        assert re.search("three dots|is not there", sentences(report)), report


@every_set
def test_each_fault_costs_its_points_alone_and_is_named(
    name: str, published: Callable[[str], Bundle], tmp_path: Path
) -> None:
    bundle, faults = published(name), FAULTS.get(name, {})
    marks = mark(
        edited(bundle.instructor, {key: fault.answer for key, fault in faults.items()}), bundle.otter_run, tmp_path
    )
    question = {key: "experiment" if key == "table" else key for key in faults}
    got = {key: marks.scores[question[key]] for key in faults}
    assert got == {key: fault.score for key, fault in faults.items()}, marks.reports
    for key, fault in faults.items():
        said = sentences(marks.reports[question[key]])
        assert fault.message in said
        assert not re.search(r"\d\.\d{3}", said), f"{said} may give the answer away"
    hidden = [line for test in hidden_tests(bundle) for line in test]
    assert hidden
    assert not [line for line in hidden if line in marks.seen_by_student]


def hidden_tests(bundle: Bundle) -> list[list[str]]:
    """The lines of each hidden test that could be shown where it fails."""
    with zipfile.ZipFile(bundle.gradescope) as archive:
        tests = "".join(archive.read(name).decode() for name in archive.namelist() if name.startswith("tests/"))
    bodies = re.findall(r"hidden=True\)\ndef \w+\(env\):\n((?:    .*\n|\n)*)", tests)
    return [
        [line for line in body.splitlines() if "close(" in line or line.startswith("    assert")] for body in bodies
    ]
