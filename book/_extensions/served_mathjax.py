"""Serve MathJax with the pages, so that formulas are set without the network, and from a copy of the book on a disk.

The files are those of MathJax 3.2.2, which the package sphinx-mathjax-offline holds. What the pages can ask for is
copied: the program, its fonts, the packages of TeX that it loads when a formula needs one, and the reader's menu.
"""

from __future__ import annotations

import shutil
from importlib.metadata import distribution
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sphinx.application import Sphinx

NEEDED = ["tex-mml-chtml.js", "output/chtml/fonts/woff-v2", "input/tex/extensions", "a11y", "sre/mathmaps/en.json",
          "sre/mathmaps/base.json"]  # fmt: skip
PLACE = "_static/mathjax"


def copy(app: Sphinx, exception: Exception | None) -> None:
    """Copy the files beside the built pages."""
    if exception is not None or app.builder.format != "html":
        return
    package = Path(str(distribution("sphinx-mathjax-offline").locate_file("sphinx-mathjax-offline/static/mathjax")))
    for name in NEEDED:
        source, target = package / name, Path(app.outdir) / PLACE / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, dirs_exist_ok=True)
        else:
            shutil.copyfile(source, target)


def setup(app: Sphinx) -> dict[str, bool]:
    """Register with Sphinx."""
    app.connect("build-finished", copy)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
