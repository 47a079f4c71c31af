"""What a run of layers hands over: tensors that only the run uses, in the cores' buffers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from worker.compiler.ir.dtype import DType
from worker.compiler.machine.machine import MemoryLevel
from worker.compiler.schedule.nodes import Box, Init
from worker.compiler.schedule.walk import reach_memory
from worker.compiler.strategies.graphturbo.handover_cut import LayerRun
from worker.compiler.strategies.graphturbo.section_context import SectionContext
from worker.compiler.tiling.align import buffer_bytes


@dataclass(frozen=True, slots=True)
class Handed:
    """A tensor that lives in LB from one layer of a run to others."""

    tensor: str
    box: Box
    """A core's slice, for one of its turns."""
    dtype: DType
    init: Init
    """A sum that its layer adds up in place starts at the identity."""
    first: int
    last: int
    """Layers that write and, last, read it."""
    size_bytes: int


def local_buffer(section: SectionContext, layers: Sequence[int]) -> MemoryLevel | None:
    """The buffer that each core has alone and in which all engines of these layers work."""
    machine = section.site.machine
    names = {
        reach_memory(section.engines[op].name, machine)
        for k in layers
        for op in section.layers[k].ops
    }
    level = machine.level(min(names))
    return level if len(names) == 1 and level.instances == machine.num_cores else None


def handed_over(section: SectionContext, first: int, last: int) -> tuple[str, ...]:
    """Tensors that one layer of first .. last - 1 writes and only later ones of them read."""
    inside = range(first, last)
    found: list[str] = []
    for tensor, writers in section.uses.writers.items():
        readers = section.uses.readers.get(tensor, [])
        users = (*writers, *readers)
        if (
            len(writers) == 1
            and readers
            and tensor not in section.graph.outputs
            and all(k in inside and tensor not in section.uses.at_home[k] for k in users)
            and min(readers) > writers[0]
        ):
            found.append(tensor)
    return tuple(found)


def handed_tensors(
    section: SectionContext, run: LayerRun, local: MemoryLevel
) -> tuple[Handed, ...]:
    """What a run hands over, as it lies in LB."""
    found: list[Handed] = []
    for tensor in handed_over(section, run.first, run.last):
        [writer] = section.uses.writers[tensor]
        sums = any(
            op.write.tensor == tensor and op.reduce is not None
            for op in map(section.uses.op, section.layers[writer].ops)
        )
        dtype = section.graph.tensors[tensor].dtype
        dtype = dtype.accumulator if sums else dtype
        box = run.cut.boxes[tensor]
        size = buffer_bytes(tuple(span.extent for span in box), dtype, local, 1)
        last = max(section.uses.readers[tensor])
        init = Init.IDENTITY if sums else Init.UNDEFINED
        found.append(Handed(tensor, box, dtype, init, writer, last, size))
    return tuple(found)
