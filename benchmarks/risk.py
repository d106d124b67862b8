"""Speed and memory of `minimize_risk`, against a plain PyTorch training loop, both measured in one run.

At d = 1000, alpha = 1.5 (the running example, omega = 0.3):

1. 5000 steps of gradient descent with learning rate 0.15, PyTorch's autograd on the (n, L, d) outputs, from both
   informed starts, against `minimize_risk`: times, and the risks reached, both evaluated in float64; PyTorch has one
   thread or its own choice of threads, whichever was faster over a few steps;
2. one evaluation of the risk and its gradient against the two matrix products that it cannot do without;
3. peak memory over the size of the data.

Exits with an error where our risk is the higher one. Times depend on the machine and on what else it does; the ratios
depend less on it.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
import tracemalloc
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from attention_phases.positional_semantic import EmpiricalRisk, Task, minimize_risk
from threadpoolctl import threadpool_limits

if TYPE_CHECKING:
    from collections.abc import Callable

    from attention_phases.positional_semantic import Dataset
    from attention_phases.positional_semantic.minimization import Start

D, ALPHA, SEED = 1000, 1.5, 0
STEPS, LEARNING_RATE = 5000, 0.15  # the paper's


class Run(NamedTuple):
    """What a minimisation took, and the risk R/d that it reached."""

    seconds: float
    risk: float


def train(dataset: Dataset, query: Any, steps: int, dtype: torch.dtype) -> Run:
    """Gradient descent as one writes it in PyTorch."""
    d = dataset.dimension
    tokens = torch.tensor(dataset.tokens, dtype=dtype)
    targets = torch.tensor(dataset.targets, dtype=dtype)
    parameter = torch.tensor(query, dtype=dtype, requires_grad=True)
    optimiser = torch.optim.SGD([parameter], lr=LEARNING_RATE, weight_decay=dataset.task.regularization)
    start = time.perf_counter()
    for _ in range(steps):
        optimiser.zero_grad()
        fields = tokens @ parameter / d**0.5
        outputs = torch.softmax(fields @ fields.transpose(1, 2), dim=-1) @ tokens
        loss = ((targets - outputs) ** 2).sum() / (2 * d)
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    seconds = time.perf_counter() - start
    reached = parameter.detach().to(torch.float64).numpy()
    return Run(seconds, EmpiricalRisk(dataset).value(reached) / d)


def faster_threads(dataset: Dataset, dtype: torch.dtype) -> int:
    """PyTorch's own number of threads, or one where that is faster, as it may be on a busy machine."""
    own, times = torch.get_num_threads(), {}
    for n in (1, own):
        torch.set_num_threads(n)
        times[n] = train(dataset, dataset.teacher_query, 20, dtype).seconds
    torch.set_num_threads(own)
    return min(times, key=lambda n: times[n])


def ours(dataset: Dataset, start: Start) -> Run:
    """`minimize_risk`, with everything that it computes besides; the Gram matrices anew, as if for the first time."""
    dataset.__dict__.pop("sample_loss", None)
    began = time.perf_counter()
    fit = minimize_risk(dataset, start)
    seconds = time.perf_counter() - began
    return Run(seconds, EmpiricalRisk(dataset).value(fit.query) / dataset.dimension)


def seconds_per_call(function: Callable[[], object], repeats: int = 30) -> float:
    """The median time of a call."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def evaluation_over_products(dataset: Dataset) -> tuple[float, float]:
    """Seconds of one risk and gradient, and of the two products with the tokens, each on one thread."""
    risk, query = EmpiricalRisk(dataset), dataset.teacher_query
    rows = dataset.tokens.reshape(-1, dataset.dimension)
    fields = rows @ query
    with threadpool_limits(1, "blas"):
        risk.slope(query)
        # in turns, so that what else the machine does meets both
        pairs = [
            (
                seconds_per_call(lambda: risk.slope(query), 5),
                seconds_per_call(lambda: (rows @ query, rows.T @ fields), 5),
            )
            for _ in range(15)
        ]
    evaluation, products = (statistics.median(column) for column in zip(*pairs, strict=True))
    return evaluation, products


def memory_over_data(task: Task) -> float:
    """Peak memory of drawing a sample and minimising its risk, the sample included, over that of its tokens."""
    tracemalloc.start()
    dataset = task.sample(D, ALPHA, SEED)
    minimize_risk(dataset)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak / dataset.tokens.nbytes


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--quick", action="store_true", help=f"time PyTorch on {STEPS // 50} steps, times 50; its risk is not compared"
    )
    quick = parser.parse_args().quick
    task = Task()
    dataset = task.sample(D, ALPHA, SEED)
    starts: dict[Start, Any] = {"semantic": dataset.teacher_query, "positional": np.ones((D, 1))}
    higher = False

    print(f"d = {D}, alpha = {ALPHA}, {STEPS} steps of PyTorch")
    print(f"{'start':11}{'PyTorch':8}{'threads':>8}{'its time':>11}{'our time':>11}{'ratio':>7}", end="")
    print(f"{'its risk/d':>15}{'our risk/d':>15}")
    own_threads = torch.get_num_threads()
    for dtype in (torch.float32, torch.float64):
        for start, query in starts.items():
            mine = ours(dataset, start)
            threads = faster_threads(dataset, dtype)
            torch.set_num_threads(threads)
            run = train(dataset, query, STEPS // 50 if quick else STEPS, dtype)
            torch.set_num_threads(own_threads)
            seconds = run.seconds * (50 if quick else 1)
            higher = higher or (not quick and mine.risk > run.risk)
            print(
                f"{start:11}{str(dtype).removeprefix('torch.'):8}{threads:8}{seconds:9.1f} s{mine.seconds:9.2f} s",
                end="",
            )
            print(
                f"{seconds / mine.seconds:7.0f}{'' if quick else f'{run.risk:.10f}':>15}{mine.risk:15.10f}", flush=True
            )

    evaluation, products = evaluation_over_products(dataset)
    print(f"\nrisk and gradient: {1e3 * evaluation:.2f} ms, the two products alone: {1e3 * products:.2f} ms, ", end="")
    print(f"ratio {evaluation / products:.2f}")
    print(f"peak memory: {memory_over_data(task):.2f} times the data")
    if higher:
        sys.exit("Our risk is higher than that of gradient descent.")


if __name__ == "__main__":
    main()
