"""What a sweep loses on two processes, and what storing a point costs.

1. Efficiency: points on one process over twice the time of as many on two. A clock on the wall says little where other
   programs hold a core: then it is their load that is measured. So the points note their own times, and efficiency
   comes as a product of two ratios that such a load leaves nearly as they are.

   * occupied: wall time that is spent within points, over the wall time of the sweep times its processes. What is
     missing is the sweep's own: starting the processes, handing out points, storing them, waiting for the last one.
     Other programs lengthen both times alike.
   * slowdown: processor time of the points on two processes over that of the same points on one: what the machine
     loses when two processes share its memory. Time that other programs hold the core is not in it.

   efficiency = occupied / slowdown. The points are those of the stored map, the minima from both informed starts, at
   d = 1000. Sweeps with one and with two processes take turns. Beside it is the plain ratio of wall times, which is
   the same number on a machine that does nothing else.
2. Cost of a point: a sweep over points that do nothing, of which each is on disk before the next is counted.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from attention_phases.positional_semantic.experiments import map_point
from attention_phases.sweeps import sweep
from joblib.externals.loky import get_reusable_executor

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import pandas as pd

POINTS = 60
REPEATS = 2
EMPTY = 1000


def timed_point(seed: int) -> dict[str, float]:
    """One point of the map, with the seconds that it took, on the wall and of the processor."""
    wall, processor = time.perf_counter(), time.process_time()
    map_point(0.3, 1.5, 1000, seed)
    return {"wall": time.perf_counter() - wall, "processor": time.process_time() - processor}


def nothing(seed: int) -> dict[str, int]:
    """A point without work."""
    return {"same": seed}


def timed_sweep(function: Callable[..., Mapping[str, Any]], seeds: range, n_jobs: int) -> tuple[float, pd.DataFrame]:
    """Wall time of a sweep with processes that are started for it, and its table."""
    get_reusable_executor().shutdown()
    with TemporaryDirectory() as folder:
        start = time.perf_counter()
        table = sweep(function, {"seed": seeds}, store=Path(folder) / "store.jsonl", n_jobs=n_jobs)
        return time.perf_counter() - start, table


def main() -> None:
    """Print the tables."""
    if hasattr(os, "getloadavg"):
        print(f"{os.cpu_count()} cores, load before: {os.getloadavg()[0]:.1f}")
    map_point(0.3, 1.5, 100, 0)  # imports and compiled code
    sweeps, walls, processors = {1: 0.0, 2: 0.0}, {1: 0.0, 2: 0.0}, {1: 0.0, 2: 0.0}
    for n_jobs in [1, 2] * REPEATS:
        seconds, table = timed_sweep(timed_point, range(POINTS), n_jobs)
        sweeps[n_jobs] += seconds
        walls[n_jobs] += table["wall"].sum()
        processors[n_jobs] += table["processor"].sum()
    print(f"{REPEATS} sweeps of {POINTS} points each, start of the processes included")
    print(f"{'processes':>9}{'seconds':>9}{'occupied':>10}{'slowdown':>10}{'efficiency':>12}{'by the wall':>13}")
    for n_jobs, seconds in sweeps.items():
        occupied = walls[n_jobs] / (n_jobs * seconds)
        slowdown = processors[n_jobs] / processors[1]
        plain = sweeps[1] / (n_jobs * seconds)
        print(f"{n_jobs:9}{seconds / REPEATS:9.1f}{occupied:10.3f}{slowdown:10.3f}", end="")
        print(f"{occupied / slowdown:12.3f}{plain:13.3f}")
    for n_jobs in (1, 2):
        cost = timed_sweep(nothing, range(EMPTY), n_jobs)[0] / EMPTY
        print(f"a point that does nothing, {n_jobs} process{'es' if n_jobs > 1 else ''}: {1e3 * cost:.2f} ms")


if __name__ == "__main__":
    main()
