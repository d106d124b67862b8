"""Files from the network, each with its checksum: fetched once, kept in the user's cache folder, never half written."""

import errno
import hashlib
import os
import time
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from attention_phases import _checks
from attention_phases.errors import DownloadError

FOLDER = "ATTENTION_PHASES_DATA"  # environment variable: a folder that has the files, in place of the network
CACHE = "attention-phases"
_TIMEOUT = 30.0  # seconds in which a host must answer, or send something more
_SLOWEST = 1000.0  # bytes a second, on average, after the first 30 s: a host that sends less has as good as stopped
_PIECE = 64  # bytes that are waited for: of a host that sends one now and then, few
_PAGE_BEGINS = 1024  # bytes in which a web page shows itself
_RETRIES = 2
_OK = 200
_FOR_EVER = range(400, 500)  # a request that was wrong once is wrong again
_TRY_LATER = (408, 425, 429)  # of these, the exceptions


@dataclass(frozen=True)
class PinnedFile:
    """A file that never changes.

    Attributes:
        name: what it is called in the cache, or in a folder of the reader's own.
        url: where it comes from.
        size: in bytes.
        sha256: its checksum, in hexadecimal digits.
    """

    name: str
    url: str
    size: int
    sha256: str


def fetch(file: PinnedFile, folder: str | os.PathLike[str] | None = None) -> Path:
    """The path of the file: in `folder`, or in the folder that ``ATTENTION_PHASES_DATA`` names, or in the cache.

    Only if neither names a folder, and the cache does not have the file whole, it is downloaded. Two processes that
    want the same file do it once. A download that is interrupted leaves nothing that is ever used.

    Raises:
        ValueError: the folder has no such file, or another one of that name.
        DownloadError: the file could not be had; the message says what went wrong, and how to do without network.
    """
    given = os.environ.get(FOLDER) if folder is None else folder
    if given:
        return _in_folder(file, given, FOLDER if folder is None else "folder")
    return _downloaded(file)


def _in_folder(file: PinnedFile, folder: str | os.PathLike[str], name: str) -> Path:
    if not isinstance(folder, str | os.PathLike) or not Path(folder).is_dir():
        raise ValueError(f"{name} must be the path of a folder; got {_checks.shown(folder)}")
    path = Path(folder) / file.name
    if not path.is_file():
        raise ValueError(f"{name} must be a folder with the file {file.name}; {folder} has none")
    if (found := _sha256(path)) != file.sha256:
        raise ValueError(f"{path} must have the sha256 {file.sha256}; got {found}")
    return path


def _sha256(path: Path) -> str:
    with path.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _downloaded(file: PinnedFile) -> Path:
    import pooch
    import requests

    cache = pooch.create(
        pooch.os_cache(CACHE),
        base_url="",
        registry={file.name: f"sha256:{file.sha256}"},
        urls={file.name: file.url},
        retry_if_failed=_RETRIES,
    )
    path = Path(cache.path) / file.name
    try:
        if path.is_file() and _sha256(path) == file.sha256:  # no lock: the folder may be one that cannot be written to
            return path
        Path(cache.path).mkdir(parents=True, exist_ok=True)
        with FileLock(cache.path / f"{file.name}.lock"):
            return Path(cache.fetch(file.name, downloader=lambda url, output, _: _download(file, url, output)))
    except _WrongAnswerError as error:
        what = str(error)
    except requests.exceptions.Timeout:
        what = f"did not answer within {_TIMEOUT:g} s"
    except requests.exceptions.TooManyRedirects:
        what = "redirects in a circle"
    except requests.exceptions.RequestException as error:
        what = f"could not be reached ({error})"
    except ValueError:
        what = "sent a file with a wrong checksum"
    except OSError as error:
        if isinstance(error, DownloadError):
            raise
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        what = f"cannot be stored in {cache.path}: {'no space is left' if full else error}"
    raise _failed(file, what)


class _WrongAnswerError(ValueError):
    """An answer that may be better the next time."""


def _failed(file: PinnedFile, what: str) -> DownloadError:
    return DownloadError(
        f"{file.url} {what}. To do without it, put {file.name} (sha256 {file.sha256}) into a folder, "
        f"and name the folder in folder= or in the environment variable {FOLDER}."
    )


def _download(file: PinnedFile, url: str, output: str) -> None:
    """Write to `output` what the host sends, as long as it may be the file."""
    import requests
    from tqdm import tqdm

    with requests.get(url, stream=True, timeout=_TIMEOUT) as response:
        status = f"{response.status_code} {response.reason}"
        if response.status_code in _FOR_EVER and response.status_code not in _TRY_LATER:
            raise _failed(file, f"is not there: the host answers {status}")
        if response.status_code != _OK:
            raise _WrongAnswerError(f"is not to be had now: the host answers {status}")
        begin, size, since = b"", 0, time.monotonic()
        with (
            Path(output).open("wb") as content,
            tqdm(desc=file.name, total=file.size, unit="B", unit_scale=True, disable=None) as bar,
        ):
            try:
                for piece in response.iter_content(_PIECE):
                    begin += piece[: _PAGE_BEGINS - len(begin)]
                    size += len(piece)
                    content.write(piece)
                    bar.update(len(piece))
                    if size > file.size:
                        break
                    if size < _SLOWEST * (time.monotonic() - since - _TIMEOUT):
                        raise _failed(file, f"comes too slowly: {size} of {file.size} bytes so far")
            except requests.exceptions.RequestException as error:
                raise _WrongAnswerError(f"broke off ({error})") from None
        if size == file.size:
            return
        kind = response.headers.get("Content-Type", "").lower()
        if "html" in kind or begin.lstrip().lower().startswith((b"<!doctype html", b"<html")):
            raise _failed(file, "sent a web page in place of the file, as a network does that wants you to sign in")
        if size > file.size:
            raise _WrongAnswerError(f"sent more than the {file.size} bytes of the file")
        raise _WrongAnswerError(f"sent {size} bytes of {file.size}" if size else "sent nothing")
