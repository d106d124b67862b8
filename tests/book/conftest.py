"""The built book, which the tests of its pages read."""

import os
import re
import subprocess
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

Build = Callable[[Path], subprocess.CompletedProcess[str]]
Recipe = Callable[[str, Path], subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def run_recipe() -> Recipe:
    """A function that runs the command by which a target of the Makefile calls Jupyter Book, in a folder."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}

    def run(target: str, folder: Path) -> subprocess.CompletedProcess[str]:
        command = re.search(rf"^{target}:.*\n\t\S*/jupyter-book (.*)", makefile, re.MULTILINE)
        assert command is not None
        program = [str(Path(sysconfig.get_path("scripts")) / "jupyter-book"), *command[1].split()]
        return subprocess.run(
            program, cwd=folder, env=environment, text=True, encoding="utf-8",
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
        )  # fmt: skip

    return run


@pytest.fixture(scope="session")
def build_book(run_recipe: Recipe) -> Build:
    """A function that builds the book in a folder by the command of `make book`."""
    return lambda folder: run_recipe("book", folder)


@pytest.fixture(scope="session")
def built(build_book: Build) -> Path:
    """The folder of the built pages. Where they are current, this takes seconds."""
    result = build_book(ROOT)
    problems = [line for line in result.stdout.splitlines() if "WARNING" in line or "ERROR" in line]
    assert result.returncode == 0, "\n".join(["The book does not build:", *problems])
    return ROOT / "_build" / "html"
