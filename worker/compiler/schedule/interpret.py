"""The sequential numpy meaning of a schedule: small real buffers, poisoned before use.

Every core has buffers of its own, every Place its copies as slots; reading an element that nothing
wrote, or outside a buffer, raises.  For toy sizes: Python visits every iteration.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from typing import assert_never

import numpy as np

from worker.compiler.errors import MemoryFault, VerifyError
from worker.compiler.ir.axis import AxisKind
from worker.compiler.ir.bits import held_type, load, store
from worker.compiler.ir.dtype import DType
from worker.compiler.ir.evaluate import (
    Array,
    combine,
    index_values,
    reduce_over,
    scalar_values,
)
from worker.compiler.ir.op import Access, TensorOp
from worker.compiler.ir.scalar_type import promoted
from worker.compiler.schedule.nodes import (
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
from worker.compiler.schedule.walk import walk


@dataclass(slots=True, eq=False)
class _Buffer:
    """Elements standing at `origin` of their tensor, and which of them are defined."""

    tensor: str
    memory: str
    dtype: DType
    origin: tuple[int, ...]
    values: Array
    defined: Array
    ring_of: tuple[str, int] | None = None
    """(pipe path, producing stage) of a Queue."""


def interpret(
    schedule: Schedule, inputs: Mapping[str, Array], *, home: str | None = None
) -> dict[str, Array]:
    """Run a schedule; `inputs` gives graph inputs and constants in storage types.

    `home` names the home level; without it, it is found as the memory that no Place uses.
    Returns the graph's outputs; elements that the unit does not write are zero.

    Raises:
        MemoryFault: a read or write outside a buffer, or a read of an undefined element.
    Cost: Python per leaf iteration.
    """
    machine = _Interpreter(schedule, inputs, home)
    machine.run(schedule.root, "0", {}, (), ())
    return {name: machine.whole[name].values for name in schedule.graph.outputs}


class _Interpreter:
    def __init__(self, schedule: Schedule, inputs: Mapping[str, Array], home: str | None) -> None:
        self.graph = schedule.graph
        self.home = home
        self.placed = frozenset(scope.memory for scope in walk(schedule).scopes)
        self.whole: dict[str, _Buffer] = {}
        for name, tensor in schedule.graph.tensors.items():
            values = np.zeros(tensor.shape, dtype=tensor.dtype.numpy)
            given = name in inputs
            if given:
                values[...] = inputs[name]
            self.whole[name] = _Buffer(
                name, "", tensor.dtype, (0,) * len(tensor.shape), values,
                np.full(tensor.shape, given),
            )  # fmt: skip
        self.slots: dict[tuple[object, ...], _Buffer] = {}
        self.entries: dict[tuple[object, ...], int] = {}

    def run(
        self,
        node: Node,
        path: str,
        env: dict[str, int],
        core: tuple[int, ...],
        scopes: tuple[_Buffer, ...],
        stages: tuple[tuple[str, int], ...] = (),
    ) -> None:
        """Execute a subtree.  `core` identifies the core by its CORES iterations and stages."""
        match node:
            case Loop(var, trip, kind, body, _):
                for i in range(trip):
                    on = (*core, i) if kind is LoopKind.CORES else core
                    self.run(body, f"{path}.0", {**env, var: i}, on, scopes, stages)
            case Seq(parts):
                for i, part in enumerate(parts):
                    self.run(part, f"{path}.{i}", env, core, scopes, stages)
            case Place():
                key = (path, *core)
                count = self.entries.get(key, 0)
                self.entries[key] = count + 1
                buffer = self._open((*key, count % node.copies), node, env)
                self.run(node.body, f"{path}.0", env, core, (*scopes, buffer), stages)
            case Move():
                self._move(node, path, env, scopes, stages)
            case Compute():
                self._compute(node, path, env, scopes)
            case Pipe():
                self._pipe(node, path, env, core, scopes, stages)
            case _:
                assert_never(node)

    def _pipe(
        self,
        pipe: Pipe,
        path: str,
        env: dict[str, int],
        core: tuple[int, ...],
        scopes: tuple[_Buffer, ...],
        stages: tuple[tuple[str, int], ...],
    ) -> None:
        for i in range(pipe.trip):
            inner = {**env, pipe.var: i}
            rings = []
            for k, queue in enumerate(pipe.queues):
                ring = self._open((f"{path}.q{k}", *core, i % queue.depth), queue, inner)
                ring.ring_of = (path, queue.producer)
                rings.append(ring)
            for s, stage in enumerate(pipe.stages):
                self.run(stage.body, f"{path}.{s}", inner, (*core, s), (*scopes, *rings),
                         (*stages, (path, s)))  # fmt: skip

    def _open(self, key: tuple[object, ...], node: Place | Queue, env: dict[str, int]) -> _Buffer:
        """Enter a buffer slot: poisoned, or at the identity of the operator that writes it."""
        tensor = self.graph.tensors[node.tensor]
        dtype = node.dtype or tensor.dtype
        shape = tuple(span.extent for span in node.tile)
        fresh = self.slots.get(key)
        if fresh is None:
            fresh = _Buffer(node.tensor, node.memory, dtype, (), np.empty(0), np.empty(0))
            self.slots[key] = fresh
        fresh.origin = tuple(span.start.evaluate(env) for span in node.tile)
        is_identity = node.init is Init.IDENTITY
        if is_identity:
            values = np.full(shape, self._identity(node.tensor), dtype=held_type(dtype))
            fresh.values = store(values, dtype)
        else:
            poison = np.full(shape, np.nan) if dtype.is_float else np.full(shape, 77)
            fresh.values = store(poison.astype(held_type(dtype)), dtype)
        fresh.defined = np.full(shape, is_identity)
        return fresh

    def _identity(self, tensor: str) -> float | int:
        for op in self.graph.ops:
            if op.write.tensor == tensor and op.reduce is not None:
                return op.reduce.identity(self.graph.tensors[tensor].dtype.accumulator)
        raise VerifyError("interpret", tensor, "init", "no reduction writes it")

    def _find(self, tensor: str, scopes: tuple[_Buffer, ...]) -> _Buffer:
        for buffer in reversed(scopes):
            if buffer.tensor == tensor:
                return buffer
        return self.whole[tensor]

    def _end(self, tensor: str, memory: str, path: str, scopes: tuple[_Buffer, ...]) -> _Buffer:
        for buffer in reversed(scopes):
            if buffer.tensor == tensor and buffer.memory == memory:
                return buffer
        if memory == self.home or (self.home is None and memory not in self.placed):
            return self.whole[tensor]
        raise MemoryFault(f"{path}: no buffer of {tensor} in {memory}")

    def _move(
        self,
        move: Move,
        path: str,
        env: dict[str, int],
        scopes: tuple[_Buffer, ...],
        stages: tuple[tuple[str, int], ...],
    ) -> None:
        if move.src == move.dst:
            inside = [b for b in scopes if (b.tensor, b.memory) == (move.tensor, move.src)]
            if len(inside) < 2:
                raise MemoryFault(f"{path}: a move within {move.src} needs two buffers there")
            src, dst = inside[-2:]
            if src.ring_of is not None and src.ring_of in stages:
                src, dst = dst, src
        else:
            src = self._end(move.tensor, move.src, path, scopes)
            dst = self._end(move.tensor, move.dst, path, scopes)
        shape = self.graph.tensors[move.tensor].shape
        low = [span.start.evaluate(env) for span in move.box]
        high = [a + span.extent for a, span in zip(low, move.box, strict=True)]
        if move.fill is not None:
            where = _slices(dst, low, high, path)
            dst.values[where] = store(np.asarray(move.fill, dtype=held_type(dst.dtype)), dst.dtype)
            dst.defined[where] = True
        low = [max(a, 0) for a in low]
        high = [min(b, size) for b, size in zip(high, shape, strict=True)]
        if any(a >= b for a, b in zip(low, high, strict=True)):
            return
        source, target = _slices(src, low, high, path), _slices(dst, low, high, path)
        if not np.all(src.defined[source]):
            raise MemoryFault(f"{path}: moves undefined elements of {move.tensor}")
        values = src.values[source]
        if src.dtype is not dst.dtype:
            values = store(load(values, src.dtype).astype(held_type(dst.dtype)), dst.dtype)
        dst.values[target] = values
        dst.defined[target] = True

    def _compute(
        self, compute: Compute, path: str, env: dict[str, int], scopes: tuple[_Buffer, ...]
    ) -> None:
        op = self.graph.op(compute.op)
        box: dict[str, range] = {}
        for axis, span in zip(op.domain, compute.box, strict=True):
            first = span.start.evaluate(env)
            box[axis.name] = range(max(first, 0), min(first + span.extent, axis.extent))
        if any(len(r) == 0 for r in box.values()):
            return
        ordered = [a.name for a in op.domain if a.kind is AxisKind.SCAN]
        for steps in product(*(box[name] for name in ordered)):
            now = {**box, **{n: range(s, s + 1) for n, s in zip(ordered, steps, strict=True)}}
            self._step(op, path, now, scopes)

    def _step(
        self, op: TensorOp, path: str, box: dict[str, range], scopes: tuple[_Buffer, ...]
    ) -> None:
        order = [a.name for a in op.domain if a.kind is not AxisKind.REDUCE]
        kept = len(order)
        order += [a.name for a in op.reduce_axes]
        coords: dict[str, Array] = {}
        for k, name in enumerate(order):
            shape = [1] * len(order)
            shape[k] = len(box[name])
            coords[name] = np.arange(box[name].start, box[name].stop).reshape(shape)
        domain = tuple(len(box[name]) for name in order)
        reads: list[Array] = []
        for access in op.reads:
            index = tuple(index_values(e, coords, tuple(reads)) for e in access.index)
            reads.append(self._gather(access, index, path, scopes))
        values = np.broadcast_to(np.asarray(scalar_values(op.body, reads, coords)), domain)
        target = self._find(op.write.tensor, scopes)
        wide = self.graph.tensors[op.write.tensor].dtype.accumulator
        kept_coords = {n: coords[n].reshape(coords[n].shape[:kept]) for n in order[:kept]}
        where = tuple(
            np.broadcast_to(index_values(e, kept_coords, ()), domain[:kept]) - origin
            for e, origin in zip(op.write.index, target.origin, strict=True)
        )
        _check_index(where, target, f"{path}: write of {op.write.tensor}")
        if op.reduce is None:
            target.values[where] = store(values, target.dtype)
            target.defined[where] = True
            return
        values = values.astype(wide.numpy)
        if len(order) > kept:
            values = reduce_over(op.reduce, values, tuple(range(kept, len(order))))
        if not np.all(target.defined[where]):
            raise MemoryFault(f"{path}: accumulates into undefined {op.write.tensor}")
        held = load(target.values[where], target.dtype).astype(wide.numpy)
        target.values[where] = store(combine(op.reduce, held, values), target.dtype)

    def _gather(
        self,
        access: Access,
        index: tuple[Array, ...],
        path: str,
        scopes: tuple[_Buffer, ...],
    ) -> Array:
        buffer = self._find(access.tensor, scopes)
        wide = promoted(self.graph.tensors[access.tensor].dtype).numpy
        if buffer is self.whole[access.tensor]:
            outside: Array = np.zeros((), dtype=bool)
            safe = []
            for part, size in zip(index, buffer.values.shape, strict=True):
                outside = outside | (part < 0) | (part >= size)
                safe.append(np.clip(part, 0, size - 1))
            if access.fill is None and np.any(outside):
                raise MemoryFault(f"{path}: a read leaves {access.tensor}")
            where: tuple[Array, ...] = tuple(safe)
        else:
            where = tuple(p - o for p, o in zip(index, buffer.origin, strict=True))
            _check_index(where, buffer, f"{path}: read of {access.tensor}")
            outside = np.zeros((), dtype=bool)
        if not np.all(buffer.defined[where] | outside):
            raise MemoryFault(f"{path}: reads undefined elements of {access.tensor}")
        held, dtype = buffer.values[where], self.graph.tensors[access.tensor].dtype
        if buffer.dtype is not dtype:
            held = store(load(held, buffer.dtype), dtype)
        values = load(held, dtype).astype(wide)
        if np.any(outside):
            values = np.where(outside, np.asarray(access.fill, dtype=wide), values)
        return values


def _slices(buffer: _Buffer, low: list[int], high: list[int], path: str) -> tuple[slice, ...]:
    found = []
    for a, b, origin, size in zip(low, high, buffer.origin, buffer.values.shape, strict=True):
        if a - origin < 0 or b - origin > size:
            raise MemoryFault(
                f"{path}: [{a}, {b}) of {buffer.tensor} outside a buffer of {size} at {origin}"
            )
        found.append(slice(a - origin, b - origin))
    return tuple(found)


def _check_index(where: tuple[Array, ...], buffer: _Buffer, what: str) -> None:
    for dim, (part, size) in enumerate(zip(where, buffer.values.shape, strict=True)):
        if part.size and (part.min() < 0 or part.max() >= size):
            raise MemoryFault(f"{what}: dimension {dim} leaves its buffer of {size}")
