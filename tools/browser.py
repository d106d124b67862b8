"""The system's Chromium, which prints the book and reads its pages in tests."""

from __future__ import annotations

import shutil

PROGRAMS = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"]
ARGUMENTS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip


def find() -> str | None:
    """The path of the program; None where none is installed."""
    return next(filter(None, map(shutil.which, PROGRAMS)), None)
