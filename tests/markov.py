"""Markov chains of different kinds, and a plain integration of the gradient flow that knows nothing of its stages."""

from dataclasses import dataclass

import numpy as np
from attention_phases.focus_dilution import (
    MarkovChain,
    Parameters,
    attention,
    balanced_chain,
    flatten,
    nearly_symmetric_chain,
    population_gradient,
    population_loss,
    unflatten,
)
from numpy.typing import ArrayLike, NDArray
from scipy.integrate import LSODA

Array = NDArray[np.float64]

SKEWED = (0.75, 0.19, 0.05, 0.01)
FALLING = (0.4, 0.25, 0.2, 0.1, 0.05)
ZIPF = tuple(1 / k / sum(1 / j for j in range(1, 9)) for k in range(1, 9))


def reversible(stationary: ArrayLike, seed: int) -> MarkovChain:
    noise = np.random.default_rng(seed).standard_normal((np.size(stationary),) * 2)
    return balanced_chain(np.exp(noise + noise.T), stationary)


def irreversible(stationary: ArrayLike, seed: int) -> MarkovChain:
    return balanced_chain(np.exp(np.random.default_rng(seed).standard_normal((np.size(stationary),) * 2)), stationary)


def stirred(stationary: ArrayLike, persistence: float, current: float) -> MarkovChain:
    """A lazy chain with a current of probability around the cycle of its tokens."""
    pi = np.asarray(stationary)
    around = np.roll(np.eye(len(pi)), 1, axis=1)
    flow = persistence * np.diag(pi) + (1 - persistence) * np.outer(pi, pi) + current * (around - around.T)
    return MarkovChain(flow / pi[:, None])


CHAINS = {
    "lazy": MarkovChain.lazy(SKEWED, 0.3),
    "persistent": MarkovChain.lazy(SKEWED, 0.8),
    "restless": nearly_symmetric_chain(0.02, -0.05),
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


def follow(
    chain: MarkovChain, start: Parameters, t_max: float, tolerance: float = 1e-6, most_frames: int = 1500
) -> Followed:
    """The gradient flow by LSODA, its error a step `tolerance`, relative to the start where weights are small."""
    d, m = chain.n_tokens, start.width

    def rates(_: float, y: Array) -> Array:
        return -flatten(population_gradient(unflatten(y, d, m), chain))

    y = flatten(start)
    smallest = float(np.sqrt(np.mean(y**2))) if np.abs(y).max() < 0.1 else 1e-6
    solver = LSODA(rates, 0.0, y, t_max, rtol=tolerance, atol=0.01 * tolerance * smallest)
    times, states = [0.0], [y]
    while solver.status == "running":
        solver.step()
        times.append(solver.t)
        states.append(solver.y.copy())
    assert solver.status == "finished"
    kept = np.unique(np.linspace(0, len(times) - 1, most_frames).astype(int))
    frames = [unflatten(states[j], d, m) for j in kept]
    return Followed(
        np.array(times)[kept],
        np.array([population_loss(frame, chain) for frame in frames]),
        np.array([attention(frame, chain) for frame in frames]),
        np.array([np.linalg.svd(frame.W0, compute_uv=False) for frame in frames]),
        frames,
    )
