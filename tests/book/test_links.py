"""The check of links to other sites names those that are dead, and bears with a slow or a busy server."""

from __future__ import annotations

import shutil
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

import pytest
import yaml

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).parents[2]
OWN = "https://github.com/OWNER/phases-of-attention https://OWNER.github.io/phases-of-attention/book/index.html"


@pytest.fixture
def site() -> Iterator[str]:
    """The address of a stand-in for other sites: /busy answers at the second request, /dead never."""
    asked: set[str] = set()

    class Site(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            busy = self.path == "/busy" and self.path not in asked
            asked.add(self.path)
            found = {"/good": 200, "/moved": 301, "/busy": 429 if busy else 200}.get(self.path, 404)
            body = b'<p id="there">text</p>' if found == 200 else b""
            self.send_response(found)
            if found == 301:
                self.send_header("Location", "/good")
            if found == 429:
                self.send_header("Retry-After", "1")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        do_HEAD = do_GET

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Site)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture
def check(run_recipe: Callable[[str, Path], subprocess.CompletedProcess[str]], tmp_path: Path) -> Callable[[str], Any]:
    """A function that runs the command of `make links` on a book of one page with a text, with the book's settings."""
    settings = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))
    ours = {name: value for name, value in settings["sphinx"]["config"].items() if name.startswith("linkcheck_")}
    config = {"title": "Links", "parse": settings["parse"], "sphinx": {"config": ours}}
    (tmp_path / "_config.yml").write_text(yaml.safe_dump(config), encoding="utf-8")
    (tmp_path / "_toc.yml").write_text("format: jb-book\nroot: index\n", encoding="utf-8")

    def run(text: str) -> subprocess.CompletedProcess[str]:
        (tmp_path / "index.md").write_text(f"# Links\n\n{text}\n", encoding="utf-8")
        shutil.rmtree(tmp_path / "_build", ignore_errors=True)
        return run_recipe("links", tmp_path)

    return run


def test_links_that_work_pass_and_our_own_are_not_asked(check: Callable[[str], Any], site: str) -> None:
    result = check(f"{site}/good {site}/good#there {site}/moved {site}/busy {OWN}")
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize("dead", ["/dead", "/good#nowhere"])
def test_a_dead_link_or_anchor_is_named_and_fails_the_check(check: Callable[[str], Any], site: str, dead: str) -> None:
    result = check(f"[good]({site}/good) and [dead]({site}{dead})")
    assert result.returncode != 0
    broken = [line for line in result.stdout.splitlines() if "broken" in line and site in line]
    assert len(broken) == 1
    assert f"{site}{dead}" in broken[0]
