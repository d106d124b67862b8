"""Facts about the extension that stores figures as files beside the pages, on a book of three pages."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest
from bs4 import BeautifulSoup, Tag

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[2]
PAGES = ["index", "first", "deep/second"]

every_page = pytest.mark.parametrize("page", PAGES)


def build(source: Path) -> Path:
    """Build the book in `source`, two pages at a time; return the folder of its pages."""
    pages = source / "_build" / "html"
    command = [sys.executable, "-m", "sphinx", "-W", "-j", "2", "-D", f"html_static_path={ROOT / 'book/_static'}"]
    extensions = {"PYTHONPATH": str(ROOT / "book" / "_extensions")}
    result = subprocess.run(
        [*command, str(source), str(pages)], env=os.environ | extensions, text=True, encoding="utf-8",
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout
    return pages


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    copy = tmp_path_factory.mktemp("book") / "small"
    shutil.copytree(ROOT / "tests" / "browser" / "small_book", copy)
    return copy


@pytest.fixture(scope="module")
def pages(source: Path) -> Path:
    return build(source)


def article(pages: Path, page: str) -> Tag:
    found = BeautifulSoup((pages / f"{page}.html").read_text(encoding="utf-8"), "html.parser").select_one("article")
    assert found is not None
    return found


def files(pages: Path, page: str) -> list[Path]:
    """The files that the page's images and downloads name."""
    elements = [*article(pages, page)("img"), *article(pages, page)("a", download=True)]  # select() skips templates
    addresses = [urlsplit(str(element.get("src") or element.get("href"))) for element in elements]
    assert not [address for address in addresses if address.scheme]
    return [((pages / f"{page}.html").parent / address.path).resolve() for address in addresses]


@every_page
def test_every_address_on_a_page_is_that_of_a_file(pages: Path, page: str) -> None:
    assert all(path.is_file() for path in files(pages, page))


@every_page
def test_nothing_is_left_inside_the_page(pages: Path, page: str) -> None:
    assert ";base64," not in str(article(pages, page)).replace("data:text/csv;base64,eA==", "")


def test_an_address_that_is_only_written_about_stays(pages: Path) -> None:
    assert 'src="data:text/csv;base64,eA=="' in article(pages, "index").get_text()


def test_files_have_the_names_of_their_content(pages: Path) -> None:
    stored = files(pages, "first") + files(pages, "deep/second")
    assert {path.parent.name for path in stored} == {"_images", "_downloads"}
    for path in stored:
        assert hashlib.sha256(path.read_bytes()).hexdigest().startswith(path.stem)


def test_what_occurs_twice_is_stored_once(pages: Path) -> None:
    assert set(files(pages, "deep/second")) < set(files(pages, "first"))
    assert len(set(files(pages, "deep/second"))) == 2  # the figure for both themes and its download; the table


def test_downloads_keep_their_names_and_content(pages: Path) -> None:
    links = {str(link["download"]): str(link["href"]) for link in article(pages, "deep/second").select("a[download]")}
    assert set(links) == {"line.svg", "line.csv"}
    assert (pages / "deep" / links["line.csv"]).read_text() == "x,y\n0,0\n1,1\n"
    assert (pages / "deep" / links["line.svg"]).read_text().startswith("<svg ")


@pytest.mark.parametrize("page", PAGES[1:])
def test_images_wait_until_they_are_near_and_keep_their_place(pages: Path, page: str) -> None:
    images = article(pages, page).select("img")
    assert images
    for image in images:
        assert (image["loading"], image["decoding"], image["width"]) == ("lazy", "async", "720")
        picture = ((pages / page).parent / urlsplit(str(image["src"])).path).read_text(encoding="utf-8")
        size = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', picture)
        assert size is not None
        width, height = size.groups()
        assert int(str(image["height"])) == round(720 * float(height) / float(width))


def test_the_kernel_knows_that_the_page_is_static(pages: Path) -> None:
    first = article(pages, "first")
    assert len(first.select("input[type=range]")) == 2
    assert len(first.select("template")[0]("img")) == 6


@every_page
def test_pages_load_the_style_and_the_scripts(pages: Path, page: str) -> None:
    html = BeautifulSoup((pages / f"{page}.html").read_text(encoding="utf-8"), "html.parser")
    addresses = [str(element.get("src") or element.get("href")) for element in html.select("script[src], link[href]")]
    for name in ("book.css", "explore.js", "print.js"):
        (address,) = [urlsplit(address).path for address in addresses if f"/{name}" in address]
        assert ((pages / f"{page}.html").parent / address).is_file()


def test_a_second_build_renews_what_has_changed_alone(source: Path, pages: Path) -> None:
    first, second = pages / "first.html", pages / "deep" / "second.html"
    before, untouched = set(files(pages, "first")), second.stat().st_mtime_ns
    text = (source / "first.md").read_text(encoding="utf-8")
    (source / "first.md").write_text(text.replace("[0, omega], kind", "[0, omega / 3], kind"), encoding="utf-8")
    written = first.stat().st_mtime_ns
    build(source)
    after = set(files(pages, "first"))
    assert first.stat().st_mtime_ns > written
    assert all(path.is_file() for path in after)
    assert len(after) == len(before)
    assert len(after & before) == 4  # the first figure, its table and the two frames at omega = 0 are the same
    assert second.stat().st_mtime_ns == untouched
    assert all(path.is_file() for path in files(pages, "deep/second"))


SVG = "data:image/svg+xml;base64,PHN2Zy8+"  # <svg/>
FILE = "_images/d4dc56669143034f.svg"


@pytest.fixture
def moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """A function that returns the body of a page as the extension leaves it."""
    monkeypatch.syspath_prepend(str(ROOT / "book" / "_extensions"))
    import figure_files

    app: Any = SimpleNamespace(outdir=tmp_path)

    def move(body: str) -> str:
        context = {"body": body, "pathto": lambda path, _resource: path}
        figure_files.move_to_files(app, "chapter", "page.html", context, None)
        return str(context["body"])

    return move


@pytest.mark.parametrize(
    "tag",
    [
        '<img src="@">',
        '<img alt="x>y" src="@">',
        "<img alt='5\" wide' src='@'>",
        '<IMG SRC = "@">',
        '<a download="x.svg" href="@#dark">',
        '<img\nclass="only-dark"\nsrc="@">',
    ],
)
def test_an_address_is_found_however_the_tag_is_written(moved: Callable[[str], str], tmp_path: Path, tag: str) -> None:
    assert moved(tag.replace("@", SVG)) == tag.replace("@", FILE)
    assert (tmp_path / FILE).read_text() == "<svg/>"


@pytest.mark.parametrize("tag", ['<img data-src="@">', """<img alt=' src="@"'>""", '<p src="@">', 'src="@"'])
def test_what_is_no_address_of_an_image_or_link_stays(moved: Callable[[str], str], tag: str) -> None:
    assert moved(tag.replace("@", SVG)) == tag.replace("@", SVG)


def test_broken_data_is_a_warning_that_names_the_page(
    moved: Callable[[str], str], caplog: pytest.LogCaptureFixture
) -> None:
    body = '<img src="data:image/png;base64,abc!">'
    assert moved(body) == body
    (record,) = caplog.records
    assert record.getMessage().startswith("an image or a link has broken base64 data")
    assert vars(record)["location"] == "chapter"
