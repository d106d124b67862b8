"""Make the environment in .venv that all make targets use; do nothing where it is current.

Runs before anything is installed: only the standard library, and no syntax that would keep an old Python 3 from saying
that it is too old.
"""

import hashlib
import http.client
import json
import os
import platform
import shutil
import subprocess
import sys
import time
import urllib.request
import venv
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENT = ROOT / ".venv"
LOCK = ROOT / "requirements.lock"
MINIMUM_PYTHON = (3, 11)
NEEDED_DISK = 3 * 10**9  # bytes: the environment, the installer's temporary files and one built book
CPU_TORCH_INDEX = "https://download.pytorch.org/whl/cpu"


def check_python(version: "tuple[int, int]") -> None:
    """Stop with a message where Python is too old; `version` is (major, minor)."""
    if version < MINIMUM_PYTHON:
        needed, found = ".".join(map(str, MINIMUM_PYTHON)), ".".join(map(str, version))
        sys.exit(
            f"Phases of Attention needs Python {needed} or newer; {sys.executable} is Python {found}.\n"
            "Name a newer one, for example: make book PYTHON=python3.12"
        )


def check_venv() -> None:
    """Stop with a message where this Python cannot make environments, as on Debian without a package."""
    try:
        import ensurepip  # noqa: F401
    except ImportError:
        sys.exit(f"{sys.executable} cannot make environments; on Debian and Ubuntu: apt install python3-venv")


def check_disk(free: int) -> None:
    """Stop with a message where the disk is too full; `free` is in bytes."""
    if free < NEEDED_DISK:
        sys.exit(
            f"The environment and the book need {NEEDED_DISK / 1e9:.1f} GB of free disk; "
            f"there are {free / 1e9:.1f} GB at {ROOT}."
        )


def python_of(environment: Path) -> Path:
    """The interpreter of an environment."""
    return environment / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def reachable(index: str) -> bool:
    """Whether a package index answers within five seconds."""
    try:
        urllib.request.urlopen(f"{index}/torch/", timeout=5).close()
    except (OSError, ValueError, http.client.HTTPException):  # the last two: the address is none
        return False
    return True


def install_cpu_torch(pip: "list[str]") -> None:
    """Install the CPU build of PyTorch, where it can be had: the usual one for Linux brings gigabytes of CUDA."""
    index = os.environ.get("TORCH_INDEX", CPU_TORCH_INDEX).rstrip("/")
    locked = next(line for line in LOCK.read_text(encoding="utf-8").splitlines() if line.startswith("torch=="))
    command = [*pip, "--no-deps", "--index-url", index, locked]
    if not reachable(index) or subprocess.run(command, check=False).returncode:
        print(f"No CPU build of torch at {index}: taking the default one, which may be larger.", flush=True)


def install(environment: Path) -> None:
    """Install the locked versions and this package, editable."""
    pip = [str(python_of(environment)), "-m", "pip", "--disable-pip-version-check", "install"]
    if platform.system() == "Linux":
        install_cpu_torch(pip)
    subprocess.run([*pip, "-r", str(LOCK)], check=True)
    subprocess.run([*pip, "--no-build-isolation", "--no-deps", "-e", str(ROOT)], check=True)


@contextmanager
def alone() -> "Iterator[None]":
    """Wait until no other set-up of this project is at work, and keep others waiting.

    The file of locked versions carries the mark, which the system removes with the process, however that ends.
    """
    with LOCK.open("r+b") as file:
        waited = False
        while not _locked(file.fileno()):
            if not waited:
                print("Another set-up is at work; waiting for it", flush=True)
            waited = True
            time.sleep(0.5)
        yield


def _locked(file: int) -> bool:
    """Lock an open file, unless another process has it locked; closing the file frees it."""
    try:
        if sys.platform == "win32":
            import msvcrt

            os.lseek(file, 2**30, os.SEEK_SET)  # behind the end: a lock on content would keep others from reading it
            msvcrt.locking(file, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    return True


def read_stamp(stamp: Path) -> "dict[str, Any]":
    """What an environment was made from; nothing where the stamp is missing or cannot be read."""
    try:
        made = json.loads(stamp.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return made if isinstance(made, dict) else {}


def check_place(environment: Path) -> None:
    """Stop with a message where something stands that no set-up has made: it is not ours to change or remove."""
    if os.path.lexists(environment) and not environment.is_dir():
        sys.exit(f"{environment} must be a folder; it is a file or a broken link. Move it away.")
    ours = any((environment / name).exists() for name in ("made-from.json", "unfinished"))
    if environment.is_dir() and any(environment.iterdir()) and not ours:
        sys.exit(f"{environment} must be missing, empty or made by this set-up; it is none of these. Move it away.")


def remove_content(environment: Path) -> None:
    """Empty an environment, all but the mark `unfinished`, which shows to the end that it is ours."""
    for entry in environment.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(str(entry))
        elif entry.name != "unfinished":
            entry.unlink()


def bring_up_to_date(environment: Path) -> None:
    """Make or update the environment, unless it was made from the present lock, package and Python.

    A set-up that was interrupted leaves the file `unfinished` and is repeated from the start. An environment that
    was moved, or whose Python has changed, is made anew: neither works.
    """
    check_place(environment)
    stamp, unfinished = environment / "made-from.json", environment / "unfinished"
    digest = hashlib.sha256(LOCK.read_bytes() + (ROOT / "pyproject.toml").read_bytes()).hexdigest()
    wanted = {"inputs": digest, "place": str(environment), "python": platform.python_version()}
    made = read_stamp(stamp)
    usable = python_of(environment).exists() and not unfinished.exists()
    if usable and made == wanted:
        return
    check_venv()
    check_disk(shutil.disk_usage(str(ROOT)).free)
    environment.mkdir(exist_ok=True)
    unfinished.touch()
    if usable and made in ({}, {**wanted, "inputs": made.get("inputs")}):
        print(f"Bringing the environment in {environment} up to date", flush=True)
        stamp.unlink(missing_ok=True)
    else:
        print(f"Making the environment in {environment}, once; the network sets the time", flush=True)
        remove_content(environment)
        venv.create(str(environment), with_pip=True, symlinks=os.name != "nt")
    install(environment)
    new = environment / "made-from.json.new"
    new.write_text(json.dumps(wanted), encoding="utf-8")
    new.replace(stamp)
    unfinished.unlink()
    print("The environment is ready", flush=True)


def main() -> None:
    """Set up .venv."""
    check_python(sys.version_info[:2])
    try:
        with alone():
            bring_up_to_date(ENVIRONMENT)
    except subprocess.CalledProcessError as error:
        sys.exit(f"The set-up failed at: {' '.join(error.cmd)}")
    except OSError as error:
        sys.exit(f"The set-up failed: {error}")
    except KeyboardInterrupt:
        sys.exit("The set-up was interrupted; the next one starts from the beginning.")


if __name__ == "__main__":
    main()
