"""Keep what is executed and built true to its inputs, and name the cell that failed.

The execution cache knows a chapter by its own code alone: it would go on showing numbers that an older library or an
older stored table gave. Sphinx forgets the warnings of pages that it does not read again: a failed build would pass
when it is repeated. So the cache is emptied when the library, a stored table or the locked versions have changed, and
the pages are read afresh unless the last build was clean and had the same inputs.
"""

from __future__ import annotations

import hashlib
import platform
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jupytext
import nbclient
from filelock import FileLock
from jupyter_cache.executors import utils
from myst_nb.sphinx_ import NbMetadataCollector
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from sphinx.util import logging

if TYPE_CHECKING:
    from nbformat import NotebookNode
    from sphinx.application import Sphinx
    from sphinx.config import Config

COMPUTATION = ["lib/**/*.py", "book/data/**/*", "requirements.lock"]
PAGES = [
    "_config.yml",
    "_toc.yml",
    "book/_extensions/**/*.py",
    "book/_extensions/*.html",
    "book/_static/**/*",
    "book/_templates/**/*",
]

logger = logging.getLogger(__name__)


def fingerprint(root: Path, patterns: list[str]) -> str:
    """Digest of the Python version and of all files under `root` that match one of the glob `patterns`."""
    digest = hashlib.sha256(platform.python_version().encode())
    for path in sorted({path for pattern in patterns for path in root.glob(pattern) if path.is_file()}):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(root).as_posix()} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()


class Freshness:
    """Discards at the start of a build what is out of date; signs at its end what is in order.

    A stamp is a file with the fingerprint that something was made from. It is written last and removed first, so
    that a build which is interrupted or fails leaves none.
    """

    def discard_what_is_stale(self, app: Sphinx, config: Config) -> None:
        """Empty the execution cache, and remove the pages, where their inputs have changed."""
        source, pages, build = Path(app.srcdir), Path(app.outdir), Path(app.outdir).parent
        self.lock = FileLock(build / ".lock")  # one build at a time; freed when this process ends
        self.lock.acquire()

        computation = fingerprint(source, COMPUTATION)
        cache_stamp = build / ".jupyter_cache.inputs"
        if not _agrees(cache_stamp, computation):
            shutil.rmtree(build / ".jupyter_cache", ignore_errors=True)
            cache_stamp.write_text(computation, encoding="utf-8")

        self.inputs = fingerprint(source, COMPUTATION + PAGES)
        self.stamp = build / f".{pages.name}.inputs"
        if not _agrees(self.stamp, self.inputs):
            for folder in (pages, Path(app.doctreedir)):
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir(parents=True)
        self.stamp.unlink(missing_ok=True)

    def finish(self, app: Sphinx, exception: Exception | None) -> None:
        """Sign the pages if the build was clean; name each cell that failed."""
        if exception is None and not app._warncount:  # Sphinx has no public count of its warnings
            self.stamp.write_text(self.inputs, encoding="utf-8")
        if exception is None:
            for page in sorted(app.env.found_docs):
                execution = NbMetadataCollector.get_exec_data(app.env, page)
                if execution and execution["traceback"]:
                    path = Path(app.env.doc2path(page))
                    logger.error(describe_failure(path, execution["traceback"]), location=page)


def _agrees(stamp: Path, value: str) -> bool:
    return stamp.exists() and stamp.read_text(encoding="utf-8") == value


def execute(notebook: NotebookNode, **options: Any) -> NotebookNode:
    """Execute a notebook as nbclient does, but take a kernel that dies for an error of the cell that it ran."""
    begun: list[NotebookNode] = []

    def note(cell: NotebookNode, cell_index: int) -> None:
        begun.append(cell)

    try:
        return nbclient.execute(notebook, on_cell_execute=note, **options)
    except DeadKernelError:
        raise CellExecutionError.from_cell_and_msg(begun[-1], {"traceback": ["The kernel died."]}) from None


def describe_failure(chapter: Path, traceback: str) -> str:
    """Say in one sentence which code cell of `chapter` the execution stopped at, and why.

    `traceback` is what the notebook client left; its message holds the source of the cell, or a preview of it.
    """
    cells = [cell for cell in jupytext.read(chapter).cells if cell.cell_type == "code"]
    number = next((n for n, cell in enumerate(cells, 1) if _is_reported(cell, traceback)), None)
    begins = f", which begins `{cells[number - 1].source.strip().splitlines()[0]}`," if number else ""
    plain = re.sub(r"\x1b\[[\d;]*m", "", traceback).strip()
    timeout = re.search(r"^nbclient\.exceptions\.CellTimeoutError: (.*)", plain, flags=re.MULTILINE)
    reason = timeout[1] if timeout else plain.rpartition("\n")[2] or "It left no message."
    return f"Code cell {number or '?'}{begins} failed. {reason}"


def _is_reported(cell: NotebookNode, traceback: str) -> bool:
    """Whether the notebook client's message is about this cell."""
    dashes = "-" * 18
    if f"{dashes}\n{cell.source}\n{dashes}" in traceback:
        return True
    preview: Any = CellTimeoutError.error_from_timeout_and_cell("", 0, cell)
    return str(preview).partition("preview of the cell contents:")[2].strip() in traceback


def setup(app: Sphinx) -> dict[str, bool]:
    """Register with Sphinx."""
    utils.executenb = execute  # the cache lets a dead kernel end the whole build, and has no setting for it
    freshness = Freshness()
    app.connect("config-inited", freshness.discard_what_is_stale)
    app.connect("build-finished", freshness.finish)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
