"""Draw the picture of the README, book/_static/cover.svg: four valleys, and which pair is the lowest.

The same as social-card.png is what social media show beside a link to a page.
"""

from pathlib import Path

import matplotlib as mpl
import numpy as np
from attention_phases import figures, stored
from attention_phases._style import PAPER, STYLE
from attention_phases.positional_semantic import Task, minimize_risk, risk_on_plane

STATIC = Path(__file__).parents[1] / "book" / "_static"
COVER, CARD = STATIC / "cover.svg", STATIC / "social-card.png"
CARD_SIZE = 1200, 630  # pixels, as social media want it


def main() -> None:
    """Write the picture."""
    data = Task().sample(400, 1.5, seed=0, teacher_query="orthonormal")
    students = minimize_risk(data, "positional"), minimize_risk(data, "semantic")
    plane = risk_on_plane(data, students[0].query, students[1].query, resolution=81)
    fig, (left, right) = figures.subplots(1, 2, aspect=0.48)

    excess = np.log10(plane.train_loss - plane.train_loss.min() + 1e-5)
    with mpl.rc_context(STYLE):
        left.contourf(plane.x, plane.y, excess, levels=np.arange(-5, -1.2, 0.2), cmap="viridis", extend="both")
    for name, point in (("positional", plane.first), ("semantic", plane.second)):
        for sign in (1, -1):
            marker = {"positional": "s", "semantic": "o"}[name]
            left.plot(*(sign * point), marker=marker, color="white", markeredgecolor="black", markersize=7)
        left.annotate(
            name, point, (0, 10), textcoords="offset points", ha="center", color="white", weight="bold", fontsize=8
        )
    left.set(aspect="equal", xticks=[], yticks=[], title="two kinds of minimum")
    left.grid(visible=False)

    scan = stored.load("alpha-scan").groupby("alpha")
    for name in ("positional", "semantic"):
        loss = scan[f"{name}_train_loss"].agg(["mean", "sem"])
        right.plot(loss.index, loss["mean"], **figures.look(name))
        figures.experiment(right, loss.index, loss["mean"], loss["sem"], name, label=name)
    right.set(title="with more data they cross", xlabel="sentences per dimension", ylabel="training loss")
    right.legend()
    with mpl.rc_context(STYLE | {"svg.hashsalt": "cover"}):
        fig.savefig(COVER, facecolor=PAPER, metadata={"Date": None})
        width = fig.get_size_inches()[0]
        fig.set_size_inches(width, width * CARD_SIZE[1] / CARD_SIZE[0])
        fig.suptitle("Phases of Attention", fontsize=18)
        fig.savefig(CARD, facecolor=PAPER, dpi=CARD_SIZE[0] / width, metadata={"Software": None})
    print(COVER, CARD)


if __name__ == "__main__":
    main()
