"""The tree of a kernel in words, with what every line moves or computes in all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

import numpy as np

from worker.compiler.isa.loops import repetitions
from worker.compiler.isa.program import UnitProgram
from worker.compiler.schedule.nodes import (
    Box,
    Compute,
    Init,
    Loop,
    LoopKind,
    Move,
    Node,
    Pipe,
    Place,
    Queue,
    Schedule,
    Seq,
)


@dataclass(frozen=True, slots=True)
class Line:
    """One node of the tree."""

    depth: int
    """Of indentation."""
    text: str
    trip: int | None = None
    """Of a loop."""
    tile_bytes: int | None = None
    """Of a buffer: all copies."""
    instructions: int | None = None
    """Of a leaf: that run in all."""
    moved_bytes: int | None = None
    """Of a move: by all of them; parts that lie outside of a tensor are not moved."""
    cycles: int | None = None
    """That the leaf's instructions keep their engines in all, ports not counted."""


def lines_of(schedule: Schedule, program: UnitProgram) -> tuple[Line, ...]:
    """The tree, outer to inner.

    Cost: linear in nodes and in rows of the program.
    """
    return tuple(_Writer(schedule, program).lines(schedule.root, "0", 0))


class _Writer:
    def __init__(self, schedule: Schedule, program: UnitProgram) -> None:
        self.graph = schedule.graph
        rows = program.instructions
        if len(program.loops.table):
            times = repetitions(program.loops).astype(np.int64)
        else:
            times = np.ones(len(rows), dtype=np.int64)
        sums = np.zeros((len(program.nodes), 3), dtype=np.int64)
        each = np.stack([times, times * rows["bytes"], times * rows["cycles"]], axis=1)
        np.add.at(sums, rows["node"], each)
        self.totals = dict(zip(program.nodes, sums.tolist(), strict=True))

    def lines(self, node: Node, path: str, depth: int) -> Iterator[Line]:
        """A node and what is in it; `path` as `schedule.walk` numbers them."""
        match node:
            case Loop(var, trip, kind, body):
                yield Line(depth, f"for {var} in {trip} {_KINDS[kind]}", trip=trip)
                yield from self.lines(body, f"{path}.0", depth + 1)
            case Seq(parts):
                for k, part in enumerate(parts):
                    yield from self.lines(part, f"{path}.{k}", depth)
            case Place(body=body):
                yield self._buffer(node, depth)
                yield from self.lines(body, f"{path}.0", depth + 1)
            case Move():
                number, moved, cycles = self.totals.get(path, [0, 0, 0])
                text = f"move {node.tensor} {node.src} -> {node.dst}: {_extents(node.box)}"
                yield Line(
                    depth, text, instructions=number, moved_bytes=moved, cycles=cycles
                )  # fmt: skip
            case Compute():
                number, _, cycles = self.totals.get(path, [0, 0, 0])
                with_what = "" if node.intrinsic is None else f" by {node.intrinsic}"
                again = ", some points again" if node.recompute else ""
                text = f"{node.op} on {node.engine}{with_what}: {_extents(node.box)}{again}"
                yield Line(depth, text, instructions=number, cycles=cycles)
            case Pipe():
                yield Line(depth, f"pipe {node.var} of {node.trip}", trip=node.trip)
                for queue in node.queues:
                    yield self._buffer(queue, depth + 1)
                for k, stage in enumerate(node.stages):
                    yield Line(depth + 1, f"stage {k}, {stage.core_offset} cores on")
                    yield from self.lines(stage.body, f"{path}.{k}", depth + 2)

    def _buffer(self, node: Place | Queue, depth: int) -> Line:
        tensor = self.graph.tensors[node.tensor]
        dtype = node.dtype or tensor.dtype
        copies = node.depth if isinstance(node, Queue) else node.copies
        size = prod(span.extent for span in node.tile) * dtype.size_bytes
        many = "" if copies == 1 else f", {copies} of them"
        begun = ", begins at the identity" if node.init is Init.IDENTITY else ""
        text = f"{node.tensor} in {node.memory}: {_extents(node.tile)} {dtype}{many}{begun}"
        return Line(depth, text, tile_bytes=copies * size)


_KINDS = {
    LoopKind.TIME: "steps",
    LoopKind.CORES: "cores",
    LoopKind.LANES: "lanes",
    LoopKind.UNROLL: "steps, unrolled",
}


def _extents(box: Box) -> str:
    return "x".join(str(span.extent) for span in box) or "1"
