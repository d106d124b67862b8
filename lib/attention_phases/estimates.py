"""A number with its error."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Estimate:
    """A value and the standard error of its computation (not of a fit to nature)."""

    value: float
    standard_error: float
