"""The page for teachers, followed by the letter: a problem of one's own, made, varied and graded."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import address
import homework
import pytest
import yaml
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
    (first,) = [number for number, line in enumerate(lines, start=1) if line.startswith("+++ ")]
    assert f":emphasize-lines: {first}-{len(lines)}\n" in PAGE.read_text(encoding="utf-8")
    assert len([line for line in lines[first - 1 :] if "```" not in line]) <= 10


def test_it_is_made_by_the_command_on_the_page_and_its_solution_graded(
    mine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "tools/homework.py mine.md" in PAGE.read_text(encoding="utf-8")
    for seed, base in [([], 2), (["--seed", "4"], None)]:
        homework.main([str(mine), "--output", str(tmp_path), *seed])
        made = yaml.safe_load((tmp_path / "mine" / "variant.txt").read_text(encoding="utf-8"))
        assert made["seed"] == (int(seed[1]) if seed else None)
        assert made["parameters"].keys() == {"base", "hidden_seed"}
        assert len(made["commit"]) == 40
        out = capsys.readouterr().out
        assert "the solution has 3 of 3 points" in out
        assert ("The address of your repository is not set yet" in out) is (
            address.read(PAGE.parents[1])[0].owner == "OWNER"
        )
        text = (tmp_path / "mine" / "student" / "mine.ipynb").read_text(encoding="utf-8")
        assert (f"to base {base}." in text) is bool(base)
        assert re.search(r"to base (3|10)\.", text) or base


def test_a_solution_that_fails_its_own_tests_stops_the_command(mine: Path, tmp_path: Path) -> None:
    wrong = tmp_path / "mine.md"
    wrong.write_text(mine.read_text(encoding="utf-8").replace("-(p @", "(p @"), encoding="utf-8")
    with pytest.raises(RuntimeError, match="the solution must get all points; it has 0 of 3") as error:
        homework.main([str(wrong), "--output", str(tmp_path)])
    assert "has the wrong sign" in str(error.value)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.md"]


def test_a_notebook_that_gets_points_untouched_stops_the_command(mine: Path, tmp_path: Path) -> None:
    wrong = tmp_path / "mine.md"
    text = mine.read_text(encoding="utf-8").replace('close(call(env, "entropy", np.full(9, 1 / 9)), ', "assert (")
    wrong.write_text(text, encoding="utf-8")
    with pytest.raises(RuntimeError, match="in question entropy, the students' notebook must not get a point before"):
        homework.main([str(wrong), "--output", str(tmp_path)])


def test_a_hidden_seed_in_a_test_that_students_see_is_refused(mine: Path, tmp_path: Path) -> None:
    text = mine.read_text(encoding="utf-8").replace("_uniform(env):", "_uniform(env):\n    assert {{ hidden_seed }}")
    (tmp_path / "mine.md").write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match="students must not see hidden_seed or the name of a hidden test; got `assert"):
        homework.build(tmp_path / "mine.md", tmp_path / "made", commit="main")


def test_two_sources_of_one_name_are_refused_and_a_missing_one_is_named(mine: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"each source must have a file name of its own; got mine\.md again"):
        homework.main([str(mine), str(mine), "--output", str(tmp_path)])
    for wrong in (tmp_path / "none.md", tmp_path):
        with pytest.raises(ValueError, match=f"{re.escape(str(wrong))} must be a text file in UTF-8"):
            homework.main([str(wrong), "--output", str(tmp_path)])
    (tmp_path / "binary.md").write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match=r"binary\.md must be a text file in UTF-8"):
        homework.main([str(tmp_path / "binary.md"), "--output", str(tmp_path)])


def test_a_private_variant_is_not_lost_to_another_nor_a_folder_of_others(mine: Path, tmp_path: Path) -> None:
    homework.main([str(mine), "--output", str(tmp_path), "--seed", "7"])
    homework.main([str(mine), "--output", str(tmp_path), "--seed", "7"])
    for other in ([], ["--seed", "8"]):
        with pytest.raises(ValueError, match="has the private variant of seed 7, which would be lost"):
            homework.main([str(mine), "--output", str(tmp_path), *other])
    students = (tmp_path / "mine" / "student" / "mine.ipynb").read_text(encoding="utf-8")
    made = yaml.safe_load((tmp_path / "mine" / "variant.txt").read_text(encoding="utf-8"))
    assert str(made["parameters"]["hidden_seed"]) not in students
    (tmp_path / "mine" / "variant.txt").unlink()
    with pytest.raises(ValueError, match=r"would be replaced, and has no variant\.txt"):
        homework.main([str(mine), "--output", str(tmp_path)])


def test_what_ends_the_kernel_or_cannot_be_stopped_costs_its_own_points_alone(mine: Path, tmp_path: Path) -> None:
    two = tmp_path / "mine.md"
    text = mine.read_text(encoding="utf-8").replace("seconds: 10", "seconds: 2")
    question = "+++ " + text.partition("+++ ")[2]
    again = question.replace("entropy", "other").replace("_uniform", "_two").replace("_random", "_three")
    two.write_text(text + "\n" + again, encoding="utf-8")
    bundle = homework.build(two, tmp_path / "made", commit="main")
    for fault in (
        "def other(p):\n    return sum(range(10**13))",
        "import os\nos._exit(0)\ndef other(p):\n    return 1",
    ):
        marks = mark(edited(bundle.instructor, {"other": fault}), bundle.otter_run, tmp_path)
        assert marks.scores == {"entropy": 3, "other": 0}
        assert "that could not be stopped, was left out" in sentences(marks.reports["other"])


def test_a_notebook_without_its_sets_name_is_graded_and_that_of_another_set_is_not(mine: Path, tmp_path: Path) -> None:
    bundle = homework.build(mine, tmp_path / "made", commit="main")
    notebook = read(bundle.instructor)
    notebook.metadata.otter.assignment_name = "another"
    with pytest.raises(RuntimeError, match="This must be the problem set mine; the notebook is of another"):
        mark(notebook, bundle.otter_run, tmp_path)
    del notebook.metadata["otter"]
    assert mark(notebook, bundle.otter_run, tmp_path).total == 3


def test_a_cell_that_does_not_end_is_stopped_and_the_rest_is_graded(mine: Path, tmp_path: Path) -> None:
    impatient = tmp_path / "mine.md"
    impatient.write_text(mine.read_text(encoding="utf-8").replace("seconds: 10", "seconds: 2"), encoding="utf-8")
    bundle = homework.build(impatient, tmp_path / "made", commit="main")
    notebook = read(bundle.instructor)
    notebook.cells.insert(1, new_code_cell("while True:\n    pass"))  # type: ignore[no-untyped-call]
    assert mark(notebook, bundle.otter_run, tmp_path).total == 3
    in_its_own = edited(bundle.instructor, {"entropy": "while True:\n    pass\ndef entropy(p):\n    return 1"})
    marks = mark(in_its_own, bundle.otter_run, tmp_path)
    assert marks.total == 0
    assert "`entropy` is not there" in sentences(marks.reports["entropy"])
