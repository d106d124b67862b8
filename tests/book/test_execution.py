"""A build fails where a cell fails, says which, and goes on failing; what is executed follows the library."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from bs4 import BeautifulSoup

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


def write_toc(folder: Path, *pages: str) -> None:
    """Write a table of contents of these pages; the first is the root."""
    root, *others = (f"book/{page}" for page in pages)
    toc: dict[str, Any] = {"format": "jb-book", "root": root}
    if others:
        toc["chapters"] = [{"file": page} for page in others]
    (folder / "_toc.yml").write_text(yaml.safe_dump(toc), encoding="utf-8")


@pytest.fixture
def small_book(tmp_path: Path) -> Path:
    """A folder for a book with our configuration and extensions, and a time limit of two seconds a cell."""
    for folder in ("_extensions", "_static", "_templates"):
        shutil.copytree(ROOT / "book" / folder, tmp_path / "book" / folder)
    (tmp_path / "book" / "appendix").mkdir()
    (tmp_path / "book" / "appendix" / "references.bib").touch()
    configuration = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))
    configuration["execute"]["timeout"] = 2
    (tmp_path / "_config.yml").write_text(yaml.safe_dump(configuration), encoding="utf-8")
    return tmp_path


def test_a_failing_cell_fails_the_build_by_name_every_time(small_book: Path, build_book: Build) -> None:
    write_toc(small_book, "index", "broken", "dying", "endless", "noisy")
    write_page(small_book, "index", "1 + 1")
    write_page(small_book, "broken", "'in order'", "x = 1\nraise RuntimeError('on purpose')", "'never reached'")
    write_page(small_book, "dying", "'in order'", "z = 3\nimport os\nos._exit(3)", "'never reached'")
    write_page(small_book, "endless", "y = 2\nimport time\ntime.sleep(60)")
    write_page(small_book, "noisy", "import warnings", "warnings.warn('take care')")
    for _ in range(2):
        result = build_book(small_book)
        assert result.returncode != 0
        broken, dying, endless = (line for line in result.stdout.splitlines() if "Code cell" in line)
        assert "broken.md" in broken
        assert "Code cell 2, which begins `x = 1`, failed. RuntimeError: on purpose" in broken
        assert "dying.md" in dying
        assert "Code cell 2, which begins `z = 3`, failed. The kernel died." in dying
        assert "endless.md" in endless
        assert "Code cell 1, which begins `y = 2`, failed." in endless
        assert "timed out while it was being executed, after 2 seconds" in endless
        (noisy,) = (line for line in result.stdout.splitlines() if "stderr was found" in line)
        assert "noisy.md" in noisy
        assert "cell 3" in noisy  # the heading is a cell, too


@pytest.mark.parametrize(
    ("traceback", "reason"),
    [
        (" \n", "It left no message."),
        ("Traceback\nthe first try timed out\n\x1b[31mValueError\x1b[0m: no answer\n", "ValueError: no answer"),
        (
            "nbclient.exceptions.CellTimeoutError: A cell timed out, after 2 seconds.\nMore.",
            "A cell timed out, after 2 s",
        ),
    ],
)
def test_a_failure_is_described_by_its_own_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, traceback: str, reason: str
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "book" / "_extensions"))
    import book_execution

    (tmp_path / "book").mkdir()
    write_page(tmp_path, "page", "1 + 1")
    found = book_execution.describe_failure(tmp_path / "book" / "page.md", traceback)
    assert found.startswith(f"Code cell ? failed. {reason}")


def test_pages_are_executed_exactly_when_they_or_the_library_have_changed(small_book: Path, build_book: Build) -> None:
    log, library = small_book / "runs", small_book / "lib" / "ours.py"
    library.parent.mkdir()
    library.write_text("ANSWER = 41\n", encoding="utf-8")
    write_toc(small_book, "index", "second")
    write_page(small_book, "index", "open('../runs', 'a').write('index ');")
    note = "open('../runs', 'a').write('second ');"
    write_page(small_book, "second", note, "print(open('../lib/ours.py').read())")

    def executed() -> list[str]:
        log.write_text("", encoding="utf-8")
        result = build_book(small_book)
        assert result.returncode == 0, result.stdout
        assert str(Path("_build", "html", "index.html")) in result.stdout  # where the book is
        return sorted(log.read_text(encoding="utf-8").split())

    assert executed() == ["index", "second"]
    assert executed() == []

    write_page(
        small_book, "second", "open('../runs', 'a').write('second ');", "print(open('../lib/ours.py').read() * 2)"
    )
    assert executed() == ["second"]

    library.write_text("ANSWER = 42\n", encoding="utf-8")
    assert executed() == ["index", "second"]
    page = small_book / "_build" / "html" / "book" / "second.html"
    assert BeautifulSoup(page.read_text(encoding="utf-8"), "html.parser").get_text().count("ANSWER = 42") == 2

    write_toc(small_book, "index")
    assert executed() == []
    assert not page.exists()
