"""Legality of a schedule: run by tests after every producer, and on every cache hit.

Rules (the `rule` of the VerifyError): names, loops, cores, lanes, capacity, coverage, resident,
loaded, init, dtype, drained, queues.  Every rule is exact over all loop iterations; nothing is
sampled.  What values buffers hold is not proved here: `interpret` and the executed kernels do that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod

import numpy as np

from worker.compiler.errors import VerifyError
from worker.compiler.ir.dtype import DType
from worker.compiler.ir.footprint import footprint, full_box
from worker.compiler.ir.op import Access, TensorOp
from worker.compiler.machine.machine import EngineKind, Machine
from worker.compiler.schedule.cover import box_ranges, covers_once, painted, volumes
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
from worker.compiler.schedule.need import Ints, footprint_ranges, needed_ranges


@dataclass(slots=True)
class _Buffer:
    """A Place or Queue in scope."""

    path: str
    tensor: str
    memory: str
    tile: Box
    copies: int
    dtype: DType
    init: Init
    is_queue: bool
    filled: list[str] = field(default_factory=list)
    """Paths of Moves into it and Computes that write it, so far in tree order."""


@dataclass(slots=True)
class _Walk:
    schedule: Schedule
    machine: Machine
    trips: dict[str, int] = field(default_factory=dict)
    kinds: dict[str, LoopKind] = field(default_factory=dict)
    strides: dict[str, int] = field(default_factory=dict)
    offset: int = 0
    buffers: list[_Buffer] = field(default_factory=list)
    seen: set[str] = field(default_factory=set)
    computes: dict[str, list[tuple[Compute, dict[str, int]]]] = field(default_factory=dict)
    drains: dict[str, list[tuple[Box, dict[str, int]]]] = field(default_factory=dict)


def verify(schedule: Schedule, machine: Machine) -> None:
    """Raise VerifyError at the first broken rule.  Cost: linear in loop iterations (vectorised)."""
    walk = _Walk(schedule, machine)
    _visit(schedule.root, "0", walk)
    for op in schedule.graph.ops:
        if not isinstance(op, TensorOp):
            raise _fail("0", "names", f"{op.name} is opaque")
        _check_coverage(op, walk)
    for name in schedule.graph.outputs:
        _check_drained(name, walk)


def _fail(path: str, rule: str, message: str) -> VerifyError:
    return VerifyError("schedule", path, rule, message)


def _visit(node: Node, path: str, walk: _Walk) -> None:
    match node:
        case Loop():
            _visit_loop(node, path, walk)
        case Seq(parts):
            for k, part in enumerate(parts):
                _visit(part, f"{path}.{k}", walk)
        case Pipe():
            _visit_pipe(node, path, walk)
        case Place():
            _enter(node, path, walk)
            _visit(node.body, path + ".0", walk)
            walk.buffers.pop()
        case Move():
            _check_move(node, path, walk)
        case Compute():
            _check_compute(node, path, walk)


def _visit_loop(loop: Loop, path: str, walk: _Walk) -> None:
    if loop.trip < 1 or loop.var in walk.seen:
        raise _fail(path, "loops", f"{loop.var}: trip {loop.trip}, or the variable is used twice")
    walk.seen.add(loop.var)
    walk.trips[loop.var] = loop.trip
    walk.kinds[loop.var] = loop.kind
    if loop.kind is LoopKind.CORES:
        if loop.core_stride < 1:
            raise _fail(path, "cores", f"{loop.var}: core_stride must be >= 1")
        walk.strides[loop.var] = loop.core_stride
        last = walk.offset + sum((walk.trips[v] - 1) * s for v, s in walk.strides.items())
        if last >= walk.machine.num_cores:
            raise _fail(path, "cores", f"core {last} of {walk.machine.num_cores}")
    _visit(loop.body, path + ".0", walk)
    walk.strides.pop(loop.var, None)
    del walk.trips[loop.var], walk.kinds[loop.var]


def _visit_pipe(pipe: Pipe, path: str, walk: _Walk) -> None:
    if pipe.trip < 1 or pipe.var in walk.seen:
        raise _fail(path, "loops", f"{pipe.var}: trip {pipe.trip}, or the variable is used twice")
    walk.seen.add(pipe.var)
    walk.trips[pipe.var] = pipe.trip
    walk.kinds[pipe.var] = LoopKind.TIME
    for k, queue in enumerate(pipe.queues):
        in_range = all(0 <= c < len(pipe.stages) for c in (queue.producer, *queue.consumers))
        forward = all(queue.producer < c for c in queue.consumers)
        if not in_range or not forward or not queue.consumers or queue.depth < 1:
            raise _fail(
                f"{path}.q{k}", "queues",
                f"from stage {queue.producer} to {queue.consumers}, depth {queue.depth}",
            )  # fmt: skip
        _enter(queue, f"{path}.q{k}", walk)
    outer = walk.offset
    for k, stage in enumerate(pipe.stages):
        if not 0 <= outer + stage.core_offset < walk.machine.num_cores:
            raise _fail(f"{path}.{k}", "cores", f"core {outer + stage.core_offset}")
        walk.offset = outer + stage.core_offset
        _visit(stage.body, f"{path}.{k}", walk)
    walk.offset = outer
    del walk.buffers[len(walk.buffers) - len(pipe.queues) :]
    del walk.trips[pipe.var], walk.kinds[pipe.var]


def _enter(node: Place | Queue, path: str, walk: _Walk) -> None:
    tensor = walk.schedule.graph.tensors.get(node.tensor)
    if tensor is None:
        raise _fail(path, "names", f"unknown tensor {node.tensor}")
    if node.memory not in {m.name for m in walk.machine.scratchpads}:
        raise _fail(path, "names", f"{node.memory} is not a scratchpad of {walk.machine.name}")
    if len(node.tile) != len(tensor.shape) or any(s.extent < 1 for s in node.tile):
        raise _fail(path, "names", f"tile of rank {len(node.tile)} for {tensor}")
    _known_variables(node.tile, path, walk)
    copies = node.copies if isinstance(node, Place) else node.depth
    if copies < 1:
        raise _fail(path, "capacity", f"copies {copies}")
    dtype = node.dtype or tensor.dtype
    walk.buffers.append(
        _Buffer(path, node.tensor, node.memory, node.tile, copies, dtype, node.init,
                isinstance(node, Queue))
    )  # fmt: skip
    _check_capacity(path, node.memory, walk)


def _known_variables(box: Box, path: str, walk: _Walk) -> None:
    for span in box:
        unknown = [v for v in span.start.variables() if v not in walk.trips]
        if unknown:
            raise _fail(path, "names", f"{span.start} uses {unknown} outside their loops")


def _check_capacity(path: str, memory: str, walk: _Walk) -> None:
    """Nested buffers of one level must fit together in one instance."""
    level = walk.machine.level(memory)
    sharing = max(1, walk.machine.num_cores // level.instances)
    own = prod(walk.trips[v] for v, s in walk.strides.items() if s < sharing)
    need = 0
    for buffer in walk.buffers:
        if buffer.memory == memory:
            size = prod(s.extent for s in buffer.tile) * buffer.dtype.size_bytes
            size = -(-size // level.align_bytes) * level.align_bytes
            need += size * buffer.copies
    if need * own > level.usable_bytes:
        raise _fail(
            path, "capacity", f"{memory} needs {need * own} bytes, has {level.usable_bytes}"
        )


def _innermost(tensor: str, walk: _Walk, memory: str | None = None) -> _Buffer | None:
    for buffer in reversed(walk.buffers):
        if buffer.tensor == tensor and memory in (None, buffer.memory):
            return buffer
    return None


def _check_move(move: Move, path: str, walk: _Walk) -> None:
    tensor = walk.schedule.graph.tensors.get(move.tensor)
    if tensor is None or move.src == move.dst or len(move.box) != len(tensor.shape):
        raise _fail(path, "names", f"{move.tensor}: {move.src} -> {move.dst}")
    _known_variables(move.box, path, walk)
    home = walk.machine.home.name
    for memory, is_dst in ((move.src, False), (move.dst, True)):
        if memory == home:
            continue
        buffer = _innermost(move.tensor, walk, memory)
        if buffer is None:
            raise _fail(path, "resident", f"no buffer of {move.tensor} in {memory} here")
        clip = None if is_dst and move.fill is not None else tensor.shape
        low, high = needed_ranges(move.box, walk.trips)
        if clip is not None:
            top = np.array(clip, dtype=np.int64)
            low, high = np.clip(low, 0, top), np.clip(high, 0, top)
        _inside(low, high, buffer, path, walk)
        if is_dst:
            buffer.filled.append(path)
        elif not buffer.filled and buffer.init is Init.UNDEFINED:
            raise _fail(path, "loaded", f"{move.tensor} in {memory} is moved before it is written")
    if move.dst == home:
        walk.drains.setdefault(move.tensor, []).append((move.box, dict(walk.trips)))


def _inside(
    low: Ints,
    high: Ints,
    buffer: _Buffer,
    path: str,
    walk: _Walk,
) -> None:
    """Every non-empty range must lie inside the buffer's tile in the same iteration."""
    first, last = needed_ranges(buffer.tile, walk.trips)
    if len(low) != len(first):
        raise _fail(path, "resident", "iteration spaces differ")
    busy = volumes(low, high) > 0
    outside = busy & (np.any(low < first, axis=1) | np.any(high > last, axis=1))
    if bool(np.any(outside)):
        k = int(np.argmax(outside))
        raise _fail(
            path, "resident",
            f"{buffer.tensor}[{low[k].tolist()}, {high[k].tolist()}) leaves its buffer"
            f" [{first[k].tolist()}, {last[k].tolist()}) placed at {buffer.path}",
        )  # fmt: skip


def _check_compute(compute: Compute, path: str, walk: _Walk) -> None:
    graph, machine = walk.schedule.graph, walk.machine
    try:
        op = graph.tensor_op(compute.op)
        engine = machine.engine(compute.engine)
    except KeyError as unknown:
        raise _fail(path, "names", f"unknown {unknown}") from None
    if engine.kind in (EngineKind.DMA_IN, EngineKind.DMA_OUT):
        raise _fail(path, "names", f"{engine.name} does not compute")
    if len(compute.box) != len(op.domain):
        raise _fail(path, "names", f"box of rank {len(compute.box)} for {len(op.domain)} axes")
    _known_variables(compute.box, path, walk)
    lanes = prod(t for v, t in walk.trips.items() if walk.kinds[v] is LoopKind.LANES)
    if lanes > prod(engine.array or (1,)):
        raise _fail(path, "lanes", f"{lanes} lanes on an array of {engine.array}")
    extents = tuple(a.extent for a in op.domain)
    low, high = needed_ranges(compute.box, walk.trips)
    top = np.array(extents, dtype=np.int64)
    low, high = np.clip(low, 0, top), np.clip(high, 0, top)
    for slot, access in enumerate(op.reads):
        buffer = _innermost(access.tensor, walk)
        if buffer is None:
            continue
        if not buffer.filled and buffer.init is Init.UNDEFINED:
            raise _fail(path, "loaded", f"slot {slot} reads {access.tensor} before it is loaded")
        _check_access(op, access, low, high, buffer, path, walk)
    out = _innermost(op.write.tensor, walk)
    tensor = graph.tensors[op.write.tensor]
    if out is not None:
        _check_access(op, op.write, low, high, out, path, walk)
        out.filled.append(path)
    if op.reduce is not None:
        if out is None or (out.init is Init.UNDEFINED and len(out.filled) < 2):
            raise _fail(path, "init", f"{op.name} accumulates into an uninitialised buffer")
        if out.dtype is not tensor.dtype.accumulator:
            raise _fail(path, "dtype", f"{out.dtype} buffer, {tensor.dtype.accumulator} sums")
    else:
        if out is None:
            walk.drains.setdefault(op.write.tensor, []).append(((), {"": 0}))
        if out is not None and out.dtype is not tensor.dtype:
            raise _fail(path, "dtype", f"{out.dtype} buffer holds {tensor.dtype} results")
    walk.computes.setdefault(op.name, []).append((compute, dict(walk.trips)))


def _check_access(
    op: TensorOp,
    access: Access,
    low: Ints,
    high: Ints,
    buffer: _Buffer,
    path: str,
    walk: _Walk,
) -> None:
    shape = walk.schedule.graph.tensors[access.tensor].shape
    first, last = footprint_ranges(op, access, low, high, shape)
    if access.fill is None:
        top = np.array(shape, dtype=np.int64)
        first, last = np.clip(first, 0, top), np.clip(last, 0, top)
    empty = volumes(low, high) == 0
    if len(shape):
        last = np.where(empty[:, None], first, last)
    elif not len(low):
        return
    _inside(first, last, buffer, path, walk)


def _check_coverage(op: TensorOp, walk: _Walk) -> None:
    leaves = walk.computes.get(op.name, [])
    extents = tuple(a.extent for a in op.domain)
    firm = [box_ranges(c.box, trips, extents) for c, trips in leaves if not c.recompute]
    loose = [box_ranges(c.box, trips, extents) for c, trips in leaves if c.recompute]
    if not firm and not loose:
        raise _fail("0", "coverage", f"{op.name} is never computed")
    if not extents:
        if len(firm) != 1 or len(firm[0][0]) != 1:
            raise _fail("0", "coverage", f"{op.name} has one point, computed elsewhere too")
        return
    if not loose:
        low = np.concatenate([a for a, _ in firm])
        high = np.concatenate([b for _, b in firm])
        wrong = covers_once(low, high, extents)
        if wrong is not None:
            raise _fail("0", "coverage", f"{op.name}: {wrong}")
        return
    low = np.concatenate([a for a, _ in (*firm, *loose)])
    high = np.concatenate([b for _, b in (*firm, *loose)])
    kept = volumes(low, high) > 0
    counts = painted(low[kept], high[kept], extents, np.ones(int(kept.sum()), dtype=np.int64))
    if counts is None or counts.min() < 1:
        raise _fail("0", "coverage", f"{op.name}: some points are never computed")
    if op.reduce is not None and any(a.extent > 1 for a in op.reduce_axes):
        whole = all(
            np.all(a[v, k] == 0) and np.all(b[v, k] == axis.extent)
            for a, b in loose
            for v in [volumes(a, b) > 0]
            for k, axis in enumerate(op.domain)
            if axis in op.reduce_axes
        )
        if not whole:
            raise _fail("0", "coverage", f"{op.name}: recomputed points need whole reductions")


def _check_drained(name: str, walk: _Walk) -> None:
    """Every element that operators write of an output must reach home, by moves or directly."""
    graph = walk.schedule.graph
    shape = graph.tensors[name].shape
    boxes = walk.drains.get(name, [])
    if any("" in trips for _, trips in boxes):
        return
    if not boxes:
        raise _fail("0", "drained", f"output {name} never reaches home")
    if not shape:
        return
    parts = [box_ranges(box, trips, shape) for box, trips in boxes]
    low = np.concatenate([a for a, _ in parts])
    high = np.concatenate([b for _, b in parts])
    for op in graph.ops:
        if not isinstance(op, TensorOp) or op.write.tensor != name:
            continue
        written = footprint(op.write, full_box(op), shape).box
        first = np.array([a for a, _ in written], dtype=np.int64)
        extents = tuple(b - a + 1 for a, b in written)
        top = np.array(extents, dtype=np.int64)
        inner_low = np.clip(low - first, 0, top)
        inner_high = np.clip(high - first, 0, top)
        if covers_once(inner_low, inner_high, extents) is None:
            continue
        kept = volumes(inner_low, inner_high) > 0
        weight = np.ones(int(kept.sum()), dtype=np.int64)
        counts = painted(inner_low[kept], inner_high[kept], extents, weight)
        if counts is None or counts.min() < 1:
            raise _fail("0", "drained", f"output {name} reaches home only in part")
