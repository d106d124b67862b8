"""Move what figures bring along as data: addresses into files beside the pages, which stay light.

Images go to _images/ and tables to _downloads/, each under the hash of its content: what occurs twice is
stored once. The kernels that the build starts learn from an environment variable that their output goes to
a page. Tables of data get corners that are no headings.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attention_phases._page import STATIC
from sphinx.util import logging

if TYPE_CHECKING:
    from sphinx.application import Sphinx

FILES = {
    "image/svg+xml": ("_images", "svg"),
    "image/png": ("_images", "png"),
    "image/jpeg": ("_images", "jpg"),
    "image/webp": ("_images", "webp"),
    "text/csv": ("_downloads", "csv"),
}
TAG = re.compile(r"""<(?:img|a)\s(?:[^<>"']|"[^"]*"|'[^']*')*+>""", re.IGNORECASE)
ATTRIBUTE = re.compile(r"""(\s(?P<name>[^\s=<>"']+)\s*=\s*)(?P<value>"[^"]*"|'[^']*')""")
ADDRESS = re.compile(rf"^data:({'|'.join(map(re.escape, FILES))});base64,([^#]*)", re.IGNORECASE)

logger = logging.getLogger(__name__)


def store(root: Path, mime_type: str, content: bytes) -> str:
    """Write the content to its file below `root`, unless it is there, and return the path from `root`."""
    folder, ending = FILES[mime_type]
    path = f"{folder}/{hashlib.sha256(content).hexdigest()[:16]}.{ending}"
    if not (root / path).exists():
        (root / folder).mkdir(parents=True, exist_ok=True)
        unfinished = root / f"{path}.{os.getpid()}"
        unfinished.write_bytes(content)
        unfinished.replace(root / path)
    return path


def move_to_files(app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: object) -> None:
    """Replace the data: addresses in a page's body by those of files."""

    def to_file(found: re.Match[str]) -> str:
        try:
            content = base64.b64decode("".join(found[2].split()), validate=True)
        except binascii.Error as error:
            logger.warning("an image or a link has broken base64 data: %s", error, location=pagename)
            return found[0]
        return str(context["pathto"](store(Path(app.outdir), found[1].lower(), content), 1))

    def in_attribute(found: re.Match[str]) -> str:
        if found["name"].lower() not in ("src", "href"):
            return found[0]
        quote, address = found["value"][0], found["value"][1:-1]
        return found[1] + quote + ADDRESS.sub(to_file, address) + quote

    if "body" in context:
        context["body"] = TAG.sub(lambda tag: ATTRIBUTE.sub(in_attribute, tag[0]), context["body"])


def empty_corners(app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: object) -> None:
    """Make no heading of the corner of a table that pandas wrote: it heads nothing."""
    if "body" in context:
        context["body"] = context["body"].replace("<th></th>", "<td></td>")


def setup(app: Sphinx) -> dict[str, bool]:
    """Register with Sphinx."""
    os.environ[STATIC] = "1"
    app.connect("html-page-context", move_to_files)
    app.connect("html-page-context", empty_corners)
    app.add_css_file("book.css")
    for script in ("controls.js", "explore.js", "print.js", "scroll.js"):
        app.add_js_file(script, loading_method="defer")
    return {"parallel_read_safe": True, "parallel_write_safe": True}
