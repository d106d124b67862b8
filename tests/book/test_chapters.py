"""What every chapter keeps, in its source, in its executed notebook and on its built page."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import chapters
import nbformat
import pytest
from bs4 import BeautifulSoup, Tag
from jupyter_cache import get_cache

ROOT = chapters.ROOT
PAGES = [page.relative_to(ROOT).with_suffix("").as_posix() for page in chapters.pages()]
NOTEBOOKS = [page.relative_to(ROOT).with_suffix("").as_posix() for page in chapters.notebooks()]
OTHERS = re.compile("book/positional-semantic/our-numbers|book/homework/.*")  # no question, exercise or slider
CHAPTERS = [page for page in PAGES if page.count("/") == 2 and not OTHERS.fullmatch(page)]  # book/<part>/<chapter>
SECONDS, MEMORY = 60.0, 1.5 * 2**30  # what a chapter may take on two cores; we test twice that time

every_page = pytest.mark.parametrize("page", PAGES)
every_notebook = pytest.mark.parametrize("page", NOTEBOOKS)
every_chapter = pytest.mark.parametrize("page", CHAPTERS)


@cache
def soup(path: Path) -> BeautifulSoup:
    """A built page, parsed."""
    return BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser")


def article(built: Path, page: str) -> Tag:
    """The page without the theme's navigation."""
    found = soup(built / f"{page}.html").select_one("article")
    assert found is not None
    return found


def executed(page: str) -> Any:
    """The notebook of a page, with its outputs: MyST-NB's own copy has none where the page was read from the cache."""
    path = ROOT / "_build" / "jupyter_execute" / f"{page}.ipynb"
    notebook = nbformat.reads(path.read_text(encoding="utf-8"), as_version=4)  # type: ignore[no-untyped-call]
    _, merged = get_cache(ROOT / "_build" / ".jupyter_cache").merge_match_into_notebook(notebook)
    return merged


def texts_of(output: Any) -> list[str]:
    """What a reader can read in a cell's output."""
    if output.output_type == "stream":
        return [output.text]
    if output.output_type == "error":
        return [output.ename, output.evalue]
    data = dict(output.data)
    plain = [BeautifulSoup(data.pop("text/html"), "html.parser").get_text()] if "text/html" in data else []
    return plain + [value for kind, value in data.items() if kind.startswith("text/")]


@pytest.mark.usefixtures("built")
@every_notebook
def test_no_output_is_a_warning(page: str) -> None:
    outputs = [output for cell in executed(page).cells for output in cell.get("outputs", [])]
    assert not [output.text for output in outputs if output.get("name") == "stderr"]
    assert not [text for output in outputs for text in texts_of(output) if "Warning" in text]


@pytest.mark.usefixtures("built")
@every_notebook
def test_every_code_cell_ran(page: str) -> None:
    cells = [cell for cell in executed(page).cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))


@every_page
def test_images_say_what_is_to_be_seen(built: Path, page: str) -> None:
    for image in article(built, page).select("img"):
        alt = str(image.get("alt", ""))
        assert len(alt.split()) >= 5, f"{image.get('src')} has the alternative text {alt!r}"
        assert not re.search(r"\w\.(png|svg|jpe?g|webp|gif)\b", alt), alt


@every_page
def test_images_of_a_computation_are_in_figures_with_captions(built: Path, page: str) -> None:
    for image in article(built, page).select(".cell_output img"):
        assert image.find_parent("figure") is not None, image.get("alt")
    for figure in article(built, page).select("figure"):
        caption = figure.select_one("figcaption .caption-text")
        assert caption is not None
        assert len(caption.get_text().split()) >= 5, caption.get_text()


@every_chapter
def test_figures_of_a_chapter_can_be_downloaded(built: Path, page: str) -> None:
    figures = article(built, page).select("figure:has(.cell_output), .cell_output:has(img)")
    assert figures
    for figure in figures:
        endings = {Path(str(link["href"])).suffix for link in figure.select("a[download]")}
        assert {".svg", ".csv"} <= endings, figure.get_text()


@every_chapter
def test_a_chapter_has_an_interactive_figure_with_named_sliders(built: Path, page: str) -> None:
    sliders = article(built, page).select("input[type=range]")
    assert sliders
    for slider in sliders:
        label = article(built, page).select_one(f'label[for="{slider["id"]}"]')
        assert label is not None
        assert label.get_text().strip()


def references(built: Path, page: str) -> list[str]:
    """All addresses on a page: links, images (those of frames not shown yet too), styles and scripts."""
    path = built / f"{page}.html"
    elements = soup(path).select("[href], [src]")
    return [str(element.get("href") or element.get("src")) for element in elements]


@every_page
def test_links_and_anchors_of_the_book_resolve(built: Path, page: str) -> None:
    broken = []
    for reference in references(built, page):
        parts = urlsplit(reference)
        if parts.scheme or parts.netloc or reference == "#":
            continue
        here = built / f"{page}.html"
        target = (here.parent / unquote(parts.path)).resolve() if parts.path else here
        anchored = parts.fragment and target.suffix == ".html"
        if not target.is_file() or (anchored and soup(target).find(id=unquote(parts.fragment)) is None):
            broken.append(reference)
    assert not broken


@every_page
def test_the_list_of_references_has_the_labels_of_the_citations(built: Path, page: str) -> None:
    for citation in article(built, page).select(".bibtex-citation"):
        for link in citation.select("a"):
            entry = soup(built / "book" / "references.html").find(id=urlsplit(str(link["href"])).fragment)
            assert isinstance(entry, Tag)
            label = entry.select_one(".label")
            assert label is not None
            names, _, year = label.get_text().strip("[]").rpartition(", ")
            assert link.get_text().replace("\xa0", " ") in (year, f"{names}, {year}")
            assert names in citation.get_text().replace("\xa0", " ")


def test_the_title_of_the_home_page_names_the_book_once(built: Path) -> None:
    title = soup(built / "book" / "index.html").title
    assert title is not None
    assert title.get_text().count("Phases of Attention") == 1


@every_page
def test_a_page_loads_nothing_from_elsewhere(built: Path, page: str) -> None:
    for element in soup(built / f"{page}.html").select("script[src], link[rel=stylesheet], img[src], iframe"):
        address = str(element.get("src") or element.get("href"))
        assert not urlsplit(address).netloc, address


def exercises(source: str) -> list[str]:
    """Labels of the exercises in a chapter's source."""
    return re.findall(r"^`{3,}\{exercise(?:-start)?\}.*\n(?::(?!label).*\n)*:label: *(\S+)", source, re.MULTILINE)


def solutions(source: str) -> dict[str, str]:
    """The solutions in a chapter's source by the label of their exercise: options, text and code."""
    gated = r"^(`{3,})\{solution-start\} *(\S+)$(.*?)^`{3,}\{solution-end\}"
    return {label: body for _, label, body in re.findall(gated, source, re.MULTILINE | re.DOTALL)}


@every_chapter
def test_exercises_have_solutions_whose_claims_are_asserted(page: str) -> None:
    source = (ROOT / f"{page}.md").read_text(encoding="utf-8")
    labels, answers = exercises(source), solutions(source)
    assert source.count("{exercise") == len(labels)
    assert 2 <= len(labels) <= 4
    assert sorted(labels) == sorted(answers)
    for label, answer in answers.items():
        assert re.search(r"^:class: .*dropdown", answer, re.MULTILINE), f"{label} is not collapsed"
        code = "".join(re.findall(r"^`{3,}\{code-cell\}.*?\n(.*?)^`{3,}$", answer, re.MULTILINE | re.DOTALL))
        assert re.search(r"^\s*assert ", code, re.MULTILINE), f"{label} claims nothing that is checked"


@pytest.mark.usefixtures("built")
@every_notebook
def test_a_page_runs_within_twice_its_time(page: str) -> None:
    cache_of_outputs = get_cache(ROOT / "_build" / ".jupyter_cache")
    record = cache_of_outputs.match_cache_notebook(executed(page))
    assert record.data["execution_seconds"] <= 2 * SECONDS


def test_the_book_states_what_each_page_with_code_costs() -> None:
    assert [f"book/{page}" for page in chapters.saved()] == NOTEBOOKS


@pytest.mark.slow
@every_notebook
def test_a_page_needs_the_memory_and_the_time_that_the_book_states(page: str) -> None:
    _, seconds, memory = chapters.saved()[page.removeprefix("book/")]
    cost = chapters.measure(ROOT / f"{page}.md")
    assert cost.peak_memory <= MEMORY
    assert cost.peak_memory / 2**30 == pytest.approx(float(memory), rel=0.25, abs=0.1)
    assert 1 / 3 <= cost.processor_seconds / float(seconds) <= 3  # processors differ
