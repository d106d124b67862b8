"""Tasks and points that several test modules use."""

import numpy as np
from attention_phases.positional_semantic import Dataset, Task
from numpy.typing import NDArray

Array = NDArray[np.float64]
THREE = ((0.5, 0.3, 0.2), (0.2, 0.5, 0.3), (0.3, 0.3, 0.4))
SMALL = [  # one of each kind, with d of 8
    Task(),
    Task(sigma=1.0, positional_attention=((0.3, 0.7), (0.8, 0.2)), student_rank=2),
    Task(omega=0.6, positional_attention=THREE, student_rank=2, teacher_rank=2, sigma=1.0),
    Task(positional_attention=THREE, teacher_rank=2, regularization=0, positions=(0, 3, -1)),
]


def random_query(dataset: Dataset, seed: int) -> Array:
    return np.random.default_rng([seed, 99]).standard_normal((dataset.dimension, dataset.task.student_rank))


def rotation(rank: int, seed: int) -> Array:
    return np.linalg.qr(np.random.default_rng([seed, 98]).standard_normal((rank, rank))).Q
