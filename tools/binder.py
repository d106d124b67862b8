"""Open chapters as Binder would: in JupyterLab, at the address of their Binder button, in an environment of its own.

The environment is made anew from environment.yml, by pip instead of conda, and by postBuild. JupyterLab then serves a
fresh clone of the repository, without the network, and a browser opens each chapter, runs it and looks at what is
shown.
"""

from __future__ import annotations

import os
import platform
import re
import secrets
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.request
import venv
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import browser
import environment
import notebooks
import psutil
import yaml
from bs4 import BeautifulSoup
from colab import HIDDEN
from playwright.sync_api import sync_playwright

ROOT = notebooks.ROOT
sys.path.append(str(ROOT / "benchmarks"))
from chapters import resident_memory  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import BrowserContext, Page

PLACE = ROOT / "_build" / "binder"
PIP_NAMES = {"pytorch-cpu": "torch", "matplotlib-base": "matplotlib", "seaborn-base": "seaborn"}  # by conda-forge's
READY = "() => window.jupyterapp?.shell.currentWidget?.sessionContext?.session?.kernel?.status === 'idle'"
NO_NETWORK = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9")
MEMORY = 1.5 * 2**30  # bytes for JupyterLab and the kernel; Binder gives 2 GiB


def listed() -> list[str]:
    """What environment.yml lists, but for Python and pip themselves."""
    lines: list[str] = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))["dependencies"]
    return [line for line in lines if not re.fullmatch(r"python=[\d.]+|pip", line)]


def requirements() -> list[str]:
    """The same for pip."""
    found = []
    for line in listed():
        match = re.fullmatch(r"([a-z\d-]+)(\W.*)", line)
        if match is None:
            raise ValueError(f"environment.yml must give each package a range (numpy>=2.0,<3); got {line}")
        found.append(PIP_NAMES.get(match[1], match[1]) + match[2])
    return found


def url_path(html: Path, page: str) -> str:
    """What the Binder button of a built page asks JupyterLab to open, below its own address."""
    soup = BeautifulSoup((html / f"{page}.html").read_bytes(), "html.parser")
    links = {str(link["href"]) for link in soup.select('a[href^="https://mybinder.org/"]')}
    if len(links) != 1:
        raise ValueError(f"{page}.html must have one address of Binder; got {sorted(links)}")
    (path,) = parse_qs(urlsplit(links.pop()).query)["urlpath"]
    return path


def variables(folder: Path) -> dict[str, str]:
    """The environment variables of a new user's programs in the environment of `folder`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(HIDDEN)}
    programs = str(environment.python_of(folder).parent)
    return kept | {"PATH": os.pathsep.join([programs, kept["PATH"]]), "HOME": str(folder / "home")}


def make_environment(folder: Path) -> None:
    """Install what environment.yml lists, and what postBuild adds, beside a fresh clone of the repository."""
    shutil.rmtree(folder, ignore_errors=True)
    venv.create(folder, with_pip=True, symlinks=os.name != "nt")
    (folder / "home").mkdir()
    pip = [str(environment.python_of(folder)), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    if platform.system() == "Linux":
        environment.install_cpu_torch(pip)
    subprocess.run([*pip, *requirements()], check=True)
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(folder / "home" / "book")], check=True)
    subprocess.run(["./postBuild"], cwd=folder / "home" / "book", env=variables(folder), check=True)


def size(folder: Path) -> int:
    """Bytes of all files of an environment, but for the clone."""
    files = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return sum(path.stat().st_size for path in files if not path.is_relative_to(folder / "home"))


def stated_size() -> float:
    """The size of Binder's packages in GB, as the book tells its readers."""
    text = (ROOT / "book" / "how-to-use.md").read_text(encoding="utf-8")
    (stated,) = re.findall(r"([\d.]+) GB of packages", text)
    return float(stated)


@contextmanager
def jupyterlab(folder: Path) -> Iterator[Server]:
    """Serve the clone of an environment by its JupyterLab, which knows of no earlier visit."""
    shutil.rmtree(folder / "home" / ".jupyter", ignore_errors=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    token = secrets.token_hex()
    python, log = environment.python_of(folder), folder / "jupyterlab.log"
    options = [f"--ServerApp.port={port}", "--ServerApp.port_retries=0", f"--IdentityProvider.token={token}"]
    command = [str(python), "-m", "jupyterlab", "--no-browser", "--allow-root", "--expose-app-in-browser", *options]
    with log.open("w") as out:
        process = subprocess.Popen(
            command,
            cwd=folder / "home" / "book",
            env=variables(folder) | NO_NETWORK,
            stdout=out,
            stderr=subprocess.STDOUT,
        )
        try:
            server = Server(f"http://127.0.0.1:{port}", token, psutil.Process(process.pid))
            for _ in range(120):
                if process.poll() is not None or server.answers():
                    break
                time.sleep(0.5)
            else:
                raise RuntimeError(f"JupyterLab must answer within a minute; its log is {log}")
            if process.returncode is not None:
                raise RuntimeError(f"JupyterLab must go on running; its log is {log}")
            yield server
        finally:
            process.terminate()
            process.wait()


@dataclass(frozen=True)
class Server:
    """A JupyterLab that runs: its address, the word that opens it, and its process."""

    address: str
    token: str
    process: psutil.Process

    def answers(self) -> bool:
        """Whether it is there."""
        try:
            urllib.request.urlopen(f"{self.address}/api?token={self.token}", timeout=5).close()
        except OSError:
            return False
        return True


@dataclass
class Visit:
    """What a reader gets who opens a chapter and runs it."""

    seconds: float  # from the start of the run to its end
    peak_memory: int  # bytes, of JupyterLab and the kernel together
    faults: list[str]  # what should not be


def visit(context: BrowserContext, server: Server, path: str, picture: Path) -> Visit:
    """Open what a Binder button asks for, run it to the end and take a picture of its beginning."""
    tab = context.new_page()
    tab.goto(f"{server.address}/{path}?token={server.token}")
    tab.wait_for_function(READY, timeout=120_000)
    faults = unlike_a_notebook(tab)
    peak, finished = 0, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not finished.wait(0.02):
            peak = max(peak, resident_memory(server.process))

    watcher = threading.Thread(target=watch)
    watcher.start()
    start = time.perf_counter()
    try:
        tab.evaluate("() => jupyterapp.commands.execute('notebook:run-all-cells')")
    finally:
        finished.set()
        watcher.join()
    seconds = time.perf_counter() - start
    notebook = tab.evaluate("() => jupyterapp.shell.currentWidget.content.model.toJSON()")
    faults += unlike_a_run(notebook)
    tab.screenshot(path=picture)
    return Visit(seconds, peak, faults)


def unlike_a_notebook(tab: Page) -> list[str]:
    """What a reader meets who has just opened a chapter and should see a notebook with a kernel, and nothing more."""
    seen = {
        "no notebook is shown": not tab.locator(".jp-NotebookPanel:visible .jp-Cell").count(),
        "the chapter is shown as text": tab.locator(".jp-FileEditor:visible").count(),
        "raw markup is shown": tab.locator(".jp-MarkdownCell .myst:visible", has_text=":::").count(),
        "a dialog is open": tab.locator(".jp-Dialog:visible").count(),
        "a notice is shown": tab.locator(".Toastify__toast:visible").count(),
    }
    return [fault for fault, found in seen.items() if found]


def unlike_a_run(notebook: dict[str, Any]) -> list[str]:
    """What is wrong in a notebook that has run to its end: cells that have not, errors, warnings."""
    faults = []
    for cell in notebook["cells"]:
        if cell["cell_type"] != "code":
            continue
        begin = "".join(cell["source"]).partition("\n")[0]
        if not cell["execution_count"]:
            faults.append(f"the cell that begins {begin!r} has not run")
        for output in cell["outputs"]:
            if output["output_type"] == "error":
                faults.append(f"the cell that begins {begin!r} fails: {output['ename']}: {output['evalue']}")
            elif output.get("name") == "stderr":
                faults.append(f"the cell that begins {begin!r} warns: {''.join(output['text'])}")
    return faults


def main() -> None:
    """Make the environment and visit the chapters (all, or those named: book/quickstart ...)."""
    pages = sys.argv[1:] or notebooks.sources()
    program = browser.find()
    if program is None:
        sys.exit(f"A browser opens the chapters, and none of {', '.join(browser.PROGRAMS)} is installed.")
    make_environment(PLACE)
    packages = size(PLACE) / 1e9
    print(f"The packages take {packages:.2f} GB; the book says {stated_size()} GB.", flush=True)
    failed = ["the size"] if abs(packages / stated_size() - 1) > 0.15 else []
    with sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=program, args=browser.ARGUMENTS)
        for page in pages:
            with jupyterlab(PLACE) as server, chromium.new_context(viewport={"width": 1280, "height": 1600}) as context:
                seen = visit(context, server, url_path(notebooks.HTML, page), PLACE / f"{Path(page).name}.png")
            memory = seen.peak_memory / 2**30
            print(f"{page}: ran in {seen.seconds:.0f} s; {memory:.2f} GiB with JupyterLab", flush=True)
            if seen.peak_memory > MEMORY:
                seen.faults.append(f"memory must stay below {MEMORY / 2**30:g} GiB")
            for fault in seen.faults:
                print(f"  {fault}", flush=True)
            failed += [page] if seen.faults else []
        chromium.close()
    if failed:
        sys.exit(f"Not as they should be: {', '.join(failed)}")


if __name__ == "__main__":
    main()
