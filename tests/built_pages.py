"""The pages of the real book and of the small one, for tests that look at each."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import yaml

ROOT = Path(__file__).parents[1]


def real_pages() -> list[str]:
    """The pages of the book's table of contents, in their order."""
    contents = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))
    chapters = [chapter["file"] for part in contents["parts"] for chapter in part["chapters"]]
    return [contents["root"], *chapters]


def base() -> str:
    """The address of the published book, with a slash at its end."""
    address: str = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))["html"]["baseurl"]
    return address


def online() -> str:
    """The address of the published book as a browser writes it: with its host in lower case."""
    parts = urlsplit(base())
    return parts._replace(netloc=parts.netloc.lower()).geturl()


CHAPTERS = [page for page in real_pages() if re.match("book/(positional-semantic|focus-dilution)/", page)]

every_page = pytest.mark.parametrize(
    ("site", "page"),
    [("small", page) for page in ("index", "first", "deep/second")] + [("real", page) for page in real_pages()],
    indirect=["site"],
)
real_page = pytest.mark.parametrize(("site", "page"), [("real", page) for page in real_pages()], indirect=["site"])
every_chapter = pytest.mark.parametrize(("site", "page"), [("real", page) for page in CHAPTERS], indirect=["site"])
one_chapter = pytest.mark.parametrize(("site", "page"), [("real", "book/focus-dilution/dilution")], indirect=["site"])
small_page = pytest.mark.parametrize(("site", "page"), [("small", "first")], indirect=["site"])
