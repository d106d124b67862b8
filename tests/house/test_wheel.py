"""The wheel and an installation by git hold the whole library, and import without this checkout."""

from __future__ import annotations

import ast
import subprocess
import sys
import sysconfig
import venv
import zipfile
from email import message_from_bytes
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from environment import python_of
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
CHECK = """
import importlib.resources, pathlib, attention_phases
from attention_phases import figures, positional_semantic
package = importlib.resources.files("attention_phases")
assert (package / "py.typed").is_file()
assert list((package / "data").iterdir())
print(pathlib.Path(attention_phases.__file__).resolve())
"""

pytestmark = pytest.mark.slow


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    """The wheel of this checkout."""
    build = ["wheel", "--no-index", "--no-deps", "--no-build-isolation", "--wheel-dir", str(tmp_path), str(ROOT)]
    subprocess.run([*PIP, *build], check=True)
    (path,) = tmp_path.glob("*.whl")
    return path


def imported_packages(source: str) -> set[str]:
    """The top-level packages that a module imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found.add(node.module)
    return {name.partition(".")[0] for name in found}


@pytest.fixture
def fresh(tmp_path: Path) -> Path:
    """The Python of a new environment that has our dependencies, by a path entry, but not our package."""
    folder = tmp_path / "fresh"
    venv.create(folder, with_pip=False, symlinks=sys.platform != "win32")
    python = python_of(folder)
    paths = {"base": str(folder), "platbase": str(folder)}
    site_packages = Path(sysconfig.get_path("purelib", "venv", paths))
    (site_packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"), encoding="utf-8")
    missing = subprocess.run([python, "-c", "import attention_phases"], check=False, capture_output=True, cwd=tmp_path)
    assert missing.returncode != 0
    return python


def install_and_import(python: Path, *what: str) -> None:
    """Install in another environment without the network, and import there."""
    subprocess.run(
        [*PIP, "--python", str(python), "install", "--no-index", "--no-deps", "--no-build-isolation", *what], check=True
    )
    home = python.parents[1]
    imported = subprocess.run([python, "-c", CHECK], check=True, capture_output=True, text=True, cwd=home)
    assert Path(imported.stdout.strip()).is_relative_to(home.resolve())


def test_the_wheel_holds_the_library_and_its_tables_and_installs(wheel: Path, fresh: Path) -> None:
    package, data = ROOT / "lib" / "attention_phases", ROOT / "book" / "data"
    modules = {f"attention_phases/{path.relative_to(package).as_posix()}" for path in package.rglob("*.py")}
    tables = {f"attention_phases/data/{path.name}" for path in data.glob("[!.]*")}
    names = set(zipfile.ZipFile(wheel).namelist())
    assert tables
    assert modules | tables | {"attention_phases/py.typed"} <= names
    assert not [name for name in names if name.startswith(("book", "tests", "tools"))]
    install_and_import(fresh, str(wheel))


def test_the_wheel_requires_all_that_the_library_imports(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        sources = [archive.read(name).decode() for name in archive.namelist() if name.endswith(".py")]
        (metadata,) = [archive.read(name) for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
    lines = [Requirement(line) for line in message_from_bytes(metadata).get_all("Requires-Dist", [])]
    required = {canonicalize_name(line.name) for line in lines if line.marker is None}
    imported = set().union(*map(imported_packages, sources)) - sys.stdlib_module_names - {"attention_phases"}
    distributions = packages_distributions()
    assert {"numpy", "torch"} <= required
    for package in imported:  # what only an extra asks for is imported where it is used: its own, or what grades
        extra = {
            canonicalize_name(line.name)
            for line in lines
            if line.marker and any(line.marker.evaluate({"extra": name}) for name in (package, "homework"))
        }
        names = {canonicalize_name(name) for name in distributions[package]}
        assert names & (required | extra), package


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="this is no git checkout")
def test_the_last_commit_installs_by_git(fresh: Path) -> None:
    install_and_import(fresh, f"git+{ROOT.as_uri()}")
