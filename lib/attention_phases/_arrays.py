"""What annotations call arrays.

They are classes, as jaxtyping needs them: from NumPy 2.5 on, `numpy.typing.NDArray` is none.
"""

from typing import Any

import numpy as np

Array = np.ndarray[tuple[Any, ...], np.dtype[np.float64]]
IntArray = np.ndarray[tuple[Any, ...], np.dtype[np.int64]]
AnyArray = np.ndarray[tuple[Any, ...], np.dtype[Any]]
