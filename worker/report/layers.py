"""One row per executed call: the layer table of report.json and layers.csv."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence

from worker.compiler.errors import Detail
from worker.compiler.isa.program import HostCall, UnitCall
from worker.compiler.judge.compiled import CompiledModel
from worker.compiler.schedule.nodes import Compute, Loop, LoopKind, Node, Pipe, Place, Seq
from worker.report.node_names import kernel_op_type
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
    compiled: CompiledModel, sims: Sequence[UnitSimulation], whole: ModelSimulation
) -> list[dict[str, Detail]]:
    """Rows in execution order.  Cycles of all rows sum to the model's total."""
    outcomes = cache_outcomes(compiled)
    group_of_unit: dict[int, int] = {}
    rows: list[dict[str, Detail]] = []
    energy_total = whole.energy_pj
    control_of = {timing.node: timing for timing in whole.control}
    op_type_of = {row.node: row.op_type for row in compiled.placement}
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
            "start_cycle": timing.start_cycle,
            "end_cycle": timing.end_cycle,
            "energy_pj": timing.energy_pj,
            "energy_pct": _pct(timing.energy_pj, energy_total),
        }
        if isinstance(call, UnitCall):
            unit, sim = compiled.units[call.unit], sims[call.unit]
            group_of_unit.setdefault(call.unit, len(group_of_unit))
            row["group_id"] = group_of_unit[call.unit]
            row.update(_unit_columns(sim, outcomes.get(unit.signature, "none")))
            row["signature"] = unit.signature
            row["tile"] = tile_of(unit.schedule.root)
            row["cores"] = cores_of(unit.schedule.root)
            row["overhead_cycles"] = timing.overhead_cycles
        else:
            row.update(_host_columns(compiled, call, cycles, timing.overhead_cycles))
            inside = control_of.get(call.onnx_nodes[0])
            if inside is not None:
                row["macs"] = inside.macs
        rows.append(row)
    return rows


def _unit_columns(sim: UnitSimulation, cache: str) -> dict[str, Detail]:
    compute_bound = max((b.cycles for b in sim.bounds if b.name.startswith("compute:")), default=0)
    columns: dict[str, Detail] = {
        "cache": cache,
        "cycles_compute": sim.compute_cycles,
        "cycles_stall": sim.cycles - sim.compute_cycles,
        "bound_by": sim.lower_bound.name,
        "macs": sim.macs,
        "utilization_pct": _pct(compute_bound, sim.cycles),
        "peak_buffer_bytes": max((o.peak_bytes for o in sim.occupancy), default=0),
        "lower_bound_cycles": sim.lower_bound.cycles,
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
        "cache": None,
        "cycles_compute": cycles - overhead,
        "cycles_stall": overhead,
        "bound_by": "host",
        "macs": call.flops // 2,
        "utilization_pct": None,
        "peak_buffer_bytes": None,
        "lower_bound_cycles": cycles,
        "predicted_cycles": None,
        "tile": None,
        "cores": None,
        "overhead_cycles": overhead,
    }
    for level in compiled.machine.levels:
        columns[f"bytes_{level.name}_read"] = call.input_bytes if level.name == home else 0
        columns[f"bytes_{level.name}_write"] = call.output_bytes if level.name == home else 0
    return columns


def cache_outcomes(compiled: CompiledModel) -> dict[str, str]:
    """`hit` or `miss` per unit signature: a unit is a hit when every look-up for it was one."""
    seen: dict[str, list[str]] = {}
    for event in compiled.cache_events:
        seen.setdefault(event.signature, []).append(event.outcome)
    return {
        unit.signature: "hit" if all(o == "hit" for o in seen[unit.signature]) else "miss"
        for unit in compiled.units
        if unit.signature in seen
    }


def _distinct(call: HostCall) -> list[str]:
    return list(dict.fromkeys(call.op_types))


def _reasons(compiled: CompiledModel, call: HostCall) -> str:
    names = set(call.onnx_nodes)
    codes = dict.fromkeys(str(row.reason_code) for row in compiled.placement if row.node in names)
    return "+".join(codes)


def layers_csv(rows: Sequence[dict[str, Detail]]) -> bytes:
    """CSV with a header; every row has every column; lists are joined by `|`; null is empty."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
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
    text = str(value)
    # a leading = + - @ (or a tab or return before it) would run as a formula in spreadsheet
    # programs; numbers keep their sign
    if text[:1] in set("=+-@\t\r") and not isinstance(value, (int, float)):
        return "'" + text
    return text
