"""Facts about the book as a PDF: all of it is there, nothing raw, nothing missing, and links lead inside."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import address
import browser
import numpy as np
import pdf
import pikepdf
import pypdfium2
import pytest
from bs4 import BeautifulSoup
from filelock import FileLock

if TYPE_CHECKING:
    from collections.abc import Iterator

HTML = pdf.BUILD / "html"


class Printed(NamedTuple):
    """The PDF, by two libraries; the text of each page; the pages of the web that it was printed from."""

    pdf: pikepdf.Pdf
    drawn: pypdfium2.PdfDocument
    texts: list[str]
    pages: dict[str, BeautifulSoup]


@pytest.fixture(scope="module")
def printed() -> Iterator[Printed]:
    """The book as a PDF: that of `make pdf` where it is newer than the pages, else a new one."""
    if browser.find() is None:
        pytest.skip(f"the book is printed by a browser, and none of {', '.join(browser.PROGRAMS)} is installed")
    if not (HTML / "book" / "index.html").is_file():
        pytest.skip("the book has not been built: make book")
    with FileLock(pdf.BUILD / ".lock"):  # a build that is going on has it
        pass
    paths = {page: HTML / f"{page}.html" for part in pdf.parts() for page in part.pages}
    tool = Path(pdf.__file__)
    inputs = [*paths.values(), tool, tool.with_suffix(".css")]
    if not pdf.PDF.exists() or pdf.PDF.stat().st_mtime < max(path.stat().st_mtime for path in inputs):
        pdf.main()
    pages = {page: BeautifulSoup(path.read_bytes(), "html.parser") for page, path in paths.items()}
    with pikepdf.open(pdf.PDF) as opened, pypdfium2.PdfDocument(pdf.PDF) as drawn:
        texts = [re.sub(r"\s+", " ", page.get_textpage().get_text_bounded()) for page in drawn]
        yield Printed(opened, drawn, texts, pages)


def text_of(page: BeautifulSoup, selector: str) -> list[str]:
    """The texts of a web page's elements."""
    return [re.sub(r"[\s#]+", " ", element.get_text()).strip() for element in page.select(f"article {selector}")]


def test_the_outline_has_every_page_in_its_part_and_every_section(printed: Printed) -> None:
    with printed.pdf.open_outline() as outline:
        entries = {entry.title: entry.children for entry in outline.root}
    wanted = {part.title: part.pages for part in pdf.parts() if part.title}
    assert list(entries) == ["Phases of Attention", *wanted, "Solutions"]
    for part, pages in wanted.items():
        titles = [text_of(printed.pages[page], "h1")[0] for page in pages]
        assert [entry.title for entry in entries[part]] == titles
        for page, entry in zip(pages, entries[part], strict=True):
            assert [section.title for section in entry.children] == text_of(printed.pages[page], "h2")


def test_the_table_of_contents_names_the_pages_where_the_chapters_begin(printed: Printed) -> None:
    for page in printed.pages.values():
        (title,) = text_of(page, "h1")
        found = re.search(rf"{re.escape(title)} (\d+)", printed.texts[1])
        assert found, title
        assert printed.texts[int(found[1]) - 1].startswith(
            f"{found[1]} {title}"
        )  # the page's own number is its first text


def test_every_figure_is_there_with_its_number_and_its_alternative_text(printed: Printed) -> None:
    whole = " ".join(printed.texts)
    spoken = Counter(
        str(element.get("/Alt", ""))
        for element in printed.pdf.objects
        if isinstance(element, pikepdf.Dictionary) and element.get("/S") == "/Figure"
    )
    figures = 0
    for page in printed.pages.values():
        for number in text_of(page, "figcaption .caption-number"):
            figures += 1
            assert re.search(rf"\b{re.escape(number)}\b", whole), number
        for image in page.select("article .ap-figure > img.only-light"):
            assert spoken[str(image["alt"])] == 1
    assert figures > 50


def test_an_interactive_figure_says_where_its_sliders_are(printed: Printed) -> None:
    whole = re.sub(r"\W", "", " ".join(printed.texts))  # addresses break at hyphens
    base = address.read(pdf.ROOT)[0].pages.removeprefix("https://")
    names = [
        (name, figure) for name, page in printed.pages.items() for figure in page.select("figure:has(.ap-explore)")
    ]
    assert len(names) > 10
    for name, figure in names:
        assert re.sub(r"\W", "", f"The sliders are at {base}/{name}.html#{figure['id']}.") in whole
    assert "JavaScripton" not in whole


def test_every_solution_is_at_the_end_and_its_exercise_names_the_page(printed: Printed) -> None:
    ends = pdf.page_numbers(printed.pdf)["solutions"] - 1
    before, after = " ".join(printed.texts[:ends]), " ".join(printed.texts[ends:])
    solutions = [title for page in printed.pages.values() for title in text_of(page, ".solution > .admonition-title")]
    assert len(solutions) > 40
    for title in solutions:
        exercise = re.search(r"Exercise [\d.]+", title)
        assert exercise
        assert f"Solution to {exercise[0]} " in after
        assert f"Solution to {exercise[0]} " not in before
    numbers = [int(number) for number in re.findall(r"Solution on page (\d+)\.", before)]
    assert len(numbers) == len(solutions)
    assert numbers == sorted(numbers)
    assert all("Solution to Exercise" in printed.texts[number - 1] for number in numbers)


@pytest.mark.parametrize(
    "raw",
    ["\x1b", "\N{REPLACEMENT CHARACTER}", "$$", r"\frac", r"\begin{", r"\(", "{cite}", "{numref}", "Math input error"],
)
def test_nothing_is_raw(printed: Printed, raw: str) -> None:
    assert [number for number, text in enumerate(printed.texts, 1) if raw in text] == []


def streams(pdf: pikepdf.Pdf) -> Iterator[pikepdf.Object]:
    """All that draws: the pages, and the forms that they share."""
    yield from (page.obj for page in pdf.pages)
    yield from (
        thing for thing in pdf.objects if isinstance(thing, pikepdf.Stream) and thing.get("/Subtype") == "/Form"
    )


def test_each_glyph_is_there_from_a_font_that_is_embedded_and_the_same_on_every_machine(printed: Printed) -> None:
    names = set()
    for stream in streams(printed.pdf):
        fonts = dict(stream.get("/Resources", pikepdf.Dictionary()).get("/Font", pikepdf.Dictionary()).items())
        for font in fonts.values():
            if font.Subtype == "/Type3":  # MathJax's, as drawings
                assert font.CharProcs
            else:
                names.add(str(font.BaseFont).partition("+")[2])
                assert "/FontFile2" in font.DescendantFonts[0].FontDescriptor
        glyphs = b""
        for step in pikepdf.parse_content_stream(stream, "Tf Tj TJ") if fonts else []:
            if str(step.operator) == "Tf":
                wide = fonts[str(step.operands[0])].Subtype == "/Type0"
            elif wide:
                parts = step.operands if str(step.operator) == "Tj" else step.operands[0]
                glyphs += b"".join(bytes(part) for part in parts if isinstance(part, pikepdf.String))
        assert np.all(np.frombuffer(glyphs, dtype=np.uint16)), "a glyph is missing: number 0 stands for it"
    assert {name.partition("-")[0] for name in names} == {"STIXGeneral", "DejaVuSans", "DejaVuSansMono"}


def test_links_lead_inside_or_to_the_web(printed: Printed) -> None:
    places = set(printed.pdf.Root.Dests)
    inside = 0
    for page in printed.pdf.pages:
        for link in page.get("/Annots", []):
            if "/Dest" in link:
                assert str(link.Dest) in places
                inside += 1
            else:
                assert str(link.A.URI).startswith("https://")
    assert inside > 1000


def test_the_margins_are_white(printed: Printed) -> None:
    for number, page in enumerate(printed.drawn, 1):
        pixels = page.render(scale=0.25).to_numpy()
        margin = int(0.085 * pixels.shape[1])  # 18 of 210 mm
        assert np.all(pixels[:, :margin] == 255), number
        assert np.all(pixels[:, -margin:] == 255), number
