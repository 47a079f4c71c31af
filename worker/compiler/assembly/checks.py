"""Rules for the value of every stage, apart from the code that makes it (`--verify-each`).

Whoever edits a stage runs a model with these; what they cost is not paid by users.
"""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir

from worker.compiler.audit.audit import audit
from worker.compiler.codegen.kernel import generate_kernel
from worker.compiler.errors import InternalError, PassContractError
from worker.compiler.frontend.model import OnnxModel
from worker.compiler.frontend.passes import Ingested, require_interface
from worker.compiler.isa.program import HostCall, OperandRole
from worker.compiler.isa.verify import verify_program
from worker.compiler.judge.compiled import Compile, CompiledModel
from worker.compiler.judge.programs import Scheduled
from worker.compiler.machine.machine import Machine
from worker.compiler.partition.plan import HOST, Partitioning
from worker.compiler.quantize.boundary import Converted
from worker.compiler.schedule.verify import verify


def ingested(asked: Compile, found: Ingested) -> None:
    """The model has the inputs and outputs that it is said to have."""
    del asked
    require_interface("ingest", found.interface, found.model.ir)


def simplified(asked: Compile, found: OnnxModel) -> None:
    """Nodes are named, each once, and come after what they read."""
    del asked
    _require_sorted("simplify", found)


def converted(asked: Compile, found: Converted) -> None:
    """As `simplified`; what a boundary names is there."""
    del asked
    _require_sorted("convert", found.model)
    names = {value.name for node in found.model.ir.graph for value in node.outputs}
    names |= {value.name for value in found.model.ir.graph.inputs}
    names |= set(found.model.ir.graph.initializers)
    lost = [b.value for b in found.boundaries if b.value not in names]
    if lost:
        raise PassContractError("convert", f"{lost[0]} changes its format and does not exist")


def partitioned(asked: Compile, found: Partitioning) -> None:
    """Every node is in one part, the part of its placement; parts read what earlier ones leave.

    A region that reads only what earlier parts leave is convex.
    """
    names = {HOST, *(target.name for target in asked.machine.targets)}
    target_of = {k: part.target for part in found.parts for k in part.nodes}
    count = sum(len(part.nodes) for part in found.parts)
    if sorted(target_of) != list(range(len(found.placement))) or count != len(target_of):
        raise PassContractError("partition", "its parts do not hold every node once")
    for number, row in enumerate(found.placement):
        if row.target not in names or target_of[number] != row.target:
            raise PassContractError(
                "partition", f"{row.node} is placed on {row.target}, in a part of another"
            )
    left = {name: k for k, part in enumerate(found.parts) for name in part.outputs}
    for number, part in enumerate(found.parts):
        late = [name for name in part.inputs if left.get(name, -1) >= number]
        if late:
            raise PassContractError("partition", f"part {number} reads {late[0]} before it is made")


def scheduled(asked: Compile, found: Scheduled) -> None:
    """Every schedule and program is legal, says the same, and runs after what it reads."""
    _require_units(asked.machine, found.program)


def coded(asked: Compile, found: CompiledModel) -> None:
    """As `scheduled`; generating a kernel again gives the same text."""
    machines = _require_units(asked.machine, found)
    for unit, machine in zip(found.units, machines, strict=True):
        text = generate_kernel(unit.schedule, unit.program, machine, unit.kernel_name)
        if text != unit.kernel:
            raise PassContractError("codegen", f"kernel {unit.kernel_name} is not what its schedule"
                                    " and program give")  # fmt: skip


def _require_sorted(stage: str, model: OnnxModel) -> None:
    graph = model.ir.graph
    known = {id(value) for value in (*graph.inputs, *graph.initializers.values())}
    names: set[str] = set()
    for node in graph:
        if not node.name or node.name in names:
            raise PassContractError(stage, f"node {node.name!r} has no name of its own")
        names.add(node.name)
        early = [v.name for v in _read(node.inputs) if id(v) not in known]
        if early:
            raise PassContractError(stage, f"{node.name} reads {early[0]} before it is made")
        known |= {id(value) for value in node.outputs}
    undefined = [value.name for value in graph.outputs if id(value) not in known]
    if undefined:
        raise PassContractError(stage, f"output {undefined[0]} is made by no node")


def _read(values: Iterable[onnx_ir.Value | None]) -> list[onnx_ir.Value]:
    return [value for value in values if value is not None]


def _require_units(whole: Machine, program: CompiledModel) -> list[Machine]:
    """Check every unit and the order of calls; give each unit's machine."""
    regions = program.partitioning.regions
    of_target = {target.name: whole.restricted(target) for target in whole.targets}
    machines: list[Machine | None] = [None] * len(program.units)
    linked = program.linked
    known = {value.name for value in program.model.ir.graph.inputs}
    known |= set(program.constants) | set(program.model.ir.graph.initializers)
    source_of = {view.tensor: view.source for view in linked.views}

    def is_known(name: str) -> bool:
        while name not in known and name in source_of:
            name = source_of[name]
        return name in known

    for call in linked.program.calls:
        if isinstance(call, HostCall):
            reads, writes = call.inputs, call.outputs
        else:
            machines[call.unit] = of_target[regions[call.region].target]
            operands = program.units[call.unit].program.operands
            bound = list(zip(call.bindings, operands, strict=True))
            reads = tuple(b.tensor for b, o in bound if o.role is OperandRole.INPUT)
            writes = tuple(b.tensor for b, o in bound if o.role is OperandRole.OUTPUT)
        early = [name for name in reads if not is_known(name)]
        if early:
            raise InternalError(
                "TW-INT-002", f"{early[0]} is read before it is made",
                stage="schedule", node=(*call.onnx_nodes, "")[0],
            )  # fmt: skip
        known |= set(writes)
    found: list[Machine] = []
    for unit, machine in zip(program.units, machines, strict=True):
        if machine is None:
            raise InternalError(
                "TW-INT-002", f"kernel {unit.kernel_name} is never called", stage="schedule"
            )
        verify(unit.schedule, machine)
        verify_program(unit.program, machine)
        audit(unit.schedule, unit.program, machine)
        found.append(machine)
    return found
