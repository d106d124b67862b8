"""Facts about figures: what is drawn, in which colours, and what a page gets of it."""

from __future__ import annotations

import base64
import importlib.util
import itertools
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from attention_phases import _page, figures
from attention_phases._style import CHAIN_LOOKS, DARK, DARK_PAPER, INK, LOOKS, PAPER, SHADES, Look
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_rgb
from matplotlib.text import Text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SENTENCE = "A line that rises from the origin."
TABLE = pd.DataFrame({"x": [0.0, 1.0], "y": [0.0, 1 / 3]})


def line() -> Figure:
    fig, ax = figures.subplots()
    figures.theory(ax, [0, 1], [0, 1], "semantic", band=[0.1, 0.1], label="theory")
    figures.experiment(ax, [0, 1], [0, 1], [0.1, 0.2], "positional", label="experiment")
    ax.legend()
    return fig


def bundle(fig: Figure) -> dict[str, str]:
    return figures.show(fig, "line", alt=SENTENCE, data=TABLE)._repr_mimebundle_()


def luminance(color: Any) -> float:
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(color)]
    return float(np.dot(linear, (0.2126, 0.7152, 0.0722)))


def contrast(one: Any, other: Any) -> float:
    """WCAG 2's contrast ratio."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


every_look = pytest.mark.parametrize("look", [*LOOKS.values(), *CHAIN_LOOKS.values(), *SHADES])


@every_look
def test_lines_stand_out_in_both_themes(look: Look) -> None:
    assert contrast(look.color, "#ffffff") >= 3
    assert contrast(DARK[look.color], DARK_PAPER) >= 3


@pytest.mark.parametrize("ink", [INK, "#000000"])
def test_text_stands_out_in_both_themes(ink: str) -> None:
    assert contrast(ink, "#ffffff") >= 4.5
    assert contrast(DARK[ink], DARK_PAPER) >= 4.5


def test_the_dark_ground_is_that_of_the_theme() -> None:
    theme = importlib.util.find_spec("sphinx_book_theme")
    if theme is None or theme.origin is None:
        pytest.skip("the book's theme is not installed")
    styles = next(Path(theme.origin).parent.rglob("sphinx-book-theme.css")).read_text(encoding="utf-8")
    grounds = re.findall(r"html\[data-theme=dark\]\{[^}]*--pst-color-background:(#\w+)", styles)
    assert grounds == [DARK_PAPER]


@pytest.mark.parametrize("family", [list(LOOKS.values()), list(CHAIN_LOOKS.values()), SHADES])
def test_curves_differ_without_their_colours(family: list[Look]) -> None:
    for one, other in itertools.combinations(family, 2):
        assert one.linestyle != other.linestyle
        assert one.marker != other.marker


def test_shades_grow_from_pale_to_strong_in_both_themes() -> None:
    for n in range(1, 6):
        shades = figures.shades(n)
        assert len(set(shades)) == n
        assert shades[-1].linestyle == "-"
        light = [contrast(shade.color, "#ffffff") for shade in shades]
        dark = [contrast(DARK[shade.color], DARK_PAPER) for shade in shades]
        assert light == sorted(light)
        assert dark == sorted(dark)


def test_drawing_changes_no_setting_of_matplotlib() -> None:
    before = dict(mpl.rcParams)
    bundle(line())
    fig, (left, right) = figures.subplots(1, 2)
    figures.heatmap(left, np.eye(2), label="attention")
    figures.plane(right, [0, 1], [0, 1, 2], np.ones((3, 2)), "loss", signed=True)
    figures.legend(fig)
    assert dict(mpl.rcParams) == before


def test_text_is_readable_at_the_width_of_the_page() -> None:
    fig = line()
    assert fig.get_size_inches()[0] == figures.WIDTH <= 6.5
    fig.draw_without_rendering()
    sizes = [float(text.get_fontsize()) for text in fig.findobj(Text) if isinstance(text, Text) and text.get_text()]
    assert sizes
    assert min(sizes) >= 10


@pytest.mark.parametrize(("rows", "columns", "aspect"), [(7, 1, 3), (1, 40, 0.05), (2, 1, 0.9), (1, 1, 0.6)])
def test_many_panels_get_a_figure_of_a_possible_form(rows: int, columns: int, aspect: float) -> None:
    fig, _ = figures.subplots(rows, columns)
    width, height = fig.get_size_inches()
    assert height / width == pytest.approx(aspect)


def test_a_value_that_is_not_a_number_leaves_a_gap() -> None:
    _, ax = figures.subplots()
    figures.theory(ax, [0, 1, 2], [1, np.nan, 3], "semantic")
    np.testing.assert_array_equal(ax.lines[0].get_ydata(), [1, np.nan, 3])


def test_a_band_reaches_from_below_to_above_the_line() -> None:
    _, ax = figures.subplots()
    figures.theory(ax, [0, 1, 2], [1, 2, 3], "semantic", band=[0.1, 0.2, 0.3])
    (region,) = ax.collections
    assert isinstance(region, PolyCollection)
    corners = {tuple(corner) for corner in np.asarray(region.get_paths()[0].vertices).round(12)}
    assert corners == {(0, 0.9), (1, 1.8), (2, 2.7), (0, 1.1), (1, 2.2), (2, 3.3)}


def test_error_bars_are_one_standard_error_each_way() -> None:
    _, ax = figures.subplots()
    figures.experiment(ax, [0, 1], [1, 2], [0.1, 0.2], "semantic")
    (container,) = ax.containers
    segments = container.lines[2][0].get_segments()
    np.testing.assert_allclose(segments, [[[0, 0.9], [0, 1.1]], [[1, 1.8], [1, 2.2]]])


def test_error_bars_may_have_unequal_halves() -> None:
    _, ax = figures.subplots()
    figures.experiment(ax, [0, 1], [1, 2], [[0.1, 0.2], [0.3, 0.4]], "semantic")
    (container,) = ax.containers
    segments = container.lines[2][0].get_segments()
    np.testing.assert_allclose(segments, [[[0, 0.9], [0, 1.3]], [[1, 1.8], [1, 2.4]]])


def test_bars_of_a_boundary_lie() -> None:
    _, ax = figures.subplots()
    figures.boundary(ax, [1, 2, np.nan], [0, 1, 2], [0.1, 0.2, 0.1], "semantic", label="line", marked=True)
    (container,) = ax.containers
    segments = container.lines[2][0].get_segments()
    np.testing.assert_allclose(segments[:2], [[[0.9, 0], [1.1, 0]], [[1.8, 1], [2.2, 1]]])
    assert container.lines[0].get_marker() == LOOKS["semantic"].marker


def test_on_a_plane_the_band_is_of_two_standard_errors_and_no_theme_changes_it() -> None:
    _, ax = figures.subplots()
    figures.boundary_on_plane(ax, [1, 2], [0, 1], [0.1, 0.2])
    (region,) = ax.collections
    assert isinstance(region, PolyCollection)
    corners = {tuple(corner) for corner in np.asarray(region.get_paths()[0].vertices).round(12)}
    assert corners == {(0.8, 0), (1.2, 0), (1.6, 1), (2.4, 1)}
    assert figures.ON_PLANE not in DARK


def test_a_place_has_a_band_of_two_standard_errors() -> None:
    _, ax = figures.subplots()
    figures.place(ax, 1.0, 0.1)
    (band,) = ax.patches
    assert band.get_extents().transformed(ax.transData.inverted()).intervalx == pytest.approx([0.8, 1.2])
    assert ax.lines[0].get_xdata() == pytest.approx([1, 1])


def test_points_without_a_known_error_have_no_bars() -> None:
    _, ax = figures.subplots()
    figures.experiment(ax, [0, 1], [1, 2], None, "published")
    assert not ax.containers[0].lines[2]


def test_one_legend_holds_each_label_once() -> None:
    fig, axes = figures.subplots(1, 2)
    for ax in axes:
        figures.theory(ax, [0, 1], [0, 1], "semantic", label="semantic")
    figures.theory(axes[1], [0, 1], [0, 1], "positional", label="positional")
    figures.legend(fig)
    assert [text.get_text() for text in fig.legends[0].get_texts()] == ["semantic", "positional"]


@pytest.mark.parametrize("signed", [False, True])
def test_the_numbers_on_a_matrix_stand_out_from_their_cells(signed: bool) -> None:
    _, ax = figures.subplots()
    matrix = np.linspace(-1 if signed else 0, 1, 64).reshape(8, 8)
    mesh = figures.heatmap(ax, matrix, signed=signed)
    assert [text.get_text() for text in ax.texts] == [f"{value:.2f}" for value in matrix.ravel()]
    for text, value in zip(ax.texts, matrix.ravel(), strict=True):
        assert contrast(text.get_color(), mesh.to_rgba(np.array([value]))[0][:3]) >= 4.5
        assert text.get_color() not in DARK


def test_the_first_row_of_a_matrix_is_on_top() -> None:
    _, ax = figures.subplots()
    figures.heatmap(ax, [[0, 0.5], [0.25, 1]], rows=["first", "second"])
    assert ax.yaxis_inverted()
    assert [label.get_text() for label in ax.get_yticklabels()] == ["first", "second"]
    assert (ax.texts[1].get_text(), ax.texts[1].get_position()) == ("0.50", (1.5, 0.5))


def test_matrices_share_one_scale_unless_told_otherwise() -> None:
    _, ax = figures.subplots()
    assert figures.heatmap(ax, [[0.4, 0.6]]).get_clim() == (0, 1)
    assert figures.heatmap(ax, [[-0.5, 0.2]], signed=True).get_clim() == (-0.5, 0.5)
    assert figures.heatmap(ax, [[0.4, 3]], limits=(0, 4)).get_clim() == (0, 4)


def test_a_large_matrix_is_stored_as_pixels_without_numbers() -> None:
    _, ax = figures.subplots()
    mesh = figures.heatmap(ax, np.eye(9))
    assert mesh.get_rasterized()
    assert not ax.texts


def test_a_plane_has_its_values_at_its_grid() -> None:
    fig, ax = figures.subplots()
    values = np.arange(6.0).reshape(3, 2)
    mesh = figures.plane(ax, [0, 1], [0, 1, 2], values, "loss", signed=True)
    np.testing.assert_array_equal(np.asarray(mesh.get_array()).reshape(3, 2), values)
    assert mesh.get_clim() == (-5, 5)
    assert [panel.get_ylabel() for panel in fig.axes] == ["", "loss"]


def test_a_text_that_leaves_the_figure_is_refused() -> None:
    fig, (_, right) = figures.subplots(1, 2)
    right.set_title("a title that is much too long for a panel that fills one half of the figure")
    with pytest.raises(ValueError, match=r"fig must hold all its texts; got one that goes .* beyond the right edge"):
        figures.show(fig, "cut", alt="two panels with nothing in them", data=TABLE)


def test_a_page_gets_both_themes_and_the_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(_page.STATIC, "1")
    html = bundle(line())["text/html"]
    light, dark = re.findall(r'<img class="only-(?:light|dark)" src="([^"]+)"', html)
    assert dark == f"{light}#dark"
    svg, csv = re.findall(r'<a download="line\.(?:svg|csv)" href="([^"]+)"', html)
    assert svg == light
    assert base64.b64decode(csv.partition(",")[2]).decode() == "x,y\n0,0\n1,0.3333333333\n"
    assert html.count(f'alt="{SENTENCE}" width="720" height="432" loading="lazy"') == 2
    for name in re.findall(r"<a [^>]*>([^<]*)</a>", html):
        assert f'aria-label="{name}: line"' in html


def test_a_notebook_gets_the_light_figure_on_white_paper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(_page.STATIC, raising=False)
    html = bundle(line())["text/html"]
    assert html.count("<img") == 1
    assert "#dark" not in html
    assert "background:white" in html


def test_print_gets_an_image_and_a_text() -> None:
    shown = bundle(line())
    assert base64.b64decode(shown["image/png"]).startswith(b"\x89PNG")
    assert shown["text/plain"] == f"Figure line: {SENTENCE}"


def test_a_page_learns_whether_panels_stand_side_by_side() -> None:
    for rows, columns, classes in [(2, 1, "ap-figure"), (1, 2, "ap-figure ap-panels")]:
        fig, axes = figures.subplots(rows, columns)
        figures.plane(axes[0], [0, 1], [0, 1], np.eye(2), "loss")  # its colour bar is no panel
        assert f'<div class="{classes}">' in bundle(fig)["text/html"]


def test_an_alternative_text_is_escaped() -> None:
    fig = line()
    shown = figures.show(fig, "line", alt='The "loss" falls & m < theta here.', data=TABLE)
    assert 'alt="The &quot;loss&quot; falls &amp; m &lt; theta here."' in shown._repr_mimebundle_()["text/html"]


def test_the_dark_theme_exchanges_every_colour_of_the_style() -> None:
    svg = _page.draw_svg(line(), "line").svg
    root = ET.fromstring(svg)
    rules = dict(re.findall(r"(?:^|\})([^{}]+)\{([^{}]+)", root.findtext(".//{*}style") or ""))
    assert root.get("id") == "dark"
    assert rules[":target"] == f"fill: {DARK[INK]}"
    styles = {name: style for name, style in rules.items() if name.startswith(".")}
    colors = {color for style in styles.values() for color in re.findall("#[0-9a-f]{6}", style)}
    assert {INK, PAPER, LOOKS["semantic"].color, LOOKS["positional"].color} <= colors <= set(DARK)
    for name, style in styles.items():
        if "#" in style:
            assert rules[f":target {name}"] == re.sub("#[0-9a-f]{6}", lambda found: DARK[found[0]], style)
    assert 'style="' not in svg


def test_paths_that_are_reused_take_their_colour_from_where_they_are_used() -> None:
    root = ET.fromstring(_page.draw_svg(line(), "line").svg)
    rules = dict(re.findall(r"\.(s\d+)\{([^{}]*)\}", root.findtext(".//{*}style") or ""))
    reused = {address[1:] for use in root.iterfind(".//{*}use") for address in use.attrib.values() if address[0] == "#"}
    markers = [path for path in root.iterfind(".//{*}defs/{*}path") if path.get("class")]
    assert markers
    assert {path.get("id") for path in markers} <= reused
    for path in markers:
        assert "#" not in rules[path.attrib["class"]]


def test_the_svg_has_no_date_and_no_comment() -> None:
    svg = _page.draw_svg(line(), "line").svg
    assert not re.search(r"<!--|<metadata|date", svg)


def test_the_same_figure_gives_the_same_bytes_in_every_process() -> None:
    program = "import test_figures as t; print(t.bundle(t.line()))"
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent), "PYTHONHASHSEED": "7"}
    run = [sys.executable, "-c", program]
    other = subprocess.run(run, env=environment, check=True, capture_output=True, encoding="utf-8").stdout
    assert other.strip() == str(bundle(line()))


@pytest.mark.parametrize("name", ["", "Line", "a line", "line.svg", "-line", "a--b", None])
def test_a_name_that_is_no_slug_is_refused(name: Any) -> None:
    with pytest.raises(ValueError, match=r"^name must be .* got"):
        figures.show(line(), name, alt=SENTENCE, data=TABLE)


@pytest.mark.parametrize("alt", ["", "A line", "line.png", "The picture in the file line.png is this", None])
def test_an_alternative_text_that_says_nothing_is_refused(alt: Any) -> None:
    with pytest.raises(ValueError, match=r"^alt must say in a sentence .* got"):
        figures.show(line(), "line", alt=alt, data=TABLE)


@pytest.mark.parametrize("data", [None, pd.DataFrame(), [[1, 2]]])
def test_a_figure_without_its_data_is_refused(data: Any) -> None:
    with pytest.raises(ValueError, match=r"^data must be a pandas DataFrame .* got"):
        figures.show(line(), "line", alt=SENTENCE, data=data)


def test_an_index_that_means_something_is_written() -> None:
    named = pd.DataFrame({"theta": [0.1]}, index=pd.Index([1.5], name="alpha"))
    assert _page.csv_table(named) == "alpha,theta\n1.5,0.1\n"


def anything(value: Any) -> Any:
    """The value, of a type that the checker does not look at."""
    return value


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda ax: figures.look("semantics"), "look must be one of 'semantic'"),
        (lambda ax: figures.shades(6), "n must be a whole number of at least 1 and at most 5; got 6"),
        (lambda ax: figures.blank(0), "aspect must be a number"),
        (lambda ax: figures.blank(1e-9), r"aspect must be a number in \[0.05, 3\]; got 1e-09"),
        (
            lambda ax: figures.theory(ax, [0, 1], [0, 1, 2], "mixed"),
            r"y must be a list of 2 real numbers; got shape \(3,\)",
        ),
        (lambda ax: figures.theory(ax, [0, 1], [0, 1j], "mixed"), r"y must be a list of 2 real numbers; got \[0, 1j\]"),
        (lambda ax: figures.theory(ax, anything([0, "a"]), [0, 1], "mixed"), "x must be a list of n real numbers"),
        (
            lambda ax: figures.theory(ax, [0, 1], [0, 1], "mixed", band=0.1),
            r"band must be a list of 2 .* got shape \(\)",
        ),
        (lambda ax: figures.experiment(ax, [0, 1], [0], None, "mixed"), "mean must be a list of 2 real numbers"),
        (lambda ax: figures.experiment(ax, [0, 1], [0, 1], [1], "mixed"), "standard_error must be a list of 2 real"),
        (lambda ax: figures.experiment(ax, [0], [0], [[1, 2], [1, 2]], "mixed"), "standard_error must be a list of 1"),
        (
            lambda ax: figures.experiment(ax, [0], [0], anything([[1], [1, 2]]), "mixed"),
            "standard_error must be a list of 1",
        ),
        (lambda ax: figures.boundary(ax, [0], [0], [1, 2], "mixed"), "standard_error must be a list of 1 real numbers"),
        (lambda ax: figures.boundary_on_plane(ax, [0], [0], [1, 2]), "standard_error must be a list of 1 real numbers"),
        (lambda ax: figures.place(ax, 0, -1), r"standard_error must be a number in \[0, inf\); got -1"),
        (lambda ax: figures.heatmap(ax, [[0.5]], limits=anything((0,))), r"limits must be a real array of shape \(2\)"),
        (lambda ax: figures.heatmap(ax, [[0.5]], limits=anything(("a", "b"))), "limits must be a real array"),
        (lambda ax: figures.heatmap(ax, [[0.5]], limits=(0, np.inf)), "limits must be finite"),
        (lambda ax: figures.heatmap(ax, [[0.5]], limits=(1, 0)), r"limits must be two numbers, the smaller one first"),
        (
            lambda ax: figures.heatmap(ax, [[0.5]], rows=["a", "b"]),
            r"rows must name all 1 rows of matrix; got \['a', 'b'\]",
        ),
        (
            lambda ax: figures.heatmap(ax, [[0.5, 0.5]], columns="ab"),
            "columns must name all 2 columns of matrix; got 'ab'",
        ),
        (lambda ax: figures.plane(ax, [0, 2, 1], [0, 1], np.ones((2, 3)), "loss"), "x must rise, or fall, from each"),
        (lambda ax: figures.plane(ax, [0, 1], [0, 0], np.ones((2, 2)), "loss"), "y must rise, or fall, from each"),
        (
            lambda ax: figures.show(anything(3), "line", alt=SENTENCE, data=TABLE),
            "fig must be a matplotlib Figure; got 3",
        ),
        (
            lambda ax: _page.csv_table(pd.DataFrame({"a": ["\ud800"]})),
            r"data must have texts that UTF-8 can write; got '\\ud800'",
        ),
        (lambda ax: figures.subplots(0, 1), "nrows must be a whole number"),
        (
            lambda ax: figures.heatmap(ax, [[0.5, 1.5]]),
            r"matrix must lie within limits \(0, 1\); got 0.5 to 1.5",
        ),
        (lambda ax: figures.heatmap(ax, [[0.5, np.nan]]), "matrix must be finite"),
        (lambda ax: figures.heatmap(ax, [0.5, 1]), "matrix must be a real array of shape"),
        (
            lambda ax: figures.plane(ax, [0, 1], [0, 1], [[1, 2]], "loss"),
            "values must be a real array of shape",
        ),
    ],
)
def test_bad_arguments_are_named(call: Any, message: str) -> None:
    _, ax = figures.subplots()
    with pytest.raises(ValueError, match=message):
        call(ax)
