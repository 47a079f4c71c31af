"""What of a tensor is moved in whole bursts: the part of a memory's traffic that nobody asked for.

A DRAM delivers bursts, a cache sectors: an access of two bytes takes a whole one.  How many a box
of a tensor takes follows from how it lies, row by row, and from what is known of the address of its
first element: that it is a multiple of something.  Each run of bytes that follow each other takes
at most what it takes at the worst of these addresses; bursts that several runs have a part of count
once where all between the first and the last byte takes fewer.
Source: 4-papers.md TV-WE-6 (Welder's transactions of 128 bytes), here with addresses.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd, prod
from operator import mul
from typing import NamedTuple

from worker.compiler.ir.affine import Affine
from worker.compiler.machine.machine import Machine, Managed, MemoryLevel


class Sizes(NamedTuple):
    """Bytes of one transfer by what ports count."""

    payload: int
    home: int
    """In bursts of home."""
    cache: int
    """In those of caches."""


def counted_at(level: MemoryLevel, machine: Machine) -> str:
    """Which of `isa.program.PASSED` the ports of a level count."""
    if level.burst_bytes == 1:
        return "bytes"
    return "drawn" if level.name == machine.home.name else "returned"


def burst_units(machine: Machine) -> tuple[int, int]:
    """Bytes of a burst at home, and at caches: of several the longest."""
    caches = [m.burst_bytes for m in machine.levels[1:] if m.managed is Managed.CACHE]
    return machine.home.burst_bytes, max(caches, default=1)


def strides_of(shape: Sequence[int], item_bytes: int) -> list[int]:
    """Bytes from one element to the next, per dimension."""
    return [item_bytes * prod(shape[d + 1 :]) for d in range(len(shape))]


def pitch_of(start: Affine) -> int:
    """The most that an index is known to be a multiple of, whatever its variables are; 0: it is the
    first."""
    return gcd(start.const, *(factor for _, factor in start.terms))


def sizes_of_tile(
    payload: int,
    extents: Sequence[int],
    shape: Sequence[int],
    item_bytes: int,
    pitches: Sequence[int],
    machine: Machine,
) -> Sizes:
    """Of a transfer that begins or ends at home; parameters as of `burst_bytes`."""
    inside = [min(extent, size) for extent, size in zip(extents, shape, strict=True)]
    home, cache = (
        payload
        if unit == 1
        else max(
            payload,
            burst_bytes(inside, shape, item_bytes, pitches, machine.home.align_bytes, unit),
        )
        for unit in burst_units(machine)
    )
    return Sizes(payload, home, cache)


def burst_bytes(
    extents: Sequence[int],
    shape: Sequence[int],
    item_bytes: int,
    pitches: Sequence[int],
    align_bytes: int,
    burst: int,
) -> int:
    """At most so many bytes pass when a box of `extents` elements of a tensor moves; 0 where it is
    empty.

    `pitches`: what its first index is a multiple of, per dimension (0: it is the first).  The
    tensor begins at a multiple of `align_bytes`.
    Cost: the dimensions squared.
    """
    if min(extents, default=1) < 1:
        return 0
    strides = strides_of(shape, item_bytes)
    pitch = gcd(align_bytes, *map(mul, pitches, strides))
    found = _taken(extents, strides, item_bytes, pitch, burst)
    # No box takes more than one around it, of whose address more is known where its rows are whole.
    around = list(extents)
    for d in reversed(range(len(shape))):
        if around[d] < shape[d]:
            around[d] = shape[d]
            pitch = gcd(align_bytes, *map(mul, pitches[:d], strides[:d]))
            found = min(found, _taken(around, strides, item_bytes, pitch, burst))
    return found


def _taken(
    extents: Sequence[int], strides: Sequence[int], item_bytes: int, pitch: int, burst: int
) -> int:
    """Of a box whose first address is a multiple of `pitch`."""
    # What is known of the first address of a run: it is also a step of any dimension further out.
    known = gcd(burst, pitch)
    pitches: list[int] = []
    for extent, stride in zip(extents, strides, strict=True):
        pitches.append(known)
        if extent > 1:
            known = gcd(known, stride)
    span = item_bytes
    taken = -(-(item_bytes + burst - known) // burst) * burst
    for extent, stride, known in zip(
        reversed(extents), reversed(strides), reversed(pitches), strict=True
    ):
        span += (extent - 1) * stride
        taken = min(taken * extent, -(-(span + burst - known) // burst) * burst)
    return taken
