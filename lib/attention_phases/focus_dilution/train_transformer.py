"""Training as it is done in practice: minibatches of finite contexts, stochastic gradient descent or Adam.

A context of N tokens enters the transformer of `markov_transformer` through its last token i and through the counts
n_k of its tokens, since the model knows no order:

    a_k = n_k exp(z_ik)/sum_j n_j exp(z_ij),        z = W0 W_Q W_K^T W0^T.

The loss of a context is the cross-entropy of the next token; that of a minibatch of B contexts is the mean. Long
contexts have ``n_k/N -> pi_k``, large minibatches average the gradient, and short steps make a flow of the steps. So as
N, B and 1/learning rate grow, stochastic gradient descent becomes the gradient flow of the population loss.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import time
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from tqdm import tqdm

from attention_phases import _checks
from attention_phases.errors import ConvergenceError
from attention_phases.focus_dilution.gradient_flow import Trajectory, _drift, _queries
from attention_phases.focus_dilution.markov_transformer import (
    Expansion,
    MarkovChain,
    Parameters,
    Seed,
    Weights,
    conserved_quantities,
)

if TYPE_CHECKING:  # PyTorch takes seconds to import: only a run does it
    import torch
    from jaxtyping import Float, Int
    from numpy.typing import ArrayLike, NDArray

_OPTIMIZERS = {"sgd": "SGD", "adam": "Adam"}  # names in torch.optim
_DRAWN_AT_ONCE = 2**18  # tokens: many minibatches are drawn together, which is much faster than one by one


def train_transformer(
    chain: MarkovChain,
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
    start: Parameters | None = None,
    n_frames: int = 400,
    queries: ArrayLike | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_every: float = 30.0,
) -> Trajectory:
    """Train the transformer on minibatches of contexts that are drawn anew from the chain at every step.

    The start is that of `gradient_flow` with the same seed. What the trajectory holds is measured on the chain, not on
    minibatches: the population loss, and the attention of infinitely long contexts. Its times are step times learning
    rate, for stochastic gradient descent the time of the flow. Frames are equally spaced. `n_evaluations` counts
    minibatches; the numbers of a solver that training has not are 0, its `tolerance` is infinite. The drift is that of
    the flow's conserved quantities, which training keeps only in the limit of short steps.

    With a checkpoint, a run that was killed at any moment goes on when the same call is made again, and ends in the
    same numbers as a run that was not. The file is always a whole one: it is replaced, never written over. After the
    run it holds the result, so that the same call returns without a step.

    Args:
        chain: what is learned.
        width: m, >= 1.
        init_scale: standard deviation of the initial entries, > 0.
        n_steps: of the optimiser, >= 1.
        seed: of the initial weights and of the contexts.
        context: N, tokens of a context, >= 1.
        batch: B, contexts of a minibatch, >= 1.
        learning_rate: > 0.
        optimizer: "sgd", without momentum, or "adam", with the usual constants.
        start: initial weights, in place of `width` and `init_scale`.
        n_frames: the largest number of frames, >= 2.
        queries: tokens whose attention is kept, default all.
        checkpoint: a file that keeps the run.
        checkpoint_every: seconds after which it is written again, >= 0, at the next frame.

    Raises:
        ValueError: names the argument, what it must be and what it got; also where the checkpoint is of another run, or
            not what this function wrote.
        ConvergenceError: the weights diverged. Its last point is the trajectory up to the last finite frame, its
            residual the drift of that.
        OSError: the checkpoint could not be written. What it held before is still there.
    """
    _checks.instance("chain", chain, MarkovChain)
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
    context = _checks.integer("context", context, 1)
    batch = _checks.integer("batch", batch, 1, _checks.MOST // (context + 1))
    learning_rate = _checks.real("learning_rate", learning_rate, 0, _checks.LARGEST, open_low=True)
    optimizer = _checks.choice("optimizer", optimizer, tuple(_OPTIMIZERS))
    n_frames = _checks.integer("n_frames", n_frames, 2)
    tokens = _queries(queries, chain)
    checkpoint_every = _checks.real("checkpoint_every", checkpoint_every, 0)
    file = None if checkpoint is None else _file(checkpoint)

    entropy = int(draws.integers(2**63))
    run = _Run(start, optimizer, learning_rate, np.linspace(0, n_steps, min(n_frames, n_steps + 1)).round())
    batches = _Batches(chain, context, batch, entropy)
    if file is not None:
        whose = {
            "version": version("attention-phases"),
            "n_steps": n_steps,
            "context": context,
            "batch": batch,
            "learning_rate": learning_rate,
            "optimizer": optimizer,
            "n_frames": n_frames,
            "chain": hashlib.sha256(chain.transition.tobytes()).hexdigest(),
            "start": hashlib.sha256(b"".join(part.tobytes() for part in start.arrays)).hexdigest(),
            "contexts": entropy,
        }
        if file.exists():
            run.restore(_read(file, whose))
        else:
            _write(file, whose, run.state())  # a place where nothing can be written shows before the work is done

    written = time.monotonic()
    with tqdm(total=n_steps, initial=run.step, desc="training", disable=None) as bar:
        while run.step < n_steps:
            if not run.advance(*batches.of_step(run.step)):
                last = _trajectory(chain, run, tokens, learning_rate, converged=False)
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
    return _trajectory(chain, run, tokens, learning_rate, converged=True)


class _Batches:
    """The minibatches of a run. That of a step depends on the step alone, so that a run can begin anywhere."""

    def __init__(self, chain: MarkovChain, context: int, batch: int, entropy: int) -> None:
        self._chain, self._context, self._batch, self._entropy = chain, context, batch, entropy
        with np.errstate(divide="ignore"):
            self._logarithms = np.log(np.arange(context + 1))  # -inf, 0, log 2, ...
        self._n_together = max(1, _DRAWN_AT_ONCE // (batch * (context + 1)))
        self._drawn: int | None = None

    def of_step(self, step: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Logarithms of the counts n_k, (B, d), last tokens of the contexts, (B,), and next tokens, (B,)."""
        import torch

        group, place = divmod(step, self._n_together)
        if group != self._drawn:
            rng = np.random.default_rng([self._entropy, group])
            self._sequences = self._chain.sample(self._n_together * self._batch, self._context + 1, rng)
            self._drawn = group
        sequences = self._sequences[place * self._batch : (place + 1) * self._batch]
        d = self._chain.n_tokens
        cells = sequences[:, :-1] + d * np.arange(self._batch)[:, None]
        counts = np.bincount(cells.ravel(), minlength=self._batch * d).reshape(self._batch, d)
        last, following = torch.from_numpy(sequences[:, -2]), torch.from_numpy(sequences[:, -1])
        return torch.from_numpy(self._logarithms[counts]), last, following


class _Run:
    """A training run, step by step.

    Attributes:
        step: how many have been made.
        at_frame: whether the weights are now those of the last frame.
        frames: weights of the frames so far.
        frame_steps: steps of all frames.
    """

    def __init__(self, start: Parameters, optimizer: str, learning_rate: float, frame_steps: NDArray[Any]) -> None:
        import torch

        self._weights = [torch.from_numpy(part.copy()).requires_grad_() for part in start.arrays]
        self._optimizer = getattr(torch.optim, _OPTIMIZERS[optimizer])(self._weights, lr=learning_rate)
        self.step, self.at_frame, self.frames = 0, True, [Weights(*start.arrays)]
        self.frame_steps: list[int] = frame_steps.astype(int).tolist()

    def advance(
        self,
        log_counts: Float[torch.Tensor, "B d"],
        last: Int[torch.Tensor, " B"],
        following: Int[torch.Tensor, " B"],
    ) -> bool:
        """Make a step; whether the weights are still finite, as far as is known before the next one."""
        loss = _loss(self._weights, log_counts, last, following)
        if not math.isfinite(loss.item()):
            return False
        self._optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        self.step += 1
        self.at_frame = self.step == self.frame_steps[len(self.frames)]
        if self.at_frame:
            now = Weights(*(part.detach().numpy().copy() for part in self._weights))
            if not all(np.abs(part).max() <= _checks.LARGEST for part in now):  # larger, or not a number
                return False
            self.frames.append(now)
        return True

    def state(self) -> dict[str, NDArray[Any]]:
        """What the run is to go on from; at a frame, whose weights are the present ones."""
        of_optimizer = self._optimizer.state_dict()["state"]
        return {
            "frame_steps": np.array(self.frame_steps[: len(self.frames)]),
            **{name: np.array([getattr(frame, name) for frame in self.frames]) for name in Weights._fields},
            **{
                f"{index} {key}": value.numpy()
                for index, values in of_optimizer.items()
                for key, value in values.items()
                if value is not None
            },
        }

    def restore(self, state: dict[str, NDArray[Any]]) -> None:
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


def _loss(
    weights: list[torch.Tensor],
    log_counts: Float[torch.Tensor, "B d"],
    last: Int[torch.Tensor, " B"],
    following: Int[torch.Tensor, " B"],
) -> torch.Tensor:
    """Mean cross-entropy of the next tokens, in nats."""
    import torch

    W0, W1, WQ, WK = weights
    scores = (W0[last] @ WQ) @ (W0 @ WK).T  # (B, d)
    attention = torch.softmax(scores + log_counts, dim=1)
    return torch.nn.functional.cross_entropy(attention @ W0 @ W1, following)


def _trajectory(
    chain: MarkovChain, run: _Run, queries: NDArray[np.int64], learning_rate: float, *, converged: bool
) -> Trajectory:
    parameters = tuple(Parameters(*frame) for frame in run.frames)
    expansions = [Expansion(frame, chain) for frame in run.frames]
    at_start = conserved_quantities(parameters[0])
    return Trajectory(
        chain=chain,
        times=learning_rate * np.array(run.frame_steps[: len(run.frames)], dtype=float),
        excess_loss=np.array([at.excess_loss for at in expansions]),
        queries=queries,
        attention=np.array([at.attention[queries] for at in expansions]),
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


def _write(file: Path, whose: dict[str, Any], state: dict[str, NDArray[Any]]) -> None:
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


def _read(file: Path, whose: dict[str, Any]) -> dict[str, NDArray[Any]]:
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
