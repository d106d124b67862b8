"""Interactive figures: a chapter says what to draw for which values, and the reader moves the sliders.

On a page of the book, the frames are drawn when the book is built and a small script shows the chosen one.
In a notebook with a kernel, the same sliders draw anew. Print, PDF and readers without JavaScript get one
frame.
"""

import base64
import itertools
import json
import math
import numbers
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from html import escape
from typing import Any

import ipywidgets as widgets
import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from attention_phases import _checks, _page, figures
from attention_phases._style import STYLE

MAX_BYTES = 1_500_000  # all frames of one figure; a page of the book may weigh twice that
MAX_FRAMES = 500
OTHERS = "The book's page on the web, with JavaScript on, has sliders for the others."

Value = str | float
Draw = Callable[..., str]


def show(
    draw: Draw,
    name: str,
    /,
    *,
    initial: Mapping[str, Value] | None = None,
    labels: Mapping[str, str] | None = None,
    aspect: float = 0.6,
    data: pd.DataFrame | None = None,
    **parameters: Iterable[Value],
) -> "Explored | widgets.VBox":
    """Show what `draw` draws for each combination of the parameters' values, with a slider a parameter.

    `draw(fig, **values)` draws into an empty figure, whose height over its width is `aspect`, and returns
    its text alternative, a sentence that says what is to be seen. A parameter is a list of at least two
    finite numbers or texts. `initial` gives values to start from; a parameter it leaves out starts from the first of
    its list. `labels` gives names to sliders; by default, the name of a Greek letter becomes the letter.
    `data` is a table to download. `name` is a slug.

    ValueError where one of them is unfit, or where there are more than 500 combinations, or where the frames of
    a page weigh more than 1.5 MB.
    """
    if not callable(draw):
        raise ValueError(f"draw must be a function that draws into a figure; got {_checks.shown(draw)}")
    _page.check_name(name)
    if not parameters:
        raise ValueError("parameters must be at least one list of values (omega=[0, 0.5, 1]); got none")
    sliders = _sliders(parameters, initial or {}, labels or {})
    csv = None if data is None else _page.csv_table(data)
    painter = _Painter(draw, name, aspect)
    return _static(painter, sliders, csv) if _page.is_static() else _live(painter, sliders, csv)


@dataclass(frozen=True)
class _Slider:
    parameter: str
    label: str
    choices: list[Value]
    texts: list[str]
    start: int  # index of the value that is shown first


@dataclass(frozen=True)
class _Painter:
    draw: Draw
    name: str
    aspect: float

    def figure(self, values: Mapping[str, Value]) -> tuple[Figure, str]:
        """Draw one frame; return it with its text alternative."""
        fig = figures.blank(self.aspect)
        size = fig.get_size_inches().copy()
        with mpl.rc_context(STYLE):
            alt = self.draw(fig, **values)
        _page.check_alt(f"the text that draw returns for {dict(values)}", alt)
        if not np.array_equal(size, fig.get_size_inches()):
            raise ValueError(f"draw must leave the figure's size as it is, {size}; got {fig.get_size_inches()}")
        figures.check_fits(fig)
        return fig, alt

    def frame(self, values: Mapping[str, Value]) -> tuple[_page.Drawing, str]:
        """Draw one frame as SVG; return it with its text alternative."""
        fig, alt = self.figure(values)
        return _page.draw_svg(fig, self.name), alt


def _sliders(
    parameters: Mapping[str, Iterable[Value]], initial: Mapping[str, Value], labels: Mapping[str, str]
) -> list[_Slider]:
    for argument, given in (("initial", initial), ("labels", labels)):
        if not isinstance(given, Mapping):
            raise ValueError(f"{argument} must be a dictionary from parameters; got {_checks.shown(given)}")
        unknown = [key for key in given if key not in parameters]
        if unknown:
            raise ValueError(
                f"{argument} must name parameters ({', '.join(parameters)}); got {_checks.shown(unknown[0])}"
            )
    for parameter, label in labels.items():
        if not isinstance(label, str):
            raise ValueError(f"labels must give {parameter} a text; got {_checks.shown(label)}")
    sliders = []
    for parameter, given_values in parameters.items():
        if not parameter.isidentifier():
            raise ValueError(f"parameters must have names as in Python (omega, n_samples); got {parameter!r}")
        values, texts = _values(parameter, given_values)
        start = 0
        if parameter in initial:
            wanted = initial[parameter]
            if not _is_value(wanted) or _text(wanted) not in texts:
                raise ValueError(
                    f"initial must give {parameter} one of {', '.join(texts)}; got {_checks.shown(wanted)}"
                )
            start = texts.index(_text(wanted))
        sliders.append(_Slider(parameter, labels.get(parameter, _label(parameter)), values, texts, start))
    frames = math.prod(len(slider.choices) for slider in sliders)
    if frames > MAX_FRAMES:
        raise ValueError(f"parameters must have at most {MAX_FRAMES} combinations of values; got {frames}")
    return sliders


def _values(parameter: str, given: Iterable[Value]) -> tuple[list[Value], list[str]]:
    wrong = f"{parameter} must be a list of at least two finite numbers or texts; got {_checks.shown(given)}"
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise ValueError(wrong)
    values = [value.item() if isinstance(value, np.generic) else value for value in given]
    if len(values) < 2 or not all(_is_value(value) for value in values):
        raise ValueError(wrong)
    texts = [_text(value) for value in values]
    for text in texts:
        if texts.count(text) > 1:
            raise ValueError(f"{parameter} must have values that read differently; got {text} more than once")
    return values, texts


def _is_value(value: object) -> bool:
    """Whether it can be a slider's value: a text, or a finite number no larger than a float can be."""
    if isinstance(value, str):
        return True
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number larger than any float
        return False


def _text(value: Value) -> str:
    return value if isinstance(value, str) else f"{float(value):g}".replace("-", "\N{MINUS SIGN}")


def _label(parameter: str) -> str:
    try:
        return unicodedata.lookup(f"GREEK SMALL LETTER {parameter}")
    except KeyError:
        return parameter.replace("_", " ")


def _live(painter: _Painter, sliders: list[_Slider], csv: str | None) -> widgets.VBox:
    controls = {
        slider.parameter: widgets.SelectionSlider(
            options=list(zip(slider.texts, slider.choices, strict=True)),
            index=slider.start,
            description=slider.label,
            continuous_update=False,
        )
        for slider in sliders
    }
    frame = widgets.HTML()

    def redraw(_change: object = None) -> None:
        frame.value = _page.picture(*painter.frame({name: control.value for name, control in controls.items()}))

    redraw()
    for control in controls.values():
        control.observe(redraw, names="value")
    links = [] if csv is None else [widgets.HTML(f"Download: {_csv_link(painter.name, csv)}")]
    return widgets.VBox([*controls.values(), frame, *links])


def _csv_link(name: str, csv: str) -> str:
    return _page.download_link(name, "data", "csv", _page.data_uri("text/csv", csv))


@dataclass(frozen=True, repr=False)
class Explored:
    """An interactive figure with all its frames: what `show` returns on a page of the book."""

    name: str
    alt: str
    html: str
    png: bytes

    def __repr__(self) -> str:
        return f"Interactive figure {self.name}: {self.alt}"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {
            "text/html": self.html,
            "image/png": base64.b64encode(self.png).decode(),
            "text/plain": repr(self),
        }


def _static(painter: _Painter, sliders: list[_Slider], csv: str | None) -> Explored:
    names = [slider.parameter for slider in sliders]
    combinations = list(itertools.product(*(slider.choices for slider in sliders)))
    frames, weight = [], 0
    for values in combinations:
        frames.append(painter.frame(dict(zip(names, values, strict=True))))
        weight += len(frames[-1][0].svg)
        if weight > MAX_BYTES:
            raise ValueError(
                f"the {len(combinations)} frames of {painter.name} must weigh at most {MAX_BYTES / 1e6:g} MB; "
                f"the first {len(frames)} weigh {weight / 1e6:.2f} MB: give fewer values or draw fewer points"
            )
    first = int(np.ravel_multi_index([s.start for s in sliders], [len(s.choices) for s in sliders]))
    drawing, alt = frames[first]
    state = ", ".join(f"{slider.label} = {slider.texts[slider.start]}" for slider in sliders)
    links = [_page.download_link(painter.name, "this frame", "svg", _page.svg_uri(drawing))]
    if csv is not None:
        links.append(_csv_link(painter.name, csv))
    stored = "".join(f'<img src="{_page.svg_uri(frame)}" alt="{escape(text)}">' for frame, text in frames)
    controls = "".join(_control(painter.name, slider) for slider in sliders)
    html = (
        f'<div class="{_page.classes(drawing)} ap-explore">'
        f'<fieldset class="ap-controls" hidden><legend>Choose values</legend>{controls}'
        f"</fieldset>{_page.picture(drawing, alt)}"
        f'<p class="ap-still">One frame, at <span>{escape(state)}</span>. {OTHERS}</p>'
        '<p class="ap-spoken" aria-live="polite"></p>'
        f'<p class="ap-links">Download: {", ".join(links)}</p><template>{stored}</template></div>'
    )
    fig, _ = painter.figure({slider.parameter: slider.choices[slider.start] for slider in sliders})
    fig.supxlabel(f"One frame, at {state}. {OTHERS}", fontsize=8)
    return Explored(painter.name, alt, html, _page.draw_png(fig))


def _control(name: str, slider: _Slider) -> str:
    """Return the HTML of a slider. The page's script finds the texts of its values in data-texts."""
    text, texts = escape(slider.texts[slider.start]), escape(json.dumps(slider.texts))
    element = f"{name}-{slider.parameter}"
    return (
        f'<div class="ap-control"><label for="{element}">{escape(slider.label)}</label>'
        f'<input type="range" id="{element}" min="0" max="{len(slider.texts) - 1}" value="{slider.start}" '
        f'autocomplete="off" aria-valuetext="{text}" data-texts="{texts}">'
        f'<output for="{element}" aria-live="off">{text}</output></div>'
    )
