"""Kernels in one peer's terms: the one place that knows all writers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from worker.compiler.errors import CompilerError, Finding
from worker.compiler.export.accelforge import write_accelforge
from worker.compiler.export.derive import loop_nests
from worker.compiler.export.directives.of_nest import write_directives
from worker.compiler.export.documents import Export
from worker.compiler.export.nest import LoopNest, Refusal
from worker.compiler.export.nn_dataflow import write_nn_dataflow
from worker.compiler.export.peer import Peer
from worker.compiler.export.scalesim import write_scalesim
from worker.compiler.export.timeloop import write_timeloop
from worker.compiler.export.zigzag import write_zigzag
from worker.compiler.machine.machine import Machine
from worker.compiler.schedule.nodes import Schedule

WRITERS: Mapping[Peer, Callable[[Sequence[LoopNest], Machine], Export]] = {
    Peer.ACCELFORGE: write_accelforge,
    Peer.DIRECTIVES: write_directives,
    Peer.NN_DATAFLOW: write_nn_dataflow,
    Peer.SCALESIM: write_scalesim,
    Peer.TIMELOOP: write_timeloop,
    Peer.ZIGZAG: write_zigzag,
}


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel as compiled."""

    name: str
    nodes: tuple[str, ...]
    schedule: Schedule
    target: str
    """The accelerator target that runs it."""


def export_kernels(kernels: Sequence[Kernel], machine: Machine, peer: Peer) -> Export:
    """Files of all kernels that the peer can express; the others stand under `refused`.

    Raises:
        CompilerError: TW-EXPORT-001 when it can express none; a finding for every kernel.
    """
    nests: list[LoopNest] = []
    refused: list[Refusal] = []
    for kernel in kernels:
        seen = machine.restricted(machine.target(kernel.target))
        for found in loop_nests(kernel.name, kernel.nodes, kernel.schedule, seen):
            if isinstance(found, Refusal):
                refused.append(found)
            else:
                nests.append(found)
    export = WRITERS[peer](nests, machine)
    export = replace(export, refused=(*refused, *export.refused))
    if not export.exported:
        raise CompilerError(
            "TW-EXPORT-001",
            f"none of {len(export.refused)} loop nests has a form in {peer}",
            limit=1,
            actual=0,
            findings=tuple(
                Finding("TW-EXPORT-001", f"{r.name}: {r.reason}: {r.message}", node=_node(r))
                for r in export.refused
            ),
        )
    return export


def _node(refusal: Refusal) -> str | None:
    return refusal.nodes[0] if refusal.nodes else None
