"""A file is fetched once, whole, and whatever a host does instead is named. The host is a server on this machine."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import http.server
import re
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest
from attention_phases import downloads
from attention_phases.downloads import PinnedFile, fetch
from attention_phases.errors import DownloadError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

CONTENT = b"Once upon a time.\n" * 500
PAGE = b"<!DOCTYPE html><html><body>Please sign in</body></html>"


class Host:
    """Answers each request with the next of its answers, and the last one for ever; counts the requests."""

    def __init__(self) -> None:
        self.answers: list[Callable[[http.server.BaseHTTPRequestHandler], None]] = [good]
        self.n_requests = 0
        host = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                answer = host.answers[min(host.n_requests, len(host.answers) - 1)]
                host.n_requests += 1
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    answer(self)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/a.txt"
        self.file = PinnedFile("a.txt", self.url, len(CONTENT), hashlib.sha256(CONTENT).hexdigest())
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def sends(status: int, body: bytes, length: int | None = None, **headers: str) -> Any:
    def answer(handler: http.server.BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name, value)
        if length != -1:
            handler.send_header("Content-Length", str(len(body) if length is None else length))
        handler.end_headers()
        handler.wfile.write(body)

    return answer


good = sends(200, CONTENT)


def silent(_: http.server.BaseHTTPRequestHandler) -> None:
    """Close the connection without a word."""


def endless(handler: http.server.BaseHTTPRequestHandler) -> None:
    """A body that no disk can hold."""
    sends(200, b"", -1)(handler)
    while True:
        handler.wfile.write(CONTENT)


def drips(handler: http.server.BaseHTTPRequestHandler) -> None:
    sends(200, b"", -1)(handler)
    for byte in CONTENT:
        handler.wfile.write(bytes([byte]))
        threading.Event().wait(0.01)


def stalls(handler: http.server.BaseHTTPRequestHandler) -> None:
    sends(200, CONTENT[:1000], len(CONTENT))(handler)
    handler.wfile.flush()
    threading.Event().wait(0.5)


def slow(handler: http.server.BaseHTTPRequestHandler) -> None:
    threading.Event().wait(0.5)  # no test waits by sleep(), which the fixture switches off
    good(handler)


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Host]:
    monkeypatch.delenv(downloads.FOLDER, raising=False)
    monkeypatch.setattr("pooch.os_cache", lambda name: tmp_path / "cache")
    monkeypatch.setattr("pooch.core.time.sleep", lambda seconds: None)  # between tries
    server = Host()
    yield server
    server.close()


def kept(tmp_path: Path) -> list[str]:
    """The files in the cache, without the lock."""
    return sorted(file.name for file in (tmp_path / "cache").iterdir() if file.suffix != ".lock")


def test_a_file_is_downloaded_once(host: Host, tmp_path: Path) -> None:
    for _ in range(3):
        assert fetch(host.file).read_bytes() == CONTENT
    assert host.n_requests == 1
    assert kept(tmp_path) == ["a.txt"]


@pytest.mark.parametrize("damage", [CONTENT[:100], b"", CONTENT[:-1] + b"!"])
def test_a_damaged_file_of_the_cache_is_replaced(damage: bytes, host: Host, tmp_path: Path) -> None:
    fetch(host.file).write_bytes(damage)
    assert fetch(host.file).read_bytes() == CONTENT
    assert host.n_requests == 2


def test_a_redirection_is_followed(host: Host) -> None:
    host.answers = [sends(status, b"", Location=host.url) for status in (301, 302, 307)] + [good]
    assert fetch(host.file).read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("answer", "message", "n_requests"),
    [
        (sends(404, b"gone"), "is not there: the host answers 404 Not Found", 1),
        (sends(410, b"gone"), "is not there: the host answers 410 Gone", 1),
        (sends(200, PAGE), "sent a web page in place of the file", 1),
        (
            sends(200, b"<!-- Welcome -->" + PAGE, None, **{"Content-Type": "text/html"}),
            "sent a web page in place of",
            1,
        ),
        (sends(200, PAGE + CONTENT), "sent a web page in place of the file", 1),
        (sends(202, b"", -1), "is not to be had now: the host answers 202 Accepted", 3),
        (sends(204, b""), "is not to be had now: the host answers 204 No Content", 3),
        (sends(429, b"slow down"), "is not to be had now: the host answers 429 Too Many Requests", 3),
        (sends(503, PAGE), "is not to be had now: the host answers 503 Service Unavailable", 3),
        (sends(200, b""), "sent nothing", 3),
        (sends(200, CONTENT[:1000], -1), f"sent 1000 bytes of {len(CONTENT)}", 3),
        (sends(200, CONTENT[:1000], len(CONTENT)), "broke off (", 3),
        (sends(200, CONTENT[:-1] + b"!"), "sent a file with a wrong checksum", 3),
        (sends(200, CONTENT + b"more"), f"sent more than the {len(CONTENT)} bytes of the file", 3),
        (endless, f"sent more than the {len(CONTENT)} bytes of the file", 3),
        (sends(200, CONTENT, None, **{"Content-Encoding": "gzip"}), "broke off (", 3),
        (sends(302, b""), "is not to be had now: the host answers 302 Found", 3),
        (silent, "could not be reached", 3),
    ],
)
def test_what_comes_in_place_of_the_file_is_named(
    answer: Any, message: str, n_requests: int, host: Host, tmp_path: Path
) -> None:
    """What may be better the next time is tried three times; nothing of it is kept."""
    host.answers = [answer]
    with pytest.raises(DownloadError, match=re.escape(f"{host.url} {message}")) as caught:
        fetch(host.file)
    assert f"put a.txt (sha256 {host.file.sha256}) into a folder" in str(caught.value)
    assert "ATTENTION_PHASES_DATA" in str(caught.value)
    assert host.n_requests == n_requests
    assert kept(tmp_path) == []
    host.answers = [good]
    assert fetch(host.file).read_bytes() == CONTENT


def test_a_circle_of_redirections_is_named(host: Host) -> None:
    host.answers = [sends(302, b"", Location=host.url)]
    with pytest.raises(DownloadError, match="redirects in a circle"):
        fetch(host.file)


def test_what_goes_wrong_once_or_twice_does_no_harm(host: Host) -> None:
    host.answers = [silent, sends(200, CONTENT[:1000], len(CONTENT)), good]
    assert fetch(host.file).read_bytes() == CONTENT


def test_a_host_that_is_down_or_unknown_is_named(host: Host) -> None:
    url = host.url
    host.close()
    for address in (url, "http://no-such-host.invalid/a.txt"):
        with pytest.raises(DownloadError, match=rf"{re.escape(address)} could not be reached \("):
            fetch(PinnedFile("a.txt", address, len(CONTENT), host.file.sha256))


def test_a_host_that_does_not_answer_is_named(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(downloads, "_TIMEOUT", 0.1)
    host.answers = [slow]
    with pytest.raises(DownloadError, match=r"did not answer within 0\.1 s"):
        fetch(host.file)


def test_a_host_that_falls_silent_is_named(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(downloads, "_TIMEOUT", 0.1)
    host.answers = [stalls]
    with pytest.raises(DownloadError, match=r"broke off \(.*timed out"):
        fetch(host.file)


def test_a_host_that_sends_byte_after_byte_is_named(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would take a minute and a half; a host that sends 100 bytes a second is not waited for, nor asked again."""
    monkeypatch.setattr(downloads, "_TIMEOUT", 0.5)
    host.answers = [drips]
    with pytest.raises(DownloadError, match=rf"comes too slowly: \d+ of {len(CONTENT)} bytes so far"):
        fetch(host.file)
    assert host.n_requests == 1
    assert kept(tmp_path) == []


def test_a_cache_that_has_the_file_need_not_be_written_to(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that many users share."""
    fetch(host.file)

    def refused(*_: Any, **__: Any) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("filelock.FileLock.acquire", refused)
    assert fetch(host.file).read_bytes() == CONTENT
    assert host.n_requests == 1
    fetch(host.file).write_bytes(b"damaged")
    with pytest.raises(DownloadError, match=r"cannot be stored in .*cache: .*Permission denied"):
        fetch(host.file)


def test_a_full_disk_is_named_and_leaves_nothing(host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("pooch.core.shutil.move", full)
        with pytest.raises(DownloadError, match=r"cannot be stored in .*cache: no space is left"):
            fetch(host.file)
    assert kept(tmp_path) == []


def test_a_cache_that_cannot_be_written_is_named(host: Host, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")
    with pytest.raises(DownloadError, match=r"cannot be stored in .*cache: "):
        fetch(host.file)


@pytest.mark.parametrize("signal", [KeyboardInterrupt, SystemExit])
def test_an_interrupted_download_leaves_nothing_that_is_used(
    signal: type[BaseException], host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise signal

    with monkeypatch.context() as patch:
        patch.setattr("pooch.core.hash_matches", interrupted)
        with pytest.raises(signal):
            fetch(host.file)
    assert kept(tmp_path) == []
    assert fetch(host.file).read_bytes() == CONTENT


PROGRAM = """
import sys
from pathlib import Path
import pooch
pooch.os_cache = lambda name: Path(sys.argv[1])
from attention_phases.downloads import PinnedFile, fetch
print(fetch(PinnedFile("a.txt", sys.argv[2], int(sys.argv[3]), sys.argv[4])).stat().st_size)
"""


def test_two_processes_download_once(host: Host, tmp_path: Path) -> None:
    host.answers = [slow]
    arguments = [str(tmp_path / "cache"), host.url, str(len(CONTENT)), host.file.sha256]
    both = [
        subprocess.Popen([sys.executable, "-c", PROGRAM, *arguments], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    assert [process.communicate()[0] for process in both] == [f"{len(CONTENT)}\n"] * 2
    assert host.n_requests == 1


def test_a_killed_download_leaves_nothing_that_is_used(host: Host, tmp_path: Path) -> None:
    begun = threading.Event()

    def hangs(handler: http.server.BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(CONTENT)))
        handler.end_headers()
        handler.wfile.write(CONTENT[:5000])
        handler.wfile.flush()
        begun.set()
        threading.Event().wait(5)

    host.answers = [hangs, good]
    arguments = [str(tmp_path / "cache"), host.url, str(len(CONTENT)), host.file.sha256]
    with subprocess.Popen([sys.executable, "-c", PROGRAM, *arguments], stderr=subprocess.DEVNULL) as process:
        assert begun.wait(30)
        process.kill()
    assert fetch(host.file).read_bytes() == CONTENT


def test_a_folder_stands_in_for_the_network(host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "a.txt").write_bytes(CONTENT)
    assert fetch(host.file, folder) == folder / "a.txt"
    monkeypatch.setenv(downloads.FOLDER, str(folder))
    assert fetch(host.file) == folder / "a.txt"
    assert host.n_requests == 0


def test_a_folder_without_the_file_or_with_another_one_is_refused(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValueError, match=r"folder must be a folder with the file a\.txt; .* has none"):
        fetch(host.file, tmp_path)
    (tmp_path / "a.txt").write_bytes(CONTENT[:-1])
    with pytest.raises(ValueError, match=rf"a\.txt must have the sha256 {host.file.sha256}; got "):
        fetch(host.file, tmp_path)
    assert (tmp_path / "a.txt").read_bytes() == CONTENT[:-1]
    for folder in (tmp_path / "nowhere", tmp_path / "a.txt", 3):
        with pytest.raises(ValueError, match="folder must be the path of a folder"):
            fetch(host.file, folder)  # type: ignore[arg-type]
    monkeypatch.setenv(downloads.FOLDER, str(tmp_path / "nowhere"))
    with pytest.raises(ValueError, match="ATTENTION_PHASES_DATA must be the path of a folder"):
        fetch(host.file)
    assert host.n_requests == 0
