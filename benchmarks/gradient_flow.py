"""Time and accuracy of the flows of Part II and of sampling a chain, beside textbook ways, in one run.

Each measurement ends in a line that says what is wanted and what was got. Times are processor seconds of one thread,
which other programs on the machine hardly change.

The flow of pi = (.75, .19, .05, .01), persistence .8, is followed to t = 10^4 and compared, where the excess loss is at
least 1e-6, with a run at a tolerance a thousand times tighter. Wanted is a relative error of the excess loss of 1e-4.

* Gradient descent by automatic differentiation, step h: after n steps it should be where the flow is at t = n h. Its
  error is of order h. It is measured up to t = 100 for a few h; the largest h with an error of 1e-4 follows by
  proportion, and is tried. What happens later could only ask for smaller steps. All 10^4/h steps would take hours, so
  their time is the time of a step times their number.
* LSODA with Jacobians from finite differences, the gradient being ours: the loosest of a few tolerances that keeps the
  error, or the tightest of them.

Then a chain of 200 tokens with Zipf's distribution, persistence .3, width 64, to t = 2000, twice: at the tolerance 1e-4
and at a tenth of it, the difference of which shows the error of the first. Then the rank-one flow to rest on a few
chains, and tokens a second of `MarkovChain.sample` against a loop that draws each token by `Generator.choice`.
"""

import time
from collections.abc import Callable

import numpy as np
import torch
from attention_phases._blas import one_thread
from attention_phases.focus_dilution import (
    MarkovChain,
    Parameters,
    Trajectory,
    excess_loss,
    gradient_flow,
    nearly_symmetric_chain,
    rank_one_flow,
)
from attention_phases.focus_dilution.markov_transformer import Expansion, Weights
from numpy.typing import NDArray
from scipy.integrate import solve_ivp

Array = NDArray[np.float64]
CHAIN = MarkovChain.lazy([0.75, 0.19, 0.05, 0.01], 0.8)
START = Parameters.gaussian(4, 16, 1e-3, 0)
T_MAX, WANTED, LOWEST = 1e4, 1e-4, 1e-6
RATIO, LARGE_SECONDS, RANK_ONE_SECONDS = 30, 60, 0.1
TIMES = np.concatenate([np.linspace(4, 100, 25), np.geomspace(110, T_MAX, 25)])
EARLY = TIMES[TIMES <= 100]


def clocked(function: Callable[[], Trajectory]) -> tuple[Trajectory, float, float]:
    """A result, its wall seconds and its processor seconds."""
    begin, begin_cpu = time.perf_counter(), time.process_time()
    result = function()
    return result, time.perf_counter() - begin, time.process_time() - begin_cpu


def error(excess: Array, exact: Array) -> float:
    """Largest relative error where the exact excess loss is at least `LOWEST`."""
    seen = exact[: len(excess)] >= LOWEST
    return float(np.abs(excess[seen] / exact[: len(excess)][seen] - 1).max())


def judged(what: str, wanted: str, got: str) -> None:
    """Print what is wanted and what was got."""
    print(f"  {what}: wanted {wanted}, got {got}", flush=True)


def zipf(d: int) -> MarkovChain:
    """A lazy chain of d tokens of frequencies 1/k, of persistence .3."""
    pi = 1 / np.arange(1, d + 1)
    return MarkovChain.lazy(pi / pi.sum(), 0.3)


def descent(step: float) -> tuple[Array, float]:
    """The excess loss of gradient descent at the times `EARLY`, and processor seconds per step."""
    pi, P = (torch.tensor(np.array(values)) for values in (CHAIN.stationary, CHAIN.transition))
    log_pi, weight = pi.log(), pi[:, None] * P
    weights = [torch.tensor(np.array(part), requires_grad=True) for part in START.arrays]
    W0, W1, WQ, WK = weights
    per_frame = round(EARLY[0] / step)
    excess, begin = [], time.process_time()
    for _ in EARLY:
        for _ in range(per_frame):
            attention = torch.softmax(W0 @ WQ @ (W0 @ WK).T + log_pi, dim=1)
            loss = -(weight * torch.log_softmax(attention @ W0 @ W1, dim=1)).sum()
            gradient = torch.autograd.grad(loss, weights)
            with torch.no_grad():
                for part, slope in zip(weights, gradient, strict=True):
                    part -= step * slope
        excess.append(excess_loss(Parameters(*(part.detach().numpy() for part in weights)), CHAIN))
    return np.array(excess), (time.process_time() - begin) / (per_frame * len(EARLY))


def lsoda(rtol: float) -> tuple[Array, float, float, int]:
    """The excess loss at `TIMES`, wall and processor seconds, and the number of gradients."""
    shapes = [part.shape for part in START.arrays]
    ends = np.cumsum([part.size for part in START.arrays])[:-1]

    def expansion(flat: Array) -> Expansion:
        parts = (part.reshape(shape) for part, shape in zip(np.split(flat, ends), shapes, strict=True))
        return Expansion(Weights(*parts), CHAIN)

    def rate(_: float, flat: Array) -> Array:
        return np.concatenate([part.ravel() for part in expansion(flat).flow])

    start = np.concatenate([part.ravel() for part in START.arrays])
    begin, begin_cpu = time.perf_counter(), time.process_time()
    found = solve_ivp(rate, (0, T_MAX), start, "LSODA", t_eval=TIMES, rtol=rtol, atol=1e-3 * rtol)
    seconds, cpu = time.perf_counter() - begin, time.process_time() - begin_cpu
    return np.array([expansion(flat).excess_loss for flat in found.y.T]), seconds, cpu, found.nfev


def small_chain() -> None:
    exact = gradient_flow(CHAIN, start=START, times=TIMES, rtol=1e-7).excess_loss
    runs = [clocked(lambda: gradient_flow(CHAIN, start=START, times=TIMES, rtol=WANTED)) for _ in range(3)]
    found, seconds, cpu = runs[0][0], *(float(np.median([run[k] for run in runs])) for k in (1, 2))
    print(
        f"pi = (.75, .19, .05, .01), persistence .8, to t = {T_MAX:g}; wanted: relative error {WANTED:g}\n"
        f"{'way':34} {'seconds':>10} {'CPU s':>10} {'error':>8} {'ratio of CPU s':>15}\n"
        f"{'ours':34} {seconds:10.2f} {cpu:10.2f} {error(found.excess_loss, exact):8.1e}   {found.n_steps} steps, "
        f"{found.n_evaluations} gradients, {found.n_products} Hessian products, drift {found.drift:.1e}",
        flush=True,
    )
    for rtol in (1e-4, 1e-5, 1e-6, 1e-7):
        excess, there, there_cpu, n = lsoda(rtol)
        off = error(excess, exact)
        print(
            f"{f'LSODA, rtol {rtol:g}':34} {there:10.2f} {there_cpu:10.2f} {off:8.1e} {there_cpu / cpu:15.1f}   "
            f"{n} gradients",
            flush=True,
        )
        if off <= WANTED:
            break
    of_lsoda = there_cpu / cpu
    slopes = []
    for step in (0.02, 0.01, 0.005):
        excess, per_step = descent(step)
        slopes.append(error(excess, exact) / step)
        print(f"gradient descent to t = 100, step {step:g}: error {slopes[-1] * step:.1e}, {per_step:.2e} CPU s a step")
    step = EARLY[0] / np.ceil(EARLY[0] / (WANTED / slopes[-1]))
    excess, per_step = descent(step)
    total = per_step * T_MAX / step
    name = f"gradient descent, step {step:.2g}"
    print(
        f"{name:34} {'':10} {total:10.0f} {error(excess, exact):8.1e} {total / cpu:15.0f}   "
        f"{T_MAX / step:.2g} steps of {per_step:.2e} CPU s (error to t = 100)",
        flush=True,
    )
    judged("error of ours", f"at most {WANTED:g}", f"{error(found.excess_loss, exact):.1e}")
    judged("gradient descent at the same error, over ours", f"at least {RATIO}", f"{total / cpu:.0f}")
    judged("LSODA at the same error, over ours", "more than 1", f"{of_lsoda:.1f}")


def large_chain() -> None:
    chain, times = zipf(200), np.geomspace(10, 2000, 20)
    runs = [
        clocked(lambda rtol=rtol: gradient_flow(chain, 64, 1e-3, times=times, rtol=rtol, queries=[0, 20, 199]))  # type: ignore[misc]
        for rtol in (WANTED, WANTED / 10)
    ]
    (found, seconds, cpu), (tight, _, _) = runs
    print(
        f"\n200 tokens, width 64, to t = 2000, rtol {WANTED:g}: {seconds:.1f} s, {cpu:.1f} CPU s, "
        f"{found.n_steps} steps, {found.n_evaluations} gradients, {found.n_products} Hessian products, "
        f"drift {found.drift:.1e}, difference from rtol {WANTED / 10:g}: "
        f"{np.abs(found.excess_loss / tight.excess_loss - 1).max():.1e}"
    )
    judged("CPU s", f"at most {LARGE_SECONDS} seconds on two cores", f"{cpu:.1f} on one")


def rank_one() -> None:
    chains = {
        "running example": nearly_symmetric_chain(0.02),
        "rare tokens alike": nearly_symmetric_chain(0),
        "to rare tokens": nearly_symmetric_chain(0, -0.1),
        "four tokens, .3": MarkovChain.lazy([0.75, 0.19, 0.05, 0.01], 0.3),
        "four tokens, .8": CHAIN,
        "Zipf, twelve tokens": zipf(12),
    }
    print("\nrank-one flow from the origin to rest")
    for name, chain in chains.items():
        cpus = []
        for _ in range(5):
            begin = time.process_time()
            run = rank_one_flow(chain)
            cpus.append(time.process_time() - begin)
        cpu = float(np.median(cpus))
        judged(f"{name}, {len(run.times) - 1} steps, CPU s", f"less than {RANK_ONE_SECONDS}", f"{cpu:.3f}")


def sampling() -> None:
    chain, shape = zipf(50), (64, 65)  # a minibatch
    pi, P = chain.stationary, chain.transition

    def by_choice(rng: np.random.Generator) -> None:
        for _ in range(shape[0]):
            token = rng.choice(50, p=pi)
            for _ in range(shape[1] - 1):
                token = rng.choice(50, p=P[token])

    rng, seconds = np.random.default_rng(0), {}
    ways: dict[str, Callable[[], object]] = {
        "choice": lambda: by_choice(rng),
        "ours": lambda: chain.sample(*shape, rng),
        "many": lambda: chain.sample(64 * shape[0], shape[1], rng),
    }
    for name, way in ways.items():
        times = []
        for _ in range(5):
            begin = time.process_time()
            way()
            times.append(time.process_time() - begin)
        seconds[name] = float(np.median(times))
    n = shape[0] * shape[1]
    print(
        f"\nsampling 50 tokens, 64 sequences of 65: {n / seconds['choice']:.2g} tokens a second by choice, "
        f"{n / seconds['ours']:.2g} ours, {64 * n / seconds['many']:.2g} ours for 64 minibatches at once"
    )
    judged("ours over choice", "more than 1", f"{seconds['choice'] / seconds['ours']:.0f}")


@one_thread
def main() -> None:
    """Print the tables."""
    torch.set_num_threads(1)
    small_chain()
    large_chain()
    rank_one()
    sampling()


if __name__ == "__main__":
    main()
