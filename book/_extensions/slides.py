"""Collect all figures of the book for use in slides: slides.zip beside the pages.

A folder for each page has every figure as PNG and as SVG, under its name, and their captions. An interactive figure is
there with the frame that it shows first.
"""

from __future__ import annotations

import base64
import re
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import nbformat
from jupyter_cache import get_cache

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sphinx.application import Sphinx

LICENCE = (
    "From the book Phases of Attention, {address}, under CC BY 4.0 (https://creativecommons.org/licenses/by/4.0/)."
)
SVG = re.compile(r'(?:href|src)="data:image/svg\+xml;base64,([^"#]+)')


class Picture(NamedTuple):
    """A figure of a page."""

    name: str
    caption: str
    png: bytes
    svg: bytes


def pictures(notebook: Any) -> Iterator[Picture]:
    """The figures in the outputs of an executed notebook, in the order of the page."""
    for cell in notebook.cells:
        settings = cell.metadata.get("mystnb", {}).get("figure")
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            svg = SVG.search(data.get("text/html", ""))
            if settings and svg and "image/png" in data:
                name = settings["name"].removeprefix("fig-")
                yield Picture(name, settings["caption"].strip(), *map(base64.b64decode, (data["image/png"], svg[1])))


def executed(app: Sphinx, page: str) -> Any:
    """The notebook of a page with its outputs, which are in the cache; None where it has no code, or has failed."""
    build = Path(app.outdir).parent
    path = build / "jupyter_execute" / f"{page}.ipynb"
    if not path.exists():
        return None
    notebook = nbformat.reads(path.read_text(encoding="utf-8"), as_version=4)  # type: ignore[no-untyped-call]
    try:
        return get_cache(build / ".jupyter_cache").merge_match_into_notebook(notebook)[1]
    except KeyError:  # the build says which cell has failed
        return None


def collect(app: Sphinx, exception: Exception | None) -> None:
    """Write slides.zip."""
    if exception is not None or app.builder.format != "html":
        return
    with zipfile.ZipFile(Path(app.outdir) / "slides.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for page in sorted(app.env.found_docs):
            found = list(pictures(notebook)) if (notebook := executed(app, page)) else []
            captions = [LICENCE.format(address=f"{app.config.html_baseurl}{page}.html")]
            for picture in found:
                place = f"{page.removeprefix('book/')}/{picture.name}"
                archive.writestr(f"{place}.png", picture.png)
                archive.writestr(f"{place}.svg", picture.svg)
                captions.append(f"{picture.name}\n\n{picture.caption}")
            if found:
                archive.writestr(f"{page.removeprefix('book/')}/captions.md", "\n\n".join(captions) + "\n")


def setup(app: Sphinx) -> dict[str, bool]:
    """Register with Sphinx."""
    app.connect("build-finished", collect)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
