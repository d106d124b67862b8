"""Sweeps: one function at every point of a grid, in parallel, kept point by point, resumed where it stopped."""

import hashlib
import inspect
import itertools
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import joblib
import pandas as pd
from tqdm import tqdm

from attention_phases import _checks

Row = Mapping[str, Any]


def sweep(
    function: Callable[..., Row],
    grid: Mapping[str, Sequence[Any]],
    *,
    store: str | os.PathLike[str],
    n_jobs: int = -1,
) -> pd.DataFrame:
    """`function(**point)` at every point of the product of the grid's axes, as a table in the order of the grid.

    Each finished point is appended to the file `store` and is on disk before the next is counted; the same call then
    goes on where an earlier one stopped, however it ended, and computes no stored point again.

    Args:
        function: importable by name; takes a point's values by keyword and returns a mapping from column to number
            or text. It takes its random numbers from the point (a seed on the grid), so that the order does not matter.
        grid: axis to values, numbers or texts.
        store: a file of JSON lines, one a point, after one that says whose they are.
        n_jobs: processes, as in joblib; -1: one a core.

    Raises:
        ValueError: names the argument; also where `store` holds the points of another function, version or grid.
    """
    if not callable(function) or "<" in getattr(function, "__qualname__", "<"):
        raise ValueError(f"function must be importable by name; got {_checks.shown(function)}")
    if not grid or not all(len(values) for values in grid.values()):
        raise ValueError(f"grid must have at least one axis, each with at least one value; got {_checks.shown(grid)}")
    points = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    path = Path(store)
    done = _resume(path, _header(function, points))
    missing = [index for index in range(len(points)) if index not in done]
    with path.open("ab") as file, tqdm(total=len(points), initial=len(done), desc=path.stem, disable=None) as bar:
        for index, row in _computed(function, points, missing, n_jobs):
            _append(file.fileno(), {"point": index, "row": row})
            done[index] = row
            bar.update()
    return pd.DataFrame([points[index] | done[index] for index in range(len(points))])


def _computed(
    function: Callable[..., Row], points: list[dict[str, Any]], indices: list[int], n_jobs: int
) -> Iterator[tuple[int, dict[str, Any]]]:
    parallel = joblib.Parallel(n_jobs=n_jobs, return_as="generator_unordered")
    results: Iterator[tuple[int, dict[str, Any]]] = parallel(
        joblib.delayed(_one)(function, index, points[index]) for index in indices
    )
    return results


def _one(function: Callable[..., Row], index: int, point: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    row = function(**point)
    if not isinstance(row, Mapping):
        raise TypeError(f"function must return a mapping from column to number or text; got {_checks.shown(row)}")
    return index, {column: value.item() if hasattr(value, "item") else value for column, value in row.items()}


def _header(function: Callable[..., Row], points: list[dict[str, Any]]) -> dict[str, str]:
    """Whose points a store holds. A change of the function's own file makes it another function."""
    source = inspect.getsourcefile(function)
    content = b"" if source is None else Path(source).read_bytes()
    return {
        "function": f"{function.__module__}.{function.__qualname__}",
        "version": version("attention-phases"),
        "source": hashlib.sha256(content).hexdigest(),
        "grid": hashlib.sha256(json.dumps(points).encode()).hexdigest(),
    }


def _resume(path: Path, header: dict[str, str]) -> dict[int, dict[str, Any]]:
    """Points that the store holds. A last line that was cut off is removed; a new store gets its header."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = path.read_bytes() if path.exists() else b""
    whole = content[: content.rfind(b"\n") + 1]
    try:
        lines = [json.loads(line) for line in whole.splitlines()]
        known = not lines or header.keys() <= lines[0].keys()
    except (ValueError, AttributeError):
        known = False
    if not known:
        raise ValueError(f"store must be a file that a sweep wrote, or none yet; got {path}")
    if len(whole) < len(content):
        os.truncate(path, len(whole))
    if not lines:
        with path.open("ab") as file:
            _append(file.fileno(), header)
        return {}
    for key, value in header.items():
        if lines[0][key] != value:
            raise ValueError(f"store must hold this sweep's points; {path} has {key} {lines[0][key]}, not {value}")
    return {line["point"]: line["row"] for line in lines[1:]}


def _append(file: int, content: Mapping[str, Any]) -> None:
    os.write(file, (json.dumps(content) + "\n").encode())
    os.fsync(file)
