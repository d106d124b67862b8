"""pyproject.toml, the lock and environment.yml name the same packages and agree on their versions."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

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

# What conda-forge calls them: the CPU build of torch; the plain parts of two that bring a desktop toolkit along.
CONDA_NAMES = {"torch": "pytorch-cpu", "matplotlib": "matplotlib-base", "seaborn": "seaborn-base"}
DATED = {"dask", "packaging"}  # their major version is the year
BINDER_ONLY = {"jupyterlab", "pip", "python"}
NOT_ON_CONDA = {"sphinx-mathjax-offline"}  # pip installs it there


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


def environment_file() -> tuple[list[str], list[str]]:
    """What conda installs by environment.yml, and what pip does."""
    lines = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))["dependencies"]
    by_conda = [line for line in lines if isinstance(line, str)]
    (by_pip,) = [line["pip"] for line in lines if isinstance(line, dict)]
    return by_conda, by_pip


def given_ranges() -> dict[str, SpecifierSet]:
    """The packages of environment.yml with their ranges, but for this repository's own."""
    by_conda, by_pip = environment_file()
    found = [re.fullmatch(r"([\w-]+)(.*)", line) for line in by_conda + by_pip]
    return {match[1]: SpecifierSet(match[2]) for match in found if match and not match[0].startswith("-e")}


def test_conda_and_binder_have_the_ranges_of_the_library_and_the_book() -> None:
    wanted = [Requirement(line) for line in PROJECT["dependencies"] + EXTRAS["book"]]
    expected = {CONDA_NAMES.get(requirement.name, requirement.name): requirement.specifier for requirement in wanted}
    given = given_ranges()
    assert {name: given[name] for name in given.keys() - BINDER_ONLY} == expected
    assert given["python"].contains("3.11")
    assert not given["python"].contains("3.10")
    assert SpecifierSet(PROJECT["requires-python"]) == SpecifierSet(">=3.11")


def test_conda_takes_the_package_itself_from_this_repository() -> None:
    _, by_pip = environment_file()
    *others, itself = by_pip
    assert itself == "-e .[homework]"
    assert {Requirement(line).name for line in others} == NOT_ON_CONDA


def test_the_readme_gives_the_cpu_build_of_the_locked_torch_as_make_does() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (command,) = re.findall(r"^python -m pip install .*torch==.*$", readme, re.MULTILINE)
    assert command.endswith(f" torch=={lock.read_lock()['torch']}")
    assert environment.CPU_TORCH_INDEX in command
