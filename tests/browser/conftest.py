"""A browser, and the books whose pages it opens: a small one, and the real one where it has been built."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import pytest
from browser import ARGUMENTS, PROGRAMS, find
from built_pages import online
from filelock import FileLock
from playwright.sync_api import sync_playwright

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Route

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """The system's Chromium."""
    program = find()
    if program is None:
        pytest.skip(f"no browser tests: none of {', '.join(PROGRAMS)} is installed")
    with sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=program, args=ARGUMENTS)
        yield chromium
        chromium.close()


@pytest.fixture(scope="session")
def small_book(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the small book's pages."""
    source = tmp_path_factory.mktemp("book") / "small"
    shutil.copytree(Path(__file__).parent / "small_book", source)
    pages = source / "_build" / "html"
    style = f"html_static_path={ROOT / 'book/_static'}"
    templates = f"templates_path={ROOT / 'book/_templates'}"
    subprocess.run(
        [sys.executable, "-m", "sphinx", "-q", "-D", style, "-D", templates, str(source), str(pages)],
        env=os.environ | {"PYTHONPATH": str(ROOT / "book" / "_extensions")},
        check=True,
    )
    return pages


@pytest.fixture
def site(request: pytest.FixtureRequest) -> Path:
    """The folder of the pages of the book that the parameter names: "small" or "real"."""
    if request.param == "small":
        pages: Path = request.getfixturevalue("small_book")
        return pages
    build = ROOT / "_build"
    if build.is_dir():
        with FileLock(build / ".lock"):  # a build that is going on has it
            if (build / "html" / "book" / "index.html").is_file():
                return build / "html"
    pytest.skip("the book has not been built: make book")


@pytest.fixture
def answer(site: Path) -> Callable[[Route], None]:
    """What answers in place of the network: files, and the book at its public address as a server of files has it.

    All else is cut off.
    """

    def respond(route: Route) -> None:
        address = route.request.url
        if address.startswith("file:"):
            route.continue_()
        elif address.startswith(online()):
            path = site / unquote(urlsplit(address.removeprefix(online())).path)
            path = path / "index.html" if path.is_dir() else path
            missing = not path.is_file()
            route.fulfill(status=404 if missing else 200, path=site / "404.html" if missing else path)
        else:
            route.abort()

    return respond


@pytest.fixture
def open_page(browser: Browser, site: Path, answer: Callable[[Route], None]) -> Iterator[Callable[..., Page]]:
    """A function that opens a page of the book, from its file or as served, with options of a browser context.

    Nothing is loaded from elsewhere. What goes wrong on the page is an error at the end of the test.
    """
    contexts: list[BrowserContext] = []
    faults: list[str] = []

    def note(message: ConsoleMessage) -> None:
        if message.type == "error":
            faults.append(message.text)

    def opened(page: str, served: bool = False, set_formulas: bool = True, **options: Any) -> Page:
        context = browser.new_context(**options)
        contexts.append(context)
        tab = context.new_page()
        tab.route("**/*", answer)
        if not set_formulas:
            tab.route("**/mathjax/*", lambda route: route.fulfill(body=""))
        tab.on("pageerror", lambda error: faults.append(str(error)))
        tab.on("console", note)
        if options.get("java_script_enabled", True):  # without it, scripts fail to load, as they should
            tab.on("requestfailed", lambda request: faults.append(request.url))
        tab.goto(f"{online()}{page}.html" if served else (site / f"{page}.html").as_uri())
        return tab

    yield opened
    elsewhere = ("https://", "Failed to load resource: net::ERR_FAILED")  # what `answer` cut off
    found = [fault for fault in faults if not fault.startswith(elsewhere)]
    for context in contexts:
        context.close()
    assert not found
