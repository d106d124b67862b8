"""Is it there in real text? Training on a text, beside two things that know its Markov chain alone.

Each seed gives one start of the weights and three runs from there:

* "text": stochastic gradient descent on windows of the text;
* "chain": the same on windows drawn from the text's chain, which have its pairs of neighbours and nothing else of it;
* "flow": the gradient flow of the chain's population loss: infinite contexts and minibatches, infinitely short steps.

What "chain" and "text" do not have in common is the text's doing; what "flow" and "chain" do not, that of finite sizes.

``python -m attention_phases.focus_dilution train`` makes these runs, which take longer than a chapter may, and writes
two small tables: frames of the runs, and what happens when.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float

from attention_phases import _checks
from attention_phases._arrays import Array
from attention_phases.focus_dilution.condensation import condensation_rate
from attention_phases.focus_dilution.corpora import Corpus
from attention_phases.focus_dilution.focus import focus_rate
from attention_phases.focus_dilution.gradient_flow import Trajectory, gradient_flow
from attention_phases.focus_dilution.markov_transformer import Parameters
from attention_phases.focus_dilution.stages import Stage, find_stages, predict_timeline
from attention_phases.focus_dilution.train_transformer import TextTrajectory, measure_on_text, train_transformer

RUNS = ("text", "chain", "flow")
CLOCK = 0.1  # part of a time by which two runs may differ and still be the same run with another clock
APART = 0.1  # total variation between attention rows that is a difference
_ATTRACTED, _LET_GO = 0.02, 0.01  # attention over the base rate at which a query turns to a token, and leaves it
_LABELS = {" ": "space", "\n": "newline", "newline": "'newline'"}  # a text may have the word, too
_FIRST_FRAME = 4.0  # time from which on frames are spread evenly in log(time); nothing happens before
_KEYS = 4  # most frequent tokens, the attention on which is in the table
_DENSE = 4  # frames of a run for each one in the table


def label(token: str) -> str:
    """A token's name in tables and figures: white space has none of its own that can be seen. No two have the same."""
    return _LABELS.get(token, token)


def named(corpus: Corpus, names: Iterable[str]) -> list[str]:
    """The tokens of the corpus that have these names."""
    by_label = {label(token): token for token in corpus.vocabulary}
    return [by_label.get(name, name) for name in names]


def passages(
    times: Float[Array, " T"], attention: Float[Array, "T d"], base: Float[Array, " d"]
) -> list[tuple[int, float, float, float]]:
    """Which tokens a query turns to, one after the other: (token, begin, end, largest gain of attention).

    It turns to a token where no other one has gained more attention over its base rate, and the gain is at least 0.02.
    It leaves where the gain falls below 0.01, or another token takes over. Between passages the query is dilute. The
    end of the last one is inf where it goes on to the last frame.
    """
    gains = attention - base
    found: list[tuple[int, float, float, float]] = []
    token, begin, most = -1, 0.0, 0.0
    for time, row in zip(times.tolist(), gains, strict=True):
        first = int(row.argmax())
        if token >= 0 and (first != token or row[token] < _LET_GO):
            found.append((token, begin, time, most))
            token = -1
        if token < 0 and row[first] >= _ATTRACTED:
            token, begin, most = first, time, 0.0
        if token >= 0:
            most = max(most, float(row[token]))
    if token >= 0:
        found.append((token, begin, math.inf, most))
    return found


def distance(run: Trajectory, other: Trajectory, clock: float = CLOCK) -> Float[Array, " T"]:
    """How far the attention of a run is from that of another one, frame by frame, whatever the clock.

    It is the largest total variation over queries, and the least of these over the frames of the other run whose times
    are within the part `clock` of the frame's own; the nearest frame is always among them.

    Raises:
        ValueError: the two have other queries, or `clock` is not in [0, 1).
    """
    if not np.array_equal(run.queries, other.queries):
        raise ValueError("other must have the queries of run; got other ones")
    clock = _checks.real("clock", clock, 0, 1 - 1e-9)
    result = np.empty(len(run.times))
    for j, time in enumerate(run.times):
        near = np.abs(other.times - time) <= clock * time
        near[np.abs(other.times - time).argmin()] = True
        apart = np.abs(other.attention[near] - run.attention[j]).sum(axis=2).max(axis=1) / 2
        result[j] = apart.min()
    return result


def departure(run: Trajectory, other: Trajectory) -> float:
    """The time at which a run leaves another one: the first frame with a `distance` of 0.1 or more; inf if none has."""
    apart = distance(run, other) >= APART
    return float(run.times[apart.argmax()]) if apart.any() else math.inf


def frame_times(t_max: float, n_frames: int) -> Float[Array, " n_frames"]:
    """Times from 4 to `t_max`, each the same factor after the one before."""
    return np.geomspace(min(_FIRST_FRAME, t_max / 2), t_max, n_frames)


def describe(corpora: Iterable[Corpus]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The chains of texts: a table with a row a token, and one with a row a text.

    The columns of the first are corpus, rank from 1 on, token, frequency, and the token that follows most often, next,
    with its probability. Those of the second are corpus, level, n_tokens, length, the rates lambda_1 and lambda_2, the
    number ``sum_i pi_i^2 (P_i . pi - 1/d)``, which has the sign of the push on the scores when the weights begin to
    condense, and the entropies of pi and of the chain in nats.
    """
    tokens, chains = [], []
    for corpus in corpora:
        chain = corpus.chain
        pi = chain.stationary
        following = chain.matrix.argmax(axis=1)
        names = [label(token) for token in corpus.vocabulary]
        tokens.append(
            pd.DataFrame(
                {
                    "corpus": corpus.name,
                    "level": corpus.level,
                    "n_tokens": corpus.n_tokens,
                    "rank": np.arange(1, corpus.n_tokens + 1),
                    "token": names,
                    "frequency": pi,
                    "next": [names[k] for k in following],
                    "probability": chain.matrix.max(axis=1).toarray().ravel(),
                }
            )
        )
        chains.append(
            {
                "corpus": corpus.name,
                "level": corpus.level,
                "n_tokens": corpus.n_tokens,
                "length": len(corpus.tokens),
                "lambda_1": condensation_rate(chain),
                "lambda_2": focus_rate(chain),
                "early_push": float(pi**2 @ (chain.matrix @ pi - 1 / corpus.n_tokens)),
                "unigram_entropy": chain.unigram_entropy,
                "conditional_entropy": chain.conditional_entropy,
            }
        )
    return pd.concat(tokens, ignore_index=True), pd.DataFrame(chains)


def train(
    corpus: Corpus,
    seeds: Iterable[int],
    tokens: Sequence[str],
    *,
    runs: Sequence[str] = RUNS,
    width: int,
    init_scale: float,
    t_max: float,
    learning_rate: float,
    batch: int,
    context: int,
    n_frames: int,
    device: str,
    folder: Path | None = None,
    report: Callable[[str], None] = lambda line: None,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """All runs of all seeds: a table of their frames and a table of what happens when.

    The columns of frames are: run, seed, time; loss on the chain, text_loss; sv1 to sv4, the largest singular values of
    W0; the norms W0, W1, WQ, WK; and for each token q that is watched "entropy q" and "text entropy q", of its
    attention in infinite contexts and in the text's windows, "q on q", "q on" each of the four most frequent ones,
    and "most q", the token that has gained most attention over its base rate, with "gain q".

    The events are: the stages of a run (kind "stage"), also as `predict_timeline` predicts them from the start (run
    "prediction"); the passages of each query (kind "focus", with the query and the token that it turns to); and the
    times at which runs leave each other (kind "departure", name "flow" or "chain").

    Args:
        corpus: the text.
        seeds: of the starts and of the windows.
        tokens: the queries that are watched.
        runs: which of "text", "chain" and "flow".
        width: m, as in `train_transformer`.
        init_scale: as there.
        t_max: where to stop, in units of the flow.
        learning_rate: of the two runs of training.
        batch: as in `train_transformer`.
        context: as there.
        n_frames: of each run in the table; four times as many are looked at.
        device: as in `train_transformer`.
        folder: where training keeps its checkpoints; None: nowhere.
        report: is told each run that begins.

    Raises:
        ValueError: names the argument, what it must be and what it got.
    """
    if not runs or not set(runs) <= set(RUNS):
        raise ValueError(f"runs must be some of {', '.join(RUNS)}; got {_checks.shown(runs)}")
    queries = corpus.ids(tokens)
    if len(set(queries)) != len(queries) or not queries:
        raise ValueError(f"tokens must be different ones, at least one; got {_checks.shown(list(tokens))}")
    t_max = _checks.real("t_max", t_max, 0, _checks.LARGEST, open_low=True)
    learning_rate = _checks.real("learning_rate", learning_rate, 0, _checks.LARGEST, open_low=True)
    n_steps = max(1, round(_checks.real("t_max/learning_rate", t_max / learning_rate, 0, _checks.MOST)))
    n_frames = _checks.integer("n_frames", n_frames, 2, _checks.MOST // _DENSE)
    times = frame_times(n_steps * learning_rate, min(_DENSE * n_frames, n_steps + 1))
    frames: list[pd.DataFrame] = []
    events: list[dict[str, Any]] = []
    for seed in seeds:
        start = Parameters.gaussian(corpus.n_tokens, width, init_scale, seed)
        found: dict[str, TextTrajectory] = {}
        for run in runs:
            report(f"{corpus.name}, seed {seed}, {run}")
            if run == "flow":
                at = np.append(0.0, times)
                trajectory = gradient_flow(corpus.chain, start=start, times=at, queries=queries, rtol=1e-3)
            else:
                trajectory = train_transformer(
                    corpus if run == "text" else corpus.chain,
                    start=start,
                    n_steps=n_steps,
                    seed=seed,
                    context=context,
                    batch=batch,
                    learning_rate=learning_rate,
                    device=device,
                    times=times,
                    queries=queries,
                    checkpoint=None if folder is None else folder / f"{run}-{seed}",
                )
            found[run] = measure_on_text(trajectory, corpus, context)
            frames.append(_frames(found[run], run, seed, tokens))
            events += _events(found[run], run, seed)
        if "flow" in runs:
            for stage in predict_timeline(corpus.chain, start, queries):
                events.append(_stage("prediction", seed, stage))
        for run, other in (("text", "flow"), ("text", "chain"), ("chain", "flow")):
            if run in found and other in found:
                leaves = departure(found[run], found[other])
                events.append({"run": run, "seed": seed, "kind": "departure", "name": other, "begin": leaves})
    columns = ["run", "seed", "kind", "cycle", "query", "name", "begin", "end", "gain"]
    return pd.concat(frames, ignore_index=True), pd.DataFrame(events, columns=columns)


def _frames(run: TextTrajectory, name: str, seed: int, tokens: Sequence[str]) -> pd.DataFrame:
    """Every fourth frame, and the last."""
    kept = np.unique(np.append(np.arange(0, len(run.times), _DENSE), len(run.times) - 1))
    columns: dict[str, Any] = {
        "run": name,
        "seed": seed,
        "time": run.times,
        "loss": run.loss,
        "text_loss": run.text_loss,
    }
    columns |= {f"sv{k + 1}": run.singular_values[:, k] for k in range(min(4, run.singular_values.shape[1]))}
    columns |= dict(zip(("W0", "W1", "WQ", "WK"), run.norms.T, strict=True))
    base = run.chain.stationary
    for i, token in enumerate(tokens):
        query, attention = label(token), run.attention[:, i]
        gains = attention - base
        most = gains.argmax(axis=1)
        columns[f"entropy {query}"] = run.entropy[:, i]
        columns[f"text entropy {query}"] = run.text_entropy[:, i]
        for key in dict.fromkeys([int(run.queries[i]), *range(min(_KEYS, run.corpus.n_tokens))]):
            columns[f"{query} on {label(run.corpus.vocabulary[key])}"] = attention[:, key]
        columns[f"most {query}"] = [label(run.corpus.vocabulary[k]) for k in most]
        columns[f"gain {query}"] = gains.max(axis=1)
    return pd.DataFrame(columns).iloc[kept]


def _events(run: TextTrajectory, name: str, seed: int) -> list[dict[str, Any]]:
    found = [_stage(name, seed, stage) for stage in find_stages(run)]
    vocabulary = run.corpus.vocabulary
    for i, query in enumerate(run.queries.tolist()):
        for token, begin, end, most in passages(run.times, run.attention[:, i], run.chain.stationary):
            found.append(
                {
                    "run": name,
                    "seed": seed,
                    "kind": "focus",
                    "query": label(vocabulary[query]),
                    "name": label(vocabulary[token]),
                    "begin": begin,
                    "end": end,
                    "gain": most,
                }
            )
    return found


def _stage(run: str, seed: int, stage: Stage) -> dict[str, Any]:
    return {
        "run": run,
        "seed": seed,
        "kind": "stage",
        "cycle": stage.cycle,
        "name": stage.name,
        "begin": stage.start,
        "end": stage.end,
    }
