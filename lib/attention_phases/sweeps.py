"""Sweeps: one function at every point of a grid, in parallel, kept point by point, resumed where it stopped."""

import hashlib
import inspect
import itertools
import json
import math
import operator
import os
import stat
import traceback
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Set
from contextlib import closing, contextmanager, suppress
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pandas as pd
from filelock import FileLock, Timeout
from joblib.externals.loky.process_executor import TerminatedWorkerError
from joblib.parallel import get_active_backend
from tqdm import tqdm

from attention_phases import _checks
from attention_phases.errors import FailedPointWarning

Row = Mapping[str, Any]
_PLAIN = (bool, int, float, str)  # what a JSON line gives back as it was
_ERROR = "error"  # the column for points that failed


def sweep(
    function: Callable[..., Row],
    grid: Mapping[str, Iterable[Any]],
    *,
    store: str | os.PathLike[str],
    n_jobs: int = -1,
    version: str | None = None,
) -> pd.DataFrame:
    """`function(**point)` at every point of the product of the grid's axes, as a table in the order of the grid.

    Each finished point is appended to the file `store` at once and is on disk before it is counted; the same call then
    goes on where an earlier one stopped, however it ended, and computes no stored point again. A kill loses the points
    in flight: those that are computed, and those that have finished while the disk took the ones before.

    A point that fails does not stop the others: because `function` raises an Exception there, or returns what a row
    cannot be, or because the worker process dies of it. The table's last column, `error`, has the text of the error,
    and is empty at all other points; where one failed, a FailedPointWarning is given at the end. The store has the
    traceback. The same call tries these points again.

    To compute on a Dask cluster, whose workers can import `function`: make a `dask.distributed.Client` of it, then
    ``with joblib.parallel_config(backend="dask"): sweep(...)``. A point whose worker is lost goes to another one.

    Args:
        function: importable by name; takes a point's values by keyword and returns a mapping from column to number
            or text, with the same columns at every point and none named "error" or like an axis. It takes its random
            numbers from the point (a seed on the grid), so that neither order nor workers matter.
        grid: axis to values: finite numbers, True, False or texts. No axis is named "error".
        store: a file of JSON lines, one a point, after one that says whose they are. One sweep at a time writes it.
        n_jobs: processes, as in joblib; -1: one a core. With 1, points are computed in this process, and one that
            kills it ends the sweep. A cluster has as many as it has.
        version: a text that is another one whenever the code behind `function` is; None: this package's version.

    Raises:
        ValueError: names the argument; also where `store` holds the points of another function, version or grid,
            is damaged, or is in use by another sweep.
        OSError: a point could not be written. The points before it stay stored.
    """
    points = _points(function, grid)
    try:
        n_processes = 0 if isinstance(n_jobs, bool) else operator.index(n_jobs)
    except TypeError:
        n_processes = 0
    if n_processes == 0:
        raise ValueError(f"n_jobs must be a whole number other than 0; got {_checks.shown(n_jobs)}")
    if version is not None and (not isinstance(version, str) or not version):
        raise ValueError(f"version must be a text or None; got {_checks.shown(version)}")
    path = _place(store)
    header = _header(function, points, version)
    make_folder("store", path.parent)
    with alone(path):
        done = _resume(path, header, points)
        failed: dict[int, str] = {}
        missing = {index: point for index, point in enumerate(points) if index not in done}
        with (
            path.open("ab") as file,
            tqdm(total=len(points), initial=len(done), desc=path.stem, disable=None) as bar,
            closing(_outcomes(function, missing, n_processes)) as outcomes,
        ):
            for finished in outcomes:
                lines = []
                for index, outcome in finished:
                    outcome = _with_columns_of(done, outcome)
                    if "row" in outcome:
                        done[index] = outcome["row"]
                    else:
                        failed[index] = outcome["error"]
                    lines.append({"point": index} | outcome)
                _append(file.fileno(), *lines)
                bar.update(len(lines))
    if failed:
        first = min(failed)
        message = f"{len(failed)} of {len(points)} points failed; the first is {points[first]}: {failed[first]}"
        warnings.warn(message, FailedPointWarning, stacklevel=2)
    return pd.DataFrame(
        [point | done.get(index, {}) | {_ERROR: failed.get(index, "")} for index, point in enumerate(points)]
    )


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Within it, no other process is inside for the same path; where one is already, a ValueError.

    The lock is an empty hidden file beside `path`, which is gone afterwards. Only who holds the lock removes it. So
    whoever opened the file before and locks it after that holds a file with no name, and FileLock takes that for none.
    """
    file = path.with_name(f".{path.name}.sweep.lock")
    with suppress(FileNotFoundError):  # asked once: its owner may remove it at any moment
        status = file.stat()
        if not stat.S_ISREG(status.st_mode) or status.st_size > 0:
            raise ValueError(f"store must have its lock to itself; {file} is something else")
    lock = FileLock(file, timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise ValueError(f"store must not be in use by another sweep; {path} is") from None
    try:
        yield
    finally:
        with suppress(PermissionError):  # Windows removes no open file; there the release does
            file.unlink(missing_ok=True)
        lock.release()


def make_folder(name: str, folder: Path) -> None:
    """Make a folder and those above it that are missing, on disk; where it cannot be one, a ValueError for `name`."""
    missing = [place for place in (folder, *folder.parents) if not place.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise ValueError(f"{name} must have folders all along its path; got {folder}") from None
    for place in reversed(missing):
        sync_folder(place.parent)


def sync_folder(folder: Path) -> None:
    """Have on disk which files the folder holds: without it, a loss of power may take a new file's name."""
    if os.name == "nt":  # which opens no folders, and needs none of this
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _place(store: str | os.PathLike[str]) -> Path:
    """Where the store is: two names of one file are one store, and a point may change the working folder."""
    wrong = f"store must be the path of a file; got {_checks.shown(store)}"
    if not isinstance(store, str | os.PathLike) or not isinstance(os.fspath(store), str) or not os.fspath(store):
        raise ValueError(wrong)
    try:
        path = Path(store).resolve()
        status = path.stat() if path.exists() else None
    except (OSError, ValueError, RuntimeError) as error:  # too long, a null character, links in a circle
        raise ValueError(f"{wrong}: {error}") from None
    if path.is_dir():
        raise ValueError(wrong)
    if status is not None and not path.is_file():
        raise ValueError(f"store must be a regular file, or none yet; got {path}")
    if status is not None and status.st_nlink > 1:
        raise ValueError(f"store must be a file with one name; {path} has {status.st_nlink} (hard links)")
    return path


def _points(function: Callable[..., Row], grid: Mapping[str, Iterable[Any]]) -> list[dict[str, Any]]:
    """The points of the grid, each a mapping that `function` takes by keyword, with plain Python values."""
    if not callable(function) or "<" in getattr(function, "__qualname__", "<"):
        raise ValueError(f"function must be importable by name; got {_checks.shown(function)}")
    if inspect.ismethod(function) and not isinstance(function.__self__, type):
        raise ValueError(f"function must not be bound to an object; got {_checks.shown(function)}")
    if not isinstance(grid, Mapping) or not grid or not all(isinstance(axis, str) for axis in grid):
        raise ValueError(f"grid must map names of axes to values; got {_checks.shown(grid)}")
    if _ERROR in grid:
        raise ValueError(f"grid must have no axis named {_ERROR!r}; got {list(grid)}")
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


def _outcomes(
    function: Callable[..., Row], points: dict[int, dict[str, Any]], n_jobs: int
) -> Generator[list[tuple[int, dict[str, Any]]], None, None]:
    """Index and outcome (see `_outcome`) of each point, as they come: of all points that are finished by now at once.

    One at a time, each would wait for the disk to take those before it. A kill would lose all that wait, and where
    points are quick they would be ever more.
    """
    backend, _ = get_active_backend()
    if hasattr(backend, "client"):
        yield from _outcomes_on_cluster(backend.client, function, points)
        return
    waiting = dict(points)
    while waiting:
        begun: list[int] = []
        # In a batch of several, a finished point would wait for the others before it is stored.
        parallel = joblib.Parallel(n_jobs=n_jobs, return_as="generator_unordered", batch_size=1)
        finished: list[tuple[int, dict[str, Any]]] = []
        with _quietly_closed(parallel(_tasks(function, dict(waiting), begun))) as outcomes:
            try:
                for n_taken, (index, outcome) in enumerate(outcomes, start=1):
                    del waiting[index]
                    finished.append((index, outcome))
                    if n_taken >= parallel.n_completed_tasks:  # the next one is not there yet
                        yield finished
                        finished = []
            except TerminatedWorkerError:  # it takes all points in flight along, and does not say which one killed it
                if finished:
                    yield finished
                for index in [index for index in begun if index in waiting]:
                    yield [(index, _outcome_alone(function, waiting.pop(index)))]


@contextmanager
def _quietly_closed(outcomes: Generator[Any, None, None]) -> Iterator[Generator[Any, None, None]]:
    """Within it, joblib's generator is open. That an interrupted one did not come to its end needs no warning."""
    try:
        yield outcomes
    finally:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            outcomes.close()


def _tasks(function: Callable[..., Row], points: dict[int, dict[str, Any]], begun: list[int]) -> Iterator[Any]:
    """joblib's tasks, one a point. What joblib has taken is noted in `begun`."""
    for index, point in points.items():
        begun.append(index)
        yield joblib.delayed(_indexed_outcome)(function, index, point)


def _outcome_alone(function: Callable[..., Row], point: dict[str, Any]) -> dict[str, Any]:
    """The outcome of a point, computed in another process, with no other point beside it."""
    try:
        (outcome,) = joblib.Parallel(n_jobs=2)([joblib.delayed(_outcome)(function, point)])  # 1 would be this process
    except TerminatedWorkerError as error:
        return _failure(error)
    return outcome  # type: ignore[no-any-return]


def _outcomes_on_cluster(
    client: Any, function: Callable[..., Row], points: dict[int, dict[str, Any]]
) -> Iterator[list[tuple[int, dict[str, Any]]]]:
    """The same on the cluster of joblib's Dask backend.

    That backend passes on no error of Dask's own: where a point has killed its workers, joblib waits for it for ever.
    """
    from dask.distributed import as_completed

    futures = {client.submit(_outcome, function, point, pure=False): index for index, point in points.items()}
    suspects: list[int] = []
    try:
        for batch in as_completed(futures).batches():  # type: ignore[no-untyped-call]
            suspects += [futures[future] for future in batch if future.status == "error"]
            if finished := [future for future in batch if future.status != "error"]:
                indices = [futures[future] for future in finished]
                yield list(zip(indices, client.gather(finished), strict=True))
        for index in suspects:  # a point that waited at a worker that another one killed is blamed too
            alone = client.submit(_outcome, function, points[index], pure=False)
            error = alone.exception()
            yield [(index, _failure(error) if error else alone.result())]
    finally:
        client.cancel(list(futures))


def _indexed_outcome(function: Callable[..., Row], index: int, point: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    return index, _outcome(function, point)


def _outcome(function: Callable[..., Row], point: dict[str, Any]) -> dict[str, Any]:
    """{"row": row}, or what `_failure` says."""
    try:
        return {"row": _row(function(**point), point)}
    except (Exception, SystemExit, GeneratorExit) as error:
        return _failure(error)


def _with_columns_of(done: dict[int, dict[str, Any]], outcome: dict[str, Any]) -> dict[str, Any]:
    """The outcome, or that it is an error to have other columns than the points before."""
    columns = next(iter(done.values()), outcome.get("row", {})).keys()
    if "row" not in outcome or outcome["row"].keys() == columns:
        return outcome
    got = f"{list(outcome['row'])}, {list(columns)} before"
    return {"error": f"ValueError: function must return the same columns at every point; got {got}"}


def _failure(error: BaseException) -> dict[str, Any]:
    """{"error": its text, "traceback": where it came from}."""
    return {
        "error": "".join(traceback.format_exception_only(error)).strip(),
        "traceback": "".join(traceback.format_exception(error)),
    }


def _row(returned: Row, point: dict[str, Any]) -> dict[str, Any]:
    """What `function` returned, with plain Python values, or a ValueError."""
    if not isinstance(returned, Mapping) or not returned or not all(isinstance(column, str) for column in returned):
        raise ValueError(f"function must return a mapping from columns to values; got {_checks.shown(returned)}")
    if taken := sorted(returned.keys() & (point.keys() | {_ERROR})):
        raise ValueError(f"function must return no column named {_ERROR!r} or like an axis; got {taken}")
    return {
        str(column): _plain(f"column {column!r} of function", value, finite=False) for column, value in returned.items()
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
    """Rows that the store holds. A last line that was not written to its end is removed; a new store gets its header.

    The end of such a line may be missing or, after a loss of power, be anything.
    """
    content = path.read_bytes() if path.exists() else b""
    *lines, cut = content.split(b"\n")
    if not cut and len(lines) > 1 and _read(lines[-1]) is None:
        cut = lines.pop() + b"\n"
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
        if "row" in entry:
            done[entry["point"]] = entry["row"]
    if cut:
        os.truncate(path, len(content) - len(cut))
    if new:
        with path.open("ab") as file:
            _append(file.fileno(), header)
        sync_folder(path.parent)
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
    if type(index) is not int or not 0 <= index < len(points) or index in done:
        return False
    if "row" not in entry:
        return isinstance(entry.get("error"), str)
    if not isinstance(row, dict):
        return False
    columns = next(iter(done.values()), row).keys()
    return bool(row) and row.keys() == columns and all(type(value) in _PLAIN for value in row.values())


def _line(content: Mapping[str, Any]) -> bytes:
    return (json.dumps(content) + "\n").encode()


def _append(file: int, *contents: Mapping[str, Any]) -> None:
    """Write lines and have them on disk; where it is full, as many as it takes, and where it fails, none."""
    before = whole = os.fstat(file).st_size
    try:
        for line in map(_line, contents):
            while line:
                line = line[os.write(file, line) :]
            whole = os.fstat(file).st_size
    except OSError:
        os.ftruncate(file, whole)
        raise
    finally:
        try:
            os.fsync(file)
        except OSError:
            os.ftruncate(file, before)
            raise
