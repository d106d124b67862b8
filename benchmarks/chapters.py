"""Time and peak memory of each chapter, executed from the start in a kernel of its own.

Memory is that of the kernel and its child processes together, sampled fifty times a second: resident sets summed, so
pages that they share count more than once. An idle kernel takes about 0.07 GiB of it. The processors' time is theirs
too: unlike the time on the clock, other programs on the machine hardly change it.

With `--save`, the table goes into the book, where readers see what a chapter needs.
"""

from __future__ import annotations

import argparse
import csv
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
COSTS = ROOT / "book" / "chapter-costs.csv"  # what the page on how to use the book shows


class Cost(NamedTuple):
    """What one execution of a chapter took: seconds by the clock and of the processors, bytes of memory at the peak."""

    seconds: float
    processor_seconds: float
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
        return Cost(time.perf_counter() - start, processor_time(kernel), peak)


def resident_memory(process: psutil.Process) -> int:
    """Bytes in the memory of a process and its children; 0 for one that has just ended."""
    total = 0
    for member in [process, *process.children(recursive=True)]:
        try:
            total += member.memory_info().rss
        except psutil.NoSuchProcess:
            continue
    return total


def processor_time(process: psutil.Process) -> float:
    """Seconds that the processors have worked for a process and its children, those that have ended too."""
    total = 0.0
    for member in [process, *process.children(recursive=True)]:
        try:
            times = member.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system
        if member == process:
            total += times.children_user + times.children_system
    return total


def title(page: Path) -> str:
    """The heading of a page."""
    lines = page.read_text(encoding="utf-8").splitlines()
    return next(line for line in lines if line.startswith("# ")).removeprefix("# ")


def saved() -> dict[str, list[str]]:
    """The rows of the table in the book, by page: a link, the processors' seconds, GiB of memory."""
    if not COSTS.exists():
        return {}
    with COSTS.open(encoding="utf-8", newline="") as file:
        return {row[0].rpartition("](")[2].removesuffix(".md)"): row for row in csv.reader(file)}


def save(rows: dict[str, list[str]]) -> None:
    """Write the table in the order of the book's contents; a page that is not among the rows keeps the one it has."""
    known = saved() | rows
    names = [notebook.relative_to(ROOT / "book").with_suffix("").as_posix() for notebook in notebooks()]
    with COSTS.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(known[name] for name in names if name in known)


def main() -> None:
    """Print the table, of all pages with code or of those named (book/quickstart ...); save it where that is wanted."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("pages", nargs="*")
    parser.add_argument("--save", action="store_true")
    arguments = parser.parse_args()
    print(f"{'page':50} {'seconds':>8} {'of processors':>14} {'GiB':>6}")
    rows = {}
    for notebook in [ROOT / f"{page}.md" for page in arguments.pages] or notebooks():
        cost = measure(notebook)
        page, memory = notebook.relative_to(ROOT / "book").with_suffix("").as_posix(), cost.peak_memory / 2**30
        print(f"{page:50} {cost.seconds:8.1f} {cost.processor_seconds:14.1f} {memory:6.2f}", flush=True)
        rows[page] = [f"[{title(notebook)}]({page}.md)", f"{cost.processor_seconds:.0f}", f"{memory:.2f}"]
    if arguments.save:
        save(rows)


if __name__ == "__main__":
    main()
