"""The instructions of an engine as values: their sizes, and what calls of them take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

from worker.compiler.ir.dtype import DType


@dataclass(frozen=True, slots=True)
class Answers:
    """What an oracle said of calls of one size and format, at steps of its extents."""

    dtype: DType
    """Of the left factor, or of the points."""
    granule: tuple[int, int, int]
    """The steps; a call in between costs as much as the next one up."""
    at_steps: tuple[int, ...]
    """Cycles, depth varying fastest."""
    peak: float
    """Points per cycle of the best of them."""

    def cycles(self, extents: tuple[int, ...], most: tuple[int, int, int]) -> int:
        """Of a call over `extents`, of at most `most`."""
        place = 0
        for extent, step, whole in zip(extents, self.granule, most, strict=True):
            place = place * -(-whole // step) + -(-extent // step) - 1
        return self.at_steps[place]


@dataclass(frozen=True, slots=True)
class CallSize:
    """A size that an instruction may have, and what a call of it takes."""

    extents: tuple[int, int, int]
    """Rows, columns and depth of a product; of element-wise work the points, 1 and 1."""
    terms: tuple[tuple[str, float], ...]
    """Cycles for each unit of a product of extents: letters of `mnk`, each once; "": for a call.
    None is negative."""
    answers: Answers | None = None
    """Of an oracle, in place of the terms."""

    def cycles(self, extents: tuple[int, ...]) -> float:
        """Cycles of a call over `extents`, none of them larger than its own."""
        if self.answers is not None:
            return self.answers.cycles(extents, self.extents)
        size = dict(zip("mnk", extents, strict=True))
        return sum(each * prod(size[letter] for letter in term) for term, each in self.terms)

    @property
    def peak(self) -> float:
        """Points per cycle that no call beats: those of a full one, as no term of a formula grows
        faster than the points do; of an oracle, those of its best answer."""
        if self.answers is not None:
            return self.answers.peak
        return prod(self.extents) / self.cycles(self.extents)


def stepped(most: Sequence[int], granule: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """The sizes that an oracle is asked for: every step of each extent, the last one whole."""
    steps = (
        [min(whole, (k + 1) * step) for k in range(-(-whole // step))]
        for whole, step in zip(most, granule, strict=True)
    )
    return tuple(product(*steps))


@dataclass(frozen=True, slots=True)
class Question:
    """That an oracle has the cycles of an instruction."""

    oracle: str
    """As installed packages call it."""
    extents: tuple[int, int, int]
    granule: tuple[int, int, int]
    pointer: str
    """Where the user's document names it."""


@dataclass(frozen=True, slots=True)
class LibraryCall:
    """That a vendor's kernel library has the instruction as C functions."""

    symbol: str
    """Their name without the types at its end."""
    pointer: str
    """Where the user's document names it."""


@dataclass(frozen=True, slots=True)
class Intrinsic:
    """One hardware instruction of a compute engine."""

    name: str
    op: str
    """`matmul`, `conv` or `elementwise`."""
    sizes: tuple[CallSize, ...]
    """A box is covered with calls of one of them.  None: the question has not been asked."""
    is_by_pattern: bool = False
    """Whether targets have pattern tables: then it serves only what a row that names it matches,
    else every product of its kind."""
    question: Question | None = None
    """None: the document itself has its cycles."""
    call: LibraryCall | None = None
    """None: kernels have code of their own for it."""
