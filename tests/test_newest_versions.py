"""What newer versions of our dependencies than the locked ones do otherwise, where this is known."""

import subprocess
import sys

NO_CLASS = """
import importlib, pkgutil
from typing import Any, TypeVar
import numpy, numpy.typing
from typing_extensions import TypeAliasType
Scalar = TypeVar("Scalar", bound=numpy.generic)
numpy.typing.NDArray = TypeAliasType("NDArray", numpy.ndarray[Any, numpy.dtype[Scalar]], type_params=(Scalar,))
numpy.typing.ArrayLike = TypeAliasType("ArrayLike", Any)
import attention_phases
for module in pkgutil.walk_packages(attention_phases.__path__, "attention_phases."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
"""


def test_all_modules_import_where_numpys_array_types_are_no_classes() -> None:
    # from NumPy 2.5 on, which needs Python 3.12
    run = subprocess.run([sys.executable, "-c", NO_CLASS], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
