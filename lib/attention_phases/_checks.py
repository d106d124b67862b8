"""Argument checks. Each names the argument, what it must be, and what it got."""

import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

_SHOWN = 80  # characters of a wrong value that an error message repeats


def shown(value: Any) -> str:
    """A short form of a wrong value, for an error message."""
    text = repr(value)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."


def real(name: str, value: Any, low: float = -math.inf, high: float = math.inf, *, open_low: bool = False) -> float:
    """`value` as a finite float in [low, high] (or (low, high] with `open_low`), or a ValueError."""
    bounds = ("(" if open_low or low == -math.inf else "[") + f"{low:g}, {high:g}" + (")" if high == math.inf else "]")
    wrong = f"{name} must be a number in {bounds}; got {shown(value)}"
    if isinstance(value, bool | np.bool_ | str | bytes) or np.iscomplexobj(value) or np.ndim(value) != 0:
        raise ValueError(wrong)
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(wrong) from None
    if not math.isfinite(number) or number < low or number > high or (open_low and number == low):
        raise ValueError(wrong)
    return number


def integer(name: str, value: Any, low: int, high: int | None = None) -> int:
    """`value` as an int in [low, high], or a ValueError. A float is refused even where it is whole."""
    wrong = f"{name} must be a whole number of at least {low}" + ("" if high is None else f" and at most {high}")
    wrong += f"; got {shown(value)}"
    if isinstance(value, bool | np.bool_):
        raise ValueError(wrong)
    try:
        number = operator.index(value)
    except TypeError:
        raise ValueError(wrong) from None
    if number < low or (high is not None and number > high):
        raise ValueError(wrong)
    return number


def array(name: str, value: Any, shape: tuple[int | None, ...], *, letters: str | None = None) -> NDArray[np.float64]:
    """`value` as a float64 array of the given shape (None: any length >= 1) with finite entries, or a ValueError."""
    expected = letters or "(" + ", ".join("any" if n is None else str(n) for n in shape) + ")"
    wrong = f"{name} must be a real array of shape {expected}"
    try:
        raw = np.asarray(value)
    except ValueError:
        raise ValueError(f"{wrong}; got rows of unequal length") from None
    if raw.dtype.kind not in "fiu":
        raise ValueError(f"{wrong}; got {shown(value)}")
    fits = raw.ndim == len(shape) and all(
        n >= 1 if m is None else n == m for n, m in zip(raw.shape, shape, strict=True)
    )
    if not fits:
        raise ValueError(f"{wrong}; got shape {raw.shape}")
    result = raw.astype(np.float64, copy=False)
    if not math.isfinite(result.sum()) and not np.isfinite(result).all():  # the sum needs no temporary array
        raise ValueError(f"{name} must be finite; it has {int((~np.isfinite(result)).sum())} entries that are not")
    return result


def choice(name: str, value: Any, allowed: Sequence[str]) -> str:
    """`value` if it is one of the allowed words, or a ValueError."""
    if not isinstance(value, str) or value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, allowed))}; got {shown(value)}")
    return value


def generator(seed: Any, name: str = "seed") -> np.random.Generator:
    """A NumPy generator from a whole number or a generator, or a ValueError."""
    if isinstance(seed, np.random.Generator):
        return seed
    return np.random.default_rng(integer(name, seed, 0))
