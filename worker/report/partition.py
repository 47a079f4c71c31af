"""What the report says of the partition: ratios, regions with their costs, and what decided."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil

import onnx_ir

from worker.compiler.errors import Detail
from worker.compiler.isa.program import UnitCall
from worker.compiler.judge.compiled import CompiledModel
from worker.compiler.options import CompileOptions
from worker.compiler.partition.host_work import host_flops
from worker.compiler.partition.plan import RegionDecision
from worker.compiler.partition.ratios import OffloadRatios, offload_ratios
from worker.report.candidates import candidates_section, host_verdict
from worker.simulator.results import ModelSimulation


def partition_section(
    compiled: CompiledModel, whole: ModelSimulation, options: CompileOptions
) -> dict[str, Detail]:
    """`partition`: ratios as BYOC's tables give them, the ways of choosing regions that were
    simulated, regions in execution order, decisions."""
    nodes = list(compiled.model.ir.graph)
    parts = compiled.partitioning
    cycles = _region_cycles(compiled, whole)
    transfers = {row.region: row.transfer_cycles for row in whole.invocation.regions}
    regions: list[Detail] = []
    for number, part in enumerate(parts.regions):
        spent = cycles.get(number, {"kernels": 0, "launch": 0, "execute": 0})
        regions.append(
            {
                "index": number,
                "target": part.target,
                "onnx_nodes": [nodes[k].name or "" for k in part.nodes],
                "inputs": list[Detail](part.inputs),
                "outputs": list[Detail](part.outputs),
                "kernels": spent["kernels"],
                "launch_cycles": spent["launch"],
                "transfer_cycles": transfers.get(number, 0),
                "execute_cycles": spent["execute"],
                "host_cycles": _host_cycles(
                    compiled, [nodes[k] for k in part.nodes if not parts.placement[k].is_inserted]
                ),
                "composites": [
                    {
                        "name": c.name,
                        "kind": str(c.kind),
                        "intrinsic": c.intrinsic,
                        "onnx_nodes": [nodes[k].name or "" for k in c.nodes],
                    }
                    for c in part.composites
                ],
            }
        )
    return {
        **ratios_document(offload_ratios(nodes, parts)),
        "host_only_cycles": _host_only_cycles(compiled),
        "host_verdict": host_verdict(compiled, options),
        "candidates": candidates_section(compiled, options),
        "regions": regions,
        "decisions": [_decision(d) for d in parts.decisions],
    }


def _host_only_cycles(compiled: CompiledModel) -> int:
    """The user's model as one host part, in cycles of the accelerator's clock."""
    return _host_cycles(compiled, list(compiled.source.ir.graph))


def _host_cycles(compiled: CompiledModel, nodes: Sequence[onnx_ir.Node]) -> int:
    """The host's roofline of some nodes, in cycles of the accelerator's clock."""
    machine = compiled.machine
    return ceil(machine.host.work_s(*host_flops(nodes)) * machine.clock_hz)


def ratios_document(ratios: OffloadRatios) -> dict[str, Detail]:
    """Counts and percentages of what the accelerator runs."""
    return {
        "nodes": ratios.nodes,
        "offloaded_nodes": ratios.offloaded_nodes,
        "node_pct": ratios.node_pct,
        "composite_units": ratios.units,
        "offloaded_units": ratios.offloaded_units,
        "unit_pct": ratios.unit_pct,
        "value_nodes": ratios.value_nodes,
        "offloaded_value_nodes": ratios.offloaded_value_nodes,
        "value_node_pct": ratios.value_node_pct,
        "macs": ratios.macs,
        "offloaded_macs": ratios.offloaded_macs,
        "mac_pct": ratios.mac_pct,
    }


def _region_cycles(compiled: CompiledModel, whole: ModelSimulation) -> Mapping[int, dict[str, int]]:
    found: dict[int, dict[str, int]] = {}
    for timing in whole.calls:
        call = compiled.linked.program.calls[timing.call]
        if isinstance(call, UnitCall):
            row = found.setdefault(call.region, {"kernels": 0, "launch": 0, "execute": 0})
            row["kernels"] += 1
            row["launch"] += timing.overhead_cycles
            row["execute"] += timing.end_cycle - timing.start_cycle - timing.overhead_cycles
    return found


def _decision(decision: RegionDecision) -> dict[str, Detail]:
    return {
        "first_node": decision.first_node,
        "target": decision.target,
        "action": str(decision.action),
        "rule": decision.rule,
        "sentence": decision.sentence,
        "ops": decision.num_ops,
        "macs": decision.macs,
        "weight_bytes": decision.weight_bytes,
        "boundary_bytes": decision.boundary_bytes,
        "accelerator_cycles": decision.accelerator_cycles,
        "transfer_cycles": decision.transfer_cycles,
        "launch_cycles": decision.launch_cycles,
        "host_cycles": decision.host_cycles,
    }
