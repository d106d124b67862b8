"""What a student is told, and that no code of a student's stops the graders."""

from __future__ import annotations

import ast
import re
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from attention_phases import grading
from attention_phases.grading import CellLimit, TooLongError, answer, call, close, limit_cells, numbers

if TYPE_CHECKING:
    from collections.abc import Callable

with_timers = pytest.mark.skipif(sys.platform == "win32", reason="time limits need the timers of Linux and macOS")


def told(check: Callable[[], Any]) -> str:
    """The message of a failed check."""
    with pytest.raises(AssertionError) as error:
        check()
    return str(error.value)


def divides(x: float) -> float:
    return 1 / x


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ({}, "`f` is not there. Was its cell run, and is the name spelt as in the question?"),
        ({"f": ...}, "`f` is still empty. Put your answer in the place of the three dots."),
        ({"f": None}, "`f` is still empty. Put your answer in the place of the three dots."),
        ({"f": [1, 2]}, "`f` must be a function; it is something of type list and length 2."),
        ({"f": lambda x: None}, "`f` returned nothing. Are the three dots still there, or is the return missing?"),
        ({"f": lambda x: ...}, "`f` returned nothing. Are the three dots still there, or is the return missing?"),
        ({"f": divides}, "`f` stopped at the line `return 1 / x` with ZeroDivisionError: division by zero"),
        ({"f": lambda: 1}, "`f` stopped with TypeError"),
    ],
)
def test_what_is_wrong_with_a_function_is_said(env: dict[str, Any], message: str) -> None:
    assert told(lambda: call(env, "f", 0)).startswith(message)


def test_a_wrong_number_of_results_is_said() -> None:
    assert told(lambda: call({"f": lambda: 3}, "f", parts=2)).startswith("`f` must return 2 results; it returned some")
    assert call({"f": lambda: (3, 4)}, "f", parts=2) == (3, 4)


def test_an_answer_is_handed_on() -> None:
    assert answer({"x": 3}, "x") == 3
    assert call({"f": lambda x, y: x - y}, "f", 3, 1) == 2


def test_a_function_may_not_change_what_others_are_given() -> None:
    given = np.ones(3)
    call({"f": lambda x: x.fill(0) or 1}, "f", given)
    assert given.sum() == 3


@with_timers
@pytest.mark.parametrize("catches", [False, True])
def test_an_endless_loop_is_stopped_even_where_exceptions_are_caught(catches: bool) -> None:
    def loop() -> None:
        while True:
            try:
                time.sleep(0.001)
            except Exception:
                if not catches:
                    raise

    start = time.monotonic()
    message = told(lambda: call({"f": loop}, "f", seconds=0.2))
    assert message == "`f` ran for 0.2 s and was stopped. Is there a loop that does not end?"
    assert time.monotonic() - start < 5


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ([-1.0, -2.0], "has the wrong sign."),
        ([0, 0], "is zero."),
        ([3, 6], "is wrong by one constant factor. Look at the prefactors."),
        ([1, 7], "is right in 1 of 2 entries, and wrong in the others."),
        ([1.001, 1.999], "is off by less than one per cent: the idea may be right, the accuracy is not."),
        ([5, 7], "is wrong, by one per cent or more."),
        (["a", "b"], "must consist of real numbers; it is something of type list and length 2."),
        ([[1], [2, 3]], "must consist of real numbers; it is something of type list and length 2."),
        ([True, False], "must consist of real numbers; it is something of type list and length 2."),
        ([1, 2, 3], "must have the shape (2,); it has (3,)."),
        ([1, np.nan], "has an entry that is infinite or not a number."),
    ],
)
def test_the_kind_of_error_is_said_and_not_the_answer(found: Any, said: str) -> None:
    message = told(lambda: close(found, [1.0, 2.0], what="The rate"))
    assert message == f"The rate {said}"


def test_what_is_close_passes() -> None:
    close((1, 2 + 1e-8), [1.0, 2.0])
    close(1e-12, 0.0, atol=1e-9)
    assert numbers([1, 2], (2,)).dtype == float


class Shell:
    """As much of IPython as is needed: it registers functions for events."""

    def __init__(self) -> None:
        self.functions: dict[str, Callable[[Any], None]] = {}
        self.events = self

    def register(self, event: str, function: Callable[[Any], None]) -> None:
        self.functions[event] = function

    def run(self, source: str, seconds: float) -> None:
        """Take so long for a cell."""
        self.functions["pre_run_cell"](SimpleNamespace(raw_cell=source))
        try:
            time.sleep(seconds)
        finally:
            self.functions["post_run_cell"](None)


@with_timers
def test_a_cell_is_stopped_at_its_limit_and_otters_own_are_not() -> None:
    shell = Shell()
    limit_cells(shell, 0.1)
    with pytest.raises(TooLongError):
        shell.run("while True: ...", 5)
    shell.run("x = 1", 0)
    for source in ['grader.check("q")', 'notebook_12ab().check("q")', "# the end\nfrom otter.execute import Checker"]:
        shell.run(source, 0.2)
    time.sleep(0.2)  # nothing goes off after the cell


def test_the_limit_of_a_cell_must_be_given() -> None:
    with pytest.raises(ValueError, match=re.escape("seconds must be a number in (0, inf); got None")):
        CellLimit("", {}, {})


def test_each_message_has_its_row_on_the_page_for_students() -> None:
    page = Path(__file__).resolve().parent.parent / "book" / "homework.md"
    table = page.read_text(encoding="utf-8").partition("| the test says |")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| (.*?) \|", table, re.MULTILINE)
    tree = ast.parse(Path(grading.__file__).read_text(encoding="utf-8"))
    functions = [
        node
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and node.name in {"call", "answer", "close", "numbers", "_difference"}
    ]
    texts, parts_of_others = [], set()
    for function in functions:
        for node in (inner for statement in function.body[1:] for inner in ast.walk(statement)):
            if isinstance(node, ast.JoinedStr):
                parts_of_others |= set(node.values)
                texts.append("".join(str(part.value) for part in node.values if isinstance(part, ast.Constant)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in parts_of_others:
                texts.append(node.value)
    messages = [text for text in texts if len(text.split()) > 1 and re.search("[.:]", text)]
    assert len(messages) > 14

    def says(row: str, message: str) -> bool:
        parts = re.split(r"[^a-z, ]+", re.sub(r"`[^`]*`|\(.*?\)", "…", row))
        return all(part.strip() in message for part in parts)

    assert not [message for message in messages if not any(says(row, message) for row in rows)]
    assert not [row for row in rows if not any(says(row, message) for message in messages)]
