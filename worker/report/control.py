"""The `control_flow` section of the report: what happens inside loops and branches.

Every node of every body stands in exactly one `placement` list, with a target and a reason.
"""

from __future__ import annotations

from worker.compiler.control.compile import CompiledControl
from worker.compiler.errors import Detail
from worker.compiler.isa.program import UnitCall
from worker.compiler.judge.compiled import CompiledModel
from worker.compiler.partition.plan import HOST
from worker.compiler.rejection import ReasonCode
from worker.simulator.results import BodyTiming, ControlTiming, ModelSimulation


def control_rows(compiled: CompiledModel, whole: ModelSimulation | None) -> list[Detail]:
    """One row per control-flow node of the model, in model order; nested ones inside their body."""
    timing_of = {} if whole is None else {timing.node: timing for timing in whole.control}
    return [_control_row(control, timing_of.get(control.node)) for control in compiled.controls]


def _control_row(
    control: CompiledControl[CompiledModel], timing: ControlTiming | None
) -> dict[str, Detail]:
    bodies: list[Detail] = [
        _body_row(control, k, None if timing is None else timing.bodies[k])
        for k in range(len(control.bodies))
    ]
    return {
        "node": control.node,
        "kind": control.op_type,
        "interpreted": control.flow is not None,
        "reason": control.reason,
        "trips": None if timing is None else timing.trips,
        "trips_assumed": None if timing is None else timing.trips_assumed,
        "branch": None if timing is None or len(bodies) == 1 else timing.branch,
        "branch_assumed": None if timing is None or len(bodies) == 1 else timing.branch_assumed,
        "cycles": None if timing is None else timing.cycles,
        "bodies": bodies,
    }


def _body_row(
    control: CompiledControl[CompiledModel], index: int, timing: BodyTiming | None
) -> dict[str, Detail]:
    compiled, tried = control.bodies[index], control.tried[index]
    rows: list[dict[str, Detail]]
    nested: list[Detail] = []
    if tried is None:
        rows = _whole_rows(control, index)
    else:
        rows = [
            {"node": p.node, "op_type": p.op_type, "target": str(p.target),
             "reason_code": str(p.reason_code), "reason": p.reason}
            for p in tried.placement
        ]  # fmt: skip
        nested = control_rows(tried, None if timing is None else timing.simulation)
    calls = [] if compiled is None else compiled.linked.program.calls
    if compiled is None:
        for row in rows:  # what could run on the accelerator stays with the rest of its body
            if row["target"] != HOST:
                row |= {"target": HOST, "reason_code": str(ReasonCode.CONTROL_FLOW),
                        "reason": control.reason}  # fmt: skip
    on_host = sum(row["target"] == HOST for row in rows)
    return {
        "regions": len({call.region for call in calls if isinstance(call, UnitCall)}),
        "accelerator_ops": len(rows) - on_host,
        "host_ops": on_host,
        "cycles_per_iteration": None if timing is None else timing.cycles_per_iteration,
        "iterations": None if timing is None else timing.iterations,
        "placement": list[Detail](rows),
        "control_flow": nested,
    }


def _whole_rows(control: CompiledControl[CompiledModel], index: int) -> list[dict[str, Detail]]:
    """Rows of a body that was never compiled: everything inside is the host's."""
    model = control.models[index]
    nodes = control.rows[index]
    if model is not None:
        nodes = tuple((n.name or "", n.op_type) for n in model.model.ir.graph.all_nodes())
    reason = "ONNX Runtime runs this branch whole" if model is not None else control.reason
    return [
        {"node": name, "op_type": op_type, "target": HOST,
         "reason_code": str(ReasonCode.CONTROL_FLOW), "reason": reason}
        for name, op_type in nodes
    ]  # fmt: skip
