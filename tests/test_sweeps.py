"""Sweeps keep every finished point, compute none twice, and refuse what is not theirs."""

import importlib
import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from attention_phases import sweeps
from attention_phases.sweeps import sweep
from filelock import FileLock

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

def uneven(x, slow, store):
    def stored():
        return len(Path(store).read_text().splitlines()) - 1
    deadline = time.monotonic() + 20
    while x == slow and stored() < 60 and time.monotonic() < deadline:
        time.sleep(0.01)
    return {"stored": stored()}

def nested(x, store):
    from attention_phases.sweeps import sweep
    try:
        sweep(point, {"x": [1], "y": [2]}, store=store, n_jobs=1)
    except ValueError as error:
        return {"refusal": str(error)}

def returned(x):
    return ROW[x]
"""
Points = tuple[Any, Path]  # a module of functions, and the file in which they note their calls
GRID: dict[str, list[Any]] = {"x": [1, 2, 3], "y": [10, 20]}
NO_FUNCTIONS: list[Any] = [lambda x: {}, 3]
NO_COUNTS: list[Any] = [0, "two", 1.5, True, None]
NO_FILES: list[Any] = ["", 3, None, ".", os.devnull, f"{__file__}/store.jsonl"]
NO_VALUES: list[Any] = [np.ones(1), 1j, np.datetime64("2020-01-01", "ns"), None, [1], np.ma.masked, 10**400]
NO_AXES: list[Any] = [
    [],
    3,
    None,
    "abc",
    b"abc",
    {1: 2},
    {1, 2},
    np.float64(3),
    np.ones((2, 2)),
    [[1]],
    [None],
    [{}],
    [math.nan],
    [math.inf],
    [1j],
    [10**400],
]


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
    with pytest.raises(ValueError, match="store must not be in use by another sweep"):
        sweep(module.point, grid, store=store, n_jobs=1)
    assert process.poll() is None
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


@pytest.mark.parametrize(
    "content",
    [
        b"chapter one\nonce upon a time",
        b"a single line",
        b'{"function": "of somebody else"}',
        b"\x89PNG\x00\xff",
        b"\n",
        b"[" * 100_000 + b"\n",
        b'{"function": "points_of_test.point"}\n',
    ],
    ids=["text", "one line", "JSON", "binary", "empty line", "deep", "half a header"],
)
def test_a_file_that_is_no_store_is_refused_and_kept(points: Points, tmp_path: Path, content: bytes) -> None:
    module, _ = points
    store = tmp_path / "thesis"
    store.write_bytes(content)
    with pytest.raises(ValueError, match="store must be a file that a sweep wrote"):
        sweep(module.point, GRID, store=store, n_jobs=1)
    assert store.read_bytes() == content


@pytest.mark.parametrize("length", [0, 1, 60])
def test_a_store_cut_off_in_its_header_is_begun_again(points: Points, tmp_path: Path, length: int) -> None:
    module, _ = points
    store = tmp_path / "store.jsonl"
    whole = sweep(module.point, GRID, store=store, n_jobs=1)
    store.write_bytes(store.read_bytes()[:length])
    pd.testing.assert_frame_equal(sweep(module.point, GRID, store=store, n_jobs=1), whole, check_exact=True)


@pytest.mark.parametrize(
    "line",
    [
        "3",
        "{",
        "{}",
        '{"point": 0}',
        '{"point": 0, "row": [1]}',
        '{"point": 0, "row": {}}',
        '{"point": 6, "row": {"sum": 1, "name": "", "third": 1}}',
        '{"point": -1, "row": {"sum": 1, "name": "", "third": 1}}',
        '{"point": true, "row": {"sum": 1, "name": "", "third": 1}}',
        '{"point": 1, "row": {"sum": 1}}',
        '{"point": 1, "row": {"sum": [1], "name": "", "third": 1}}',
        '{"point": 0, "row": {"sum": 1, "name": "", "third": 1}}',
    ],
)
def test_a_damaged_line_is_named(points: Points, tmp_path: Path, line: str) -> None:
    module, _ = points
    store = tmp_path / "store.jsonl"
    sweep(module.point, GRID, store=store, n_jobs=1)
    header, first, *_ = store.read_text().splitlines()
    store.write_text(f"{header}\n{first}\n{line}\n")
    with pytest.raises(ValueError, match=r"store must hold a point in each line; line 3 of .*store\.jsonl is "):
        sweep(module.point, GRID, store=store, n_jobs=1)
    assert store.read_text() == f"{header}\n{first}\n{line}\n"


def test_a_finished_point_does_not_wait_for_another(points: Points, tmp_path: Path) -> None:
    """One point among many fast ones ends only once all the others are in the store."""
    module, _ = points
    store = tmp_path / "store.jsonl"
    table = sweep(module.uneven, {"x": range(61), "slow": [40], "store": [str(store)]}, store=store, n_jobs=2)
    assert table["stored"][40] == 60


def test_a_store_serves_one_sweep_at_a_time_and_no_lock_is_left(points: Points, tmp_path: Path) -> None:
    module, _ = points
    store = tmp_path / "stores" / "store.jsonl"
    table = sweep(module.nested, {"x": [1], "store": [str(store)]}, store=store, n_jobs=1)
    assert table["refusal"][0] == f"store must not be in use by another sweep; {store} is"
    assert [file.name for file in store.parent.iterdir()] == ["store.jsonl"]


def test_an_empty_row_in_a_store_is_damage(points: Points, tmp_path: Path) -> None:
    module, _ = points
    store = tmp_path / "store.jsonl"
    sweep(module.point, GRID, store=store, n_jobs=1)
    store.write_text(store.read_text().splitlines()[0] + '\n{"point": 0, "row": {}}\n')
    with pytest.raises(ValueError, match="store must hold a point in each line; line 2 of"):
        sweep(module.point, GRID, store=store, n_jobs=1)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows removes no open file")
def test_a_lock_whose_file_its_last_owner_removed_keeps_nobody_out(
    points: Points, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, calls = points

    class Late(FileLock):
        """Opened before the last owner removes the file, locked after it."""

        def acquire(self, *args: Any, **options: Any) -> Any:
            locked = super().acquire(*args, **options)
            Path(self.lock_file).unlink()
            return locked

    monkeypatch.setattr(sweeps, "FileLock", Late)
    with pytest.raises(ValueError, match="store must not be in use by another sweep"):
        sweep(module.point, GRID, store=tmp_path / "store.jsonl", n_jobs=1)
    assert not calls.read_text()


@pytest.mark.skipif(sys.platform == "win32", reason="a limit on the size of files is POSIX")
def test_on_a_full_disk_the_sweep_stops_and_its_store_has_whole_lines(points: Points, tmp_path: Path) -> None:
    import resource

    module, calls = points
    whole = sweep(module.point, GRID, store=tmp_path / "whole.jsonl", n_jobs=1)
    limit = (tmp_path / "whole.jsonl").stat().st_size - 3  # the last line fits but for three bytes
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            sweep(module.point, GRID, store=tmp_path / "store.jsonl", n_jobs=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    stored = (tmp_path / "store.jsonl").read_bytes()
    assert stored.endswith(b"}\n")
    assert len(stored.splitlines()) == 1 + 5
    pd.testing.assert_frame_equal(sweep(module.point, GRID, store=tmp_path / "store.jsonl", n_jobs=1), whole)
    assert len(calls.read_text().splitlines()) == 6 + 6 + 1


def test_a_changed_function_or_version_is_another_one(points: Points, tmp_path: Path) -> None:
    module, _ = points
    store = tmp_path / "store.jsonl"
    sweep(module.point, GRID, store=store, n_jobs=1, version="1")
    with pytest.raises(ValueError, match=r"store must hold this sweep's points; .* has version 1, not 2"):
        sweep(module.point, GRID, store=store, n_jobs=1, version="2")
    source = tmp_path / "points_of_test.py"
    source.write_text(MODULE.replace("x / 3", "x / 7"))
    with pytest.raises(ValueError, match=r"store must hold this sweep's points; .* has source"):
        sweep(importlib.reload(module).point, GRID, store=store, n_jobs=1, version="1")


def test_a_function_without_source_is_known_by_its_name(tmp_path: Path) -> None:
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile("def typed(x):\n    return {'double': 2 * x}\n", "<cell of a notebook>", "exec"), names)
    for _ in range(2):
        table = sweep(names["typed"], {"x": [1, 2]}, store=tmp_path / "store.jsonl", n_jobs=1)
        assert table["double"].tolist() == [2, 4]


def test_a_failing_point_stops_the_sweep_with_its_own_error(points: Points, tmp_path: Path) -> None:
    module, _ = points
    with pytest.raises(RuntimeError, match="no such point"):
        sweep(module.failing, GRID, store=tmp_path / "store.jsonl", n_jobs=1)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (3, "function must return a mapping"),
        ({}, "function must return a mapping"),
        ({1: 2}, "function must return a mapping"),
        ({("a", "b"): 2}, "function must return a mapping"),
        ({"x": 2}, r"function must return no column named like an axis; got \['x'\]"),
        *[
            ({"good": 1, "bad": value}, "column 'bad' of function at {'x': 0} must be a number or text")
            for value in NO_VALUES
        ],
    ],
)
def test_a_row_that_a_table_cannot_hold_is_refused(points: Points, tmp_path: Path, row: Any, message: str) -> None:
    module, _ = points
    module.ROW = [row]
    with pytest.raises(ValueError, match=message):
        sweep(module.returned, {"x": [0]}, store=tmp_path / "store.jsonl", n_jobs=1)
    assert len((tmp_path / "store.jsonl").read_text().splitlines()) == 1


def test_rows_with_unlike_columns_are_refused(points: Points, tmp_path: Path) -> None:
    module, _ = points
    module.ROW = [{"a": 1}, {"a": 1, "b": 2}]
    with pytest.raises(ValueError, match=r"function must return the same columns .*; got \['a', 'b'\] at {'x': 1}"):
        sweep(module.returned, {"x": [0, 1]}, store=tmp_path / "store.jsonl", n_jobs=1)


def test_a_table_is_the_same_when_read_from_its_store(points: Points, tmp_path: Path) -> None:
    module, _ = points
    row = {"float": np.float32(0.1), "whole": np.int8(3), "yes": np.bool_(True), "text": np.str_("a"), "none": math.nan}
    module.ROW = [row]
    first = sweep(module.returned, {"x": [0]}, store=tmp_path / "store.jsonl", n_jobs=1)
    module.ROW = []
    second = sweep(module.returned, {"x": [0]}, store=tmp_path / "store.jsonl", n_jobs=1)
    pd.testing.assert_frame_equal(first, second, check_exact=True)
    assert first["float"][0] == float(np.float32(0.1))


@pytest.mark.parametrize(
    "values",
    [np.arange(3), (np.int64(0), 1, np.uint8(2)), np.arange(3, dtype=np.float32), range(3), pd.Series([0, 1, 2])],
)
def test_an_axis_may_be_any_sequence_of_numbers(points: Points, tmp_path: Path, values: Any) -> None:
    module, _ = points
    table = sweep(module.other, {"x": values, "y": (y for y in ["a"])}, store=tmp_path / "store.jsonl", n_jobs=1)
    assert table["x"].tolist() == [0, 1, 2]
    assert table["y"].tolist() == ["a"] * 3


@pytest.mark.parametrize(
    ("grid", "message"),
    [
        ({}, "grid must map names of axes"),
        ([1, 2], "grid must map names of axes"),
        ({1: [1], "y": [1]}, "grid must map names of axes"),
        ({"x": [1]}, r"grid must have the arguments of function as axes; got \['x'\]: missing .* 'y'"),
        ({"x": [1], "y": [1], "z": [1]}, "grid must have the arguments of function as axes; .* 'z'"),
        *[({"y": [1], "x": values}, r"grid\['x'\] must be") for values in NO_AXES],
    ],
)
def test_an_unfit_grid_is_refused_before_the_store_is_touched(
    points: Points, tmp_path: Path, grid: Any, message: str
) -> None:
    module, _ = points
    with pytest.raises(ValueError, match=message):
        sweep(module.other, grid, store=tmp_path / "stores" / "store.jsonl")
    assert not (tmp_path / "stores").exists()


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        *[({"function": value}, "function") for value in NO_FUNCTIONS],
        *[({"n_jobs": value}, "n_jobs") for value in NO_COUNTS],
        *[({"store": value}, "store") for value in NO_FILES],
        ({"version": 2}, "version"),
    ],
)
def test_unfit_arguments_are_refused_by_name(
    points: Points, tmp_path: Path, wrong: dict[str, Any], named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, _ = points
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    arguments: dict[str, Any] = {"function": module.other, "grid": GRID, "store": "store.jsonl"} | wrong
    with pytest.raises(ValueError, match=f"^{named} must"):
        sweep(**arguments)
    assert not list(Path.cwd().iterdir())


def test_the_store_is_readable_as_json_lines(points: Points, tmp_path: Path) -> None:
    module, _ = points
    store = Path(tmp_path / "store.jsonl")
    sweep(module.point, GRID, store=store, n_jobs=1)
    header, *lines = (json.loads(line) for line in store.read_text().splitlines())
    assert header["function"] == "points_of_test.point"
    assert sorted(line["point"] for line in lines) == list(range(6))
