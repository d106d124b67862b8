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
from typing import Any, NamedTuple
from urllib.parse import quote

ROOT = Path(__file__).resolve().parent.parent


OWNER = r"[a-z\d](?:-?[a-z\d]){0,38}"  # GitHub's rule for names of accounts
NAME = r"(?!\.{1,2}$)[\w.-]{1,100}(?<!\.git)"


class Address(NamedTuple):
    """Where the project lives: at GitHub, by owner and name, and as a rendered book."""

    repository: str
    owner: str
    name: str
    pages: str

    @property
    def slug(self) -> str:
        """Owner and name, as GitHub writes them."""
        return f"{self.owner}/{self.name}"


def parse(repository: object) -> Address:
    """Take a repository's address apart; ValueError where it is none.

    The repository that is named like its owner's site is that site; any other has a folder there.
    """
    form = rf"https://github\.com/({OWNER})/({NAME})"
    match = re.fullmatch(form, repository, re.ASCII | re.IGNORECASE) if isinstance(repository, str) else None
    if match is None:
        raise ValueError(f"repository must be like https://github.com/owner/name; got {repository}")
    owner, name = match.groups()
    site = f"{owner}.github.io"
    folder = "" if name.lower() == site.lower() else f"/{name}"
    return Address(match[0], owner, name, f"https://{site}{folder}")


def read(root: Path) -> tuple[Address, Address]:
    """The wanted address and the one that was written last."""
    settings = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    found = []
    for *tables, key in (["tool", "attention-phases", "repository"], ["project", "urls", "Repository"]):
        table: Any = settings
        for name in tables:
            table = table.get(name) if isinstance(table, dict) else None
        if not isinstance(table, dict) or key not in table:
            raise ValueError(f"pyproject.toml must have the key {key} in [{'.'.join(tables)}]; it has none")
        found.append(parse(table[key]))
    return found[0], found[1]


def text_files(root: Path) -> dict[Path, str]:
    """The project's own text files and their contents, pyproject.toml last."""
    listing = ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        names = subprocess.run(listing, check=True, capture_output=True, text=True).stdout.split("\0")
    except (OSError, subprocess.CalledProcessError) as error:
        raise ValueError(f"{root} must be a git checkout, and git be installed, to list its files: {error}") from None
    found = {}
    for path in sorted((root / name for name in names if name), key=lambda path: path.name == "pyproject.toml"):
        if path.is_file():
            try:
                found[path] = path.read_bytes().decode("utf-8")
            except UnicodeDecodeError:
                continue
    return found


def replaced(text: str, old: Address, new: Address) -> str:
    """The text with each mention of the old address made one of the new: in URLs, and where a clone is entered.

    A URL that is a part of another one's query is quoted there, as in links that bring the notebooks to a JupyterHub.
    """
    text = re.sub(rf"{re.escape(old.pages)}(?![\w.-])", new.pages, text)
    text = re.sub(rf"(?<=/){re.escape(old.slug)}(?![\w-])", new.slug, text)
    text = re.sub(rf"(?<=%2F){re.escape(quote(old.slug, ''))}(?![\w-])", quote(new.slug, ""), text)
    text = re.sub(rf"(?<=lab%2Ftree%2F){re.escape(old.name)}(?=%2F)", new.name, text)
    return re.sub(rf"^cd {re.escape(old.name)}$", f"cd {new.name}", text, flags=re.MULTILINE)


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
