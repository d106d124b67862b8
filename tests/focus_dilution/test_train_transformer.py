"""Facts about training on minibatches of finite contexts."""

from __future__ import annotations

import importlib
import io
import subprocess
import sys
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from attention_phases.focus_dilution import (
    ConvergenceError,
    Corpus,
    MarkovChain,
    Parameters,
    TextTrajectory,
    Trajectory,
    attention,
    excess_loss,
    gradient_flow,
    load_corpus,
    measure_on_text,
    population_gradient,
    population_loss,
    train_transformer,
)
from attention_phases.focus_dilution.stages import find_stages
from markov import CHAINS, SKEWED
from numpy.typing import NDArray

if TYPE_CHECKING:
    from pathlib import Path

Array = NDArray[np.float64]
MODULE = importlib.import_module("attention_phases.focus_dilution.train_transformer")  # the function has its name
LAZY = CHAINS["lazy"]
CYCLE = MarkovChain(np.roll(np.eye(3), 1, axis=1))  # token after token: contexts of length 3, 6, ... have counts pi N
SHORT: dict[str, Any] = {"width": 5, "init_scale": 0.1, "n_steps": 60, "context": 8, "batch": 4, "n_frames": 7}


def flat(parameters: Parameters) -> Array:
    return np.concatenate([part.ravel() for part in parameters.arrays])


def same(one: Trajectory, other: Trajectory) -> bool:
    """Whether two runs are the same to the last bit."""
    return np.array_equal(one.times, other.times) and all(
        np.array_equal(flat(a), flat(b)) for a, b in zip(one.parameters, other.parameters, strict=True)
    )


def first_changes(optimizer: str) -> Array:
    """What the first step with rate 1 changes, one context a minibatch, for each last token of a context on CYCLE."""
    start = Parameters.gaussian(3, 4, 0.8, 0)
    found = set()
    for seed in range(20):
        last = train_transformer(
            CYCLE, start=start, n_steps=1, seed=seed, context=6, batch=1, learning_rate=1, optimizer=optimizer
        ).parameters[-1]
        found.add(tuple(flat(last) - flat(start)))
    assert len(found) == 3  # the same context gives the same step, and a cycle of three tokens has three contexts
    return np.array(sorted(found))


def test_a_step_goes_down_the_gradient_of_its_minibatch() -> None:
    """The three contexts have the stationary counts, so the mean of their gradients is that of the population loss."""
    gradient = flat(population_gradient(Parameters.gaussian(3, 4, 0.8, 0), CYCLE))
    np.testing.assert_allclose(-first_changes("sgd").mean(axis=0), gradient, atol=1e-14)


def test_adam_begins_with_a_step_of_one_length_in_each_weight() -> None:
    gradients = -first_changes("sgd")
    expected = {tuple((-g / (np.abs(g) + 1e-8)).round(6)) for g in gradients}
    assert expected == {tuple(step.round(6)) for step in first_changes("adam")}


def deviations(chain: MarkovChain, context: int, batch: int, learning_rate: float) -> tuple[float, float]:
    """Largest distance from the flow to t = 40, of the excess loss and of the attention, mean over three seeds."""
    found = []
    for seed in range(3):
        run = train_transformer(
            chain,
            8,
            0.1,
            round(40 / learning_rate),
            seed,
            context=context,
            batch=batch,
            learning_rate=learning_rate,
            n_frames=21,
        )
        flow = gradient_flow(chain, 8, 0.1, times=run.times, seed=seed)
        found.append([np.abs(getattr(run, name) - getattr(flow, name)).max() for name in ("excess_loss", "attention")])
    loss, of_attention = np.mean(found, axis=0)
    return float(loss), float(of_attention)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lazy", "reversible"])
def test_training_becomes_the_flow(name: str) -> None:
    """Half the step, four times the context and the minibatch: each part of the deviation falls to a half or less."""
    sizes = [(8, 8, 0.4), (32, 32, 0.2), (128, 128, 0.1)]
    for coarse, middle, fine in zip(*(deviations(CHAINS[name], *size) for size in sizes), strict=True):
        assert coarse > middle > fine
        assert fine < coarse / 4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sizes", "which", "falls"),
    [
        ([(128, 256, 0.8), (128, 256, 0.4), (128, 256, 0.2)], 0, 1 / 2),  # of order the step
        ([(128, 4, 0.1), (128, 32, 0.1), (128, 256, 0.1)], 0, 8**-0.5),  # noise: of order batch^(-1/2)
        ([(8, 256, 0.1), (32, 256, 0.1), (128, 256, 0.1)], 1, 1 / 4),  # of order 1/context, in the attention
    ],
    ids=["step", "batch", "context"],
)
def test_each_limit_alone_brings_training_nearer(sizes: list[tuple[int, int, float]], which: int, falls: float) -> None:
    """Its part of the deviation falls by the factor given; at least by its root, with the other parts beside it."""
    coarse, middle, fine = (deviations(LAZY, *size)[which] for size in sizes)
    assert middle < falls**0.5 * coarse
    assert fine < falls**0.5 * middle


@pytest.mark.slow
def test_training_goes_through_the_stages_of_the_flow_at_its_times() -> None:
    flow = find_stages(gradient_flow(LAZY, 8, 1e-2, t_max=150, n_frames=2000))
    run = find_stages(train_transformer(LAZY, 8, 1e-2, 1500, context=128, batch=64, n_frames=1501))
    assert [stage.name for stage in flow] == ["condensation", "focus", "dilution"] == [stage.name for stage in run]
    for one, other in zip(run[1:], flow[1:], strict=True):
        assert abs(one.start / other.start - 1) < 0.05


def test_what_a_trajectory_holds_is_what_its_weights_give() -> None:
    found = train_transformer(LAZY, **SHORT, queries=[2, 0], learning_rate=0.5)
    np.testing.assert_allclose(found.times, np.arange(7) * 5)
    assert found.converged
    assert found.n_steps == found.n_evaluations == 60
    assert found.attention.shape == (7, 2, 4)
    for k, at in enumerate(found.parameters):
        assert abs(found.excess_loss[k] - excess_loss(at, LAZY)) < 1e-15
        np.testing.assert_array_equal(found.attention[k], attention(at, LAZY)[[2, 0]])
        np.testing.assert_allclose(found.singular_values[k] ** 2, np.linalg.eigvalsh(at.W0 @ at.W0.T)[::-1])
    np.testing.assert_array_equal(flat(found.parameters[0]), flat(Parameters.gaussian(4, 5, 0.1, 0)))
    assert len(train_transformer(LAZY, **SHORT | {"n_frames": 1000}).times) == 61


def test_same_seed_same_curve() -> None:
    one = train_transformer(LAZY, **SHORT, seed=1)
    assert same(one, train_transformer(LAZY, **SHORT, seed=1))
    generators = [train_transformer(LAZY, **SHORT, seed=np.random.default_rng(1)) for _ in range(2)]
    assert same(*generators)
    start = one.parameters[0]
    from_start = [train_transformer(LAZY, **SHORT, start=start, seed=seed) for seed in (1, 2)]
    assert same(one, from_start[0])
    assert not same(one, from_start[1])


@pytest.mark.parametrize("ends", ["well", "interrupted", "diverged"])
def test_small_products_are_computed_by_one_thread(ends: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch has as many threads as before when training ends, however it does."""
    seen, loss, before = set(), MODULE._loss, torch.get_num_threads()

    def watched(*arguments: Any) -> Any:
        seen.add(torch.get_num_threads())
        if ends == "interrupted":
            raise KeyboardInterrupt
        return loss(*arguments) * (np.nan if ends == "diverged" else 1)

    monkeypatch.setattr(MODULE, "_loss", watched)
    ended = {"interrupted": KeyboardInterrupt, "diverged": ConvergenceError}
    try:
        torch.set_num_threads(3)
        with pytest.raises(ended[ends]) if ends in ended else nullcontext():
            train_transformer(LAZY, **SHORT)
        assert torch.get_num_threads() == 3
        assert seen == {1}
    finally:
        torch.set_num_threads(before)


def test_large_products_are_left_to_all_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """B d m multiplications are counted, or d m^2 if these are more; B N d m where all positions predict."""
    seen: list[int] = []

    def noted(product: int) -> nullcontext[None]:
        seen.append(product)
        return nullcontext()

    monkeypatch.setattr(MODULE, "_threads", noted)
    for changed in ({}, {"batch": 100}, {"positions": "all"}):
        train_transformer(LAZY, **SHORT | {"n_steps": 1} | changed)
    assert seen == [5 * 4 * 5, 100 * 4 * 5, 4 * 8 * 4 * 5]
    before = torch.get_num_threads()
    monkeypatch.undo()
    try:
        torch.set_num_threads(3)
        with MODULE._threads(2**27):
            assert torch.get_num_threads() == 1
        with MODULE._threads(2**27 + 1):
            assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def test_the_number_of_threads_changes_no_curve() -> None:
    runs, before = [], torch.get_num_threads()
    call: dict[str, Any] = {"width": 64, "n_steps": 3, "batch": 64, "context": 64, "init_scale": 0.1, "n_frames": 4}
    chain = MarkovChain.lazy(np.full(500, 1 / 500), 0.3)
    try:
        for n in (1, 2):
            torch.set_num_threads(n)
            runs.append(train_transformer(chain, **call, queries=[0]))
    finally:
        torch.set_num_threads(before)
    assert same(*runs)


def test_minibatches_are_drawn_anew_where_one_drawing_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many minibatches are drawn together; no two are the same, and all of them are used."""
    lengths, drawn = [], MarkovChain.sample

    def counted(chain: MarkovChain, n: int, length: int, seed: Any) -> NDArray[np.int64]:
        lengths.append(n)
        return drawn(chain, n, length, seed)

    monkeypatch.setattr(MarkovChain, "sample", counted)
    monkeypatch.setattr(MODULE, "_DRAWN_AT_ONCE", 7 * 4 * 9)
    start = Parameters.gaussian(4, 5, 0.5, 0)
    run = train_transformer(LAZY, **SHORT | {"n_frames": 61}, start=start, learning_rate=1e-9)
    assert lengths == [28] * 9  # 60 minibatches in sevens
    steps = np.diff([flat(frame) for frame in run.parameters], axis=0)  # the weights stay: a step shows its minibatch
    assert len(np.unique(steps.round(15), axis=0)) > 50


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_an_interrupted_run_goes_on_as_if_nothing_had_been(
    optimizer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    call: dict[str, Any] = SHORT | {"optimizer": optimizer, "learning_rate": 0.02, "seed": 3}
    whole = train_transformer(LAZY, **call)
    kept: dict[str, Any] = {"checkpoint": tmp_path / "new folder" / "run", "checkpoint_every": 0}
    loss, n_calls = MODULE._loss, 0

    def interrupted(*arguments: Any) -> Any:
        nonlocal n_calls
        n_calls += 1
        if n_calls == 37:
            raise KeyboardInterrupt
        return loss(*arguments)

    monkeypatch.setattr(MODULE, "_loss", interrupted)
    with pytest.raises(KeyboardInterrupt):
        train_transformer(LAZY, **call, **kept)
    assert same(train_transformer(LAZY, **call, **kept), whole)
    assert n_calls == 37 + 60 - 30  # it went on from the last frame, at step 30
    assert same(train_transformer(LAZY, **call, **kept, queries=[1]), whole)
    assert n_calls == 37 + 60 - 30  # the run was finished
    assert [file.name for file in (tmp_path / "new folder").iterdir()] == ["run"]


KILLED = """
import os, sys
from attention_phases.focus_dilution import MarkovChain, train_transformer
assert "torch" not in sys.modules
n_written, fsync = 0, os.fsync

def dying(stream):
    global n_written
    n_written += 1
    if n_written == 4:
        os.truncate(stream, 1000)
        os._exit(9)
    fsync(stream)

os.fsync = dying
train_transformer(MarkovChain.lazy({pi}, 0.3), **{call}, checkpoint={file!r}, checkpoint_every=0)
"""


def test_a_process_killed_while_it_writes_leaves_the_checkpoint_before(tmp_path: Path) -> None:
    file = tmp_path / "run"
    code = KILLED.format(pi=SKEWED, call=SHORT, file=str(file))
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 9
    with np.load(io.BytesIO(file.read_bytes()[32:])) as content:  # after its checksum
        assert content["frame_steps"].tolist() == [0, 10, 20]
    assert same(train_transformer(LAZY, **SHORT, checkpoint=file), train_transformer(LAZY, **SHORT))


def test_a_checkpoint_that_cannot_be_written_is_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "run"
    train_transformer(LAZY, **SHORT, checkpoint=file)
    before = file.read_bytes()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        train_transformer(LAZY, **SHORT, checkpoint=file)
    assert file.read_bytes() == before
    with pytest.raises(OSError, match="No space left"):  # before a step is made
        train_transformer(LAZY, **SHORT | {"n_steps": 10**9}, checkpoint=tmp_path / "other")
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"learning_rate": 0.2}, "has learning_rate 0.1, not 0.2"),
        ({"n_steps": 61}, "has n_steps 60, not 61"),
        ({"seed": 1}, "has start .*, not "),
        ({"seed": 1, "start": Parameters.gaussian(4, 5, 0.1, 0)}, "has contexts .*, not "),
        ({"optimizer": "adam"}, "has optimizer sgd, not adam"),
    ],
)
def test_the_checkpoint_of_another_run_is_refused(tmp_path: Path, other: dict[str, Any], message: str) -> None:
    file = tmp_path / "run"
    train_transformer(LAZY, **SHORT, checkpoint=file)
    with pytest.raises(ValueError, match=f"checkpoint must be of this run; .* {message}"):
        train_transformer(LAZY, **SHORT | other, checkpoint=file)
    with pytest.raises(ValueError, match=r"checkpoint must be of this run; .* has chain"):
        train_transformer(CHAINS["persistent"], **SHORT, checkpoint=file)


def test_a_file_that_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "run"
    train_transformer(LAZY, **SHORT, checkpoint=file)
    whole = file.read_bytes()
    damaged = bytearray(whole)
    damaged[len(whole) // 2] ^= 255
    for content in (b"", b"a,b\n1,2\n", whole[:1000], bytes(damaged), whole[32:]):
        file.write_bytes(content)
        with pytest.raises(ValueError, match="checkpoint must be a file that train_transformer wrote, or none yet"):
            train_transformer(LAZY, **SHORT, checkpoint=file)
        assert file.read_bytes() == content
    with pytest.raises(ValueError, match="checkpoint must be a regular file"):
        train_transformer(LAZY, **SHORT, checkpoint=tmp_path)
    with pytest.raises(ValueError, match="checkpoint must lie in a folder"):
        train_transformer(LAZY, **SHORT, checkpoint=file / "inside")
    with pytest.raises(ValueError, match="checkpoint must be the path of a file; got 3"):
        train_transformer(LAZY, **SHORT, checkpoint=3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="checkpoint must be the path of a file"):
        train_transformer(LAZY, **SHORT, checkpoint="a\0b")


@pytest.mark.parametrize(("optimizer", "learning_rate"), [("sgd", 1e8), ("adam", 1e11)])
def test_divergence_is_reported_with_the_last_point(optimizer: str, learning_rate: float) -> None:
    with pytest.raises(ConvergenceError, match=r"diverged in step \d+ of 2000 with learning_rate = 1e") as caught:
        train_transformer(LAZY, 5, 1.0, 2000, optimizer=optimizer, learning_rate=learning_rate, n_frames=2001)
    last = caught.value.last
    assert isinstance(last, Trajectory)
    assert not last.converged
    assert last.n_steps < 2000
    assert caught.value.residual == last.drift
    assert np.isfinite(last.excess_loss).all()


def test_without_a_terminal_nothing_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    train_transformer(LAZY, **SHORT)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"width": 0}, "width must be a whole number of at least 1"),
        ({"init_scale": 0}, "init_scale must be > 0: 0 is an exact critical point"),
        ({"n_steps": 0}, "n_steps must be a whole number of at least 1"),
        ({"n_steps": 10.0}, "n_steps must be a whole number"),
        ({"seed": -1}, "seed must be"),
        ({"context": 0}, "context must be a whole number of at least 1"),
        ({"batch": 0}, "batch must be a whole number of at least 1"),
        ({"batch": 2**31 - 1}, "batch must be a whole number of at least 1 and at most"),
        ({"learning_rate": 0}, r"learning_rate must be a number in \(0"),
        ({"learning_rate": np.nan}, r"learning_rate must be a number in .*; got nan"),
        ({"optimizer": "lion"}, "optimizer must be one of 'sgd', 'adam'; got 'lion'"),
        ({"n_frames": 1}, "n_frames must be a whole number of at least 2"),
        ({"queries": [4]}, "queries must be token numbers from 0 to 3"),
        ({"checkpoint_every": -1}, "checkpoint_every must be a number in"),
        ({"start": "here"}, "start must be a Parameters; got 'here'"),
        ({"start": Parameters.gaussian(3, 5, 1, 0)}, "start must be for the chain's 4 tokens; got 3"),
        ({"start": Parameters(np.zeros((4, 2)), np.zeros((2, 4)), np.eye(2), np.eye(2))}, "start must not have W0 = 0"),
    ],
)
def test_what_makes_no_training_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        train_transformer(LAZY, **arguments)


def test_the_chain_must_be_one() -> None:
    with pytest.raises(ValueError, match="data must be a MarkovChain or a Corpus"):
        train_transformer(np.eye(2))  # type: ignore[arg-type]


# ---- training on a text


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """A text that a chain of four tokens has written."""
    ids = LAZY.sample(1, 20_000, 5)[0]
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text(" ".join("abcd"[i] for i in ids))
    return load_corpus(path)


def plain_loss(weights: Parameters, windows: NDArray[np.int64], positions: str) -> float:
    """The mean cross-entropy, position by position."""
    W0, W1, WQ, WK = weights.arrays
    losses = []
    for window in windows:
        n = len(window) - 1
        for end in range(n if positions == "last" else 1, n + 1):
            scores = [W0[window[end - 1]] @ WQ @ WK.T @ W0[token] for token in window[:end]]
            a = np.exp(scores) / np.exp(scores).sum()
            logits = a @ W0[window[:end]] @ W1
            losses.append(np.log(np.exp(logits).sum()) - logits[window[end]])
    return float(np.mean(losses))


@pytest.mark.parametrize("positions", ["last", "all"])
def test_the_loss_is_that_of_the_windows_position_by_position(positions: str, text: Corpus) -> None:
    weights = Parameters.gaussian(4, 3, 0.9, 0)
    batches = MODULE._Batches(text, 6, 5, 0, positions, "cpu")
    windows = text.sample(batches._n_together * 5, 7, np.random.default_rng([0, 0]))[:5]
    parts = [torch.from_numpy(np.array(part)) for part in weights.arrays]
    assert abs(MODULE._loss(parts, batches.of_step(0)).item() - plain_loss(weights, windows, positions)) < 1e-13


def test_on_the_samples_of_a_chain_the_loss_is_the_population_loss(text: Corpus) -> None:
    """Within four standard errors of the 2048 windows, and what contexts of 512 cost."""
    run = train_transformer(text, 5, 0.3, 300, context=512, batch=8, learning_rate=0.3, n_frames=7)
    assert isinstance(run, TextTrajectory)
    for loss, population, at in zip(run.text_loss, run.loss, run.parameters, strict=True):
        windows = text.sample(2048, 513, 0)
        read = attention(at, text.chain)[windows[:, -2]] @ at.W0 @ at.W1
        losses = np.log(np.exp(read).sum(axis=1)) - read[np.arange(2048), windows[:, -1]]
        assert abs(loss - population) < 4 * losses.std() / np.sqrt(2048) + 2 / 512
        assert abs(population - population_loss(at, text.chain)) < 1e-12


def test_what_a_text_trajectory_holds(text: Corpus) -> None:
    call: dict[str, Any] = SHORT | {"queries": text.ids(["b", "a"]), "learning_rate": 0.5}
    run = train_transformer(text, **call)
    assert isinstance(run, TextTrajectory)
    assert run.chain == text.chain
    assert run.corpus is text
    assert run.text_attention.shape == (7, 2, 4)
    np.testing.assert_allclose(run.text_attention.sum(axis=2), 1)
    assert (run.text_entropy < np.log(4)).all()
    again = measure_on_text(run, text, SHORT["context"])
    np.testing.assert_array_equal(again.text_loss, run.text_loss)
    np.testing.assert_array_equal(again.text_attention, run.text_attention)
    assert same(run, train_transformer(text, **call))
    assert not same(run, train_transformer(text, **call, positions="all"))


@pytest.mark.parametrize("positions", ["last", "all"])
def test_an_interrupted_run_on_a_text_goes_on_as_if_nothing_had_been(
    positions: str, text: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    call: dict[str, Any] = SHORT | {"positions": positions, "learning_rate": 0.2, "times": [1, 3, 4.4, 9]}
    whole = train_transformer(text, **call)
    np.testing.assert_allclose(whole.times, [0, 1, 3, 4.4, 9, 12])
    kept: dict[str, Any] = {"checkpoint": tmp_path / "run", "checkpoint_every": 0}
    loss, n_calls = MODULE._loss, 0

    def interrupted(*arguments: Any) -> Any:
        nonlocal n_calls
        n_calls += 1
        if n_calls == 37:
            raise KeyboardInterrupt
        return loss(*arguments)

    monkeypatch.setattr(MODULE, "_loss", interrupted)
    with pytest.raises(KeyboardInterrupt):
        train_transformer(text, **call, **kept)
    assert same(train_transformer(text, **call, **kept), whole)
    assert n_calls == 37 + 60 - 22  # it went on from the frame at time 4.4
    with pytest.raises(ValueError, match=r"checkpoint must be of this run; .* has positions"):
        train_transformer(text, **call | {"positions": "last" if positions == "all" else "all"}, **kept)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"context": 20_000}, "context must be a whole number of at least 1 and at most 19999; got 20000"),
        ({"positions": "first"}, "positions must be one of 'last', 'all'; got 'first'"),
        ({"device": "toaster"}, "device must be one that PyTorch can use here; got 'toaster'"),
        ({"device": "meta"}, "device must be one that PyTorch can use here; got 'meta'"),
        ({"times": [1, 1e9]}, "times must end by n_steps learning_rate"),
        ({"times": [2, 1]}, "times must be increasing"),
        ({"queries": [4]}, "queries must be token numbers from 0 to 3"),
    ],
)
def test_what_makes_no_training_on_a_text_is_refused(arguments: dict[str, Any], message: str, text: Corpus) -> None:
    with pytest.raises(ValueError, match=message):
        train_transformer(text, **arguments)


def test_a_query_that_ends_no_context_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text("once " + "a b " * 50)
    corpus = load_corpus(path)
    with pytest.raises(ValueError, match="queries must be tokens that are the end of a context of 8 tokens"):
        train_transformer(corpus, n_steps=1, context=8, queries=corpus.ids(["once"]))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch finds no GPU")
def test_a_gpu_gives_the_same_curve_to_rounding(text: Corpus) -> None:
    runs = [train_transformer(text, **SHORT, learning_rate=0.5, device=device) for device in ("cpu", "cuda")]
    np.testing.assert_allclose(runs[0].excess_loss, runs[1].excess_loss, rtol=1e-9)
