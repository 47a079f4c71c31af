"""Instructions of one leaf, as columns, before they are merged into program order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from worker.compiler.isa.program import INSTRUCTION, Opcode
from worker.compiler.lower.grid import Ints
from worker.compiler.lower.rows.storage import Touch


@dataclass(frozen=True, slots=True)
class Batch:
    """Shapes: every array is [n] or a scalar for all n instructions."""

    count: int
    position: Ints
    """[n] program position; ties are broken by core."""
    core: Ints
    """[n]"""
    opcode: Opcode
    engine: int
    """Index into the machine's engines."""
    node: int
    op: int
    num_bytes: Ints
    macs: Ints
    cycles: Ints
    drawn: Ints
    returned: Ints
    inside: Ints
    starved: Ints
    latency: Ints
    resources: tuple[Ints, ...]
    """Resource number of each port, -1 where there is none."""
    src: int
    dst: int
    src_offset: Ints
    dst_offset: Ints
    iteration: Ints
    """Number of the iteration of its leaf (`schedule.walk.iteration_weights`)."""
    touches: tuple[Touch, ...]
    operand: int = -1
    """Operand of a compute that a transfer carries."""
    digits: tuple[Ints, ...] = ()
    """Where only some iterations are emitted: of each repeating loop around the leaf, outermost
    first, the block [n]."""


def merge(
    batches: Sequence[Batch], num_cores: int, num_engines: int
) -> tuple[npt.NDArray[np.void], tuple[Ints, ...]]:
    """Merge batches into program order.

    Returns the instructions, whose streams are numbered core * num_engines + engine, and for every
    batch the place in program order of each of its instructions.
    Cost: O(n log n) comparisons at worst; near linear because each batch is already sorted.
    """
    total = sum(b.count for b in batches)
    key = np.concatenate(
        [np.zeros(0, dtype=np.int64), *(b.position * num_cores + b.core for b in batches)]
    )
    order = np.argsort(key, kind="stable")
    place = np.empty(total, dtype=np.int64)
    place[order] = np.arange(total, dtype=np.int64)
    places = tuple(np.split(place, np.cumsum([b.count for b in batches])[:-1])) if batches else ()
    table = np.empty(total, dtype=INSTRUCTION)
    for b, at in zip(batches, places, strict=True):
        rows = np.empty(b.count, dtype=INSTRUCTION)
        rows["opcode"] = int(b.opcode)
        rows["stream"] = b.core * num_engines + b.engine
        rows["node"], rows["op"] = b.node, b.op
        rows["bytes"], rows["macs"], rows["cycles"] = b.num_bytes, b.macs, b.cycles
        rows["drawn"], rows["returned"], rows["latency"] = b.drawn, b.returned, b.latency
        rows["inside"], rows["starved"] = b.inside, b.starved
        rows["resource"] = -1
        for k, resource in enumerate(b.resources):
            rows["resource"][:, k] = resource
        rows["src"], rows["dst"] = b.src, b.dst
        rows["src_offset"], rows["dst_offset"] = b.src_offset, b.dst_offset
        rows["iteration"], rows["operand"] = b.iteration, b.operand
        table.put(at, rows)  # assigning to indices copies field by field
    return table, places
