"""report.json: the contract's document, as one JSON-ready dictionary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from worker.compiler.errors import Detail
from worker.compiler.frontend.model_summary import model_summary
from worker.compiler.isa.program import HostCall, UnitCall
from worker.compiler.judge.compiled import CompiledModel
from worker.compiler.judge.entrants import absent
from worker.compiler.machine import digest
from worker.compiler.options import CompileOptions
from worker.compiler.partition.plan import HOST
from worker.compiler.strategies.sections import UnitNotes
from worker.report.control import control_rows
from worker.report.conversion import conversion_section, layout_section
from worker.report.insights import insights
from worker.report.invocation import invocation_section
from worker.report.layers import host_macs, layer_rows
from worker.report.mesh import mesh_section
from worker.report.node_groups import causes_of
from worker.report.noise_row import NoiseRow
from worker.report.oracles import oracle_rows
from worker.report.partition import partition_section
from worker.report.sections import REPORT_VERSION
from worker.report.strategies import handed_section, strategies_section
from worker.report.summaries import strategy_columns, summaries_section
from worker.report.verified_row import VerifiedRow
from worker.simulator.results import Check, ModelSimulation, UnitSimulation


@dataclass(frozen=True, slots=True)
class Verification:
    """Outcome of running the kernels; numbers are None in mode `none`."""

    mode: str
    reference: str
    max_abs_err: float | None
    max_rel_err: float | None
    """max |got - want| / max |want| of the comparison `worst`."""
    tolerance: float | None
    """What `worst` may differ by."""
    passed: bool | None
    detail: str
    outputs: tuple[VerifiedRow, ...] = ()
    """Everything that was compared."""
    noise: tuple[NoiseRow, ...] = ()
    """The converted model against the user's; empty where nothing was converted."""
    insensitive: tuple[str, ...] = ()
    """Outputs that do not depend on the inputs: comparing them proves nothing."""
    worst: str = ""
    """The row that is nearest to its tolerance, or farthest beyond."""
    scored_on: str = ""
    """The samples that `noise` was measured on, in words; empty where there is none."""
    is_scored_unseen: bool = True
    """Calibration has not seen them."""


NOT_ASKED = Verification("none", "none", None, None, None, None, "not asked for")


def report_document(
    compiled: CompiledModel,
    sims: Sequence[UnitSimulation],
    whole: ModelSimulation,
    options: CompileOptions,
    verification: Verification,
    toolchain: Mapping[str, Detail],
    notes: Sequence[UnitNotes] = (),
) -> dict[str, Detail]:
    """What every run of the same compile has in common.

    `notes`: what strategies left at their units.
    """
    summaries, broken = summaries_section(notes, sims, options)
    columns, torn = strategy_columns(summaries)
    rows = layer_rows(compiled, sims, whole, columns)
    summary = _summary(compiled, sims, whole)
    info = model_summary(compiled.source)
    return {
        "schema_version": REPORT_VERSION,
        "toolchain": dict(toolchain),
        "model": {
            "sha256": compiled.model.sha256,
            "name": compiled.model.name,
            "nodes": info["nodes"],
            "macs": info["macs"],
            "params": info["params"],
        },
        "hardware": {
            "name": compiled.machine.name,
            "digest": digest(compiled.machine),
            "clock_hz": compiled.machine.clock_hz,
            "guesses": [
                {"pointer": g.pointer, "value": g.value, "note": g.note}
                for g in compiled.machine.guesses
            ],
            "oracles": oracle_rows(compiled.machine),
            "energy_ranges": [
                {"pointer": each.pointer, "low": each.low, "high": each.high}
                for each in compiled.machine.energy_ranges
            ],
        },
        "options": options.to_json(),
        "summary": summary,
        "strategies": strategies_section(compiled, whole, options),
        "handed_over": handed_section(compiled),
        "layers": list[Detail](rows),
        "views": [
            {"tensor": v.tensor, "source": v.source, "onnx_nodes": list[Detail](v.onnx_nodes)}
            for v in compiled.linked.views
        ],
        "placement": [
            {
                "node": p.node,
                "op_type": p.op_type,
                "target": str(p.target),
                "reason_code": str(p.reason_code),
                "reason": p.reason,
                "composite": p.composite,
                "is_inserted": p.is_inserted,
            }
            for p in compiled.placement
        ],
        "partition": partition_section(compiled, whole, options),
        "conversion": conversion_section(compiled, options),
        "layouts": layout_section(compiled),
        "invocation": invocation_section(compiled, whole),
        "control_flow": control_rows(compiled, whole),
        "summaries": summaries,
        "verification": {
            "mode": verification.mode,
            "reference": verification.reference,
            "max_abs_err": verification.max_abs_err,
            "max_rel_err": verification.max_rel_err,
            "tolerance": verification.tolerance,
            "passed": verification.passed,
            "detail": verification.detail,
            "insensitive": list(verification.insensitive),
            "compared": len(verification.outputs),
            "worst": verification.worst,
            "outputs": [
                {
                    "name": row.name,
                    "max_abs_err": row.max_abs_err,
                    "max_rel_err": row.error,
                    "tolerance": row.tolerance,
                    "own_error": row.own_error,
                    "reason": row.reason,
                }
                for row in verification.outputs
            ],
            "scored_on": verification.scored_on,
            "sqnr": [
                {
                    "value": n.value,
                    "sqnr_db": n.sqnr_db,
                    "reason": n.reason,
                    "min_db": n.min_db,
                    "passed": n.passed,
                }
                for n in verification.noise
            ],
        },
        "sanity": [
            {"name": c.name, "passed": c.passed, "detail": c.detail}
            for c in sanity_block(rows, sims, whole)
        ],
        "insights": insights(rows, whole),
        "warnings": [
            {"code": code, "message": text}
            for code, text in (
                *(("STRATEGY_ABSENT", f"takes no part: {why}") for why in absent(options)),
                *compiled.warnings,
                *_noise_warnings(verification),
                *(
                    ("STRATEGY_SUMMARY", f"{fault.sentence}; it is left out")
                    for fault in (*broken, *torn)
                ),
            )
        ],
        "mesh": mesh_section(compiled.machine, whole),
        "energy": [
            {
                "item": line.item,
                "pj": line.pj,
                "low_pj": line.low_pj,
                "high_pj": line.high_pj,
            }
            for line in whole.energy
        ],
    }


def _noise_warnings(verification: Verification) -> tuple[tuple[str, str], ...]:
    seen = (
        "SCORED_ON_CALIBRATION",
        f"the noise was measured on {verification.scored_on}; give more samples for figures that"
        " do not flatter",
    )
    return (() if verification.is_scored_unseen else (seen,)) + tuple(
        (
            "LOW_SQNR",
            f"output {row.value} keeps {row.sqnr_db:.1f} dB of the user's model, the spec asks for"
            f" {row.min_db:g} dB: calibrate with real samples, or keep sensitive operators on the"
            " host",
        )
        for row in verification.noise
        if row.passed is False and row.sqnr_db is not None
    )


def sanity_block(
    rows: Sequence[Mapping[str, Detail]],
    sims: Sequence[UnitSimulation],
    whole: ModelSimulation,
) -> tuple[Check, ...]:
    """Model-level checks, then the unit-level ones folded by name (failed units are named)."""
    total = 0
    for row in rows:
        cycles = row.get("cycles_total")
        total += cycles if isinstance(cycles, int) else 0
    checks = [
        *whole.checks,
        Check("layers-sum-to-total", total == whole.cycles,
              f"rows {total}, model {whole.cycles}, residual {whole.cycles - total}"),
    ]  # fmt: skip
    by_name: dict[str, list[str]] = {}
    for sim in sims:
        for check in sim.checks:
            failed = by_name.setdefault(check.name, [])
            if not check.passed:
                failed.append(f"{sim.signature[:12]}: {check.detail}")
    checks += [
        Check(f"units:{name}", not failed, "; ".join(failed[:4]) or f"{len(sims)} units")
        for name, failed in by_name.items()
    ]
    return tuple(checks)


def _home_bytes(compiled: CompiledModel, whole: ModelSimulation) -> int:
    home = compiled.machine.home.name
    return sum(t.read_bytes + t.write_bytes for t in whole.traffic if t.level == home)


def _summary(
    compiled: CompiledModel, sims: Sequence[UnitSimulation], whole: ModelSimulation
) -> dict[str, Detail]:
    program = compiled.linked.program
    unit_calls = [c for c in program.calls if isinstance(c, UnitCall)]
    host_calls = [c for c in program.calls if isinstance(c, HostCall)]
    seconds = whole.cycles / compiled.machine.clock_hz
    compute = sum(
        max((b.cycles for b in sims[c.unit].bounds if b.name.startswith("compute:")), default=0)
        for c in unit_calls
    )
    interpreted = {timing.node for timing in whole.control}
    # Points that are computed twice are work, but no larger part of the model.
    needed = whole.macs - whole.repeated_macs
    all_macs = needed + sum(
        host_macs(compiled, c) for c in host_calls if c.onnx_nodes[0] not in interpreted
    )
    energy = whole.energy_pj
    low, high = whole.energy_range_pj
    counted = [p for p in compiled.placement if not p.is_inserted]
    on_host = sum(p.target == HOST for p in counted)
    return {
        "latency_cycles": whole.cycles,
        "latency_s": seconds,
        "throughput_per_s": 1.0 / seconds if seconds else None,
        "energy_pj": energy,
        "energy_low_pj": low,
        "energy_high_pj": high,
        "edp": energy * seconds,
        "macs": whole.macs,
        "repeated_macs": whole.repeated_macs,
        "utilization_pct": 100.0 * compute / whole.cycles if whole.cycles else None,
        "traffic_bytes": {
            t.level: {"read": t.read_bytes, "write": t.write_bytes} for t in whole.traffic
        },
        "unasked_bytes": {t.level: t.unasked_bytes for t in whole.traffic if t.unasked_bytes},
        "peak_bytes": dict(whole.peak_bytes),
        "accelerator_ops": len(counted) - on_host,
        "host_ops": on_host,
        "accelerator_mac_pct": 100.0 * needed / all_macs if all_macs else None,
        "kernels": len(unit_calls),
        "kernels_unique": len(compiled.units),
        "boundary_bytes": whole.boundary_bytes,
        "host_cycles": whole.host_cycles,
        "launch_cycles": whole.launch_cycles,
        "lower_bound_cycles": whole.lower_bound_cycles,
        "lower_bound_by": whole.floor[0].name if whole.floor else None,
        "lower_bound_parts": {b.name: b.cycles for b in whole.floor},
        "bound_by": whole.causes[0].cause if whole.causes else None,
        "causes": causes_of(whole.causes),
        "distance_to_bound": (
            whole.cycles / whole.lower_bound_cycles if whole.lower_bound_cycles else None
        ),
        "roofline_cycles": whole.roofline.cycles,
        "roofline_by": whole.roofline.name,
        "distance_to_roofline": (
            whole.cycles / whole.roofline.cycles if whole.roofline.cycles else None
        ),
        "instructions": sum(sims[c.unit].instructions for c in unit_calls),
        "home_arena_bytes": program.home_bytes,
        "weight_bytes": program.weight_bytes,
        "peak_activation_bytes": program.peak_activation_bytes,
    }
