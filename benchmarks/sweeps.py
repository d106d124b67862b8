"""What a sweep loses on two processes, and what storing a point costs.

1. Efficiency: the time of a sweep on one process over twice its time on two, start of the processes included. The
   points are those of the stored map, the minima from both informed starts, at d = 1000. The sweeps take turns; the
   best time of each counts, so that what else the machine does matters less. Beside it the same ratio for processes
   that run the points with no sweep around them: what the machine itself loses, to its memory above all.
2. Cost of a point: a sweep over points that do nothing.

Efficiency says nothing where other programs keep a core busy; the load of the machine is printed first.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from attention_phases.positional_semantic.experiments import map_point
from attention_phases.sweeps import sweep
from joblib.externals.loky import get_reusable_executor

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

GRID: dict[str, Sequence[Any]] = {"omega": (0.3,), "alpha": (1.5,), "d": (1000,), "seed": range(60)}
REPEATS = 2
EMPTY = 1000


def nothing(number: int) -> dict[str, int]:
    return {"same": number}


def seconds(function: Callable[..., Mapping[str, Any]], grid: Mapping[str, Sequence[Any]], n_jobs: int) -> float:
    """The time of a sweep, with processes that are started for it."""
    get_reusable_executor().shutdown()
    with TemporaryDirectory() as folder:
        start = time.perf_counter()
        sweep(function, grid, store=Path(folder) / "store.jsonl", n_jobs=n_jobs)
        return time.perf_counter() - start


def bare_seconds(n_processes: int) -> float:
    """The time of the same points, dealt to processes that do nothing else."""
    code = (
        "import sys\n"
        "from attention_phases.positional_semantic.experiments import map_point\n"
        f"for seed in range(int(sys.argv[1]), {len(GRID['seed'])}, {n_processes}):\n"
        f"    map_point({GRID['omega'][0]}, {GRID['alpha'][0]}, {GRID['d'][0]}, seed)\n"
    )
    start = time.perf_counter()
    processes = [subprocess.Popen([sys.executable, "-c", code, str(first)]) for first in range(n_processes)]
    for process in processes:
        if process.wait():
            raise subprocess.CalledProcessError(process.returncode, process.args)
    return time.perf_counter() - start


def main() -> None:
    """Print the tables."""
    if hasattr(os, "getloadavg"):
        print(f"{os.cpu_count()} cores, load before: {os.getloadavg()[0]:.1f}")
    map_point(0.3, 1.5, 100, 0)  # imports and compiled code
    best: dict[tuple[str, int], float] = {}
    for _, n_jobs in itertools.product(range(REPEATS), (1, 2)):
        for kind, value in (("sweep", seconds(map_point, GRID, n_jobs)), ("no sweep", bare_seconds(n_jobs))):
            best[kind, n_jobs] = min(value, best.get((kind, n_jobs), float("inf")))
    print(f"{len(GRID['seed'])} points, best of {REPEATS}")
    print(f"{'':9}{'1 process':>11}{'2 processes':>13}{'efficiency':>12}")
    for kind in ("sweep", "no sweep"):
        one, two = best[kind, 1], best[kind, 2]
        print(f"{kind:9}{one:9.2f} s{two:11.2f} s{one / (2 * two):12.2f}")
    for n_jobs in (1, 2):
        cost = seconds(nothing, {"number": range(EMPTY)}, n_jobs) / EMPTY
        print(f"a point that does nothing, {n_jobs} process{'es' if n_jobs > 1 else ''}: {1e3 * cost:.2f} ms")


if __name__ == "__main__":
    main()
