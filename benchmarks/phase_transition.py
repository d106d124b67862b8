"""Time and accuracy of the curves alpha_c(omega) and alpha_l(omega) of the running example, 25 omegas, both together.

Compiled code and nodes are made by a run before, at one omega.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np
from attention_phases.positional_semantic import (
    Task,
    Threshold,
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


def main() -> None:
    """Print the times."""
    linear_crossover_alpha(Task())
    begin, begin_cpu = time.perf_counter(), time.process_time()
    for name, curve in (("alpha_c", critical_curve), ("alpha_l", linear_crossover_curve)):
        found = curve(Task(), OMEGAS)
        print(
            f"{name}: {len(OMEGAS)} omegas, standard errors {found.standard_error.min():.1e} to "
            f"{found.standard_error.max():.1e}"
        )
    print(
        f"both curves: {time.perf_counter() - begin:.1f} s, {time.process_time() - begin_cpu:.1f} CPU s\n"
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
        point = threshold()
        seconds, cpu = time.perf_counter() - begin, time.process_time() - begin_cpu
        print(f"{name:32} {point.value:8.4f} {point.standard_error:8.1e} {seconds:8.2f} {cpu:8.2f}", flush=True)


if __name__ == "__main__":
    main()
