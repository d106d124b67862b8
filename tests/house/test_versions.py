"""pyproject.toml, the lock and environment.yml name the same packages and agree on their versions."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import binder
import environment
import lock
import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
PROJECT = lock.project()
EXTRAS = PROJECT["optional-dependencies"]
LOCKED_REQUIREMENTS = PROJECT["dependencies"] + [line for extra in lock.EXTRAS for line in EXTRAS[extra]]

DATED = {"dask", "packaging"}  # their major version is the year
BINDER_ONLY = {"jupyterlab", "jupyterlab-myst"}


@pytest.mark.parametrize("line", LOCKED_REQUIREMENTS)
def test_the_lock_has_a_version_in_each_range(line: str) -> None:
    requirement = Requirement(line)
    assert requirement.specifier.contains(lock.read_lock()[canonicalize_name(requirement.name)])


@pytest.mark.parametrize("line", LOCKED_REQUIREMENTS + [line for extra in EXTRAS.values() for line in extra])
def test_each_range_has_a_lower_end_and_an_upper_one_unless_versions_are_dates(line: str) -> None:
    requirement = Requirement(line)
    operators = sorted(part.operator for part in requirement.specifier)
    assert operators == ([">="] if requirement.name in DATED else ["<", ">="])


def test_the_lock_holds_what_is_needed_on_any_system_and_no_more() -> None:
    assert lock.read_lock() == lock.closure(LOCKED_REQUIREMENTS)


def test_the_lock_is_complete_when_installed() -> None:
    subprocess.run([sys.executable, "-m", "pip", "check"], check=True, capture_output=True)


def test_the_base_install_renders_no_pages() -> None:
    needed = lock.closure(PROJECT["dependencies"])
    assert not [name for name in needed if name.startswith(("sphinx", "jupyter-book", "myst"))]


def test_binder_has_the_ranges_of_the_library_and_of_what_opens_and_runs_a_notebook() -> None:
    notebook = [line for line in EXTRAS["book"] if line.startswith(("jupytext", "ipykernel"))]
    wanted = {Requirement(line) for line in PROJECT["dependencies"] + notebook}
    given = {Requirement(line) for line in binder.requirements()}
    assert {requirement for requirement in given if requirement.name not in BINDER_ONLY} == wanted
    assert {requirement.name for requirement in given - wanted} == BINDER_ONLY


@pytest.mark.parametrize("line", binder.requirements())
def test_each_range_of_binder_has_the_locked_version(line: str) -> None:
    requirement = Requirement(line)
    if requirement.name in BINDER_ONLY:
        assert sorted(part.operator for part in requirement.specifier) == ["<", ">="]
    else:
        assert requirement.specifier.contains(lock.read_lock()[canonicalize_name(requirement.name)])


def test_binder_has_a_python_that_the_project_supports_in_the_form_that_binder_reads() -> None:
    lines = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))["dependencies"]
    (version,) = re.findall(r"^python=(3\.\d+)$", "\n".join(lines), re.MULTILINE)
    assert SpecifierSet(PROJECT["requires-python"]).contains(version)
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8"))
    assert version in {entry["python"] for entry in workflow["jobs"]["without-make"]["strategy"]["matrix"]["include"]}


def test_the_readme_gives_the_cpu_build_of_the_locked_torch_as_make_does() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (command,) = re.findall(r"^python -m pip install .*torch==.*$", readme, re.MULTILINE)
    assert command.endswith(f" torch=={lock.read_lock()['torch']}")
    assert environment.CPU_TORCH_INDEX in command
