"""Write requirements.lock from what is installed: the versions that book, PDF, tests, lint and problem sets need.

To move to newer versions: install them in the environment, run the tests, run this.
"""

from __future__ import annotations

import itertools
import tomllib
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "requirements.lock"
EXTRAS = ["book", "pdf", "test", "lint", "homework"]
HEADER = "# What `make` installs, for every system. Written by tools/lock.py.\n"

SYSTEMS = [
    {"sys_platform": "linux", "platform_system": "Linux", "os_name": "posix"},
    {"sys_platform": "darwin", "platform_system": "Darwin", "os_name": "posix"},
    {"sys_platform": "win32", "platform_system": "Windows", "os_name": "nt"},
]
PYTHONS = [{"python_version": python, "python_full_version": f"{python}.0"} for python in ("3.11", "3.12", "3.13")]


def project() -> dict[str, Any]:
    """The table [project] of pyproject.toml."""
    table: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return table


def read_lock() -> dict[str, str]:
    """Canonical name and version of each line of the lock."""
    lines = LOCK.read_text(encoding="utf-8").splitlines()
    return dict(line.split("==", 1) for line in lines if not line.startswith("#"))


def applies(requirement: Requirement, extras: set[str]) -> bool:
    """Whether a requirement holds on one of the systems and Pythons that we support."""
    if requirement.marker is None:
        return True
    return any(
        requirement.marker.evaluate({**system, **python, "extra": extra})
        for system, python, extra in itertools.product(SYSTEMS, PYTHONS, extras | {""})
    )


def closure(requirements: list[str]) -> dict[str, str]:
    """Canonical name and installed version of all that `requirements` need, on any system, in the end.

    A package that is needed elsewhere alone (colorama) must be installed here too; all such are small.
    A build of a version for one kind of machine (2.13.0+cpu) counts as that version.
    """
    found: dict[str, str] = {}
    waiting, seen = list(requirements), set[str]()
    while waiting:
        requirement = Requirement(waiting.pop())
        name = canonicalize_name(requirement.name)
        installed = distribution(name)
        found[name] = Version(installed.version).public
        for text in installed.requires or []:
            if text not in seen and applies(Requirement(text), requirement.extras):
                seen.add(text)
                waiting.append(text)
    return found


def main() -> None:
    """Write the lock."""
    table = project()
    wanted = table["dependencies"] + [line for extra in EXTRAS for line in table["optional-dependencies"][extra]]
    lines = [f"{name}=={version}\n" for name, version in sorted(closure(wanted).items())]
    LOCK.write_text(HEADER + "".join(lines), encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
