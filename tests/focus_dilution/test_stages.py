"""Facts about the stages that are read from a trajectory, and about those that are predicted from its start."""

import tracemalloc
from dataclasses import dataclass, replace

import numpy as np
import pytest
from attention_phases.focus_dilution import ConvergenceError, MarkovChain, Parameters, nearly_symmetric_chain
from attention_phases.focus_dilution.condensation import condensation_rate, unigram_point
from attention_phases.focus_dilution.gradient_flow import gradient_flow
from attention_phases.focus_dilution.stages import Stage, find_stages, predict_timeline
from markov import CHAINS, FALLING, SKEWED, Array, follow, irreversible, reversible

PI = np.array([0.5, 0.3, 0.2])


@dataclass(frozen=True)
class Made:
    """A trajectory that was made up."""

    times: Array
    loss: Array
    attention: Array
    singular_values: Array


def logistic(times: Array, centre: float, width: float) -> Array:
    return 0.5 * (1 + np.tanh((times - centre) / (2 * width)))


def made(times: Array) -> tuple[Made, list[Stage]]:
    """Two cycles of three tokens and two queries, and the stages that the criteria give them.

    Query 0 goes straight on, query 1 turns back. A logistic curve of width w passes 90 % at w log 9 after its centre.
    """
    entropy = -(PI * np.log(PI)).sum()
    loss = np.log(3) - (np.log(3) - entropy) * logistic(times, 20, 2)
    tilt = 0.3 * np.interp(times, [0, 100, 150, 1e9], [0, 0, 1, 1])  # moved by 0.01 at 100 + 50/30
    back = 0.06 * np.interp(times, [0, 100, 160, 260, 1e9], [0, 0, 1, -2, -2])  # turns at 160, done at 250
    second = 0.2 * np.interp(times, [0, 500, 600, 1e9], [0, 0, 1, 1])  # query 0 moves again, by 0.01 at 505
    attention = np.stack(
        [PI + np.outer(tilt - second, [1.0, -0.5, -0.5]), PI + np.outer(back, [1.0, -1.0, 0.0])], axis=1
    )
    first = 2 * logistic(times, 20, 2)
    # 5 % of the first, which is 2, at 300 + 10 log(0.1/1e-3), and 25 % a log 5 later
    other = np.minimum(1e-3 * np.exp(np.clip((times - 300) / 10, 0, 50)), 1.0)
    shows = 300 + 10 * np.log(100)
    stages = [
        Stage("condensation", times[0], 20 + 2 * np.log(9), 1),
        Stage("focus", 100 + 50 / 30, 160, 1),
        Stage("dilution", 160, 250, 1),
        Stage("symmetry-breaking", shows, shows + 10 * np.log(5), 1),
        Stage("focus", 505, 590, 2),
    ]
    singular_values = -np.sort(-np.column_stack([first, other, np.full_like(times, 1e-3)]), axis=1)
    return Made(times, loss, attention, singular_values), stages


GRIDS = {
    "even": np.linspace(0, 1000, 2001),
    "coarse": np.linspace(0, 1000, 251),
    "uneven": np.concatenate([[0], np.cumsum(np.random.default_rng(1).exponential(2, 500))]),
    "sparse on plateaus": np.unique(
        np.concatenate([np.linspace(t, t + 110, 70) for t in (0, 90, 180, 270, 490)] + [np.array([450, 2000, 1e5])])
    ),
}


@pytest.mark.parametrize("grid", GRIDS)
def test_stages_of_a_made_up_trajectory_are_found_on_any_grid(grid: str) -> None:
    trajectory, expected = made(GRIDS[grid])
    found = find_stages(trajectory)
    assert [(stage.name, stage.cycle) for stage in found] == [(stage.name, stage.cycle) for stage in expected]
    for stage, known in zip(found, expected, strict=True):
        j = np.searchsorted(trajectory.times, [known.start, known.end])
        spacing = trajectory.times[j] - trajectory.times[np.maximum(j - 1, 0)]
        assert stage.start == pytest.approx(known.start, abs=spacing[0] + 1e-9)
        assert stage.end == pytest.approx(known.end, abs=spacing[1] + 1e-9)
        assert stage.standard_error is not None
        assert stage.standard_error <= spacing.max() / np.sqrt(12) + 1e-9


def test_times_are_as_exact_as_a_fine_grid_allows() -> None:
    trajectory, expected = made(np.linspace(0, 1000, 20001))
    for stage, known in zip(find_stages(trajectory), expected, strict=True):
        assert (stage.start, stage.end) == pytest.approx((known.start, known.end), abs=0.03)


def until(trajectory: Made, t: float) -> Made:
    n = int((trajectory.times <= t).sum())
    return Made(*(getattr(trajectory, name)[:n] for name in ("times", "loss", "attention", "singular_values")))


@pytest.mark.parametrize(
    ("t", "names", "ended"),
    [
        (15, ["condensation"], False),
        (90, ["condensation"], True),
        (350, ["condensation", "focus", "dilution", "symmetry-breaking"], False),
        (450, ["condensation", "focus", "dilution", "symmetry-breaking"], True),
    ],
)
def test_stage_that_has_not_begun_is_not_listed_and_one_that_has_not_ended_ends_never(
    t: float, names: list[str], ended: bool
) -> None:
    stages = find_stages(until(made(GRIDS["even"])[0], t))
    assert [stage.name for stage in stages] == names
    assert (stages[-1].end < np.inf) == ended


def test_without_a_query_that_turns_back_there_is_no_dilution() -> None:
    trajectory, _ = made(GRIDS["even"])
    straight = replace(trajectory, attention=trajectory.attention[:, :1])
    first = [stage for stage in find_stages(straight) if stage.cycle == 1]
    assert [stage.name for stage in first] == ["condensation", "focus", "symmetry-breaking"]
    assert first[1].end == pytest.approx(145, abs=1e-6)  # 90 % of the way


def test_small_wiggles_are_no_stages() -> None:
    trajectory, _ = made(GRIDS["even"])
    wiggle = 0.005 * np.sin(trajectory.times)[:, None, None] * np.array([1.0, -1.0, 0.0])
    quiet = replace(trajectory, attention=PI + np.abs(wiggle) * np.sign(wiggle))
    assert {stage.name for stage in find_stages(quiet)} == {"condensation", "symmetry-breaking"}


def test_nothing_is_found_where_base_rates_are_uniform() -> None:
    times = np.linspace(0, 10, 20)
    attention = np.full((20, 1, 4), 0.25)
    assert find_stages(Made(times, np.full(20, np.log(4)), attention, np.ones((20, 2)))) == []


def test_trajectories_that_are_none_are_refused() -> None:
    trajectory, _ = made(GRIDS["even"])
    times = trajectory.times.copy()
    times[3] = times[1]
    with pytest.raises(ValueError, match="trajectory must have times, loss, attention, singular_values; got <object"):
        find_stages(object())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"trajectory.times must increase; frame 3 does not"):
        find_stages(replace(trajectory, times=times))
    with pytest.raises(ValueError, match=r"trajectory.loss must be a real array of shape \(2001\)"):
        find_stages(replace(trajectory, loss=trajectory.loss[1:]))
    with pytest.raises(ValueError, match=r"trajectory.attention must be a real array of shape \(2001, any, any\)"):
        find_stages(replace(trajectory, attention=trajectory.attention[:, 0]))
    later = replace(trajectory, times=trajectory.times + 3)
    with pytest.raises(ValueError, match=r"trajectory.times must begin at 0, as training does; got 3"):
        find_stages(later)
    for name in ("loss", "attention", "singular_values"):
        spoilt = getattr(trajectory, name).copy()
        spoilt.flat[7] = np.nan
        with pytest.raises(ValueError, match=rf"trajectory.{name} must be finite"):
            find_stages(replace(trajectory, **{name: spoilt}))
    with pytest.raises(ValueError, match=r"trajectory.attention must have rows that sum to 1"):
        find_stages(replace(trajectory, attention=0.5 * trajectory.attention))
    signed = trajectory.attention + np.array([1.0, -1.0, 0.0])
    with pytest.raises(ValueError, match="without a negative entry; the smallest entry is -0"):
        find_stages(replace(trajectory, attention=signed))
    with pytest.raises(ValueError, match=r"trajectory must start near the origin.* those of the first frame differ by"):
        find_stages(replace(trajectory, attention=trajectory.attention[::-1]))
    for wrong in (trajectory.singular_values[:, ::-1], -trajectory.singular_values):
        with pytest.raises(ValueError, match=r"trajectory.singular_values must be >= 0 in each frame, and sorted"):
            find_stages(replace(trajectory, singular_values=wrong))


def test_weights_that_are_zero_or_tokens_without_attention_are_no_obstacle() -> None:
    trajectory, _ = made(GRIDS["even"])
    nothing = replace(trajectory, singular_values=np.zeros((2001, 2)))
    assert {stage.name for stage in find_stages(nothing)} == {"condensation", "focus", "dilution"}
    with_another = np.concatenate([trajectory.attention, np.zeros((2001, 2, 1))], axis=2)
    assert find_stages(replace(trajectory, attention=with_another))


FRESH = {  # chains that the formulas were not made with
    "lazy": (MarkovChain.lazy([0.45, 0.3, 0.15, 0.07, 0.03], 0.5), 1e-3),
    "drawn at random": (MarkovChain(np.random.default_rng(11).dirichlet(np.full(7, 0.7), 7)), 1e-3),
    "reversible, to rare tokens": (reversible([0.5, 0.2, 0.1, 0.1, 0.06, 0.04], 9), 1e-4),
    "irreversible, to rare tokens": (irreversible([0.3, 0.25, 0.2, 0.12, 0.08, 0.05], 22), 1e-3),
    "Zipf": (MarkovChain.lazy(1 / np.arange(1, 13) / (1 / np.arange(1, 13)).sum(), 0.3), 1e-3),
}


@pytest.mark.parametrize("name", FRESH)
def test_predicted_timeline_is_the_simulated_one(name: str) -> None:
    chain, init_scale = FRESH[name]
    start = Parameters.gaussian(chain.n_tokens, 4, init_scale, seed=list(FRESH).index(name))
    predicted = predict_timeline(chain, start)
    assert [stage.name for stage in predicted] == ["condensation", "focus", "dilution", "symmetry-breaking"]
    run = follow(chain, start, 1.05 * predicted[-1].end)
    found = [stage for stage in find_stages(run) if stage.cycle == 1]
    assert [stage.name for stage in found] == [stage.name for stage in predicted]
    for simulated, theory in zip(found, predicted, strict=True):
        assert theory.start == pytest.approx(simulated.start, rel=2e-3, abs=1e-2)
        # the ends of dilution and of symmetry breaking feel the second direction
        assert theory.end == pytest.approx(simulated.end, rel=0.02)
        assert theory.standard_error is None


def test_timeline_of_the_gradient_flow_of_the_running_example() -> None:
    chain = nearly_symmetric_chain(0.02, 0.3)
    run = gradient_flow(chain, width=16, init_scale=1e-3, t_max=8500, seed=0, queries=[0, 5])
    predicted = predict_timeline(chain, run.parameters[0], queries=[0, 5])
    found = [stage for stage in find_stages(run) if stage.cycle == 1]
    assert [stage.name for stage in found] == ["condensation", "focus", "dilution", "symmetry-breaking"]
    for simulated, theory in zip(found, predicted, strict=True):
        assert theory.name == simulated.name
        assert (theory.start, theory.end) == pytest.approx((simulated.start, simulated.end), rel=0.03)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_other_chains_with_the_same_pi_have_the_same_order_of_stages(seed: int) -> None:
    for chain in (MarkovChain.lazy(FALLING, 0.4), reversible(FALLING, 30 + seed), irreversible(FALLING, 40 + seed)):
        stages = predict_timeline(chain, Parameters.gaussian(5, 4, 1e-3, seed))
        names = [stage.name for stage in stages]
        assert names == [name for name in ("condensation", "focus", "dilution", "symmetry-breaking") if name in names]
        assert {"condensation", "focus", "symmetry-breaking"} <= set(names)
        starts = [stage.start for stage in stages]
        assert starts == sorted(starts)


@pytest.mark.parametrize("kind", ["lazy", "reversible", "irreversible"])
def test_the_flows_of_chains_with_the_same_pi_have_the_same_order_of_stages(kind: str) -> None:
    chain = {
        "lazy": MarkovChain.lazy(SKEWED, 0.3),
        "reversible": reversible(SKEWED, 1),
        "irreversible": irreversible(SKEWED, 0),
    }[kind]
    run = gradient_flow(chain, 4, 1e-4, t_max=1400, seed=0, n_frames=2000)
    stages = [stage for stage in find_stages(run) if stage.cycle == 1]
    assert [stage.name for stage in stages] == ["condensation", "focus", "dilution", "symmetry-breaking"]
    assert stages[0].end < stages[1].start < stages[2].start < stages[3].start


def test_waiting_times_grow_by_the_logarithm_of_the_scale_over_the_rate() -> None:
    chain = CHAINS["lazy"]
    start = Parameters.gaussian(4, 4, 1e-4, seed=3)
    smaller = Parameters(*(array / 100 for array in start.arrays))
    first, second = predict_timeline(chain, start), predict_timeline(chain, smaller)
    assert second[0].end - first[0].end == pytest.approx(np.log(100) / condensation_rate(chain), rel=1e-3)


def test_no_symmetry_breaking_is_predicted_where_training_stalls() -> None:
    chain = nearly_symmetric_chain(0, 0.3)
    names = [stage.name for stage in predict_timeline(chain, Parameters.gaussian(6, 4, 1e-3, seed=4))]
    assert names == ["condensation", "focus", "dilution"]


def test_width_one_has_no_second_direction() -> None:
    names = [stage.name for stage in predict_timeline(CHAINS["lazy"], Parameters.gaussian(4, 1, 1e-3, seed=5))]
    assert names == ["condensation", "focus", "dilution"]


def test_no_stage_where_pi_is_uniform_and_only_the_first_without_focus() -> None:
    uniform = MarkovChain.lazy(np.ones(4) / 4, 0.3)
    assert predict_timeline(uniform, Parameters.gaussian(4, 3, 1e-3, seed=6)) == []
    independent = MarkovChain.lazy(SKEWED, 0)
    names = [stage.name for stage in predict_timeline(independent, Parameters.gaussian(4, 3, 1e-3, seed=6))]
    assert names == ["condensation"]


def test_without_weights_of_the_scores_there_is_no_focus_ever() -> None:
    """W_Q = W_K = 0 is invariant: the flow ends at the unigram point, where nothing grows across either."""
    chain = CHAINS["lazy"]
    W0, W1, _, _ = Parameters.gaussian(4, 4, 1e-3, seed=3).arrays
    start = Parameters(W0, W1, np.zeros((4, 4)), np.zeros((4, 4)))
    assert [stage.name for stage in predict_timeline(chain, start)] == ["condensation"]
    run = gradient_flow(chain, start=start, t_max=1e6)
    assert [stage.name for stage in find_stages(run)] == ["condensation"]


ZEROS = {
    "learnt by one direction": [[0.0, 0.3, 0.7], [1.0, 0.0, 0.0], [1.0, 0.0, 0.0]],
    "that needs a second one": [[0, 0.5, 0.5, 0], [0.9, 0, 0, 0.1], [0.6, 0, 0, 0.4], [0, 0.3, 0.7, 0]],
}


@pytest.mark.parametrize("name", ZEROS)
def test_timeline_of_a_chain_with_zeros_is_the_simulated_one_until_its_second_direction(name: str) -> None:
    """The rank-one flow has no end there. The second direction, if any, comes while the first still creeps."""
    chain = MarkovChain(ZEROS[name])
    start = Parameters.gaussian(chain.n_tokens, 4, 1e-3, seed=0)
    predicted = predict_timeline(chain, start)
    found = find_stages(gradient_flow(chain, start=start, t_max=2e4, n_frames=2000))
    assert [stage.name for stage in predicted] == [stage.name for stage in found]
    for theory, simulated in zip(predicted, found, strict=True):
        assert theory.start == pytest.approx(simulated.start, rel=5e-3)
        if theory.name != "symmetry-breaking":
            assert theory.end == pytest.approx(simulated.end, rel=5e-3)


def test_timeline_of_a_large_chain_needs_little_memory() -> None:
    d = 100
    pi = 1 / np.arange(1, d + 1)
    chain, start = MarkovChain.lazy(pi / pi.sum(), 0.3), Parameters.gaussian(d, 4, 1e-3, seed=0)
    tracemalloc.start()
    stages = predict_timeline(chain, start)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert stages[0].name == "condensation"
    assert peak < 25e6  # the attention of all queries in all frames, some 1500, would be 120e6


def test_start_at_rest_stays_there() -> None:
    chain = CHAINS["lazy"]
    stages = predict_timeline(chain, unigram_point(chain, 3, seed=7))
    assert [(stage.name, stage.start, stage.end) for stage in stages] == [("condensation", 0, 0)]


def test_bad_arguments_are_named() -> None:
    chain = CHAINS["lazy"]
    start = Parameters.gaussian(4, 2, 1e-3, seed=8)
    with pytest.raises(ValueError, match="parameters must be for the chain's 4 tokens; got 5"):
        predict_timeline(chain, Parameters.gaussian(5, 2, 1e-3, seed=8))
    with pytest.raises(ValueError, match=r"queries must be token numbers from 0 to 3; got \[4\]"):
        predict_timeline(chain, start, queries=[4])
    with pytest.raises(ValueError, match=r"queries must be a list of token numbers; got \[\]"):
        predict_timeline(chain, start, queries=[])
    for scale in (1, 10, 1e6):
        with pytest.raises(ValueError, match=r"parameters must be near the origin, with attention within 0.01 of pi"):
            predict_timeline(chain, Parameters.gaussian(4, 4, scale, seed=1))
    outputs = Parameters(10 * np.ones((4, 2)), np.outer([1, 1], [0, 0, 1, 0]), np.zeros((2, 2)), np.zeros((2, 2)))
    with pytest.raises(ValueError, match=r"near the origin, with a loss of at most log d \+ 0.01 = 1.3963 nats; got 1"):
        predict_timeline(chain, outputs)
    nearly_uniform = MarkovChain.lazy(np.array([0.251, 0.25, 0.25, 0.249]), 0.3)
    with pytest.raises(ConvergenceError, match="waits at the unigram point; lambda_2 = "):
        predict_timeline(nearly_uniform, start)
