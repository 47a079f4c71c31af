"""What a layer takes at least, whatever its tiles: plans that cannot win are not searched for.

Engines of a core work side by side and tiles pad no less than the whole, so the busiest engine's
work, shared out evenly, is a lower bound; so is what home must take where a layer writes there.
Source: our own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from worker.compiler.cost.compute import engine_cycles
from worker.compiler.ir.op import Tensor, TensorOp
from worker.compiler.machine.machine import Engine, MemoryLevel
from worker.compiler.schedule.nodes import Box


def floor_cycles(
    ops: Sequence[TensorOp],
    engines: Mapping[str, Engine],
    tensors: Mapping[str, Tensor],
    domains: Mapping[str, Box] | None,
    cores: int,
    stored: frozenset[str],
    home: MemoryLevel,
) -> float:
    """Cycles that a layer of `ops` on `cores` cores takes at least.

    `domains`: the part of each operator's domain that is computed; None: all of it.  `stored`: what
    is written at home.
    """
    busy: dict[str, float] = {}
    size = 0
    for op in ops:
        engine = engines[op.name]
        extents = {axis.name: axis.extent for axis in op.domain}
        if domains is not None:
            spans = zip(op.domain, domains[op.name], strict=True)
            extents = {axis.name: min(span.extent, axis.extent) for axis, span in spans}
        one = engine_cycles(op, tuple(extents.values()), engine, tensors) - engine.startup_cycles
        busy[engine.name] = busy.get(engine.name, 0.0) + one / cores
        if op.write.tensor in stored:
            used = {name for index in op.write.index for name in index.variables()}
            elems = prod(extents[axis.name] for axis in op.domain if axis.name in used)
            size += elems * tensors[op.write.tensor].dtype.size_bytes
    return max(size / home.write_bytes_per_cycle, *busy.values())
