"""The wheel and an installation by git hold the whole library, and import without this checkout."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest
from environment import python_of

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


def test_the_wheel_holds_the_library_and_its_tables_and_installs(tmp_path: Path, fresh: Path) -> None:
    build = ["wheel", "--no-index", "--no-deps", "--no-build-isolation", "--wheel-dir", str(tmp_path), str(ROOT)]
    subprocess.run([*PIP, *build], check=True)
    (wheel,) = tmp_path.glob("*.whl")
    package, data = ROOT / "lib" / "attention_phases", ROOT / "book" / "data"
    modules = {f"attention_phases/{path.relative_to(package).as_posix()}" for path in package.rglob("*.py")}
    tables = {f"attention_phases/data/{path.name}" for path in data.glob("[!.]*")}
    names = set(zipfile.ZipFile(wheel).namelist())
    assert tables
    assert modules | tables | {"attention_phases/py.typed"} <= names
    assert not [name for name in names if name.startswith(("book", "tests", "tools"))]
    install_and_import(fresh, str(wheel))


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="this is no git checkout")
def test_the_last_commit_installs_by_git(fresh: Path) -> None:
    install_and_import(fresh, f"git+{ROOT.as_uri()}")
