"""What all tests share."""

import os

# Several test processes share the cores: one thread each. This stands before anything that loads NumPy or PyTorch.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ["OMP_NUM_THREADS"] = "1"
