"""No page, search index or download of the built book gives a solution away; the figures for slides are all there."""

from __future__ import annotations

import html
import re
import zipfile
from typing import TYPE_CHECKING

import chapters
import homework
import problem_source
import pytest

if TYPE_CHECKING:
    from pathlib import Path

TEXTS = {".html", ".js", ".json", ".md", ".txt", ".ipynb", ".inv", ".xml", ".csv"}


def hidden_lines(source: Path) -> set[str]:
    """Lines of the source, of code and of model answers, that neither the student's notebook nor a chapter has."""
    problems = problem_source.read(source)
    student = homework.student_notebook(source)
    public = {line.strip() for cell in student.cells for line in cell.source.splitlines()}
    public |= {line.strip() for test in student.metadata.otter.tests.values() for line in test.splitlines()}
    public |= {line.strip() for page in chapters.pages() for line in page.read_text(encoding="utf-8").splitlines()}
    secret = [
        cell.source
        for cell in problems.cells
        if cell.metadata.get("solution") or (cell.cell_type == "code" and not cell.source.startswith("def test_"))
    ]
    lines = {line.strip() for text in secret for line in text.splitlines()}
    return {line for line in lines if len(line) > 20 and not line.startswith(("from ", "import "))} - public


@pytest.mark.parametrize("source", homework.sources(), ids=lambda path: path.stem)
def test_no_file_of_the_built_book_has_a_solution_or_a_hidden_test(built: Path, source: Path) -> None:
    secrets = hidden_lines(source)
    assert secrets
    names = set(re.findall(r"def (hidden_\w+)\(", source.read_text(encoding="utf-8")))
    for path in built.rglob("*"):
        if path.suffix in TEXTS:
            raw = path.read_text(encoding="utf-8", errors="replace")
            text = raw + html.unescape(re.sub(r"<[^>]*>", "", raw)) if path.suffix == ".html" else raw
            assert not [line for line in secrets if line in text], path
            assert not [name for name in names if name in text], path


@pytest.mark.parametrize("source", homework.sources(), ids=lambda path: path.stem)
def test_the_page_of_a_set_offers_the_notebook(built: Path, source: Path) -> None:
    page = built / "book" / "homework" / f"{source.stem}.html"
    (link,) = re.findall(rf'href="([^"]*{source.stem}\.ipynb)"', page.read_text(encoding="utf-8"))
    offered = (page.parent / link).read_text(encoding="utf-8")
    assert offered == homework.problems_for_notebook(homework.student_notebook(source))


def test_every_figure_is_there_for_slides(built: Path) -> None:
    with zipfile.ZipFile(built / "slides.zip") as archive:
        files = set(archive.namelist())
        for page in chapters.notebooks():
            name = page.relative_to(chapters.ROOT / "book").with_suffix("").as_posix()
            figures = re.findall(r"^    name: fig-([\w-]+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
            for figure in figures:
                assert {f"{name}/{figure}.png", f"{name}/{figure}.svg"} <= files
                assert archive.read(f"{name}/{figure}.png").startswith(b"\x89PNG")
                assert b"<svg" in archive.read(f"{name}/{figure}.svg")
            if figures:
                captions = archive.read(f"{name}/captions.md").decode()
                assert "CC BY 4.0" in captions
                assert all(figure in captions for figure in figures)
