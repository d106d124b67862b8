"""Make problem sets: the student's notebook, the instructor's, and the two zips that grade.

A problem set is one MyST notebook. Its header has, under the key `homework`,

    parameters    name: [published value, other value, ...]; `{{ name }}` in text and code stands for the value
    seconds       how long a cell of a submission may run when it is graded

and `{{ hidden_seed }}` is a number that only the graders know. Text before the first question introduces the set. A
question begins with `+++ {"question": "name", "points": 4}` and ends where the next one begins; with `"manual": true` a
person marks it. In a question

    code before # SOLUTION on its line, or between lines # BEGIN SOLUTION and # END SOLUTION, is what students write;
    a cell `def test_name(env):` is a test that the student sees, `def hidden_name(env):` one that only graders see;
    text after `+++ {"solution": true}` is the model answer of a question that a person marks.

Points are shared among the tests of a question, in equal parts, or given as a list, one for each test. With a seed
every parameter takes one of its other values: a private variant, to which published solutions are wrong.
`problem_source` reads a source, and refuses one in which something is not as said here. otter-grader does the rest.
"""

# mypy: disallow-untyped-calls=False

from __future__ import annotations

import argparse
import contextlib
import copy
import errno
import io
import json
import re
import secrets
import subprocess
import sys
import tempfile
import warnings
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import address
import nbformat
import yaml
from nbformat.v4 import new_code_cell, new_markdown_cell, new_raw_cell
from problem_source import TEST, ProblemSet, check_given, is_solution, read

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "book" / "homework" / "sources"
OUTPUT = ROOT / "dist" / "homework"
GRADING_PYTHON = "3.13"
VARIANT = "variant.txt"  # beside what is made: which variant it is
LINK = re.compile(r"\]\(\.\./\.\./([\w/-]+)\.md(#[\w-]+)?\)")  # to a page of the book
FIRST = """\
*This notebook needs* `pip install "otter-grader>=7,<8" "git+{repository}"`. *How to work on it, and how to hand it in:*
<{pages}/book/homework.html>"""
IMPORTS = """\
    import numpy as np
    from attention_phases.grading import answer, call, close, numbers
"""

Notebook = Any  # nbformat's own class has no types


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
        else:
            new = new_code_cell if cell.cell_type == "code" else new_markdown_cell
            marks = [[raw("BEGIN SOLUTION")], [raw("END SOLUTION")]] if is_solution(cell) else [[], []]
            cells.extend([*marks[0], new(cell.source), *marks[1]])
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
    """The commit that the graders install the library from.

    Raises:
        RuntimeError: there is none.
    """
    git = ["git", "-C", str(ROOT), "rev-parse", "HEAD"]
    run = subprocess.run(git, check=False, capture_output=True, text=True)
    if run.returncode:
        raise RuntimeError(f"{ROOT} must be a clone of the repository; git says: {run.stderr.strip()}")
    return run.stdout.strip()


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
    """Make all files of a problem set in the folder ``output/<name>``, which must not be there yet."""
    problems, commit = read(source, seed), commit or last_commit()
    target = output / problems.name
    bundle = Bundle(
        student=target / "student" / f"{problems.name}.ipynb",
        instructor=target / "instructor" / f"{problems.name}.ipynb",
        gradescope=target / f"{problems.name}-gradescope.zip",
        otter_run=target / f"{problems.name}-otter-run.zip",
    )
    with tempfile.TemporaryDirectory() as folder:
        student, instructor, archive = _assign(problems, Path(folder), commit)
        check_given(problems, student)
        for path, notebook in [(bundle.student, student), (bundle.instructor, instructor)]:
            path.parent.mkdir(parents=True)
            path.write_text(problems_for_notebook(notebook), encoding="utf-8")
        files = _files(archive)
        _pack(files, bundle.gradescope)
        for_a_run = ("otter_config.json", "tests/")
        _pack({name: data for name, data in files.items() if name.startswith(for_a_run)}, bundle.otter_run)
    variant = {"seed": problems.seed, "parameters": problems.values, "commit": commit}
    says = "# Not for students. A set without a seed (null) is as published.\n" + yaml.safe_dump(
        variant, sort_keys=False
    )
    (target / VARIANT).write_text(says, encoding="utf-8")
    return bundle


def make(source: Path, output: Path, seed: int | None) -> str:
    """Make a problem set, grade its solution and what students get, and put it into the output; say what is there.

    Raises:
        RuntimeError: the solution does not get all points, or the students' notebook, untouched, gets some.
    """
    output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=output, prefix=".making-") as folder:
        bundle = build(source, Path(folder, "new"), seed)
        name = bundle.student.stem
        marks = grade(bundle.instructor, bundle.otter_run)
        if marks.scores != marks.possible:
            reports = "\n".join(
                report for key, report in marks.reports.items() if marks.scores[key] < marks.possible[key]
            )
            raise RuntimeError(
                f"{name}: the solution must get all points; it has {marks.total:g} of {marks.most:g}\n{reports}"
            )
        given = {key: score for key, score in grade(bundle.student, bundle.otter_run).scores.items() if score}
        for question, score in given.items():
            needed = "students' notebook must not get a point before they write into it"
            raise RuntimeError(f"{name}: in question {question}, the {needed}; it has {score:g}")
        _put(Path(folder, "new", name), output / name)
    variant = "as published" if seed is None else f"private variant, seed {seed}"
    return f"{output / name}: {variant}; the solution has {marks.total:g} of {marks.most:g} points"


def _put(made: Path, target: Path) -> None:
    """Move a folder to its place, and what was there away; another run may do the same."""
    while True:
        with contextlib.suppress(FileNotFoundError):
            target.rename(made.with_name(secrets.token_hex(8)))
        try:
            made.rename(target)
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                raise
        else:
            return


def check_free(target: Path, seed: int | None) -> None:
    """Refuse to make a set where there is another private variant, or what is none of ours.

    Raises:
        ValueError: there is.
    """
    if not target.exists():
        return
    advice = "Move it away, or choose another folder with --output"
    try:
        made = yaml.safe_load((target / VARIANT).read_text(encoding="utf-8"))["seed"]
    except (OSError, ValueError, KeyError, TypeError, yaml.YAMLError):
        raise ValueError(f"{target} would be replaced, and has no {VARIANT} to say what it is. {advice}.") from None
    if made not in (None, seed):
        raise ValueError(f"{target} has the private variant of seed {made}, which would be lost. {advice}.")


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
    parser.add_argument("--seed", type=seed_of, help="of a private variant; 0 draws one")
    parser.add_argument("--output", type=Path, default=OUTPUT, help=f"folder for what is made; default {OUTPUT}")
    options = parser.parse_args(arguments)
    seed = secrets.randbelow(2**63) + 1 if options.seed == 0 else options.seed
    todo = options.source or sources()
    names = [read(source, seed).name for source in todo]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"each source must have a file name of its own; got {name}.md again")
        check_free(options.output / name, seed)
    for source in todo:
        print(make(source, options.output, seed), flush=True)
    if seed is not None:
        print(f"keep the seed {seed}: it makes the same variant again, and is in each {VARIANT}")
    if address.read(ROOT)[0].owner == "OWNER":
        print(
            "The address of your repository is not set yet: Gradescope cannot install the library, and links in the "
            "notebooks lead nowhere. Set `repository` in pyproject.toml, run `make address`, and make the sets again."
        )


if __name__ == "__main__":
    try:
        main()
    except (ValueError, OSError, RuntimeError) as error:
        sys.exit(str(error))
