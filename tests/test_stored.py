"""Every stored table is there, covers its grid, says what made it, and its function gives the same again."""

import itertools
import math
import os
import sys
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
import pytest
from attention_phases import stored
from attention_phases.positional_semantic import experiments
from attention_phases.sweeps import alone
from rows import drawn


@pytest.mark.parametrize("name", list(stored.TABLES))
def test_a_table_covers_its_grid_once(name: str) -> None:
    table = stored.load(name)
    grid = stored.TABLES[name].grid
    expected = pd.MultiIndex.from_product([list(values) for values in grid.values()], names=list(grid))
    assert table.set_index(list(grid)).index.sort_values().equals(expected.sort_values())
    missing = table.isna().any(axis=1)  # only where a column says why
    assert not missing.any() or (~table.loc[missing, "status"].isin(["solved", "crossing", "jump"])).all()


@pytest.mark.parametrize("name", list(stored.TABLES))
def test_a_table_says_what_made_it(name: str) -> None:
    lines = dict(line.split(": ", 1) for line in stored.provenance(name).splitlines())
    assert lines["command"] == f"python -m attention_phases.stored {name}"
    assert "dirty" not in lines["commit"]
    assert "numpy" in lines["versions"]


@pytest.mark.parametrize("name", ["finite-size", "alpha-scan", "limits"])
def test_minima_of_the_tables_are_converged(name: str) -> None:
    table = stored.load(name)
    assert table[["semantic_gradient_norm", "positional_gradient_norm"]].to_numpy().max() <= 1e-7


def test_minima_of_the_map_are_converged() -> None:
    table = stored.load("loss-map")
    assert table["semantic_converged"].all()
    assert table["positional_converged"].all()


def test_each_published_number_is_there_once_and_in_the_book_s_units() -> None:
    table = stored.published()
    assert not table.duplicated(["source", "branch", "omega", "alpha", "quantity"]).any()
    errors = table[table["quantity"].isin(["train_loss", "test_error", "epsilon_lin"])]
    assert errors["value"].between(1e-3, 5e-3).all()  # twice a test error would be more on the positional branch
    assert table.groupby("quantity").size()[["alpha_c", "alpha_l"]].to_list() == [9, 12]


def test_published_points_have_the_overlap_of_their_branch() -> None:
    theory, runs = stored.published_points("theory"), stored.published_points("experiment")
    assert len(theory) == 20
    assert len(runs) == 6
    assert np.isclose(theory["overlap"]["semantic", 2.0], 4 * 0.158561)
    assert runs["overlap"]["positional", 2.0] == runs["m"]["positional", 2.0] == 0.26184
    with pytest.raises(ValueError, match="source must be one of 'theory', 'experiment'; got 'fit'"):
        stored.published_points("fit")


@pytest.mark.skipif(
    "ATTENTION_PHASES_REFERENCE" not in os.environ,
    reason="ATTENTION_PHASES_REFERENCE names no folder of published numbers",
)
def test_the_published_numbers_are_those_of_the_paper_s_files() -> None:
    folder = Path(os.environ["ATTENTION_PHASES_REFERENCE"])
    thresholds = pd.read_csv(folder / "published_thresholds.csv").set_index(["threshold", "omega"])["alpha"]
    theory = pd.read_csv(folder / "published_theory_omega_0.3.csv").rename(columns={"minus_epsilon_t": "train_loss"})
    theory = theory.assign(train_loss=-theory["train_loss"], test_error=theory["two_epsilon_g"] / 2)
    made = pd.read_csv(folder / "published_experiments_omega_0.3.csv").rename(
        columns={"start": "branch", "epsilon_g": "test_error", "epsilon_t": "train_loss"}
    )
    made["theta"] = made["theta_over_sigma2"] / 4
    files = {"theory": theory, "experiment": made}
    for row in stored.published().query("source != 'fit'").to_dict("records"):
        if row["quantity"] in ("alpha_c", "alpha_l"):
            theirs = thresholds[row["quantity"], row["omega"]]
        else:
            file = files[row["source"]]
            place = (file["branch"] == row["branch"]) & np.isclose(file["alpha"], row["alpha"])
            theirs = file.loc[place, row["quantity"]].item()
        assert np.isclose(row["value"], theirs, rtol=1e-4), row


@pytest.mark.slow
def test_rows_of_minima_are_reproduced() -> None:
    """Where a valley holds several minima, rounding may choose; their losses differ by the spread of valley-floors."""
    differences = []
    for name, n_rows in {"finite-size": 3, "alpha-scan": 1, "loss-map": 3}.items():
        for stored_row in drawn(stored.load(name), n_rows):
            again = stored.recompute(name, stored_row)
            for column in ("semantic_train_loss", "positional_train_loss"):
                differences.append(abs(again[column] / stored_row[column] - 1))
    assert max(differences) <= stored.load("valley-floors")["spread"].max()
    assert np.median(differences) < 1e-6


@pytest.mark.slow
def test_rows_of_valley_floors_are_reproduced() -> None:
    for stored_row in drawn(stored.load("valley-floors"), 2):
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


NO_VALUES: list[Any] = [None, [20], np.ones(2), math.nan]  # of any axis


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for a stored table "small" of two rows, which is not computed yet."""
    table = stored.Table(
        experiments.informed_minima, {"d": (20,), "alpha": (1.0,), "seed": (0, 1), "teacher_query": ("gaussian",)}
    )
    monkeypatch.setitem(stored.TABLES, "small", table)
    monkeypatch.setattr(stored, "_IN_REPOSITORY", tmp_path / "data")
    return tmp_path / "data"


def test_a_small_table_is_computed_and_loaded(small: Path) -> None:
    path = stored.compute("small", str(small), n_jobs=1)
    assert path == small / "small.csv"
    table = stored.load("small")
    assert table["seed"].tolist() == [0, 1]
    direct = experiments.informed_minima(20, 1.0, 1, "gaussian")
    assert np.isclose(table["semantic_theta"][1], direct["semantic_theta"], rtol=1e-8)
    assert [file.name for file in small.iterdir()] == ["small.csv"]  # the store of the sweep and the locks are gone


def test_a_table_that_lacks_rows_is_refused(small: Path) -> None:
    path = stored.compute("small", small, n_jobs=1)
    path.write_text(path.read_text().rsplit("\n", 2)[0] + "\n")
    with pytest.raises(ValueError, match=r"table small must have 2 rows; .*small.csv has 1: python -m"):
        stored.load("small")


@pytest.mark.skipif(sys.platform != "linux", reason="it asks Linux for the name of an open file")
def test_a_table_is_replaced_as_a_whole_or_not_at_all(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = stored.compute("small", small, n_jobs=1).read_text()

    def fail(file: int) -> None:
        if Path(f"/proc/self/fd/{file}").readlink().suffix == ".csv":  # written, and not on disk
            raise OSError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(OSError, match="no space left"):
            stored.compute("small", small, n_jobs=1)
    assert (small / "small.csv").read_text() == before
    stored.compute("small", small, n_jobs=1)
    assert [file.name for file in small.iterdir()] == ["small.csv"]


def test_a_point_that_fails_leaves_no_table_but_all_other_points(
    small: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """And the next call computes that point alone."""
    monkeypatch.setattr(stored, "TABLES", {"small": stored.Table(fails_once, {"seed": (0, 1, 2)})})
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    failure = "table small is not complete: 1 of 3 points failed; the first is {'seed': 1}: RuntimeError: first time"
    with pytest.raises(RuntimeError, match=failure):
        stored.compute("small", small, n_jobs=1)
    assert not (small / "small.csv").exists()
    stored.compute("small", small, n_jobs=1)
    assert stored.load("small").columns.tolist() == ["seed", "double"]
    assert (tmp_path / "calls").read_text().splitlines() == ["0", "1", "2", "1"]


def fails_once(seed: int) -> dict[str, Any]:
    calls = Path(os.environ["CALLS"])
    with calls.open("a") as file:
        file.write(f"{seed}\n")
    if seed == 1 and calls.read_text().splitlines().count("1") == 1:
        raise RuntimeError("first time")
    return {"double": 2 * seed}


def test_a_table_is_computed_once_at_a_time(small: Path) -> None:
    small.mkdir()
    with (
        alone(small / "small.csv"),
        pytest.raises(ValueError, match=r"must not be in use by another sweep; .*small\.csv is"),
    ):
        stored.compute("small", small, n_jobs=1)


def test_points_of_other_code_are_not_taken_over(small: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The package's code is part of what an interrupted call leaves behind."""

    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    package = tmp_path / "package"
    package.mkdir()
    monkeypatch.setattr(stored, "__file__", str(package / "stored.py"))
    (package / "experiments.py").write_text("constant = 1")
    with monkeypatch.context() as patch:
        patch.setattr(pd.DataFrame, "to_csv", interrupt)
        with pytest.raises(KeyboardInterrupt):
            stored.compute("small", small, n_jobs=1)
    (package / "experiments.py").write_text("constant = 2")
    with pytest.raises(ValueError, match=r"store must hold this sweep's points; .* has version"):
        stored.compute("small", small, n_jobs=1)
    (package / "experiments.py").write_text("constant = 1")
    assert stored.compute("small", small, n_jobs=1).exists()


def test_a_row_of_whole_numbers_may_come_as_floats(small: Path) -> None:
    row = {"d": 20.0, "alpha": 1.0, "seed": np.float64(1), "teacher_query": "gaussian"}
    direct = experiments.informed_minima(20, 1.0, 1, "gaussian")
    assert stored.recompute("small", row) == direct


@pytest.mark.parametrize(
    ("axis", "value"),
    [
        *itertools.product(["d", "alpha", "seed", "teacher_query"], NO_VALUES),
        *itertools.product(["d", "seed"], [20.7, "20"]),
        ("alpha", "20"),
        ("teacher_query", 20.7),
    ],
)
def test_a_row_with_an_unfit_value_is_refused(axis: str, value: Any, small: Path) -> None:
    row = {"d": 20, "alpha": 1.0, "seed": 1, "teacher_query": "gaussian"} | {axis: value}
    with pytest.raises(ValueError, match=rf"row\['{axis}'\] must be a value of type"):
        stored.recompute("small", row)


@pytest.mark.parametrize("row", ["abc", None, 3, [20, 1.0, 1, "gaussian"]])
def test_what_is_no_row_is_refused(row: Any) -> None:
    with pytest.raises(ValueError, match="row must be a row of table finite-size; got"):
        stored.recompute("finite-size", row)
    with pytest.raises(ValueError, match=r"row\['d'\] must be a value of type int; got None"):
        stored.recompute("finite-size", {"alpha": 1.5, "seed": 1, "teacher_query": "gaussian"})


def test_unfit_places_and_counts_are_refused_and_leave_nothing(
    small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "file"
    file.touch()
    for folder in (file, 3, None):
        with pytest.raises(ValueError, match="folder must be the path of a folder"):
            stored.compute("small", cast("Any", folder))
    with pytest.raises(ValueError, match="n_jobs must be"):
        stored.compute("small", small, n_jobs=0)
    assert not list(small.iterdir())
    for arguments in (["--jobs", "0"], ["--jobs", "two"], ["--out", str(file)]):
        with pytest.raises(SystemExit):
            stored.main(["small", *arguments])
        assert f"{arguments[0]}" in capsys.readouterr().err.splitlines()[-1]


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
