"""The timeline as a Perfetto / Chrome trace (JSON): calls, and the engines inside each unit call.

Timestamps are microseconds of the machine's clock.  Each call is a slice of track `program`; the
slices of its unit are drawn under the core and engine they ran on.  Large runs are thinned: units
come with merged slices, and units are drawn in detail while the event budget lasts; metadata says
what was left out.
"""

from __future__ import annotations

import json
from typing import Any

from worker.compiler.isa.program import HostCall, Program
from worker.compiler.machine.machine import Machine
from worker.simulator.results import ModelSimulation, UnitSimulation

MAX_EVENTS = 60_000


def trace_json(
    program: Program,
    units: tuple[UnitSimulation, ...],
    whole: ModelSimulation,
    machine: Machine,
) -> bytes:
    """Give the trace; same input, same bytes.  Load it at ui.perfetto.dev or chrome://tracing."""
    scale = 1e6 / machine.clock_hz
    engine_row = {engine.name: k for k, engine in enumerate(machine.engines)}
    width = len(machine.engines)
    events: list[dict[str, Any]] = []
    named: set[tuple[int, int]] = set()
    plain_calls = 0
    merged = 0

    def slice_event(
        pid: int, tid: int, name: str, start: int, end: int, args: dict[str, Any]
    ) -> None:
        events.append(
            {"ph": "X", "pid": pid, "tid": tid, "name": name, "ts": round(start * scale, 6),
             "dur": round((end - start) * scale, 6), "args": args}
        )  # fmt: skip

    for timing in whole.calls:
        call = program.calls[timing.call]
        is_host = isinstance(call, HostCall)
        label = "+".join(call.op_types) if isinstance(call, HostCall) else call.op_type
        slice_event(
            0, 1 if is_host else 0, label, timing.start_cycle, timing.end_cycle,
            {"onnx_nodes": list(call.onnx_nodes), "start_cycle": timing.start_cycle,
             "end_cycle": timing.end_cycle, "overhead_cycles": timing.overhead_cycles,
             "energy_pj": timing.energy_pj},
        )  # fmt: skip
        if isinstance(call, HostCall):
            continue
        sim = units[call.unit]
        if len(events) + len(sim.slices) > MAX_EVENTS:
            plain_calls += 1
            continue
        origin = timing.start_cycle + timing.overhead_cycles
        for piece in sim.slices:
            pid, tid = piece.core + 1, engine_row[piece.engine]
            named.add((pid, tid))
            merged += piece.merged > 1
            slice_event(
                pid, tid, piece.name, origin + piece.start_cycle, origin + piece.end_cycle,
                {"instructions": piece.merged, "onnx_node": call.onnx_nodes[:1]},
            )  # fmt: skip
    names = [
        _name(0, None, "program"), _name(0, 0, "accelerator"), _name(0, 1, "host"),
        *(_name(pid, None, f"core {pid - 1}") for pid in sorted({p for p, _ in named})),
        *(_name(pid, tid, machine.engines[tid % width].name) for pid, tid in sorted(named)),
    ]  # fmt: skip
    note = (
        f"{merged} slices stand for several instructions; {plain_calls} calls are drawn without "
        f"their engines (limit {MAX_EVENTS} events)"
    )
    document = {
        "displayTimeUnit": "ns",
        "otherData": {
            "machine": machine.name, "clock_hz": machine.clock_hz, "cycles": whole.cycles,
            "note": note,
        },
        "traceEvents": [*names, *events],
    }  # fmt: skip
    return json.dumps(document, separators=(",", ":"), ensure_ascii=True).encode()


def _name(pid: int, tid: int | None, name: str) -> dict[str, Any]:
    kind = "process_name" if tid is None else "thread_name"
    event: dict[str, Any] = {"ph": "M", "pid": pid, "name": kind, "args": {"name": name}}
    return event if tid is None else {**event, "tid": tid}
