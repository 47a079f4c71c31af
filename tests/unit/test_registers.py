"""Sums that stand in an engine's registers: what they cost, by hand, and who reaches them."""

from __future__ import annotations

from dataclasses import replace

import lower_toys as toys
import pytest
from registers import with_registers

from worker.compiler.audit.audit import audit
from worker.compiler.cost.compute import pace_of
from worker.compiler.cost.feeds import feeds_of
from worker.compiler.errors import VerifyError
from worker.compiler.export.derive import loop_nests
from worker.compiler.export.nest import LoopNest
from worker.compiler.ir.affine import Affine, var
from worker.compiler.ir.dtype import DType
from worker.compiler.isa.program import Opcode
from worker.compiler.lower.lower import lower_unit
from worker.compiler.machine.machine import Machine
from worker.compiler.schedule.nodes import (
    Compute,
    Init,
    Loop,
    LoopKind,
    Move,
    Pipe,
    Place,
    Queue,
    Schedule,
    Seq,
    Span,
    Stage,
)
from worker.compiler.schedule.text import parse_schedule, print_schedule
from worker.compiler.schedule.verify import verify
from worker.compiler.strategies.naive.strategy import NAIVE
from worker.simulator.results import UnitSimulation
from worker.simulator.run import simulate_unit

GRAPH = toys.matmul_graph(16, 16, 32, DType.F16)
OP = GRAPH.ops[0]
LEFT, RIGHT = (access.tensor for access in OP.reads)
(OUT,) = GRAPH.outputs
WHOLE = (Span(Affine(), 16), Span(Affine(), 16))


def machine(registers: int = 1 << 10, engine: str = "mme") -> Machine:
    """One core without a cache; registers of one engine alone."""
    found = with_registers(toys.flat_machine(1), registers)
    engines = tuple(
        replace(e, accumulators="REG" if e.name == engine else "", op_energy_pj={DType.F16: 1.0})
        for e in found.engines
    )
    home, _, *own = found.levels
    return replace(found, levels=(home, *own), engines=engines)


def product(memory: str) -> Schedule:
    """Eight steps of the sum, four of its terms each."""
    at = var("t") * 4
    left, right = (Span(Affine(), 16), Span(at, 4)), (Span(at, 4), Span(Affine(), 16))
    box = (Span(Affine(), 16), Span(Affine(), 16), Span(at, 4))
    step = Place(LEFT, "L1", left, 1, Seq((
        Move(LEFT, "DDR", "L1", left),
        Place(RIGHT, "L1", right, 1, Seq((
            Move(RIGHT, "DDR", "L1", right), Compute(OP.name, box, "mme"),
        ))),
    )))  # fmt: skip
    body = Seq((Loop("t", 8, LoopKind.TIME, step), Move(OUT, memory, "DDR", WHOLE)))
    root = Place(OUT, memory, WHOLE, 1, body, DType.F32, Init.IDENTITY)
    return Schedule(GRAPH, root, "by hand", 0)


def run(schedule: Schedule, on: Machine) -> UnitSimulation:
    """Verified, lowered, audited, simulated."""
    verify(schedule, on)
    assert print_schedule(parse_schedule(print_schedule(schedule))) == print_schedule(schedule)
    program = lower_unit(schedule, on, "s" * 64)
    audit(schedule, program, on)
    return simulate_unit(program, on)


def test_sums_in_registers_pass_no_port_of_the_engine() -> None:
    """In memory each of the eight steps brings 16 x 16 sums of four bytes and takes them back."""
    engine = machine().engine("mme")
    box, held = (16, 16, 4), {OUT: DType.F32}
    beside = pace_of(OP, engine, GRAPH.tensors, held=held)
    inside = pace_of(OP, engine, GRAPH.tensors, stays=True)
    at_once = -(-16 * 16 * 4 // int(beside.speed)) + engine.startup_cycles
    assert inside.cycles(box) == at_once
    moved = 16 * 16 * 4
    assert beside.cycles(box) == engine.startup_cycles + max(
        at_once - engine.startup_cycles, moved // 64
    )
    # An engine whose sums have nowhere else to stand says nothing of them, as ever.
    plain = replace(engine, accumulators="")
    assert pace_of(OP, plain, GRAPH.tensors).cycles(box) == at_once
    drawn, returned = feeds_of(OP, engine, GRAPH.tensors, stays=True).of(box)
    assert returned == 0
    assert drawn < feeds_of(OP, engine, GRAPH.tensors).of(box)[0]


def test_sums_in_memory_pass_the_ports_as_they_stand_there() -> None:
    """They stand there in f32, though factors and result are f16: four bytes a sum, each way."""
    on = machine()
    pace = pace_of(OP, on.engine("mme"), GRAPH.tensors, held={OUT: DType.F32})
    rows = lower_unit(product("L1"), on, "s" * 64).instructions
    steps = rows[rows["opcode"] == int(Opcode.COMPUTE)]
    factors = feeds_of(OP, on.engine("mme"), GRAPH.tensors, stays=True).of((16, 16, 4))[0]
    assert steps["returned"].tolist() == [16 * 16 * 4] * 8
    assert steps["drawn"].tolist() == [factors + 16 * 16 * 4] * 8
    assert steps["cycles"].tolist() == [pace.cycles((16, 16, 4))] * 8


def test_what_is_stored_leaves_the_registers_and_is_rounded_on_its_way() -> None:
    on = machine()
    inside, beside = run(product("REG"), on), run(product("L1"), on)
    read = {t.level: t.read_bytes for t in inside.traffic}
    assert read["REG"] == 16 * 16 * 2
    assert read["L1"] == 0
    assert {t.level: t.read_bytes for t in beside.traffic}["L1"] == 16 * 16 * 2
    peaks = [{use.level: use.peak_bytes for use in sim.occupancy} for sim in (inside, beside)]
    assert [peak["REG"] for peak in peaks] == [16 * 16 * 4, 0]
    assert peaks[1]["L1"] - peaks[0]["L1"] == 16 * 16 * 4
    items = [{e.item: e.pj for e in sim.energy} for sim in (inside, beside)]
    assert items[0]["feed:L1"] < items[1]["feed:L1"]
    assert items[0]["register:REG"] == items[1]["register:REG"]
    assert inside.cycles <= beside.cycles


def test_registers_are_full_like_any_memory() -> None:
    with pytest.raises(VerifyError, match="REG must hold 1024 bytes, 1020 are usable") as found:
        verify(product("REG"), machine(1020))
    assert found.value.rule == "capacity"


def test_other_engines_do_not_reach_them() -> None:
    with pytest.raises(VerifyError, match="mme does not reach") as found:
        verify(product("REG"), machine(engine="vec"))
    assert found.value.rule == "reach"


def test_a_ring_stands_in_a_scratchpad() -> None:
    schedule = parse_schedule(print_schedule(product("REG")))
    ring = Queue(OUT, "REG", WHOLE, 2, 0, (1,))
    assert isinstance(schedule.root, Place)
    stages = (Stage(schedule.root.body, 0), Stage(schedule.root.body, 0))
    piped = replace(schedule, root=Pipe("p", 1, stages, (ring,)))
    with pytest.raises(VerifyError, match="is no scratchpad"):
        verify(piped, machine())


def test_the_tile_of_sums_is_no_larger_than_the_registers() -> None:
    """And where those read them that have others, they stand in memory."""
    on = with_registers(toys.flat_machine(2, 1 << 12), 256)
    found = list(NAIVE.candidates(toys.matmul_graph(64, 64, 64), on))
    places = [_place(s) for s in found if isinstance(s, Schedule)]
    assert {place.memory for place in places} >= {"REG"}
    for place in places:
        size = place.tile[0].extent * place.tile[1].extent * 4 * place.copies
        assert place.memory == "L1" or size <= 256


def _place(schedule: Schedule) -> Place:
    """The innermost place of the result."""
    found: list[Place] = []

    def visit(node: object) -> None:
        if isinstance(node, Place) and node.tensor in schedule.graph.outputs:
            found.append(node)
        for part in getattr(node, "parts", ()) or (getattr(node, "body", None),):
            if part is not None:
                visit(part)

    visit(schedule.root)
    return found[-1]


def test_exports_say_where_sums_stand() -> None:
    """The nest has the result in registers, filled by nothing and stored once, and the terms in
    memory; by hand, so that cost models see the mapping that runs."""
    (nest,) = loop_nests("k", ("node",), product("REG"), machine())
    assert isinstance(nest, LoopNest)
    held = {nest.operands[hold.operand].tensor: (hold.memory, hold.extents) for hold in nest.holds}
    assert held == {OUT: ("REG", (16, 16)), LEFT: ("L1", (16, 4)), RIGHT: ("L1", (4, 16))}
