"""Print the built book as one PDF: _build/phases-of-attention.pdf.

All pages become one, in the order of the table of contents, which the system's Chromium prints. What is folded on the
web is open here, with two exceptions: the code of figures is left out, and the solutions of exercises stand together at
the end. An interactive figure shows the frame that a reader sees first, and says where its sliders are.
"""

from __future__ import annotations

import json
import re
import sys
from html import escape
from io import BytesIO
from pathlib import Path
from posixpath import normpath
from typing import Any, NamedTuple
from urllib.parse import unquote, urljoin, urlsplit

import address
import browser
import pikepdf
import yaml
from bs4 import BeautifulSoup, Tag
from lock import project
from matplotlib import get_data_path
from notebooks import git
from playwright.sync_api import sync_playwright

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "_build"
PDF = BUILD / "phases-of-attention.pdf"
PAPER: dict[str, Any] = {"prefer_css_page_size": True, "print_background": True}
WIDTH, HEIGHT = 635, 945  # CSS pixels between the margins of the paper, which pdf.css sets

DROPPED = (
    "a.headerlink, details.hide, details.ap-cite, .only-dark, .ap-controls, .ap-spoken, .ap-links, script, template, "
    " button, .sd-summary-state-marker, .toctree-wrapper"
)
# Family, file, weight, style. These fonts come with matplotlib and are the same on every machine.
FACES = [
    ("Book", "STIXGeneral", "normal", "normal"),
    ("Book", "STIXGeneralItalic", "normal", "italic"),
    ("Book", "STIXGeneralBol", "bold", "normal"),
    ("Book", "STIXGeneralBolIta", "bold", "italic"),
    ("Signs", "DejaVuSans", "normal", "normal"),
    ("Signs", "DejaVuSans-Bold", "bold", "normal"),
    ("Code", "DejaVuSansMono", "normal", "normal"),
    ("Code", "DejaVuSansMono-Bold", "bold", "normal"),
    ("Code", "DejaVuSansMono-Oblique", "normal", "italic"),
]
MATHJAX = {
    "options": {
        "processHtmlClass": "tex2jax_process|mathjax_process|math|output_area",
        "enableMenu": False,
        "menuOptions": {"settings": {"assistiveMml": False}},
    }
}

# Wait until formulas and fonts are there. Pictures are, once the page is loaded; those that are not are returned.
READY = """
    async () => {
        await MathJax.startup.promise;
        await document.fonts.ready;
        return [...document.images].filter(image => !image.naturalWidth).map(image => image.src);
    }
"""
# A formula or a table that is wider than the paper shrinks until it fits. What still does not is returned, and so is
# a figure that is higher.
FIT = """
    height => {
        for (const formula of document.querySelectorAll("mjx-container[display] > mjx-math")) {
            const number = formula.closest("div.math")?.querySelector(".eqno")?.offsetWidth ?? 0;
            const room = formula.parentElement.clientWidth - 2 * number;
            if (formula.scrollWidth > room)
                formula.style.fontSize = `${Math.floor((98 * room) / formula.scrollWidth)}%`;
        }
        for (const table of document.querySelectorAll("table")) {
            const room = table.parentElement.clientWidth;
            for (let size = 95; table.offsetWidth > room && size >= 60; size -= 5) table.style.fontSize = `${size}%`;
        }
        const edge = document.querySelector("main").getBoundingClientRect().right + 1;
        const outside = element => element.getBoundingClientRect().right > edge;
        const tall = element => element.tagName === "FIGURE" && element.offsetHeight > height;
        return [...document.querySelectorAll("main *:not(svg *)")]
            .filter(element => outside(element) || tall(element))
            .map(element => `${element.closest("section.page")?.id}: ${element.textContent.trim().slice(0, 60)}`);
    }
"""
HEADINGS = """
    () => [...document.querySelectorAll("h1, h2, h3, h4, h5, h6")].map(heading => heading.innerText.trim())
"""
# Write the numbers of pages where the text refers to them.
NUMBER = """
    numbers => {
        for (const place of document.querySelectorAll("[data-page-of]"))
            place.textContent = numbers[place.dataset.pageOf];
    }
"""


class Part(NamedTuple):
    """A part of the book: its title, and its pages by their paths without ending."""

    title: str
    pages: list[str]


def parts() -> list[Part]:
    """The parts of the book. The first has no title: it is the home page alone."""
    toc: dict[str, Any] = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))
    found, numbers = [Part("", [toc["root"]])], iter(["I", "II"])
    for part in toc["parts"]:
        number = f"Part {next(numbers)}: " if part.get("numbered") else ""
        found.append(Part(number + part["caption"], [entry["file"] for entry in part["chapters"]]))
    return found


def new(markup: str) -> Tag:
    """The element that the markup describes."""
    element = BeautifulSoup(markup, "html.parser").find()
    assert isinstance(element, Tag)
    return element.extract()


def anchor(page: str, name: str = "") -> str:
    """What an id of a page is called on paper, where all pages are one."""
    return ".".join(filter(None, [page.removeprefix("book/").replace("/", "."), name]))


class Paper:
    """The pages of a built book, made one."""

    def __init__(self, html: Path, base: str) -> None:
        """`html` has the built pages, `base` is their address on the web."""
        self.html, self.base = html, base
        self.parts = parts()
        self.pages = {page for part in self.parts for page in part.pages}
        self.titles: dict[str, str] = {}
        self.solutions: dict[str, list[Tag]] = {}

    def page(self, page: str) -> Tag:
        """A page for paper. Its solutions of exercises go to `solutions`."""
        soup = BeautifulSoup((self.html / f"{page}.html").read_text(encoding="utf-8"), "html.parser")
        article = soup.select_one("article")
        assert article is not None
        for element in article.select(DROPPED):
            element.decompose()
        for proof in article.select("details"):
            proof.name, proof["class"] = "div", "admonition"
            for title in proof.select(":scope > summary"):
                title.name, title["class"] = "p", "admonition-title"
        for figure in article.select(".ap-explore"):
            self._say_where_sliders_are(figure, page)
        self._readdress(article, page)
        self.titles[page] = article.h1.decode_contents() if article.h1 else page
        self.solutions[page] = [self._set_aside(solution) for solution in article.select("div.solution")]
        article.name, article["class"], article["id"] = "section", "page", anchor(page)
        for heading in article.find_all(re.compile(r"^h[1-5]$")):
            heading.name = f"h{int(heading.name[1]) + 1}"  # the title of a part of the book is above it
        return article

    def _say_where_sliders_are(self, figure: Tag, page: str) -> None:
        still, numbered = figure.select_one(".ap-still"), figure.find_parent("figure")
        assert still is not None
        assert still.span is not None
        assert numbered is not None
        url = f"{self.base}/{page}.html#{numbered['id']}"
        link = f'<a href="{url}">{escape(url.removeprefix("https://"))}</a>'
        still.replace_with(
            new(f'<p class="ap-still">One frame, at {still.span.decode_contents()}. The sliders are at {link}.</p>')
        )

    def _readdress(self, article: Tag, page: str) -> None:
        """Make ids those of paper, links lead to them or to the web, and pictures come from their files."""
        here = f"{page}.html"
        for element in article.select("[id]:not(svg *)"):
            element["id"] = anchor(page, str(element["id"]))
        for element in article.find_all(src=True):
            element["src"] = (self.html / normpath(urljoin(here, unquote(str(element["src"]))))).as_uri()
            del element["loading"]
        for element in article.find_all(href=True):
            link = urlsplit(str(element["href"]))
            if link.scheme:
                continue
            target = normpath(urljoin(here, link.path)) if link.path else here
            name = target.removesuffix(".html")
            inside = name in self.pages
            element["href"] = f"#{anchor(name, link.fragment)}" if inside else f"{self.base}/{target}"

    def _set_aside(self, solution: Tag) -> Tag:
        """Take a solution off its page, and leave there the number of the page where it will be."""
        number = f'<a href="#{solution["id"]}"><b data-page-of="{solution["id"]}">000</b></a>'
        solution.replace_with(new(f'<p class="elsewhere">Solution on page {number}.</p>'))
        return solution

    def body(self) -> str:
        """All pages, part by part, then the solutions; before them a table of contents."""
        written, lines = [], []
        for part in self.parts:
            if part.title:
                name = anchor("part", part.title.replace(" ", "-"))
                written.append(f'<section class="part" id="{name}"><h1>{escape(part.title)}</h1></section>')
                lines.append(_line("part", name, escape(part.title)))
            for page in part.pages:
                written.append(str(self.page(page)))
                lines.append(_line("chapter", anchor(page), self.titles[page]))
        name = anchor("solutions")
        written.append(f'<section class="page" id="{name}"><h1>Solutions</h1>')
        for page, solutions in self.solutions.items():
            if solutions:
                written += [f"<h2>{self.titles[page]}</h2>", *map(str, solutions)]
        written.append("</section>")
        lines.append(_line("part", name, "Solutions"))
        table = f'<nav class="page"><p class="contents">Contents</p>{"".join(lines)}</nav>'
        return table + "".join(written)


def _line(kind: str, name: str, title: str) -> str:
    return f'<a class="{kind}" href="#{name}"><span>{title}</span><b data-page-of="{name}">000</b></a>'


def title_page(repository: address.Address, commit: str, date: str) -> str:
    """What this is, which version, where it is on the web, how it may be used."""
    about = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    title, _, subtitle = about["title"].partition(": ")
    cover = (ROOT / "book" / "_static" / "cover.svg").as_uri()
    return f"""<section class="title">
        <p class="name">{escape(title)}</p>
        <p class="subtitle">{escape(subtitle)}</p>
        <img src="{cover}" alt="Left: a map of a risk with four valleys. Right: losses of two minima that cross.">
        <p>{escape(about["authors"][0]["name"])}</p>
        <p>Version {project()["version"]}, commit {commit[:9]} of {date}</p>
        <div>
            <p>The book on the web, where the figures have sliders and the code can be run:
            <a href="{repository.pages}">{escape(repository.pages)}</a></p>
            <p>This print has all its pages. Proofs are open; solutions of exercises are at the end; the code that draws
            a figure is left out, and is on the web.</p>
            <p>Texts and figures: CC BY 4.0. Code: BSD-3-Clause.</p>
        </div>
    </section>"""


def document(html: Path, repository: address.Address, commit: str, date: str) -> str:
    """The whole book as one page of HTML, which takes all that it needs from this disk."""
    fonts = Path(get_data_path()) / "fonts" / "ttf"
    faces = "".join(
        f'@font-face {{font-family: "{family}"; font-weight: {weight}; font-style: {style}; '
        f'src: url("{(fonts / f"{file}.ttf").as_uri()}")}}\n'
        for family, file, weight, style in FACES
    )
    styles = [(html / "_static" / "pygments.css").as_uri(), (ROOT / "tools" / "pdf.css").as_uri()]
    links = "".join(f'<link rel="stylesheet" href="{style}">' for style in styles)
    mathjax = (html / "_static" / "mathjax" / "tex-mml-chtml.js").as_uri()
    return f"""<!DOCTYPE html>
<html lang="en" data-theme="light">
<head><meta charset="utf-8"><title>Phases of Attention</title>
<style>{faces}</style>{links}
<script>window.MathJax = {json.dumps(MATHJAX)}</script><script defer src="{mathjax}"></script></head>
<body><main>{title_page(repository, commit, date)}{Paper(html, repository.pages).body()}</main></body>
</html>"""


def page_numbers(pdf: pikepdf.Pdf) -> dict[str, int]:
    """The page of each place that a link inside the PDF leads to; the first page is 1."""
    numbers = {page.obj.objgen: page.index + 1 for page in pdf.pages}
    return {name.removeprefix("/"): numbers[place[0].objgen] for name, place in pdf.Root.Dests.items()}


def print_page(program: str, page: Path) -> pikepdf.Pdf:
    """Print a page of HTML by a browser. Twice: only the first print tells the page numbers, which the second has."""
    with sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=program, args=browser.ARGUMENTS)
        tab = chromium.new_page(viewport={"width": WIDTH, "height": 1000})
        tab.set_default_timeout(300_000)  # milliseconds; formulas of the whole book are set at once
        tab.emulate_media(media="print")
        tab.goto(page.as_uri())
        if missing := tab.evaluate(READY):
            raise ValueError(f"pictures must be there; missing are {', '.join(missing)}")
        if large := tab.evaluate(FIT, HEIGHT):
            raise ValueError(f"a page must fit the paper; too large are {'; '.join(large)}")
        numbers = page_numbers(pikepdf.open(BytesIO(tab.pdf(**PAPER))))
        tab.evaluate(NUMBER, numbers)
        printed = pikepdf.open(BytesIO(tab.pdf(**PAPER, tagged=True, outline=True)))
        headings = tab.evaluate(HEADINGS)
        chromium.close()
    if page_numbers(printed) != numbers:
        raise ValueError("the pages must stay where they are when their numbers are filled in; they did not")
    entitle(printed, headings)
    return printed


def entitle(pdf: pikepdf.Pdf, headings: list[str]) -> None:
    """Write the headings into the outline, whose entries stand in their order. Chromium has each twice, in part."""
    with pdf.open_outline() as outline:
        waiting = list(reversed(outline.root))
        for heading in headings:
            entry = waiting.pop()
            entry.title, entry.is_closed = heading, True
            waiting += reversed(entry.children)
        assert not waiting


def main() -> None:
    """Write the PDF."""
    html = BUILD / "html"
    if not html.is_dir():
        sys.exit("The book must be built first: make book")
    program = browser.find()
    if program is None:
        sys.exit(f"A browser prints the book, and none of {', '.join(browser.PROGRAMS)} is installed.")
    commit, date = git("log", "-1", "--format=%H %cs").split()
    page = BUILD / "pdf.html"
    page.write_text(document(html, address.read(ROOT)[0], commit, date), encoding="utf-8")
    with print_page(program, page) as pdf:
        about = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
        with pdf.open_metadata() as metadata:
            metadata["dc:title"], metadata["dc:creator"] = about["title"], [about["authors"][0]["name"]]
        pdf.save(PDF, object_stream_mode=pikepdf.ObjectStreamMode.generate, linearize=True)
        print(f"{PDF}: {len(pdf.pages)} pages, {PDF.stat().st_size / 1e6:.1f} MB")
    page.unlink()


if __name__ == "__main__":
    main()
