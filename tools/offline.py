"""Write the built book as a zip to read without the network: _build/phases-of-attention.zip.

The pages work from a file's address as they are, but for one thing: a browser lets no page read another file, so the
search could not quote what it finds. In the zip the page of the search brings the texts of all pages along.
"""

from __future__ import annotations

import json
import re
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HTML = ROOT / "_build" / "html"
ZIP = ROOT / "_build" / "phases-of-attention.zip"
FOLDER = "phases-of-attention"
LEFT_OUT = {"404.html", "robots.txt", "sitemap.xml", "reports"}  # for servers and search engines; of failed builds

# What the search asks for a page (by fetch) is answered from the texts.
SCRIPT = """\
"use strict";
{
  const texts = %s;
  const top = new URL(document.documentElement.dataset.content_root, location.href).href;
  window.fetch = async (address) => new Response(texts[new URL(address, location.href).href.slice(top.length)]);
}
"""
TEXT = re.compile(r"<article\b.*</article>", re.DOTALL)
NO_TEXT = re.compile(r"<template>.*?</template>|<svg\b.*?</svg>|<(?:img|input|button)\b[^>]*>|<!--.*?-->", re.DOTALL)


def text_of(page: str) -> str:
    """What the search may quote of a page, where the search looks for it."""
    found = TEXT.search(page)
    return f'<div role="main">{NO_TEXT.sub("", found[0])}</div>' if found else ""


def write(html: Path, target: Path) -> None:
    """Write the pages in the folder `html` to the zip `target`."""
    paths = sorted(path for path in html.rglob("*") if path.is_file())
    texts = {}
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in paths:
            name = path.relative_to(html).as_posix()
            if name.partition("/")[0] in LEFT_OUT or name == "search.html":
                continue
            archive.write(path, f"{FOLDER}/{name}")
            if name.endswith(".html"):
                texts[name] = text_of(path.read_text(encoding="utf-8"))
        script = '<script src="_static/offline.js"></script>'
        search = (html / "search.html").read_text(encoding="utf-8").replace("</head>", f"{script}</head>", 1)
        archive.writestr(f"{FOLDER}/search.html", search)
        archive.writestr(f"{FOLDER}/_static/offline.js", SCRIPT % json.dumps(texts))


def main() -> None:
    """Write the zip."""
    if not HTML.is_dir():
        sys.exit("The book must be built first: make book")
    write(HTML, ZIP)
    print(f"{ZIP}: {ZIP.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
