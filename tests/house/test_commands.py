"""The README's commands are those that continuous integration runs; the repository's other promises about itself."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import chapters
import lock
import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]


def text(name: str) -> str:
    """A file of the repository."""
    return (ROOT / name).read_text(encoding="utf-8")


def readme_commands() -> list[str]:
    """The lines of the README's shell blocks, without those that fetch the repository."""
    blocks = re.findall(r"^```sh\n(.*?)^```", text("README.md"), re.MULTILINE | re.DOTALL)
    lines = [line.partition("#")[0].strip() for block in blocks for line in block.splitlines()]
    return [line for line in lines if line and not line.startswith(("git clone ", "cd "))]


def workflow() -> Any:
    """The workflow of continuous integration."""
    return yaml.safe_load(text(".github/workflows/ci.yml"))


def ci_commands() -> list[str]:
    """What .ci/run and the jobs of the workflow execute, line by line."""
    steps = [step for job in workflow()["jobs"].values() for step in job["steps"]]
    lines = [line.strip() for step in steps for line in step.get("run", "").splitlines()]
    return lines + re.findall(r"^stage (.*)$", text(".ci/run"), re.MULTILINE)


def test_the_readme_gives_the_two_commands() -> None:
    assert {"make book", "make test"} <= set(readme_commands())


@pytest.mark.parametrize("command", readme_commands())
def test_a_command_of_the_readme_is_run_in_continuous_integration(command: str) -> None:
    assert command in ci_commands()


def test_the_way_without_make_builds_the_book_as_make_does() -> None:
    (recipe,) = re.findall(r"^book:.*\n\t\S*/(jupyter-book .*)$", text("Makefile"), re.MULTILINE)
    assert recipe in readme_commands()


def test_the_way_without_make_is_run_in_its_order_on_each_system() -> None:
    job = workflow()["jobs"]["without-make"]
    steps = [step for step in job["steps"] if "run" in step]
    assert [step["run"] for step in steps] == [line for line in readme_commands() if not line.startswith("make ")]
    assert [step["run"] for step in steps if "if" in step] == [line for line in readme_commands() if "torch==" in line]
    systems = [entry["os"].partition("-")[0] for entry in job["strategy"]["matrix"]["include"]]
    assert sorted(systems) == ["macos", "ubuntu", "windows"]


def test_the_workflow_runs_ci_run() -> None:
    assert "bash .ci/run" in ci_commands()


def test_every_target_of_the_makefile_is_listed_by_help() -> None:
    (phony,) = re.findall(r"^\.PHONY: (.*)$", text("Makefile"), re.MULTILINE)
    assert phony.split() == re.findall(r"^([a-z]+):.*## ", text("Makefile"), re.MULTILINE)


def test_every_page_is_in_the_table_of_contents_and_every_entry_exists() -> None:
    sources = ROOT / "book" / "homework" / "sources"  # of problem sets, with their solutions: no pages
    written = {path for path in (ROOT / "book").rglob("*.md") if path.name != "README.md"}
    assert {path for path in written if not path.is_relative_to(sources)} == set(chapters.pages())


def test_the_citation_has_the_version_of_the_package() -> None:
    assert yaml.safe_load(text("CITATION.cff"))["version"] == lock.project()["version"]


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="this is no git checkout")
@pytest.mark.parametrize(
    ("path", "ignored"),
    [
        (".venv/bin/python", True),
        ("_build/html/index.html", True),
        ("lib/attention_phases/__pycache__/figures.cpython-311.pyc", True),
        ("book/.ipynb_checkpoints/index.md", True),
        (".mypy_cache/x", True),
        ("dist/attention_phases-0.1.0-py3-none-any.whl", True),
        ("book/data/.scaling.jsonl", True),
        ("book/data/.scaling.jsonl.lock", True),
        ("book/data/.scaling.csv", True),
        ("book/data/scaling.csv.lock", True),
        ("lib/attention_phases/sweeps.py", False),
        ("lib/attention_phases/positional_semantic/build.py", False),
        ("book/data/scaling.csv", False),
        (".ci/run", False),
    ],
)
def test_builds_are_ignored_and_sources_are_not(path: str, ignored: bool) -> None:
    result = subprocess.run(["git", "-C", str(ROOT), "check-ignore", "--quiet", "--no-index", path], check=False)
    assert (result.returncode == 0) is ignored
