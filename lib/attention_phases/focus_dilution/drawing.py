"""What the figures of Part II share: a prediction with what it predicts, and the bar of stages under a training."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from numpy.typing import ArrayLike

from attention_phases import figures
from attention_phases._style import Look
from attention_phases.focus_dilution.stages import Stage

LOOKS = {  # and hatches, to be told apart in grey
    "condensation": ("W0", ""),
    "focus": ("flow", "////"),
    "dilution": ("prediction", "...."),
    "symmetry-breaking": ("WK", "xxxx"),
}


def compared(
    axis: Axes,
    look: str | Look,
    line: tuple[ArrayLike, ArrayLike],
    points: tuple[ArrayLike, ArrayLike] | tuple[ArrayLike, ArrayLike, ArrayLike],
    label: str | None = None,
) -> None:
    """Draw a prediction as a line and what it predicts as points, in one look.

    Args:
        axis: where.
        look: as in `figures.theory`.
        line: x and y of the prediction, (n,) each.
        points: x and y of experiment or simulation, (n,) each, and the standard error of y where there is one, as in
            `figures.experiment`.
        label: of the points.

    Raises:
        ValueError: as `figures.theory` and `figures.experiment`.
    """
    x, y, *error = points
    figures.theory(axis, *line, look)
    figures.experiment(axis, x, y, error[0] if error else None, look, label=label)


def stage_bar(axis: Axes, rows: dict[str, Sequence[Stage]], *, letters: bool = True) -> None:
    """Draw rows of stages as hatched bars, the first row on top, within the limits that the axis has in x.

    Args:
        axis: its limits of x are set; what lies outside is not drawn.
        rows: the name of each row, and its stages.
        letters: whether the first letter of each stage stands above its bar.

    Raises:
        ValueError: there is no row.
    """
    if not rows:
        raise ValueError("rows must hold at least one row of stages; got none")
    low_end, high_end = axis.get_xlim()
    for height, stages in enumerate(reversed(rows.values())):
        for stage in stages:
            low, high = max(stage.start, low_end), min(stage.end, high_end)
            if low >= high:
                continue
            name, hatch = LOOKS[stage.name]
            edge = figures.look(name)["color"]
            axis.barh(height, high - low, 0.5, low, facecolor="none", edgecolor=edge, hatch=hatch)
            if letters:
                axis.text((low + high) / 2, height + 0.3, stage.name[0].upper(), ha="center", fontsize=8)
    axis.set(ylim=(-0.4, len(rows) - 0.1), yticks=range(len(rows)))
    axis.set_yticklabels(list(reversed(rows)))
    axis.grid(visible=False)
