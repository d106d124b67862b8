"""What search engines and social media need of a page; lists of pages; terms that are explained; launch buttons."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit
from xml.etree import ElementTree

import pytest
from bs4 import BeautifulSoup, Tag
from built_pages import CHAPTERS, base, real_pages
from PIL import Image

if TYPE_CHECKING:
    from bs4.element import NavigableString

ROOT = Path(__file__).parents[2]
PAGES = real_pages()

every_page = pytest.mark.parametrize("page", PAGES)
every_chapter = pytest.mark.parametrize("page", CHAPTERS)


@cache
def soup(path: Path) -> BeautifulSoup:
    """A built page, parsed."""
    return BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser")


def metadata(html: BeautifulSoup) -> dict[str, list[str]]:
    """What the elements `meta` of a page say, by their names."""
    found: dict[str, list[str]] = {}
    for element in html.select("meta[content]"):
        found.setdefault(str(element.get("name") or element.get("property")), []).append(str(element["content"]))
    return found


@every_page
def test_a_page_has_a_title_a_description_and_a_card(built: Path, page: str) -> None:
    html = soup(built / f"{page}.html")
    said = metadata(html)
    heading = html.select_one("article h1")
    assert heading is not None
    name = re.sub(r"^\d+\. |#$", "", heading.get_text()).strip()
    wanted = "How attention learns" if page == PAGES[0] else name
    assert html.title is not None
    assert wanted in html.title.get_text()
    assert said["og:title"] == [wanted]
    assert said["description"] == said["og:description"]
    assert 40 <= len(said["description"][0]) <= 250
    assert said["description"][0][-1] in ".?…"
    assert said["og:url"] == [f"{base()}{page}.html"]
    assert said["og:image:alt"][0].strip()
    assert said["twitter:card"] == ["summary_large_image"]
    (card,) = said["og:image"]
    assert card.startswith(base())
    with Image.open(built / card.removeprefix(base())) as image:
        assert [str(side) for side in image.size] == said["og:image:width"] + said["og:image:height"] == ["1200", "630"]


def test_no_two_pages_have_the_same_title_or_description(built: Path) -> None:
    for name in ("og:title", "description"):
        values = [metadata(soup(built / f"{page}.html"))[name][0] for page in PAGES]
        assert len(set(values)) == len(values)


@every_page
def test_a_page_leads_to_the_previous_and_to_the_next_one(built: Path, page: str) -> None:
    position = PAGES.index(page)
    wanted = {"left-prev": PAGES[:position][-1:], "right-next": PAGES[position + 1 :][:1]}
    path = built / f"{page}.html"
    for kind, pages in wanted.items():
        links = [path.parent / unquote(str(link["href"])) for link in soup(path).select(f"a.{kind}")]
        assert [link.resolve() for link in links] == [built / f"{page}.html" for page in pages]


def test_the_sitemap_has_every_page_at_its_address(built: Path) -> None:
    places = ElementTree.parse(built / "sitemap.xml").getroot()
    assert sorted(str(place.text) for place in places.findall(".//{*}loc")) == sorted(
        f"{base()}{page}.html" for page in PAGES
    )
    assert f"Sitemap: {base()}sitemap.xml" in (built / "robots.txt").read_text(encoding="utf-8").splitlines()


def test_the_page_for_missing_ones_has_links_that_work_at_any_depth(built: Path) -> None:
    links = [str(link["href"]) for link in soup(built / "404.html").select("a")]
    assert len(links) >= 2
    for link in links:
        assert link.startswith(base())
        target = built / link.removeprefix(base())
        assert (target / "index.html" if target.is_dir() else target).is_file()


CLOSED = {
    "h1",
    "h2",
    "h3",
    "h4",
    "h5",
    "code",
    "pre",
    "strong",
    "figcaption",
    "summary",
    "cell",
    "math",
    "admonition-title",
}


def is_open(text: NavigableString) -> bool:
    """Whether a piece of text is running text, in which a term can be linked: no heading, link, formula or code."""
    marks = set()
    for element in text.parents:
        classes = element.get_attribute_list("class")
        if element.name == "a" and "ap-term" not in classes:
            return False
        marks |= {element.name, *classes}
    return "p" in marks and not marks & CLOSED


def is_used(term: str, text: str) -> bool:
    """Whether a text has a term, perhaps in the plural, or with a capital at the start of a sentence."""
    words = re.sub(r"\s+", " ", text)
    return any(
        re.search(rf"(?<![\w-]){re.escape(way)}s?(?![\w-])", words) for way in (term, term[0].upper() + term[1:])
    )


@every_chapter
def test_the_first_use_of_a_term_leads_to_its_place_in_the_glossary(built: Path, page: str) -> None:
    glossary = soup(built / "book" / "glossary.html")
    terms = {entry.get_text().removesuffix("#").strip(): str(entry["id"]) for entry in glossary.select("dt[id]")}
    assert len(terms) > 20
    article = soup(built / f"{page}.html").select_one("article")
    assert article is not None
    pieces = [text for text in article.find_all(string=True) if is_open(text)]
    wanted = {term: first for term in terms if (first := next((text for text in pieces if is_used(term, text)), None))}
    assert wanted
    for term, first in wanted.items():
        assert isinstance(first.parent, Tag)
        assert "ap-term" in first.parent.get_attribute_list("class"), (term, str(first))
    links = [str(link["href"]).partition("#")[2] for link in article.select("a.ap-term")]
    assert sorted(links) == sorted(terms[term] for term in wanted)


@every_page
def test_launch_buttons_are_on_pages_with_code_and_open_what_the_services_can(built: Path, page: str) -> None:
    html = soup(built / f"{page}.html")
    links = {str(link["href"]) for link in html.select(".dropdown-launch-buttons a")}
    if "{code-cell}" not in (ROOT / f"{page}.md").read_text(encoding="utf-8"):
        assert links == set()
        return
    repository = urlsplit(str(html.select_one(".dropdown-source-buttons a")["href"])).path  # type: ignore[index]
    binder = f"https://mybinder.org/v2/gh{repository}/main?urlpath=lab/tree/{page}.md"
    colab = f"https://colab.research.google.com/github{repository}/blob/notebooks/{page}.ipynb"
    assert links == {binder, colab}
