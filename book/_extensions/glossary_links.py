"""Link each term of the glossary where a chapter first uses it.

Only running text is looked at: no heading, link, formula, code, caption or title. The sources of the chapters stay as
they are.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from docutils import nodes

if TYPE_CHECKING:
    from sphinx.application import Sphinx

GLOSSARY = "book/glossary"
CHAPTER = re.compile(r"book/(positional-semantic|focus-dilution)/")
CLOSED = (nodes.title, nodes.reference, nodes.literal, nodes.literal_block, nodes.math, nodes.math_block, nodes.caption,
          nodes.raw, nodes.strong)  # fmt: skip


def link_terms(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Replace the first use of each term in a chapter by a link to its place in the glossary."""
    if not CHAPTER.match(docname) or GLOSSARY not in app.env.found_docs:
        return
    objects = app.env.get_domain("std").get_objects()
    waiting = {term: anchor for _, term, kind, page, anchor, _ in objects if kind == "term" and page == GLOSSARY}
    for text in list(doctree.findall(nodes.Text)):
        if not waiting:
            break
        if _is_open(text):
            new = _linked(app, docname, str(text), waiting)
            if len(new) > 1:
                text.parent.replace(text, new)


def _is_open(text: nodes.Text) -> bool:
    node, in_paragraph = text.parent, False
    while node is not None:
        if isinstance(node, CLOSED) or "cell" in node.get("classes", []):
            return False
        in_paragraph = in_paragraph or isinstance(node, nodes.paragraph)
        node = node.parent
    return in_paragraph


def _linked(app: Sphinx, docname: str, text: str, waiting: dict[str, str]) -> list[nodes.Node]:
    """Cut a text at the terms that still wait for their first use, which no longer wait then."""
    ways = {term: _ways_to_write(term) for term in sorted(waiting, key=len, reverse=True)}
    found = re.search(rf"(?<![\w-])({'|'.join(ways.values())})s?(?![\w-])", text) if waiting else None
    if found is None:
        return [nodes.Text(text)]
    anchor = waiting.pop(next(term for term, way in ways.items() if re.fullmatch(way, found[1])))
    address = app.builder.get_relative_uri(docname, GLOSSARY)
    link = nodes.reference("", found[0], internal=True, refuri=f"{address}#{anchor}", classes=["ap-term"])
    rest = _linked(app, docname, text[found.end() :], waiting)
    return [nodes.Text(text[: found.start()]), link, *rest]


def _ways_to_write(term: str) -> str:
    """A pattern for a term: its first letter is a capital at the start of a sentence, and a line may end inside it."""
    first, rest = term[0], r"\s+".join(map(re.escape, term[1:].split(" ")))
    return f"[{first.upper()}{first}]{rest}"


def setup(app: Sphinx) -> dict[str, bool]:
    """Register with Sphinx."""
    app.connect("doctree-resolved", link_terms)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
