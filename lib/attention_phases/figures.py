"""One look for every figure of the book, and the way a figure gets onto a page.

A chapter draws with `subplots`, `theory`, `experiment`, `heatmap` and `plane`, and ends with `show`. That
returns what the page displays: the figure for the light and for the dark theme, its text alternative, and
links to its SVG and data.

Colour, line style and marker together say who drew a curve (`look`), so that it can also be read in grey and
by colour-blind readers. Nothing here changes matplotlib's global settings.
"""

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import QuadMesh
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from attention_phases import _checks, _page
from attention_phases._arrays import Array
from attention_phases._style import CHAIN_LOOKS, LOOKS, PAPER, SHADES, STYLE, Look

WIDTH = 6.0  # inches: text of 10 pt comes out at 16.7 px where a page shows the figure 720 px wide
LONGEST_ANNOTATED = 8  # cells of a matrix with more rows or columns are too small for their numbers
LINEWIDTH = 1.8
CUT = 0.02  # inches that a text may reach beyond the figure: its box is a little larger than its ink
ON_PLANE = "#010101"  # ink on a coloured plane, which the dark theme leaves as it is
FLATTEST, TALLEST = 0.05, 3.0  # a figure's height over its width


def subplots(nrows: int = 1, ncols: int = 1, *, aspect: float | None = None, **options: Any) -> tuple[Figure, Any]:
    """Make a figure as wide as the book's text, and its axes.

    `aspect` is the height of the whole figure over its width; the default suits curves. `options` are those
    of `Figure.subplots` (sharex, sharey, squeeze, width_ratios, ...), which also says in what form the axes
    come.
    """
    rows, columns = _checks.integer("nrows", nrows, 1), _checks.integer("ncols", ncols, 1)
    if aspect is None:
        suitable = 0.6 if rows == columns == 1 else rows * (0.45 if columns == 1 else 0.95 / columns)
        aspect = min(max(suitable, FLATTEST), TALLEST)
    fig = blank(aspect)
    with mpl.rc_context(STYLE):
        return fig, fig.subplots(rows, columns, **options)


def blank(aspect: float = 0.6) -> Figure:
    """Make an empty figure of the book's width, unknown to pyplot; `aspect` is its height over its width."""
    ratio = _checks.real("aspect", aspect, FLATTEST, TALLEST)
    with mpl.rc_context(STYLE):
        fig = Figure(figsize=(WIDTH, WIDTH * ratio), layout="constrained")
    FigureCanvasAgg(fig)
    return fig


def look(name: str | Look) -> dict[str, Any]:
    """Return the keywords of `Axes.plot` for a line of this name (semantic, W0, ...: see `LOOKS` and `CHAIN_LOOKS`)."""
    style = _look(name)
    return {"color": style.color, "linestyle": style.linestyle, "linewidth": LINEWIDTH}


def shades(n: int) -> list[Look]:
    """Return looks for 1 to 5 curves in order, from pale to strong; the last is a solid line."""
    count = _checks.integer("n", n, 1, len(SHADES))
    return [SHADES[i] for i in np.linspace(len(SHADES) - 1, 0, count).round().astype(int)[::-1]]


def _look(name: str | Look) -> Look:
    if isinstance(name, Look):
        return name
    named = LOOKS | CHAIN_LOOKS
    return named[_checks.choice("look", name, list(named))]


def theory(
    ax: Axes,
    x: ArrayLike,
    y: ArrayLike,
    look: str | Look,
    *,
    band: ArrayLike | None = None,
    label: str | None = None,
) -> None:
    """Draw a line through `x`, `y` (n,) and, if `band` (n,) is given, the region y - band to y + band.

    A y that is not a number leaves a gap.
    """
    style, across = _look(look), _curve("x", x)
    height = _curve("y", y, across)
    half = None if band is None else _curve("band", band, across)
    ax.plot(across, height, color=style.color, linestyle=style.linestyle, linewidth=LINEWIDTH, label=label)
    if half is not None:
        ax.fill_between(across, height - half, height + half, color=style.color, alpha=0.2, linewidth=0)


def experiment(
    ax: Axes,
    x: ArrayLike,
    mean: ArrayLike,
    standard_error: ArrayLike | None,
    look: str | Look,
    *,
    label: str | None = None,
) -> None:
    """Draw points at `x`, `mean` (n,), with bars of one `standard_error`, or none where that is None.

    `standard_error` is (n,), or (2, n) for bars of unequal halves, down and up. A point or bar that is not a
    number is left out.
    """
    style, across = _look(look), _curve("x", x)
    height = _curve("mean", mean, across)
    error = None if standard_error is None else _bars(standard_error, across)
    ax.errorbar(
        across, height, error, color=style.color, marker=style.marker, linestyle="none", label=label,
        zorder=3, markersize=5, markerfacecolor=PAPER, markeredgewidth=1.3, elinewidth=1.3, capsize=3,
    )  # fmt: skip


def boundary(
    ax: Axes,
    x: ArrayLike,
    y: ArrayLike,
    standard_error: ArrayLike,
    look: str | Look,
    *,
    label: str | None = None,
    marked: bool = False,
    linewidth: float = LINEWIDTH,
) -> None:
    """Draw a line between phases, where `x` (n,) is what has a `standard_error` (n,): bars of that size lie.

    With `marked` each point has its marker. A point that is not a number leaves a gap.
    """
    style, across = _look(look), _curve("x", x)
    height, error = _curve("y", y, across), _curve("standard_error", standard_error, across)
    ax.errorbar(
        across, height, xerr=error, color=style.color, linestyle=style.linestyle, linewidth=linewidth, label=label,
        marker=style.marker if marked else "none", markersize=5, markerfacecolor=PAPER, markeredgewidth=1.3,
        elinewidth=1.0, capsize=2,
    )  # fmt: skip


def boundary_on_plane(ax: Axes, x: ArrayLike, y: ArrayLike, standard_error: ArrayLike) -> None:
    """Draw a line between phases over a coloured plane: white, with a dark band of two standard errors of `x` (n,)."""
    across = _curve("x", x)
    height, half = _curve("y", y, across), 2 * _curve("standard_error", standard_error, across)
    ax.fill_betweenx(height, across - half, across + half, color=ON_PLANE, linewidth=3.4)
    ax.plot(across, height, color="white", linewidth=2)


def place(
    ax: Axes, x: float, standard_error: float, look: str | Look = "published", *, label: str | None = None
) -> None:
    """Draw a vertical line at `x`, with a band of two standard errors."""
    middle, error = _checks.real("x", x), _checks.real("standard_error", standard_error, 0)
    style = _look(look)
    ax.axvspan(middle - 2 * error, middle + 2 * error, color=style.color, alpha=0.25, linewidth=0)
    ax.axvline(middle, color=style.color, linestyle=style.linestyle, linewidth=LINEWIDTH, label=label)


def _bars(standard_error: ArrayLike, x: Array) -> Array:
    """Return the lengths of bars, (n,) or (2, n)."""
    try:
        halves = np.asarray(standard_error)
    except ValueError:  # rows of unequal length
        halves = np.empty(0)
    if halves.ndim == 2 and len(halves) == 2:
        return np.array([_curve("standard_error", half, x) for half in halves])
    return _curve("standard_error", standard_error, x)


def _curve(name: str, values: ArrayLike, x: Array | None = None) -> Array:
    """Return real numbers (n,), as many as in `x`; NaN and infinity are allowed."""
    length = "n" if x is None else len(x)
    wrong = f"{name} must be a list of {length} real numbers"
    try:
        raw = np.asarray(values)
        real = raw.astype(float) if raw.dtype.kind in "fiuO" else None
    except (TypeError, ValueError):
        real = None
    if real is None:
        raise ValueError(f"{wrong}; got {_checks.shown(values)}")
    if real.ndim != 1 or (x is not None and len(real) != len(x)):
        raise ValueError(f"{wrong}; got shape {real.shape}")
    return real


def heatmap(
    ax: Axes,
    matrix: ArrayLike,
    *,
    signed: bool = False,
    limits: tuple[float, float] | None = None,
    rows: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    label: str | None = None,
) -> QuadMesh:
    """Draw a matrix as coloured squares, row one on top, with its numbers if it is at most 8 by 8.

    Colours run over `limits`: by default 0 to 1, as for attention, or with `signed` symmetrically about 0, in
    a map that diverges from there. An entry outside is refused. `rows` and `columns` name the cells; `label`
    adds a colour bar of that name.
    """
    values = _checks.array("matrix", matrix, (None, None))
    low, high = (_symmetric(values) if signed else (0.0, 1.0)) if limits is None else _limits(limits)
    for name, names, count in (("rows", rows, values.shape[0]), ("columns", columns, values.shape[1])):
        if names is not None and (isinstance(names, str) or len(names) != count):
            raise ValueError(f"{name} must name all {count} {name} of matrix; got {_checks.shown(names)}")
    slack = 1e-9 * (high - low)
    if values.min() < low - slack or values.max() > high + slack:
        raise ValueError(f"matrix must lie within limits ({low:g}, {high:g}); got {values.min():g} to {values.max():g}")
    annotated = max(values.shape) <= LONGEST_ANNOTATED
    mesh = ax.pcolormesh(
        values, vmin=low, vmax=high, cmap=_map(signed), rasterized=not annotated,
        edgecolors=PAPER if annotated else "none", linewidth=0.8 if annotated else 0,
    )  # fmt: skip
    ax.set(aspect="equal", xticks=[], yticks=[])
    ax.invert_yaxis()
    ax.grid(visible=False)
    ax.spines[:].set_visible(False)
    ax.tick_params(length=0)
    if rows is not None:
        ax.set_yticks(np.arange(values.shape[0]) + 0.5, rows)
    if columns is not None:
        ax.set_xticks(np.arange(values.shape[1]) + 0.5, columns)
    if annotated:
        for (row, column), value in np.ndenumerate(values):
            ink = _ink_on(mesh.to_rgba(np.array([value]))[0])
            ax.text(column + 0.5, row + 0.5, f"{value:.2f}", color=ink, ha="center", va="center")
    if label is not None:
        _colorbar(ax, mesh, label)
    return mesh


def _limits(limits: tuple[float, float]) -> tuple[float, float]:
    low, high = _checks.array("limits", limits, (2,)).tolist()
    if not low < high:
        raise ValueError(f"limits must be two numbers, the smaller one first; got {_checks.shown(limits)}")
    return low, high


def _ink_on(ground: Array) -> str:
    """Return white or near-black, whichever contrasts more (WCAG); the dark theme exchanges neither."""
    linear = np.where(ground <= 0.04045, ground / 12.92, ((ground + 0.055) / 1.055) ** 2.4)
    return "#ffffff" if linear[:3] @ (0.2126, 0.7152, 0.0722) < 0.179 else "#010101"


def plane(
    ax: Axes,
    x: ArrayLike,
    y: ArrayLike,
    values: ArrayLike,
    label: str,
    *,
    signed: bool = False,
    **options: Any,
) -> QuadMesh:
    """Draw a function on a grid: `values` (len(y), len(x)) as colours, with a colour bar named `label`.

    With `signed` the colours diverge from 0. `options` are those of `Axes.pcolormesh` (vmin and vmax, norm,
    ...).
    """
    across, up = _checks.array("x", x, (None,)), _checks.array("y", y, (None,))
    for name, places in (("x", across), ("y", up)):
        steps = np.diff(places)
        if not (steps > 0).all() and not (steps < 0).all():
            raise ValueError(f"{name} must rise, or fall, from each entry to the next; got {_checks.shown(places)}")
    grid = _checks.array("values", values, (len(up), len(across)))
    if signed and "norm" not in options:
        low, high = _symmetric(grid)
        options = {"vmin": low, "vmax": high} | options
    ax.grid(visible=False)
    mesh = ax.pcolormesh(across, up, grid, cmap=_map(signed), shading="nearest", rasterized=True, **options)
    _colorbar(ax, mesh, label)
    return mesh


def _colorbar(ax: Axes, mesh: QuadMesh, label: str) -> None:
    with mpl.rc_context(STYLE):
        ax.figure.colorbar(mesh, ax=ax, label=label, shrink=0.8).outline.set_visible(False)


def legend(fig: Figure, *, columns: int = 3) -> None:
    """Put one legend above all panels, with each label once."""
    entries: dict[str, Any] = {}
    for ax in fig.axes:
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    with mpl.rc_context(STYLE):
        fig.legend(entries.values(), entries.keys(), loc="outside upper center", ncols=columns)


def _symmetric(values: Array) -> tuple[float, float]:
    largest = float(np.abs(values).max()) or 1.0
    return -largest, largest


def _map(signed: bool) -> str:
    return "RdBu_r" if signed else "viridis"


@dataclass(frozen=True, repr=False)
class Shown:
    """A finished figure: what `show` returns and a page displays."""

    name: str
    alt: str
    drawing: _page.Drawing
    png: bytes
    csv: str

    def __repr__(self) -> str:
        return f"Figure {self.name}: {self.alt}"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        svg = _page.download_link(self.name, "figure", "svg", _page.svg_uri(self.drawing))
        csv = _page.download_link(self.name, "data", "csv", _page.data_uri("text/csv", self.csv))
        html = (
            f'<div class="{_page.classes(self.drawing)}">{_page.picture(self.drawing, self.alt)}'
            f'<p class="ap-links">Download: {svg}, {csv}</p></div>'
        )
        return {"text/html": html, "image/png": base64.b64encode(self.png).decode(), "text/plain": repr(self)}


def check_fits(fig: Figure) -> None:
    """Raise ValueError where a text is cut off at the figure's edge, as a title wider than its panel may be."""
    fig.draw_without_rendering()
    box, (width, height) = fig.get_tightbbox(), fig.get_size_inches()
    beyond = {"left": -box.x0, "right": box.x1 - width, "lower": -box.y0, "upper": box.y1 - height}
    edge = max(beyond, key=lambda edge: beyond[edge])
    if beyond[edge] > CUT:
        raise ValueError(
            f"fig must hold all its texts; got one that goes {beyond[edge]:.2f} inches beyond the {edge} edge"
        )


def show(fig: Figure, name: str, *, alt: str, data: pd.DataFrame) -> Shown:
    """Finish the figure, for the page or the notebook to display.

    `name` is a slug ("attention-matrices") and names the files that readers download; `alt` says in a
    sentence what is to be seen; `data` is the table behind the figure. ValueError where one of them is unfit,
    or where a text leaves the figure. The same calls give the same bytes.
    """
    if not isinstance(fig, Figure):
        raise ValueError(f"fig must be a matplotlib Figure; got {_checks.shown(fig)}")
    _page.check_name(name)
    _page.check_alt("alt", alt)
    csv = _page.csv_table(data)
    check_fits(fig)
    shown = Shown(name, alt, _page.draw_svg(fig, name), _page.draw_png(fig), csv)
    plt.close(fig)
    return shown
