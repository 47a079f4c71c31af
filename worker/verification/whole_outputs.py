"""Values that kernels hand over: every element is compared where points cannot be.

The oracle computes what a kernel keeps to itself at the few points its last operator reads.  Where
an operator inside sums over what another one made (two convolutions, a softmax), those points grow
to whole tensors.  The outputs of such a kernel are values of the model, which the reference has.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from worker.compiler.ir.graph import Graph
from worker.compiler.isa.program import UnitCall
from worker.compiler.judge.compiled import CompiledModel
from worker.compiler.judge.units import Unit

MAX_WHOLE_BYTES = 256 << 20
"""Of outputs kept for the comparison; as much again is the reference's.  Further ones are judged by
the model's outputs."""


def checked_calls(
    compiled: CompiledModel, kernels: Collection[str], *, every_call: bool
) -> Iterator[tuple[int, UnitCall, Unit]]:
    """(position, call, unit) of calls of `kernels`: the first of each, or all."""
    seen: set[str] = set()
    for position, call in enumerate(compiled.linked.program.calls):
        if isinstance(call, UnitCall):
            unit = compiled.units[call.unit]
            if unit.kernel_name in kernels and (every_call or unit.kernel_name not in seen):
                seen.add(unit.kernel_name)
                yield position, call, unit


@dataclass(frozen=True, slots=True)
class Handover:
    """A value that kernels write for others, and which of them do."""

    tensor: str
    """Its name in the model."""
    kernels: tuple[str, ...]
    """The chosen kernels that write it, in order."""
    onnx_nodes: tuple[str, ...]
    """Of the first of these calls."""


def is_sampleable(graph: Graph) -> bool:
    """Whether few points of the one output need few points of everything inside.

    So it is when every tensor has one writer, which writes it by sums of axes, and what is made
    inside is read by PARALLEL axes only, at places that no value decides.
    Cost: linear in the accesses.
    """
    written = [op.write.tensor for op in graph.ops]
    if graph.outputs != (written[-1],):
        return False
    made = set(written)
    if len(made) < len(written):
        return False
    if not all(expr.is_linear for op in graph.ops[:-1] for expr in op.write.index):
        return False
    for op in graph.ops:
        free = {axis.name for axis in op.parallel_axes}
        for access in op.reads:
            used = {name for expr in access.index for name in expr.variables()}
            if access.tensor in made and (
                not used <= free or any(expr.has_lookup for expr in access.index)
            ):
                return False
    return True


def handed_over(
    compiled: CompiledModel, kernels: Collection[str], every_call: bool
) -> Mapping[int, tuple[Handover, ...]]:
    """What calls of some kernels of the program write for others, by the position of the call after
    which to read it: their first calls, or every one.

    A tensor that several calls write in parts (a concatenation) is complete after the last of them.
    Kernels of nested programs are not in it: their values are none of the model's.
    Cost: linear in the operands of all calls.
    """
    calls = compiled.linked.program.calls
    last: dict[str, int] = {}
    for position, call in enumerate(calls):
        if isinstance(call, UnitCall):
            last |= dict.fromkeys(outputs_of(compiled.units[call.unit], call), position)
    writers: dict[str, list[tuple[str, tuple[str, ...]]]] = {}
    left = MAX_WHOLE_BYTES
    for _, call, unit in checked_calls(compiled, kernels, every_call=every_call):
        for name in outputs_of(unit, call):
            size = compiled.linked.tensors[name].size_bytes
            if name not in writers and size <= left:
                left -= size
                writers[name] = []
            if name in writers:
                writers[name].append((unit.kernel_name, call.onnx_nodes))
    after: dict[int, list[Handover]] = {}
    for name, found in writers.items():
        written = tuple(dict.fromkeys(kernel for kernel, _ in found))
        after.setdefault(last[name], []).append(Handover(name, written, found[0][1]))
    return MappingProxyType({position: tuple(after[position]) for position in sorted(after)})


def outputs_of(unit: Unit, call: UnitCall) -> tuple[str, ...]:
    """Model names of what a call writes for others, in the order of the unit's operands."""
    outputs = set(unit.schedule.graph.outputs)
    return tuple(
        binding.tensor
        for operand, binding in zip(unit.program.operands, call.bindings, strict=True)
        if operand.tensor in outputs
    )
