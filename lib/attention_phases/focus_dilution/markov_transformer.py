"""A one-layer transformer without residual path that reads a Markov chain, in the limit of long contexts.

The chain has d tokens, transition matrix P and stationary distribution pi. A context is long, so the frequencies of the
tokens in it are pi, whatever its last token i; the transformer attends from token i to token k with

    a_ik = pi_k exp(z_ik)/sum_j pi_j exp(z_ij),        z = W0 W_Q W_K^T W0^T,

and predicts the next token with the logits ``l = a W0 W1``. The population loss, in nats, is the cross-entropy

    L = -sum_i pi_i sum_j P_ij log softmax(l_i)_j.

It is never below the chain's conditional entropy; what is above it is the excess loss, a Kullback-Leibler divergence.

With ``R_i = pi_i (P_i - softmax(l_i))``, ``M = a^T R = -dL/d(W0 W1)`` and ``G = -dL/dz``, the negative gradient is

    W0:  M W1^T + G W0 W_K W_Q^T + G^T W0 W_Q W_K^T        W_Q:  W0^T G W0 W_K
    W1:  W0^T M                                            W_K:  W0^T G^T W0 W_Q

The loss does not change under ``W0 -> W0 A, (W1, W_Q, W_K) -> A^-1 (W1, W_Q, W_K)``, under
``W_Q -> W_Q B, W_K -> W_K B^-T``, nor when the same number is added to all entries of a row of W1. Along the gradient
flow three quantities are therefore conserved:

    W0^T W0 - W1 W1^T - W_Q W_Q^T - W_K W_K^T,        W_Q^T W_Q - W_K^T W_K,        W1 1_d.

The model is the one that summaries of Chen, Lin, Xu, Luo (ICML 2026, arXiv 2605.01199) describe.
"""

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import coo_array, csr_array, issparse
from scipy.sparse.csgraph import connected_components

from attention_phases import _checks

Array = NDArray[np.float64]
Seed = int | np.random.Generator
_Values = TypeVar("_Values", bound=Any)
_SUM_TOLERANCE = 1e-9  # how far from 1 a row of a given matrix may sum; it is then divided by its sum
_STATIONARY_TOLERANCE = 1e-6  # relative difference of a given stationary probability from that of the matrix
_SMALLEST = 1e-60  # no start may have smaller entries alone: their products must not be rounded to 0
_MOST_NUMBERS = 2**31  # of a sample
_MOST_STATES = 10_000  # where arrays of shape (d, d) are needed: each has 800 MB
_COUNTED_AT_ONCE = 2**20  # tokens
_OF_ROWS = ("data", "indices", "indptr")  # the arrays of a sparse matrix


@dataclass(frozen=True, eq=False, init=False)
class MarkovChain:
    """An irreducible Markov chain. It may be periodic: nothing below needs more than its stationary distribution.

    Of the chain of a text only those transitions are kept that occur: memory grows with the pairs, not with d^2. So the
    whole vocabulary of a text can be looked at: the stationary distribution, entropies and samples, and of the theory
    what needs no more than P times a vector, as `condensation_rate`, `focus_rate`, `unigram_point` and
    `linear_condensation`. What needs arrays of shape (d, d), as attention between all tokens does, and with it the
    loss, its flows and the timeline, takes chains of up to 10000 tokens.

    Attributes:
        matrix: P, (d, d), d >= 2, as it is kept: an array, or if the chain is from a text, a `scipy.sparse.csr_array`.
        stationary: pi, (d,), the distribution with ``pi P = pi``; all entries are positive.
        token_ids: (d,), the tokens' numbers in the text that the chain is from, if it is from one: see `from_tokens`.

    Args:
        transition: P.
        stationary: pi, where it is known: it is compared with the one that P has.

    Raises:
        ValueError: P is not a square matrix, has a negative entry or a row that does not sum to 1, is reducible, or has
            a stationary probability that is too small for a floating-point number; or the given pi is not stationary.
    """

    matrix: Any  # SciPy declares no types
    stationary: Float[Array, " d"]
    token_ids: Int[NDArray[np.int64], " d"]

    def __init__(self, transition: ArrayLike, stationary: ArrayLike | None = None) -> None:
        matrix = _row_stochastic("transition", transition)
        n_classes, labels = connected_components(csr_array(matrix), connection="strong")
        if n_classes > 1:
            one, other = 0, int(np.flatnonzero(labels != labels[0])[0])
            raise ValueError(
                f"transition must be irreducible: each token must lead to each other one; "
                f"got {n_classes} classes, tokens {one} and {other} are in different ones"
            )
        pi = _stationary(matrix)
        if stationary is not None:
            given = _distribution("stationary", stationary)
            if given.shape != pi.shape:
                raise ValueError(f"stationary must have {len(pi)} entries, as transition has rows; got {len(given)}")
            worst = int(np.abs(given / pi - 1).argmax())
            if abs(given[worst] / pi[worst] - 1) > _STATIONARY_TOLERANCE:
                raise ValueError(
                    f"stationary must be the distribution with pi P = pi, whose entry {worst} is {pi[worst]:.10g}; "
                    f"got stationary[{worst}] = {given[worst]:.10g}"
                )
        self._set(matrix, pi, np.arange(len(matrix)))

    def _set(self, matrix: Array | csr_array, stationary: Array, token_ids: NDArray[np.int64]) -> None:
        object.__setattr__(self, "matrix", _read_only(matrix))
        object.__setattr__(self, "stationary", _read_only(stationary))
        object.__setattr__(self, "token_ids", _read_only(token_ids))

    @classmethod
    def lazy(cls, stationary: ArrayLike, persistence: float) -> "MarkovChain":
        """The chain ``P = persistence I + (1 - persistence) 1 pi^T``: it stays, or draws a new token from pi.

        With a negative persistence it moves on more often than a draw from pi would.

        Args:
            stationary: pi, (d,), positive entries that sum to 1.
            persistence: less than 1, and so large that no ``P_ii = persistence + (1 - persistence) pi_i`` is negative,
                that is at least ``-min(pi)/(1 - min(pi))``.

        Raises:
            ValueError: names the argument, what it must be and what it got.
        """
        pi = _distribution("stationary", stationary)
        smallest = float(pi.min())
        persistence = _checks.real("persistence", persistence)
        lowest = -smallest / (1 - smallest)
        if not lowest * (1 + _SUM_TOLERANCE) <= persistence < 1:
            raise ValueError(
                f"persistence must be in [{lowest:g}, 1), so that no probability is negative and the chain moves; "
                f"got {persistence:g}"
            )
        matrix = persistence * np.eye(len(pi)) + (1 - persistence) * pi
        return cls(np.maximum(matrix, 0))  # at the lowest persistence a zero may be rounded to -1e-17

    @classmethod
    def from_tokens(cls, token_ids: ArrayLike, n_tokens: int | None = None, smoothing: float = 0.0) -> "MarkovChain":
        """The chain of a text: ``P_ij = (n_ij + smoothing)/(n_i + smoothing d)`` from its pairs of neighbours.

        Each sequence is closed to a ring: its first token counts as the one after its last. So as many pairs begin
        with a token as end with it, and without smoothing pi is exactly the frequency of tokens in the text.

        Without smoothing the chain has the tokens of the largest closed class, by their number in the text: those that
        occur, if the text is one sequence. Their numbers are in `MarkovChain.token_ids`. Its matrix is sparse: it may
        have as many tokens as the text. With smoothing all d = `n_tokens` tokens are kept, each pair is possible, and
        the matrix is a dense one.

        Args:
            token_ids: a sequence of token numbers, (n,), or several ones of the same length, (n_sequences, n).
            n_tokens: one more than the largest number that a token may have; default: than the largest there is.
            smoothing: is added to the count of each pair, >= 0.

        Raises:
            ValueError: names the argument, what it must be and what it got; also where the class has a single token, or
                where there is smoothing and d is more than 10000.
        """
        wanted = "token_ids must be whole numbers of shape (n,) or (n_sequences, n)"
        try:
            ids = np.asanyarray(token_ids)  # a file that is mapped into memory stays one
        except Exception as error:  # rows of unequal length; or what the library that made the value raises
            raise ValueError(f"{wanted}; got {_checks.shown(token_ids)}") from error
        if ids.ndim not in (1, 2) or ids.dtype.kind not in "iu" or not ids.size:
            raise ValueError(f"{wanted}; got {_shape(ids)}")
        largest = int(ids.max())
        d = largest + 1 if n_tokens is None else _checks.integer("n_tokens", n_tokens, 2)
        if int(ids.min()) < 0 or largest >= d:
            raise ValueError(f"token_ids must be in [0, {d - 1}]; got {int(ids.min())} to {largest}")
        smoothing = _checks.real("smoothing", smoothing, 0, _checks.LARGEST)
        if smoothing and d > _MOST_STATES:
            raise ValueError(
                f"n_tokens must be at most {_MOST_STATES} with smoothing, which makes every pair possible; got {d}"
            )
        counts = _pair_counts(np.atleast_2d(ids), d)
        if smoothing:
            smooth = counts.toarray() + smoothing
            return cls(smooth / smooth.sum(axis=1, keepdims=True))
        kept = _largest_class(counts)
        if len(kept) < 2:
            raise ValueError("token_ids must give a chain of at least 2 tokens; its largest closed class has 1")
        matrix = counts[kept][:, kept].astype(np.float64)
        occurrences = matrix.sum(axis=1)
        matrix.data /= np.repeat(occurrences, np.diff(matrix.indptr))
        chain = cls.__new__(cls)
        chain._set(matrix, occurrences / occurrences.sum(), kept)
        return chain

    @property
    def n_tokens(self) -> int:
        """d, the number of tokens."""
        return len(self.stationary)

    @cached_property
    def transition(self) -> Float[Array, "d d"]:
        """P, (d, d): row i has the probabilities of the token after token i.

        Raises:
            ValueError: the chain is from a text and has more than 10000 tokens; `matrix` has P.
        """
        dense: Array = self.matrix
        if issparse(self.matrix):
            few_tokens(self)
            dense = _locked(self.matrix.toarray())
        return dense

    @cached_property
    def log_stationary(self) -> Float[Array, " d"]:
        """log pi."""
        return _read_only(np.log(self.stationary))

    @cached_property
    def log_transition(self) -> Float[Array, "d d"]:
        """log P, with 0 in place of the logarithm of 0."""
        P = self.transition
        return _read_only(np.log(P, out=np.zeros_like(P), where=P > 0))

    @property
    def unigram_entropy(self) -> float:
        """``-sum_i pi_i log pi_i`` in nats: the lowest loss of a model that does not look at its context."""
        return _entropy(self.stationary)

    @property
    def conditional_entropy(self) -> float:
        """``-sum_i pi_i sum_j P_ij log P_ij`` in nats: the lowest loss of any model."""
        rows = csr_array(self.matrix)
        return float(self.stationary @ [_entropy(rows.data[i:j]) for i, j in pairwise(rows.indptr)])

    def sample(self, n_sequences: int, length: int, seed: Seed) -> Int[NDArray[np.int64], "n_sequences length"]:
        """Draw independent sequences of tokens, each begun in the stationary distribution.

        Args:
            n_sequences: how many, >= 1.
            length: tokens of each, >= 1.
            seed: a whole number, or a NumPy generator, which is advanced.

        Raises:
            ValueError: names the argument, what it must be and what it got.
        """
        n_sequences = _checks.integer("n_sequences", n_sequences, 1)
        length = _checks.integer("length", length, 1, _MOST_NUMBERS // n_sequences)
        rng = _checks.generator(seed)
        first, after = _cumulative(self.stationary), csr_array(self.matrix)
        # the possible transitions of token i, shifted by i: all rows are searched as one
        rows = np.concatenate([k + _cumulative(after.data[i:j]) for k, (i, j) in enumerate(pairwise(after.indptr))])
        tokens = np.empty((length, n_sequences), dtype=np.int64)
        tokens[0] = np.searchsorted(first, rng.random(n_sequences), side="right")
        for t in range(1, length):
            last = tokens[t - 1]
            place = np.minimum(last + rng.random(n_sequences), np.nextafter(last + 1.0, 0))  # not rounded to last + 1
            tokens[t] = after.indices[np.searchsorted(rows, place, side="right")]
        return np.ascontiguousarray(tokens.T)

    def __setstate__(self, state: dict[str, Any]) -> None:
        _restore(self, state)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, MarkovChain):
            return False
        rows, others = csr_array(self.matrix), csr_array(other.matrix)
        return all(np.array_equal(getattr(rows, name), getattr(others, name)) for name in _OF_ROWS)

    def __hash__(self) -> int:
        return hash(csr_array(self.matrix).data.tobytes())


@dataclass(frozen=True, eq=False)
class Parameters:
    """The weights of the transformer, d tokens and width m. The arrays are copies that cannot be written to.

    The same class holds a gradient or a direction in the space of weights.

    Attributes:
        W0: embedding, (d, m).
        W1: projection to the logits, (m, d).
        WQ: query matrix, (m, m).
        WK: key matrix, (m, m).

    Raises:
        ValueError: a shape does not fit the others, or an entry is not finite.
    """

    W0: Float[Array, "d m"]
    W1: Float[Array, "m d"]
    WQ: Float[Array, "m m"]
    WK: Float[Array, "m m"]

    def __post_init__(self) -> None:
        W0 = _checks.array("W0", self.W0, (None, None))
        d, m = W0.shape
        shapes = {"W1": (m, d), "WQ": (m, m), "WK": (m, m)}
        arrays = {"W0": W0} | {name: _checks.array(name, getattr(self, name), shape) for name, shape in shapes.items()}
        for name, values in arrays.items():
            object.__setattr__(self, name, _read_only(values))

    @classmethod
    def gaussian(cls, n_tokens: int, width: int, init_scale: float, seed: Seed) -> "Parameters":
        """Independent entries N(0, init_scale^2).

        Args:
            n_tokens: d, >= 2.
            width: m, >= 1.
            init_scale: at least 1e-60. At 0 all gradients vanish: a critical point, which nothing leaves.
            seed: a whole number, or a NumPy generator, which is advanced.

        Raises:
            ValueError: names the argument, what it must be and what it got.
        """
        d = _checks.integer("n_tokens", n_tokens, 2)
        m = _checks.integer("width", width, 1)
        scale = scale_of_start(init_scale, _checks.LARGEST / 10)  # no entry is ten times as large
        rng = _checks.generator(seed)
        return cls(*(scale * rng.standard_normal(shape) for shape in ((d, m), (m, d), (m, m), (m, m))))

    def __setstate__(self, state: dict[str, Any]) -> None:
        _restore(self, state)

    @property
    def n_tokens(self) -> int:
        """d, the number of tokens."""
        return int(self.W0.shape[0])

    @property
    def width(self) -> int:
        """m, the dimension of an embedding."""
        return int(self.W0.shape[1])

    @property
    def arrays(self) -> "Weights":
        """The four arrays as a tuple."""
        return Weights(self.W0, self.W1, self.WQ, self.WK)


class Weights(NamedTuple):
    """Four arrays of the shapes of `Parameters`, not checked: what the loops of a solver compute with."""

    W0: Float[Array, "d m"]
    W1: Float[Array, "m d"]
    WQ: Float[Array, "m m"]
    WK: Float[Array, "m m"]


class Forces(NamedTuple):
    """What the chain does to the model at given weights: each array is (d, d).

    Attributes:
        attention: a.
        residual: ``R_i = pi_i (P_i - softmax(l_i)) = -dL/dl_i``.
        output_force: ``M = a^T R = -dL/d(W0 W1)``.
        score_force: ``G = -dL/dz``.
    """

    attention: Float[Array, "d d"]
    residual: Float[Array, "d d"]
    output_force: Float[Array, "d d"]
    score_force: Float[Array, "d d"]


def attention(parameters: Parameters, chain: MarkovChain) -> Float[Array, "d d"]:
    """a, (d, d): row i is the attention of a context that ends in token i, summed over the places of each token.

    Raises:
        ValueError: the parameters are for another number of tokens.
    """
    return Expansion(fitting(parameters, chain), chain).attention


def forces(parameters: Parameters, chain: MarkovChain) -> Forces:
    """The attention, the residual R, and the forces M and G on outputs and scores, each (d, d).

    Raises:
        ValueError: the parameters are for another number of tokens.
    """
    at = Expansion(fitting(parameters, chain), chain)
    return Forces(at.attention, at.residual, at.attention.T @ at.residual, at.score_force)


def population_loss(parameters: Parameters, chain: MarkovChain) -> float:
    """L in nats, the conditional entropy plus the excess loss.

    Raises:
        ValueError: the parameters are for another number of tokens.
    """
    excess = excess_loss(parameters, chain)  # first, for its checks
    return chain.conditional_entropy + excess


def excess_loss(parameters: Parameters, chain: MarkovChain) -> float:
    """``sum_i pi_i KL(P_i | softmax(l_i))`` in nats, >= 0: L less the chain's conditional entropy.

    It is summed from terms that are not negative, so it keeps its relative accuracy where it is small.

    Raises:
        ValueError: the parameters are for another number of tokens.
    """
    return Expansion(fitting(parameters, chain), chain).excess_loss


def population_gradient(parameters: Parameters, chain: MarkovChain) -> Parameters:
    """dL/d(W0, W1, W_Q, W_K), each of the shape of its weights.

    Raises:
        ValueError: the parameters are for another number of tokens.
    """
    return Parameters(*(-rate for rate in Expansion(fitting(parameters, chain), chain).flow))


def hessian_product(parameters: Parameters, chain: MarkovChain, direction: Parameters) -> Parameters:
    """The Hessian of L times a direction in the space of weights: exact, at about twice the cost of a gradient.

    Raises:
        ValueError: parameters or direction are for another number of tokens, or of different widths.
    """
    weights, along = fitting(parameters, chain), fitting(direction, chain, "direction")
    if direction.width != parameters.width:
        raise ValueError(f"direction must have width {parameters.width}; got {direction.width}")
    return Parameters(*(-rate for rate in Expansion(weights, chain).flow_derivative(along)))


def conserved_quantities(
    parameters: Parameters,
) -> tuple[Float[Array, "m m"], Float[Array, "m m"], Float[Array, " m"]]:
    """What the gradient flow conserves, whatever the chain.

    These are ``W0^T W0 - W1 W1^T - W_Q W_Q^T - W_K W_K^T``, ``W_Q^T W_Q - W_K^T W_K`` and ``W1 1_d``.

    Raises:
        ValueError: `parameters` are no `Parameters`.
    """
    _checks.instance("parameters", parameters, Parameters)
    W0, W1, WQ, WK = parameters.arrays
    return W0.T @ W0 - W1 @ W1.T - WQ @ WQ.T - WK @ WK.T, WQ.T @ WQ - WK.T @ WK, W1.sum(axis=1)


class Expansion:
    """The model at given weights, up to second order: what a solver asks for at each point.

    No product of three factors of size d is formed, so that the cost is of order d^2 m + d m^2.

    Attributes:
        attention: a, (d, d).
        residual: R, (d, d).
        score_force: G, (d, d).
        flow: -dL/d(W0, W1, W_Q, W_K).
    """

    def __init__(self, weights: Weights, chain: MarkovChain) -> None:
        few_tokens(chain)
        W0, W1, WQ, WK = weights
        self._weights, self._chain = weights, chain
        self._query, self._key = W0 @ WQ, W0 @ WK  # (d, m)
        scores = self._query @ self._key.T
        scores += chain.log_stationary
        self.attention = a = softmax(scores)
        self._read = a @ W0  # (d, m): the mean embedding that attention reads
        self._log_p, self._p = log_softmax(self._read @ W1)
        self._pi = chain.stationary[:, None]
        self.residual = self._pi * (chain.transition - self._p)
        self._pull = self.residual @ W1.T  # (d, m): -dL/d(a W0)
        usefulness = self._pull @ W0.T  # u_ik = R_i . (W0 W1)_k
        # how much more than the average token token k lowers the loss
        self._relevance = usefulness - (a * usefulness).sum(axis=1, keepdims=True)
        self.score_force = G = a * self._relevance
        self._on_query, self._on_key = G @ self._key, G.T @ self._query  # (d, m): -dL/d(W0 W_Q), -dL/d(W0 W_K)
        self.flow = Weights(
            a.T @ self._pull + self._on_query @ WQ.T + self._on_key @ WK.T,
            self._read.T @ self.residual,
            W0.T @ self._on_query,
            W0.T @ self._on_key,
        )

    @property
    def excess_loss(self) -> float:
        """The excess loss in nats, from ``P log(P/p) = P (r + expm1(-r)) + P - p`` with ``r = log P/p``.

        A sum over j of ``P - p`` is zero; it is left out where P > 0, and p itself stands for it where P = 0.
        """
        P = self._chain.transition
        r = np.subtract(self._chain.log_transition, self._log_p, out=np.zeros_like(P), where=P > 0)
        terms = np.where(P > 0, P * (r + np.expm1(-r)), self._p)
        return float((self._pi * terms).sum())

    def flow_derivative(self, direction: Weights) -> Weights:
        """The derivative of the flow along a direction, that is minus the Hessian of L times it."""
        W0, W1, WQ, WK = self._weights
        V0, V1, VQ, VK = direction
        a, p, R, G = self.attention, self._p, self.residual, self.score_force
        d_query, d_key = V0 @ WQ + W0 @ VQ, V0 @ WK + W0 @ VK
        d_a = d_query @ self._key.T
        d_a += self._query @ d_key.T  # of the scores, and now of the attention
        d_a -= (a * d_a).sum(axis=1, keepdims=True)
        d_a *= a
        d_read = d_a @ W0 + a @ V0
        d_R = d_read @ W1
        d_R += self._read @ V1  # of the logits, and now of the residual
        d_R -= (p * d_R).sum(axis=1, keepdims=True)
        d_R *= p
        d_R *= -self._pi
        d_pull = d_R @ W1.T + R @ V1.T
        d_G = d_pull @ W0.T
        d_G += self._pull @ V0.T  # of u
        # the mean of u under a changes by sum_j (da u + a du); sum_j da = 0, so the relevance may stand for u
        moved = d_a * self._relevance
        d_G *= a
        d_G += moved
        d_G -= a * d_G.sum(axis=1, keepdims=True)
        d_on_query, d_on_key = d_G @ self._key + G @ d_key, d_G.T @ self._query + G.T @ d_query
        return Weights(
            d_a.T @ self._pull
            + a.T @ d_pull
            + d_on_query @ WQ.T
            + self._on_query @ VQ.T
            + d_on_key @ WK.T
            + self._on_key @ VK.T,
            d_read.T @ R + self._read.T @ d_R,
            V0.T @ self._on_query + W0.T @ d_on_query,
            V0.T @ self._on_key + W0.T @ d_on_key,
        )


def softmax(logits: Float[Array, "*n d"]) -> Float[Array, "*n d"]:
    """Softmax of each row."""
    probabilities: Array = np.exp(logits - logits.max(axis=-1, keepdims=True))
    probabilities /= probabilities.sum(axis=-1, keepdims=True)
    return probabilities


def log_softmax(logits: Float[Array, "*n d"]) -> tuple[Float[Array, "*n d"], Float[Array, "*n d"]]:
    """Log softmax and softmax of each row; the first is finite for logits of any size."""
    logarithms: Array = logits - logits.max(axis=-1, keepdims=True)
    probabilities: Array = np.exp(logarithms)
    total = probabilities.sum(axis=-1, keepdims=True)
    probabilities /= total
    logarithms -= np.log(total)
    return logarithms, probabilities


def fitting(parameters: Parameters, chain: MarkovChain, name: str = "parameters") -> Weights:
    """The weights, or a ValueError where they are not for the chain's tokens."""
    _checks.instance(name, parameters, Parameters)
    _checks.instance("chain", chain, MarkovChain)
    if parameters.n_tokens != chain.n_tokens:
        raise ValueError(f"{name} must be for the chain's {chain.n_tokens} tokens; got {parameters.n_tokens}")
    return parameters.arrays


def few_tokens(chain: MarkovChain) -> None:
    """A ValueError where the chain has too many tokens for arrays of shape (d, d)."""
    if chain.n_tokens > _MOST_STATES:
        raise ValueError(
            f"chain must have at most {_MOST_STATES} tokens where arrays of shape (d, d) are needed; "
            f"got {chain.n_tokens}"
        )


def scale_of_start(init_scale: float, largest: float) -> float:
    """The scale of initial weights, or a ValueError."""
    scale = _checks.real("init_scale", init_scale, 0, largest)
    if scale == 0:
        raise ValueError("init_scale must be > 0: 0 is an exact critical point, which the flow never leaves; got 0")
    if scale < _SMALLEST:
        raise ValueError(f"init_scale must be at least {_SMALLEST:g}; got {scale:g}")
    return scale


def has_size(name: str, parameters: Parameters) -> None:
    """A ValueError where all weights, or all of W_Q and W_K, are so small that their products are rounded to 0."""
    for which in (("W0", "W1", "WQ", "WK"), ("WQ", "WK")):
        largest = max(float(np.abs(getattr(parameters, key)).max()) for key in which)
        if 0 < largest < _SMALLEST:
            raise ValueError(
                f"{name} must have an entry of {', '.join(which)} of size {_SMALLEST:g} or more, or 0 in all; "
                f"the largest is {largest:g}"
            )


def _row_stochastic(name: str, value: ArrayLike) -> Float[Array, "d d"]:
    """`value` with rows that sum to 1 to rounding, or a ValueError where they are further from it."""
    matrix = _checks.array(name, value, (None, None))
    rows, columns = matrix.shape
    if rows != columns or rows < 2:
        raise ValueError(f"{name} must be a square matrix with d >= 2 rows; got shape {matrix.shape}")
    if matrix.min() < 0:
        i, j = np.unravel_index(int(matrix.argmin()), matrix.shape)
        raise ValueError(f"{name} must have no negative entry; got {name}[{i}, {j}] = {matrix.min():g}")
    sums = matrix.sum(axis=1)
    worst = int(np.abs(sums - 1).argmax())
    if abs(sums[worst] - 1) > _SUM_TOLERANCE:
        raise ValueError(f"{name} must have rows that sum to 1; row {worst} sums to {sums[worst]:.10g}")
    scaled: Array = matrix / sums[:, None]
    return scaled


def _distribution(name: str, value: ArrayLike) -> Float[Array, " d"]:
    """`value` as a distribution with positive entries that sum to 1 to rounding, or a ValueError."""
    pi = _checks.array(name, value, (None,))
    if len(pi) < 2:
        raise ValueError(f"{name} must have d >= 2 entries; got {len(pi)}")
    if pi.min() <= 0:
        raise ValueError(f"{name} must have positive entries; got {name}[{int(pi.argmin())}] = {pi.min():g}")
    if abs(pi.sum() - 1) > _SUM_TOLERANCE:
        raise ValueError(f"{name} must have entries that sum to 1; they sum to {pi.sum():.10g}")
    scaled: Array = pi / pi.sum()
    return scaled


def _pair_counts(sequences: Int[NDArray[np.int64], "n_sequences n"], d: int) -> csr_array:
    """How often each token is followed by each other one, (d, d), each sequence closed to a ring."""
    total = csr_array((d, d), dtype=np.int64)
    for sequence in sequences:
        for begin in range(0, len(sequence), _COUNTED_AT_ONCE):
            piece = sequence[begin : begin + _COUNTED_AT_ONCE + 1].astype(np.int64)
            if begin + _COUNTED_AT_ONCE >= len(sequence):
                piece = np.append(piece, sequence[0])
            ones = np.ones(len(piece) - 1, dtype=np.int64)
            total += coo_array((ones, (piece[:-1], piece[1:])), shape=(d, d)).tocsr()
    return total


def _largest_class(counts: csr_array) -> Int[NDArray[np.int64], " k"]:
    """The tokens of the class that has most of the text. Where sequences are rings, all classes are closed."""
    _, labels = connected_components(counts, connection="strong")
    sizes = np.bincount(labels, weights=counts.sum(axis=1))
    return np.flatnonzero(labels == sizes.argmax())


def _shape(values: NDArray[Any]) -> str:
    return f"{values.dtype} of shape {values.shape}"


def _stationary(transition: Float[Array, "d d"]) -> Float[Array, " d"]:
    """pi by elimination of one token after the other, without a subtraction (Grassmann, Taksar, Heyman 1985).

    Each entry is right to a few units in its last place, however small it is.
    """
    flow = transition.copy()
    pi = np.ones(len(flow))
    with np.errstate(all="ignore"):  # of what does not fit into a number, seen below
        for k in range(len(flow) - 1, 0, -1):  # leave out token k: paths through it become direct ones
            flow[:k, k] /= flow[k, :k].sum()
            flow[:k, :k] += np.outer(flow[:k, k], flow[k, :k])
        for k in range(1, len(flow)):
            pi[k] = pi[:k] @ flow[:k, k]
            pi[: k + 1] /= pi[: k + 1].sum()  # one after the other they might become too large
    if not pi.min() >= np.finfo(float).tiny:  # smaller, or not a number
        raise ValueError(
            f"transition must have stationary probabilities of at least {np.finfo(float).tiny:.1e}, "
            f"which a floating-point number can hold; that of token {int(pi.argmin())} is smaller"
        )
    return pi


def _entropy(distribution: Float[Array, " d"]) -> float:
    positive = distribution[distribution > 0]
    return float(-(positive * np.log(positive)).sum())


def _cumulative(distribution: Float[Array, " d"]) -> Float[Array, " d"]:
    """Cumulative sums of positive probabilities; the last is exactly 1, so that no draw lies beyond it."""
    sums: Array = np.minimum(np.cumsum(distribution), 1)
    sums[-1] = 1
    return sums


def _read_only(values: _Values) -> _Values:
    copy: _Values = _locked(values.copy())
    return copy


def _locked(values: _Values) -> _Values:
    for part in [getattr(values, name) for name in _OF_ROWS] if issparse(values) else [values]:
        part.flags.writeable = False
    return values


def _restore(instance: object, state: dict[str, Any]) -> None:
    """Give a copied or unpickled object its attributes. NumPy makes copies of arrays that can be written to."""
    for values in state.values():
        _locked(values)
    instance.__dict__.update(state)
