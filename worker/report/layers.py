"""One row per executed call: the layer table of report.json and layers.csv."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence

from worker.compiler.errors import Detail
from worker.compiler.frontend.model_summary import node_macs
from worker.compiler.isa.program import HostCall, UnitCall
from worker.compiler.judge.compiled import CompiledModel
from worker.compiler.judge.units import Unit
from worker.compiler.schedule.nodes import Compute, Loop, LoopKind, Node, Pipe, Place, Seq
from worker.report.node_groups import causes_of, node_groups, served_ops
from worker.report.node_names import kernel_op_type
from worker.report.parts import layer_parts
from worker.simulator.results import ModelSimulation, UnitSimulation


def walk(node: Node) -> Iterator[Node]:
    """Every node of a schedule tree, parents first, in order."""
    yield node
    match node:
        case Loop(body=body) | Place(body=body):
            yield from walk(body)
        case Seq(parts):
            for part in parts:
                yield from walk(part)
        case Pipe(stages=stages):
            for stage in stages:
                yield from walk(stage.body)
        case _:
            return


def tile_of(root: Node) -> str:
    """Extents of the largest compute tile, e.g. `1x64x7x7x16x3x3` (domain order)."""
    boxes = [tuple(s.extent for s in n.box) for n in walk(root) if isinstance(n, Compute)]
    if not boxes:
        return ""
    best = max(boxes, key=lambda b: (_product(b), b))
    return "x".join(map(str, best))


def cores_of(root: Node) -> int:
    """Product of the trips of nested CORES loops (the widest nest)."""

    def widest(node: Node) -> int:
        match node:
            case Loop(kind=kind, trip=trip, body=body):
                return widest(body) * (trip if kind is LoopKind.CORES else 1)
            case Place(body=body):
                return widest(body)
            case Seq(parts):
                return max((widest(p) for p in parts), default=1)
            case Pipe(stages=stages):
                return sum(widest(s.body) for s in stages)
            case _:
                return 1

    return widest(root)


def _product(values: Sequence[int]) -> int:
    total = 1
    for value in values:
        total *= value
    return total


def _pct(part: float, whole: float) -> float | None:
    return round(100.0 * part / whole, 4) if whole else None


def layer_rows(
    compiled: CompiledModel, sims: Sequence[UnitSimulation], whole: ModelSimulation,
    columns: Mapping[int, Mapping[str, Detail]],
) -> list[dict[str, Detail]]:  # fmt: skip
    """Rows in execution order.  Cycles of all rows sum to the model's total.

    `columns`: what strategies add to rows of their units.
    """
    group_of_unit: dict[int, int] = {}
    rows: list[dict[str, Detail]] = []
    energy_total = whole.energy_pj
    control_of = {timing.node: timing for timing in whole.control}
    op_type_of = {row.node: row.op_type for row in compiled.placement}
    known: dict[str, Mapping[str, int]] = {}

    def served(unit: Unit) -> Mapping[str, int]:
        """Once for all calls of a kernel."""
        if unit.kernel_name not in known:
            known[unit.kernel_name] = served_ops(unit, compiled.machine)
        return known[unit.kernel_name]

    for timing in whole.calls:
        call = compiled.linked.program.calls[timing.call]
        cycles = timing.end_cycle - timing.start_cycle
        row: dict[str, Detail] = {
            "index": len(rows),
            "group_id": None,
            "onnx_nodes": list(call.onnx_nodes),
            "op_type": (
                kernel_op_type(call.op_type, call.onnx_nodes, op_type_of)
                if isinstance(call, UnitCall)
                else "+".join(_distinct(call))
            ),
            "placement": "accelerator" if isinstance(call, UnitCall) else "host",
            "placement_reason": "OFFLOADED"
            if isinstance(call, UnitCall)
            else _reasons(compiled, call),
            "cycles_total": cycles,
            "pct_cycles": _pct(cycles, whole.cycles),
            "bound_by": timing.causes[0].cause if timing.causes else None,
            "causes": causes_of(timing.causes),
            "start_cycle": timing.start_cycle,
            "end_cycle": timing.end_cycle,
            "energy_pj": timing.energy_pj,
            "energy_pct": _pct(timing.energy_pj, energy_total),
        }
        if isinstance(call, UnitCall):
            unit, sim = compiled.units[call.unit], sims[call.unit]
            group_of_unit.setdefault(call.unit, len(group_of_unit))
            row["group_id"] = group_of_unit[call.unit]
            row.update(_unit_columns(sim, timing.overhead_cycles))
            origins = compiled.linked.origins[timing.call]
            groups = node_groups(unit, sim, origins, served, op_type_of)
            if groups:
                row["groups"] = groups
            row["signature"] = unit.signature
            row["tile"] = tile_of(unit.schedule.root)
            row["cores"] = cores_of(unit.schedule.root)
            row["overhead_cycles"] = timing.overhead_cycles
            row.update(columns.get(call.unit, {}))
        else:
            row.update(_host_columns(compiled, call, cycles, timing.overhead_cycles))
            inside = control_of.get(call.onnx_nodes[0])
            if inside is not None:
                row["macs"], row["repeated_macs"] = inside.macs, inside.repeated_macs
                row["lower_bound_cycles"] = timing.overhead_cycles + inside.lower_bound_cycles
                row["roofline_cycles"] = inside.roofline_cycles
        rows.append(row)
    return rows


def _unit_columns(sim: UnitSimulation, launch: int) -> dict[str, Detail]:
    compute_bound = max((b.cycles for b in sim.bounds if b.name.startswith("compute:")), default=0)
    columns: dict[str, Detail] = {
        "cycles_compute": sim.compute_cycles,
        "cycles_stall": sim.cycles - sim.compute_cycles,
        "macs": sim.macs,
        "repeated_macs": sim.repeated_macs,
        "utilization_pct": _pct(compute_bound, sim.cycles),
        "peak_buffer_bytes": max((o.peak_bytes for o in sim.occupancy), default=0),
        "lower_bound_cycles": launch + sim.lower_bound_cycles,
        "roofline_cycles": sim.roofline.cycles,
        "predicted_cycles": sim.predicted_cycles,
    }
    for level in sim.traffic:
        columns[f"bytes_{level.level}_read"] = level.read_bytes
        columns[f"bytes_{level.level}_write"] = level.write_bytes
    return columns


def _host_columns(
    compiled: CompiledModel, call: HostCall, cycles: int, overhead: int
) -> dict[str, Detail]:
    home = compiled.machine.home.name
    columns: dict[str, Detail] = {
        "signature": None,
        "cycles_compute": cycles - overhead,
        "cycles_stall": overhead,
        "macs": host_macs(compiled, call),
        "repeated_macs": 0,
        "utilization_pct": None,
        "peak_buffer_bytes": None,
        "lower_bound_cycles": cycles,
        "roofline_cycles": cycles - overhead,
        "predicted_cycles": None,
        "tile": None,
        "cores": None,
        "overhead_cycles": overhead,
    }
    for level in compiled.machine.levels:
        columns[f"bytes_{level.name}_read"] = call.input_bytes if level.name == home else 0
        columns[f"bytes_{level.name}_write"] = call.output_bytes if level.name == home else 0
    return columns


def host_macs(compiled: CompiledModel, call: HostCall) -> int:
    """Multiply-accumulates of a host part's nodes."""
    nodes = list(compiled.model.ir.graph)
    return sum(node_macs(nodes[k]) for k in compiled.linked.hosts[call.host].nodes)


def _distinct(call: HostCall) -> list[str]:
    return list(dict.fromkeys(call.op_types))


def _reasons(compiled: CompiledModel, call: HostCall) -> str:
    names = set(call.onnx_nodes)
    codes = dict.fromkeys(str(row.reason_code) for row in compiled.placement if row.node in names)
    return "+".join(codes)


def layers_csv(layers: Sequence[dict[str, Detail]], total_cycles: int) -> bytes:
    """CSV with a header, a row for every group of nodes (`parts.layer_parts`); every row has every
    column; lists are joined by `|`; null is empty."""
    rows = layer_parts(layers, total_cycles)
    columns = list(rows[0]) if rows else []
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        writer.writerow([_cell(row.get(c)) for c in columns])
    return text.getvalue().encode()


def _cell(value: Detail) -> str:
    if value is None:
        return ""
    if isinstance(value, list):
        return "|".join(_cell(v) for v in value)
    if isinstance(value, dict):
        return "=".join(_cell(v) for v in value.values())
    text = str(value)
    # a leading = + - @ (or a tab or return before it) would run as a formula in spreadsheet
    # programs; numbers keep their sign
    if text[:1] in set("=+-@\t\r") and not isinstance(value, (int, float)):
        return "'" + text
    return text
