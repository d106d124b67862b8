"""The page for teachers, followed by the letter: a problem of one's own, made, varied and graded."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import homework
import pytest
from nbformat.v4 import new_code_cell
from problem_sets.conftest import edited, mark, read, sentences

PAGE = Path(__file__).resolve().parents[2] / "book" / "teaching.md"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform == "win32", reason="time limits need the timers of Linux and macOS"),
]


@pytest.fixture(scope="module")
def mine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The set on the page, saved as the page says."""
    assert "{literalinclude} homework/sources/example/mine.md" in PAGE.read_text(encoding="utf-8")
    path = tmp_path_factory.mktemp("mine") / "mine.md"
    return Path(shutil.copy(PAGE.parent / "homework" / "sources" / "example" / "mine.md", path))


def test_the_problem_takes_ten_lines(mine: Path) -> None:
    lines = mine.read_text(encoding="utf-8").splitlines()
    assert f":emphasize-lines: {len(lines) - 9}-{len(lines)}\n" in PAGE.read_text(encoding="utf-8")
    assert lines[-10].startswith("+++ ")
    assert "question" not in "\n".join(lines[:-10])


def test_it_is_made_by_the_command_on_the_page_and_its_solution_graded(
    mine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "tools/homework.py mine.md" in PAGE.read_text(encoding="utf-8")
    for seed, base in [([], 2), (["--seed", "4"], None)]:
        homework.main([str(mine), "--output", str(tmp_path), *seed])
        assert "mine: the solution has 2 of 2 points" in capsys.readouterr().out
        text = (tmp_path / "mine" / "student" / "mine.ipynb").read_text(encoding="utf-8")
        assert (f"to base {base}." in text) is bool(base)
        assert re.search(r"to base (3|10)\.", text) or base


def test_a_solution_that_fails_its_own_tests_stops_the_command(mine: Path, tmp_path: Path) -> None:
    wrong = tmp_path / "mine.md"
    wrong.write_text(mine.read_text(encoding="utf-8").replace("-(p @", "(p @"), encoding="utf-8")
    with pytest.raises(SystemExit, match="has the wrong sign"):
        homework.main([str(wrong), "--output", str(tmp_path)])


def test_a_cell_that_does_not_end_is_stopped_and_the_rest_is_graded(mine: Path, tmp_path: Path) -> None:
    impatient = tmp_path / "mine.md"
    impatient.write_text(mine.read_text(encoding="utf-8").replace("seconds: 10", "seconds: 2"), encoding="utf-8")
    bundle = homework.build(impatient, tmp_path / "made", commit="main")
    notebook = read(bundle.instructor)
    notebook.cells.insert(1, new_code_cell("while True:\n    pass"))  # type: ignore[no-untyped-call]
    assert mark(notebook, bundle.otter_run, tmp_path).total == 2
    in_its_own = edited(bundle.instructor, {"entropy": "while True:\n    pass\ndef entropy(p):\n    return 1"})
    marks = mark(in_its_own, bundle.otter_run, tmp_path)
    assert marks.total == 0
    assert "`entropy` is not there" in sentences(marks.reports["entropy"])
