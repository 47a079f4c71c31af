"""A nest against what its program moves: every byte, counted step by step from the nest alone.

The oracle runs the loops one iteration at a time and keeps, per buffer, which tile it holds.  What
it counts must be what the simulator counts on the lowered program; and where the nest says that
buffers live as long as their tiles, filling one only when a dimension of its operand steps, as
peers count, must give the same.
"""

from __future__ import annotations

from collections import Counter
from itertools import product
from math import prod

from export_cases import kernels, nest_of
from hypothesis import given

from worker.compiler.cost.compute import contracted_points
from worker.compiler.export.nest import Hold, LoopNest
from worker.compiler.lower.lower import lower_unit
from worker.compiler.machine.machine import Machine
from worker.compiler.schedule.nodes import Schedule
from worker.simulator.run import simulate_unit


class Counted:
    """Bytes in and out of each memory and points computed, by running the loops."""

    def __init__(self, nest: LoopNest, *, keeps: bool) -> None:
        self.bytes: Counter[tuple[str, str]] = Counter()
        self.points = 0
        held: dict[int, object] = {}
        for at in product(*(range(loop.trip) for loop in nest.loops)):
            spans = self._spans(nest, at, len(nest.loops))
            self.points += prod(max(0, high - low) for low, high in spans)
            for k, hold in enumerate(nest.holds):
                steps = self._spans(nest, at, hold.depth)
                boxes = self._box(nest, hold, steps)
                moved = {d for terms in nest.operands[hold.operand].index for d, _ in terms}
                now: object = [steps[d] for d in sorted(moved)] if keeps else at[: hold.depth]
                if held.get(k) == now:
                    continue
                held[k] = now
                size = prod(max(0, high - low) for low, high in boxes)
                size *= nest.operands[hold.operand].dtype.size_bytes
                ends = (hold.source, hold.memory)
                if hold.operand == len(nest.operands) - 1:
                    if hold.is_read_back:
                        self._move(ends, size)
                    ends = ends[::-1]
                self._move(ends, size)

    def _move(self, ends: tuple[str, str], size: int) -> None:
        self.bytes[ends[0], "read"] += size
        self.bytes[ends[1], "write"] += size

    @staticmethod
    def _spans(nest: LoopNest, at: tuple[int, ...], depth: int) -> list[tuple[int, int]]:
        """Steps of each dimension that run inside the first `depth` loops, clipped."""
        found = []
        for d, dim in enumerate(nest.dims):
            width = nest.tile[d]
            low = 0
            whole = width
            for k in reversed(range(len(nest.loops))):
                if nest.loops[k].dim != d:
                    continue
                if k < depth:
                    low += at[k] * width
                width *= nest.loops[k].trip
                if k >= depth:
                    whole = width
            found.append((low, min(low + whole, dim.extent)))
        return found

    @staticmethod
    def _box(
        nest: LoopNest, hold: Hold, spans: list[tuple[int, int]]
    ) -> tuple[tuple[int, int], ...]:
        """Elements that a buffer at this place takes of its tensor: transfers end at the tensor,
        not where the operator's own edge tiles do."""
        found = []
        tensor = nest.operands[hold.operand]
        dims = zip(tensor.index, tensor.offsets, tensor.shape, hold.extents, strict=True)
        for terms, offset, size, width in dims:
            low = offset + sum(c * spans[d][0] for d, c in terms)
            found.append((max(low, 0), min(low + width, size)))
        return tuple(found)


@given(kernels())
def test_a_nest_moves_what_its_program_moves(kernel: tuple[Schedule, Machine]) -> None:
    schedule, machine = kernel
    nest = nest_of(schedule, machine)
    program = lower_unit(schedule, machine, "0" * 64)
    run = simulate_unit(program, machine, 0, contracted_points(schedule.graph.ops))
    simulated = Counter(
        {(t.level, way): size for t in run.traffic
         for way, size in (("read", t.read_bytes), ("write", t.write_bytes)) if size}
    )  # fmt: skip
    counted = Counted(nest, keeps=False)
    assert counted.bytes == simulated
    if nest.roles is not None:
        assert counted.points == nest.num_points == run.macs


@given(kernels())
def test_stationary_buffers_are_filled_when_their_dimensions_step(
    kernel: tuple[Schedule, Machine],
) -> None:
    nest = nest_of(*kernel)
    if not all(nest.is_stationary(hold) for hold in nest.holds):
        return
    if any(loop.is_spatial for loop in nest.loops):
        return
    assert Counted(nest, keeps=True).bytes == Counted(nest, keeps=False).bytes
