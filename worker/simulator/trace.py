"""The timeline as a Perfetto / Chrome trace (JSON): calls, and the engines inside each unit call.

Timestamps are microseconds of the machine's clock.  Each call is a slice of track `program`; the
slices of its unit are drawn under the core and engine they ran on; they name the ONNX node, or the
first and the last of several and how many (the call lists all).  Large runs are thinned: units
come with merged slices, and units are drawn in detail while the event budget lasts; metadata says
what was left out.  What memories hold in their fullest instance are counters in bytes; their
capacities are in the metadata.
"""

from __future__ import annotations

import json

from worker.compiler.isa.program import HostCall, Program
from worker.compiler.machine.machine import Machine
from worker.simulator.occupancy_steps import occupancy_steps
from worker.simulator.results import ModelSimulation, UnitSimulation

MAX_EVENTS = 60_000


def trace_json(
    program: Program,
    units: tuple[UnitSimulation, ...],
    whole: ModelSimulation,
    machine: Machine,
) -> bytes:
    """Give the trace; same input, same bytes.  Load it at ui.perfetto.dev or chrome://tracing.

    Cost: about two microseconds per event; at most MAX_EVENTS of them, plus one per call.
    """
    scale = 1e6 / machine.clock_hz
    engine_row = {engine.name: k for k, engine in enumerate(machine.engines)}
    events: list[str] = []
    tracks: set[tuple[int, int]] = set()
    bodies: dict[int, list[tuple[str, int, int, str]]] = {}
    plain_calls = merged = undrawn = drawn = 0
    for timing in whole.calls:
        call = program.calls[timing.call]
        is_host = isinstance(call, HostCall)
        label = "+".join(call.op_types) if isinstance(call, HostCall) else call.op_type
        arguments = {
            "onnx_nodes": list(call.onnx_nodes),
            "start_cycle": timing.start_cycle,
            "end_cycle": timing.end_cycle,
            "overhead_cycles": timing.overhead_cycles,
            "energy_pj": timing.energy_pj,
        }
        times = _times(timing.start_cycle, timing.end_cycle, scale)
        events.append(
            f'{{"ph":"X","pid":0,"tid":{int(is_host)},"name":{_text(label)},{times},'
            f'"args":{_text(arguments)}}}'
        )
        if isinstance(call, HostCall):
            continue
        sim = units[call.unit]
        if drawn + len(sim.slices) > MAX_EVENTS:
            plain_calls += 1
            continue
        drawn += len(sim.slices)
        merged += sum(piece.merged > 1 for piece in sim.slices)
        undrawn += sim.instructions - sum(piece.merged for piece in sim.slices)
        origin = timing.start_cycle + timing.overhead_cycles
        if call.unit not in bodies:
            bodies[call.unit] = _bodies(sim, engine_row)
            tracks |= {(piece.core + 1, engine_row[piece.engine]) for piece in sim.slices}
        nodes = _nodes(call.onnx_nodes)
        for head, start, end, arguments_text in bodies[call.unit]:
            times = _times(origin + start, origin + end, scale)
            events.append(f'{head},{times},"args":{{{arguments_text},{nodes}}}}}')
    names = [
        _name(0, None, "program"), _name(0, 0, "accelerator"), _name(0, 1, "host"),
        *(_name(pid, None, f"core {pid - 1}") for pid in sorted({p for p, _ in tracks})),
        *(_name(pid, tid, machine.engines[tid].name) for pid, tid in sorted(tracks)),
    ]  # fmt: skip
    other = {
        "machine": machine.name,
        "clock_hz": machine.clock_hz,
        "cycles": whole.cycles,
        "note": (
            f"{merged} slices stand for several instructions; {undrawn} instructions of further "
            f"cores are not drawn; {plain_calls} calls are drawn without their engines "
            f"(limit {MAX_EVENTS} events)"
        ),
        "memories": {level.name: level.capacity_bytes for level in machine.placeable},
    }
    held = [
        f'{{"ph":"C","pid":0,"name":{_text(level.name)},"ts":{round(cycle * scale, 6)!r},'
        f'"args":{{"bytes":{used}}}}}'
        for level in machine.placeable
        for cycle, used in occupancy_steps(program, units, whole, level.name)
    ]
    body = ",\n".join([*names, *events, *held])
    return (
        f'{{"displayTimeUnit":"ns","otherData":{_text(other)},"traceEvents":[\n{body}\n]}}\n'
    ).encode()


def _bodies(sim: UnitSimulation, engine_row: dict[str, int]) -> list[tuple[str, int, int, str]]:
    """(head, start, end, arguments) of each slice of a unit, ready for any of its calls."""
    return [
        (
            f'{{"ph":"X","pid":{piece.core + 1},"tid":{engine_row[piece.engine]},'
            f'"name":{_text(piece.name)}',
            piece.start_cycle,
            piece.end_cycle,
            f'"instructions":{piece.merged}',
        )
        for piece in sim.slices
    ]


def _nodes(names: tuple[str, ...]) -> str:
    """The ONNX nodes of a call as arguments of each of its slices, however many they are."""
    if len(names) <= 1:
        return f'"onnx_node":{_text("".join(names))}'
    return f'"onnx_nodes":{_text([names[0], names[-1]])},"num_onnx_nodes":{len(names)}'


def _times(start: int, end: int, scale: float) -> str:
    return f'"ts":{round(start * scale, 6)!r},"dur":{round((end - start) * scale, 6)!r}'


def _text(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=True)


def _name(pid: int, tid: int | None, name: str) -> str:
    kind = "process_name" if tid is None else "thread_name"
    row = "" if tid is None else f'"tid":{tid},'
    return f'{{"ph":"M","pid":{pid},{row}"name":"{kind}","args":{{"name":{_text(name)}}}}}'
