"""Sweeps: one function at every point of a grid, in parallel, kept point by point, resumed where it stopped."""

import hashlib
import inspect
import itertools
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from contextlib import contextmanager, suppress
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pandas as pd
from filelock import FileLock, Timeout
from tqdm import tqdm

from attention_phases import _checks

Row = Mapping[str, Any]
_PLAIN = (bool, int, float, str)  # what a JSON line gives back as it was


def sweep(
    function: Callable[..., Row],
    grid: Mapping[str, Iterable[Any]],
    *,
    store: str | os.PathLike[str],
    n_jobs: int = -1,
    version: str | None = None,
) -> pd.DataFrame:
    """`function(**point)` at every point of the product of the grid's axes, as a table in the order of the grid.

    Each finished point is appended to the file `store` and is on disk before the next is counted; the same call then
    goes on where an earlier one stopped, however it ended, and computes no stored point again.

    Args:
        function: importable by name; takes a point's values by keyword and returns a mapping from column to number
            or text, with the same columns at every point and none named like an axis. It takes its random numbers
            from the point (a seed on the grid), so that the order does not matter.
        grid: axis to values: finite numbers, True, False or texts.
        store: a file of JSON lines, one a point, after one that says whose they are. One sweep at a time writes it.
        n_jobs: processes, as in joblib; -1: one a core.
        version: a text that is another one whenever the code behind `function` is; None: this package's version.

    Raises:
        ValueError: names the argument; also where `store` holds the points of another function, version or grid,
            is damaged, or is in use by another sweep.
        OSError: a point could not be written. The points before it stay stored.
    """
    points = _points(function, grid)
    if not isinstance(n_jobs, int) or isinstance(n_jobs, bool) or n_jobs == 0:
        raise ValueError(f"n_jobs must be a whole number other than 0; got {_checks.shown(n_jobs)}")
    if version is not None and not isinstance(version, str):
        raise ValueError(f"version must be a text or None; got {_checks.shown(version)}")
    if not isinstance(store, str | os.PathLike) or not os.fspath(store) or (path := Path(store)).is_dir():
        raise ValueError(f"store must be the path of a file; got {_checks.shown(store)}")
    if path.exists() and not path.is_file():
        raise ValueError(f"store must be a regular file, or none yet; got {path}")
    header = _header(function, points, version)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise ValueError(f"store must lie in a folder; got {path}") from None
    with alone(path):
        done = _resume(path, header, points)
        missing = [index for index in range(len(points)) if index not in done]
        with path.open("ab") as file, tqdm(total=len(points), initial=len(done), desc=path.stem, disable=None) as bar:
            for index, row in _computed(function, points, missing, n_jobs):
                if done and row.keys() != (columns := next(iter(done.values())).keys()):
                    got = f"{list(row)} at {points[index]}, {list(columns)} before"
                    raise ValueError(f"function must return the same columns at every point; got {got}")
                _append(file.fileno(), {"point": index, "row": row})
                done[index] = row
                bar.update()
    return pd.DataFrame([points[index] | done[index] for index in range(len(points))])


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Within it, no other process is inside for the same path; where one is already, a ValueError. Leaves no file."""
    lock = FileLock(f"{path}.lock", timeout=0)
    in_use = f"store must not be in use by another sweep; {path} is"
    try:
        lock.acquire()
    except Timeout:
        raise ValueError(in_use) from None
    try:
        if not Path(lock.lock_file).exists():  # opened just before its last owner removed it: it keeps nobody out
            raise ValueError(in_use)
        yield
    finally:
        with suppress(PermissionError):  # Windows removes no open file; there the release does
            Path(lock.lock_file).unlink(missing_ok=True)
        lock.release()


def _points(function: Callable[..., Row], grid: Mapping[str, Iterable[Any]]) -> list[dict[str, Any]]:
    """The points of the grid, each a mapping that `function` takes by keyword, with plain Python values."""
    if not callable(function) or "<" in getattr(function, "__qualname__", "<"):
        raise ValueError(f"function must be importable by name; got {_checks.shown(function)}")
    if not isinstance(grid, Mapping) or not grid or not all(isinstance(axis, str) for axis in grid):
        raise ValueError(f"grid must map names of axes to values; got {_checks.shown(grid)}")
    axes = {}
    for axis, values in grid.items():
        name = f"grid[{axis!r}]"
        try:
            axes[axis] = [] if isinstance(values, str | bytes | Mapping | Set) else list(values)
        except TypeError:  # a number, None, an array of no dimension
            axes[axis] = []
        if not axes[axis]:
            raise ValueError(f"{name} must be a sequence of at least one value; got {_checks.shown(values)}")
        axes[axis] = [_plain(name, value, finite=True) for value in axes[axis]]
    points = [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
    try:
        signature = inspect.signature(function)
    except ValueError:  # some built-in functions have none
        return points
    try:
        signature.bind(**points[0])
    except TypeError as error:
        raise ValueError(f"grid must have the arguments of function as axes; got {list(axes)}: {error}") from None
    return points


def _plain(name: str, value: Any, *, finite: bool) -> bool | int | float | str:
    """`value` as a Python bool, int, float or str, or a ValueError."""
    plain = value
    if type(value) not in _PLAIN:
        try:
            array = np.asarray(value)
            single = array.ndim == 0 and array.dtype.kind in "biufU" and not np.ma.is_masked(value)
            plain = array.item() if single else None
        except Exception:  # whatever the library that made the value raises
            plain = None
    try:
        fits = type(plain) in _PLAIN and (isinstance(plain, str) or math.isfinite(plain) or not finite)
    except OverflowError:  # an int that no float holds
        fits = False
    if not fits:
        raise ValueError(
            f"{name} must be {'finite numbers' if finite else 'a number'} or text; got {_checks.shown(value)}"
        )
    return plain  # type: ignore[no-any-return]


def _computed(
    function: Callable[..., Row], points: list[dict[str, Any]], indices: list[int], n_jobs: int
) -> Iterator[tuple[int, dict[str, Any]]]:
    # In a batch of several, a finished point would wait for the others before it is stored.
    parallel = joblib.Parallel(n_jobs=n_jobs, return_as="generator_unordered", batch_size=1)
    results: Iterator[tuple[int, dict[str, Any]]] = parallel(
        joblib.delayed(_one)(function, index, points[index]) for index in indices
    )
    return results


def _one(function: Callable[..., Row], index: int, point: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    row = function(**point)
    if not isinstance(row, Mapping) or not row or not all(isinstance(column, str) for column in row):
        raise ValueError(f"function must return a mapping from columns to values; got {_checks.shown(row)} at {point}")
    if twice := sorted(row.keys() & point.keys()):
        raise ValueError(f"function must return no column named like an axis; got {twice} at {point}")
    return index, {
        str(column): _plain(f"column {column!r} of function at {point}", value, finite=False)
        for column, value in row.items()
    }


def _header(function: Callable[..., Row], points: list[dict[str, Any]], version: str | None) -> dict[str, str]:
    """Whose points a store holds. A change of the function's source makes it another function."""
    try:
        source = inspect.getsource(function)
    except (TypeError, OSError):  # built in, or typed at a prompt
        source = ""
    return {
        "function": f"{function.__module__}.{function.__qualname__}",
        "version": version or version_of("attention-phases"),
        "source": hashlib.sha256(source.encode()).hexdigest(),
        "grid": hashlib.sha256(json.dumps(points).encode()).hexdigest(),
    }


def _resume(path: Path, header: dict[str, str], points: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """Points that the store holds. A last line that was cut off is removed; a new store gets its header."""
    content = path.read_bytes() if path.exists() else b""
    *lines, cut = content.split(b"\n")
    found = _read(lines[0]) if lines else None
    new = not lines and _line(header).startswith(cut)
    if not new and (found is None or found.keys() != header.keys()):
        raise ValueError(f"store must be a file that a sweep wrote, or none yet; got {path}")
    if found is not None:
        for key, value in header.items():
            if found[key] != value:
                raise ValueError(f"store must hold this sweep's points; {path} has {key} {found[key]}, not {value}")
    done: dict[int, dict[str, Any]] = {}
    for number, line in enumerate(lines[1:], start=2):
        entry = _read(line)
        if entry is None or not _is_point(entry, points, done):
            raise ValueError(f"store must hold a point in each line; line {number} of {path} is {_checks.shown(line)}")
        done[entry["point"]] = entry["row"]
    if cut:
        os.truncate(path, len(content) - len(cut))
    if new:
        with path.open("ab") as file:
            _append(file.fileno(), header)
    return done


def _read(line: bytes) -> dict[str, Any] | None:
    """The JSON object in a line, or None."""
    try:
        content = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None


def _is_point(entry: dict[str, Any], points: list[dict[str, Any]], done: dict[int, dict[str, Any]]) -> bool:
    index, row = entry.get("point"), entry.get("row")
    if type(index) is not int or not 0 <= index < len(points) or index in done or not isinstance(row, dict):
        return False
    columns = next(iter(done.values()), row).keys()
    return bool(row) and row.keys() == columns and all(type(value) in _PLAIN for value in row.values())


def _line(content: Mapping[str, Any]) -> bytes:
    return (json.dumps(content) + "\n").encode()


def _append(file: int, content: Mapping[str, Any]) -> None:
    """Write a line and have it on disk; where that fails, the file is as it was."""
    length = os.fstat(file).st_size
    line = _line(content)
    try:
        while line:
            line = line[os.write(file, line) :]
        os.fsync(file)
    except BaseException:
        os.ftruncate(file, length)
        raise
