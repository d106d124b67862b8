"""Put below each chapter how to cite it: a BibTeX entry that one click copies."""

from __future__ import annotations

import re
from html import escape
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from page_titles import plain

if TYPE_CHECKING:
    from docutils.nodes import document
    from sphinx.application import Sphinx

CHAPTER = re.compile(r"book/(positional-semantic|focus-dilution)/(?P<name>[\w-]+)$")
ENTRY = """@incollection{{phases-of-attention-{name},
  author    = {{{{{author}}}}},
  title     = {{{title}}},
  booktitle = {{{book}: an executable book on how attention learns}},
  year      = {{{year}}},
  note      = {{Version {version}}},
  url       = {{{url}}}
}}"""


def add_entry(app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: document | None) -> None:
    """Add the entry at the end of a chapter's body."""
    chapter = CHAPTER.match(pagename)
    if chapter is None or doctree is None:
        return
    config = app.config
    entry = ENTRY.format(
        name=chapter["name"],
        author=config.author,
        title=plain(context["title"]),
        book=config.html_title,
        year=re.sub(r"\D.*", "", config.copyright),
        version=version("attention-phases"),
        url=f"{config.html_baseurl}{pagename}.html",
    )
    block = f'<div class="highlight-bibtex notranslate"><div class="highlight"><pre>{escape(entry)}\n</pre></div></div>'
    context["body"] += f'<details class="ap-cite"><summary>Cite this chapter</summary>{block}</details>'


def setup(app: Sphinx) -> dict[str, bool]:
    """Register with Sphinx."""
    app.connect("html-page-context", add_entry)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
