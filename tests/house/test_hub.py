"""The link for a JupyterHub brings the notebooks to a student's folder, opens one, and keeps the student's changes."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path, PurePosixPath
from urllib.parse import parse_qs, urlsplit

import address
import notebooks
import publish
import pytest

ROOT = Path(__file__).resolve().parents[2]


def link() -> tuple[str, dict[str, str]]:
    """The path of the link on the page for teachers, and what its query asks for."""
    (found,) = re.findall(r"^https://\S+/git-pull\?\S+$", (ROOT / "book" / "teaching.md").read_text(), re.MULTILINE)
    parts = urlsplit(found)
    query = {name: value for name, (value,) in parse_qs(parts.query, strict_parsing=True).items()}
    return parts.path, query


def test_the_link_opens_a_notebook_of_this_repository_from_the_branch_that_is_published() -> None:
    path, query = link()
    here = address.read(ROOT)[0]
    assert path == "/hub/user-redirect/git-pull"
    assert query.keys() == {"repo", "branch", "urlpath"}
    assert query["repo"] == here.repository
    assert f"publish.py _build/notebooks {query['branch']}\n" in (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    opened = PurePosixPath(query["urlpath"]).relative_to(f"lab/tree/{here.name}")
    assert opened.suffix == ".ipynb"
    assert str(opened.with_suffix("")) in notebooks.sources()


def test_a_second_click_brings_newer_notebooks_and_keeps_what_the_student_changed(tmp_path: Path) -> None:
    if importlib.util.find_spec("nbgitpuller") is None:
        pytest.skip("nbgitpuller is not installed; the weekly workflow has it")
    _, query = link()
    remote, clone, home = tmp_path / "remote", tmp_path / "clone", tmp_path / "home"
    subprocess.run(["git", "init", "--quiet", "--bare", str(remote)], check=True)
    subprocess.run(["git", "clone", "--quiet", str(remote), str(clone)], check=True)
    identity = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
    subprocess.run(["git", "-C", str(clone), *identity, "commit", "--quiet", "--allow-empty", "-m", "one"], check=True)
    opened = PurePosixPath(query["urlpath"]).relative_to("lab/tree")
    made, copy = clone / PurePosixPath(*opened.parts[1:]), home / opened
    made.parent.mkdir(parents=True)
    other = "other.ipynb"

    def click(opened_text: str, other_text: str) -> None:
        made.write_text(opened_text)
        made.with_name(other).write_text(other_text)
        publish.publish(clone, made.parents[len(opened.parts) - 2], query["branch"], "origin")
        where = [remote.as_uri(), query["branch"], str(home / opened.parts[0])]
        subprocess.run([sys.executable, "-m", "nbgitpuller.pull", *where], check=True, capture_output=True)

    click(json.dumps("first"), json.dumps("first"))
    copy.with_name(other).write_text(json.dumps("the student's"))
    click(json.dumps("second"), json.dumps("second"))
    assert json.loads(copy.read_text()) == "second"
    assert json.loads(copy.with_name(other).read_text()) == "the student's"
