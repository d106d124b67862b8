"""The best student without attention: one matrix that mixes the places, whatever the tokens say.

``f_W(x) = W x`` with W of shape (L, L). With isotropic tokens its test error is, for large d,
``sigma^2/2 E |T - W|^2``, and least at ``W = E T``. There

    epsilon_lin = sigma^2/2 (1 - omega)^2 sum_lk Var softmax(s s^T)_lk,     s_l ~ N(0, sigma^2 I_t):

what is left is what the teacher's attention owes to the sentence. The number of samples does not enter: L^2 parameters
are learned from n L d numbers.
"""

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from scipy.special import expit, gammaln

from attention_phases import _checks
from attention_phases._arrays import Array
from attention_phases._blas import one_thread
from attention_phases.estimates import Estimate
from attention_phases.positional_semantic.quadrature import gaussian_nodes, mean_over_scrambles
from attention_phases.positional_semantic.sample_loss import attention
from attention_phases.positional_semantic.teacher_student import Dataset, Task

_MOST_NODES = 2**22
_MOST_FIELDS = 21201  # dimensions that Sobol points are known for
_BLOCK = 2**21  # entries of attention matrices at a time


@dataclass(frozen=True)
class LinearBaseline:
    """The best matrix in the limit of large d.

    Attributes:
        weights: W = E T, (L, L); its rows sum to one.
        test_error: epsilon_lin, the epsilon_g of this student.
        standard_error: of test_error. For L = 2, where nothing is random, the change at the last refinement.
    """

    weights: Float[Array, "L L"]
    test_error: float
    standard_error: float


@dataclass(frozen=True)
class LinearFit:
    """A matrix fitted to a data set.

    Attributes:
        weights: W, (L, L).
        train_loss: ``(sum |y - W x|^2/(2 d) + ridge/2 |W|^2)/d``, as epsilon_t is for the student with attention.
        test_error: ``E |y - W x|^2/(2 d)`` on a fresh sentence of the same teacher and dimension.
        test_error_standard_error: standard error of that average.
    """

    weights: Float[Array, "L L"]
    train_loss: float
    test_error: float
    test_error_standard_error: float


@one_thread
def linear_baseline(task: Task) -> LinearBaseline:
    """The linear positional baseline of a task in the limit of large d, for any L and t.

    For L = 2 by a deterministic rule, to near machine precision where sigma is at most about 3; else by randomised
    quasi-Monte Carlo.

    Time grows as L^2 from L = 256 on, and is about constant below; memory as L t.

    Raises:
        ValueError: `task` is no Task, or has more than 21201 fields L t.
    """
    _checks.instance("task", task, Task)
    n_tokens = task.n_tokens
    if n_tokens > 2 and n_tokens * task.teacher_rank > _MOST_FIELDS:
        n_fields = n_tokens * task.teacher_rank
        raise ValueError(f"task must have at most {_MOST_FIELDS} fields, L times teacher_rank; got {n_fields}")
    diagonal, variance = _two_tokens(task) if n_tokens == 2 else _many_tokens(task)
    apart = (1 - diagonal) / (n_tokens - 1)  # the entries of a row are alike but for the diagonal
    mean = np.full((n_tokens, n_tokens), apart) + (diagonal - apart) * np.eye(n_tokens)
    scale = task.sigma**2 / 2 * (1 - task.omega) ** 2
    return LinearBaseline(
        weights=(1 - task.omega) * mean + task.omega * task.positional_attention,
        test_error=scale * variance.value,
        standard_error=scale * variance.standard_error,
    )


def _two_tokens(task: Task) -> tuple[float, Estimate]:
    """E S_11 and the sum of the variances of S = softmax(s s^T), for L = 2.

    ``S_11 = logistic(|s_1|^2 - s_1 . s_2)``. Given ``u = |s_1|/sigma`` the argument is normal, with mean sigma^2 u^2
    and standard deviation sigma^2 u. Trapezoidal rules in log u and in the normal variable; both integrands are
    analytic, so the error falls geometrically. The step is halved until that changes nothing.
    """
    before = np.inf
    step = 0.25
    while True:
        log_u = np.arange(-40 / task.teacher_rank, np.log(9 + np.sqrt(task.teacher_rank)), step)
        normal = np.arange(-9, 9, step)
        mean, square = _two_token_moments(task, log_u, normal)
        variance = 4 * (square - mean**2)
        change = abs(variance - before)
        if change <= 1e-14 or 4 * len(log_u) * len(normal) > _MOST_NODES:
            return mean, Estimate(variance, change)
        before, step = variance, step / 2


def _two_token_moments(task: Task, log_u: Float[Array, " k"], normal: Float[Array, " n"]) -> tuple[float, float]:
    """E S_11 and E S_11^2 on a grid."""
    u, rank = np.exp(log_u), task.teacher_rank
    weights = np.exp(rank * log_u - u**2 / 2 - (rank / 2 - 1) * np.log(2) - gammaln(rank / 2))
    weights /= weights.sum()
    normal_weights = np.exp(-(normal**2) / 2)
    normal_weights /= normal_weights.sum()
    attended = expit(task.sigma**2 * (u[:, None] ** 2 + u[:, None] * normal))
    return float(weights @ attended @ normal_weights), float(weights @ attended**2 @ normal_weights)


def _many_tokens(task: Task) -> tuple[float, Estimate]:
    """The same for any L, by quasi-Monte Carlo.

    All rows of a sample's attention have one distribution, so many tokens take fewer samples. The samples are taken in
    blocks, for their matrices are large.
    """
    n_tokens, rank, n_scrambles = task.n_tokens, task.teacher_rank, 16
    log2_nodes = max(13 - max(0, math.ceil(2 * math.log2(n_tokens / 16))), 6)
    nodes = gaussian_nodes(n_tokens * rank, log2_nodes, n_scrambles, np.random.default_rng(0))
    block = max(_BLOCK // n_tokens**2, 1)
    on_diagonal, squares = np.empty((2, n_scrambles, 2**log2_nodes))
    for k in range(n_scrambles):
        for first in range(0, 2**log2_nodes, block):
            here = slice(first, first + block)
            matrices = attention(task.sigma * nodes[k, here].reshape(-1, n_tokens, rank))
            on_diagonal[k, here] = np.einsum("nll->n", matrices)
            squares[k, here] = np.einsum("nlm,nlm->n", matrices, matrices)
    diagonal = float(on_diagonal.mean() / n_tokens)
    apart = (1 - diagonal) / (n_tokens - 1)
    # E S has two different entries, and rows of S sum to one: sum S_lk (E S)_lk depends on the trace of S alone
    centre = n_tokens * diagonal**2 + n_tokens * (n_tokens - 1) * apart**2
    product = diagonal * on_diagonal + apart * (n_tokens - on_diagonal)
    return diagonal, mean_over_scrambles(squares - 2 * product + centre)


@one_thread
def fit_linear(dataset: Dataset, ridge: float = 1e-4) -> LinearFit:
    """The matrix that minimises ``sum_mu |y - W x|^2/(2 d) + ridge/2 |W|^2`` on a data set.

    Raises:
        ValueError: names the argument, what it must be and what it got; also where the samples do not determine W.
    """
    _checks.instance("dataset", dataset, Dataset)
    ridge = _checks.real("ridge", ridge, 0, _checks.LARGEST)
    task, d = dataset.task, dataset.dimension
    tokens = dataset.tokens - (task.positions / np.sqrt(d))[:, None]
    grams = tokens @ tokens.swapaxes(1, 2) / d  # (n, L, L)
    teacher = dataset.teacher_attention
    cross, gram = (teacher @ grams).sum(axis=0), grams.sum(axis=0)
    regular = gram + ridge * np.eye(task.n_tokens)
    if np.linalg.matrix_rank(regular) < task.n_tokens:
        raise ValueError(f"ridge must be positive where the samples do not determine W; got {ridge:g}")
    weights: Array = np.linalg.solve(regular, cross.T).T
    residual = teacher - weights
    risk = 0.5 * (residual * (residual @ grams)).sum() + ridge / 2 * (weights**2).sum()
    error = _finite_error(dataset, weights)
    return LinearFit(weights, float(risk) / d, error.value, error.standard_error)


def _finite_error(dataset: Dataset, weights: Float[Array, "L L"]) -> Estimate:
    """``E |y - W x|^2/(2 d)``: the components of x across the span of Q* enter by their variance alone."""
    task, d = dataset.task, dataset.dimension
    basis = np.linalg.qr(dataset.teacher_query).Q  # (d, k)
    k = basis.shape[1]
    n_scrambles = 8
    nodes = gaussian_nodes(task.n_tokens * k, 12, n_scrambles, np.random.default_rng(0))
    inside = task.sigma * nodes.reshape(n_scrambles, -1, task.n_tokens, k)
    residual = task.teacher_attention(inside @ (basis.T @ dataset.teacher_query) / np.sqrt(d)) - weights
    across = task.sigma**2 * (d - k) * (residual**2).sum(axis=(-2, -1))
    along = ((residual @ inside) ** 2).sum(axis=(-2, -1))
    return mean_over_scrambles((across + along) / (2 * d))
