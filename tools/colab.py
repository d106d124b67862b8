"""Run the notebooks as Colab would: each alone in an empty folder, in an environment like Colab's.

The environment is made anew from the ranges of colab-requirements.txt, with the newest versions that they allow. The
notebook's first cell installs the library there, from this clone. What the cells print is compared with the book.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path
from typing import TYPE_CHECKING, Any

import environment
import nbformat
import notebooks
from bs4 import BeautifulSoup
from jupyter_cache import get_cache
from jupyter_client.kernelspec import KernelSpecManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError

if TYPE_CHECKING:
    from nbformat import NotebookNode

ROOT = notebooks.ROOT
PLACE = ROOT / "_build" / "colab"
REQUIREMENTS = Path(__file__).with_name("colab-requirements.txt")
TOLERANCE = 1e-3  # of a printed number: versions of NumPy and SciPy round differently
ANEW = (
    "default_rng()",
    "perf_counter",
)  # a cell that draws at random, or measures time, prints other numbers each time
HIDDEN = ("PYTHON", "JUPYTER", "IPYTHON", "VIRTUAL_ENV", "ATTENTION_PHASES", "OMP_")  # what Colab does not set


def execute(notebook: Path, python: Path, **variables: str) -> NotebookNode:
    """Execute a copy of a notebook, alone in an empty folder, with the kernel of an environment's Python."""
    with tempfile.TemporaryDirectory() as folder:
        kernel, work = Path(folder) / "kernels" / "python3", Path(folder) / "work"
        kernel.mkdir(parents=True)
        work.mkdir()
        copy = Path(shutil.copy(notebook, work))
        argv = [str(python), "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        (kernel / "kernel.json").write_text(json.dumps({"argv": argv, "display_name": "Python 3"}), encoding="utf-8")
        client = NotebookClient(
            nbformat.read(copy, 4),  # type: ignore[no-untyped-call]
            kernel_name="python3",
            timeout=300,
            resources={"metadata": {"path": str(work)}},
        )
        client.create_kernel_manager().kernel_spec_manager = KernelSpecManager(
            kernel_dirs=[str(kernel.parent)], ensure_native_kernel=False
        )
        kept = {name: value for name, value in os.environ.items() if not name.startswith(HIDDEN)}
        executed: NotebookNode = client.execute(env=kept | {notebooks.SOURCE: ROOT.as_uri()} | variables)
        return executed


def printed(cell: NotebookNode) -> str:
    """What a reader can read in a cell's outputs: text that it prints, and tables."""
    texts = []
    for output in cell.get("outputs", []):
        data: dict[str, Any] = output.get("data", {})
        if "text" in output:
            texts.append(output["text"])
        elif "<table" in data.get("text/html", ""):
            texts.append(BeautifulSoup(data["text/html"], "html.parser").get_text(" "))
        elif set(data) == {"text/plain"}:
            texts.append(data["text/plain"])
    return "\n".join(texts)


NUMBER = re.compile(r"[-+\N{MINUS SIGN}]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")


def agree(one: str, other: str) -> bool:
    """Whether two texts have the same numbers in the same order, to the tolerance or to their last printed digit."""
    pairs = [NUMBER.findall(text) for text in (one, other)]
    if len(pairs[0]) != len(pairs[1]):
        return False
    for first, second in zip(*pairs, strict=True):
        if first == second:  # the same number, or a piece of a name that reads as one (commit 28e4567)
            continue
        a, b = (float(text.replace("\N{MINUS SIGN}", "-")) for text in (first, second))
        mantissa, _, exponent = first.lower().partition("e")
        last_digit = 10.0 ** (int(exponent or 0) - len(mantissa.partition(".")[2]))
        if abs(a - b) > max(TOLERANCE * max(abs(a), abs(b)), 1.5 * last_digit):
            return False
    return True


def book_outputs(page: str) -> dict[str, str]:
    """What the cells of a page print in the built book, by their source."""
    path = ROOT / "_build" / "jupyter_execute" / f"{page}.ipynb"
    built = nbformat.read(path, 4)  # type: ignore[no-untyped-call]
    _, merged = get_cache(ROOT / "_build" / ".jupyter_cache").merge_match_into_notebook(built)
    return {cell.source: printed(cell) for cell in merged.cells if cell.cell_type == "code"}


def differing(page: str, executed: NotebookNode) -> list[NotebookNode]:
    """The cells of an executed notebook whose numbers are not those of the built book.

    Cells that print other numbers each time are left out.
    """
    book = book_outputs(page)
    cells = [cell for cell in executed.cells if cell.cell_type == "code" and cell.source in book]
    cells = [cell for cell in cells if not any(word in cell.source for word in ANEW)]
    return [cell for cell in cells if not agree(book[cell.source], printed(cell))]


def main() -> None:
    """Make the environment, run the notebooks (all, or those named: book/quickstart ...) and report."""
    pages = sys.argv[1:] or notebooks.sources()
    shutil.rmtree(PLACE, ignore_errors=True)
    venv.create(PLACE, with_pip=True, symlinks=os.name != "nt")
    pip = [str(environment.python_of(PLACE)), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    if platform.system() == "Linux":
        environment.install_cpu_torch(pip)
    subprocess.run([*pip, "-r", str(REQUIREMENTS)], check=True)
    failed = []
    for page in pages:
        start = time.perf_counter()
        try:
            executed = execute(notebooks.NOTEBOOKS / f"{page}.ipynb", environment.python_of(PLACE))
        except (CellExecutionError, CellTimeoutError) as error:
            print(f"{page}: FAILED\n{error}", flush=True)
            failed.append(page)
            continue
        others = differing(page, executed)
        print(
            f"{page}: ran in {time.perf_counter() - start:.0f} s; {len(others)} cells differ from the book", flush=True
        )
        for cell in others:
            print(f"  The cell that begins {cell.source.splitlines()[0]!r} printed\n{printed(cell)}")
            print(f"  and in the book\n{book_outputs(page)[cell.source]}", flush=True)
        failed += [page] if others else []
    if failed:
        sys.exit(f"{len(failed)} of {len(pages)} notebooks failed or differ: {', '.join(failed)}")


if __name__ == "__main__":
    main()
