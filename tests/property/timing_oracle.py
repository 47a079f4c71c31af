"""A second, plain implementation of the simulator's timing rules, and a builder of toy programs.

Written from the rules in isa/program.py on lists and dictionaries, apart from the compiled loop.
"""

from __future__ import annotations

from collections import defaultdict
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


@dataclass
class Oracle:
    """Times of a program by the plain rules."""

    start: list[int] = field(default_factory=list)
    end: list[int] = field(default_factory=list)
    cycles: int = 0
    busy: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    idle: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    port_bytes: dict[int, int] = field(default_factory=lambda: defaultdict(int))


def oracle(steps: list[Step], rates: list[float]) -> Oracle:
    """Time the steps one after the other."""
    result = Oracle()
    engine_free: dict[int, int] = defaultdict(int)
    port_free: dict[int, int] = defaultdict(int)
    signalled: dict[int, int] = {}
    for step in steps:
        free = engine_free[step.stream]
        ready = max((signalled[t] for t in step.waits), default=0)
        open_at = max((port_free[p] for p in step.ports), default=0)
        start = max(free, ready, open_at)
        lengths = {p: -(-Fraction(step.num_bytes) // Fraction(rates[p])) for p in step.ports}
        length = max([step.cycles, *lengths.values()])
        for port, own in lengths.items():
            port_free[port] = start + own
            result.port_bytes[port] += step.num_bytes
        result.idle[step.stream] += start - free
        result.busy[step.stream] += length
        engine_free[step.stream] = start + length
        finish = start + length + step.latency
        for token in step.signals:
            signalled[token] = max(signalled.get(token, -1), finish)
        result.start.append(start)
        result.end.append(start + length)
        result.cycles = max(result.cycles, finish)
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
            step.latency, ports, step.src, step.dst, 0, 0,
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
