"""Make of each problem set, before the pages are read, what a student may see: the problems and the notebook.

The sources, with solutions and hidden tests, are no pages and are never read by Sphinx. A page includes the problems,
and offers the notebook.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sphinx.application import Sphinx


def write_problems(app: Sphinx) -> None:
    """Write the student's notebook of each problem set, and the text of its page, to _build/homework."""
    source = Path(app.srcdir)
    if not (source / "book" / "homework").exists():
        return
    sys.path.append(str(source / "tools"))
    import homework

    folder = source / "_build" / "homework"
    folder.mkdir(parents=True, exist_ok=True)
    for path in homework.sources():
        notebook = homework.student_notebook(path)
        for name, text in [
            (f"{path.stem}.md", homework.problems_for_page(notebook)),
            (f"{path.stem}.ipynb", homework.problems_for_notebook(notebook)),
        ]:
            file = folder / name
            if not file.exists() or file.read_text(encoding="utf-8") != text:
                file.write_text(text, encoding="utf-8")


def setup(app: Sphinx) -> dict[str, bool]:
    """Register with Sphinx."""
    app.connect("builder-inited", write_problems)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
