"""What takes training on a text away from the gradient flow: finite contexts, minibatches or steps.

Gradient descent with steps eta is stable only in directions of curvature below 2/eta. Where the flow comes to larger
ones, descent cannot follow, even with the exact gradient. So we go on from one point of the flow of a text's chain, by
training as it is done, with longer contexts, with larger minibatches, with shorter steps, and by descent with the exact
gradient of the population loss, and look how far each has gone after the same time.

``python -m attention_phases.focus_dilution stability`` writes the table.
"""

import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
import pandas as pd

from attention_phases import _checks
from attention_phases._blas import one_thread
from attention_phases.focus_dilution.corpora import Corpus
from attention_phases.focus_dilution.gradient_flow import gradient_flow
from attention_phases.focus_dilution.markov_transformer import (
    MarkovChain,
    Parameters,
    excess_loss,
    population_gradient,
)
from attention_phases.focus_dilution.real_text import frame_times
from attention_phases.focus_dilution.train_transformer import train_transformer
from attention_phases.focus_dilution.weight_space import extreme_curvature

LONGER, LARGER, SHORTER = 16, 16, 10  # contexts, minibatches, steps: the factors that are tried
_FRAMES_OF_RUN = 5


class Descent(NamedTuple):
    """How a run descends: its name, the tokens of a context, the contexts of a minibatch, and the step."""

    run: str
    context: float
    batch: float
    learning_rate: float


def descents(context: int, batch: int, learning_rate: float) -> list[Descent]:
    """The ways of going on that are compared. Infinite contexts and minibatches stand for the exact gradient."""
    short = learning_rate / SHORTER
    return [
        Descent("training", context, batch, learning_rate),
        Descent("longer contexts", LONGER * context, batch, learning_rate),
        Descent("larger minibatches", context, LARGER * batch, learning_rate),
        Descent("exact gradient", math.inf, math.inf, learning_rate),
        Descent("shorter steps", context, batch, short),
        Descent("exact gradient, shorter steps", math.inf, math.inf, short),
    ]


def stability(
    corpus: Corpus,
    seeds: Iterable[int],
    *,
    width: int,
    init_scale: float,
    time: float,
    duration: float,
    learning_rate: float,
    batch: int,
    context: int,
    n_frames: int,
    report: Callable[[str], None] = lambda line: None,
) -> pd.DataFrame:
    """A table of the flow of the corpus's chain, and of what goes on from its point at `time` in other ways.

    The columns are corpus, seed, run ("flow", or a name of `descents`), context, batch, learning_rate; time, second,
    the second singular value of W0, excess_loss, of the chain, and curvature, the largest of its population loss.

    Args:
        corpus: the text.
        seeds: of the starts and of the windows.
        width: m, as in `train_transformer`.
        init_scale: as there.
        time: of the flow, where the other runs begin.
        duration: of these.
        learning_rate: of training.
        batch: as in `train_transformer`.
        context: as there.
        n_frames: of the flow.
        report: is told each run that begins.

    Raises:
        ValueError: names the argument, what it must be and what it got.
    """
    time = _checks.real("time", time, 0, _checks.LARGEST, open_low=True)
    duration = _checks.real("duration", duration, 0, _checks.LARGEST, open_low=True)
    learning_rate = _checks.real("learning_rate", learning_rate, 0, _checks.LARGEST, open_low=True)
    _checks.real("duration/learning_rate", duration / learning_rate, _FRAMES_OF_RUN, _checks.MOST / SHORTER)
    context = _checks.integer("context", context, 1, _checks.MOST // LONGER)
    batch = _checks.integer("batch", batch, 1, _checks.MOST // LARGER)
    chain, rows = corpus.chain, []

    def note(seed: int, how: Descent, t: float, weights: Parameters) -> None:
        second = float(np.linalg.svd(weights.W0, compute_uv=False)[1])
        at = (t, second, excess_loss(weights, chain), extreme_curvature(weights, chain))
        rows.append((corpus.name, seed, *how, *at))

    for seed in seeds:
        report(f"{corpus.name}, seed {seed}, flow")
        start = Parameters.gaussian(corpus.n_tokens, width, init_scale, seed)
        times = np.unique(np.concatenate([[0.0], frame_times(time, n_frames), [time, time + duration]]))
        flow = gradient_flow(chain, start=start, times=times, queries=[0], rtol=1e-3)
        for t, weights in zip(flow.times, flow.parameters, strict=True):
            note(seed, Descent("flow", math.inf, math.inf, 0.0), float(t), weights)
        begin = flow.parameters[int(np.searchsorted(flow.times, time))]
        for how in descents(context, batch, learning_rate):
            report(f"{corpus.name}, seed {seed}, {how.run}")
            n_steps = round(duration / how.learning_rate)
            for step, weights in _run(chain, begin, how, n_steps, seed):
                note(seed, how, time + step * how.learning_rate, weights)
    columns = ["corpus", "seed", *Descent._fields, "time", "second", "excess_loss", "curvature"]
    return pd.DataFrame(rows, columns=columns)


def _run(chain: MarkovChain, start: Parameters, how: Descent, n_steps: int, seed: int) -> list[tuple[int, Parameters]]:
    """Some frames: step and weights, from the start to the last step."""
    if math.isinf(how.context):
        return _descend(chain, start, how.learning_rate, n_steps)
    run = train_transformer(
        chain,
        start=start,
        n_steps=n_steps,
        seed=seed,
        context=int(how.context),
        batch=int(how.batch),
        learning_rate=how.learning_rate,
        n_frames=_FRAMES_OF_RUN,
        queries=[0],
    )
    steps = (run.times / how.learning_rate).round().astype(int).tolist()
    return list(zip(steps, run.parameters, strict=True))


@one_thread
def _descend(chain: MarkovChain, start: Parameters, step: float, n_steps: int) -> list[tuple[int, Parameters]]:
    """Gradient descent on the population loss."""
    kept = set(np.linspace(0, n_steps, _FRAMES_OF_RUN).round().astype(int).tolist())
    weights, frames = start, [(0, start)]
    for k in range(1, n_steps + 1):
        slopes = population_gradient(weights, chain).arrays
        weights = Parameters(*(part - step * slope for part, slope in zip(weights.arrays, slopes, strict=True)))
        if k in kept:
            frames.append((k, weights))
    return frames
