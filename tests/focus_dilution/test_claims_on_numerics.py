"""What the appendix on the numerics of the flow claims of all chains, on chains other than its own."""

import numpy as np
import pytest
from attention_phases.focus_dilution import (
    MarkovChain,
    Parameters,
    condensation_rate,
    conserved_change,
    excess_loss,
    gradient_flow,
    predict_timeline,
)
from markov import CHAINS

every_chain = pytest.mark.parametrize("name", CHAINS)


@pytest.mark.parametrize("change", [0.01, -0.05, 0.3])
def test_a_change_of_what_grows_moves_the_next_stage_by_its_logarithm(change: float) -> None:
    chain = CHAINS["irreversible"]
    start = Parameters.gaussian(5, 4, 1e-6, seed=0)
    larger = Parameters(*((1 + change) * part for part in start.arrays))
    times = []
    for begin in (start, larger):
        end = predict_timeline(chain, begin)[0].end
        instants = np.linspace(end - 3, end + 3, 61)
        loss = gradient_flow(chain, start=begin, times=instants, rtol=1e-6).loss
        level = (np.log(5) + 9 * chain.unigram_entropy) / 10
        times.append(float(np.interp(-level, -loss, instants)))
    assert times[0] - times[1] == pytest.approx(np.log(1 + change) / condensation_rate(chain), rel=2e-3, abs=1e-3)


@every_chain
def test_conserved_quantities_do_not_tell_one_chain_from_another(name: str) -> None:
    chain = CHAINS[name]
    other = MarkovChain(chain.transition[::-1, ::-1])  # its tokens in another order
    start = Parameters.gaussian(chain.n_tokens, 4, 0.3, seed=1)
    last = gradient_flow(other, start=start, t_max=100.0).parameters[-1]
    assert max(np.abs(part).max() for part in conserved_change(start, last)) < 1e-3
    right = gradient_flow(chain, start=start, t_max=100.0).parameters[-1]
    assert excess_loss(last, chain) > 1.05 * excess_loss(right, chain)


@every_chain
def test_a_step_needs_few_products_and_the_fewer_steps_the_looser_the_tolerance(name: str) -> None:
    chain = CHAINS[name]
    runs = [gradient_flow(chain, 6, 1e-2, t_max=500.0, rtol=rtol) for rtol in (1e-3, 1e-5)]
    for run in runs:
        assert run.n_products < 20 * (run.n_steps + run.n_rejected)  # of 2 d m + 2 m^2, 120 and more
    assert runs[0].n_steps < runs[1].n_steps
