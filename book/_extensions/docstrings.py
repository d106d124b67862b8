"""Let docstrings mean what they say: a bar or a star, as in |pi| or a * b, is no markup of reStructuredText."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sphinx.application import Sphinx

CODE_OR_MARK = re.compile(r"(``.+?``|`[^`]+`)|([|*])")


def escape(app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    """Put a backslash before each bar and star that is in no piece of code, where napoleon has not read it yet."""
    lines[:] = [CODE_OR_MARK.sub(lambda found: found[1] or f"\\{found[2]}", line) for line in lines]


def setup(app: Sphinx) -> dict[str, bool]:
    """Register with Sphinx."""
    app.connect("autodoc-process-docstring", escape, priority=400)  # napoleon has 500, and writes markup of its own
    return {"parallel_read_safe": True, "parallel_write_safe": True}
