"""The problem sets, made once, as published and as a private variant; and submissions, which are edited solutions."""

from __future__ import annotations

import copy
import re
from functools import cache
from typing import TYPE_CHECKING, Any

import homework
import nbformat
import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SETS = [source.stem for source in homework.sources()]
PRIVATE_SEED = 2**63 - 20261202


@pytest.fixture(scope="session")
def published(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], homework.Bundle]:
    """A function that gives the files of a set by its name."""
    folder = tmp_path_factory.mktemp("published")
    return cache(lambda name: homework.build(homework.SOURCES / f"{name}.md", folder, commit="main"))


@pytest.fixture(scope="session")
def private(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], homework.Bundle]:
    """The same for a private variant."""
    folder = tmp_path_factory.mktemp("private")
    return cache(lambda name: homework.build(homework.SOURCES / f"{name}.md", folder, PRIVATE_SEED, commit="main"))


def read(path: Path) -> Any:
    """A notebook."""
    return nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]


def edited(path: Path, edits: dict[str, str | None]) -> Any:
    """A notebook with the answers to some questions replaced, or their cells deleted."""
    notebook = copy.deepcopy(read(path))
    for question, source in edits.items():
        defines = re.compile(rf"^(?:def {question}\(|{question} = )", re.MULTILINE)
        (cell,) = [cell for cell in notebook.cells if cell.cell_type == "code" and defines.search(cell.source)]
        if source is None:
            notebook.cells.remove(cell)
        else:
            cell.source = source
    return notebook


def mark(notebook: Any, bundle: Path, folder: Path) -> homework.Marks:
    """Grade a notebook."""
    submission = folder / "submission.ipynb"
    nbformat.write(notebook, submission)  # type: ignore[no-untyped-call]
    return homework.grade(submission, bundle)


def sentences(report: str) -> str:
    """What a report says to the student: the last part of each error."""
    return "\n".join(re.findall(r"^ *\w*Error: (.*)$", report, re.MULTILINE))


def secrets(bundle: homework.Bundle) -> set[str]:
    """Lines of the instructor's notebook and of the hidden tests that students must not see, if they say something."""
    student, instructor = read(bundle.student), read(bundle.instructor)
    public = {line.strip() for cell in student.cells for line in cell.source.splitlines()}
    public |= {line.strip() for test in student.metadata.otter.tests.values() for line in test.splitlines()}
    lines = [line for cell in instructor.cells for line in cell.source.splitlines()]
    lines += [line for test in instructor.metadata.otter.tests.values() for line in test.splitlines()]
    said = {
        line.strip() for line in lines if len(line.strip()) > 20 and not line.strip().startswith(("from ", "import "))
    }
    return said - public
