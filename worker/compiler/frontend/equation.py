"""What the equation of an Einsum says: an index for each dimension of operands and result.

Dots are indices of their own, "0", "1", ... from the right, so that shorter ones broadcast.
Source: ONNX, Einsum; numpy.einsum for what an equation without a result means.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_DOTS = "..."


class MalformedEquationError(ValueError):
    """It says nothing for operands of these ranks."""


@dataclass(frozen=True, slots=True)
class Equation:
    """Indices, letters or numbers in words, from the first dimension on."""

    operands: tuple[tuple[str, ...], ...]
    result: tuple[str, ...]

    @property
    def indices(self) -> tuple[str, ...]:
        """All of them, once each, as they are met."""
        return tuple(dict.fromkeys(index for operand in self.operands for index in operand))


def read_equation(text: str, ranks: Sequence[int]) -> Equation:
    """The equation for operands of some ranks.

    Raises:
        MalformedEquationError: another number of operands or dimensions, an index of the result
            that stands twice or in no operand.
    """
    equation = text.replace(" ", "")
    left, arrow, right = equation.partition("->")
    words = left.split(",")
    if len(words) != len(ranks):
        raise MalformedEquationError(f"equation {equation!r} for {len(ranks)} operands")
    operands = tuple(_indices(w, rank, equation) for w, rank in zip(words, ranks, strict=True))
    dots = max((int(i) + 1 for own in operands for i in own if i.isdecimal()), default=0)
    hidden = tuple(str(k) for k in reversed(range(dots)))
    if arrow:
        result = _indices(right, len(right.replace(_DOTS, "")) + dots, equation)
        if _DOTS not in right and dots:
            result = tuple(right)
    else:
        letters = [i for own in operands for i in own if not i.isdecimal()]
        result = (*hidden, *sorted(i for i in set(letters) if letters.count(i) == 1))
    if len(set(result)) != len(result) or not {i for own in operands for i in own}.issuperset(
        result
    ):
        raise MalformedEquationError(f"equation {equation!r} has a malformed result")
    return Equation(operands, result)


def _indices(word: str, rank: int, equation: str) -> tuple[str, ...]:
    before, dots, after = word.partition(_DOTS)
    letters = before + after
    hidden = rank - len(letters)
    if (letters and not letters.isalpha()) or hidden < 0 or (hidden and not dots):
        raise MalformedEquationError(f"equation {equation!r} does not fit operands of rank {rank}")
    return (*before, *(str(k) for k in reversed(range(hidden))), *after)
