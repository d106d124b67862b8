"""What a source may hold, and that nothing of it reaches students which they should not see."""

from __future__ import annotations

import json
import re
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import chapters
import homework
import pytest
import yaml
from problem_sets.conftest import SETS, read, secrets

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parents[2]
HEADER = """---
kernelspec:
  display_name: Python 3
  language: python
  name: python3
homework:
  seconds: 10
  parameters:
    base: [2, 3]
---
"""
every_set = pytest.mark.parametrize("name", SETS)


def source(folder: Path, text: str) -> Path:
    """A source file."""
    path = folder / "mine.md"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("seed", ["-1", "1.5", "abc", ""])
def test_a_seed_that_is_none_is_named(seed: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        homework.main([f"--seed={seed}"])
    assert f"a seed must be a whole number, 0 or larger; got {seed}\n" in capsys.readouterr().err


def test_a_seed_gives_each_parameter_another_value_and_the_same_again() -> None:
    parameters: dict[str, list[Any]] = {"a": [1, 2, 3], "b": ["x", "y"]}
    assert homework.choose(parameters, None, "set") == {"a": 1, "b": "x"} | {
        "hidden_seed": homework.choose({}, None, "set")["hidden_seed"]
    }
    first, again, other = (homework.choose(parameters, seed, "set") for seed in (1, 1, 2))
    assert first == again
    assert first["a"] in (2, 3)
    assert first["b"] == "y"
    assert first["hidden_seed"] != other["hidden_seed"]
    assert first["hidden_seed"] != homework.choose(parameters, 1, "another set")["hidden_seed"]


@pytest.mark.parametrize("values", [[1], [1, 1], [1, 2, 1], 3])
def test_a_parameter_without_another_value_is_refused(values: Any) -> None:
    with pytest.raises(ValueError, match="set: parameter a must be a list of the published value and at least one"):
        homework.choose({"a": values}, 1, "set")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("# No header\n", "mine.md must have a header with the key homework, and in it parameters and seconds"),
        (HEADER.replace("  seconds: 10\n", ""), "mine.md must have a header with the key homework"),
        (HEADER + "The base {{ bass }}\n", "mine.md: 'bass' is undefined"),
        (HEADER + "The base {{ base\n", "mine.md: "),
    ],
)
def test_a_source_that_cannot_be_read_is_refused_by_name(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        homework.read(source(tmp_path, text))


def cell(source: str) -> str:
    """A code cell."""
    return f"\n```{{code-cell}}\n{source}\n```\n"


QUESTION = '\n+++ {"question": "q", "points": 1}\nText.\n'
ANSWER = '\n+++ {"solution": true}\nThe answer.\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (QUESTION + cell("def hidden_a(q):\n    assert q"), "in question q, a test must be .*; got `def hidden_a.q.:`"),
        (QUESTION + cell("# ours\ndef hidden_a(env):\n    assert q"), "in question q, a test must be a cell of a"),
        (QUESTION + cell("import re\n\n\ndef test_a(env):\n    assert q"), "in question q, a test must be a cell"),
        (cell("def hidden_a(env):\n    assert env"), "before the first question, a test must be a cell of a question"),
        (QUESTION + 2 * cell("def test_a(env):\n    pass"), "a test must have a name of its own; got test_a again"),
        (
            QUESTION + ANSWER + cell("x = 3") + "More of it.\n",
            "nothing but tests may follow the model answer; got",
        ),
    ],
)
def test_a_source_that_would_give_a_test_or_an_answer_away_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        homework.read(source(tmp_path, HEADER + "# Set\n" + text))


@every_set
def test_each_question_has_a_test_that_students_see_and_one_that_they_do_not(name: str) -> None:
    kinds: dict[str, list[str]] = {}
    question = ""
    for cell in homework.read(homework.SOURCES / f"{name}.md").cells:
        question = cell.metadata.get("question", question)
        if "question" in cell.metadata and not cell.metadata.get("manual"):
            kinds[question] = []
        if test := homework.TEST.match(cell.source):
            kinds[question].append(test[1])
    assert len(kinds) >= 6
    assert all(set(found) == {"hidden", "test"} for found in kinds.values()), kinds


@every_set
def test_a_set_ends_in_an_open_question_with_a_rubric(name: str) -> None:
    cells = homework.read(homework.SOURCES / f"{name}.md").cells
    (last,) = [cell for cell in cells if cell.metadata.get("question") == "research"]
    assert last.metadata["manual"]
    marks = re.findall(r"\((\d+)\)", last.source.partition("*Rubric.*")[2])
    assert sum(map(int, marks)) == last.metadata["points"]
    assert cells[-1].metadata == {"solution": True}


@every_set
def test_the_notebook_of_students_has_no_solution_hidden_test_or_output(
    name: str, published: Callable[[str], homework.Bundle]
) -> None:
    bundle = published(name)
    student = bundle.student.read_text(encoding="utf-8")
    notebook = read(bundle.student)
    assert not [cell for cell in notebook.cells if cell.get("outputs") or cell.get("execution_count")]
    assert set(notebook.metadata) == {"kernelspec", "otter"}
    whole = "\n".join([student, *strings(json.loads(student))])
    found = secrets(bundle)
    assert len(found) > 50
    assert not [secret for secret in found if secret in whole]
    assert "SOLUTION" not in whole
    assert "hidden_" not in whole
    assert "parameters" not in notebook.metadata


def strings(value: Any) -> list[str]:
    """All texts in a value read from JSON."""
    if isinstance(value, str):
        return [value]
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else []
    return [text for part in parts for text in strings(part)]


@every_set
def test_the_page_of_a_set_shows_the_problems_and_no_secret(
    name: str, published: Callable[[str], homework.Bundle]
) -> None:
    bundle = published(name)
    page = homework.problems_for_page(homework.student_notebook(homework.SOURCES / f"{name}.md"))
    assert page.count("_Points:_") == len(re.findall(r"^\+\+\+ .*question", source_of(name), re.MULTILINE))
    assert "grader" not in page
    assert not [secret for secret in secrets(bundle) if secret in page]
    title = source_of(name).partition("\n# ")[2].partition("\n")[0]
    stub = (ROOT / "book" / "homework" / f"{name}.md").read_text(encoding="utf-8")
    assert stub.startswith(f"# {title}\n")
    assert f"</_build/homework/{name}.ipynb>" in stub
    assert f"{{include}} /_build/homework/{name}.md" in stub


def source_of(name: str) -> str:
    return (homework.SOURCES / f"{name}.md").read_text(encoding="utf-8")


def test_no_source_is_a_page_of_the_book() -> None:
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))
    pages = [toc["root"], *(entry["file"] for part in toc["parts"] for entry in part["chapters"])]
    assert {f"book/homework/{name}" for name in SETS} <= set(pages)
    assert not [page for page in pages if "sources" in page]
    with_code = {page.relative_to(ROOT).as_posix() for page in chapters.notebooks()}  # which become notebooks
    assert not [page for page in with_code if page.startswith(("book/homework", "book/teaching"))]


@every_set
def test_the_zip_for_gradescope_installs_the_library_at_the_commit_without_what_renders_pages(
    name: str, published: Callable[[str], homework.Bundle]
) -> None:
    with zipfile.ZipFile(published(name).gradescope) as archive:
        files = set(archive.namelist())
        environment = yaml.safe_load(archive.read("environment.yml"))
        settings = json.loads(archive.read("otter_config.json"))
    assert {"setup.sh", "run_autograder"} <= files
    packages = [line for line in environment["dependencies"] if isinstance(line, str)]
    (pip,) = [line["pip"] for line in environment["dependencies"] if isinstance(line, dict)]
    assert [line for line in pip if line.startswith("attention-phases @ git+https://") and line.endswith("@main")]
    assert [line for line in packages if line.startswith("pytorch-cpu")]
    assert not [line for line in packages if line.startswith(("sphinx", "jupyter-book"))]
    assert settings["show_hidden"] is False
    assert settings["show_stdout"] is False
