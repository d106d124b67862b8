"""Make problem sets: the student's notebook, the instructor's, and the two zips that grade.

A problem set is one MyST notebook. Its header has, under the key `homework`,

    parameters    name: [published value, other value, ...]; `{{ name }}` in text and code stands for the value
    seconds       how long a cell of a submission may run when it is graded

and `{{ hidden_seed }}` is a number that only the graders know. Text before the first question introduces the set. A
question begins with `+++ {"question": "name", "points": 4}` and ends where the next one begins; with `"manual": true` a
person marks it. In a question

    a cell with # SOLUTION, or with # BEGIN SOLUTION and # END SOLUTION, is what the student writes;
    a cell that begins with `def test_` is a test that the student sees, with `def hidden_` one that only graders see;
    text after `+++ {"solution": true}` is the model answer of a question that a person marks.

With a seed every parameter takes one of its other values: a private variant, to which published solutions are wrong.
otter-grader does the rest.
"""

# mypy: disallow-untyped-calls=False

from __future__ import annotations

import argparse
import contextlib
import copy
import hashlib
import io
import json
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
import warnings
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import address
import jinja2
import jupytext
import nbformat
import numpy as np
import yaml
from nbformat.v4 import new_code_cell, new_markdown_cell, new_raw_cell

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "book" / "homework" / "sources"
OUTPUT = ROOT / "dist" / "homework"
GRADING_PYTHON = "3.13"
TEST = re.compile(r"def (test|hidden)_(\w+)\(env\):\n")
LINK = re.compile(r"\]\(\.\./\.\./([\w/-]+)\.md(#[\w-]+)?\)")  # to a page of the book
SOLUTION = re.compile(r"# (BEGIN )?SOLUTION\b")
FIRST = """\
*This notebook needs* `pip install "otter-grader>=7,<8" "git+{repository}"`. *How to work on it, and how to hand it in:*
<{pages}/book/homework.html>"""
IMPORTS = """\
    import numpy as np
    from attention_phases.grading import answer, call, close, numbers
"""

Notebook = Any  # nbformat's own class has no types


class ProblemSet(NamedTuple):
    """A source, read: its name, how long a cell may run, and its cells with all parameters filled in."""

    name: str
    seconds: float
    cells: list[Any]


class Bundle(NamedTuple):
    """The files that are made of a problem set."""

    student: Path
    instructor: Path
    gradescope: Path
    otter_run: Path


class Marks(NamedTuple):
    """What otter says of a submission: points, possible points and reports by question, and what a student is shown."""

    scores: dict[str, float]
    possible: dict[str, float]
    reports: dict[str, str]
    seen_by_student: str

    @property
    def total(self) -> float:
        """All points."""
        return sum(self.scores.values())

    @property
    def most(self) -> float:
        """All possible points."""
        return sum(self.possible.values())


def sources() -> list[Path]:
    """The problem sets of the book."""
    return sorted(SOURCES.glob("*.md"))


def choose(parameters: dict[str, list[Any]], seed: int | None, name: str) -> dict[str, Any]:
    """The values of the parameters: the published ones without a seed, others with one.

    Raises:
        ValueError: a parameter has no other value.
    """
    for parameter, values in parameters.items():
        if not isinstance(values, list) or len(values) < 2 or values[0] in values[1:]:
            needed = "must be a list of the published value and at least one other"
            raise ValueError(f"{name}: parameter {parameter} {needed}; got {values}")
    if seed is None:
        published = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4])
        return {parameter: values[0] for parameter, values in parameters.items()} | {"hidden_seed": published}
    rng = np.random.default_rng([seed, *name.encode()])
    drawn = {parameter: values[rng.integers(1, len(values))] for parameter, values in parameters.items()}
    return drawn | {"hidden_seed": int(rng.integers(2**31))}


def read(source: Path, seed: int | None = None) -> ProblemSet:
    """A problem set with its published parameters, or with those that the seed chooses.

    Raises:
        ValueError: the source is not as this module's first lines say.
    """
    text = source.read_text(encoding="utf-8")
    parts = re.match(r"---\n(.*?\n)---\n(.*)", text, re.DOTALL)
    header = yaml.safe_load(parts[1]) if parts else {}
    settings = header.get("homework")
    if not parts or not isinstance(settings, dict) or settings.keys() != {"parameters", "seconds"}:
        raise ValueError(f"{source.name} must have a header with the key homework, and in it parameters and seconds")
    values = choose(settings["parameters"], seed, source.stem)
    engine = jinja2.Environment(undefined=jinja2.StrictUndefined, keep_trailing_newline=True)
    try:
        body = engine.from_string(parts[2]).render(values)
    except jinja2.TemplateError as error:
        raise ValueError(f"{source.name}: {error}") from None
    notebook = jupytext.reads(
        "---\n" + yaml.safe_dump({"kernelspec": header["kernelspec"]}) + "---\n" + body, "md:myst"
    )
    check(source.name, notebook.cells)
    return ProblemSet(source.stem, settings["seconds"], notebook.cells)


def check(name: str, cells: list[Any]) -> None:
    """Refuse what would show students a test or an answer that they should not see, or lose a test."""
    question, answered = None, False
    seen: set[str] = set()
    for cell in cells:
        if "question" in cell.metadata:
            question, answered = cell.metadata["question"], False
        where = f"{name}: in question {question}" if question else f"{name}: before the first question"
        is_test = cell.cell_type == "code" and re.search(r"^def (?:test|hidden)_", cell.source, re.MULTILINE)
        if is_test:
            test = TEST.match(cell.source)
            if not test or not question:
                line = is_test[0] + cell.source[is_test.end() :].partition("\n")[0]
                raise ValueError(
                    f"{where}, a test must be a cell of a question that begins with `def test_name(env):` or "
                    f"`def hidden_name(env):`; got `{line}`"
                )
            if test[0] in seen:
                raise ValueError(f"{where}, a test must have a name of its own; got {test[1]}_{test[2]} again")
            seen.add(test[0])
        elif answered:
            begins = cell.source.partition("\n")[0]
            raise ValueError(f"{where}, nothing but tests may follow the model answer; got `{begins}`")
        answered = answered or bool(cell.metadata.get("solution"))


def raw(line: str, settings: dict[str, Any] | None = None) -> Any:
    """A mark of otter's."""
    return new_raw_cell(f"# {line}\n" + (yaml.safe_dump(settings, sort_keys=False) if settings else ""))


def for_otter(problems: ProblemSet) -> Notebook:
    """The notebook of which otter makes all the others: the same cells between its own marks."""
    configuration = {
        "name": problems.name,
        "tests": {"ok_format": False},
        "show_question_points": True,
        "export_cell": {"pdf": False},
        "environment": "environment.yml",
        "python_version": GRADING_PYTHON,
        "plugins": [{"attention_phases.grading.CellLimit": {"seconds": problems.seconds, "name": problems.name}}],
        "generate": {"show_hidden": False, "show_stdout": False},
    }
    cells = [raw("ASSIGNMENT CONFIG", configuration)]
    tests: list[str] = []
    inside = False

    def finish() -> None:
        if tests:
            cells.extend([raw("BEGIN TESTS"), *map(new_code_cell, tests), raw("END TESTS")])
            tests.clear()
        if inside:
            cells.append(raw("END QUESTION"))

    for cell in problems.cells:
        if "question" in cell.metadata:
            finish()
            settings = {"name" if key == "question" else key: value for key, value in cell.metadata.items()}
            cells.append(raw("BEGIN QUESTION", settings))
            inside = True
        test = TEST.match(cell.source) if cell.cell_type == "code" else None
        if test:
            hidden = "# HIDDEN\n" if test[1] == "hidden" else ""
            tests.append(hidden + test[0] + IMPORTS + cell.source[test.end() :])
        elif cell.cell_type == "code" and SOLUTION.search(cell.source):
            cells.extend([raw("BEGIN SOLUTION"), new_code_cell(cell.source), raw("END SOLUTION")])
        elif cell.cell_type == "markdown" and cell.metadata.get("solution"):
            cells.extend([raw("BEGIN SOLUTION"), new_markdown_cell(cell.source), raw("END SOLUTION")])
        elif cell.cell_type == "code":
            cells.append(new_code_cell(cell.source))
        else:
            cells.append(new_markdown_cell(cell.source))
    finish()
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernel})


def environment(commit: str) -> dict[str, Any]:
    """Gradescope's environment: the library at a commit, and what it needs, from conda-forge, with the CPU torch."""
    base = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))
    rest = ("python", "sphinx", "jupyter-book", "jupyterlab")  # chosen by otter, or only renders pages
    packages = [line for line in base["dependencies"] if isinstance(line, str) and not line.startswith(rest)]
    repository = address.read(ROOT)[0].repository
    library = {"pip": [f"attention-phases @ git+{repository}@{commit}"]}
    return {"channels": base["channels"], "dependencies": [*packages, library]}


def last_commit() -> str:
    """The commit that the graders install the library from."""
    return subprocess.run(
        ["git", "-C", str(ROOT), "rev-parse", "HEAD"], check=True, capture_output=True, text=True
    ).stdout.strip()


def problems_for_notebook(notebook: Notebook) -> str:
    """A notebook as a file: with what it needs said first, and its links to pages made addresses that work anywhere."""
    notebook, here = copy.deepcopy(notebook), address.read(ROOT)[0]
    first = new_markdown_cell(FIRST.format(pages=here.pages, repository=here.repository), id="cell-needs")
    notebook.cells.insert(0, first)
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = LINK.sub(rf"]({here.pages}/book/\1.html\2)", cell.source)
    return str(nbformat.writes(notebook)) + "\n"


def problems_for_page(student: Notebook) -> str:
    """The text of a problem set for its page: that of the student's notebook, less its title and otter's own cells."""
    parts = []
    for cell in student.cells:
        source = re.sub(r"<!-- (?:BEGIN|END) QUESTION -->\n*", "", cell.source).strip()
        if re.match(r"grader\.|# Initialize Otter|\.\.\.$|_Type your answer here", source):
            continue
        if source.startswith("## Submission"):
            break
        parts.append(f"```python\n{source}\n```" if cell.cell_type == "code" else source)
    text = "\n\n".join(part for part in parts if part) + "\n"
    return LINK.sub(r"](../\1.md\2)", re.sub(r"\A# .*\n+", "", text))


def student_notebook(source: Path, seed: int | None = None) -> Notebook:
    """The student's notebook as otter makes it."""
    with tempfile.TemporaryDirectory() as folder:
        return _assign(read(source, seed), Path(folder), commit="HEAD")[0]


def build(source: Path, output: Path = OUTPUT, seed: int | None = None, commit: str | None = None) -> Bundle:
    """Make all files of a problem set in the folder ``output/<name>``, which is emptied first."""
    problems = read(source, seed)
    target = output / problems.name
    shutil.rmtree(target, ignore_errors=True)
    bundle = Bundle(
        student=target / "student" / f"{problems.name}.ipynb",
        instructor=target / "instructor" / f"{problems.name}.ipynb",
        gradescope=target / f"{problems.name}-gradescope.zip",
        otter_run=target / f"{problems.name}-otter-run.zip",
    )
    with tempfile.TemporaryDirectory() as folder:
        student, instructor, archive = _assign(problems, Path(folder), commit or last_commit())
        for path, notebook in [(bundle.student, student), (bundle.instructor, instructor)]:
            path.parent.mkdir(parents=True)
            path.write_text(problems_for_notebook(notebook), encoding="utf-8")
        files = _files(archive)
        _pack(files, bundle.gradescope)
        for_a_run = ("otter_config.json", "tests/")
        _pack({name: data for name, data in files.items() if name.startswith(for_a_run)}, bundle.otter_run)
    return bundle


def _assign(problems: ProblemSet, folder: Path, commit: str) -> tuple[Notebook, Notebook, Path]:
    """Let otter make the student's notebook, the instructor's and the zip for Gradescope."""
    master = folder / f"{problems.name}.ipynb"
    nbformat.write(for_otter(problems), master)
    (folder / "environment.yml").write_text(yaml.safe_dump(environment(commit)), encoding="utf-8")
    with silence():
        from otter.assign import main as assign

        assign(str(master), str(folder / "made"), no_pdfs=True, no_run_tests=True)
    student, instructor = (
        nbformat.read(folder / "made" / kind / master.name, as_version=4) for kind in ("student", "autograder")
    )
    for notebook in (student, instructor):
        for number, cell in enumerate(notebook.cells):
            cell["id"] = f"cell-{number}"  # otter's are random
    (archive,) = (folder / "made" / "autograder").glob("*.zip")
    return student, instructor, archive


def _files(archive: Path) -> dict[str, bytes]:
    """What is in otter's zip. That the notebook is of this set, `CellLimit` sees to: otter wants it to say so."""
    with zipfile.ZipFile(archive) as whole:
        files = {name: whole.read(name) for name in whole.namelist()}
    settings = json.loads(files["otter_config.json"])
    del settings["assignment_name"]
    return files | {"otter_config.json": json.dumps(settings).encode()}


def _pack(files: dict[str, bytes], archive: Path) -> None:
    """Write a zip."""
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as whole:
        for name, data in files.items():
            whole.writestr(name, data)


def grade(submission: Path, bundle: Path) -> Marks:
    """Grade a notebook by `otter run`.

    Raises:
        RuntimeError: otter gave up; it says why.
    """
    with tempfile.TemporaryDirectory() as folder:
        command = ["otter", "run", "--no-logo", "-a", str(bundle), "-o", folder, str(submission)]
        run = subprocess.run([sys.executable, "-m", *command], capture_output=True, text=True, check=False)
        results = Path(folder, "results.json")
        if run.returncode or not results.exists():
            raise RuntimeError(f"otter could not grade {submission.name}: {run.stderr or run.stdout}")
        tests = json.loads(results.read_text(encoding="utf-8"))["tests"]
    seen = "".join(test["output"] for test in tests if test["visibility"] == "visible")
    of_questions = [test for test in tests if "score" in test]
    return Marks(
        scores={test["name"]: test["score"] for test in of_questions},
        possible={test["name"]: test["max_score"] for test in of_questions},
        reports={test["name"]: test["output"] for test in of_questions},
        seen_by_student=seen,
    )


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """Keep quiet what otter prints, and the deprecations that it and its libraries have not dealt with."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        yield


def seed_of(text: str) -> int:
    """A seed from the command line."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"a seed must be a whole number, 0 or larger; got {text}")
    return int(text)


def main(arguments: list[str] | None = None) -> None:
    """Make the problem sets, grade the solution of each, and say where the files are."""
    parser = argparse.ArgumentParser(description="Make problem sets for students and graders.")
    parser.add_argument("source", nargs="*", type=Path, help="problem sets (.md); default: those of the book")
    parser.add_argument("--seed", type=seed_of, help="of a private variant; 0 draws one and prints it")
    parser.add_argument("--output", type=Path, default=OUTPUT, help=f"folder for what is made; default {OUTPUT}")
    options = parser.parse_args(arguments)
    seed = secrets.randbelow(2**31) + 1 if options.seed == 0 else options.seed
    if seed is not None:
        print(f"private variant, seed {seed}: keep it, it makes the same variant again")
    for source in options.source or sources():
        bundle = build(source, options.output, seed)
        marks = grade(bundle.instructor, bundle.otter_run)
        print(f"{bundle.gradescope.parent}: the solution has {marks.total:g} of {marks.most:g} points", flush=True)
        if marks.scores != marks.possible:
            sys.exit("\n".join(marks.reports.values()))


if __name__ == "__main__":
    try:
        main()
    except (ValueError, OSError, RuntimeError) as error:
        sys.exit(str(error))
