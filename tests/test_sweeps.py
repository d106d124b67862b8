"""Sweeps keep every finished point, compute none twice, and refuse what is not theirs."""

import importlib
import json
import logging
import math
import os
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pandas as pd
import pytest
from attention_phases import sweeps
from attention_phases.errors import FailedPointWarning
from attention_phases.sweeps import sweep
from joblib.externals.loky import get_reusable_executor

MODULE = """
import os, signal, sys, time
from pathlib import Path

import numpy as np

def note(x, y):
    with open(os.environ["CALLS"], "a") as calls:
        calls.write(f"{x} {y}\\n")

def point(x, y, pause=0.0):
    note(x, y)
    time.sleep(pause)
    return {"sum": x + y, "name": f"{x}{y}", "third": x / 3}

def other(x, y):
    return {"sum": 0}

def failing(x, y):
    note(x, y)
    if x == 2 and not Path(os.environ["CALLS"]).with_name("mended").exists():
        raise RuntimeError(f"no such point as {x}, {y}")
    return {"sum": x + y, "name": "good"}

def stopping(x, y):
    if x == 3:
        raise KeyboardInterrupt
    return {"sum": x + y}

def leaving(x, y):
    if x == 2:
        sys.exit(3)
    return {"sum": x + y}

class Adder:
    def __init__(self, much):
        self.much = much

    def add(self, x, y):
        return {"sum": x + y + self.much}

def killing(x, y, times):
    note(x, y)
    time.sleep(0.02)
    killed = Path(os.environ["CALLS"]).read_text().splitlines().count(f"{x} {y}")
    if x == 2 and y == 10 and killed <= times:
        os.kill(os.getpid(), signal.SIGKILL)
    return {"sum": x + y}

def random(seed):
    return {"value": np.random.default_rng(seed).standard_normal()}

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
NO_FILES: list[Any] = ["", 3, None, ".", b"store", "a\0b", "a" * 5000, os.devnull, f"{__file__}/store.jsonl"]
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
def points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Points]:
    """A module of functions for sweeps, and the file in which they note their calls.

    joblib's workers, which have imported the module and hold its environment, end with the test.
    """
    (tmp_path / "points_of_test.py").write_text(MODULE)
    calls = tmp_path / "calls"
    calls.touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("CALLS", str(calls))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.delitem(sys.modules, "points_of_test", raising=False)
    yield importlib.import_module("points_of_test"), calls
    get_reusable_executor().shutdown(kill_workers=True)


def test_a_sweep_is_a_table_in_the_order_of_the_grid(points: Points, tmp_path: Path) -> None:
    module, calls = points
    table = sweep(module.point, GRID, store=tmp_path / "store.jsonl", n_jobs=2)
    expected = pd.DataFrame(
        [
            {"x": x, "y": y, "sum": x + y, "name": f"{x}{y}", "third": x / 3, "error": ""}
            for x in (1, 2, 3)
            for y in (10, 20)
        ]
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


POSIX = pytest.mark.skipif(sys.platform == "win32", reason="the signals are those of POSIX")


def start(points: Points, grid: dict[str, Any], store: Path, n_jobs: int, **options: Any) -> subprocess.Popen[str]:
    """A process that sweeps `point` over a grid; its process group is its own, as that of a terminal's command.

    It takes Ctrl-C, even where the tests themselves run in the background of a shell, which has it ignored there.
    """
    call = f"sweep(points_of_test.point, {grid}, store={str(store)!r}, n_jobs={n_jobs})"
    takes_ctrl_c = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    code = f"{takes_ctrl_c}; import points_of_test; from attention_phases.sweeps import sweep; {call}"
    return subprocess.Popen([sys.executable, "-c", code], start_new_session=True, text=True, **options)


def wait_until(happened: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def stored_points(store: Path) -> set[str]:
    """What is stored in whole lines, as the calls are noted."""
    lines = store.read_text().split("\n")[1:-1] if store.exists() else []
    return {json.loads(line)["row"]["name"] for line in lines}


@POSIX
def test_a_killed_sweep_loses_only_the_point_in_flight(points: Points, tmp_path: Path) -> None:
    module, calls = points
    store = tmp_path / "store.jsonl"
    grid = {**GRID, "pause": [0.2]}
    process = start(points, grid, store, 1)
    wait_until(lambda: len(calls.read_text().splitlines()) >= 3)
    with pytest.raises(ValueError, match="store must not be in use by another sweep"):
        sweep(module.point, grid, store=store, n_jobs=1)
    assert process.poll() is None
    process.kill()
    assert process.wait(10) == -signal.SIGKILL
    assert len(stored_points(store)) >= 2
    table = sweep(module.point, grid, store=store, n_jobs=1)
    assert table["sum"].tolist() == [11, 21, 12, 22, 13, 23]
    noted = calls.read_text().splitlines()
    assert len(noted) <= 7
    assert sorted(set(noted)) == sorted(f"{x} {y}" for x in (1, 2, 3) for y in (10, 20))


@POSIX
@pytest.mark.slow
@pytest.mark.parametrize("n_jobs", [1, 2])
def test_no_kill_at_any_moment_loses_or_repeats_a_stored_point(points: Points, tmp_path: Path, n_jobs: int) -> None:
    """A dozen kills, three of them in the first second of the process, the others after some new points."""
    module, calls = points
    store = tmp_path / "store.jsonl"
    grid: dict[str, list[Any]] = {"x": list(range(1500)), "y": [0], "pause": [0.002]}
    rng = np.random.default_rng(n_jobs)
    for kill in range(12):
        before, noted = stored_points(store), len(calls.read_text())
        process = start(points, grid, store, n_jobs)
        if kill > 2:
            enough = len(before) + rng.integers(1, 40)
            wait_until(lambda enough=enough: len(stored_points(store)) >= enough)  # type: ignore[misc]
        time.sleep(rng.uniform(0, 1 if kill <= 2 else 0.005))
        process.kill()
        process.wait(10)
        if alive(process.pid):  # the workers, which would wait for more points for minutes
            os.killpg(process.pid, signal.SIGKILL)
        after = stored_points(store)
        begun = {call.replace(" ", "") for call in calls.read_text()[noted:].splitlines()}
        assert before <= after  # nothing is lost
        assert not before & begun  # nothing is repeated
        assert after - before <= begun
    assert 20 < len(after) < 1500
    table = sweep(module.point, grid, store=store, n_jobs=n_jobs)
    assert table["sum"].tolist() == list(range(1500))
    assert not after & {call.replace(" ", "") for call in calls.read_text()[noted:].splitlines()[len(begun) :]}


def alive(group: int) -> bool:
    """Whether a process group still has a process."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


@POSIX
@pytest.mark.parametrize("n_jobs", [1, 2])
def test_ctrl_c_stops_a_sweep_and_its_workers_and_keeps_its_points(points: Points, tmp_path: Path, n_jobs: int) -> None:
    module, calls = points
    store = tmp_path / "store.jsonl"
    grid: dict[str, list[Any]] = {"x": list(range(40)), "y": [0], "pause": [0.1]}
    process = start(points, grid, store, n_jobs, stderr=subprocess.PIPE)
    wait_until(lambda: len(stored_points(store)) >= 3)
    os.killpg(process.pid, signal.SIGINT)
    assert "KeyboardInterrupt" in process.communicate(timeout=10)[1]
    assert process.returncode != 0
    wait_until(lambda: not alive(process.pid))
    kept, noted = stored_points(store), len(calls.read_text().splitlines())
    assert 3 <= len(kept) < 40
    assert store.read_bytes().endswith(b"}\n")
    assert not store.with_name(".store.jsonl.sweep.lock").exists()
    assert sweep(module.point, grid, store=store, n_jobs=1)["sum"].tolist() == list(range(40))
    again = {call.replace(" ", "") for call in calls.read_text().splitlines()[noted:]}
    assert not again & kept


@POSIX
def test_of_two_sweeps_on_one_store_one_is_refused_and_no_point_is_computed_twice(
    points: Points, tmp_path: Path
) -> None:
    _, calls = points
    store = tmp_path / "store.jsonl"
    grid = {"x": list(range(20)), "y": [0], "pause": [0.1]}
    both = [start(points, grid, store, 1, stderr=subprocess.PIPE) for _ in range(2)]
    errors = [process.communicate(timeout=60)[1] for process in both]
    assert sorted(process.returncode for process in both) == [0, 1]
    (refused,) = [error for error in errors if error]
    assert f"ValueError: store must not be in use by another sweep; {store} is" in refused
    assert len(calls.read_text().splitlines()) == 20
    assert len(stored_points(store)) == 20


@POSIX
def test_the_progress_bar_is_quiet_without_a_terminal(points: Points, tmp_path: Path) -> None:
    import pty
    import termios

    quiet = start(points, GRID, tmp_path / "quiet.jsonl", 2, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert quiet.communicate(timeout=60) == ("", "")
    terminal, end = pty.openpty()
    termios.tcsetwinsize(end, (24, 80))
    shown = start(points, GRID, tmp_path / "shown.jsonl", 2, stderr=end)
    assert shown.wait(60) == 0
    assert b"shown: 100%" in os.read(terminal, 10_000)
    os.close(end)
    os.close(terminal)


@POSIX
@pytest.mark.parametrize("times", [1, 99])
def test_a_worker_that_dies_costs_at_most_its_point(points: Points, tmp_path: Path, times: int) -> None:
    """Killed from outside, a point is computed again; one that kills its worker when it is alone has failed."""
    module, _ = points
    grid = {"x": [1, 2, 3, 4, 5, 6], "y": [10, 20], "times": [times]}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", FailedPointWarning)
        table = sweep(module.killing, grid, store=tmp_path / "store.jsonl", n_jobs=2)
    failed = (table["x"] == 2) & (table["y"] == 10) & (times == 99)
    assert (table["sum"] == table["x"] + table["y"])[~failed].all()
    assert (table["error"][~failed] == "").all()
    assert table["error"][failed].str.contains("TerminatedWorkerError").all()
    assert len(caught) == failed.sum()


@pytest.fixture
def cluster(points: Points) -> Iterator[Any]:
    """A Dask cluster of two worker processes on this machine, in use by joblib."""
    from dask.distributed import Client, LocalCluster

    options: dict[str, Any] = {"threads_per_worker": 1, "dashboard_address": ":0", "silence_logs": logging.CRITICAL}
    with (
        LocalCluster(n_workers=2, **options) as workers,  # type: ignore[no-untyped-call]
        Client(workers) as client,  # type: ignore[no-untyped-call]
        joblib.parallel_config(backend="dask"),
    ):
        yield client


@POSIX
def test_the_same_call_computes_on_a_dask_cluster(points: Points, tmp_path: Path, cluster: Any) -> None:
    module, calls = points
    store = tmp_path / "store.jsonl"
    here = sweep(module.point, GRID, store=tmp_path / "here.jsonl", n_jobs=1)
    pd.testing.assert_frame_equal(sweep(module.point, GRID, store=store), here, check_exact=True)
    processes = set(cluster.run(os.getpid).values())
    assert len(processes) == 2
    assert os.getpid() not in processes
    lines = store.read_bytes().splitlines(keepends=True)
    store.write_bytes(b"".join(lines[:3]) + lines[3][:-9])
    noted = len(calls.read_text().splitlines())
    pd.testing.assert_frame_equal(sweep(module.point, GRID, store=store), here, check_exact=True)
    assert len(calls.read_text().splitlines()) == noted + 4


@POSIX
def test_on_a_cluster_a_finished_point_does_not_wait_for_another(points: Points, tmp_path: Path, cluster: Any) -> None:
    module, _ = points
    store = tmp_path / "store.jsonl"
    table = sweep(module.uneven, {"x": range(61), "slow": [40], "store": [str(store)]}, store=store)
    assert table["stored"][40] == 60


@POSIX
def test_a_cluster_that_loses_a_worker_in_mid_sweep_computes_all(points: Points, tmp_path: Path, cluster: Any) -> None:
    module, _ = points
    store = tmp_path / "store.jsonl"
    grid: dict[str, list[Any]] = {"x": list(range(60)), "y": [0], "pause": [0.05]}
    victim = next(iter(cluster.run(os.getpid).values()))

    def kill() -> None:
        wait_until(lambda: len(stored_points(store)) >= 10)
        os.kill(victim, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    table = sweep(module.point, grid, store=store)
    killer.join()
    assert table["sum"].tolist() == list(range(60))
    assert (table["error"] == "").all()
    assert victim not in cluster.run(os.getpid).values()
    assert len(store.read_text().splitlines()) == 1 + 60


@POSIX
def test_on_a_cluster_failing_points_are_recorded_too(points: Points, tmp_path: Path, cluster: Any) -> None:
    """Those that raise, and the one that kills each worker that takes it."""
    module, _ = points
    with pytest.warns(FailedPointWarning, match="2 of 6 points failed"):
        table = sweep(module.failing, GRID, store=tmp_path / "failing.jsonl")
    assert table["error"].str.startswith("RuntimeError: no such point as 2, ").sum() == 2
    with pytest.warns(FailedPointWarning, match="1 of 6 points failed"):
        table = sweep(module.killing, {**GRID, "times": [99]}, store=tmp_path / "killing.jsonl")
    assert table["error"].str.contains("KilledWorker").tolist() == [False, False, True, False, False, False]
    assert (table["error"] == "").sum() == 5


@pytest.mark.parametrize("n_jobs", [1, 2])
def test_random_numbers_depend_on_the_point_alone(points: Points, tmp_path: Path, n_jobs: int) -> None:
    """Neither on the order, nor on the number of workers, nor on an interruption."""
    module, _ = points
    store = tmp_path / "store.jsonl"
    sweep(module.random, {"seed": range(30)}, store=store, n_jobs=1)
    lines = store.read_bytes().splitlines(keepends=True)
    store.write_bytes(b"".join([lines[0], *lines[:0:-2]]))
    table = sweep(module.random, {"seed": range(30)}, store=store, n_jobs=n_jobs)
    assert table["value"].tolist() == [np.random.default_rng(seed).standard_normal() for seed in range(30)]


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
        '{"point": 0, "error": "after its row"}',
        '{"point": 1, "error": 3}',
        '{"point": 1, "row": [], "error": "either"}',
    ],
)
def test_a_damaged_line_is_named(points: Points, tmp_path: Path, line: str) -> None:
    module, _ = points
    store = tmp_path / "store.jsonl"
    sweep(module.point, GRID, store=store, n_jobs=1)
    header, first, *_, last = store.read_text().splitlines()
    store.write_text(f"{header}\n{first}\n{line}\n{last}\n")
    with pytest.raises(ValueError, match=r"store must hold a point in each line; line 3 of .*store\.jsonl is "):
        sweep(module.point, GRID, store=store, n_jobs=1)
    assert store.read_text() == f"{header}\n{first}\n{line}\n{last}\n"


@pytest.mark.parametrize(
    "end",
    [
        b"{\n",
        b"3\n",
        b"\n",
        b"\x00" * 4096,
        b"\x00" * 40 + b"\n",
        b"\xff\xfe\n",
        b'{"point": 5, "row": {"su\n',
        b"\r\n\n",
    ],
)
def test_a_last_line_that_is_corrupted_is_computed_again(points: Points, tmp_path: Path, end: bytes) -> None:
    module, calls = points
    store = tmp_path / "store.jsonl"
    whole = sweep(module.point, GRID, store=store, n_jobs=1)
    written = store.read_bytes()
    store.write_bytes(b"".join(written.splitlines(keepends=True)[:-1]) + end)
    if end == b"\r\n\n":  # two lines, of which the first was followed by another
        with pytest.raises(ValueError, match="store must hold a point in each line; line 7"):
            sweep(module.point, GRID, store=store, n_jobs=1)
        return
    pd.testing.assert_frame_equal(sweep(module.point, GRID, store=store, n_jobs=1), whole, check_exact=True)
    assert store.read_bytes() == written
    assert len(calls.read_text().splitlines()) == 7


def test_a_finished_point_does_not_wait_for_another(points: Points, tmp_path: Path) -> None:
    """One point among many fast ones ends only once all the others are in the store."""
    module, _ = points
    store = tmp_path / "store.jsonl"
    table = sweep(module.uneven, {"x": range(61), "slow": [40], "store": [str(store)]}, store=store, n_jobs=2)
    assert table["stored"][40] == 60


@pytest.fixture
def slow_disk(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A disk that takes a twentieth of a second each time, for much or little; the files that it was given."""
    files: list[int] = []
    fsync = os.fsync

    def slow(file: int) -> None:
        files.append(file)
        time.sleep(0.05)
        fsync(file)

    monkeypatch.setattr(os, "fsync", slow)
    return files


def test_what_finishes_while_the_disk_is_busy_is_stored_next(
    points: Points, tmp_path: Path, slow_disk: list[int]
) -> None:
    """Not one after the other: then a kill would lose nearly all of these quick points."""
    module, _ = points
    store = tmp_path / "store.jsonl"
    table = sweep(module.point, {"x": range(300), "y": [0]}, store=store, n_jobs=2)
    assert table["sum"].tolist() == list(range(300))
    assert len(stored_points(store)) == 300
    assert len(slow_disk) < 150


@POSIX
def test_on_a_cluster_too_what_finishes_while_the_disk_is_busy_is_stored_next(
    points: Points, tmp_path: Path, cluster: Any, slow_disk: list[int]
) -> None:
    module, _ = points
    store = tmp_path / "store.jsonl"
    table = sweep(module.point, {"x": range(300), "y": [0]}, store=store)
    assert table["sum"].tolist() == list(range(300))
    assert len(stored_points(store)) == 300
    assert len(slow_disk) < 150


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


@POSIX
def test_a_lock_opened_before_its_file_was_removed_does_not_let_a_second_sweep_in(
    points: Points, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between open and flock a first sweep leaves, which removes the file, and a second one enters with a new file."""
    import fcntl

    module, calls = points
    store = tmp_path / "store.jsonl"
    lock = fcntl.flock
    first, second = sweeps.alone(store), sweeps.alone(store)

    def late(file: int, operation: int) -> None:
        if operation & fcntl.LOCK_EX:
            monkeypatch.setattr(fcntl, "flock", lock)
            first.__exit__(None, None, None)
            second.__enter__()
        lock(file, operation)

    first.__enter__()
    monkeypatch.setattr(fcntl, "flock", late)
    with pytest.raises(ValueError, match="store must not be in use by another sweep"):
        sweep(module.point, GRID, store=store, n_jobs=1)
    second.__exit__(None, None, None)
    assert not calls.read_text()
    assert len(sweep(module.point, GRID, store=store, n_jobs=1)) == 6


@POSIX
def test_of_many_processes_that_come_and_go_one_at_a_time_has_the_store(tmp_path: Path) -> None:
    """Whoever is inside makes a file that must not be there yet."""
    code = (
        "import os, time; from pathlib import Path; from attention_phases.sweeps import alone\n"
        "inside, end, times = Path('inside'), time.monotonic() + 2, 0\n"
        "while time.monotonic() < end:\n"
        "    try:\n"
        "        with alone(Path('store.jsonl')):\n"
        "            os.close(os.open(inside, os.O_CREAT | os.O_EXCL)); inside.unlink(); times += 1\n"
        "    except ValueError:\n"
        "        pass\n"
        "print(times)"
    )
    processes = [
        subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path, text=True, stdout=subprocess.PIPE)
        for _ in range(4)
    ]
    times = [int(process.communicate(timeout=60)[0]) for process in processes]
    assert [process.returncode for process in processes] == [0] * 4
    assert sum(count > 0 for count in times) > 1
    assert not list(tmp_path.iterdir())


def test_a_file_of_somebody_else_where_the_lock_would_be_is_kept(points: Points, tmp_path: Path) -> None:
    module, _ = points
    lock = tmp_path / ".store.jsonl.sweep.lock"
    lock.write_text("mine")
    with pytest.raises(ValueError, match=r"store must have its lock to itself; .*sweep\.lock is something else"):
        sweep(module.point, GRID, store=tmp_path / "store.jsonl", n_jobs=1)
    assert lock.read_text() == "mine"
    lock.unlink()
    other = tmp_path / "store.jsonl.lock"
    other.write_text("mine too")
    sweep(module.point, GRID, store=tmp_path / "store.jsonl", n_jobs=1)
    assert other.read_text() == "mine too"
    assert not lock.exists()


@POSIX
def test_new_files_and_folders_are_on_disk_before_the_first_point(
    points: Points, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder's list of names is synchronised after a name has been added to it."""
    module, calls = points
    synced: list[tuple[int, list[str], bool]] = []
    fsync = os.fsync

    def noted(file: int) -> None:
        fsync(file)
        if stat.S_ISDIR(os.fstat(file).st_mode):
            synced.append((os.fstat(file).st_ino, os.listdir(file), bool(calls.read_text())))

    monkeypatch.setattr(os, "fsync", noted)
    folder = tmp_path / "new" / "newer"
    sweep(module.point, GRID, store=folder / "store.jsonl", n_jobs=1)
    before = [(inode, name) for inode, names, begun in synced for name in names if not begun]
    assert (tmp_path.stat().st_ino, "new") in before
    assert ((tmp_path / "new").stat().st_ino, "newer") in before
    assert (folder.stat().st_ino, "store.jsonl") in before


@POSIX
def test_where_files_must_be_small_the_sweep_stops_and_its_store_has_whole_lines(
    points: Points, tmp_path: Path
) -> None:
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


@pytest.mark.parametrize("n_jobs", [1, 2])
def test_a_point_that_exits_fails_alone(points: Points, tmp_path: Path, n_jobs: int) -> None:
    module, _ = points
    with pytest.warns(FailedPointWarning, match="2 of 6 points failed"):
        table = sweep(module.leaving, GRID, store=tmp_path / "store.jsonl", n_jobs=n_jobs)
    assert table["error"].tolist() == ["", "", "SystemExit: 3", "SystemExit: 3", "", ""]


def test_two_names_of_one_file_are_one_store(points: Points, tmp_path: Path) -> None:
    module, _ = points
    (tmp_path / "other.jsonl").symlink_to("store.jsonl")
    with sweeps.alone(tmp_path / "store.jsonl"), pytest.raises(ValueError, match="in use by another sweep"):
        sweep(module.point, GRID, store=tmp_path / "other.jsonl")


def test_a_store_is_made_where_its_link_points_to(points: Points, tmp_path: Path) -> None:
    module, _ = points
    (tmp_path / "link.jsonl").symlink_to(tmp_path / "far" / "store.jsonl")
    sweep(module.point, GRID, store=tmp_path / "link.jsonl", n_jobs=1)
    assert len((tmp_path / "far" / "store.jsonl").read_text().splitlines()) == 7
    (tmp_path / "circle.jsonl").symlink_to("circle.jsonl")
    with pytest.raises(ValueError, match=r"store must be the path of a file; got .*circle\.jsonl"):
        sweep(module.point, GRID, store=tmp_path / "circle.jsonl", n_jobs=1)


def test_a_store_with_two_names_is_refused(points: Points, tmp_path: Path) -> None:
    """Each name would have a lock of its own."""
    module, _ = points
    sweep(module.point, GRID, store=tmp_path / "store.jsonl", n_jobs=1)
    (tmp_path / "other.jsonl").hardlink_to(tmp_path / "store.jsonl")
    with pytest.raises(ValueError, match=r"store must be a file with one name; .*other\.jsonl has 2"):
        sweep(module.point, GRID, store=tmp_path / "other.jsonl", n_jobs=1)


def test_the_number_of_processes_may_come_from_an_array(points: Points, tmp_path: Path) -> None:
    module, _ = points
    two: Any = np.int64(2)
    assert len(sweep(module.point, GRID, store=tmp_path / "store.jsonl", n_jobs=two)) == 6


def test_a_method_of_an_object_is_refused(points: Points, tmp_path: Path) -> None:
    """What it computes depends on the object, of which the store knows nothing."""
    module, _ = points
    with pytest.raises(ValueError, match="function must not be bound to an object"):
        sweep(module.Adder(1).add, GRID, store=tmp_path / "store.jsonl")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 16 KiB, where this user may mount one."""
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", str(disk)]
    if shutil.which("mount") is None or subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("this user may not mount a disk")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.parametrize("n_jobs", [1, 2])
def test_on_a_full_disk_the_sweep_stops_and_goes_on_where_there_is_room(
    points: Points, small_disk: Path, n_jobs: int
) -> None:
    module, calls = points
    store, ballast = small_disk / "store.jsonl", small_disk / "ballast"
    ballast.write_bytes(bytes(12_000))
    grid = {"x": range(200), "y": [0]}
    with pytest.raises(OSError, match="No space left on device"):
        sweep(module.point, grid, store=store, n_jobs=n_jobs)
    assert store.read_bytes().endswith(b"}\n")
    assert -store.stat().st_size % os.statvfs(small_disk).f_bsize < 100  # another line has no room
    kept, noted = stored_points(store), len(calls.read_text().splitlines())
    assert 20 < len(kept) < 200
    ballast.unlink()
    assert sweep(module.point, grid, store=store, n_jobs=n_jobs)["sum"].tolist() == list(range(200))
    assert not kept & {call.replace(" ", "") for call in calls.read_text().splitlines()[noted:]}


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


@pytest.mark.parametrize("n_jobs", [1, 2])
def test_a_failing_point_is_recorded_and_the_others_are_computed(points: Points, tmp_path: Path, n_jobs: int) -> None:
    module, calls = points
    store = tmp_path / "store.jsonl"
    first = "the first is {'x': 2, 'y': 10}: RuntimeError: no such point as 2, 10"
    with pytest.warns(FailedPointWarning, match=f"2 of 6 points failed; {first}"):
        table = sweep(module.failing, GRID, store=store, n_jobs=n_jobs)
    error = "RuntimeError: no such point as 2, "
    assert table["error"].tolist() == ["", "", f"{error}10", f"{error}20", "", ""]
    assert table["sum"].isna().tolist() == table["name"].isna().tolist() == [False, False, True, True, False, False]
    assert table["sum"].dropna().tolist() == [11, 21, 13, 23]
    kept = {line["point"]: line for line in map(json.loads, store.read_text().splitlines()[1:])}
    assert kept[2]["error"] == f"{error}10"
    assert "in failing" in kept[2]["traceback"]
    assert len(calls.read_text().splitlines()) == 6


def test_points_that_failed_are_tried_again_and_only_they(points: Points, tmp_path: Path) -> None:
    module, calls = points
    store = tmp_path / "store.jsonl"
    for _ in range(2):
        with pytest.warns(FailedPointWarning, match="2 of 6 points failed"):
            sweep(module.failing, GRID, store=store, n_jobs=1)
    (tmp_path / "mended").touch()
    table = sweep(module.failing, GRID, store=store, n_jobs=1)
    assert table["sum"].tolist() == [11, 21, 12, 22, 13, 23]
    assert table["error"].tolist() == [""] * 6
    assert sweep(module.failing, GRID, store=store, n_jobs=1).equals(table)
    noted = calls.read_text().splitlines()
    assert {call: noted.count(call) for call in noted} == {
        f"{x} {y}": 3 if x == 2 else 1 for x in (1, 2, 3) for y in (10, 20)
    }


def test_where_all_points_fail_the_table_has_the_axes_and_the_errors(points: Points, tmp_path: Path) -> None:
    module, _ = points
    with pytest.warns(FailedPointWarning, match="1 of 1 points failed"):
        table = sweep(module.failing, {"x": [2], "y": [5]}, store=tmp_path / "store.jsonl", n_jobs=1)
    assert list(table) == ["x", "y", "error"]


@pytest.mark.parametrize("n_jobs", [1, 2])
def test_an_interruption_is_no_failure_of_a_point(points: Points, tmp_path: Path, n_jobs: int) -> None:
    module, _ = points
    store = tmp_path / "store.jsonl"
    with pytest.raises(KeyboardInterrupt):
        sweep(module.stopping, GRID, store=store, n_jobs=n_jobs)
    assert '"error"' not in store.read_text()
    assert len(store.read_text().splitlines()) <= 1 + 4


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (3, "function must return a mapping"),
        ({}, "function must return a mapping"),
        ({1: 2}, "function must return a mapping"),
        ({("a", "b"): 2}, "function must return a mapping"),
        ({"x": 2}, "function must return no column named 'error' or like an axis; got ['x']"),
        ({"error": ""}, "function must return no column named 'error' or like an axis; got ['error']"),
        *[({"good": 1, "bad": value}, "column 'bad' of function must be a number or text") for value in NO_VALUES],
    ],
)
def test_a_point_whose_row_no_table_can_hold_has_failed(points: Points, tmp_path: Path, row: Any, message: str) -> None:
    module, _ = points
    module.ROW = [row, {"good": 1}]
    with pytest.warns(FailedPointWarning, match="1 of 2 points failed"):
        table = sweep(module.returned, {"x": [0, 1]}, store=tmp_path / "store.jsonl", n_jobs=1)
    assert table["error"][0].startswith(f"ValueError: {message}")
    assert table["error"][1] == ""


def test_a_point_with_other_columns_than_those_before_has_failed(points: Points, tmp_path: Path) -> None:
    module, _ = points
    module.ROW = [{"a": 1}, {"a": 1, "b": 2}, {"a": 3}]
    with pytest.warns(FailedPointWarning, match="1 of 3 points failed"):
        table = sweep(module.returned, {"x": [0, 1, 2]}, store=tmp_path / "store.jsonl", n_jobs=1)
    message = "ValueError: function must return the same columns at every point; got ['a', 'b'], ['a'] before"
    assert table["error"].tolist() == ["", message, ""]
    assert list(table) == ["x", "a", "error"]


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
        ({"x": [1], "error": [1]}, r"grid must have no axis named 'error'; got \['x', 'error'\]"),
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
        ({"version": ""}, "version"),
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
