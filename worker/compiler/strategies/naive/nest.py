"""The loop nest of one tiled operator: loops, operand boxes, and where each operand is loaded.

A nest is `CORES loops, TIME loops over output tiles, TIME loops over the reduction`; each operand is
loaded right inside the innermost loop its box depends on, so operands that an inner loop does not
move are reused across it (and CORES loops always give each core its own copy).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, prod

from worker.compiler.ir.affine import Affine, var
from worker.compiler.ir.dtype import DType
from worker.compiler.ir.op import Tensor, TensorOp
from worker.compiler.schedule.nodes import Box, LoopKind
from worker.compiler.tiling.spans import access_box, box_elems, hull


@dataclass(frozen=True, slots=True)
class NestLoop:
    var: str
    trip: int
    kind: LoopKind
    core_stride: int


@dataclass(frozen=True, slots=True)
class Operand:
    """One tensor read through a buffer."""

    tensor: str
    box: Box
    fill: float | int | None
    depth: int
    """Loops outside its buffer."""
    copies: int
    slot_bytes: int


@dataclass(frozen=True, slots=True)
class Nest:
    """A complete tiling of one operator for one scratchpad."""

    loops: tuple[NestLoop, ...]
    num_core_loops: int
    out_depth: int
    """Loops outside the output's buffer (CORES and output-tile loops)."""
    operands: tuple[Operand, ...]
    in_place: tuple[str, ...]
    """Tensors read straight from home (gather tables, incompatible double reads)."""
    out_box: Box
    out_dtype: DType
    """Storage type of the output's buffer: the accumulator type under a reduction."""
    out_bytes: int
    start: Mapping[str, Affine]
    tile: Mapping[str, int]

    @property
    def num_cores(self) -> int:
        return prod(x.trip for x in self.loops[: self.num_core_loops])

    @property
    def buffer_bytes(self) -> int:
        """Bytes of one core's buffers."""
        return self.out_bytes + sum(o.copies * o.slot_bytes for o in self.operands)

    def trips(self, depth: int) -> int:
        """How often a node inside the first `depth` loops runs, all cores together."""
        return prod(x.trip for x in self.loops[:depth])


def build_nest(
    op: TensorOp,
    tensors: Mapping[str, Tensor],
    cores: Mapping[str, int],
    tile: Mapping[str, int],
    align_bytes: int,
) -> Nest:
    """Lay out loops for `tile` (extent per axis) with PARALLEL axes cut over `cores` pieces.

    A core's chunk is a whole number of tiles, so chunks never overlap and only the domain's edge
    clips.  Cost: linear in axes and index terms.
    """
    loops: list[NestLoop] = []
    start: dict[str, Affine] = {axis.name: Affine() for axis in op.domain}
    chunk: dict[str, int] = {}
    pieces: list[tuple[str, int]] = []
    for axis in op.parallel_axes:
        size = tile[axis.name]
        chunk[axis.name] = ceil(ceil(axis.extent / cores.get(axis.name, 1)) / size) * size
        count = ceil(axis.extent / chunk[axis.name])
        if count > 1:
            pieces.append((axis.name, count))
    stride = prod(count for _, count in pieces)
    for k, (name, count) in enumerate(pieces):
        stride //= count
        loops.append(NestLoop(f"c{k}", count, LoopKind.CORES, stride))
        start[name] = start[name] + var(f"c{k}") * chunk[name]
    num_core_loops = len(loops)
    for axis in op.parallel_axes:
        count = ceil(min(chunk[axis.name], axis.extent) / tile[axis.name])
        if count > 1:
            name = f"t{len(loops) - num_core_loops}"
            loops.append(NestLoop(name, count, LoopKind.TIME, 0))
            start[axis.name] = start[axis.name] + var(name) * tile[axis.name]
    out_depth = len(loops)
    for axis in op.reduce_axes:
        count = ceil(axis.extent / tile[axis.name])
        if count > 1:
            name = f"r{len(loops) - out_depth}"
            loops.append(NestLoop(name, count, LoopKind.TIME, 0))
            start[axis.name] = start[axis.name] + var(name) * tile[axis.name]
    out = tensors[op.write.tensor]
    out_dtype = out.dtype.accumulator if op.reduce is not None else out.dtype
    out_box = access_box(op.write, out.shape, start, tile)
    boxes, in_place = _operand_boxes(op, tensors, start, tile)
    operands: list[Operand] = []
    position = {x.var: k + 1 for k, x in enumerate(loops)}
    for tensor, (box, fill) in boxes.items():
        used = [position[v] for span in box for v in span.start.variables()]
        depth = max([num_core_loops, *used])
        repeats = prod(x.trip for x in loops[num_core_loops:depth])
        size_bytes = _aligned(box_elems(box) * tensors[tensor].dtype.size_bytes, align_bytes)
        operands.append(Operand(tensor, box, fill, depth, 2 if repeats > 1 else 1, size_bytes))
    out_bytes = _aligned(box_elems(out_box) * out_dtype.size_bytes, align_bytes)
    return Nest(
        tuple(loops), num_core_loops, out_depth, tuple(operands), in_place, out_box, out_dtype,
        out_bytes, start, dict(tile),
    )  # fmt: skip


def _aligned(size_bytes: int, align_bytes: int) -> int:
    return -(-size_bytes // align_bytes) * align_bytes


def _operand_boxes(
    op: TensorOp,
    tensors: Mapping[str, Tensor],
    start: Mapping[str, Affine],
    tile: Mapping[str, int],
) -> tuple[dict[str, tuple[Box, float | int | None]], tuple[str, ...]]:
    """One box per tensor that is buffered, and the tensors read in place.

    A tensor read through several slots gets the hull of its boxes when their starts differ by
    constants and their fills agree; otherwise, and for data-dependent indices, it stays at home.
    """
    boxes: dict[str, tuple[Box, float | int | None]] = {}
    in_place = {a.tensor: None for a in op.reads if any(e.has_lookup for e in a.index)}
    for access in op.reads:
        if access.tensor in in_place:
            continue
        box = access_box(access, tensors[access.tensor].shape, start, tile)
        if access.tensor in boxes:
            old, fill = boxes[access.tensor]
            joined = hull(old, box) if fill == access.fill else None
            if joined is None:
                del boxes[access.tensor]
                in_place[access.tensor] = None
                continue
            box = joined
        boxes[access.tensor] = (box, access.fill)
    return boxes, tuple(in_place)
