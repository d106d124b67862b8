"""Roots of a few equations that depend on a parameter, and the curve that they form as the parameter changes.

`newton` finds a root at one value of the parameter. `walk` follows the curve by pseudo-arclength continuation: a step
along the tangent, then Newton's method in the plane normal to it. At a fold, where the curve turns back and the
Jacobian is singular, the tangent has no component along the parameter, and nothing is special for the walk.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import numpy as np
from jaxtyping import Float

from attention_phases._arrays import Array

_MOST_PLACES = 400
_LONGEST = 0.4


class Evaluation(Protocol):
    """The equations at one point: the defects of the k equations first in `values`, then whatever else is observed."""

    @property
    def x(self) -> Float[Array, " k"]:
        """The unknowns."""
        ...

    @property
    def parameter(self) -> float:
        """The parameter."""
        ...

    @property
    def values(self) -> Float[Array, " n"]:
        """Defects, and what else is observed."""
        ...


E = TypeVar("E", bound=Evaluation)


class Equations(Protocol[E]):
    """Equations for k unknowns."""

    def evaluate(self, x: Float[Array, " k"], parameter: float) -> E:
        """The equations at one point."""
        ...

    def parameter_slope(self, at: E) -> Float[Array, " k"]:
        """Derivatives of the defects with respect to the parameter."""
        ...

    def scale(self, x: Float[Array, " k"]) -> Float[Array, " k"]:
        """Changes of the unknowns are relative to this."""
        ...


def jacobian(equations: Equations[E], at: E) -> Float[Array, "n k"]:
    """Derivatives of all values, by differences of 1 %: wide for functions with small steps, and exact enough."""
    columns = []
    for i, step in enumerate(0.01 * equations.scale(at.x)):
        shifted = at.x.copy()
        shifted[i] += step
        columns.append((equations.evaluate(shifted, at.parameter).values - at.values) / step)
    return np.stack(columns, axis=1)


def newton(
    equations: Equations[E], at: E, slopes: Float[Array, "n k"], tolerance: float, max_steps: int = 12
) -> tuple[E, Float[Array, "n k"], bool]:
    """Newton's method with Broyden's updates of the Jacobian `slopes`, and a new one where progress is slow.

    It ends when the next step is below the tolerance, relative to the scale of the unknowns.
    """
    size, last = len(at.x), np.inf
    for count in range(max_steps):
        scale = equations.scale(at.x)
        try:
            step = np.asarray(np.linalg.solve(slopes[:size], -at.values[:size]), dtype=np.float64)
            if np.abs(step / scale).max() > 3 * last:  # the updates have spoilt the Jacobian
                slopes = jacobian(equations, at)
                step = np.asarray(np.linalg.solve(slopes[:size], -at.values[:size]), dtype=np.float64)
        except np.linalg.LinAlgError:
            return at, slopes, False
        relative = last = float(np.abs(step / scale).max())
        if relative <= tolerance:
            return at, slopes, True
        step *= min(1.0, 0.5 / relative)
        new = equations.evaluate(at.x + step, at.parameter)
        slopes = _broyden(slopes, step, new.values - at.values, scale)
        slow = np.abs(new.values[:size]).max() > 0.3 * np.abs(at.values[:size]).max()
        at = new
        if slow and count % 4 == 3:
            slopes = jacobian(equations, at)
    return at, slopes, False


def _broyden(
    slopes: Float[Array, "n k"], step: Float[Array, " k"], change: Float[Array, " n"], scale: Float[Array, " k"]
) -> Float[Array, "n k"]:
    weighted = step / scale**2
    return np.asarray(slopes + np.outer(change - slopes @ step, weighted / (weighted @ step)))


@dataclass(frozen=True, eq=False)
class Place(Generic[E]):
    """A root on the curve, the Jacobian there, and the unit tangent (scaled unknowns, then the parameter)."""

    at: E
    slopes: Float[Array, "n k"]
    tangent: Float[Array, " k+1"]
    scale: Float[Array, " k"]

    @property
    def direction(self) -> float:
        """Whether the parameter rises or falls along the tangent."""
        return float(np.sign(self.tangent[-1]))


def walk(
    equations: Equations[E],
    at: E,
    slopes: Float[Array, "n k"],
    direction: float,
    tolerance: float,
    longest: float = _LONGEST,
) -> Iterator[tuple[Place[E], Place[E]]]:
    """Pairs of neighbouring places on the curve, leaving a root with the parameter rising (+1) or falling (-1).

    It ends where even a short step finds no root, or after many places. Where one piece of the curve ends and another
    begins not farther than the longest step, it may leap across.
    """
    here = _place(equations, at, slopes, equations.scale(at.x), np.append(np.zeros(len(at.x)), direction))
    length = min(0.1, longest)
    for _ in range(_MOST_PLACES):
        there = None
        while there is None:
            there = along(equations, here, length, tolerance)
            if there is not None and there.tangent @ here.tangent < 0.8:  # too sharp a bend for one step
                there = None
            if there is None:
                length /= 2
                if length < 1e-3:
                    return
        yield here, there
        here = there
        length = min(1.5 * length, longest)


def along(equations: Equations[E], here: Place[E], length: float, tolerance: float) -> Place[E] | None:
    """The place on the curve at a distance along the tangent of another. None where no root is found there."""
    at = _correct(equations, here, length, tolerance)
    return None if at is None else _place(equations, at, jacobian(equations, at), here.scale, here.tangent)


def _place(
    equations: Equations[E],
    at: E,
    slopes: Float[Array, "n k"],
    scale: Float[Array, " k"],
    towards: Float[Array, " k+1"],
) -> Place[E]:
    wide = np.column_stack([slopes[: len(scale)] * scale, equations.parameter_slope(at)])
    tangent = np.linalg.svd(wide).Vh[-1]
    return Place(at, slopes, tangent * (1 if tangent @ towards > 0 else -1), scale)


def _correct(equations: Equations[E], here: Place[E], length: float, tolerance: float) -> E | None:
    """The root in the plane normal to the tangent, at a distance along it. None where Newton's method finds none."""
    size, scale, slopes = len(here.scale), here.scale, here.slopes
    where = np.append(here.at.x / scale, here.at.parameter) + length * here.tangent
    at = equations.evaluate(where[:size] * scale, float(where[-1]))
    for _ in range(8):
        bordered = np.vstack([np.column_stack([slopes[:size] * scale, equations.parameter_slope(at)]), here.tangent])
        step = np.linalg.solve(bordered, np.append(-at.values[:size], 0.0))
        if not np.isfinite(step).all() or np.abs(step).max() > 1:
            return None
        if np.abs(step).max() < tolerance:
            return at
        where = where + step
        new = equations.evaluate(where[:size] * scale, float(where[-1]))
        change = new.values - at.values
        change[:size] -= equations.parameter_slope(at) * step[-1]  # what the parameter did
        slopes = _broyden(slopes, step[:size] * scale, change, scale)
        at = new
    return None


def turning_point(before: Place[E], after: Place[E]) -> float:
    """The parameter where the tangent turns: the extreme of the cubic in arc length between the two places."""
    a, b = before.tangent[-1], after.tangent[-1]
    rise = after.at.parameter - before.at.parameter
    arc = float(np.linalg.norm(np.append((after.at.x - before.at.x) / before.scale, rise)))
    u = np.linspace(0, 1, 1001)
    cubic = (u - 2 * u**2 + u**3) * arc * a + (3 * u**2 - 2 * u**3) * rise + (u**3 - u**2) * arc * b
    return float(before.at.parameter + (cubic.max() if a > 0 else cubic.min()))
