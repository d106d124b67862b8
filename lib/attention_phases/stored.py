"""Stored tables: results that take too long for a chapter, each computed by one command that anyone can run again.

`load(name)` gives a table to a chapter. `python -m attention_phases.stored NAME ...` computes it anew and writes
NAME.csv; its first lines say which command, versions and commit made it.
"""

import argparse
import hashlib
import math
import os
import platform
import subprocess
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from itertools import takewhile
from pathlib import Path
from typing import Any

import pandas as pd

from attention_phases import _checks
from attention_phases.errors import FailedPointWarning
from attention_phases.positional_semantic import Task, experiments
from attention_phases.sweeps import alone, make_folder, sweep, sync_folder

_REPOSITORY = Path(__file__).parents[2]
_IN_REPOSITORY = _REPOSITORY / "book" / "data"
_IN_PACKAGE = Path(__file__).parent / "data"  # where an installed package has the same files


@dataclass(frozen=True)
class Table:
    """A function and the grid on which it is computed."""

    function: Callable[..., Mapping[str, Any]]
    grid: Mapping[str, Sequence[Any]]


TABLES = {
    "finite-size": Table(
        experiments.informed_minima,
        {"d": (100, 200, 400, 800, 1600, 3000), "alpha": (1.5,), "seed": range(24), "teacher_query": ("orthonormal",)},
    ),
    "alpha-scan": Table(
        experiments.informed_minima,
        {
            "d": (1000,),
            "alpha": (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0),
            "seed": range(16),
            "teacher_query": ("gaussian",),
        },
    ),
    "loss-map": Table(
        experiments.map_point,
        {
            "omega": tuple(step / 40 for step in range(20)),
            "alpha": tuple(step / 8 for step in range(1, 21)),
            "d": (1000,),
            "seed": range(3),
        },
    ),
    "valley-floors": Table(
        experiments.valley_floor,
        {"d": (200, 400, 800), "alpha": (1.5,), "seed": range(12), "valley": ("semantic", "positional")},
    ),
    "valley-lowest": Table(
        experiments.lowest_minimum,
        {"d": (400, 800, 1600), "alpha": (1.5,), "seed": range(16), "valley": ("positional", "semantic")},
    ),
    "limits": Table(
        experiments.informed_minima,
        {
            "d": (300, 600, 1200),
            "alpha": (0.5, 1.0, 2.0, 3.0),
            "seed": range(16),
            "teacher_query": ("orthonormal",),
        },
    ),
    "fixed-points": Table(
        experiments.fixed_point,
        {
            "omega": (0.0, 0.1, 0.2, 0.3, 0.4, 0.5),
            "alpha": (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0),
            "branch": ("semantic", "positional"),
        },
    ),
    "copies": Table(
        experiments.copies_apart,
        {
            "alpha": (0.8, 1.0, 1.25, 1.5, 2.0, 3.0),
            "branch": ("semantic", "positional"),
            "share": (1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0),
        },
    ),
    "thresholds": Table(
        experiments.threshold,
        {
            "quantity": ("critical", "linear_crossover"),
            "omega": tuple(step / 50 for step in range(31)),
            "sigma": (0.5,),
            "regularization": (0.01,),
            "attention": ("symmetric",),
            "accuracy": (0.0005,),
        },
    ),
    "branch-ends": Table(
        experiments.threshold,
        {
            "quantity": (
                "semantic_begins",
                "semantic_is_minimum_from",
                "positional_begins",
                "positional_is_minimum_to",
                "positional_ends",
                "positional_begins_again",
            ),
            "omega": tuple(step / 25 for step in range(16)),
            "sigma": (0.5,),
            "regularization": (0.01,),
            "attention": ("symmetric",),
            "accuracy": (0.005,),
        },
    ),
    "thresholds-sigma": Table(
        experiments.threshold,
        {
            "quantity": experiments.ENDS_AND_CROSSINGS,
            "omega": (0.3,),
            "sigma": (0.4, 0.45, 0.5, 0.55, 0.6, 0.7),
            "regularization": (0.01,),
            "attention": ("symmetric",),
            "accuracy": (0.005,),
        },
    ),
    "thresholds-lambda": Table(
        experiments.threshold,
        {
            "quantity": experiments.ENDS_AND_CROSSINGS,
            "omega": (0.3,),
            "sigma": (0.5,),
            "regularization": (0.001, 0.005, 0.01, 0.02, 0.03),
            "attention": ("symmetric",),
            "accuracy": (0.005,),
        },
    ),
    "thresholds-three-tokens": Table(
        experiments.threshold,
        {
            "quantity": ("critical", "linear_crossover"),
            "omega": (0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5),
            "sigma": (0.5,),
            "regularization": (0.01,),
            "attention": ("three tokens",),
            "accuracy": (0.01,),
        },
    ),
    "thresholds-averse": Table(
        experiments.threshold,
        {
            "quantity": experiments.ENDS_AND_CROSSINGS,
            "omega": (0.0, 0.1, 0.2, 0.3, 0.4, 0.5),
            "sigma": (0.5,),
            "regularization": (0.01,),
            "attention": ("averse",),
            "accuracy": (0.005,),
        },
    ),
    "rank-two-thresholds": Table(
        experiments.rank_two_threshold,
        {
            "quantity": tuple(experiments.RANK_TWO_THRESHOLDS),
            "omega": (0.0, 0.1, 0.2, 0.3, 0.4, 0.5),
            "accuracy": (0.01,),
        },
    ),
    "rank-two": Table(
        experiments.rank_two_point,
        {
            "omega": (0.0, 0.1, 0.2, 0.3, 0.4, 0.5),
            "alpha": (1.0, 1.25, 1.5, 2.0, 3.0, 4.5, 6.0),
            "branch": ("uninformed", "positional", "semantic", "mixed"),
        },
    ),
    "rank-two-early": Table(
        experiments.rank_two_point,
        {
            "omega": (0.0, 0.2, 0.4),
            "alpha": (0.02, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9),
            "branch": ("uninformed", "positional", "semantic", "mixed"),
        },
    ),
    "random-starts": Table(
        experiments.random_start,
        {
            "d": (300,),
            "alpha": (0.5, 1.0, 1.5, 2.0, 3.0, 4.0),
            "method": ("gradient_descent", "adam"),
            "seed": range(24),
        },
    ),
    "gamp-minima": Table(
        experiments.gamp_minimum,
        {"d": (400, 800, 1600), "alpha": (1.5,), "seed": range(16), "valley": ("positional", "semantic")},
    ),
    "gamp-steps": Table(experiments.gamp_steps, {"d": (500, 1000, 2000, 4000), "alpha": (2.0,), "seed": range(16)}),
}

_TEXTS = {  # corpus: tokens that are watched
    "wikitext-2": "'<unk>' the , . of newline first continued",
    "tinystories": "'<unk>' the , . a newline was little",
}
RECORDS = {  # tables of runs that have no grid, and what makes each of them, with a second one of the runs' events
    f"text-{corpus}": f"python -m attention_phases.focus_dilution train --corpus {corpus} "
    f"--queries {queries} --out text-{corpus}.csv"
    for corpus, queries in _TEXTS.items()
}
RECORDS |= {f"{name}-events": command for name, command in RECORDS.items()}
_DESCRIBE = (
    f"python -m attention_phases.focus_dilution describe --corpora {' '.join(_TEXTS)} "
    "--tokens 1000 50 100 200 300 500 2000 5000 10000 20000 --out text-chains.csv"
)
RECORDS |= {"text-chains": _DESCRIBE, "text-chains-rates": _DESCRIBE}
RECORDS["text-stability"] = (
    f"python -m attention_phases.focus_dilution stability --corpora {' '.join(_TEXTS)} --out text-stability.csv"
)


def load(name: str) -> pd.DataFrame:
    """The stored table of this name, a row a point of its grid, or of a run.

    Raises:
        ValueError: there is no table of this name, or its file has not a row for each point of the grid.
        FileNotFoundError: its file is missing; the message has the command that makes it.
    """
    path = _path(name)
    if name in RECORDS:  # a token may be anything: "#", "null"
        n_head = len(provenance(name).splitlines())
        return pd.read_csv(path, skiprows=n_head, keep_default_na=False, na_values=[""])
    table = pd.read_csv(path, comment="#")
    expected = math.prod(len(values) for values in TABLES[name].grid.values())
    if len(table) != expected:
        again = f"python -m attention_phases.stored {name} computes it again"
        raise ValueError(f"table {name} must have {expected} rows; {path} has {len(table)}: {again}")
    return table


def published() -> pd.DataFrame:
    """Numbers of the paper behind Part I that the book cites; the file's first lines say what they are.

    Columns source ("theory", "experiment", "fit"), branch, omega, alpha, quantity, value; a cell is empty where it says
    nothing. Thresholds alpha_c and alpha_l are values. Read off by hand, so there is nothing to compute again.
    """
    return pd.read_csv(_file("published"), comment="#")


def published_points(source: str) -> pd.DataFrame:
    """What `published` has of single points at omega = 0.3, a row for each branch and alpha.

    A column for each quantity, NaN where it is not cited (theta and m where they vanish), and `overlap`: theta/sigma^2
    on the semantic branch, m on the positional one.

    Args:
        source: "theory" or "experiment".
    """
    table = published()
    rows = table[
        (table["source"] == _checks.choice("source", source, ("theory", "experiment"))) & table["alpha"].notna()
    ]
    points = rows.pivot_table(index=["branch", "alpha"], columns="quantity", values="value")
    return points.assign(overlap=(points["theta"] / Task().sigma ** 2).fillna(points["m"]))


def provenance(name: str) -> str:
    """What made the stored table: command, versions and commit, a line each; of "published", whose numbers they are."""
    lines = (_file(name) if name == "published" else _path(name)).read_text(encoding="utf-8").splitlines()
    return "\n".join(line.removeprefix("# ") for line in takewhile(lambda line: line.startswith("#"), lines))


def recompute(name: str, row: Mapping[str, Any] | pd.Series) -> dict[str, Any]:
    """What the table's function gives now for a stored row, column by column; the axes are read from the row.

    Raises:
        ValueError: there is no table of this name, or the row lacks an axis or has a value of another kind in it.
    """
    table = TABLES[_checks.choice("name", name, list(TABLES))]
    if not isinstance(row, Mapping | pd.Series):
        raise ValueError(f"row must be a row of table {name}; got {_checks.shown(row)}")
    return dict(table.function(**{axis: _value(row, axis, type(values[0])) for axis, values in table.grid.items()}))


def _value(row: Mapping[str, Any] | pd.Series, axis: str, kind: type) -> Any:
    """The row's value on an axis, as the type that the grid has there; a whole number may come as a float."""
    given = row.get(axis)
    try:
        value = kind(given)
        same = bool(value == given)
    except (TypeError, ValueError, OverflowError):
        same = False
    if not same:
        raise ValueError(f"row[{axis!r}] must be a value of type {kind.__name__}; got {_checks.shown(given)}")
    return value


def compute(name: str, folder: str | os.PathLike[str], n_jobs: int = -1) -> Path:
    """Compute a table on all of its grid and write it to `folder`. An interrupted call is resumed by the next.

    Raises:
        ValueError: names the argument; also where another call computes the table, or began it with other code.
        RuntimeError: a point failed. No table is written; all others are kept, and the next call tries this one again.
    """
    table = TABLES[_checks.choice("name", name, list(TABLES))]
    if not isinstance(folder, str | os.PathLike) or ((place := Path(folder)).exists() and not place.is_dir()):
        raise ValueError(f"folder must be the path of a folder; got {_checks.shown(folder)}")
    make_folder("folder", place)
    store, path, part = (place / file for file in (f".{name}.jsonl", f"{name}.csv", f".{name}.csv"))
    head = "".join(f"# {line}\n" for line in origin(f"python -m attention_phases.stored {name}"))
    with alone(path):
        with warnings.catch_warnings():
            warnings.simplefilter("error", FailedPointWarning)
            try:
                rows = sweep(table.function, table.grid, store=store, n_jobs=n_jobs, version=_version())
            except FailedPointWarning as warning:
                raise RuntimeError(f"table {name} is not complete: {warning}") from None
        rows = rows.drop(columns="error")
        with part.open("w", encoding="utf-8", newline="\n") as file:
            file.write(head + rows.to_csv(index=False, float_format="%.9g", lineterminator="\n"))
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)  # at once: a reader finds the old table or the new one
        sync_folder(place)  # before the points go
        store.unlink()
    return path


def _version() -> str:
    """The package's version and a hash of its code, for points must not be mixed with those of older code."""
    package = Path(__file__).parent
    code = hashlib.sha256()
    for file in sorted(package.rglob("*.py")):
        code.update(f"{file.relative_to(package).as_posix()}\n".encode() + file.read_bytes())
    return f"{version('attention-phases')}, code {code.hexdigest()}"


def _path(name: str) -> Path:
    _checks.choice("name", name, [*TABLES, *RECORDS])
    if not (path := _file(name)).exists():
        command = RECORDS.get(name, f"python -m attention_phases.stored {name}")
        raise FileNotFoundError(f"table {name} is not there: {command} computes it")
    return path


def _file(name: str) -> Path:
    """NAME.csv in the repository, or else in the package."""
    path = _IN_REPOSITORY / f"{name}.csv"
    return path if path.exists() else _IN_PACKAGE / f"{name}.csv"


def origin(command: str, *more_packages: str) -> list[str]:
    """The lines that a stored table begins with: its command, and the commit and the versions that it is run with."""
    packages = ("attention-phases", "numpy", "scipy", *more_packages)
    commit = subprocess.run(
        ["git", "-C", str(_REPOSITORY), "describe", "--always", "--dirty"], capture_output=True, text=True, check=False
    ).stdout.strip()
    return [
        f"command: {command}",
        f"commit: {commit or 'not in a repository'}",
        f"versions: python {platform.python_version()}, " + ", ".join(f"{p} {version(p)}" for p in packages),
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line: compute the named tables, or all."""
    parser = argparse.ArgumentParser(prog="python -m attention_phases.stored", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"tables (default: all): {', '.join(TABLES)}")
    default = _IN_REPOSITORY if _IN_REPOSITORY.parent.exists() else Path("data")
    parser.add_argument("--out", type=Path, default=default, help=f"folder to write to (default: {default})")
    parser.add_argument("--jobs", type=int, default=-1, help="processes (default: one a core)")
    options = parser.parse_args(arguments)
    if options.jobs == 0:
        parser.error("--jobs must be a whole number other than 0; got 0")
    if options.out.exists() and not options.out.is_dir():
        parser.error(f"--out must be the path of a folder; got {options.out}")
    for name in options.names or TABLES:
        if name not in TABLES:
            parser.error(f"NAME must be one of {', '.join(TABLES)}; got {name}")
    for name in options.names or TABLES:
        print(compute(name, options.out, options.jobs))
    return 0


if __name__ == "__main__":
    sys.exit(main())
