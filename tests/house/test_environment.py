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


@pytest.mark.parametrize("index", ["", "garbage", "http://a b", "https://[::1"])
def test_what_is_no_address_is_an_index_that_cannot_be_reached(index: str) -> None:
    assert not environment.reachable(index)


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


@pytest.mark.parametrize("content", ["", '{"inputs": ', "[]", "null", b"\xff".decode("latin-1")])
def test_an_unreadable_stamp_counts_as_none_and_is_written_again(
    installs: list[Path], tmp_path: Path, content: str
) -> None:
    folder = tmp_path / ".venv"
    environment.bring_up_to_date(folder)
    stamp = folder / "made-from.json"
    good = stamp.read_text()
    stamp.write_bytes(content.encode("latin-1"))
    environment.bring_up_to_date(folder)
    assert installs == [folder, folder]
    assert stamp.read_text() == good
    assert sorted(path.name for path in folder.iterdir() if path.is_file()) == ["made-from.json"]


@pytest.mark.parametrize("with_python", [False, True])
def test_a_folder_of_another_maker_is_left_alone(installs: list[Path], tmp_path: Path, with_python: bool) -> None:
    folder = tmp_path / ".venv"
    folder.mkdir()
    (folder / "letter.txt").touch()
    if with_python:
        environment.python_of(folder).parent.mkdir()
        environment.python_of(folder).touch()
    before = sorted(folder.rglob("*"))
    with pytest.raises(SystemExit, match=r"\.venv must be missing, empty or made by this set-up"):
        environment.bring_up_to_date(folder)
    assert sorted(folder.rglob("*")) == before
    assert not installs


def test_what_is_no_folder_is_refused(installs: list[Path], tmp_path: Path) -> None:
    file, link = tmp_path / "file", tmp_path / "link"
    file.write_text("mine")
    link.symlink_to(tmp_path / "nowhere")
    for place in (file, link):
        with pytest.raises(SystemExit, match=f"{place.name} must be a folder; it is a file or a broken link"):
            environment.bring_up_to_date(place)
    assert file.read_text() == "mine"
    assert link.is_symlink()
    assert not installs


def test_a_second_set_up_waits_for_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lock = tmp_path / "requirements.lock"
    lock.touch()
    monkeypatch.setattr(environment, "LOCK", lock)
    program = (
        "import environment, pathlib, sys\n"
        f"environment.LOCK = pathlib.Path({str(lock)!r})\n"
        "with environment.alone():\n"
        "    print('in', flush=True)\n"
        "    sys.stdin.readline()\n"
    )
    tools = Path(environment.__file__).parent
    with subprocess.Popen(
        [sys.executable, "-c", program], cwd=tools, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as first:
        assert first.stdin is not None
        assert first.stdout is not None
        assert first.stdout.readline() == "in\n"
        monkeypatch.setattr("time.sleep", lambda seconds: first.communicate("\n"))
        with environment.alone():
            assert first.returncode == 0
    assert capsys.readouterr().out == "Another set-up is at work; waiting for it\n"


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
