"""Rows of the stored tables, drawn anew in each run of the tests."""

import os

import numpy as np
import pandas as pd

SEED = "ROWS_SEED"  # environment variable


def drawn(table: pd.DataFrame, n_rows: int) -> list[pd.Series]:
    """Rows drawn at random. Of a test that fails pytest shows what is printed: how to draw the same rows again."""
    seed = int(os.environ.get(SEED) or np.random.default_rng().integers(10**9))
    chosen = np.random.default_rng(seed).choice(len(table), min(n_rows, len(table)), replace=False)
    print(f"{SEED}={seed} draws these rows again: {table.index[chosen].tolist()}")
    return [table.iloc[i] for i in chosen]
