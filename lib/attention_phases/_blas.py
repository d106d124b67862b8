"""Linear algebra on one thread."""

import functools
import threading
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import scipy.linalg  # noqa: F401  (brings SciPy's own pool, which the controller has to see)
from threadpoolctl import ThreadpoolController

_P = ParamSpec("_P")
_R = TypeVar("_R")
_POOLS = ThreadpoolController()
_ALONE = threading.RLock()


def one_thread(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Run a function with one BLAS thread.

    NumPy and SciPy each bring a pool of BLAS threads, and the two wait for each other. With one thread the digits of a
    result do not depend on the number of cores either.

    The pools belong to the process. So Python threads take turns: where two calls overlapped, the first to end would
    lift the limit of the other. To compute in parallel, use processes.
    """

    @functools.wraps(function)
    def limited(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        with _ALONE, _POOLS.limit(limits=1, user_api="blas"):
            return function(*args, **kwargs)

    return limited
