"""A build fails where a cell fails, says which, and goes on failing; what is executed follows the library."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
HEADER = """---
jupytext:
  text_representation:
    extension: .md
    format_name: myst
kernelspec:
  name: python3
  display_name: Python 3
---
"""

Build = Callable[[Path], subprocess.CompletedProcess[str]]

pytestmark = pytest.mark.slow


def write_page(folder: Path, name: str, *cells: str) -> None:
    """Write a page with code cells."""
    code = "".join(f"\n```{{code-cell}} ipython3\n{cell}\n```\n" for cell in cells)
    (folder / "book" / f"{name}.md").write_text(f"{HEADER}\n# {name}\n{code}", encoding="utf-8")


@pytest.fixture
def small_book(tmp_path: Path) -> Path:
    """A book of two pages with our configuration and extensions, and a time limit of two seconds a cell."""
    shutil.copytree(ROOT / "book" / "_extensions", tmp_path / "book" / "_extensions")
    shutil.copytree(ROOT / "book" / "_static", tmp_path / "book" / "_static")
    (tmp_path / "book" / "appendix").mkdir()
    (tmp_path / "book" / "appendix" / "references.bib").touch()
    configuration = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))
    configuration["execute"]["timeout"] = 2
    (tmp_path / "_config.yml").write_text(yaml.safe_dump(configuration), encoding="utf-8")
    toc = {"format": "jb-book", "root": "book/index", "chapters": [{"file": "book/second"}]}
    (tmp_path / "_toc.yml").write_text(yaml.safe_dump(toc), encoding="utf-8")
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "ours.py").write_text("ANSWER = 41\n", encoding="utf-8")
    write_page(tmp_path, "index", "open('../runs', 'a').write('index ');", "1 + 1")
    write_page(tmp_path, "second", "open('../runs', 'a').write('second ');", "print(open('../lib/ours.py').read())")
    return tmp_path


def runs(folder: Path) -> list[str]:
    """The pages that were executed so far."""
    return (folder / "runs").read_text(encoding="utf-8").split()


@pytest.mark.parametrize(
    ("cell", "reason"),
    [
        ("x = 1\nraise RuntimeError('broken on purpose')", "RuntimeError: broken on purpose"),
        ("x = 1\nimport time\ntime.sleep(60)", "timed out while it was being executed, after 2 seconds"),
    ],
)
def test_a_failing_or_endless_cell_fails_the_build_by_name_every_time(
    small_book: Path, build_book: Build, cell: str, reason: str
) -> None:
    write_page(small_book, "second", "'this cell is in order'", cell, "'this one is never reached'")
    for _ in range(2):
        result = build_book(small_book)
        assert result.returncode != 0
        message = next(line for line in result.stdout.splitlines() if "Code cell" in line)
        assert "book/second.md" in message.replace("\\", "/")
        assert "Code cell 2, which begins `x = 1`, failed." in message
        assert reason in message


def test_output_on_stderr_fails_the_build(small_book: Path, build_book: Build) -> None:
    write_page(small_book, "second", "import warnings", "warnings.warn('take care')")
    result = build_book(small_book)
    assert result.returncode != 0
    assert "stderr was found in the cell outputs of cell 3" in result.stdout


def test_pages_are_executed_again_exactly_when_the_library_has_changed(small_book: Path, build_book: Build) -> None:
    for _ in range(2):
        result = build_book(small_book)
        assert result.returncode == 0, result.stdout
    assert sorted(runs(small_book)) == ["index", "second"]
    assert "index.html" in result.stdout  # where the book is

    (small_book / "lib" / "ours.py").write_text("ANSWER = 42\n", encoding="utf-8")
    assert build_book(small_book).returncode == 0
    assert sorted(runs(small_book)) == ["index", "index", "second", "second"]
    assert "ANSWER = 42" in (small_book / "_build" / "html" / "book" / "second.html").read_text(encoding="utf-8")


def test_a_changed_page_alone_is_executed_again(small_book: Path, build_book: Build) -> None:
    assert build_book(small_book).returncode == 0
    write_page(small_book, "second", "open('../runs', 'a').write('second ');", "'changed'")
    assert build_book(small_book).returncode == 0
    assert sorted(runs(small_book)) == ["index", "second", "second"]


def test_what_no_longer_exists_leaves_the_book(small_book: Path, build_book: Build) -> None:
    assert build_book(small_book).returncode == 0
    toc = {"format": "jb-book", "root": "book/index"}
    (small_book / "_toc.yml").write_text(yaml.safe_dump(toc), encoding="utf-8")
    assert build_book(small_book).returncode == 0
    assert not (small_book / "_build" / "html" / "book" / "second.html").exists()
    assert runs(small_book).count("index") == 1
