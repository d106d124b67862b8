"""Time and peak memory of each chapter, executed from the start in a kernel of its own.

Memory is that of the kernel and its child processes together, sampled fifty times a second: resident sets summed, so
pages that they share count more than once. An idle kernel takes about 0.07 GiB of it.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

import jupytext
import psutil
import yaml
from attention_phases._page import STATIC
from jupyter_client.provisioning.local_provisioner import LocalProvisioner
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parent.parent


class Cost(NamedTuple):
    """What one execution of a chapter took: seconds, and bytes of memory at the peak."""

    seconds: float
    peak_memory: int


def pages() -> list[Path]:
    """All pages of the book in the order of its table of contents."""
    toc: dict[str, Any] = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))
    files = [toc["root"], *(entry["file"] for part in toc["parts"] for entry in part["chapters"])]
    return [ROOT / f"{file}.md" for file in files]


def notebooks() -> list[Path]:
    """The pages that hold code."""
    return [page for page in pages() if "{code-cell}" in page.read_text(encoding="utf-8")]


def measure(notebook: Path) -> Cost:
    """Execute a page of the book, with the figures that its built page has, and say what that took."""
    client = NotebookClient(
        jupytext.read(notebook), kernel_name="python3", resources={"metadata": {"path": str(notebook.parent)}}
    )
    start = time.perf_counter()
    with client.setup_kernel(env={**os.environ, STATIC: "1"}):
        provisioner = client.km and client.km.provisioner
        assert isinstance(provisioner, LocalProvisioner)
        kernel = psutil.Process(provisioner.pid)
        peak, finished = 0, threading.Event()

        def watch() -> None:
            nonlocal peak
            while not finished.wait(0.02):
                peak = max(peak, resident_memory(kernel))

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            for index, cell in enumerate(client.nb.cells):
                client.execute_cell(cell, index)
        finally:
            finished.set()
            watcher.join()
    return Cost(time.perf_counter() - start, peak)


def resident_memory(process: psutil.Process) -> int:
    """Bytes in the memory of a process and its children; 0 for one that has just ended."""
    total = 0
    for member in [process, *process.children(recursive=True)]:
        try:
            total += member.memory_info().rss
        except psutil.NoSuchProcess:
            continue
    return total


def main() -> None:
    """Print the table."""
    print(f"{'page':50} {'seconds':>8} {'GiB':>6}")
    for notebook in notebooks():
        cost = measure(notebook)
        page = notebook.relative_to(ROOT).with_suffix("").as_posix()
        print(f"{page:50} {cost.seconds:8.1f} {cost.peak_memory / 2**30:6.2f}", flush=True)


if __name__ == "__main__":
    main()
