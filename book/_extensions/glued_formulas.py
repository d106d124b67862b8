"""Keep a formula in a sentence on one line with the bracket before it and the full stop, comma or bracket after it.

A browser may break a line on either side of a formula, and would leave such a sign alone on the next line.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from docutils import nodes

if TYPE_CHECKING:
    from sphinx.application import Sphinx

BEFORE = re.compile(r"[(\[“‘]+$")
AFTER = re.compile(r"^[,.;:!?)\]”’%]+")


def glue(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Put each formula that has such signs beside it in one element with them."""
    if app.builder.format != "html":
        return
    for formula in list(doctree.findall(nodes.math)):
        parent = formula.parent
        place = parent.index(formula)
        before = _cut(parent, place - 1, BEFORE) if place else ""
        after = _cut(parent, place + 1, AFTER) if place + 1 < len(parent) else ""
        if before or after:
            signs = (nodes.Text(before), formula, nodes.Text(after))
            parent.replace(formula, nodes.inline("", "", *filter(None, signs), classes=["ap-glued"]))


def _cut(parent: nodes.Element, place: int, signs: re.Pattern[str]) -> str:
    """Take the signs off the text at this place in the parent, and return them."""
    text = parent.children[place]
    if not isinstance(text, nodes.Text):
        return ""
    found = signs.search(text)
    if found is None:
        return ""
    parent[place] = nodes.Text(text[: found.start()] + text[found.end() :])
    return found[0]


def setup(app: Sphinx) -> dict[str, bool]:
    """Register with Sphinx."""
    app.connect("doctree-resolved", glue, priority=600)  # the glossary's terms are linked before
    return {"parallel_read_safe": True, "parallel_write_safe": True}
