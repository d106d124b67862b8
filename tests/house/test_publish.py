"""A branch is made of a folder's files alone, a commit each time, and the checkout stays as it was."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import publish
import pytest

if TYPE_CHECKING:
    from pathlib import Path


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
    return subprocess.run(
        ["git", "-C", str(folder), *identity, *arguments], check=True, capture_output=True, text=True
    ).stdout.strip()


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone with one commit, beside the repository that it came from."""
    subprocess.run(["git", "init", "--quiet", "--bare", str(tmp_path / "remote")], check=True)
    subprocess.run(["git", "clone", "--quiet", str(tmp_path / "remote"), str(tmp_path / "clone")], check=True)
    (tmp_path / "clone" / "source.md").write_text("source")
    (tmp_path / "clone" / ".gitignore").write_text("made/")
    git(tmp_path / "clone", "add", "--all")
    git(tmp_path / "clone", "commit", "--quiet", "--message", "first")
    return tmp_path / "clone"


def test_the_branch_holds_the_folder_and_a_commit_for_each_time(clone: Path, tmp_path: Path) -> None:
    made = clone / "made" / "deep"
    made.mkdir(parents=True)
    (made / "one.ipynb").write_text("{}")
    first = publish.publish(clone, made.parent, "notebooks", "origin")
    (made / "one.ipynb").rename(made / "two.ipynb")
    commit = publish.publish(clone, made.parent, "notebooks", "origin")
    remote = tmp_path / "remote"
    assert git(remote, "rev-parse", "notebooks") == commit
    assert git(remote, "ls-tree", "-r", "--name-only", "notebooks") == "deep/two.ipynb"
    assert git(remote, "rev-list", "notebooks") == f"{commit}\n{first}"
    assert git(remote, "log", "-1", "--format=%s", "notebooks") == f"Made from {git(clone, 'rev-parse', 'HEAD')}"
    assert git(clone, "status", "--porcelain") == ""
    assert git(clone, "ls-files") == ".gitignore\nsource.md"


def test_what_the_branch_has_already_is_no_new_commit(clone: Path) -> None:
    (clone / "made").mkdir()
    (clone / "made" / "one.ipynb").write_text("{}")
    first = publish.publish(clone, clone / "made", "notebooks", "origin")
    assert publish.publish(clone, clone / "made", "notebooks", "origin") == first


def test_an_empty_folder_is_refused(clone: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for folder in (tmp_path / "empty", tmp_path / "missing"):
        with pytest.raises(ValueError, match=f"folder must hold files to publish; got .*{folder.name}"):
            publish.publish(clone, folder, "notebooks", "origin")
