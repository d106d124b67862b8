"""The book as a zip: unpacked and opened from a file, with nothing from elsewhere, it works as it does on the web."""

from __future__ import annotations

from typing import TYPE_CHECKING
from zipfile import ZipFile

import offline
import pytest
from filelock import FileLock
from playwright.sync_api import expect

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from playwright.sync_api import Page

    OpenPage = Callable[..., Page]

HTML = offline.HTML


@pytest.fixture(scope="module")
def zipped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The zip."""
    if not (HTML / "book" / "index.html").is_file():
        pytest.skip("the book has not been built: make book")
    target = tmp_path_factory.mktemp("zip") / "book.zip"
    with FileLock(HTML.parent / ".lock"):  # a build that is going on has it
        pass
    offline.write(HTML, target)
    return target


@pytest.fixture(scope="module")
def unpacked(zipped: Path) -> Path:
    """The folder that a reader has who unpacks the zip."""
    with ZipFile(zipped) as archive:
        archive.extractall(zipped.parent)
    (folder,) = (path for path in zipped.parent.iterdir() if path.is_dir())
    return folder


@pytest.fixture
def site(unpacked: Path) -> Path:
    """The pages that `open_page` opens, from their files; it makes an error on a page one of the test."""
    return unpacked


def test_it_has_every_page_and_file_of_the_book_and_is_not_large(zipped: Path) -> None:
    with ZipFile(zipped) as archive:
        names = {name.removeprefix("phases-of-attention/") for name in archive.namelist()}
    built = {path.relative_to(HTML).as_posix() for path in HTML.rglob("*") if path.is_file()}
    for_servers = {"404.html", "robots.txt", "sitemap.xml"}
    assert {name for name in built - for_servers if not name.startswith("reports/")} == names - {"_static/offline.js"}
    assert zipped.stat().st_size < 60e6


def test_its_first_page_leads_to_the_book(open_page: OpenPage) -> None:
    tab = open_page("index")
    tab.wait_for_url("**/book/index.html")
    expect(tab.get_by_role("heading", level=1)).to_contain_text("Phases of Attention")


def test_formulas_are_set_and_a_slider_shows_another_frame(open_page: OpenPage) -> None:
    tab = open_page("book/positional-semantic/teacher-student")
    tab.wait_for_function("document.querySelectorAll('mjx-container').length > 50")
    assert tab.locator("mjx-merror").count() == 0
    figure = tab.locator(".ap-explore").first
    picture = figure.locator("> img:visible")
    before = picture.get_attribute("src")
    slider = figure.get_by_role("slider").first
    slider.press("ArrowRight")
    assert picture.get_attribute("src") != before
    picture.scroll_into_view_if_needed()
    assert picture.evaluate("image => image.decode().then(() => image.naturalWidth > 0)")


def test_the_search_finds_a_word_in_a_text_and_quotes_it(open_page: OpenPage) -> None:
    tab = open_page("book/index")
    tab.goto(tab.url.replace("book/index.html", "search.html?q=replicon"))
    expect(tab.get_by_text("Search finished")).to_be_visible()
    results = tab.locator("ul.search li")
    expect(results.filter(has_text="State evolution").first).to_be_visible()
    expect(results.locator(".context").first).to_contain_text("replicon", ignore_case=True)
    expect(results.locator(".context")).to_have_count(results.count())
    results.get_by_role("link").first.click()
    tab.wait_for_url("**/book/**")
    assert "replicon" in tab.locator("article").inner_text().lower()
