"""Layout notation: how a tensor of named dimensions lies in memory, in letters.

A capital letter is a dimension, in memory order; a number and a small letter is an inner block of
that dimension: `NCHW16c` stores channel c of pixel (h, w) at [n, c // 16, h, w, c % 16].  The
logical tensor keeps ONNX's order: N, C, then D, H, W for activations; O, I, then D, H, W for
weights.

Source: the layout strings of the BYOC paper's section 3.2 (figure 4b); the same letters as TVM's.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Any, TypeVar

from worker.compiler.ir.affine import Affine

if TYPE_CHECKING:
    import numpy.typing as npt

ACTIVATIONS = "NC"
"""Leading letters of an activation's logical order."""
WEIGHTS = "OI"
"""Leading letters of a weight's logical order."""
_SPATIAL = "DHW"
_Value = TypeVar("_Value")
_TOKEN = re.compile(r"([A-Z])|([0-9]+)([a-z])")


@dataclass(frozen=True, slots=True)
class Dim:
    """One dimension in memory."""

    letter: str
    """The logical dimension, as a capital letter."""
    block: int = 0
    """0: what the inner blocks leave of the dimension; else an inner block of this extent."""

    def __str__(self) -> str:
        return f"{self.block}{self.letter.lower()}" if self.block else self.letter


@dataclass(frozen=True, slots=True)
class Layout:
    """An order of dimensions in memory, some of them blocked."""

    dims: tuple[Dim, ...]
    """In memory, slowest first."""
    logical: str
    """Letters of the logical tensor's dimensions, in its order."""

    def __str__(self) -> str:
        return "".join(map(str, self.dims))

    @property
    def is_plain(self) -> bool:
        """Whether memory order is the logical order."""
        return str(self) == self.logical

    @property
    def blocked_letters(self) -> tuple[str, ...]:
        """Letters with at least one inner block, in logical order."""
        return tuple(letter for letter in self.logical if self.blocks(letter))

    def blocks(self, letter: str) -> tuple[int, ...]:
        """Inner blocks of a dimension, most significant first."""
        return tuple(d.block for d in self.dims if d.letter == letter and d.block)

    def block(self, letter: str) -> int:
        """Product of a dimension's inner blocks; 1 when it has none."""
        return prod(self.blocks(letter))

    def position(self, letter: str) -> int:
        """Which dimension of the logical tensor a letter is."""
        return self.logical.index(letter)

    def without_blocks(self, letters: Sequence[str]) -> Layout:
        """The same order with the given letters unblocked."""
        kept = tuple(d for d in self.dims if not (d.block and d.letter in letters))
        return replace(self, dims=kept)

    def reordered(self, logical: str) -> Layout:
        """The same memory order for a logical tensor whose dimensions come in another order.

        ConvTranspose keeps its weights as I, O, ...: the letters mean the same, at other places.
        """
        if sorted(logical) != sorted(self.logical):
            raise ValueError(f"{logical} does not name the dimensions of {self}")
        return replace(self, logical=logical)

    def for_rank(self, rank: int) -> Layout:
        """The same layout with another number of spatial dimensions (NHWC of rank 3 is NWC).

        Raises:
            ValueError: no layout of this kind has that rank.
        """
        lead = self.logical.translate(str.maketrans("", "", _SPATIAL))
        count = rank - len(lead)
        if not 0 <= count <= len(_SPATIAL):
            raise ValueError(f"{self} has no form of rank {rank}")
        spatial = _SPATIAL[len(_SPATIAL) - count :]
        dims = [d for d in self.dims if d.letter in lead or d.letter in spatial]
        missing = [Dim(s) for s in spatial if s not in self.logical]
        at = next((k for k, d in enumerate(dims) if d.letter in _SPATIAL), len(lead))
        return Layout((*dims[:at], *missing, *dims[at:]), lead + spatial)

    def shape(self, logical: tuple[int, ...]) -> tuple[int, ...]:
        """Extents in memory of a tensor of shape `logical`; a partial block counts whole."""
        extent = self._by_letter(logical)
        return tuple(d.block or -(-extent[d.letter] // self.block(d.letter)) for d in self.dims)

    def index(self, indices: Sequence[Affine]) -> tuple[Affine, ...]:
        """Index in memory of the logical element at `indices`."""
        at = self._by_letter(indices)
        below = {letter: self.block(letter) for letter in self.logical}
        found: dict[int, Affine] = {}
        for k, dim in enumerate(self.dims):
            if not dim.block:
                found[k] = at[dim.letter].floordiv(self.block(dim.letter))
        for k, dim in enumerate(self.dims):
            if dim.block:
                below[dim.letter] //= dim.block
                found[k] = at[dim.letter].floordiv(below[dim.letter]).mod(dim.block)
        return tuple(found[k] for k in range(len(self.dims)))

    def pack(self, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """A logical array as it lies in memory; partial blocks are filled up with zeros.

        Shapes: `array` has the logical shape, the result `shape(array.shape)`, contiguous.
        Cost: one copy.
        """
        # Imported here because the API process reads layouts and must not load numpy.
        import numpy as np

        blocks = [(self.blocks(letter), self.block(letter)) for letter in self.logical]
        padding = [
            (0, -extent % block) for extent, (_, block) in zip(array.shape, blocks, strict=True)
        ]
        digits: list[int] = []
        start: dict[str, int] = {}
        for letter, extent, (inner, block) in zip(self.logical, array.shape, blocks, strict=True):
            start[letter] = len(digits)
            digits += [-(-extent // block), *inner]
        order: list[int] = []
        taken = dict(start)
        for dim in self.dims:
            taken[dim.letter] += bool(dim.block)
            order.append(taken[dim.letter] if dim.block else start[dim.letter])
        split = np.pad(array, padding).reshape(digits)
        return np.ascontiguousarray(split.transpose(order))

    def _by_letter(self, values: Sequence[_Value]) -> dict[str, _Value]:
        if len(values) != len(self.logical):
            raise ValueError(f"{self} has {len(self.logical)} dimensions, not {len(values)}")
        return dict(zip(self.logical, values, strict=True))


def parse_layout(text: str) -> Layout:
    """Read a layout such as NCHW, NHWC, NCHW16c, NWC, OIHW, HWIO, OHWI or OIHW16i16o.

    Raises:
        ValueError: with a sentence that says what is wrong.
    """
    dims: list[Dim] = []
    at = 0
    while at < len(text):
        token = _TOKEN.match(text, at)
        if token is None:
            raise ValueError(
                f"layout {text!r}: {text[at:]!r} is neither a capital letter nor a block such as"
                " 16c"
            )
        capital, extent, small = token.groups()
        if extent is not None and int(extent) < 2:
            raise ValueError(f"layout {text!r}: a block of {extent} is no block; 2 or more needed")
        dims.append(Dim(capital) if capital else Dim(small.upper(), int(extent)))
        at = token.end()
    whole = [d.letter for d in dims if not d.block]
    repeated = sorted({letter for letter in whole if whole.count(letter) > 1})
    if repeated:
        raise ValueError(f"layout {text!r}: {', '.join(repeated)} occurs more than once")
    inner = [str(d) for d in dims if d.block and d.letter not in whole]
    if inner:
        raise ValueError(f"layout {text!r}: block {inner[0]} has no capital {inner[0][-1].upper()}")
    return Layout(tuple(dims), _logical(text, whole))


def _logical(text: str, letters: Sequence[str]) -> str:
    """ONNX's order of the letters."""
    spatial = "".join(s for s in _SPATIAL if s in letters)
    for lead in (ACTIVATIONS, WEIGHTS):
        if sorted(letters) == sorted(lead + spatial):
            if _SPATIAL.endswith(spatial):
                return lead + spatial
            wanted = _SPATIAL[len(_SPATIAL) - len(spatial) :]
            raise ValueError(
                f"layout {text!r}: {len(spatial)} spatial dimensions are called {wanted},"
                f" not {spatial}"
            )
    raise ValueError(
        f"layout {text!r}: needs N and C (activations) or O and I (weights), and of the spatial"
        " letters W, HW or DHW; nothing else"
    )
