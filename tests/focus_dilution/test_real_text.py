"""Facts about runs on real text, their tables, and the command that writes them."""

from __future__ import annotations

import errno
import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from attention_phases import stored
from attention_phases.focus_dilution import (
    Corpus,
    Parameters,
    TextTrajectory,
    gradient_flow,
    load_corpus,
    train_transformer,
)
from attention_phases.focus_dilution.__main__ import main
from attention_phases.focus_dilution.real_text import (
    departure,
    describe,
    distance,
    frame_times,
    label,
    named,
    passages,
    train,
)
from attention_phases.sweeps import alone
from markov import CHAINS

SHORT: dict[str, Any] = {
    "width": 4,
    "init_scale": 0.05,
    "t_max": 12.0,
    "learning_rate": 0.1,
    "batch": 4,
    "context": 8,
    "n_frames": 5,
    "device": "cpu",
}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    ids = CHAINS["lazy"].sample(1, 5000, 5)[0]
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text(" ".join(["a", "#", ",", "\n"][i] for i in ids))
    return load_corpus(path)


def test_a_query_turns_to_one_token_after_the_other() -> None:
    base = np.array([0.5, 0.3, 0.2])
    gains = np.array([[0, 0, 0], [3, -3, 0], [5, -5, 0], [1.5, -1, 0], [0.5, 0, 0], [-4, 1, 3], [-5, 0, 5]]) / 100
    found = passages(np.arange(7.0), base + gains, base)
    assert [(token, begin, end) for token, begin, end, _ in found] == [(0, 1.0, 4.0), (2, 5.0, math.inf)]
    np.testing.assert_allclose([most for *_, most in found], [0.05, 0.05])


def test_a_run_with_a_wrong_clock_does_not_depart_and_another_one_does() -> None:
    chain = CHAINS["lazy"]
    run = gradient_flow(chain, 8, 1e-2, times=np.linspace(1, 100, 400), seed=0)
    assert departure(run, run) == math.inf
    late = replace(run, times=run.times * 1.08)
    assert departure(late, run) == math.inf
    assert distance(late, run).max() < 0.1 * distance(late, run, clock=0).max()
    other = replace(run, attention=run.attention[:, :, ::-1])
    assert departure(run, other) == 1.0
    with pytest.raises(ValueError, match="other must have the queries of run"):
        distance(run, replace(run, queries=run.queries[::-1]))


def test_names_of_tokens(corpus: Corpus, tmp_path: Path) -> None:
    assert [label(token) for token in ("\n", " ", "the")] == ["newline", "space", "the"]
    assert named(corpus, ["newline", "a", "zebra"]) == ["\n", "a", "zebra"]
    path = tmp_path / "text.txt"
    path.write_text("a newline\na newline space\n")
    words = load_corpus(path)
    names = [label(token) for token in words.vocabulary]
    assert len(set(names)) == len(names)
    assert named(words, names) == list(words.vocabulary)
    assert named(words, ["newline", "'newline'", "space"]) == ["\n", "newline", "space"]
    times = frame_times(100.0, 9)
    assert times[0] == 4
    np.testing.assert_allclose(np.diff(np.log(times)), np.log(25) / 8)


def test_the_tables_hold_all_runs_of_all_seeds_and_no_more(corpus: Corpus, tmp_path: Path) -> None:
    frames, events = train(corpus, [0, 1], ["a", ",", "\n"], **SHORT, folder=tmp_path)
    assert set(zip(frames["run"], frames["seed"], strict=True)) == {
        (run, seed) for run in ("text", "chain", "flow") for seed in (0, 1)
    }
    starts = frames[frames["time"] == 0]
    assert len(starts) == 6
    assert starts.groupby("seed")["sv1"].nunique().tolist() == [1, 1]  # from one start
    assert (frames.groupby(["run", "seed"]).size() <= SHORT["n_frames"] + 2).all()
    assert set(events["kind"]) >= {"stage", "departure"}
    assert "prediction" in set(events["run"])
    again = train(corpus, [0, 1], ["a", ",", "\n"], **SHORT, folder=tmp_path)
    pd.testing.assert_frame_equal(again[0], frames)
    pd.testing.assert_frame_equal(again[1], events)
    wrong_arguments: list[tuple[dict[str, Any], str]] = [
        ({"runs": ["best"]}, "runs must be some of"),
        ({"t_max": -1}, "t_max must be a number"),
        ({"learning_rate": 1e-320}, "t_max/learning_rate must be a number in"),
        ({"n_frames": 1}, "n_frames must be a whole number of at least 2"),
    ]
    for wrong, message in wrong_arguments:
        with pytest.raises(ValueError, match=message):
            train(corpus, [0], ["a"], **SHORT | wrong)
    with pytest.raises(ValueError, match="tokens must be different ones"):
        train(corpus, [0], ["a", "a"], **SHORT)


def test_the_chains_of_texts_are_described(corpus: Corpus) -> None:
    tokens, chains = describe([corpus])
    np.testing.assert_allclose(tokens["frequency"], corpus.frequencies)
    assert tokens["token"].tolist() == [label(token) for token in corpus.vocabulary]
    assert chains["conditional_entropy"][0] == corpus.chain.conditional_entropy


COMMAND = "train --tokens 40 --seeds 1 --time 5 --frames 4 --batch 4 --context 8 --width 4 --corpus python-docs"


def test_the_command_writes_two_tables_that_say_what_made_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "text-small.csv"
    assert main([*COMMAND.split(), "--queries", "newline", "the", ",", "--out", str(out)]) == 0
    assert capsys.readouterr().out.split() == [str(out), str(tmp_path / "text-small-events.csv")]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["text-small-events.csv", "text-small.csv"]
    for name in ("text-small", "text-small-events"):
        monkeypatch.setitem(stored.RECORDS, name, "this command")
    monkeypatch.setattr(stored, "_IN_REPOSITORY", tmp_path)
    assert f"sha256 of the text: {load_corpus().sha256}" in stored.provenance("text-small")
    frames = stored.load("text-small")
    assert {"entropy newline", "entropy ,", ", on <unk>"} <= set(frames.columns)
    assert set(stored.load("text-small-events")["run"]) == {"text", "chain", "flow", "prediction"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--out", "nowhere/a.csv"], "--out must be a file NAME.csv"),
        (["--out", "a.txt"], "--out must be a file NAME.csv"),
        (["--out", "folder.csv"], "--out must be a file NAME.csv"),
        (["--out", "a.csv", "--width", "1000000000000"], "width must be a whole number"),
        (["--out", "a.csv", "--seeds", "0"], "--seeds must be at least 1"),
        (["--out", "a.csv", "--corpus", "nothing"], "corpus must be one of"),
        (["--out", "a.csv", "--queries", "zebra"], "tokens must be in the vocabulary"),
        (["--out", "a.csv", "--time", "-1"], "t_max must be a number"),
        (["--out", "a.csv", "--device", "toaster"], "device must be one that PyTorch can use"),
    ],
)
def test_what_the_command_cannot_do_is_named(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("folder.csv").mkdir()
    assert stopped([*COMMAND.split(), *arguments]) != 0
    assert message in capsys.readouterr().err
    assert [path.name for path in tmp_path.glob("*.csv")] == ["folder.csv"]


def stopped(arguments: list[str]) -> Any:
    """The exit status of a command that does not end well."""
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    return caught.value.code


def test_an_interrupted_command_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, out = tmp_path / "whole.csv", tmp_path / "parts.csv"
    assert main([*COMMAND.split(), "--out", str(whole)]) == 0
    signals: list[BaseException] = [
        KeyboardInterrupt(),
        OSError(errno.ENOSPC, "No space left on device"),
        MemoryError(),
    ]
    messages = ["interrupted; the same command goes on from here", "No space left on device", "no memory is left"]
    for signal, message, status in zip(signals, messages, [130, 1, 1], strict=True):

        def fails(*_: Any, signal: BaseException = signal, **__: Any) -> None:
            raise signal

        with monkeypatch.context() as patch:
            patch.setattr("attention_phases.focus_dilution.real_text.gradient_flow", fails)  # the third run
            assert stopped([*COMMAND.split(), "--out", str(out)]) == status
        assert message in capsys.readouterr().err
        assert sorted(path.name for path in (tmp_path / ".parts").iterdir()) == ["chain-0", "text-0"]
    assert stopped([*COMMAND.split(), "--out", str(out), "--learning-rate", "0.01"]) == 1
    assert f"to begin anew, remove the folder {tmp_path / '.parts'}" in capsys.readouterr().err
    with alone(out):
        assert stopped([*COMMAND.split(), "--out", str(out)]) == 1
    assert "must not be in use by another" in capsys.readouterr().err
    assert main([*COMMAND.split(), "--out", str(out)]) == 0
    tables = [[line for line in path.read_text().splitlines() if line[0] != "#"] for path in (whole, out)]
    assert tables[0] == tables[1]
    assert not (tmp_path / ".parts").exists()


def test_tokens_are_described_at_the_first_size_and_chains_at_all(corpus: Corpus, tmp_path: Path) -> None:
    """A text with fewer words than are allowed has one size less."""
    out = tmp_path / "chains.csv"
    command = ["describe", "--corpora", corpus.source, corpus.source, "--out", str(out), "--tokens"]
    n = corpus.n_tokens
    assert n > 3
    for sizes, shown, rows in (("50 3 60", n, [3, n]), ("3 2 60", 3, [2, 3, n]), ("3", 3, [3])):
        assert main([*command, *sizes.split()]) == 0
        table = pd.read_csv(out, skiprows=6)  # after what made it; a token is "#"
        assert table["rank"].tolist() == list(range(1, shown + 1))
        rates = pd.read_csv(out.with_stem("chains-rates"), skiprows=6)
        assert rates.loc[rates["level"] == "word", "n_tokens"].tolist() == rows


@pytest.mark.parametrize("name", list(stored.RECORDS))
def test_a_stored_record_says_which_command_made_it(name: str) -> None:
    lines = dict(line.split(": ", 1) for line in stored.provenance(name).splitlines())
    assert lines["command"] == stored.RECORDS[name]
    assert "dirty" not in lines["commit"]
    assert "torch" in lines["versions"]
    assert len(stored.load(name)) > 10


@pytest.mark.slow
@pytest.mark.skipif("ATTENTION_PHASES_DATA" not in os.environ, reason="ATTENTION_PHASES_DATA names no folder")
def test_the_stored_runs_are_reproduced_by_a_short_one() -> None:
    """The first 1900 steps on WikiText, through condensation and focus, to the digits that are stored."""
    frames = stored.load("text-wikitext-2").query("run == 'text' and seed == 1")
    corpus = load_corpus("wikitext-2")
    queries = corpus.ids(["<unk>", "the"])
    start = Parameters.gaussian(300, 32, 1e-3, 1)
    times = frame_times(2000.0, 4 * 96)
    times = times[times < 38]
    run = train_transformer(corpus, start=start, n_steps=1900, seed=1, learning_rate=0.02, times=times, queries=queries)
    assert isinstance(run, TextTrajectory)
    compared = 0
    columns = frames.loc[frames["time"] < 37, ["time", "loss", "text_loss", "WQ"]].to_numpy(dtype=float)
    for time, *kept in columns:
        (j,) = np.flatnonzero(np.isclose(run.times, time, rtol=1e-4, atol=1e-6))
        np.testing.assert_allclose([run.loss[j], run.text_loss[j], run.norms[j, 2]], kept, rtol=1e-3)
        compared += 1
    assert compared > 30
    last = frames[frames["time"] < 37].iloc[-1]
    assert abs(run.entropy[np.isclose(run.times, float(last["time"]), rtol=1e-4), 0][0] - last["entropy <unk>"]) < 1e-3
