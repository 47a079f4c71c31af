"""A second, plain implementation of the simulator's timing rules, and a builder of toy programs.

Written from the rules in isa/program.py on lists and dictionaries, apart from the compiled loop.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

from worker.compiler.isa.program import (
    INSTRUCTION,
    MAX_RESOURCES,
    Buffer,
    Opcode,
    Operand,
    Resource,
    Stream,
    UnitProgram,
)


@dataclass
class Step:
    """One instruction of a toy program."""

    stream: int
    opcode: Opcode = Opcode.COMPUTE
    cycles: int = 0
    num_bytes: int = 0
    macs: int = 0
    latency: int = 0
    ports: tuple[int, ...] = ()
    waits: tuple[int, ...] = ()
    signals: tuple[int, ...] = ()
    node: int = 0
    src: int = -1
    dst: int = -1
    drawn: int = 0
    returned: int = 0
    starved: int = 0


@dataclass
class Oracle:
    """Times of a program by the plain rules."""

    start: list[int] = field(default_factory=list)
    end: list[int] = field(default_factory=list)
    cycles: int = 0
    busy: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    idle: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    port_bytes: dict[int, int] = field(default_factory=lambda: defaultdict(int))


def oracle(
    steps: list[Step],
    rates: list[float],
    wire: Sequence[int | tuple[int, ...]] | None = None,
    cores: list[int] | None = None,
    signal_cycles: int = 0,
    engine_signal_cycles: int = 0,
    counted: dict[int, str] | None = None,
) -> Oracle:
    """Let time pass: at each moment, whoever asks for ports and is next at all of them starts.

    Who asked first is next, of several the one listed first.  `wire`: of each port the number of
    what it passes bytes through (or several), ports of equal number one at a time.  `cores`: of
    each stream; tokens that several cores use are seen `signal_cycles` late, those of several
    streams of one core `engine_signal_cycles`.  `counted`: what ports pass that do not pass the
    payload.
    """
    wires = [w if isinstance(w, tuple) else (w,) for w in wire or range(len(rates))]
    users: dict[int, set[int]] = defaultdict(set)
    for step in steps:
        for token in (*step.waits, *step.signals):
            users[token].add(step.stream)
    late = {}
    for token, used in users.items():
        within = engine_signal_cycles if len(used) > 1 else 0
        met = {cores[stream] if cores else 0 for stream in used}
        late[token] = max(within, signal_cycles if len(met) > 1 else 0)
    result = Oracle([-1] * len(steps), [-1] * len(steps))
    finish = [-1] * len(steps)
    asked: dict[int, int] = {}
    needs = [
        [(k, late[t]) for t in step.waits for k in range(number) if t in steps[k].signals]
        for number, step in enumerate(steps)
    ]
    earlier = [
        [k for k in range(number) if steps[k].stream == step.stream]
        for number, step in enumerate(steps)
    ]
    time = 0
    wire_free: dict[int, int] = defaultdict(int)
    while len(asked) < len(steps) or any(start < 0 for start in result.start):
        changes = True
        while changes:  # what takes no time lets others ask at the same moment
            changes = False
            for k in range(len(steps)):
                if (
                    k not in asked
                    and all(result.start[e] >= 0 and result.end[e] <= time for e in earlier[k])
                    and all(result.start[n] >= 0 and finish[n] + w <= time for n, w in needs[k])
                ):
                    asked[k] = time
                    changes = True
            for k in sorted(asked, key=lambda k: (asked[k], k)):
                own = {w for p in steps[k].ports for w in wires[p]}
                rivals = [
                    r
                    for r in asked
                    if result.start[r] < 0
                    and (asked[r], r) < (asked[k], k)
                    and own & {w for p in steps[r].ports for w in wires[p]}
                ]
                if result.start[k] >= 0 or rivals or any(wire_free[w] > time for w in own):
                    continue
                sizes = {
                    p: int(getattr(steps[k], (counted or {}).get(p, "num_bytes")))
                    for p in steps[k].ports
                }
                lengths = {p: -(-Fraction(sizes[p]) // Fraction(rates[p])) for p in steps[k].ports}
                for p, length in lengths.items():
                    for w in wires[p]:
                        wire_free[w] = max(wire_free[w], time) + length
                    result.port_bytes[p] += sizes[p]
                ends = [wire_free[w] - time for w in own]
                length = max([steps[k].cycles, *ends])
                result.start[k], result.end[k] = time, time + length
                finish[k] = time + length + steps[k].latency
                result.busy[steps[k].stream] += length
                changes = True
                break
        moments = (
            *result.end,
            *finish,
            *wire_free.values(),
            *(f + w for f in finish for w in set(late.values())),
        )
        time = min((t for t in moments if t > time), default=time)
    for stream in {step.stream for step in steps}:
        ends = [end for step, end in zip(steps, result.end, strict=True) if step.stream == stream]
        result.idle[stream] = max(ends) - result.busy[stream]
    result.cycles = max(finish, default=0)
    return result


def unit_program(
    steps: list[Step],
    streams: tuple[Stream, ...],
    resources: tuple[Resource, ...],
    operands: tuple[Operand, ...] = (),
    buffers: tuple[Buffer, ...] = (),
    nodes: tuple[str, ...] = ("0",),
) -> UnitProgram:
    """Pack steps into arrays."""
    rows = np.zeros(len(steps), INSTRUCTION)
    rows["resource"] = -1
    waits, signals = [0], [0]
    wait_token: list[int] = []
    signal_token: list[int] = []
    for k, step in enumerate(steps):
        ports = [*step.ports, *[-1] * (MAX_RESOURCES - len(step.ports))]
        op = 0 if step.opcode is Opcode.COMPUTE else -1
        rows[k] = (
            int(step.opcode), step.stream, step.node, op, step.num_bytes, step.macs, step.cycles,
            step.drawn, step.returned, 0, step.starved, step.latency, ports, step.src, step.dst, 0,
            0, 0, -1,
        )  # fmt: skip
        wait_token += step.waits
        signal_token += step.signals
        waits.append(len(wait_token))
        signals.append(len(signal_token))
    tokens = 1 + max([-1, *wait_token, *signal_token])
    arrays = [np.array(a, np.int32) for a in (waits, wait_token, signals, signal_token)]
    return UnitProgram(
        "s" * 64, operands, buffers, streams, resources, nodes, rows, *arrays, tokens
    )
