"""Move what figures bring along as data: addresses into files beside the pages, which stay light.

Images go to _images/ and tables to _downloads/, each under the hash of its content: what occurs twice is
stored once. The kernels that the build starts learn from an environment variable that their output goes to
a page.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attention_phases._page import STATIC

if TYPE_CHECKING:
    from sphinx.application import Sphinx

FILES = {
    "image/svg+xml": ("_images", "svg"),
    "image/png": ("_images", "png"),
    "image/jpeg": ("_images", "jpg"),
    "image/webp": ("_images", "webp"),
    "text/csv": ("_downloads", "csv"),
}
MIME_TYPES = "|".join(map(re.escape, FILES))
ADDRESS = re.compile(rf"""(<(?:img|a)\s[^<>]*?\b(?:src|href)=")data:({MIME_TYPES});base64,([A-Za-z0-9+/=]+)""")


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
        before, mime_type, content = found.groups()
        path = store(Path(app.outdir), mime_type, base64.b64decode(content))
        return f"{before}{context['pathto'](path, 1)}"

    if "body" in context:
        context["body"] = ADDRESS.sub(to_file, context["body"])


def setup(app: Sphinx) -> dict[str, bool]:
    """Register with Sphinx."""
    os.environ[STATIC] = "1"
    app.connect("html-page-context", move_to_files)
    app.add_css_file("book.css")
    for script in ("explore.js", "print.js"):
        app.add_js_file(script, loading_method="defer")
    return {"parallel_read_safe": True, "parallel_write_safe": True}
