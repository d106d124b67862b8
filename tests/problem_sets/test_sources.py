"""What a source may hold, and that nothing of it reaches students which they should not see."""

from __future__ import annotations

import json
import re
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import chapters
import homework
import problem_source
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
    large = problem_source.choose({}, 2**63, "set")["hidden_seed"]
    assert 2**40 < large < 2**63
    assert problem_source.choose(parameters, None, "set") == {"a": 1, "b": "x"} | {
        "hidden_seed": problem_source.choose({}, None, "set")["hidden_seed"]
    }
    first, again, other = (problem_source.choose(parameters, seed, "set") for seed in (1, 1, 2))
    assert first == again
    assert first["a"] in (2, 3)
    assert first["b"] == "y"
    assert first["hidden_seed"] != other["hidden_seed"]
    assert first["hidden_seed"] != problem_source.choose(parameters, 1, "another set")["hidden_seed"]


@pytest.mark.parametrize("values", [[1], [1, 1], [1, 2, 1], 3])
def test_a_parameter_without_another_value_is_refused(values: Any) -> None:
    with pytest.raises(ValueError, match="set: parameter a must be a list of the published value and at least one"):
        problem_source.choose({"a": values}, 1, "set")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("# No header\n", "mine.md must have a header with the key homework, and in it parameters and seconds"),
        (HEADER.replace("  seconds: 10\n", ""), "mine.md must have a header with the key homework"),
        (HEADER + "# Set\nThe base {{ bass }}\n", r"mine.md, line 12: braces must hold a parameter .*; got `bass`"),
        (HEADER + "# Set\n$\\frac{{a}}{b}$ {{ base }}\n", "as in a formula, write { {; got `a`"),
        (HEADER + "The base {{ base\n", "mine.md, line 11: braces must hold a parameter"),
        (HEADER + "No parameter\n", "mine.md: each parameter must be used; base is not"),
        (HEADER.replace("[2, 3]", "[2, 3"), "mine.md must begin with a header in YAML"),
        (HEADER.replace("10", "-1"), "mine.md: seconds must be a positive number; got -1"),
        (HEADER.replace("base:", "hidden_seed:"), "a parameter must have a name like beta, and not hidden_seed"),
        (HEADER + "# Only {{ base }}\n", "mine.md must have a question"),
        (HEADER + '{{ base }}\n\n+++ {question: "q"}\nText\n', "mine.md: what follows ... must be like"),
    ],
)
def test_a_source_that_cannot_be_read_is_refused_by_name(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        problem_source.read(source(tmp_path, text))


def cell(source: str) -> str:
    """A code cell."""
    return f"\n```{{code-cell}}\n{source}\n```\n"


QUESTION = '\n+++ {"question": "q", "points": 1}\nText {{ base }}.\n'
SOLVED = cell("x = 3  # SOLUTION")
SEEN = cell("def test_a(env):\n    assert answer(env, 'x')")
ANSWER = '\n+++ {"solution": true}\nThe answer.\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (QUESTION + cell("def hidden_a(q):\n    assert q"), "in question q, a test must be .*; got `def hidden_a.q.:`"),
        (QUESTION + cell("def hiden_a(env):\n    assert env"), "a test must be a cell of its own .*; got `def hiden_a"),
        (QUESTION + cell("async def hidden_a(env):\n    assert env"), "a test must be .*; got `async def hidden_a"),
        (QUESTION + cell("@mark\ndef hidden_a(env):\n    assert env"), "a test must be a cell of its own"),
        (
            QUESTION + cell("def hidden_a(env):\n    pass\ndef hidden_b(env):\n    pass"),
            "a test must be a cell of its own",
        ),
        (QUESTION + cell("def check(e):\n    close(call(e, 'x'), 3)"), "only a test may use answer, call"),
        (QUESTION + cell("x = 3  #SOLUTION"), "a solution must be code before .*; got `x = 3  #SOLUTION`"),
        (QUESTION + cell("x = 3  # solution"), "a solution must be code before"),
        (QUESTION + cell("x = 3  # SOLUTION NO PROMPT"), "the only marks in a cell must be those of a solution"),
        (QUESTION + cell("# SOLUTION\nx = 3"), "a solution must be code before"),
        (QUESTION + cell("### BEGIN SOLUTION\nx = 3\n### END SOLUTION"), "a solution must be code before"),
        (QUESTION + cell("# BEGIN SOLUTION\nx = 3"), "# END SOLUTION must follow"),
        (QUESTION + cell("x = 3\n# END SOLUTION"), "a solution must be code before"),
        (QUESTION + cell("x = 1 + \\\n    2  # SOLUTION"), "a statement of several lines must lie between"),
        (QUESTION + "\n- l\n  ```{code-cell}\n  x = 2\n  ```\n", "text, which students read, must hold no cell"),
        (QUESTION + "<!-- x is 3 -->\n", "text, which students read, must hold no cell, test or hidden comment"),
        (QUESTION + "## Solution\n3\n" + SOLVED + SEEN, "or be text after"),
        (QUESTION + "```{raw-cell}\nx\n```\n", "a cell must be text, or code without options"),
        (QUESTION + cell(":solution: true\nx = 3"), "a cell must be text, or code without options"),
        (QUESTION + SOLVED + SEEN + ANSWER.replace("sol", "Sol"), 'the setting after ... must be {"solution": true}'),
        (QUESTION.replace("points", "pionts") + SOLVED + SEEN, "the keys after ... must be question, points and"),
        (QUESTION.replace("1", "0") + SOLVED + SEEN, "points must be a positive number"),
        (QUESTION.replace("1", '"3"') + SOLVED + SEEN, "points must be a positive number"),
        (QUESTION.replace("1", "[1, 2]") + SOLVED + SEEN, "one number or one for each of the 1 tests; got"),
        (QUESTION.replace(', "points": 1', "") + SOLVED + SEEN, "points must be a positive number"),
        (QUESTION + SOLVED, "there must be a test; or a person marks it"),
        (QUESTION + SEEN, "a cell must have a line with # SOLUTION"),
        (QUESTION.replace("1}", '1, "manual": true}'), "there must be a model answer and no test"),
        (QUESTION.replace("1}", '1, "manual": 1}') + ANSWER, "manual must be true, or left out"),
        (QUESTION + SOLVED + SEEN + QUESTION + SOLVED + SEEN.replace("_a", "_b"), "a question must have a name of its"),
        (QUESTION + ANSWER.partition("The")[0] + cell("x = 3"), "text must follow each line that begins with"),
        ("{{ base }}" + SOLVED, "before the first question, there must be no test, solution or setting"),
        (
            QUESTION + cell("# ours\ndef hidden_a(env):\n    assert q"),
            "in question q, a test must be a cell of its own",
        ),
        (QUESTION + cell("import re\n\n\ndef test_a(env):\n    assert q"), "in question q, a test must be a cell"),
        (
            "{{ base }}" + cell("def hidden_a(env):\n    assert env"),
            "before the first question, there must be no test, solution or setting",
        ),
        (QUESTION + SOLVED + 2 * SEEN, "a test must have a name of its own; got test_a again"),
        (
            QUESTION + ANSWER + cell("x = 3") + "More of it.\n",
            "nothing but tests may follow the model answer; got",
        ),
    ],
)
def test_a_source_that_would_give_a_test_or_an_answer_away_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        problem_source.read(source(tmp_path, HEADER + "# Set\n" + text))


@every_set
def test_each_question_has_a_test_that_students_see_and_one_that_they_do_not(name: str) -> None:
    kinds: dict[str, list[str]] = {}
    question = ""
    for cell in problem_source.read(homework.SOURCES / f"{name}.md").cells:
        question = cell.metadata.get("question", question)
        if "question" in cell.metadata and not cell.metadata.get("manual"):
            kinds[question] = []
        if test := problem_source.TEST.match(cell.source):
            kinds[question].append(test[1])
    assert kinds
    assert all(set(found) == {"hidden", "test"} for found in kinds.values()), kinds


@every_set
def test_a_set_ends_in_an_open_question_with_a_rubric(name: str) -> None:
    cells = problem_source.read(homework.SOURCES / f"{name}.md").cells
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
    assert found
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
