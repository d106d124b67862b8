"""Check that the repository is what a tag says, and gather a release in _build/release: release.py TAG [--check].

A tag is `v` and the version of pyproject.toml; the changelog has a dated entry for that version. A release is the book
as a PDF and as a zip, the notebooks as a zip, the locked versions, and notes: the changelog's entry and the versions
that made the numbers. `--check` gathers nothing. Only the standard library: the check comes before any installation.
"""

from __future__ import annotations

import re
import shutil
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def entry(root: Path, tag: str) -> str:
    """The changelog's entry for the version that the tag names; ValueError where something disagrees."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    if tag != f"v{project['version']}":
        raise ValueError(f"the tag must be v{project['version']}, as pyproject.toml says; got {tag}")
    changelog = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    heading = rf"^## {re.escape(project['version'])}, (.*)\n+((?:(?!## ).*\n?)*)"
    found = re.search(heading, changelog, re.MULTILINE)
    if found is None or not found[2].strip():
        raise ValueError(f"CHANGELOG.md must have an entry for {project['version']}; it has none")
    if not re.fullmatch(r"\d{4}-\d\d-\d\d", found[1]):
        raise ValueError(
            f"the changelog's entry for {project['version']} must have a date (2027-01-31); got {found[1]}"
        )
    return found[2].strip()


def versions(root: Path) -> dict[str, str]:
    """The locked version of each package that the library computes with."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    names = [re.split(r"[^\w.-]", line)[0] for line in project["dependencies"]]
    lock = (root / "requirements.lock").read_text(encoding="utf-8")
    locked = dict(line.split("==") for line in lock.splitlines() if not line.startswith("#"))
    return {name: locked[name] for name in names}


def gather(root: Path, tag: str) -> list[Path]:
    """Put together what a release consists of, in _build/release; return the files."""
    notes, build = entry(root, tag), root / "_build"
    made = [build / "phases-of-attention.pdf", build / "phases-of-attention.zip", build / "notebooks"]
    for path in made:
        if not path.exists():
            raise ValueError(f"{path} must have been made (make pdf zip notebooks); it is missing")
    release = build / "release"
    shutil.rmtree(release, ignore_errors=True)
    release.mkdir()
    for path in [*made[:2], root / "requirements.lock"]:
        shutil.copyfile(path, release / path.name)
    shutil.make_archive(str(release / "phases-of-attention-notebooks"), "zip", build / "notebooks")
    python = ".".join(map(str, sys.version_info[:3]))
    rows = "\n".join(f"| {name} | {version} |" for name, version in {"Python": python, **versions(root)}.items())
    table = f"| computed with | |\n|---|---|\n{rows}\n\nAll versions are in requirements.lock."
    (release / "notes.md").write_text(f"{notes}\n\n{table}\n", encoding="utf-8")
    return sorted(release.iterdir())


def main(arguments: list[str]) -> None:
    """Check, and gather unless told not to."""
    match arguments:
        case [tag, "--check"]:
            entry(ROOT, tag)
        case [tag]:
            for path in gather(ROOT, tag):
                print(f"{path}: {path.stat().st_size / 1e6:.1f} MB")
        case _:
            raise ValueError(f"release.py takes a tag; got {arguments}")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except ValueError as error:
        sys.exit(str(error))
