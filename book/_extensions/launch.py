"""Point the launch buttons to what their service can open, on the pages that have code.

Colab opens notebooks, not MyST Markdown: the branch `notebooks` has one of each page with code (tools/notebooks.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from docutils.nodes import Element

if TYPE_CHECKING:
    from docutils.nodes import document
    from sphinx.application import Sphinx

AFTER_THE_THEME = 502  # which adds its buttons at 501


def adjust(app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: document | None) -> None:
    """Rewrite the address of the Colab button; take all launch buttons off a page without code."""
    buttons = context.get("header_buttons", [])
    for group in [button for button in buttons if button.get("label") == "launch-buttons"]:
        if doctree is None or not any(node.get("nb_element") == "cell_code" for node in doctree.findall(Element)):
            buttons.remove(group)
        for button in group["buttons"]:
            if button["text"] == "Colab":
                branch = app.config.html_theme_options["repository_branch"]
                source, ending = f"/blob/{branch}/{pagename}.md", f"/blob/notebooks/{pagename}.ipynb"
                button["url"] = button["url"].replace(source, ending)


def setup(app: Sphinx) -> dict[str, bool]:
    """Register with Sphinx."""
    app.connect("html-page-context", adjust, priority=AFTER_THE_THEME)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
