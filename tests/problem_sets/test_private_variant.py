"""A private variant is another problem: published solutions fail in it, its own pass."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest
from problem_sets.conftest import SETS, mark, read

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from homework import Bundle

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform == "win32", reason="time limits need the timers of Linux and macOS"),
]
every_set = pytest.mark.parametrize("name", SETS)


@every_set
def test_published_solutions_fail(
    name: str, published: Callable[[str], Bundle], private: Callable[[str], Bundle], tmp_path: Path
) -> None:
    marks = mark(read(published(name).instructor), private(name).otter_run, tmp_path)
    assert marks.total < marks.most / 2
    assert not [question for question, score in marks.scores.items() if score == marks.possible[question]]


@every_set
def test_its_own_solutions_pass(name: str, private: Callable[[str], Bundle], tmp_path: Path) -> None:
    bundle = private(name)
    marks = mark(read(bundle.instructor), bundle.otter_run, tmp_path)
    assert marks.scores == marks.possible, marks.reports
