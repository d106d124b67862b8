"""Write the repository's public address, a key in pyproject.toml, wherever the project names it.

The key is `repository` in [tool.attention-phases]. The table [project.urls] holds the address that was written last,
which is the one to look for in all the other files: it is rewritten last, so that a run may be repeated.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent


class Address(NamedTuple):
    """Where the project lives: at GitHub, by owner and name, and as a rendered book."""

    repository: str
    slug: str
    pages: str


def parse(repository: str) -> Address:
    """Take a repository's address apart; ValueError where it is none."""
    match = re.fullmatch(r"https://github\.com/([\w-]+)/([\w.-]+?)", repository)
    if match is None or repository.endswith(".git"):
        raise ValueError(f"repository must be like https://github.com/owner/name; got {repository}")
    owner, name = match.groups()
    return Address(repository, f"{owner}/{name}", f"https://{owner}.github.io/{name}")


def read(root: Path) -> tuple[Address, Address]:
    """The wanted address and the one that was written last."""
    settings = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    wanted = settings["tool"]["attention-phases"]["repository"]
    return parse(wanted), parse(settings["project"]["urls"]["Repository"])


def text_files(root: Path) -> dict[Path, str]:
    """The project's own text files and their contents, pyproject.toml last."""
    listing = ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listing, check=True, capture_output=True, text=True).stdout.split("\0")
    found = {}
    for path in sorted((root / name for name in names if name), key=lambda path: path.name == "pyproject.toml"):
        if path.is_file():
            try:
                found[path] = path.read_bytes().decode("utf-8")
            except UnicodeDecodeError:
                continue
    return found


def replaced(text: str, old: Address, new: Address) -> str:
    """The text with each mention of the old address made one of the new; in URLs alone."""
    text = re.sub(rf"{re.escape(old.pages)}(?![\w.-])", new.pages, text)
    return re.sub(rf"(?<=/){re.escape(old.slug)}(?![\w-])", new.slug, text)


def main(root: Path = ROOT) -> None:
    """Rewrite every file that names the address."""
    new, old = read(root)
    for path, text in text_files(root).items():
        if (changed := replaced(text, old, new)) != text:
            path.write_bytes(changed.encode("utf-8"))
            print(f"wrote {path.relative_to(root)}")


if __name__ == "__main__":
    try:
        main()
    except ValueError as error:
        sys.exit(str(error))
