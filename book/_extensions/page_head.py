"""What search engines and social media read of a page: its description and a card; a list of all pages; a page for 404.

The description is what a chapter asks, else the first paragraph of the page.
"""

from __future__ import annotations

import re
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from docutils import nodes
from page_titles import plain

if TYPE_CHECKING:
    from docutils.nodes import document
    from sphinx.application import Sphinx

LONGEST = 250  # characters of a description; whoever shows it cuts what is longer
CARD = "_static/social-card.png"
CARD_SIZE = (1200, 630)  # pixels
CARD_ALT = "Left: a map of a risk with four valleys. Right: the training losses of two minima cross as data grow."


def describe(doctree: document) -> str:
    """Return a page's description: plain text, formulas as they are typed."""
    boxes = (node for node in doctree.findall(nodes.Element) if isinstance(node, nodes.Admonition))
    question = next((box for box in boxes if "question of this" in box.astext()), None)
    place = nodes.section if question is None else nodes.Admonition
    paragraphs = (question or doctree).findall(nodes.paragraph)
    chosen = next((node for node in paragraphs if isinstance(node.parent, place)), None)
    text = re.sub(r"\s+", " ", chosen.astext() if chosen else "").strip()
    if len(text) <= LONGEST:
        return text
    sentences = text[:LONGEST].rpartition(". ")[0]
    return f"{sentences}." if sentences else text[:LONGEST].rpartition(" ")[0] + " …"


def add_metadata(
    app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: document | None
) -> None:
    """Add the description and the card to a page's head."""
    if doctree is None:
        return
    base, title = app.config.html_baseurl, plain(context["title"])
    values = {
        "og:type": "article",
        "og:site_name": app.config.html_title,
        "og:title": title,
        "og:description": describe(doctree),
        "og:url": f"{base}{pagename}.html",
        "og:image": base + CARD,
        "og:image:width": str(CARD_SIZE[0]),
        "og:image:height": str(CARD_SIZE[1]),
        "og:image:alt": CARD_ALT,
    }
    tags = [f'<meta property="{name}" content="{escape(value)}">' for name, value in values.items()]
    tags.append(f'<meta name="description" content="{escape(describe(doctree))}">')
    tags.append('<meta name="twitter:card" content="summary_large_image">')
    context["metatags"] = context.get("metatags", "") + "\n".join(tags)


def write_lists(app: Sphinx, exception: Exception | None) -> None:
    """Write sitemap.xml, robots.txt, and 404.html, whose addresses work from a path of any depth."""
    if exception is not None or app.builder.format != "html":
        return
    base, out = app.config.html_baseurl, Path(app.outdir)
    places = "".join(f"<url><loc>{escape(base)}{page}.html</loc></url>\n" for page in sorted(app.env.found_docs))
    schema = "http://www.sitemaps.org/schemas/sitemap/0.9"
    sitemap = f'<?xml version="1.0" encoding="utf-8"?>\n<urlset xmlns="{schema}">\n{places}</urlset>\n'
    (out / "sitemap.xml").write_text(sitemap, encoding="utf-8")
    (out / "robots.txt").write_text(f"User-agent: *\nAllow: /\nSitemap: {base}sitemap.xml\n", encoding="utf-8")
    missing = Path(__file__).with_name("404.html").read_text(encoding="utf-8")
    (out / "404.html").write_text(missing.replace("{{ base }}", escape(base)), encoding="utf-8")


def setup(app: Sphinx) -> dict[str, bool]:
    """Register with Sphinx."""
    app.connect("html-page-context", add_metadata, priority=600)  # after the home page has got its title
    app.connect("build-finished", write_lists)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
