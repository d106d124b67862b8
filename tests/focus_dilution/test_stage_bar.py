"""Facts about the bar of stages under a figure."""

import numpy as np
import pytest
from attention_phases import figures
from attention_phases.focus_dilution import Stage
from attention_phases.focus_dilution.stage_bar import LOOKS, stage_bar

STAGES = [
    Stage("condensation", 0, 10, 1),
    Stage("focus", 40, 60, 1),
    Stage("dilution", 60, 90, 1),
    Stage("symmetry-breaking", 95, np.inf, 1),
]


def test_each_stage_is_a_bar_of_its_own_hatch_cut_at_the_limits() -> None:
    fig, axis = figures.subplots()
    axis.set_xlim(5, 100)
    stage_bar(axis, {"predicted": STAGES[:2], "simulated": STAGES})
    spans = [(bar.get_x(), bar.get_x() + bar.get_width(), bar.get_hatch() or "") for bar in axis.patches]
    simulated = [(5, 10, ""), (40, 60, "////"), (60, 90, "...."), (95, 100, "xxxx")]
    assert spans == [*simulated, *simulated[:2]]
    assert len({hatch for _, hatch in LOOKS.values()}) == len(LOOKS)
    assert [text.get_text() for text in axis.texts] == ["C", "F", "D", "S", "C", "F"]
    assert [label.get_text() for label in axis.get_yticklabels()] == ["simulated", "predicted"]  # from below
    assert fig.axes == [axis]


def test_letters_can_be_left_out_and_stages_outside_are() -> None:
    _, axis = figures.subplots()
    axis.set_xlim(100, 200)
    stage_bar(axis, {"a": STAGES}, letters=False)
    assert not axis.texts
    assert len(axis.patches) == 1
    with pytest.raises(ValueError, match="rows must hold at least one row"):
        stage_bar(axis, {})
