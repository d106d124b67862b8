"""From a drawn figure to the page: SVG for both themes, PNG, and HTML. `figures` and `explore` share it."""

import base64
import io
import os
import re
from dataclasses import dataclass
from html import escape

import matplotlib as mpl
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.legend import Legend

from attention_phases import _checks
from attention_phases._style import DARK, GRID, INK, PAPER, STYLE

STATIC = "ATTENTION_PHASES_STATIC"  # set by the book's build, whose pages have the book's CSS and no kernel
LINK = "color:var(--jp-content-link-color,revert);text-decoration:underline"  # JupyterLab shows it as text in a widget
PIXELS = 720  # width of a figure where the page has room for it


@dataclass(frozen=True)
class Drawing:
    """A figure as one SVG for both themes (`draw_svg`), its size in CSS pixels, and its panels side by side."""

    svg: str
    width: int
    height: int
    columns: int


def check_name(name: str) -> None:
    """Raise ValueError unless `name` is a slug."""
    if not isinstance(name, str) or not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name):
        raise ValueError(
            "name must be lower-case words and numbers joined by hyphens (attention-matrices); "
            f"got {_checks.shown(name)}"
        )


def check_alt(name: str, alt: str) -> None:
    """Raise ValueError, which calls it `name`, unless `alt` is a text of five words and not a file's name."""
    if not isinstance(alt, str) or len(alt.split()) < 5 or re.search(r"\w\.(png|svg|jpe?g|webp|gif|pdf)\b", alt):
        raise ValueError(
            f"{name} must say in a sentence (five words or more) what is to be seen; got {_checks.shown(alt)}"
        )


def csv_table(data: pd.DataFrame) -> str:
    """Return the table as CSV with 10 significant digits, without an index that only counts the rows."""
    if not isinstance(data, pd.DataFrame) or data.empty:
        raise ValueError(f"data must be a pandas DataFrame that is not empty; got {_checks.shown(data)}")
    counts = isinstance(data.index, pd.RangeIndex) and data.index.name is None
    csv = data.to_csv(index=not counts, float_format="%.10g", lineterminator="\n")
    lone = re.search("[\ud800-\udfff]", csv)  # half of a pair of code units, which UTF-8 cannot write
    if lone:
        raise ValueError(f"data must have texts that UTF-8 can write; got {lone[0]!r}")
    return csv


def draw_svg(fig: Figure, name: str) -> Drawing:
    """Draw the figure on a transparent ground, once for both themes.

    The SVG is in light colours, and in dark ones where its address ends in #dark. `name` seeds the ids inside
    it. The layout of the figure is fixed from then on.
    """
    for legend in fig.findobj(Legend):
        assert isinstance(legend, Legend)
        legend.get_frame().set(facecolor=PAPER, edgecolor=GRID, alpha=0.85)
    buffer = io.StringIO()
    with mpl.rc_context(STYLE | {"svg.hashsalt": name}):
        fig.draw_without_rendering()
        fig.set_layout_engine("none")
        fig.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None}, transparent=True)
    width, height = fig.get_size_inches()
    places = [place for ax in fig.axes if (place := ax.get_subplotspec())]  # a colour bar has none
    columns = max((place.get_gridspec().ncols for place in places), default=1)
    return Drawing(_two_themes(_compact(buffer.getvalue())), PIXELS, round(PIXELS * height / width), columns)


def _compact(svg: str) -> str:
    """Write the same in fewer bytes: coordinates to 0.01 pt, no metadata, no line breaks, no unused ids."""
    svg = re.sub(r"<!--.*?-->|<metadata>.*?</metadata>|<!DOCTYPE.*?>|<\?xml.*?\?>", "", svg, flags=re.DOTALL)
    used = set(re.findall(r"#([\w-]+)", svg))
    svg = re.sub(r' id="([^"]*)"', lambda found: found[0] if found[1] in used else "", svg)
    svg = re.sub(r'(?<= )(d|x|y|points)="[^"]*"', lambda found: re.sub(r"(\.\d\d)\d+| *\n", r"\1", found[0]), svg)
    return re.sub(r">\s+<", "><", svg).strip()


def _two_themes(svg: str) -> str:
    """Write styles as classes, which have dark colours where the root (#dark) is the target of the address.

    A marker's path is drawn through `use`, which carries the same colours. A rule for the target reaches the
    `use` but not the path, so the path must have no colours of its own.
    """
    svg = re.sub(r'(<path id="[mC][^>]*style=")([^"]*)', lambda found: found[1] + _without_colors(found[2]), svg)
    classes: dict[str, str] = {}
    svg = re.sub(r' style="([^"]*)"', lambda found: f' class="{classes.setdefault(found[1], f"s{len(classes)}")}"', svg)
    rules = [f".{name}{{{style}}}" for style, name in classes.items()]
    rules.append(f":target{{fill: {DARK[INK]}}}")  # matplotlib gives black text no fill
    for style, name in classes.items():
        dark = re.sub(r"#[0-9a-f]{6}\b", lambda found: DARK.get(found[0], found[0]), style)
        if dark != style:
            rules.append(f":target .{name}{{{dark}}}")
    return svg.replace("</style>", "".join(rules) + "</style>", 1).replace("<svg ", '<svg id="dark" ', 1)


def _without_colors(style: str) -> str:
    return "; ".join(part for part in style.split("; ") if not re.match(r"(fill|stroke): #", part))


def draw_png(fig: Figure) -> bytes:
    """Draw the figure on white paper, for print and for notebooks that show no HTML."""
    buffer = io.BytesIO()
    with mpl.rc_context(STYLE):
        fig.savefig(buffer, format="png", facecolor="white", metadata={"Software": None})
    return buffer.getvalue()


def is_static() -> bool:
    """Tell whether the output goes to a built page of the book."""
    return bool(os.environ.get(STATIC))


def picture(drawing: Drawing, alt: str) -> str:
    """Return the HTML of the figure: both themes on a page of the book, else the light one on white paper."""
    uri = svg_uri(drawing)
    size = f'alt="{escape(alt)}" width="{drawing.width}" height="{drawing.height}"'
    if not is_static():
        return f'<img src="{uri}" {size} style="max-width:100%;height:auto;background:white">'
    lazy = f'{size} loading="lazy" decoding="async"'
    return f'<img class="only-light" src="{uri}" {lazy}><img class="only-dark" src="{uri}#dark" {lazy}>'


def classes(drawing: Drawing) -> str:
    """Return the classes of the element that holds the figure: panels side by side are too small on a narrow screen."""
    return "ap-figure ap-panels" if drawing.columns > 1 else "ap-figure"


def download_link(name: str, what: str, ending: str, uri: str) -> str:
    """Return the HTML of a link that saves the content of `uri` as a file called name.ending."""
    text = f"{what} ({ending.upper()})"
    style = "" if is_static() else f' style="{LINK}"'
    return f'<a download="{name}.{ending}" href="{uri}" aria-label="{text}: {name}"{style}>{text}</a>'


def svg_uri(drawing: Drawing) -> str:
    """Return a data: address of the drawing."""
    return data_uri("image/svg+xml", drawing.svg)


def data_uri(mime_type: str, text: str) -> str:
    """Return a data: address of the text."""
    return f"data:{mime_type};base64,{base64.b64encode(text.encode()).decode()}"
