"""Leaves become batches of instructions: one per Move; staged transfers and one per Compute.

All iterations of a leaf are handled at once.  A Move whose box is clipped to nothing is dropped,
unless it has a fill: then it still writes padding and stays as a transfer of 0 bytes.  So is one
that brings what nothing reads (`schedule.unread`).
Bytes of a converting Move are counted in the element type of its slower end.
"""

from __future__ import annotations

from functools import reduce

import numpy as np

from worker.compiler.isa.program import Opcode
from worker.compiler.lower.emit.carry import TransferEmitter
from worker.compiler.lower.emit.emit_compute import ComputeEmitter
from worker.compiler.lower.emit.multicast import groups_of
from worker.compiler.lower.grid import Grid, Ints, clip, positions
from worker.compiler.lower.issue import Ahead, Timing
from worker.compiler.lower.resolve import Refs
from worker.compiler.lower.rows.batch import Batch
from worker.compiler.lower.window import EVERYTHING, Window
from worker.compiler.schedule.grid import core_ids
from worker.compiler.schedule.nodes import Move
from worker.compiler.schedule.unread import Unread
from worker.compiler.schedule.walk import Leaf


class Emitter:
    """Emits the batches of every leaf of one unit."""

    def __init__(self, transfers: TransferEmitter, unread: Unread, *, shares: bool) -> None:
        """`shares`: loads of the same bytes are one transfer where links can multicast."""
        self.transfers = transfers
        self.unread = unread
        self.shares = shares
        self.computes = ComputeEmitter(transfers)
        self.nest = transfers.nest
        self.machine = transfers.machine

    def leaf(
        self,
        number: int,
        leaf: Leaf,
        refs: Refs,
        timing: Timing,
        ahead: Ahead | None,
        window: Window = EVERYTHING,
    ) -> list[Batch]:
        """Batches of one leaf.  Cost: linear in its iterations, with numpy's constant."""
        grid = window.grid(leaf.frames, ahead) if window.gaps else Grid.of(leaf.frames)
        position = positions(leaf.frames, timing, ahead, grid)
        core = core_ids(leaf.core_base, leaf.frames, grid.values)
        if isinstance(leaf.node, Move):
            return self._move(number, leaf, leaf.node, refs, grid, position, core)
        return self.computes.emit(number, leaf, leaf.node, refs, grid, position, core)

    def _move(
        self,
        number: int,
        leaf: Leaf,
        move: Move,
        refs: Refs,
        grid: Grid,
        position: Ints,
        core: Ints,
    ) -> list[Batch]:
        box = clip(move.box, self.transfers.tensors[move.tensor].shape, grid.values)
        src = self.transfers.end(refs.reads[0], leaf, grid, core, box.start, is_write=False)
        dst = self.transfers.end(refs.write, leaf, grid, core, box.start, is_write=True)
        slower = min(src, dst, key=lambda end: self.machine.level_index(end.level))
        num_bytes = box.num_elems * slower.dtype.size_bytes
        passed = self.transfers.bursts.packed(num_bytes)
        if self.machine.home.name in (src.level, dst.level):
            passed = self.transfers.bursts.of_box(move.tensor, move.box, box.extent)
        wanted = (
            None if move.fill is not None else num_bytes > 0,
            grid.is_there,
            self.unread.wanted(number, grid.values),
        )
        keep = reduce(np.logical_and, (w for w in wanted if w is not None), np.array(True))
        opcode, outward = self._opcode(leaf, refs, src.level, dst.level)
        slot = int(refs.reads[0].scope is not None)  # of the end at home, if there is one
        found: list[Batch | None] = []
        if opcode is Opcode.LOAD and self.shares:
            groups = groups_of(
                grid, self.transfers.routes, self.machine, core, src, dst, (num_bytes, keep)
            )  # fmt: skip
            if groups is not None:
                touches = [t for end in (src, dst) for each in end.touches
                           for t in groups.touches(each)]  # fmt: skip
                found.append(
                    self.transfers.batch(
                        number, grid, position, core, Opcode.MULTICAST, (src, dst), num_bytes,
                        passed, groups.leads & keep, groups.path.engine,
                        np.array(groups.path.latency_cycles, dtype=np.int64), groups.ports, touches,
                    )
                )  # fmt: skip
                keep = groups.loads_alone & keep
                slot = -1  # what those bring who are served is not counted as shared
        alone = self.transfers.transfer(
            number, slot, grid, position, core, opcode, src, dst, num_bytes, passed, keep, outward
        )
        found.append(alone)
        return [batch for batch in found if batch is not None]

    def _opcode(self, leaf: Leaf, refs: Refs, src: str, dst: str) -> tuple[Opcode, bool]:
        """Opcode, and whether a transfer within one level is issued by the outgoing engine."""
        written, read = refs.write.scope, refs.reads[0].scope
        if written is not None and self.nest.scopes[written].queue is not None:
            return Opcode.PUSH, self.nest.scopes[written].is_filled_in(leaf.stages)
        if read is not None and self.nest.scopes[read].queue is not None:
            return Opcode.POP, False
        i, j = self.machine.level_index(src), self.machine.level_index(dst)
        if i == j:
            return Opcode.COPY, False
        return (Opcode.LOAD, False) if i < j else (Opcode.STORE, True)
