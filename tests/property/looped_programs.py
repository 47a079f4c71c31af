"""Random programs with loops, and wrong ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
from hypothesis import strategies as st
from timing_oracle import Step, unit_program

from worker.compiler.isa.loops import LOOP, STRIDE, Loops, nesting
from worker.compiler.isa.program import Opcode, Operand, OperandRole, Resource, Stream, UnitProgram

STREAMS = tuple(Stream(c, e) for c in range(2) for e in ("mme", "vec", "din", "dout"))
PORTS = (
    Resource("DDR", 0, "read", 1.0), Resource("DDR", 0, "write", 3.0),
    Resource("L1", 0, "write", 2.5), Resource("L1", 1, "write", 2.5),
    Resource("L1", 0, "write", 2.5, count=2),
)  # fmt: skip
_OTHER_CORE = 4
"""From a stream to its like on the other core."""


@dataclass
class _Drawn:
    steps: list[Step] = field(default_factory=list)
    table: list[tuple[int, int, int]] = field(default_factory=list)
    on_both: dict[int, int] = field(default_factory=dict)
    """Rows that run on both cores: their depth."""
    known: list[int] = field(default_factory=list)


@st.composite
def looped(draw: st.DrawFn) -> UnitProgram:
    """A legal program: loops three deep, and rows that run on both cores.

    Tokens 0 to 9 are single; from 10 on they come in pairs, one a core.
    """
    drawn = _Drawn()
    _stretch(draw, drawn, 0)
    depth = max(nesting(np.array(drawn.table, dtype=LOOP)), default=-1) + 1
    unit = unit_program(drawn.steps, STREAMS, PORTS, nodes=("0", "1"))
    unit = replace(unit, num_tokens=20)
    if not drawn.table:
        return unit
    stride = np.zeros((len(drawn.steps), depth), dtype=STRIDE)
    waits = np.zeros((len(unit.wait_token), depth), dtype=np.int32)
    signals = np.zeros((len(unit.signal_token), depth), dtype=np.int32)
    for row, at in drawn.on_both.items():
        stride["stream"][row, at] = _OTHER_CORE
        for pointer, token, steps in (
            (unit.wait_ptr, unit.wait_token, waits), (unit.signal_ptr, unit.signal_token, signals),
        ):  # fmt: skip
            own = slice(pointer[row], pointer[row + 1])
            steps[own, at] = token[own] >= 10
        ports = unit.instructions["resource"][row]
        stride["resource"][row, at] = ports == 2
    return replace(unit, loops=Loops(np.array(drawn.table, dtype=LOOP), stride, waits, signals))


def _stretch(draw: st.DrawFn, drawn: _Drawn, depth: int) -> None:
    for _ in range(draw(st.integers(1, 4))):
        if depth < 3 and draw(st.booleans()):
            number, first = len(drawn.table), len(drawn.steps)
            drawn.table.append((first, 0, draw(st.sampled_from([1, 2, 3, 7, 12, 25]))))
            _stretch(draw, drawn, depth + 1)
            drawn.table[number] = (first, len(drawn.steps), drawn.table[number][2])
            continue
        row = len(drawn.steps)
        drawn.steps.append(_step(draw, drawn))
        if drawn.steps[row].stream < _OTHER_CORE and draw(st.booleans()):
            drawn.table.append((row, row + 1, 2))
            drawn.on_both[row] = depth
        else:  # the other core's half of its pairs is not signalled
            drawn.known = [t for t in drawn.known if t < 10 or t not in drawn.steps[row].signals]


def _step(draw: st.DrawFn, drawn: _Drawn) -> Step:
    waits = tuple(draw(st.lists(st.sampled_from(drawn.known), max_size=3, unique=True))
                  ) if drawn.known else ()  # fmt: skip
    signals = tuple(draw(st.lists(st.sampled_from([0, 1, 2, 3, 10, 12, 14]), max_size=2,
                                  unique=True)))  # fmt: skip
    drawn.known = sorted({*drawn.known, *signals})
    latency, core = draw(st.sampled_from([0, 0, 3, 20])), draw(st.integers(0, 1))
    if draw(st.booleans()):
        cycles = draw(st.integers(0, 30))
        return Step(
            core * 4 + draw(st.integers(0, 1)), Opcode.COMPUTE, cycles, 0,
            draw(st.integers(0, min(9, 16 * cycles))), latency, (), waits, signals,
            draw(st.integers(0, 1)),
        )  # fmt: skip
    opcode = draw(st.sampled_from([Opcode.LOAD, Opcode.STORE, Opcode.MULTICAST]))
    ports = {Opcode.LOAD: (0, 2 + core), Opcode.STORE: (1,), Opcode.MULTICAST: (0, 4)}[opcode]
    return Step(
        core * 4 + (3 if opcode is Opcode.STORE else 2), opcode, 0,
        draw(st.integers(0, 60)), 0, latency, ports, waits, signals, draw(st.integers(0, 1)),
    )  # fmt: skip


def in_turns(seed: int) -> UnitProgram:
    """A loop of a few instructions in another one, whose engines come into step in a cycle that the
    trips of neither are a multiple of; by some seeds."""
    rng = np.random.default_rng(seed)
    steps: list[Step] = []
    bounds = [0]
    for count in (rng.integers(0, 3), rng.integers(3, 8), rng.integers(0, 3)):
        for _ in range(count):
            known = sorted({token for step in steps for token in step.signals})
            steps.append(_random_step(rng, known))
        bounds.append(len(steps))
    outer = (0, len(steps), int(rng.integers(6, 12)))
    inner = (bounds[1], bounds[2], int(rng.integers(15, 40)))
    unit = unit_program(steps, STREAMS, PORTS)
    still = (np.zeros((len(t), 2), np.int32) for t in (unit.wait_token, unit.signal_token))
    stride = np.zeros((len(steps), 2), dtype=STRIDE)
    return replace(unit, loops=Loops(np.array([outer, inner], dtype=LOOP), stride, *still))


def one_after_the_other(seed: int) -> UnitProgram:
    """Two loops that differ only in what passes home: the second moves three times the bursts."""
    rng = np.random.default_rng(seed)
    steps: list[Step] = []
    for _ in range(rng.integers(3, 8)):
        known = sorted({token for step in steps for token in step.signals})
        steps.append(_random_step(rng, known))
    steps = [replace(step, drawn=times * step.num_bytes) for times in (1, 3) for step in steps]
    ports = tuple(replace(p, counted="drawn") if p.level == "DDR" else p for p in PORTS)
    unit, half = unit_program(steps, STREAMS, ports), len(steps) // 2
    still = (np.zeros((len(t), 1), np.int32) for t in (unit.wait_token, unit.signal_token))
    table = np.array([(0, half, 60), (half, 2 * half, 60)], dtype=LOOP)
    return replace(unit, loops=Loops(table, np.zeros((len(steps), 1), dtype=STRIDE), *still))


def _random_step(rng: np.random.Generator, known: list[int]) -> Step:
    core, latency = int(rng.integers(2)), int(rng.choice([0, 0, 3, 20]))
    count = min(len(known), int(rng.integers(3)))
    waits = tuple(rng.choice(known, count, replace=False).tolist()) if count else ()
    signals = (int(rng.integers(4)),) if rng.integers(2) else ()
    if rng.integers(2):
        stream, cycles = core * 4 + int(rng.integers(2)), int(rng.integers(1, 30))
        return Step(stream, Opcode.COMPUTE, cycles, 0, 1, latency, (), waits, signals)
    inward, size = bool(rng.integers(2)), int(rng.integers(1, 60))
    return Step(
        core * 4 + (2 if inward else 3), Opcode.LOAD if inward else Opcode.STORE, 0, size, 0,
        latency, (0, 2 + core) if inward else (1,), waits, signals,
    )  # fmt: skip


def hand_made(trip: int = 4) -> UnitProgram:
    """A load and a compute that waits for it, `trip` times on each of two cores."""
    load = Step(2, Opcode.LOAD, 0, 16, 0, 5, (0, 2), (), (0,))
    work = Step(0, Opcode.COMPUTE, 9, 0, 4, 0, (), (0,), ())
    operand = Operand("x", OperandRole.INPUT, "i8", (64,), 64)
    unit = replace(unit_program([load, work], STREAMS, PORTS, (operand,)), num_tokens=2)
    stride = np.zeros((2, 2), dtype=STRIDE)
    stride["stream"][:, 1] = 4
    stride["resource"][0, 1, 1] = 1
    steps = np.array([[0, 1]], dtype=np.int32)
    table = np.array([(0, 2, trip), (0, 1, 2), (1, 2, 2)], dtype=LOOP)
    return replace(unit, loops=Loops(table, stride, steps, steps))


def _changed(change: Callable[[Loops], None]) -> UnitProgram:
    unit = hand_made()
    loops = Loops(*(np.array(getattr(unit.loops, name)) for name in (
        "table", "stride", "wait_stride", "signal_stride",
    )))  # fmt: skip
    change(loops)
    return replace(unit, loops=loops)


def _set(name: str, where: object, value: object) -> UnitProgram:
    def change(loops: Loops) -> None:
        getattr(loops, name)[where] = value

    return _changed(change)


def _stepping(field_name: str, at: object, value: int) -> UnitProgram:
    def change(loops: Loops) -> None:
        loops.stride[field_name][at] = value

    return _changed(change)


def _deadlocked() -> UnitProgram:
    """The second iteration waits for a token that only the one after it signals."""
    unit = _set("wait_stride", (0, 0), 1)
    return replace(unit, num_tokens=8)


WRONG = {
    "crossing": (_set("table", 1, (1, 3, 2)), "nesting"),
    "out of order": (_set("table", 0, (1, 2, 2)), "nesting"),
    "empty": (_set("table", 1, (1, 1, 2)), "nesting"),
    "never": (_set("table", 0, (0, 2, 0)), "nesting"),
    "behind the end": (_set("table", 0, (0, 9, 4)), "rows"),
    "countless": (_set("table", 0, (0, 2, 1 << 61)), "trips"),
    "no such stream": (_stepping("stream", (1, 1), 9), "stream"),
    "no such port": (_stepping("resource", (0, 1, 1), 7), "resource"),
    "before the first stream": (_stepping("stream", (1, 0), -1), "stream"),
    "no such token": (_set("signal_stride", (0, 0), 3), "signal"),
    "an address far away": (_stepping("src_offset", (0, 0), 1 << 62), "src_offset"),
    "an address outside": (_stepping("src_offset", (0, 0), -8), "src_offset"),
    "too early": (_deadlocked(), "backward"),
}
"""(program, the rule that refuses it)"""
