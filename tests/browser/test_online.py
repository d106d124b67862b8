"""The book at its public address, with all other addresses cut off: what arrives, how much and when; the search."""

from __future__ import annotations

import gzip
from typing import TYPE_CHECKING
from urllib.parse import unquote, urljoin, urlsplit

import pytest
from bs4 import BeautifulSoup
from built_pages import every_chapter, online, real_page
from playwright.sync_api import expect

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from playwright.sync_api import Browser, Page, Route

    OpenPage = Callable[..., Page]

MAX_BYTES = 3_000_000
PACKED = {".html", ".js", ".css", ".svg", ".json", ".csv"}  # GitHub Pages sends these in gzip

front = pytest.mark.parametrize(("site", "page"), [("real", "book/index")], indirect=["site"])


def size(path: Path) -> int:
    """The bytes of a file on its way to a reader."""
    content = path.read_bytes()
    return len(gzip.compress(content, 6)) if path.suffix in PACKED else len(content)


@real_page
def test_formulas_are_set_with_the_network_cut_off(open_page: OpenPage, page: str) -> None:
    tab = open_page(page, served=True)
    formulas = tab.locator("article .math").count()
    if formulas:
        tab.evaluate("MathJax.startup.promise.then(() => true)")
        assert tab.locator("article .math mjx-container").count() >= formulas
        assert tab.locator("mjx-merror").count() == 0


@every_chapter
def test_a_chapter_with_all_that_it_loads_and_all_its_frames_is_light(
    open_page: OpenPage, site: Path, page: str
) -> None:
    tab = open_page(page, served=True)
    requested = {urljoin(tab.url, page)}
    tab.on("request", lambda request: requested.add(request.url))
    tab.reload()
    tab.evaluate("MathJax.startup.promise.then(() => true)")
    tab.wait_for_load_state("networkidle")
    html = BeautifulSoup((site / f"{page}.html").read_text(encoding="utf-8"), "html.parser")
    requested |= {urljoin(tab.url, str(image["src"])) for image in html.find_all("img")}  # those in templates too
    own = {urlsplit(address)._replace(fragment="").geturl() for address in requested if address.startswith(online())}
    files = [site / unquote(urlsplit(address.removeprefix(online())).path) for address in own]
    sizes = {file: size(file) for file in files if file.is_file()}
    total, program = sum(sizes.values()), sum(size for file, size in sizes.items() if "mathjax" in file.parts)
    print(f"{page}: {total / 1e6:.2f} MB, of which MathJax {program / 1e6:.2f} MB; {len(sizes)} files")
    assert program > 0
    assert total <= MAX_BYTES


@every_chapter
def test_the_text_is_there_before_icons_and_pictures_arrive(
    browser: Browser, answer: Callable[[Route], None], page: str
) -> None:
    waiting: list[Route] = []
    icons: list[Route] = []
    tab = browser.new_page()
    tab.route("**/*", answer)
    tab.route("**/_images/**", lambda route: waiting.append(route))
    tab.route("**/fontawesome.js*", lambda route: icons.append(route))
    tab.goto(f"{online()}{page}.html", wait_until="commit")
    expect(tab.locator("article h1")).to_be_in_viewport()
    expect(tab.locator("article p").first).to_be_visible()
    (program,) = icons
    assert tab.locator("svg.svg-inline--fa").count() == 0
    answer(program)
    expect(tab.locator("button svg.svg-inline--fa:visible").first).to_be_visible()
    tab.wait_for_function("performance.getEntriesByName('first-contentful-paint').length > 0")
    picture = tab.locator("article .ap-figure > img:visible").first
    picture.scroll_into_view_if_needed()
    tab.wait_for_function("image => image.getBoundingClientRect().height > 50", arg=picture.element_handle())
    assert not picture.evaluate("image => image.naturalWidth > 0")  # its place is kept
    while not picture.evaluate("image => image.complete && image.naturalWidth > 0"):
        while waiting:
            answer(waiting.pop())
        tab.wait_for_timeout(50)
    tab.close()


@front
@pytest.mark.parametrize(
    ("word", "found"),
    [
        ("metastability", "book/positional-semantic/phase-transition"),
        ("conserves", "book/focus-dilution/markov-transformer"),
    ],
)
def test_the_search_finds_a_word_of_a_page(open_page: OpenPage, page: str, word: str, found: str) -> None:
    tab = open_page(page, served=True)
    tab.keyboard.press("Control+k")
    tab.keyboard.type(word)
    tab.keyboard.press("Enter")
    result = tab.locator(f'#search-results a[href*="{found.removeprefix("book/")}.html"]').first
    result.click()
    assert tab.url.startswith(f"{online()}{found}.html")
    assert word in tab.locator("article").inner_text()


@front
def test_a_chosen_theme_stays_on_the_next_page(open_page: OpenPage, page: str) -> None:
    tab = open_page(page, served=True, color_scheme="light")
    theme = "document.documentElement.dataset.theme"
    switch = tab.get_by_role("button", name="Color mode").first
    for _ in range(3):
        if tab.evaluate(theme) == "dark":
            break
        switch.press("Enter")
    assert tab.evaluate(theme) == "dark"
    tab.locator("a.right-next").click()
    expect(tab).not_to_have_url(f"{online()}{page}.html")
    assert tab.evaluate(theme) == "dark"


@front
@pytest.mark.parametrize("missing", ["nothing.html", "book/positional-semantic/old/deep.html"])
def test_from_a_missing_page_of_any_depth_the_book_is_one_link_away(
    browser: Browser, answer: Callable[[Route], None], missing: str, page: str
) -> None:
    tab = browser.new_page()
    tab.route("**/*", answer)
    response = tab.goto(online() + missing)
    assert response is not None
    assert response.status == 404
    tab.get_by_role("link", name="Search").click()
    expect(tab).to_have_url(f"{online()}search.html")
    tab.go_back()
    tab.get_by_role("link", name="The first page").click()
    expect(tab).to_have_url(f"{online()}{page}.html")
    expect(tab.locator("article h1")).to_be_visible()
    tab.close()
