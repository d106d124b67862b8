"""Training as it is done in practice: minibatches of finite contexts, stochastic gradient descent or Adam.

A context of N tokens enters the transformer of `markov_transformer` through its last token i and through the counts
n_k of its tokens, since the model knows no order:

    a_k = n_k exp(z_ik)/sum_j n_j exp(z_ij),        z = W0 W_Q W_K^T W0^T.

The loss of a context is the cross-entropy of the next token; that of a minibatch of B contexts is the mean. Long
contexts have ``n_k/N -> pi_k``, large minibatches average the gradient, and short steps make a flow of the steps. So as
N, B and 1/learning rate grow, stochastic gradient descent on a chain becomes the gradient flow of the population loss.

A text is read in the same way, in windows of N + 1 tokens from anywhere in it. Either the last token of a context alone
predicts, as above, or each token predicts the one after it from those up to itself, as language models are trained.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import time
from contextlib import contextmanager
from dataclasses import dataclass, fields
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy.special import logsumexp, softmax
from tqdm import tqdm

from attention_phases import _checks
from attention_phases._blas import one_thread
from attention_phases.errors import ConvergenceError
from attention_phases.focus_dilution.corpora import Corpus
from attention_phases.focus_dilution.gradient_flow import Trajectory, _drift, _times, query_tokens
from attention_phases.focus_dilution.markov_transformer import (
    Expansion,
    MarkovChain,
    Parameters,
    Seed,
    Weights,
    conserved_quantities,
    few_tokens,
)

if TYPE_CHECKING:  # PyTorch takes seconds to import: only a run does it
    from collections.abc import Iterator

    import torch
    from jaxtyping import Float, Int
    from numpy.typing import ArrayLike

    from attention_phases._arrays import AnyArray, Array, IntArray

_OPTIMIZERS = {"sgd": "SGD", "adam": "Adam"}  # names in torch.optim
_POSITIONS = ("last", "all")
_ALONE = 2**27  # multiplications of a matrix product, up to which one thread does a step: in 0.1 s or less
_DRAWN_AT_ONCE = 2**18  # tokens: many minibatches are drawn together, which is much faster than one by one
_QUERIES_OF_TEXT = 8  # whose attention is kept, where nothing else is said: the most frequent tokens
_PROBES_OF_QUERY = 64  # windows of the text that end in it
_PROBES = 2048  # windows of the text on which the loss is measured
_PROBE_SEED = 0  # they are the same in all runs


@dataclass(frozen=True, eq=False)
class TextTrajectory(Trajectory):
    """Training on a text. What a `Trajectory` holds is measured on the text's Markov chain, the rest on windows of it.

    The windows are the same in all runs with the same context and queries.

    Attributes:
        corpus: the text.
        text_loss: (T,), mean cross-entropy of the next token in nats, over 2048 windows from anywhere.
        text_attention: (T, n_queries, d): summed over the places of each token, and averaged over the windows of each
            query: at most 64, spread over the text, that end in it.
    """

    corpus: Corpus
    text_loss: Float[Array, " T"]
    text_attention: Float[Array, "T n_queries d"]

    @property
    def text_entropy(self) -> Float[Array, "T n_queries"]:
        """Entropy of each query's mean attention in nats, (T, n_queries)."""
        a = self.text_attention
        result: Array = -(a * np.log(a, out=np.zeros_like(a), where=a > 0)).sum(axis=-1)
        return result


def train_transformer(
    data: MarkovChain | Corpus,
    /,
    width: int = 16,
    init_scale: float = 1e-3,
    n_steps: int = 10_000,
    seed: Seed = 0,
    *,
    context: int = 64,
    batch: int = 64,
    learning_rate: float = 0.1,
    optimizer: str = "sgd",
    positions: str = "last",
    device: str = "cpu",
    start: Parameters | None = None,
    times: ArrayLike | None = None,
    n_frames: int = 400,
    queries: ArrayLike | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_every: float = 30.0,
) -> Trajectory:
    """Train the transformer on minibatches of contexts that are drawn anew from a chain, or from a text, at every step.

    The start is that of `gradient_flow` with the same seed. What the trajectory holds is measured on the chain, for a
    text on `Corpus.chain`, not on minibatches: the population loss, and the attention of infinitely long contexts. For
    a text it is a `TextTrajectory`, which has loss and attention on a fixed set of windows besides.

    Its times are step times learning rate, for stochastic gradient descent the time of the flow. Frames are equally
    spaced. `n_evaluations` counts minibatches; the numbers of a solver that training has not are 0, its `tolerance` is
    infinite. The drift is that of the flow's conserved quantities, which training keeps only in the limit of short
    steps.

    PyTorch computes with one thread as long as no matrix product has more than 2^27 multiplications, as B d m, or
    B N d m where all positions predict: threads that wait for each other at every product would cost much more than
    they gain wherever the processor is shared. The curve of a seed is then the same on any number of cores. In larger
    products PyTorch uses as many threads as it is set to, and the last digits may depend on their number.

    With a checkpoint, a run that was killed at any moment goes on when the same call is made again, and ends in the
    same numbers as a run that was not. The file is always a whole one: it is replaced, never written over. After the
    run it holds the result, so that the same call returns without a step.

    Args:
        data: what is learned.
        width: m, >= 1.
        init_scale: standard deviation of the initial entries, > 0.
        n_steps: of the optimiser, >= 1.
        seed: of the initial weights and of the contexts.
        context: N, tokens of a context, >= 1, less than those of the text.
        batch: B, contexts of a minibatch, >= 1.
        learning_rate: > 0.
        optimizer: "sgd", without momentum, or "adam", with the usual constants.
        positions: "last": the last token of a context predicts the next one; "all": each of its tokens does, from the
            tokens up to itself, and the loss is the mean over them.
        device: where PyTorch computes: "cpu", "cuda", "cuda:1", ...
        start: initial weights, in place of `width` and `init_scale`.
        times: (T,), increasing: frames at these times, rounded to steps, and at the first and last step; they replace
            `n_frames`.
        n_frames: the largest number of frames without `times`, >= 2.
        queries: tokens whose attention is kept, default all; of a text, the 8 most frequent ones.
        checkpoint: a file that keeps the run.
        checkpoint_every: seconds after which it is written again, >= 0, at the next frame.

    Raises:
        ValueError: names the argument, what it must be and what it got; also where the checkpoint is of another run, or
            not what this function wrote.
        ConvergenceError: the weights diverged. Its last point is the trajectory up to the last finite frame, its
            residual the drift of that.
        OSError: the checkpoint could not be written. What it held before is still there.
    """
    if not isinstance(data, MarkovChain | Corpus):
        raise ValueError(f"data must be a MarkovChain or a Corpus; got {_checks.shown(data)}")
    chain = data.chain if isinstance(data, Corpus) else data
    few_tokens(chain)
    if start is None:
        rng = _checks.generator(seed)
        start = Parameters.gaussian(chain.n_tokens, width, init_scale, rng)
        draws = rng if isinstance(seed, np.random.Generator) else _checks.generator(seed, stream=1)
    else:
        _checks.instance("start", start, Parameters)
        if start.n_tokens != chain.n_tokens:
            raise ValueError(f"start must be for the chain's {chain.n_tokens} tokens; got {start.n_tokens}")
        if not start.W0.any() and not start.W1.any():
            raise ValueError("start must not have W0 = 0 and W1 = 0: no minibatch leads away from there")
        draws = _checks.generator(seed, stream=1)
    n_steps = _checks.integer("n_steps", n_steps, 1)
    context = _checks.integer("context", context, 1, len(data.tokens) - 1 if isinstance(data, Corpus) else _checks.MOST)
    batch = _checks.integer("batch", batch, 1, _checks.MOST // (context + 1))
    learning_rate = _checks.real("learning_rate", learning_rate, 0, _checks.LARGEST, open_low=True)
    optimizer = _checks.choice("optimizer", optimizer, tuple(_OPTIMIZERS))
    positions = _checks.choice("positions", positions, _POSITIONS)
    place = _device(device)
    n_frames = _checks.integer("n_frames", n_frames, 2)
    if queries is None and isinstance(data, Corpus):
        queries = range(min(_QUERIES_OF_TEXT, data.n_tokens))
    tokens = query_tokens(queries, chain)
    probes = _Probes(data, tokens, context) if isinstance(data, Corpus) else None
    checkpoint_every = _checks.real("checkpoint_every", checkpoint_every, 0)
    file = None if checkpoint is None else _file(checkpoint)

    entropy = int(draws.integers(2**63))
    if times is None:
        frame_steps = np.linspace(0, n_steps, min(n_frames, n_steps + 1)).round()
    else:
        steps = (_times(times) / learning_rate).round()
        if steps[-1] > n_steps:
            raise ValueError(f"times must end by n_steps learning_rate = {n_steps * learning_rate:g}; got {times}")
        frame_steps = np.unique(np.concatenate([[0], steps, [n_steps]]))
    run = _Run(start, optimizer, learning_rate, frame_steps, place)
    batches = _Batches(data, context, batch, entropy, positions, place)
    if file is not None:
        whose = {
            "version": version("attention-phases"),
            "n_steps": n_steps,
            "context": context,
            "batch": batch,
            "learning_rate": learning_rate,
            "optimizer": optimizer,
            "positions": positions,
            "frames": hashlib.sha256(frame_steps.tobytes()).hexdigest(),
            "text": hashlib.sha256(data.tokens.data).hexdigest() if isinstance(data, Corpus) else None,
            "chain": hashlib.sha256(chain.transition.tobytes()).hexdigest(),
            "start": hashlib.sha256(b"".join(part.tobytes() for part in start.arrays)).hexdigest(),
            "contexts": entropy,
        }
        if file.exists():
            run.restore(_read(file, whose))
        else:
            _write(file, whose, run.state())  # a place where nothing can be written shows before the work is done

    written = time.monotonic()
    predictions = batch * (context if positions == "all" else 1)
    product = max(predictions, start.width) * chain.n_tokens * start.width
    with _threads(product), tqdm(total=n_steps, initial=run.step, desc="training", disable=None) as bar:
        while run.step < n_steps:
            if not run.advance(batches.of_step(run.step)):
                last = _trajectory(data, run, tokens, probes, learning_rate, converged=False)
                raise ConvergenceError(
                    f"training diverged in step {run.step} of {n_steps} with learning_rate = {learning_rate:g}",
                    last=last,
                    residual=last.drift,
                )
            bar.update()
            if file is not None and run.at_frame and time.monotonic() - written >= checkpoint_every:
                _write(file, whose, run.state())
                written = time.monotonic()
    if file is not None:
        _write(file, whose, run.state())
    return _trajectory(data, run, tokens, probes, learning_rate, converged=True)


def _device(name: str) -> torch.device:
    """A device that computes with double precision, or a ValueError."""
    import torch

    try:
        device = torch.device(name)
        torch.ones(1, dtype=torch.float64, device=device).sum().item()
    except Exception as error:  # of many kinds, from no such name to a driver that is too old
        why = str(error).partition("\n")[0]
        raise ValueError(f"device must be one that PyTorch can use here; got {_checks.shown(name)}: {why}") from None
    return device


@contextmanager
def _threads(product: int) -> Iterator[None]:
    """One thread of PyTorch, where the largest matrix product has no more than so many multiplications."""
    import torch

    before = torch.get_num_threads()
    try:
        if product <= _ALONE:
            torch.set_num_threads(1)
        yield
    finally:
        torch.set_num_threads(before)


class _Batches:
    """The minibatches of a run. That of a step depends on the step alone, so that a run can begin anywhere."""

    def __init__(
        self, data: MarkovChain | Corpus, context: int, batch: int, entropy: int, positions: str, device: torch.device
    ) -> None:
        self._data, self._context, self._batch, self._entropy = data, context, batch, entropy
        self._last, self._device = positions == "last", device
        self._n_together = max(1, _DRAWN_AT_ONCE // (batch * (context + 1)))
        self._drawn: int | None = None

    def of_step(self, step: int) -> _Batch:
        """Of the kind that predicts from the last tokens, or from all."""
        import torch

        group, place = divmod(step, self._n_together)
        if group != self._drawn:
            rng = np.random.default_rng([self._entropy, group])
            self._sequences = self._data.sample(self._n_together * self._batch, self._context + 1, rng)
            self._drawn = group
        sequences = self._sequences[place * self._batch : (place + 1) * self._batch]
        if self._last:
            counts = _log_counts(sequences[:, :-1], self._data.n_tokens)
            return _Batch(*(torch.from_numpy(part).to(self._device) for part in (counts, *sequences.T[-2:])))
        return _Batch(
            None, *(torch.from_numpy(part).to(self._device) for part in (sequences[:, :-1], sequences[:, 1:]))
        )


class _Batch(NamedTuple):
    """A minibatch: logarithms of the counts n_k, (B, d), last tokens of the contexts, (B,), and next tokens, (B,).

    Or, where all positions predict: None, the contexts, (B, N), and the token after each of theirs, (B, N).
    """

    log_counts: torch.Tensor | None
    tokens: torch.Tensor
    following: torch.Tensor


def _log_counts(contexts: Int[IntArray, "B N"], d: int) -> Float[Array, "B d"]:
    """Logarithms of how often each token is in each context; -inf where it is not."""
    n_contexts, length = contexts.shape
    cells = contexts + d * np.arange(n_contexts)[:, None]
    counts = np.bincount(cells.ravel(), minlength=n_contexts * d).reshape(n_contexts, d)
    with np.errstate(divide="ignore"):
        logarithms: Array = np.log(np.arange(length + 1))  # -inf, 0, log 2, ...
    return logarithms[counts]


class _Probes:
    """Fixed windows of a text, on which weights are measured."""

    def __init__(self, corpus: Corpus, queries: IntArray, context: int) -> None:
        d, self._corpus = corpus.n_tokens, corpus
        windows = corpus.sample(_PROBES, context + 1, _PROBE_SEED)
        self._log_counts, self._last, self._following = _log_counts(windows[:, :-1], d), *windows.T[-2:]
        self._of_query = []
        for query in queries.tolist():
            ends = _places(corpus, query, context)
            if not len(ends):
                what = f"the end of a context of {context} tokens in the text"
                raise ValueError(f"queries must be tokens that are {what}; got {query}, {corpus.vocabulary[query]!r}")
            contexts = corpus.tokens[ends[:, None] + np.arange(1 - context, 1)].astype(np.int64)
            self._of_query.append((query, _log_counts(contexts, d)))

    @one_thread
    def measured(self, trajectory: Trajectory) -> TextTrajectory:
        """The trajectory with what its weights do on the windows."""
        return TextTrajectory(
            **{field.name: getattr(trajectory, field.name) for field in fields(Trajectory)},
            corpus=self._corpus,
            text_loss=np.array([self.loss(frame.arrays) for frame in trajectory.parameters]),
            text_attention=np.array([self.attention(frame.arrays) for frame in trajectory.parameters]),
        )

    def loss(self, weights: Weights) -> float:
        """Mean cross-entropy of the next token, in nats."""
        attention = _attention(weights, self._last, self._log_counts)
        logits = attention @ weights.W0 @ weights.W1
        return float((logsumexp(logits, axis=1) - logits[np.arange(_PROBES), self._following]).mean())

    def attention(self, weights: Weights) -> Float[Array, "n_queries d"]:
        """Mean attention of the windows of each query."""
        return np.array([_attention(weights, query, counts).mean(axis=0) for query, counts in self._of_query])


def _attention(
    weights: Weights, last: int | Int[IntArray, " B"], log_counts: Float[Array, "B d"]
) -> Float[Array, "B d"]:
    scores = weights.W0[last] @ weights.WQ @ (weights.W0 @ weights.WK).T
    attention: Array = softmax(scores + log_counts, axis=1)
    return attention


def _places(corpus: Corpus, query: int, context: int) -> Int[IntArray, " n"]:
    """Where the query ends a context: at most 64 places, spread evenly over those that there are."""
    found = []
    for begin in range(context - 1, len(corpus.tokens), _DRAWN_AT_ONCE):
        here = begin + np.flatnonzero(corpus.tokens[begin : begin + _DRAWN_AT_ONCE] == query)
        found.append(_spread(here))
    return _spread(np.concatenate(found))


def _spread(places: Int[IntArray, " n"]) -> Int[IntArray, " k"]:
    chosen = np.linspace(0, len(places) - 1, min(len(places), _PROBES_OF_QUERY)).round().astype(int)
    spread: IntArray = places[chosen]
    return spread


class _Run:
    """A training run, step by step.

    Attributes:
        step: how many have been made.
        at_frame: whether the weights are now those of the last frame.
        frames: weights of the frames so far.
        frame_steps: steps of all frames.
    """

    def __init__(
        self,
        start: Parameters,
        optimizer: str,
        learning_rate: float,
        frame_steps: AnyArray,
        device: torch.device,
    ) -> None:
        import torch

        self._weights = [torch.tensor(part, device=device, requires_grad=True) for part in start.arrays]
        self._optimizer = getattr(torch.optim, _OPTIMIZERS[optimizer])(self._weights, lr=learning_rate)
        self.step, self.at_frame, self.frames = 0, True, [Weights(*start.arrays)]
        self.frame_steps: list[int] = frame_steps.astype(int).tolist()

    def advance(self, batch: _Batch) -> bool:
        """Make a step; whether the weights are still finite, as far as is known before the next one."""
        loss = _loss(self._weights, batch)
        if not math.isfinite(loss.item()):
            return False
        self._optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        self.step += 1
        self.at_frame = self.step == self.frame_steps[len(self.frames)]
        if self.at_frame:
            now = Weights(*(part.detach().cpu().numpy().copy() for part in self._weights))
            if not all(np.abs(part).max() <= _checks.LARGEST for part in now):  # larger, or not a number
                return False
            self.frames.append(now)
        return True

    def state(self) -> dict[str, AnyArray]:
        """What the run is to go on from; at a frame, whose weights are the present ones."""
        of_optimizer = self._optimizer.state_dict()["state"]
        return {
            "frame_steps": np.array(self.frame_steps[: len(self.frames)]),
            **{name: np.array([getattr(frame, name) for frame in self.frames]) for name in Weights._fields},
            **{
                f"{index} {key}": value.cpu().numpy()
                for index, values in of_optimizer.items()
                for key, value in values.items()
                if value is not None
            },
        }

    def restore(self, state: dict[str, AnyArray]) -> None:
        """Go on from a state that `state` gave."""
        import torch

        frames = zip(*(state[name] for name in Weights._fields), strict=True)
        self.frames = [Weights(*frame) for frame in frames]
        self.step = int(state["frame_steps"][-1])
        with torch.no_grad():
            for weights, part in zip(self._weights, self.frames[-1], strict=True):
                weights.copy_(torch.from_numpy(part))
        of_optimizer: dict[int, dict[str, torch.Tensor]] = {}
        for name, values in state.items():
            index, _, key = name.partition(" ")
            if key:
                of_optimizer.setdefault(int(index), {})[key] = torch.from_numpy(values)
        groups = self._optimizer.state_dict()["param_groups"]
        self._optimizer.load_state_dict({"state": of_optimizer, "param_groups": groups})


def _loss(weights: list[torch.Tensor], batch: _Batch) -> torch.Tensor:
    """Mean cross-entropy of the next tokens, in nats."""
    import torch

    W0, W1, WQ, WK = weights
    if batch.log_counts is not None:
        scores = (W0[batch.tokens] @ WQ) @ (W0 @ WK).T  # (B, d)
        attention = torch.softmax(scores + batch.log_counts, dim=1)
        return torch.nn.functional.cross_entropy(attention @ W0 @ W1, batch.following)
    n = batch.tokens.shape[1]
    embedded = W0[batch.tokens]  # (B, N, m)
    scores = (embedded @ WQ) @ (embedded @ WK).mT  # (B, N, N)
    later = torch.ones(n, n, dtype=torch.bool, device=scores.device).triu(1)
    attention = torch.softmax(scores.masked_fill(later, -math.inf), dim=2)
    logits = attention @ embedded @ W1  # (B, N, d)
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch.following.flatten())


@one_thread
def _trajectory(
    data: MarkovChain | Corpus,
    run: _Run,
    queries: IntArray,
    probes: _Probes | None,
    learning_rate: float,
    *,
    converged: bool,
) -> Trajectory:
    chain = data.chain if isinstance(data, Corpus) else data
    parameters = tuple(Parameters(*frame) for frame in run.frames)
    at_start = conserved_quantities(parameters[0])
    excess_loss, attention = [], []
    for frame in run.frames:
        at = Expansion(frame, chain)
        excess_loss.append(at.excess_loss)
        attention.append(at.attention[queries])
    result = Trajectory(
        chain=chain,
        times=learning_rate * np.array(run.frame_steps[: len(run.frames)], dtype=float),
        excess_loss=np.array(excess_loss),
        queries=queries,
        attention=np.array(attention),
        singular_values=np.array([np.linalg.svd(frame.W0, compute_uv=False) for frame in parameters]),
        parameters=parameters,
        n_steps=run.step,
        n_rejected=0,
        n_evaluations=run.step,
        n_products=0,
        tolerance=math.inf,
        drift=max(_drift(frame, at_start) for frame in parameters),
        converged=converged,
    )
    return result if probes is None else probes.measured(result)


def measure_on_text(trajectory: Trajectory, corpus: Corpus, context: int = 64) -> TextTrajectory:
    """A trajectory's weights, measured on windows of a text: the same ones as in `train_transformer` on that text.

    Args:
        trajectory: of any kind, for as many tokens as the corpus has, such as the flow on `Corpus.chain`.
        corpus: the text.
        context: N, tokens of a context, >= 1, less than those of the text.

    Raises:
        ValueError: names the argument, what it must be and what it got.
    """
    _checks.instance("trajectory", trajectory, Trajectory)
    _checks.instance("corpus", corpus, Corpus)
    if trajectory.chain.n_tokens != corpus.n_tokens:
        raise ValueError(
            f"trajectory must be for the corpus's {corpus.n_tokens} tokens; got {trajectory.chain.n_tokens}"
        )
    context = _checks.integer("context", context, 1, len(corpus.tokens) - 1)
    return _Probes(corpus, trajectory.queries, context).measured(trajectory)


def _file(checkpoint: str | os.PathLike[str]) -> Path:
    """The checkpoint's path, in a folder that is there, or a ValueError."""
    name = os.fspath(checkpoint) if isinstance(checkpoint, str | os.PathLike) else ""
    if not isinstance(name, str) or not name or "\0" in name:
        raise ValueError(f"checkpoint must be the path of a file; got {_checks.shown(checkpoint)}")
    file = Path(name)
    if file.exists() and not file.is_file():
        raise ValueError(f"checkpoint must be a regular file, or none yet; got {file}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise ValueError(f"checkpoint must lie in a folder; got {file}") from None
    return file


def _write(file: Path, whose: dict[str, Any], state: dict[str, AnyArray]) -> None:
    """Put a checkpoint in the place of the one before, all of it or nothing."""
    content = io.BytesIO()
    np.savez(content, allow_pickle=False, whose=np.array(json.dumps(whose)), **state)
    new = file.with_name(f"{file.name}.{os.getpid()}")
    try:
        with new.open("wb") as stream:
            stream.write(_digest(content.getbuffer()))
            stream.write(content.getbuffer())
            stream.flush()
            os.fsync(stream.fileno())
        new.replace(file)
    except BaseException:
        new.unlink(missing_ok=True)
        raise


def _read(file: Path, whose: dict[str, Any]) -> dict[str, AnyArray]:
    """The state in a checkpoint, or a ValueError where it is not one of this run."""
    content = memoryview(file.read_bytes())
    n = hashlib.sha256().digest_size
    if content[:n] != _digest(content[n:]):
        raise ValueError(f"checkpoint must be a file that train_transformer wrote, or none yet; got {file}")
    with np.load(io.BytesIO(content[n:]), allow_pickle=False) as arrays:
        state = dict(arrays)
    found = json.loads(str(state.pop("whose")))
    for key, value in whose.items():
        if found[key] != value:
            raise ValueError(f"checkpoint must be of this run; {file} has {key} {found[key]}, not {value}")
    return state


def _digest(content: memoryview) -> bytes:
    """What a checkpoint begins with. Where it does not fit the rest, the file is damaged or of another kind."""
    return hashlib.sha256(content).digest()
