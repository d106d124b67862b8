"""What the tests of a problem set call: they run student code in limited time and say what is wrong with the result.

A message should help and must not give the answer away. It names what was found and its kind of error (a missing name,
a shape, a sign, a constant factor), never the expected value, and of its size only whether it is below one per cent.

Time limits need the interval timers of Linux and macOS; elsewhere (Windows) code runs without one. Such a timer cannot
stop a call that does not come back from compiled code. So where a submission is graded, what runs on after its limit
ends the kernel, on every system, and the submission is run again without it.
"""

import faulthandler
import os
import re
import signal
import threading
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import dropwhile, takewhile
from types import FrameType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from attention_phases import _checks
from attention_phases._arrays import Array

GRACE = 5.0
"""Seconds between a time limit and the end of a kernel that grades."""

_HAS_TIMER = hasattr(signal, "setitimer")
_OTTERS_LINE = re.compile(r"\s*(?:#.*|grader\b.*|notebook_\w+\(\)\.check.*|(?:from|import) otter\b.*)?")
_OTTERS_CELL = re.compile(r"from otter(?: import Notebook as notebook_|\.execute import Checker)")
_STUDENTS = "students_own"  # marks a submission's cells, lest what otter adds to them is taken for one
_LEFT_OUT = "from attention_phases import grading\ngrading.note_left_out()"


class _Kernel:
    """What the kernel that grades knows of itself."""

    limit: float | None = None  # while a cell runs: seconds after which it, or what a test does itself, ends the kernel
    left_out = False  # whether cells that ended the kernel before were left out
    nowhere = -1  # a file for what is written when the kernel is ended


class TooLongError(BaseException):
    """Code was stopped at its time limit. No `Exception`, so that ``except Exception`` around it does not catch it."""


def call(env: Mapping[str, Any], name: str, *arguments: Any, parts: int = 1, seconds: float = 5) -> Any:
    """The result of a function that a student has written.

    Args:
        env: the names that the student's notebook has defined.
        name: of the function.
        arguments: for the function. Arrays among them are handed on as copies.
        parts: how many results it must return; one is handed on as it is.
        seconds: after which it is stopped.

    Raises:
        AssertionError: there is no such function, it raises an error, runs too long, or returns nothing, or a wrong
            number of results.
    """
    function = answer(env, name)
    if not callable(function):
        raise AssertionError(f"`{name}` must be a function; it is {_kind(function)}.")
    try:
        with _time_limit(seconds):
            result = function(*(value.copy() if isinstance(value, np.ndarray) else value for value in arguments))
    except TooLongError:
        problem = f"`{name}` ran for {seconds:g} s and was stopped. Is there a loop that does not end?"
        raise AssertionError(problem) from None
    except (Exception, SystemExit) as error:
        line = next((at.line for at in reversed(traceback.extract_tb(error.__traceback__)[1:]) if at.line), None)
        where = f" at the line `{line}`" if line else ""
        raise AssertionError(f"`{name}` stopped{where} with {type(error).__name__}: {error}") from None
    if result is None or result is Ellipsis:
        raise AssertionError(f"`{name}` returned nothing. Are the three dots still there, or is the return missing?")
    if parts > 1 and not (hasattr(result, "__len__") and len(result) == parts):
        raise AssertionError(f"`{name}` must return {parts} results; it returned {_kind(result)}.")
    return result


def answer(env: Mapping[str, Any], name: str) -> Any:
    """What a student has stored under a name.

    Raises:
        AssertionError: there is no such name, or it still holds the placeholder.
    """
    if name not in env:
        message = f"`{name}` is not there. Was its cell run, and is the name spelt as in the question?"
        if _Kernel.left_out:
            message += " A cell that ended Python, or that could not be stopped, was left out."
        raise AssertionError(message)
    if env[name] is Ellipsis or env[name] is None:
        raise AssertionError(f"`{name}` is still empty. Put your answer in the place of the three dots.")
    return env[name]


def close(found: Any, expected: ArrayLike, *, rtol: float = 1e-6, atol: float = 0, what: str = "The result") -> None:
    """Compare numbers with those expected.

    Args:
        found: of the student; anything.
        expected: a number or an array.
        rtol: each entry may differ by ``atol + rtol |expected|``.
        atol: see rtol.
        what: begins the message.

    Raises:
        AssertionError: says the kind of error, and not what was expected.
    """
    wanted = np.asarray(expected, dtype=float)
    values = numbers(found, wanted.shape, what=what)
    if (np.abs(values - wanted) <= atol + rtol * np.abs(wanted)).all():
        return
    raise AssertionError(f"{what} {_difference(values, wanted, rtol, atol)}")


def numbers(found: Any, shape: tuple[int, ...], *, what: str = "The result") -> Array:
    """What a student returned, as an array of finite numbers of the given shape.

    Raises:
        AssertionError: it is none.
    """
    try:
        values = np.asarray(found)
        kind = values.dtype.kind
    except Exception:  # rows of unequal length
        kind = "O"
    if kind not in "fiu":
        raise AssertionError(f"{what} must consist of real numbers; it is {_kind(found)}.")
    if values.shape != shape:
        raise AssertionError(f"{what} must have the shape {shape}; it has {values.shape}.")
    if not np.isfinite(values).all():
        raise AssertionError(f"{what} has an entry that is infinite or not a number.")
    return values.astype(float)


def limit_cells(shell: Any, seconds: float) -> None:
    """From now on, stop each cell of a notebook after so many seconds, except those in which tests run.

    What has not stopped, a test among it, ends the kernel `GRACE` seconds later.

    Args:
        shell: the running IPython.
        seconds: the limit.
    """

    def begin(info: Any) -> None:
        _Kernel.limit = seconds
        _end_kernel_after(seconds)
        if _HAS_TIMER and not _is_otters(info.raw_cell or ""):
            signal.signal(signal.SIGALRM, _stop)
            signal.setitimer(signal.ITIMER_REAL, seconds)

    def end(_: Any) -> None:
        if _HAS_TIMER:
            signal.setitimer(signal.ITIMER_REAL, 0)
        faulthandler.cancel_dump_traceback_later()
        _Kernel.limit = None

    _Kernel.nowhere = os.open(os.devnull, os.O_WRONLY)
    shell.events.register("pre_run_cell", begin)
    shell.events.register("post_run_cell", end)


def note_left_out() -> None:
    """Let messages say that a cell of the submission, in the place of which this runs, was left out."""
    _Kernel.left_out = True


class CellLimit:
    """Otter's plugin that begins a submission with `limit_cells`, and runs it again where a cell has ended the kernel.

    Its configuration has the keys `seconds` and `name`, the name of the problem set.
    """

    def __init__(self, submission_path: str, submission_metadata: Mapping[str, Any], plugin_config: Mapping[str, Any]):
        self._seconds = _checks.real("seconds", plugin_config.get("seconds"), 0, open_low=True)
        self._name = plugin_config.get("name")

    def before_grading(self, config: Any) -> None:
        """Take the place of what runs notebooks: otter has no setting for it, and looks it up by its name."""
        from nbconvert import preprocessors

        preprocessors.ExecutePreprocessor = _restarting(preprocessors.ExecutePreprocessor)  # type: ignore[misc]

    def before_execution(self, submission: Any) -> Any:
        """The submission with one cell more, the first.

        Raises:
            OtterRuntimeError: it is another problem set.
        """
        found = submission.metadata.get("otter", {}).get("assignment_name", self._name)
        if found != self._name:
            from otter.run.run_autograder.utils import OtterRuntimeError

            raise OtterRuntimeError(f"This must be the problem set {self._name}; the notebook is of {found}.")
        for given in submission.cells:
            given.metadata[_STUDENTS] = given.cell_type == "code" and not _is_otters(given.source)
        source = f"from attention_phases.grading import limit_cells\nlimit_cells(get_ipython(), {self._seconds:g})"
        cell: dict[str, Any] = {
            "cell_type": "code",
            "metadata": {},
            "source": source,
            "outputs": [],
            "execution_count": None,
        }
        submission.cells.insert(0, type(submission)(cell))
        return submission


def _restarting(runner: Any) -> Any:
    """What runs a notebook once more without the cells that ended its kernel."""
    from nbclient.exceptions import DeadKernelError

    class Restarting(runner):  # type: ignore[misc]
        def preprocess_cell(self, cell: Any, resources: Any, index: int) -> Any:
            self._index = index
            return super().preprocess_cell(cell, resources, index)

        def preprocess(self, nb: Any, resources: Any = None, km: Any = None) -> Any:
            while True:
                try:
                    return super().preprocess(nb, resources, km)
                except DeadKernelError:
                    if not _leave_out(nb.cells, self._index):
                        raise

    return Restarting


def _leave_out(cells: list[Any], index: int) -> bool:
    """Leave out what ended the kernel: a student's cell, or those before otter's cell; say whether there are any."""

    def is_others(cell: Any) -> bool:
        return not cell.metadata.get(_STUDENTS)

    code = [cell for cell in cells[: index + 1] if cell.cell_type == "code"]
    suspects = [code[-1]] if not is_others(code[-1]) else []
    if not suspects:
        until = list(dropwhile(is_others, reversed(code)))
        suspects = list(takewhile(lambda cell: not is_others(cell), until))
    for cell in suspects:
        cell.source = _LEFT_OUT
        cell.metadata[_STUDENTS] = False
    return bool(suspects)


def _is_otters(source: str) -> bool:
    """Whether a cell holds nothing of a student's."""
    return bool(_OTTERS_CELL.match(source)) or all(map(_OTTERS_LINE.fullmatch, source.splitlines()))


def _end_kernel_after(seconds: float) -> None:
    """End this process, if it is a kernel that grades, so many seconds from now and `GRACE` more, whatever it does."""
    if _Kernel.limit is not None:
        faulthandler.dump_traceback_later(seconds + GRACE, exit=True, file=_Kernel.nowhere)


def _stop(_signal: int, _frame: FrameType | None) -> None:
    raise TooLongError("stopped at the time limit")


@contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    """Stop what runs inside after so many seconds; whatever else was timed goes on afterwards."""
    in_main = threading.current_thread() is threading.main_thread()
    _end_kernel_after(seconds)
    if _HAS_TIMER and in_main:
        handler = signal.signal(signal.SIGALRM, _stop)
        left, _ = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        if _HAS_TIMER and in_main:
            signal.setitimer(signal.ITIMER_REAL, left)
            signal.signal(signal.SIGALRM, handler)
        if _Kernel.limit is not None:
            _end_kernel_after(_Kernel.limit)


def _kind(value: Any) -> str:
    length = f" and length {len(value)}" if hasattr(value, "__len__") else ""
    return f"something of type {type(value).__name__}{length}"


def _difference(values: Array, wanted: Array, rtol: float, atol: float) -> str:
    """The kind of error, for values of the right shape that are not close."""
    if np.allclose(values, -wanted, rtol=rtol, atol=atol):
        return "has the wrong sign."
    if not values.any():
        return "is zero."
    weighty = np.abs(wanted) > max(atol, 1e-9 * np.abs(wanted).max())
    ratios = values[weighty] / wanted[weighty]
    if ratios.size > 1 and np.ptp(ratios) <= rtol * np.abs(ratios).max():
        return "is wrong by one constant factor. Look at the prefactors."
    right = np.isclose(values, wanted, rtol=rtol, atol=atol)
    if right.any():
        return f"is right in {right.sum()} of {right.size} entries, and wrong in the others."
    if (np.abs(values - wanted) < 0.01 * np.abs(wanted)).all():
        return "is off by less than one per cent: the idea may be right, the accuracy is not."
    return "is wrong, by one per cent or more."
