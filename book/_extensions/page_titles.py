"""Titles of pages: the home page has one in which the book's name, its own heading, stands once."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sphinx.application import Sphinx

HOME = "How attention learns"


def plain(title: str) -> str:
    """A page's title as plain text, without the chapter's number."""
    return re.sub(r"^\d+\. ", "", re.sub(r"<[^>]*>", "", title))


def name_home(app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: object) -> None:
    """Set the title of the home page, which the theme continues with the book's name."""
    if pagename == app.config.root_doc:
        context["title"] = HOME


def setup(app: Sphinx) -> dict[str, bool]:
    """Register with Sphinx."""
    app.connect("html-page-context", name_home)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
