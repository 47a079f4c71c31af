"""Fills that nothing reads: where a tile of work is cut to nothing, so is what was brought for it.

A loop that does not divide its axis leaves the last core with fewer tiles than the others.  Its
computes are empty there, and an operand that does not depend on the loop (a weight, say) would
still be brought for each of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from worker.compiler.machine.machine import Machine
from worker.compiler.schedule.grid import Ints, Range, expr_range
from worker.compiler.schedule.nodes import Compute, Move, Span
from worker.compiler.schedule.walk import (
    Frames,
    Leaf,
    Scope,
    Walk,
    compute_ends,
    move_ends,
)

Bools: TypeAlias = "npt.NDArray[np.bool_]"


@dataclass(frozen=True, slots=True)
class _Cut:
    """A span of a reader's box that may lie outside of [0, size)."""

    span: Span
    size: int
    frames: Frames
    """Around the reader."""


@dataclass(frozen=True, slots=True)
class Hull:
    """What a reader covers of one dimension over all loops inside the scope, at every iteration of
    those around it: [low, end), nothing where this is outside of [0, size)."""

    low: Ints
    end: Ints
    size: int

    @property
    def is_empty(self) -> Bools:
        """Where nothing is inside."""
        return np.asarray((self.end <= 0) | (self.low >= self.size))


class Unread:
    """Which fills of a schedule nothing reads.

    Of scopes that moves alone write, rings apart.  A reader is a compute, or a move that fills a
    scope which is itself read.  Exact where every reader's box is one of the loops inside the
    scope per dimension, otherwise what is claimed to be unread is, and more may be.
    Cost: linear in leaves and their readers.
    """

    def __init__(self, nest: Walk, machine: Machine) -> None:
        self._nest = nest
        self._reads: dict[int, list[tuple[Leaf, Scope | None]]] = {}
        """By scope: its readers, with the scope that they fill, None where it may not be cut."""
        self._fills: dict[int, int] = {}
        """By leaf: the scope that it fills."""
        self._found: dict[int, list[list[_Cut]] | None] = {}
        ends = [_ends(nest, leaf, machine) for leaf in nest.leaves]
        kept = {
            write.number
            for leaf, (_, write) in zip(nest.leaves, ends, strict=True)
            if write is not None and (write.queue is not None or isinstance(leaf.node, Compute))
        }
        for leaf, (reads, write) in zip(nest.leaves, ends, strict=True):
            target = None if write is None or write.number in kept else write
            if target is not None:
                self._fills[leaf.number] = target.number
            for scope in dict.fromkeys(s.number for s in reads if s is not None):
                self._reads.setdefault(scope, []).append((leaf, target))

    def ever(self, number: int) -> bool:
        """Whether any iteration of a leaf may bring what nothing reads."""
        scope = self._fills.get(number)
        return scope is not None and self._cuts(scope) is not None

    def hulls(self, number: int, values: Mapping[str, Ints]) -> list[list[Hull]]:
        """Of a leaf for which there may be such (`ever`): per reader, what it covers.

        It reads nothing where one of its hulls is empty.  `values`: of all loops around the leaf,
        as arrays that broadcast.
        """
        scope = self._fills.get(number)
        cuts = None if scope is None else self._cuts(scope)
        if scope is None or cuts is None:
            return []
        outer = [f.var for f in self._nest.scopes[scope].frames]
        return [[_hull(cut, {name: values[name] for name in outer}) for cut in r] for r in cuts]

    def wanted(self, number: int, values: Mapping[str, Ints]) -> Bools | None:
        """Which iterations of a leaf somebody reads from (for others: all); None: all."""
        if not self.ever(number):
            return None
        found: Bools = np.zeros((), dtype=np.bool_)
        for reader in self.hulls(number, values):
            is_empty: Bools = np.zeros((), dtype=np.bool_)
            for hull in reader:
                is_empty = is_empty | hull.is_empty
            found = found | ~is_empty
        return found

    def _cuts(self, scope: int) -> list[list[_Cut]] | None:
        """Per reader, at the end of its chain, what may cut it to nothing; None: one never is."""
        if scope not in self._found:
            self._found[scope] = self._follow(scope)
        return self._found[scope]

    def _follow(self, scope: int) -> list[list[_Cut]] | None:
        found: list[list[_Cut]] = []
        for leaf, target in self._reads.get(scope, ()):
            own = self._own(leaf)
            behind = None if target is None else self._cuts(target.number)
            for reader in [[]] if behind is None else behind:
                if not own and not reader:
                    return None
                found.append([*own, *reader])
        return found

    def _own(self, leaf: Leaf) -> list[_Cut]:
        """Spans of a leaf's box that may be outside in some iteration."""
        graph = self._nest.schedule.graph
        if isinstance(leaf.node, Move):
            if leaf.node.fill is not None:
                return []
            sizes = graph.tensors[leaf.node.tensor].shape
        else:
            sizes = tuple(axis.extent for axis in graph.op(leaf.node.op).domain)
        ranges = {f.var: (0, f.trip - 1) for f in leaf.frames}
        found: list[_Cut] = []
        for span, size in zip(leaf.node.box, sizes, strict=True):
            low, high, _ = span.start.bounds(ranges)
            if low + span.extent <= 0 or high >= size:
                found.append(_Cut(span, size, leaf.frames))
        return found


def _ends(
    nest: Walk, leaf: Leaf, machine: Machine
) -> tuple[tuple[Scope | None, ...], Scope | None]:
    """Storages that a leaf reads, and the one that it writes."""
    if isinstance(leaf.node, Move):
        ends = move_ends(leaf, leaf.node, machine.home.name)
        return ((), None) if isinstance(ends, str) else (ends.reads, ends.write)
    ends = compute_ends(leaf, leaf.node, nest.schedule.graph, machine)
    return ends.reads, ends.write


def _hull(cut: _Cut, outer: Mapping[str, Ints]) -> Hull:
    box: dict[str, Range] = {
        f.var: (np.asarray(0), np.asarray(f.trip - 1)) for f in cut.frames if f.var not in outer
    }
    low, high = expr_range(cut.span.start, {**box, **{v: (x, x) for v, x in outer.items()}})
    return Hull(low, high + cut.span.extent, cut.size)
