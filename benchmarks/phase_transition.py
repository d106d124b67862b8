"""Time and accuracy of the curves alpha_c(omega) and alpha_l(omega) of the running example, 25 omegas, both together.

A curve is continued from one omega to the next: its time is compared with that of its points, each searched alone.
Compiled code and nodes are made by a run before, at one omega.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np
from attention_phases.positional_semantic import (
    Task,
    Threshold,
    ThresholdCurve,
    critical_alpha,
    critical_curve,
    linear_crossover_alpha,
    linear_crossover_curve,
    spinodal_alpha,
    stability_alpha,
)

if TYPE_CHECKING:
    from collections.abc import Callable

OMEGAS = np.linspace(0, 0.48, 25)
CURVES: dict[str, tuple[Callable[..., ThresholdCurve], Callable[..., Threshold]]] = {
    "alpha_c": (critical_curve, critical_alpha),
    "alpha_l": (linear_crossover_curve, linear_crossover_alpha),
}


def main() -> None:
    """Print the times."""
    linear_crossover_alpha(Task())
    seconds, cpu = 0.0, 0.0
    for name, (curve, point) in CURVES.items():
        begin, begin_cpu = time.perf_counter(), time.process_time()
        found = curve(Task(), OMEGAS)
        curve_seconds, curve_cpu = time.perf_counter() - begin, time.process_time() - begin_cpu
        seconds, cpu = seconds + curve_seconds, cpu + curve_cpu
        begin_cpu = time.process_time()
        for omega in OMEGAS:
            point(Task(omega))
        points_cpu = time.process_time() - begin_cpu
        print(
            f"{name}: {len(OMEGAS)} omegas, standard errors {found.standard_error.min():.1e} to "
            f"{found.standard_error.max():.1e}; {curve_cpu:.1f} CPU s as a curve, {points_cpu:.1f} point by point: "
            f"ratio {curve_cpu / points_cpu:.2f}"
        )
    print(
        f"both curves: {seconds:.1f} s, {cpu:.1f} CPU s\n"
        f"{'one threshold, omega = 0.3':32} {'alpha':>8} {'error':>8} {'seconds':>8} {'CPU s':>8}"
    )
    thresholds: list[tuple[str, Callable[[], Threshold]]] = [
        ("alpha_c", lambda: critical_alpha(Task())),
        ("alpha_c, accuracy 2e-4", lambda: critical_alpha(Task(), accuracy=2e-4)),
        ("alpha_l", lambda: linear_crossover_alpha(Task())),
        ("end of the semantic branch", lambda: spinodal_alpha(Task(), "semantic")),
        ("end of its stability", lambda: stability_alpha(Task(), "semantic")),
    ]
    for name, threshold in thresholds:
        begin, begin_cpu = time.perf_counter(), time.process_time()
        here = threshold()
        wall, used = time.perf_counter() - begin, time.process_time() - begin_cpu
        print(f"{name:32} {here.value:8.4f} {here.standard_error:8.1e} {wall:8.2f} {used:8.2f}", flush=True)


if __name__ == "__main__":
    main()
