"""Let docstrings and signatures mean what they say on the page of the library.

A bar or a star in a docstring, as in |pi| or a * b, is no markup of reStructuredText. A type has the name by which the
code calls it, and not all that the name stands for. A long signature gets a class, by which the style gives each
argument a line: Sphinx's own way is a list inside a term, which a screen reader cannot read.
"""

from __future__ import annotations

import re
from html import unescape
from typing import TYPE_CHECKING, Any

from numpy.typing import ArrayLike
from sphinx.util.typing import stringify_annotation

if TYPE_CHECKING:
    from sphinx.application import Sphinx

CODE_OR_MARK = re.compile(r"(``.+?``|`[^`]+`)|([|*])")
ARRAY_LIKE = stringify_annotation(ArrayLike, "smart")
SPELLED_OUT = (ARRAY_LIKE, ARRAY_LIKE.replace("bytes | str | ", "bytes | "))  # the latter in `str | ArrayLike`
LONGEST = 90  # characters of a signature on one line
SIGNATURE = re.compile(r'<dt class="(sig [^"]*)"(.*?)</dt>', re.DOTALL)
BETWEEN = '</em>, <em class="sig-param">'
PATH = re.compile(r"(?<![~\w.])attention_phases\.[\w.]+")


def escape(app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    """Put a backslash before each bar and star that is in no piece of code, where napoleon has not read it yet."""
    lines[:] = [CODE_OR_MARK.sub(lambda found: found[1] or f"\\{found[2]}", line) for line in lines]


def named(text: str) -> str:
    """The types in a piece of text by the names that the code has for them."""
    for long in SPELLED_OUT:
        text = text.replace(long, "ArrayLike")
    return text.replace("jaxtyping.", "")


def name_types(app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    """Name the types of a class's fields, once napoleon has written them; the tilde leaves the path to the link."""
    lines[:] = [PATH.sub(r"~\g<0>", named(line)) if line.startswith(":vartype") else line for line in lines]


def name_types_of_signature(
    app: Sphinx, what: str, name: str, obj: object, options: object, signature: str | None, returned: str | None
) -> tuple[str | None, str | None]:
    """Name the types of a signature."""
    return signature and named(signature), returned and named(returned)


def break_long_signatures(
    app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: object
) -> None:
    """Mark the signatures that are too long for a line, and let each comma end its argument."""

    def marked(found: re.Match[str]) -> str:
        if BETWEEN not in found[2] or len(unescape(re.sub(r"^[^>]*>|<[^>]*>", "", found[2])).strip()) <= LONGEST:
            return found[0]
        return f'<dt class="{found[1]} ap-long"{found[2].replace(BETWEEN, BETWEEN.replace("</em>, ", ", </em>"))}</dt>'

    if "body" in context:
        context["body"] = SIGNATURE.sub(marked, context["body"])


def setup(app: Sphinx) -> dict[str, bool]:
    """Register with Sphinx."""
    app.connect("autodoc-process-docstring", escape, priority=400)  # napoleon has 500, and writes markup of its own
    app.connect("autodoc-process-docstring", name_types, priority=600)
    app.connect("autodoc-process-signature", name_types_of_signature)
    app.connect("html-page-context", break_long_signatures)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
