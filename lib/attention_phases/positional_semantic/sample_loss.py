"""The loss of one sample as a function of its local fields.

A student with local fields ``h`` (L, r) attends with ``S = softmax(h h^T)``. Its squared error on a sample is a
quadratic form in S,

    ell(h) = 1/2 [c - 2 tr(S C^T) + tr(S G S^T)],

whatever the tokens are: only the matrices G, C (L, L) and the number c differ.

* Finite size, sample with tokens ``X = x + p`` and targets ``y``, both (L, d): ``G = X X^T/d``, ``C = y X^T/d``,
  ``c = tr(y y^T)/d``; then ``ell = |y - S X|^2/(2 d)`` exactly.
* Infinite size, isotropic tokens, teacher attention ``T``: ``G = sigma^2 I``, ``C = sigma^2 T``,
  ``c = sigma^2 tr(T T^T)``; then ``ell = sigma^2/2 |S - T|^2``, the per-sample loss of state evolution.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray
from scipy.special import softmax

from attention_phases._arrays import Array


def attention(fields: Float[Array, "*n L r"]) -> Float[Array, "*n L L"]:
    """Attention matrices ``softmax(h h^T)``, softmax over each row, of local fields ``h``. Rows sum to one."""
    result: Array = softmax(fields @ np.swapaxes(fields, -1, -2), axis=-1)
    return result


@dataclass(frozen=True, eq=False)
class SampleLoss:
    """The losses of n samples, each a quadratic form in its attention matrix.

    The samples are the *last* axis: every step then runs over contiguous memory, for any number of tokens.

    Attributes:
        gram: G, shape (L, L, n) or (L, L, 1), symmetric.
        cross: C, shape (L, L, n).
        constant: c, shape (n,).
    """

    gram: Float[Array, "L L n"]
    cross: Float[Array, "L L n"]
    constant: Float[Array, " n"]

    def value(self, fields: Float[Array, "L r n"]) -> Float[Array, " n"]:
        """ell(h) of each sample."""
        return self._value(_attention(fields))[0]

    def value_and_gradient(self, fields: Float[Array, "L r n"]) -> tuple[Float[Array, " n"], Float[Array, "L r n"]]:
        """ell(h) and d ell/d h of each sample."""
        student = _attention(fields)
        value, slope = self._value(student)
        return value, _times(_symmetrised(_softmax_pullback(student, slope)), fields)

    def hessian_product(self, fields: Float[Array, "L r n"], direction: Float[Array, "L r n"]) -> Float[Array, "L r n"]:
        """Derivative of the gradient d ell/d h along a direction of h, sample by sample."""
        student = _attention(fields)
        slope = _times(student, self.gram) - self.cross
        scores_change = _symmetrised(_outer(fields, direction))
        student_change = student * (scores_change - _row_sums(student * scores_change))
        slope_change = _times(student_change, self.gram)
        pulled = _symmetrised(_softmax_pullback(student, slope))
        centred = slope - _row_sums(student * slope)
        pulled_change = student_change * centred + student * (
            slope_change - _row_sums(student_change * slope + student * slope_change)
        )
        return _times(_symmetrised(pulled_change), fields) + _times(pulled, direction)

    def hessian(self, fields: Float[Array, "L r n"]) -> Float[Array, "L r L r n"]:
        """Second derivatives d^2 ell/(dh dh) of each sample."""
        return self.derivatives(fields)[2]

    def derivatives(
        self, fields: Float[Array, "L r n"]
    ) -> tuple[Float[Array, " n"], Float[Array, "L r n"], Float[Array, "L r L r n"]]:
        """ell(h), its gradient and its second derivatives.

        Each row p of S enters ell by itself, and depends on its own scores ``z_k = h_i . h_k``. With P the derivative
        of ell with respect to z, its second derivative is ``C G C + diag P - P p^T - p P^T``, ``C = diag p - p p^T``.
        """
        n_tokens, rank, n = fields.shape
        student = _attention(fields)
        value, slope = self._value(student)
        pulled = _softmax_pullback(student, slope)
        both = _symmetrised(pulled)
        result = np.zeros((n_tokens, rank, n_tokens, rank, n))
        for a in range(rank):
            result[:, a, :, a] = both
        for i in range(n_tokens):
            p, first = student[i], pulled[i]
            spread = -p[:, None] * p
            spread[np.arange(n_tokens), np.arange(n_tokens)] += p
            second = _times(_times(spread, np.broadcast_to(self.gram, spread.shape)), spread)
            second -= first[:, None] * p + p[:, None] * first
            second[np.arange(n_tokens), np.arange(n_tokens)] += first
            along = _times(second, fields)  # (L, r, n)
            here = fields[i]
            for a in range(rank):
                for b in range(rank):
                    result[:, a, :, b] += second * (here[a] * here[b])
                    result[:, a, i, b] += here[a] * along[:, b]
                    result[i, a, :, b] += along[:, a] * here[b]
                    result[i, a, i, b] += (fields[:, a] * along[:, b]).sum(axis=0)
        return value, _times(both, fields), result

    def take(self, samples: NDArray[np.intp] | slice) -> "SampleLoss":
        """The losses of some of the samples."""
        gram = self.gram if self.gram.shape[-1] == 1 else self.gram[..., samples]
        return SampleLoss(gram, self.cross[..., samples], self.constant[samples])

    @cached_property
    def two_tokens(self) -> "TwoTokenLoss":
        """The same losses where L = 2: rows of S sum to one, so only S_11 and S_22 are left. ValueError for other L."""
        if len(self.cross) != 2:
            raise ValueError(f"two_tokens needs L = 2; got L = {len(self.cross)}")
        (g11, g12), (_, g22) = self.gram
        (c11, c12), (c21, c22) = self.cross
        stiffness = g11 - 2 * g12 + g22
        first = (g22 - g12 + c11 - c12) / stiffness
        second = (g11 - g12 + c22 - c21) / stiffness
        rest = 0.5 * (self.constant + g11 + g22 - 2 * (c12 + c21) - stiffness * (first**2 + second**2))
        return TwoTokenLoss(stiffness, first, second, rest)

    def _value(self, student: Float[Array, "L L n"]) -> tuple[Float[Array, " n"], Float[Array, "L L n"]]:
        """ell and its derivative with respect to S, which is S G - C."""
        mixed = _times(student, self.gram)
        value = 0.5 * (self.constant + (student * (mixed - 2 * self.cross)).sum(axis=(0, 1)))
        return value, mixed - self.cross


@dataclass(frozen=True, eq=False)
class TwoTokenLoss:
    """``ell = stiffness/2 [(S_11 - first)^2 + (S_22 - second)^2] + rest``: any `SampleLoss` with L = 2.

    For the theory ``first``, ``second`` are T_11 and T_22, ``stiffness = 2 sigma^2`` and ``rest = 0``.

    Attributes:
        stiffness: |X_1 - X_2|^2/d, (n,) or (1,).
        first, second, rest: (n,).
    """

    stiffness: Float[Array, " n"]
    first: Float[Array, " n"]
    second: Float[Array, " n"]
    rest: Float[Array, " n"]


def _times(a: Float[Array, "L K n"], b: Float[Array, "K r n"]) -> Float[Array, "L r n"]:
    """Matrix product of each sample's pair of matrices."""
    result: Array = (a[:, :, None] * b[None]).sum(axis=1)
    return result


def _outer(a: Float[Array, "L r n"], b: Float[Array, "L r n"]) -> Float[Array, "L L n"]:
    result: Array = (a[:, None] * b[None]).sum(axis=2)
    return result


def _symmetrised(a: Float[Array, "L L n"]) -> Float[Array, "L L n"]:
    """a + a^T of each sample."""
    return a + a.swapaxes(0, 1)


def _row_sums(a: Float[Array, "L L n"]) -> Float[Array, "L 1 n"]:
    result: Array = a.sum(axis=1, keepdims=True)
    return result


def _attention(fields: Float[Array, "L r n"]) -> Float[Array, "L L n"]:
    scores = _outer(fields, fields)
    scores -= scores.max(axis=1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= _row_sums(scores)
    return scores


def _softmax_pullback(student: Float[Array, "L L n"], slope: Float[Array, "L L n"]) -> Float[Array, "L L n"]:
    """Derivative with respect to the scores, from the derivative with respect to S = softmax(scores)."""
    return student * (slope - _row_sums(student * slope))
