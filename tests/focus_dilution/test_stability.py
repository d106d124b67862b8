"""What takes training away from the flow, and the curvature that says when a step is too large."""

import math
import sys
from pathlib import Path

import numpy as np
import pytest
from attention_phases import stored
from attention_phases.focus_dilution import (
    MarkovChain,
    Parameters,
    extreme_curvature,
    flatten,
    hessian_operator,
    load_corpus,
    population_gradient,
    unflatten,
)
from attention_phases.focus_dilution.__main__ import main
from attention_phases.focus_dilution.stability import descents, stability

CHAIN = MarkovChain.lazy([0.6, 0.25, 0.1, 0.05], 0.5)


@pytest.mark.parametrize("width", [1, 6])  # below and above the size at which the whole matrix is taken
@pytest.mark.parametrize(("which", "place"), [("largest", -1), ("smallest", 0)])
def test_curvatures_are_the_ends_of_the_hessians_spectrum(width: int, which: str, place: int) -> None:
    weights = Parameters.gaussian(4, width, 0.7, seed=width)
    hessian = hessian_operator(weights, CHAIN)
    spectrum = np.linalg.eigvalsh(hessian @ np.eye(hessian.shape[0]))
    assert np.isclose(extreme_curvature(weights, CHAIN, which), spectrum[place], rtol=1e-3)


def test_descent_is_stable_up_to_two_over_the_largest_curvature() -> None:
    """From a minimum, moved a little, the loss falls at once with steps below the limit, and rises above it."""
    weights = Parameters.gaussian(4, 3, 0.5, seed=0)
    for _ in range(4000):  # to where gradients are small
        weights = unflatten(flatten(weights) - 0.3 * flatten(population_gradient(weights, CHAIN)), 4, 3)
    limit = 2 / extreme_curvature(weights, CHAIN)
    hessian = hessian_operator(weights, CHAIN)
    steep = np.linalg.eigh(hessian @ np.eye(hessian.shape[0]))[1][:, -1]

    def length_after(step: float) -> float:
        moved = unflatten(flatten(weights) + 1e-4 * steep, 4, 3)
        for _ in range(50):
            rest = population_gradient(weights, CHAIN)  # what is left of the slope there
            slope = flatten(population_gradient(moved, CHAIN)) - flatten(rest)
            moved = unflatten(flatten(moved) - step * slope, 4, 3)
        return float(abs(steep @ (flatten(moved) - flatten(weights))))

    assert length_after(0.95 * limit) < 1e-5 < 1e-3 < length_after(1.08 * limit)


def test_errors_of_curvatures_are_named() -> None:
    weights = Parameters.gaussian(4, 2, 0.1, seed=0)
    with pytest.raises(ValueError, match="which must be one of 'largest', 'smallest'; got 'middle'"):
        extreme_curvature(weights, CHAIN, "middle")
    with pytest.raises(ValueError, match="tokens"):
        extreme_curvature(weights, MarkovChain.lazy([0.5, 0.3, 0.2], 0.5))


def test_ways_to_go_on_differ_from_training_in_what_they_say() -> None:
    training, longer, larger, exact, shorter, exact_and_shorter = descents(64, 32, 0.02)
    assert (training.context, training.batch, training.learning_rate) == (64, 32, 0.02)
    assert (longer.context, longer.batch, longer.learning_rate) == (1024, 32, 0.02)
    assert (larger.context, larger.batch, larger.learning_rate) == (64, 512, 0.02)
    assert exact.context == exact.batch == exact_and_shorter.context == math.inf
    assert shorter.learning_rate == exact_and_shorter.learning_rate == 0.002


def test_short_exact_steps_follow_the_flow_and_training_does_so_roughly() -> None:
    corpus = load_corpus("python-docs", n_tokens=20)
    settings = {"width": 4, "init_scale": 0.05, "batch": 64, "context": 64}
    settings |= {"time": 20.0, "duration": 10.0, "learning_rate": 0.2}
    table = stability(corpus, [0, 1], n_frames=4, **settings)  # type: ignore[arg-type]
    assert set(table["seed"]) == {0, 1}
    for _, of_seed in table.groupby("seed"):
        by_run = of_seed.set_index(["run", "time"])["excess_loss"].sort_index()
        begin = by_run["flow"][20.0]
        fall = begin - by_run["flow"][30.0]
        assert fall > 1e-3
        for run in set(of_seed["run"]) - {"flow"}:
            times = by_run[run].index
            assert (times[0], times[-1], len(times)) == (20.0, 30.0, 5), run
            assert by_run[run][20.0] == begin
            allowed = 0.03 if run == "exact gradient, shorter steps" else 0.5
            assert abs((begin - by_run[run][30.0]) / fall - 1) < allowed, run
    with pytest.raises(ValueError, match="learning_rate must be"):
        stability(corpus, [0], n_frames=4, **settings | {"learning_rate": 9.0})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="time must be"):
        stability(corpus, [0], n_frames=4, **settings | {"time": 0.0})  # type: ignore[arg-type]


def test_the_command_writes_a_table_that_says_where_it_is_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "text-small.csv"
    given = "stability --corpora python-docs --tokens 12 --width 2 --seeds 1 --time 4 --duration 1 --learning-rate 0.1"
    arguments = [*given.split(), "--frames", "3", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", ["attention_phases.focus_dilution", *arguments])
    assert main() == 0
    assert "python-docs, seed 0, exact gradient" in capsys.readouterr().err
    head = out.read_text(encoding="utf-8").splitlines()
    assert head[0].endswith(f"stability {' '.join(given.split()[1:])} --frames 3 --out {out}")
    assert any(line.startswith("# sha256 of the text") for line in head)
    with pytest.raises(SystemExit, match="2"):
        main([*arguments, "--seeds", "0"])


def test_the_stored_table_has_all_runs_of_both_samples() -> None:
    table = stored.load("text-stability")
    runs = table[table["run"] != "flow"].groupby(["corpus", "seed", "run"]).size()
    assert len(runs) == 2 * 3 * 6
    assert (runs == 5).all()
    assert "sha256 of the text" in stored.provenance("text-stability")
