"""Argument checks. Each names the argument, what it must be, and what it got."""

import math
import numbers
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from attention_phases._arrays import Array

LARGEST = 1e12  # no entry of an array may be larger: products of a dozen of them still fit into a float64
MOST = 2**31 - 1  # no count may be larger: BLAS and LAPACK count with 32 bits
_SHOWN = 80  # characters of a wrong value that an error message repeats


def shown(value: Any) -> str:
    """A short form of a wrong value, in one line, for an error message."""
    try:
        text = " ".join(repr(value).split())
    except Exception:  # a value of any type may come here, and a repr may fail: that of a very long int does
        return f"a value of type {type(value).__name__}"
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."


def _scalar(value: Any) -> Any:
    """The Python number in a number of any library, or None where it is not one real number."""
    try:
        raw = np.asarray(value)
        number = raw.item() if raw.ndim == 0 and raw.dtype.kind in "fiuO" and not np.ma.is_masked(value) else None
    except Exception:  # whatever the library that made the value raises: it is not a number
        return None
    return None if isinstance(number, bool) or not isinstance(number, numbers.Real) else number


def real(name: str, value: Any, low: float = -math.inf, high: float = math.inf, *, open_low: bool = False) -> float:
    """`value` as a finite float in [low, high] (or (low, high] with `open_low`), or a ValueError."""
    given = _scalar(value)
    try:
        number = math.nan if given is None else float(given)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number) or number < low or number > high or (open_low and number == low):
        left, right = "(" if open_low or low == -math.inf else "[", ")" if high == math.inf else "]"
        raise ValueError(f"{name} must be a number in {left}{low:g}, {high:g}{right}; got {shown(value)}")
    return number


def integer(name: str, value: Any, low: int, high: int | None = MOST) -> int:
    """`value` as an int in [low, high], or a ValueError. A float is refused even where it is whole."""
    given = _scalar(value)
    number = operator.index(given) if isinstance(given, numbers.Integral) else None
    if number is None or number < low or (high is not None and number > high):
        limits = f"of at least {low}" + ("" if high is None else f" and at most {high}")
        raise ValueError(f"{name} must be a whole number {limits}; got {shown(value)}")
    return number


def array(name: str, value: Any, shape: tuple[int | None, ...]) -> Array:
    """`value` as a float64 array of the given shape (None: any length >= 1), or a ValueError.

    No entry may be masked, infinite, not a number, or larger in size than `LARGEST`.
    """
    expected = "(" + ", ".join("any" if n is None else str(n) for n in shape) + ")"
    wrong = f"{name} must be a real array of shape {expected}"
    try:
        raw = np.asarray(value)
    except Exception as error:  # rows of unequal length; or what the library that made the value raises
        raise ValueError(f"{wrong}; got {shown(value)}") from error
    if raw.dtype.kind not in "fiu" or isinstance(value, bytearray):
        raise ValueError(f"{wrong}; got {shown(value)}")
    fits = raw.ndim == len(shape) and all(
        n >= 1 if m is None else n == m for n, m in zip(raw.shape, shape, strict=True)
    )
    if not fits:
        raise ValueError(f"{wrong}; got shape {raw.shape}")
    if np.ma.is_masked(value):
        raise ValueError(f"{name} must have no masked entry; got {shown(value)}")
    if not (raw.max() <= LARGEST and raw.min() >= -LARGEST):  # these two need no temporary array
        index = np.unravel_index(int(np.argmin((raw <= LARGEST) & (raw >= -LARGEST))), raw.shape)
        entry = f"{name}[{', '.join(map(str, index))}] = {raw[index]}"
        raise ValueError(f"{name} must be finite, with entries of size at most {LARGEST:g}; got {entry}")
    return raw.astype(np.float64, copy=False)


def instance(name: str, value: Any, kind: type) -> None:
    """A ValueError unless `value` is of the given kind."""
    if not isinstance(value, kind):
        raise ValueError(f"{name} must be a {kind.__name__}; got {shown(value)}")


def choice(name: str, value: Any, allowed: Sequence[str]) -> str:
    """`value` if it is one of the allowed words, or a ValueError."""
    if not isinstance(value, str) or value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, allowed))}; got {shown(value)}")
    return value


def generator(seed: Any, name: str = "seed", *, stream: int | None = None) -> np.random.Generator:
    """A NumPy generator from a whole number or a generator, or a ValueError.

    The same whole number gives other random numbers with each `stream` (None, 1, 2, ...), so that two functions that
    are given the same seed do not draw the same numbers.
    """
    if isinstance(seed, np.random.Generator):
        return seed
    try:
        number = integer(name, seed, 0, None)
    except ValueError:
        wrong = f"{name} must be a whole number of at least 0 or a NumPy Generator; got {shown(seed)}"
        raise ValueError(wrong) from None
    return np.random.default_rng(number if stream is None else [number, stream])


def seed(value: Any) -> int:
    """A seed as a whole number, for what must be drawn again and again alike: a generator gives its next one."""
    if isinstance(value, np.random.Generator):
        return int(value.integers(2**63))
    generator(value)
    return operator.index(_scalar(value))
