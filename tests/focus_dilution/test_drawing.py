"""Facts about what the figures of Part II share."""

import numpy as np
import pytest
from attention_phases import figures
from attention_phases.focus_dilution import Stage
from attention_phases.focus_dilution.drawing import LOOKS, compared, stage_bar

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


def test_a_prediction_is_a_line_and_what_it_predicts_are_points_of_the_same_look() -> None:
    _, axis = figures.subplots()
    x = np.arange(4.0)
    compared(axis, "W0", (x, x), (x[1:], x[1:] + 0.1), "points")
    line, points = axis.lines
    np.testing.assert_array_equal(line.get_ydata(), x)
    np.testing.assert_array_equal(points.get_ydata(), x[1:] + 0.1)
    assert line.get_color() == points.get_color()
    assert (line.get_marker(), points.get_linestyle()) == ("None", "None")
    assert axis.get_legend_handles_labels()[1] == ["points"]
    assert not axis.containers[0].has_yerr
    compared(axis, "W0", (x, x), (x, x, 0.1 * x))
    assert axis.containers[1].has_yerr
    with pytest.raises(ValueError, match="mean must be a list of 4 real numbers"):
        compared(axis, "W0", (x, x), (x, x[1:]))
