"""A list of references in which each entry has the label by which the text cites it: authors and year.

For screen readers the list has items: the role that docutils gives its entries is no longer one of an item.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pybtex.plugin import register_plugin
from pybtex.style.formatting.plain import Style
from pybtex.style.labels import BaseLabelStyle
from sphinxcontrib.bibtex.style.referencing.author_year import AuthorYearReferenceStyle

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pybtex.database import Entry
    from sphinx.application import Sphinx


class AuthorYearLabels(BaseLabelStyle):  # type: ignore[misc]  # pybtex ships no types
    """Labels made by the rules of the citations in the text."""

    def format_labels(self, sorted_entries: list[Entry]) -> Iterator[str]:
        """A label for each entry. Two entries with one label are a warning of sphinxcontrib-bibtex."""
        citations = AuthorYearReferenceStyle()
        authors = citations.person.author_or_editor_or_title(full=False)
        for entry in sorted_entries:
            names = authors.format_data({"entry": entry, "style": citations}).render_as("text")
            yield f"{names}, {entry.fields['year']}"


class AuthorYearStyle(Style):  # type: ignore[misc]
    """Entries sorted by author and year, with labels that say both."""

    default_label_style = AuthorYearLabels


def make_items(app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: object) -> None:
    """Give the entries of a list of references the role of a list's items."""
    if "body" in context:
        context["body"] = context["body"].replace('role="doc-biblioentry"', 'role="listitem"')


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the style as `author_year`, and the roles."""
    app.connect("html-page-context", make_items)
    register_plugin("pybtex.style.formatting", "author_year", AuthorYearStyle)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
