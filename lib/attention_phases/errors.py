"""Errors that this package raises, and its warnings."""

from typing import Any


class ConvergenceError(RuntimeError):
    """An iteration stopped before it reached the accuracy that was asked for.

    Attributes:
        last: the last point of the iteration, in the solver's own result type, with ``converged=False``.
        residual: how far that point is from a solution, in the measure that the solver's docstring names.
    """

    def __init__(self, message: str, last: Any, residual: float) -> None:
        super().__init__(message)
        self.last = last
        self.residual = residual


class FailedPointWarning(UserWarning):
    """Some points of a sweep have no row but an error."""


class DownloadError(OSError):
    """A file could not be downloaded."""
