"""Sweeps keep every finished point, compute none twice, and refuse what is not theirs."""

import importlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, cast

import pandas as pd
import pytest
from attention_phases.sweeps import sweep

MODULE = """
import os, time
from pathlib import Path

def point(x, y, pause=0.0):
    with open(os.environ["CALLS"], "a") as calls:
        calls.write(f"{x} {y}\\n")
    time.sleep(pause)
    return {"sum": x + y, "name": f"{x}{y}", "third": x / 3}

def other(x, y):
    return {"sum": 0}

def failing(x, y):
    raise RuntimeError("no such point")
"""
Points = tuple[Any, Path]  # a module of functions, and the file in which they note their calls
GRID: dict[str, list[Any]] = {"x": [1, 2, 3], "y": [10, 20]}


@pytest.fixture
def points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Points:
    """A module of functions for sweeps, and the file in which they note their calls."""
    (tmp_path / "points_of_test.py").write_text(MODULE)
    calls = tmp_path / "calls"
    calls.touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("CALLS", str(calls))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.delitem(sys.modules, "points_of_test", raising=False)
    return importlib.import_module("points_of_test"), calls


def test_a_sweep_is_a_table_in_the_order_of_the_grid(points: Points, tmp_path: Path) -> None:
    module, calls = points
    table = sweep(module.point, GRID, store=tmp_path / "store.jsonl", n_jobs=2)
    expected = pd.DataFrame(
        [{"x": x, "y": y, "sum": x + y, "name": f"{x}{y}", "third": x / 3} for x in (1, 2, 3) for y in (10, 20)]
    )
    pd.testing.assert_frame_equal(table, expected, check_exact=True)
    assert len(calls.read_text().splitlines()) == 6


def test_stored_points_are_not_computed_again(points: Points, tmp_path: Path) -> None:
    module, calls = points
    first = sweep(module.point, GRID, store=tmp_path / "store.jsonl", n_jobs=1)
    second = sweep(module.point, GRID, store=tmp_path / "store.jsonl", n_jobs=1)
    pd.testing.assert_frame_equal(first, second, check_exact=True)
    assert len(calls.read_text().splitlines()) == 6


def test_a_line_that_was_cut_off_is_computed_again(points: Points, tmp_path: Path) -> None:
    module, calls = points
    store = tmp_path / "store.jsonl"
    whole = sweep(module.point, GRID, store=store, n_jobs=1)
    store.write_bytes(store.read_bytes()[:-7])
    pd.testing.assert_frame_equal(sweep(module.point, GRID, store=store, n_jobs=1), whole, check_exact=True)
    assert len(calls.read_text().splitlines()) == 7


@pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL is a POSIX signal")
def test_a_killed_sweep_loses_only_the_point_in_flight(points: Points, tmp_path: Path) -> None:
    module, calls = points
    store = tmp_path / "store.jsonl"
    grid = {**GRID, "pause": [0.2]}
    call = f"sweep(points_of_test.point, {grid}, store={str(store)!r}, n_jobs=1)"
    code = f"import points_of_test; from attention_phases.sweeps import sweep; {call}"
    process = subprocess.Popen([sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": str(tmp_path)})
    deadline = time.monotonic() + 60
    while len(calls.read_text().splitlines()) < 3 and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    assert process.wait(10) == -signal.SIGKILL
    stored = len(store.read_text().splitlines()) - 1  # the first line is the header
    assert stored >= 2
    table = sweep(module.point, grid, store=store, n_jobs=1)
    assert table["sum"].tolist() == [11, 21, 12, 22, 13, 23]
    noted = calls.read_text().splitlines()
    assert len(noted) <= 7
    assert sorted(set(noted)) == sorted(f"{x} {y}" for x in (1, 2, 3) for y in (10, 20))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"function": "other"}, "function"),
        ({"grid": {"x": [1, 2, 3], "y": [10, 30]}}, "grid"),
        ({"grid": {"y": [10, 20], "x": [1, 2, 3]}}, "grid"),
    ],
)
def test_a_store_of_another_sweep_is_refused(
    points: Points, tmp_path: Path, change: dict[str, Any], named: str
) -> None:
    module, _ = points
    store = tmp_path / "store.jsonl"
    sweep(module.point, GRID, store=store, n_jobs=1)
    before = store.read_bytes()
    with pytest.raises(ValueError, match=rf"store must hold this sweep's points; .* has {named}"):
        sweep(getattr(module, change.get("function", "point")), change.get("grid", GRID), store=store, n_jobs=1)
    assert store.read_bytes() == before


def test_a_file_that_is_no_store_is_refused_and_kept(points: Points, tmp_path: Path) -> None:
    module, _ = points
    store = tmp_path / "thesis.txt"
    store.write_text("chapter one\nonce upon a time")
    with pytest.raises(ValueError, match="store must be a file that a sweep wrote"):
        sweep(module.point, GRID, store=store, n_jobs=1)
    assert store.read_text() == "chapter one\nonce upon a time"


def test_a_failing_point_stops_the_sweep_with_its_own_error(points: Points, tmp_path: Path) -> None:
    module, _ = points
    with pytest.raises(RuntimeError, match="no such point"):
        sweep(module.failing, GRID, store=tmp_path / "store.jsonl", n_jobs=1)


def test_a_row_that_is_no_mapping_of_numbers_and_texts_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="function must return a mapping"):
        sweep(cast("Any", complex), {"real": [1.0]}, store=tmp_path / "store.jsonl", n_jobs=1)


@pytest.mark.parametrize(
    ("function", "grid", "named"),
    [(lambda x: {}, GRID, "function"), (3, GRID, "function"), (dict, {}, "grid"), (dict, {"x": []}, "grid")],
)
def test_unfit_arguments_are_refused_by_name(function: Any, grid: Any, named: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"^{named} must"):
        sweep(function, grid, store=tmp_path / "store.jsonl")
    assert not list(tmp_path.iterdir())


def test_the_store_is_readable_as_json_lines(points: Points, tmp_path: Path) -> None:
    module, _ = points
    store = Path(tmp_path / "store.jsonl")
    sweep(module.point, GRID, store=store, n_jobs=1)
    header, *lines = (json.loads(line) for line in store.read_text().splitlines())
    assert header["function"] == "points_of_test.point"
    assert sorted(line["point"] for line in lines) == list(range(6))
