"""Every stored table is there, covers its grid, says what made it, and its function gives the same again."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from attention_phases import stored
from attention_phases.positional_semantic import experiments


@pytest.mark.parametrize("name", list(stored.TABLES))
def test_a_table_covers_its_grid_once(name: str) -> None:
    table = stored.load(name)
    grid = stored.TABLES[name].grid
    expected = pd.MultiIndex.from_product([list(values) for values in grid.values()], names=list(grid))
    assert table.set_index(list(grid)).index.sort_values().equals(expected.sort_values())
    assert table.notna().all(axis=None)


@pytest.mark.parametrize("name", list(stored.TABLES))
def test_a_table_says_what_made_it(name: str) -> None:
    lines = dict(line.split(": ", 1) for line in stored.provenance(name).splitlines())
    assert lines["command"] == f"python -m attention_phases.stored {name}"
    assert "dirty" not in lines["commit"]
    assert "numpy" in lines["versions"]


@pytest.mark.parametrize("name", ["finite-size", "alpha-scan"])
def test_minima_of_the_tables_are_converged(name: str) -> None:
    table = stored.load(name)
    assert table[["semantic_gradient_norm", "positional_gradient_norm"]].to_numpy().max() <= 1e-7


@pytest.mark.slow
def test_rows_of_minima_are_reproduced() -> None:
    """Where a valley holds several minima, rounding may choose; their losses differ by the spread of valley-floors."""
    differences = []
    for name, rows in {"finite-size": [5, 31, 60], "alpha-scan": [70]}.items():
        for row in rows:
            stored_row = stored.load(name).iloc[row]
            again = stored.recompute(name, stored_row)
            for column in ("semantic_train_loss", "positional_train_loss"):
                differences.append(abs(again[column] / stored_row[column] - 1))
    assert max(differences) <= stored.load("valley-floors")["spread"].max()
    assert np.median(differences) < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("row", [3, 16])
def test_rows_of_valley_floors_are_reproduced(row: int) -> None:
    stored_row = stored.load("valley-floors").iloc[row]
    again = stored.recompute("valley-floors", stored_row)
    assert abs(again["descents"] - stored_row["descents"]) <= 1
    assert abs(again["minima"] - stored_row["minima"]) <= 1  # rounding may take a descent over a ridge


@pytest.mark.slow
def test_a_row_of_random_starts_is_reproduced() -> None:
    """Adam has converged where the stored gradient is small; there the end point is a minimum, and the same one."""
    table = stored.load("random-starts")
    row = table[(table["method"] == "adam") & (table["alpha"] == 4.0)].nsmallest(1, "gradient_norm").iloc[0]
    again = stored.recompute("random-starts", row)
    assert np.isclose(again["train_loss"], row["train_loss"], rtol=1e-4)
    assert np.isclose(again["semantic_train_loss"], row["semantic_train_loss"], rtol=1e-6)


def test_a_small_table_is_computed_and_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = stored.Table(
        experiments.informed_minima, {"d": (20,), "alpha": (1.0,), "seed": (0, 1), "teacher_query": ("gaussian",)}
    )
    monkeypatch.setitem(stored.TABLES, "small", small)
    monkeypatch.setattr(stored, "_IN_REPOSITORY", tmp_path)
    path = stored.compute("small", tmp_path, n_jobs=1)
    assert path == tmp_path / "small.csv"
    table = stored.load("small")
    assert table["seed"].tolist() == [0, 1]
    direct = experiments.informed_minima(20, 1.0, 1, "gaussian")
    assert np.isclose(table["semantic_theta"][1], direct["semantic_theta"], rtol=1e-8)
    assert [file.name for file in tmp_path.iterdir()] == ["small.csv"]  # the store of the sweep is gone


def test_unknown_and_missing_tables_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ValueError, match=r"name must be one of .*; got 'nothing'"):
        stored.load("nothing")
    monkeypatch.setattr(stored, "_IN_REPOSITORY", tmp_path)
    monkeypatch.setattr(stored, "_IN_PACKAGE", tmp_path)
    with pytest.raises(FileNotFoundError, match=r"python -m attention_phases.stored finite-size computes it"):
        stored.load("finite-size")
    with pytest.raises(SystemExit):
        stored.main(["nothing"])
    assert "NAME must be one of" in capsys.readouterr().err
