"""The set-up refuses what it cannot work with, believes no interrupted run, and does nothing twice."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import environment
import pytest


def test_an_old_python_is_refused_by_its_version() -> None:
    with pytest.raises(SystemExit, match=r"needs Python 3\.11 or newer; .* is Python 3\.10\.\n.*PYTHON=python3\.12"):
        environment.check_python((3, 10))


@pytest.mark.parametrize("version", [(3, 11), (3, 12), (3, 13), (4, 0)])
def test_a_new_python_is_not_refused(version: tuple[int, int]) -> None:
    environment.check_python(version)


def test_an_old_python_can_read_the_script_far_enough_to_be_refused() -> None:
    source = Path(environment.__file__).read_text(encoding="utf-8")
    compile(source, "environment.py", "exec", flags=0x400, _feature_version=6)  # 0x400: parse alone


def test_a_full_disk_is_refused_by_what_is_free_and_what_is_needed() -> None:
    with pytest.raises(SystemExit, match=r"need 3\.0 GB of free disk; there are 2\.9 GB at "):
        environment.check_disk(2_900_000_000)
    environment.check_disk(3_000_000_000)


def test_an_index_that_cannot_be_reached_is_not_used(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TORCH_INDEX", "http://127.0.0.1:9/none/")
    environment.install_cpu_torch([sys.executable, "-c", "raise SystemExit('pip was called')"])
    assert capsys.readouterr().out == (
        "No CPU build of torch at http://127.0.0.1:9/none: taking the default one, which may be larger.\n"
    )


@pytest.fixture
def installs(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The environments into which something was installed; nothing is, really."""
    calls: list[Path] = []
    monkeypatch.setattr(environment, "install", calls.append)
    monkeypatch.setattr(environment, "check_disk", lambda free: None)

    def create(folder: str, **_options: Any) -> None:
        python = environment.python_of(Path(folder))
        python.parent.mkdir()
        python.touch()

    monkeypatch.setattr("venv.create", create)
    return calls


def test_nothing_is_done_twice(installs: list[Path], tmp_path: Path) -> None:
    folder = tmp_path / ".venv"
    environment.bring_up_to_date(folder)
    environment.bring_up_to_date(folder)
    assert installs == [folder]


def test_an_interrupted_set_up_is_repeated_from_the_start(
    installs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / ".venv"
    with monkeypatch.context() as patch:
        patch.setattr(environment, "install", lambda folder: (folder / "half-installed").touch() or 1 / 0)
        with pytest.raises(ZeroDivisionError):
            environment.bring_up_to_date(folder)
    assert (folder / "half-installed").exists()
    environment.bring_up_to_date(folder)
    assert installs == [folder]
    assert not (folder / "half-installed").exists()


@pytest.mark.parametrize(("changed", "kept"), [("inputs", True), ("place", False), ("python", False)])
def test_a_new_lock_updates_the_environment_and_a_new_place_or_python_remakes_it(
    installs: list[Path], tmp_path: Path, changed: str, kept: bool
) -> None:
    folder = tmp_path / ".venv"
    environment.bring_up_to_date(folder)
    stamp = folder / "made-from.json"
    stamp.write_text(json.dumps(json.loads(stamp.read_text()) | {changed: "another"}))
    (folder / "mark").touch()
    environment.bring_up_to_date(folder)
    assert installs == [folder, folder]
    assert (folder / "mark").exists() is kept
    environment.bring_up_to_date(folder)
    assert len(installs) == 2


@pytest.mark.skipif(os.name == "nt", reason="Windows has no signal that ends a set-up in the middle of pip")
def test_a_killed_set_up_leaves_the_mark_that_it_is_unfinished(tmp_path: Path) -> None:
    program = (
        "import os, environment, pathlib\n"
        "environment.check_disk = lambda free: None\n"
        "environment.venv.create = lambda folder, **options: None\n"
        "environment.install = lambda folder: os.kill(os.getpid(), 9)\n"
        f"environment.bring_up_to_date(pathlib.Path({str(tmp_path / '.venv')!r}))\n"
    )
    tools = Path(environment.__file__).parent
    result = subprocess.run([sys.executable, "-c", program], cwd=tools, check=False, capture_output=True)
    assert result.returncode == -9
    assert (tmp_path / ".venv" / "unfinished").exists()
    assert not (tmp_path / ".venv" / "made-from.json").exists()
