"""Stored tables: results that take too long for a chapter, each computed by one command that anyone can run again.

`load(name)` gives a table to a chapter. `python -m attention_phases.stored NAME ...` computes it anew and writes
NAME.csv; its first lines say which command, versions and commit made it.
"""

import argparse
import platform
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pandas as pd

from attention_phases import _checks
from attention_phases.positional_semantic import experiments
from attention_phases.sweeps import sweep

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
    "valley-floors": Table(
        experiments.valley_floor,
        {"d": (200, 400, 800), "alpha": (1.5,), "seed": range(12), "valley": ("semantic", "positional")},
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
}


def load(name: str) -> pd.DataFrame:
    """The stored table of this name, a row a point of its grid.

    Raises:
        ValueError: there is no table of this name.
        FileNotFoundError: its file is missing; the message has the command that makes it.
    """
    return pd.read_csv(_path(name), comment="#")


def provenance(name: str) -> str:
    """What made the stored table: command, versions and commit, a line each."""
    lines = _path(name).read_text(encoding="utf-8").splitlines()
    return "\n".join(line.removeprefix("# ") for line in lines if line.startswith("#"))


def recompute(name: str, row: Mapping[str, Any] | pd.Series) -> dict[str, Any]:
    """What the table's function gives now for a stored row, column by column; the axes are read from the row."""
    table = TABLES[_checks.choice("name", name, list(TABLES))]
    point = {axis: type(values[0])(row[axis]) for axis, values in table.grid.items()}
    return dict(table.function(**point))


def compute(name: str, folder: Path, n_jobs: int = -1) -> Path:
    """Compute a table on all of its grid and write it to `folder`. An interrupted call is resumed by the next."""
    table = TABLES[_checks.choice("name", name, list(TABLES))]
    folder.mkdir(parents=True, exist_ok=True)
    store = folder / f".{name}.jsonl"
    head = "".join(f"# {line}\n" for line in _origin(name))
    rows = sweep(
        table.function, {axis: list(values) for axis, values in table.grid.items()}, store=store, n_jobs=n_jobs
    )
    path = folder / f"{name}.csv"
    path.write_text(head + rows.to_csv(index=False, float_format="%.9g", lineterminator="\n"), encoding="utf-8")
    store.unlink()
    return path


def _path(name: str) -> Path:
    _checks.choice("name", name, list(TABLES))
    for folder in (_IN_REPOSITORY, _IN_PACKAGE):
        if (folder / f"{name}.csv").exists():
            return folder / f"{name}.csv"
    raise FileNotFoundError(f"table {name} is not there: python -m attention_phases.stored {name} computes it")


def _origin(name: str) -> list[str]:
    packages = ("attention-phases", "numpy", "scipy")
    commit = subprocess.run(
        ["git", "-C", str(_REPOSITORY), "describe", "--always", "--dirty"], capture_output=True, text=True, check=False
    ).stdout.strip()
    return [
        f"command: python -m attention_phases.stored {name}",
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
    for name in options.names or TABLES:
        if name not in TABLES:
            parser.error(f"NAME must be one of {', '.join(TABLES)}; got {name}")
    for name in options.names or TABLES:
        print(compute(name, options.out, options.jobs))
    return 0


if __name__ == "__main__":
    sys.exit(main())
