"""What a threshold in alpha is, what every search for one is asked, and how it ends where there is none.

The standard error is that of the threshold, from the scatter of independent randomisations of the nodes.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from attention_phases import _checks
from attention_phases.errors import ConvergenceError
from attention_phases.estimates import Estimate
from attention_phases.positional_semantic.branches import Clock, OutOfTimeError
from attention_phases.positional_semantic.teacher_student import Seed, Task
from attention_phases.positional_semantic.threshold_search import FINEST, SEARCHES

Range = tuple[float, float]

CLEAR = 5.0  # by so many errors two numbers must differ to be told apart with few nodes


@dataclass(frozen=True)
class Threshold(Estimate):
    """A threshold in alpha.

    Attributes:
        value, standard_error: of alpha. The standard error is that of the averages, with what the last step of the
            search may have left; of errors of the replica-symmetric theory nothing is known here.
        kind: "crossing" (two losses are equal), "jump" (the global minimum changes, and the test error with it), "fold"
            (the branch turns back), "vanishes" (its overlaps go to zero), or "exchange" (another branch joins it).
    """

    kind: str


class NoThresholdError(ValueError):
    """There is no such threshold in the range of alpha that was asked for.

    Attributes:
        winner: what has the lower loss (or error) in all of the range. "neither" where the search came to an alpha in
            the range at which neither branch exists. For the end of a branch, the branch, which has none; "not found"
            where the branch (or one that is a minimum) was not found anywhere in the range.
    """

    def __init__(self, message: str, winner: str) -> None:
        super().__init__(message)
        self.winner = winner


@dataclass(frozen=True, eq=False)
class Asked:
    """What is asked of every threshold, and the clock of the search."""

    limits: Range
    accuracy: float
    seeds: range
    clock: Clock

    @classmethod
    def of(cls, task: object, alpha_range: Range, accuracy: float, seed: Seed, time_limit: float) -> "Asked":
        """The arguments, checked."""
        _checks.instance("task", task, Task)
        low, high = (float(end) for end in _checks.array("alpha_range", alpha_range, (2,)))
        if not 0 < low < high:
            raise ValueError(f"alpha_range must be (low, high) with 0 < low < high; got {_checks.shown(alpha_range)}")
        number = _checks.seed(seed)
        return cls(
            limits=(low, high),
            accuracy=_checks.real("accuracy", accuracy, 1e-5, 0.1),
            seeds=range(SEARCHES * number, SEARCHES * (number + 1)),
            clock=Clock(_checks.real("time_limit", time_limit, 0, open_low=True)),
        )

    def accurate(self, threshold: Threshold) -> Threshold:
        """The threshold if it is as accurate as was asked for, else a ConvergenceError."""
        if threshold.standard_error > self.accuracy:
            raise ConvergenceError(
                f"the threshold at alpha = {threshold.value:.4g} did not reach accuracy {self.accuracy:g} with up to "
                f"{SEARCHES} times 2^{FINEST} nodes in time_limit = {self.clock.limit:g} s: standard error "
                f"{threshold.standard_error:.2g}",
                last=threshold,
                residual=threshold.standard_error,
            )
        return threshold

    @contextmanager
    def in_time(self) -> Iterator[None]:
        """One search: what it has found when its time is over goes into a ConvergenceError."""
        self.clock.restart()
        try:
            yield
        except OutOfTimeError:
            raise ConvergenceError(
                f"time_limit = {self.clock.limit:g} s is too short for this threshold; the search had come to "
                f"alpha = {self.clock.alpha:.4g}",
                last=None,
                residual=np.inf,
            ) from None
