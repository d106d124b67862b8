"""Facts about interactive figures, on a page and in a notebook."""

from __future__ import annotations

import base64
import html
import json
import math
import re
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import ipywidgets as widgets
import numpy as np
import pandas as pd
import pytest
from attention_phases import _page, explore, figures
from bs4 import BeautifulSoup

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Drawer:
    """Draws a line and remembers for which values it did."""

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []

    def __call__(self, fig: Figure, omega: float, kind: str = "semantic") -> str:
        self.calls.append({"omega": omega, "kind": kind})
        figures.theory(fig.subplots(), [0, 1], [0, omega], kind)
        return f"A line of kind {kind} rises to {omega}."


@pytest.fixture
def draw() -> Drawer:
    return Drawer()


@pytest.fixture
def static(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(_page.STATIC, "1")


@pytest.fixture
def live(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(_page.STATIC, raising=False)


def page(shown: Any) -> str:
    assert isinstance(shown, explore.Explored)
    return shown._repr_mimebundle_()["text/html"]


def box(shown: Any) -> widgets.VBox:
    assert isinstance(shown, widgets.VBox)
    return shown


@pytest.mark.usefixtures("static")
def test_a_page_has_a_frame_for_every_combination_with_the_last_slider_running_fastest(draw: Drawer) -> None:
    shown = page(explore.show(draw, "slope", omega=[0.0, 0.5, 1.0], kind=["semantic", "positional"]))
    stored = shown.partition("<template>")[2]
    assert re.findall('alt="([^"]*)"', stored) == [
        f"A line of kind {kind} rises to {omega}." for omega in (0.0, 0.5, 1.0) for kind in ("semantic", "positional")
    ]
    assert len(set(re.findall('src="([^"]*)"', stored))) == 6


@pytest.mark.usefixtures("static")
def test_a_page_shows_the_initial_frame_first(draw: Drawer) -> None:
    shown = page(explore.show(draw, "slope", omega=[0.0, 0.5, 1.0], kind=["semantic", "positional"],
                              initial={"omega": 0.5}))  # fmt: skip
    stored = re.findall('src="([^"]*)"', shown.partition("<template>")[2])
    first, second = re.findall('<img class="only-[^"]*" src="([^"]*)" alt="([^"]*)"', shown)
    alt = "A line of kind semantic rises to 0.5."
    assert (first, second) == ((stored[2], alt), (f"{stored[2]}#dark", alt))
    assert "at <span>ω = 0.5, kind = semantic</span>" in shown


@pytest.mark.usefixtures("static")
def test_sliders_have_names_and_values_in_words(draw: Drawer) -> None:
    shown = page(explore.show(draw, "slope", omega=np.linspace(-0.5, 0.5, 3), kind=["semantic", "positional"],
                              labels={"kind": "kind of line"}))  # fmt: skip
    assert dict(re.findall('<label for="([^"]*)">([^<]*)</label>', shown)) == {
        "slope-omega": "ω",
        "slope-kind": "kind of line",
    }
    sliders = re.findall(r'<input type="range" id="([^"]*)" .*?aria-valuetext="([^"]*)" data-texts="([^"]*)"', shown)
    assert [(name, text) for name, text, _ in sliders] == [
        ("slope-omega", "−0.5"),
        ("slope-kind", "semantic"),
    ]
    assert json.loads(html.unescape(sliders[0][2])) == ["−0.5", "0", "0.5"]


@pytest.mark.usefixtures("static")
def test_a_page_learns_whether_the_panels_of_the_frames_stand_side_by_side() -> None:
    def pair(fig: Figure, omega: float) -> str:
        fig.subplots(1, 2)
        return f"Two empty panels for omega {omega}."

    assert '<div class="ap-figure ap-panels ap-explore">' in page(explore.show(pair, "pair", omega=[0, 1]))
    assert '<div class="ap-figure ap-explore">' in page(explore.show(Drawer(), "slope", omega=[0, 1]))


@pytest.mark.usefixtures("static")
def test_a_number_that_is_almost_a_value_is_found(draw: Drawer) -> None:
    omegas = np.linspace(0, 1, 11)
    assert 0.3 not in omegas
    shown = page(explore.show(draw, "slope", omega=omegas, initial={"omega": 0.3}))
    assert "at <span>ω = 0.3</span>" in shown


@pytest.mark.usefixtures("static")
def test_draw_gets_plain_numbers(draw: Drawer) -> None:
    explore.show(draw, "slope", omega=np.array([1, 2]))
    assert {type(call["omega"]) for call in draw.calls} == {int}


@pytest.mark.usefixtures("static")
def test_print_gets_the_initial_frame(draw: Drawer) -> None:
    shown = explore.show(draw, "slope", omega=[0.0, 1.0], initial={"omega": 1.0})
    assert isinstance(shown, explore.Explored)
    bundle = shown._repr_mimebundle_()
    assert draw.calls[-1]["omega"] == 1.0
    assert base64.b64decode(bundle["image/png"]).startswith(b"\x89PNG")
    assert bundle["text/plain"] == "Interactive figure slope: A line of kind semantic rises to 1.0."


@pytest.mark.usefixtures("static")
def test_data_can_be_downloaded(draw: Drawer) -> None:
    shown = page(explore.show(draw, "slope", omega=[0.0, 1.0], data=pd.DataFrame({"omega": [0, 1]})))
    csv = re.search(r'<a download="slope.csv" href="data:text/csv;base64,([^"]*)"', shown)
    assert csv is not None
    assert base64.b64decode(csv[1]).decode() == "omega\n0\n1\n"


@pytest.mark.usefixtures("live")
def test_a_notebook_draws_anew_when_a_slider_moves(draw: Drawer) -> None:
    omega, kind, frame = box(
        explore.show(draw, "slope", omega=[0.0, 0.5, 1.0], kind=["semantic", "positional"], initial={"omega": 0.5})
    ).children
    assert draw.calls == [{"omega": 0.5, "kind": "semantic"}]
    assert (omega.description, kind.description) == ("ω", "kind")
    omega.value = 1.0
    assert 'alt="A line of kind semantic rises to 1.0."' in frame.value
    kind.index = 1
    assert 'alt="A line of kind positional rises to 1.0."' in frame.value
    assert draw.calls[1:] == [{"omega": 1.0, "kind": "semantic"}, {"omega": 1.0, "kind": "positional"}]


@pytest.mark.usefixtures("live")
def test_a_notebook_has_a_link_to_the_data_that_looks_like_one_in_a_widget(draw: Drawer) -> None:
    shown = box(explore.show(draw, "slope", omega=[0.0, 1.0], data=pd.DataFrame({"omega": [0, 1]})))
    link = BeautifulSoup(shown.children[-1].value, "html.parser").a
    assert link is not None
    assert link["download"] == "slope.csv"
    assert base64.b64decode(str(link["href"]).removeprefix("data:text/csv;base64,")).decode() == "omega\n0\n1\n"
    assert "text-decoration:underline" in str(link["style"])  # JupyterLab's style for links ends where widgets begin


def test_a_notebook_draws_what_a_page_shows(draw: Drawer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(_page.STATIC, raising=False)
    frame = box(explore.show(draw, "slope", omega=[0.0, 1.0])).children[-1].value
    monkeypatch.setenv(_page.STATIC, "1")
    shown = page(explore.show(draw, "slope", omega=[0.0, 1.0]))
    drawn = re.search('src="([^"]*)"', frame)
    assert drawn is not None
    assert f'<img class="only-light" src="{drawn[1]}"' in shown


@pytest.mark.usefixtures("static")
def test_frames_that_weigh_too_much_are_refused(draw: Drawer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explore, "MAX_BYTES", 10_000)
    with pytest.raises(
        ValueError, match=r"the 4 frames of slope must weigh at most 0.01 MB; the first \d weigh 0.0\d MB"
    ):
        explore.show(draw, "slope", omega=[0.0, 1.0, 2.0, 3.0])
    assert len(draw.calls) < 4


@pytest.mark.usefixtures("static")
def test_fractions_are_shown_as_decimals(draw: Drawer) -> None:
    omega: Any = [Fraction(0), Fraction(1, 4)]
    assert "at <span>ω = 0.25</span>" in page(explore.show(draw, "slope", omega=omega, initial={"omega": 0.25}))


BAD: list[tuple[dict[str, Any], str]] = [
    ({}, "parameters must be at least one list of values"),
    ({"omega": []}, "omega must be a list of at least two finite numbers or texts"),
    ({"omega": [1]}, "omega must be a list of at least two finite numbers or texts"),
    ({"omega": 3}, "omega must be a list of at least two finite numbers or texts; got 3"),
    ({"omega": "ab"}, "omega must be a list of at least two finite numbers or texts; got 'ab'"),
    ({"omega": [1, None]}, "omega must be a list of at least two finite numbers or texts"),
    ({"omega": [True, False]}, "omega must be a list of at least two finite numbers or texts"),
    ({"omega": [0.1, 0.2, 0.1]}, "omega must have values that read differently; got 0.1 more than once"),
    ({"omega": [0, 1], "initial": {"omega": 2}}, "initial must give omega one of 0, 1; got 2"),
    ({"omega": [0, 1], "initial": {"alpha": 1}}, r"initial must name parameters \(omega\); got 'alpha'"),
    ({"omega": [0, 1], "labels": {"alpha": "a"}}, r"labels must name parameters \(omega\); got 'alpha'"),
    ({"omega": [0, math.nan]}, "omega must be a list of at least two finite numbers"),
    ({"omega": [0, 10**400]}, "omega must be a list of at least two finite numbers"),
    ({"omega": range(501)}, "parameters must have at most 500 combinations of values; got 501"),
    ({"omega": range(23), "kind": [str(n) for n in range(22)]}, "at most 500 combinations of values; got 506"),
    ({'a"b': [0, 1]}, """parameters must have names as in Python .* got 'a"b'"""),
    ({"omega": [0, 1], "initial": {"omega": None}}, "initial must give omega one of 0, 1; got None"),
    ({"omega": [0, 1], "initial": {"omega": [1]}}, r"initial must give omega one of 0, 1; got \[1\]"),
    ({"omega": [0, 1], "initial": 3}, "initial must be a dictionary from parameters; got 3"),
    ({"omega": [0, 1], "labels": {"omega": 3}}, "labels must give omega a text; got 3"),
    ({"omega": [0, 1], "labels": {3: "a", "b": "c"}}, r"labels must name parameters \(omega\); got 3"),
    ({"omega": [0, 1], "aspect": 0}, "aspect must be a number"),
    ({"omega": [0, 1], "data": 1}, "data must be a pandas DataFrame"),
]


@pytest.mark.parametrize("environment", ["static", "live"])
@pytest.mark.parametrize(("arguments", "message"), BAD)
def test_bad_arguments_are_named_before_anything_is_drawn(
    draw: Drawer, request: pytest.FixtureRequest, environment: str, arguments: dict[str, Any], message: str
) -> None:
    request.getfixturevalue(environment)
    with pytest.raises(ValueError, match=message):
        explore.show(draw, "slope", **arguments)
    assert not draw.calls


@pytest.mark.parametrize("environment", ["static", "live"])
def test_a_frame_without_alternative_text_is_refused(request: pytest.FixtureRequest, environment: str) -> None:
    request.getfixturevalue(environment)

    def silent(fig: Figure, omega: float) -> Any:
        fig.subplots()

    with pytest.raises(ValueError, match=r"the text that draw returns for \{'omega': 0\} must say .* got None"):
        explore.show(silent, "slope", omega=[0, 1])


@pytest.mark.usefixtures("static")
def test_frames_of_another_size_are_refused() -> None:
    def growing(fig: Figure, omega: float) -> str:
        fig.set_size_inches(6, 3 + omega)
        return "An empty figure that has grown."

    with pytest.raises(ValueError, match=r"draw must leave the figure's size as it is"):
        explore.show(growing, "slope", omega=[0, 1])


@pytest.mark.usefixtures("static")
def test_frames_with_a_text_that_is_cut_off_are_refused() -> None:
    def wide(fig: Figure, omega: float) -> str:
        fig.subplots().set_title("a title that is much too long " * round(1 + 4 * omega))
        return "An empty panel with a long title."

    with pytest.raises(ValueError, match="fig must hold all its texts"):
        explore.show(wide, "wide", omega=[0, 1])


def test_what_cannot_draw_is_refused() -> None:
    nothing: Any = None
    with pytest.raises(ValueError, match=r"^draw must be a function that draws into a figure; got None$"):
        explore.show(nothing, "slope", omega=[0, 1])


def test_a_name_that_is_no_slug_is_refused(draw: Drawer) -> None:
    with pytest.raises(ValueError, match=r"^name must be"):
        explore.show(draw, "A slope", omega=[0, 1])
