"""Colours, looks and matplotlib settings that every figure of the book shares."""

from dataclasses import dataclass
from typing import Any

from matplotlib.rcsetup import cycler

# Each colour has a counterpart for the dark theme. The dark figure is the light one with these exchanged, so
# no colour on the left may stand for two things. Pure black is matplotlib's own default for text.
PAPER, DARK_PAPER = "#fffffe", "#121212"  # the grounds of the theme's pages, white and this, to the eye
INK, GRID = "#1f2430", "#d9dde3"
DARK = {
    PAPER: DARK_PAPER,
    INK: "#dfe5ee",
    GRID: "#39414d",
    "#000000": "#dfe5ee",
    "#0b5fa5": "#6db6ff",
    "#c2500a": "#ff9d57",
    "#7b3fa0": "#cf9bf0",
    "#6a7280": "#9aa4b2",
    "#b0235f": "#ff8fb8",
    "#1d7a4c": "#63cf98",
    "#8a6500": "#e6c34d",
    "#00798c": "#4fcfe0",
    "#7f8fa9": "#66799b",
    "#5f7396": "#8496b8",
    "#435a82": "#a4b4d2",
    "#2a416c": "#c5d1e8",
    "#122a55": "#e6edfa",
}


@dataclass(frozen=True)
class Look:
    """How a thing is drawn wherever it appears: a colour of `DARK`, a line style and a marker."""

    color: str
    linestyle: str | tuple[float, tuple[float, ...]]
    marker: str


LOOKS = {  # of Part I
    "semantic": Look("#0b5fa5", "-", "o"),
    "positional": Look("#c2500a", (0, (5, 2)), "s"),
    "mixed": Look("#7b3fa0", (0, (6, 2, 1, 2)), "D"),
    "uninformed": Look("#6a7280", (0, (1, 1.5)), "v"),
    "random": Look("#b0235f", (0, (3, 1, 1, 1, 1, 1)), "P"),
    "linear baseline": Look("#1d7a4c", (0, (8, 2, 2, 2, 2, 2)), "^"),
    "published": Look(INK, (0, (1, 3)), "x"),
    "teacher": Look("#8a6500", (0, (2, 1)), "*"),
    "student": Look("#00798c", (0, (10, 3)), "h"),
}

CHAIN_LOOKS = {  # of Part II: beside each other in a figure they differ, beside Part I's they may not
    "flow": Look("#0b5fa5", "-", "o"),
    "prediction": Look("#c2500a", (0, (5, 2)), "s"),
    "gradient descent": Look("#b0235f", (0, (3, 1, 1, 1, 1, 1)), "P"),
    "level": Look("#6a7280", (0, (1, 3)), "x"),
    "W0": Look("#00798c", (0, (10, 3)), "h"),
    "W1": Look("#1d7a4c", (0, (8, 2, 2, 2)), "^"),
    "WQ": Look("#8a6500", (0, (2, 1)), "*"),
    "WK": Look("#7b3fa0", (0, (1, 1.5)), "v"),
}

SHADES = [
    Look("#7f8fa9", (0, (1, 1.5)), "v"),
    Look("#5f7396", (0, (3, 1, 1, 1)), "^"),
    Look("#435a82", (0, (3, 2)), "D"),
    Look("#2a416c", (0, (7, 2)), "s"),
    Look("#122a55", "-", "o"),
]

STYLE: Any = {  # an argument of matplotlib.rc_context
    "axes.axisbelow": True,
    "axes.edgecolor": INK,
    "axes.facecolor": "none",
    "axes.formatter.use_mathtext": True,
    "axes.grid": True,
    "axes.labelcolor": INK,
    "axes.prop_cycle": cycler(
        color=[look.color for look in LOOKS.values()], linestyle=[look.linestyle for look in LOOKS.values()]
    ),
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 10,
    "figure.facecolor": "none",
    "font.size": 10,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "image.cmap": "viridis",
    "savefig.dpi": 200,
    "svg.fonttype": "path",
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
}
