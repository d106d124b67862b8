"""Markov chains of different kinds, and a plain integration of the gradient flow that knows nothing of its stages."""

from dataclasses import dataclass

import numpy as np
from attention_phases.focus_dilution import MarkovChain, Parameters, attention, population_gradient, population_loss
from numpy.typing import ArrayLike, NDArray
from scipy.integrate import LSODA

Array = NDArray[np.float64]

SKEWED = (0.75, 0.19, 0.05, 0.01)
FALLING = (0.4, 0.25, 0.2, 0.1, 0.05)
ZIPF = tuple(1 / k / sum(1 / j for j in range(1, 9)) for k in range(1, 9))


def asymmetric(delta: float) -> Array:
    """The running example's pi, its rare tokens apart by delta."""
    return np.array([0.5, *(0.1 + delta * np.arange(2, -3, -1))])


def balanced(weights: ArrayLike, stationary: ArrayLike) -> MarkovChain:
    """The chain whose flow pi_i P_ij is `weights`, rows and columns scaled; reversible where weights are symmetric."""
    flow, pi = np.array(weights, dtype=float), np.asarray(stationary)
    for _ in range(5000):
        flow *= (pi / flow.sum(axis=1))[:, None]
        flow *= pi / flow.sum(axis=0)
    return MarkovChain(flow / flow.sum(axis=1, keepdims=True))


def reversible(stationary: ArrayLike, seed: int) -> MarkovChain:
    noise = np.random.default_rng(seed).standard_normal((np.size(stationary),) * 2)
    return balanced(np.exp(noise + noise.T), stationary)


def irreversible(stationary: ArrayLike, seed: int) -> MarkovChain:
    return balanced(np.exp(np.random.default_rng(seed).standard_normal((np.size(stationary),) * 2)), stationary)


def stirred(stationary: ArrayLike, persistence: float, current: float) -> MarkovChain:
    """A lazy chain with a current of probability around the cycle of its tokens."""
    pi = np.asarray(stationary)
    around = np.roll(np.eye(len(pi)), 1, axis=1)
    flow = persistence * np.diag(pi) + (1 - persistence) * np.outer(pi, pi) + current * (around - around.T)
    return MarkovChain(flow / pi[:, None])


CHAINS = {
    "lazy": MarkovChain.lazy(SKEWED, 0.3),
    "persistent": MarkovChain.lazy(SKEWED, 0.8),
    "restless": MarkovChain.lazy(asymmetric(0.02), -0.05),
    "reversible": reversible(ZIPF, 1),
    "irreversible": irreversible(FALLING, 3),
    "stirred": stirred(FALLING, 0.2, 0.003),
    "reversible, to rare tokens": reversible(FALLING, 5),
    "irreversible, to rare tokens": irreversible(ZIPF, 2),
}


@dataclass(frozen=True)
class Followed:
    """Frames of the gradient flow, with what `find_stages` reads."""

    times: Array
    loss: Array
    attention: Array
    singular_values: Array
    frames: list[Parameters]


def pack(parameters: Parameters) -> Array:
    return np.concatenate([array.ravel() for array in parameters.arrays])


def unpack(y: Array, d: int, m: int) -> Parameters:
    W0, W1, WQ, WK = np.split(y, np.cumsum([d * m, d * m, m * m]))
    return Parameters(W0.reshape(d, m), W1.reshape(m, d), WQ.reshape(m, m), WK.reshape(m, m))


def follow(
    chain: MarkovChain, start: Parameters, t_max: float, tolerance: float = 1e-6, most_frames: int = 1500
) -> Followed:
    """The gradient flow by LSODA, its error a step `tolerance`, relative to the start where weights are small."""
    d, m = chain.n_tokens, start.width

    def rates(_: float, y: Array) -> Array:
        return -pack(population_gradient(unpack(y, d, m), chain))

    y = pack(start)
    smallest = float(np.sqrt(np.mean(y**2))) if np.abs(y).max() < 0.1 else 1e-6
    solver = LSODA(rates, 0.0, y, t_max, rtol=tolerance, atol=0.01 * tolerance * smallest)
    times, states = [0.0], [y]
    while solver.status == "running":
        solver.step()
        times.append(solver.t)
        states.append(solver.y.copy())
    assert solver.status == "finished"
    kept = np.unique(np.linspace(0, len(times) - 1, most_frames).astype(int))
    frames = [unpack(states[j], d, m) for j in kept]
    return Followed(
        np.array(times)[kept],
        np.array([population_loss(frame, chain) for frame in frames]),
        np.array([attention(frame, chain) for frame in frames]),
        np.array([np.linalg.svd(frame.W0, compute_uv=False) for frame in frames]),
        frames,
    )


def local_rate(times: Array, sizes: Array, low: float, high: float) -> float:
    """The median of d log(size)/dt over the frames where the size is between `low` and `high`."""
    window = (sizes > low) & (sizes < high)
    assert window.sum() > 10
    return float(np.median(np.diff(np.log(sizes[window])) / np.diff(times[window])))
