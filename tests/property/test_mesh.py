"""What crosses a mesh: by hand on one of 2 x 2, against an oracle, and in lowered programs."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from audit_oracle import fault_in
from hypothesis import given
from hypothesis import strategies as st
from hypothesis_profiles import COSTLY
from kernel_toys import matmul_graph
from lower_toys import naive_matmul
from mesh_toys import HOP, LATENCY, PJ, RATE, Place, mesh_machine, wires_of
from nest_layers import Layer
from test_loops import check_lowered
from timing_oracle import Step, oracle, unit_program

from worker.compiler.clock.run import run_unit
from worker.compiler.errors import VerifyError
from worker.compiler.isa.program import Opcode, Resource, Stream, UnitProgram, expanded
from worker.compiler.isa.verify import verify_program
from worker.compiler.isa.verify_ways import check_ways
from worker.compiler.lower.lower import lower_unit
from worker.compiler.machine.digest import machine_document, machine_of
from worker.compiler.machine.machine import Machine
from worker.compiler.machine.mesh import Mesh, Numbering
from worker.compiler.schedule.nodes import Schedule
from worker.compiler.tiling.nest.emit import emit
from worker.compiler.tiling.nest.levels import Sizes
from worker.simulator.results import UnitSimulation
from worker.simulator.run import simulate_unit

MACHINE = mesh_machine()
"""Home at node 0; nodes 0 1 above 2 3."""
SIZE = 32
PASSING = int(SIZE / RATE)


class Program:
    """Transfers of one core each, all ready at once."""

    def __init__(self, machine: Machine) -> None:
        mesh = machine.links[0].mesh
        assert mesh is not None
        self.machine, self.mesh = machine, mesh
        self.steps: list[Step] = []
        self.ports: list[Resource] = []
        self.streams: list[Stream] = []

    def port(self, *fields: object, **others: int) -> int:
        self.ports.append(Resource(*fields, **others))  # type: ignore[arg-type]
        return len(self.ports) - 1

    def way(self, begin: int, end: int, **others: int) -> int:
        return self.port("noc", self.mesh.way(begin, end), "link", RATE, **others)

    def home(self, node: int, direction: str) -> int:
        """The port at the router of home next to a node, with its part of home's rate."""
        router = self.mesh.port_of(node) - self.mesh.num_nodes
        return self.port("DDR", router, direction, 16.0 / len(self.mesh.ports))

    def step(self, core: int, opcode: Opcode, ports: tuple[int, ...], engine: str = "din") -> None:
        self.streams.append(Stream(core, engine))
        self.steps.append(
            Step(len(self.streams) - 1, opcode, num_bytes=SIZE, latency=LATENCY, ports=ports)
        )

    def load(self, node: int, count: int = 1, step: int = 1) -> None:
        """Into a node, or several at a distance."""
        home = self.home(node, "read")
        way = self.way(self.mesh.port_of(node), node, count=count, step=step)
        own = self.port("L1", node, "write", 64.0, count=count, step=step)
        self.step(node, Opcode.LOAD if count == 1 else Opcode.MULTICAST, (home, way, own))

    def store(self, node: int) -> None:
        own = self.port("L1", node, "read", 64.0)
        way = self.way(node, self.mesh.port_of(node))
        home = self.home(node, "write")
        self.step(node, Opcode.STORE, (own, way, home), "dout")

    def copy(self, begin: int, end: int) -> None:
        own = self.port("L1", begin, "read", 64.0)
        there = self.port("L1", end, "write", 64.0)
        self.step(begin, Opcode.COPY, (own, self.way(begin, end), there))

    def run(self) -> tuple[UnitProgram, UnitSimulation, list[int]]:
        """The program, its run alone, and the cycle in which each begins."""
        unit = unit_program(self.steps, tuple(self.streams), tuple(self.ports))
        run = run_unit(unit, self.machine)
        begin = np.empty(len(run.row), np.int64)
        begin[run.row] = run.begin
        return unit, simulate_unit(unit, self.machine), begin.tolist()


def hop_energy(found: UnitSimulation) -> float:
    return sum(line.pj for line in found.energy if line.item == "link:noc")


def test_unicast_by_hand() -> None:
    """Node 3 is two hops away: its bytes need 8 cycles at a link, home's port 2."""
    program = Program(MACHINE)
    program.load(3)
    _, found, _ = program.run()
    assert found.cycles == PASSING + LATENCY + 2 * HOP == 24
    assert hop_energy(found) == SIZE * 2 * PJ
    assert {c.cause: c.cycles for c in found.causes} == {"link:noc": 8, "latency": 16}


def test_contention_at_a_port_by_hand() -> None:
    """Home enters the mesh by one link, for which all wait; what goes the other way does not.  By
    two ports they do not wait for each other."""
    program = Program(MACHINE)
    for node in (0, 1, 2):
        program.load(node)
    program.store(3)
    _, found, begin = program.run()
    assert begin == [0, PASSING, 2 * PASSING, 0]
    assert found.cycles == 3 * PASSING + LATENCY + HOP
    assert hop_energy(found) == SIZE * (0 + 1 + 1 + 2) * PJ
    other = Program(mesh_machine(ports=((0, 0), (1, 1))))  # 0, 1 and 2 by the first, 3 by its own
    for node in (0, 3):
        other.load(node)
    assert other.run()[2] == [0, 0]


def test_contention_on_a_way_by_hand() -> None:
    """0 -> 3 goes by way of 1, as 0 -> 1 does; 2 -> 3 arrives by another link, but leaves the
    router of 3 by the same."""
    program = Program(MACHINE)
    program.copy(0, 3)
    program.copy(1, 3)
    program.copy(2, 0)
    _, _, begin = program.run()
    assert begin == [0, PASSING, 0]


def test_neighbours_by_hand() -> None:
    program = Program(MACHINE)
    for begin, end in ((0, 1), (1, 0), (2, 3), (3, 2)):
        program.copy(begin, end)
    _, found, begun = program.run()
    assert begun == [0] * 4
    assert found.cycles == PASSING + LATENCY + HOP
    assert hop_energy(found) == 4 * SIZE * PJ


def test_a_rotation_by_hand() -> None:
    """Everybody to the next node, in turns of six different links."""
    program = Program(MACHINE)
    for node in range(4):
        program.copy(node, (node + 1) % 4)
    _, found, begun = program.run()
    assert begun == [0] * 4
    assert found.cycles == PASSING + LATENCY + 2 * HOP
    assert hop_energy(found) == SIZE * (1 + 2 + 1 + 2) * PJ


def test_a_multicast_by_hand() -> None:
    """One tree: 0 -> 1, 0 -> 2 and 1 -> 3, each link once; seen when the farthest has it."""
    program = Program(MACHINE)
    program.load(0, count=4)
    program.load(1)
    _, found, begun = program.run()
    assert begun == [0, PASSING]
    assert found.cycles == max(PASSING + LATENCY + 2 * HOP, 2 * PASSING + LATENCY + HOP)
    assert hop_energy(found) == SIZE * (3 + 1) * PJ
    assert {m.level: m.read_bytes for m in found.traffic}["DDR"] == 2 * SIZE


@st.composite
def programs(draw: st.DrawFn) -> tuple[Machine, list[Step], list[Resource], list[Stream]]:
    """Transfers over random meshes, that wait for each other."""
    rows, columns = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    places = st.tuples(st.integers(0, rows - 1), st.integers(0, columns - 1))
    ports: list[Place] = draw(st.lists(places, min_size=1, max_size=2, unique=True))
    machine = mesh_machine(
        rows, columns, tuple(ports), rate=draw(st.sampled_from([4.0, 2.5])),
        numbering=draw(st.sampled_from(Numbering)),
    )  # fmt: skip
    program, nodes = Program(machine), st.integers(0, rows * columns - 1)
    known: list[int] = []
    for _ in range(draw(st.integers(1, 12))):
        match draw(st.integers(0, 3)):
            case 0:
                program.store(draw(nodes))
            case 1:
                program.load(draw(nodes))
            case 2:
                first = draw(nodes)
                step = draw(st.integers(1, 2))
                most = (rows * columns - 1 - first) // step + 1
                program.load(first, draw(st.integers(1, most)), step)
            case _:
                begin, end = draw(nodes), draw(nodes)
                if begin == end:
                    continue
                program.copy(begin, end)
        step_ = program.steps[-1]
        step_.num_bytes = draw(st.sampled_from([1, 7, 32, 200]))
        step_.stream = draw(st.integers(0, 2)) % len(program.streams)
        step_.waits = tuple(draw(st.lists(st.sampled_from(known), max_size=2))) if known else ()
        step_.signals = tuple(draw(st.lists(st.integers(0, 4), max_size=2, unique=True)))
        known += step_.signals
    return machine, program.steps, program.ports, program.streams


@given(programs())
def test_random_programs_run_as_the_oracle_says(
    drawn: tuple[Machine, list[Step], list[Resource], list[Stream]],
) -> None:
    machine, steps, ports, streams = drawn
    if not steps:
        return
    mesh = machine.links[0].mesh
    assert mesh is not None
    unit = unit_program(steps, tuple(streams), tuple(ports))
    wires: list[tuple[object, ...]] = []
    hops: list[int] = []
    for port in ports:
        if port.level == "noc":
            found, farthest = wires_of(port, mesh)
            wires.append(found)
            hops.append(HOP * farthest)
        else:
            wires.append(tuple((port.level, port.direction, k) for k in port.instances))
            hops.append(0)
    number = {wire: k for k, wire in enumerate(dict.fromkeys(w for own in wires for w in own))}
    told = oracle(
        [replace(s, latency=s.latency + max(hops[p] for p in s.ports)) for s in steps],
        [port.bytes_per_cycle for port in ports],
        [tuple(number[w] for w in own) for own in wires],
        [s.core for s in streams],
    )
    run = run_unit(unit, machine)
    begin = np.empty(len(run.row), np.int64)
    begin[run.row] = run.begin
    assert begin.tolist() == told.start
    assert run.cycles == told.cycles
    simulated = simulate_unit(unit, machine)
    assert sum(c.cycles for c in simulated.causes) == told.cycles


def test_nodes_are_numbered_from_home() -> None:
    """Those beside the ports first, port by port: here the ends of a row, then inwards."""
    machine = mesh_machine(1, 5, ((0, 0), (0, 4)), numbering=Numbering.HOME)
    mesh = machine.links[0].mesh
    assert mesh is not None
    assert [mesh.router(node)[1] for node in range(5)] == [0, 4, 1, 3, 2]
    assert [mesh.port_of(node) - 5 for node in range(5)] == [0, 1, 0, 1, 0]
    program = Program(machine)
    for node in (0, 1):  # ends of the row: each by its own port, no hop
        program.load(node)
    _, found, begin = program.run()
    assert begin == [0, 0]
    assert hop_energy(found) == 0


@pytest.mark.parametrize("numbering", Numbering)
@pytest.mark.parametrize("multicast", [False, True])
def test_lowered_programs_take_the_ways(*, multicast: bool, numbering: Numbering) -> None:
    """Loops over time and nodes are what they are when listed: cycles, energy and causes."""
    machine = mesh_machine(2, 4, ((0, 1), (1, 3)), multicast=multicast, numbering=numbering)
    schedule = naive_matmul(128, 32, 64, (8, 8, 8), 8)
    unit = check_lowered(schedule, machine)
    assert fault_in(schedule, machine, unit) is None
    assert bool(np.any(unit.instructions["opcode"] == Opcode.MULTICAST)) == multicast
    own, listed = simulate_unit(unit, machine), simulate_unit(expanded(unit), machine)
    assert (own.cycles, own.energy, own.causes) == (listed.cycles, listed.energy, listed.causes)


def test_trees_begin_at_ports_of_home_in_turn() -> None:
    """4 x 2 nodes by rows, each a row of the product's tiles: rows of the left operand go to two
    nodes each, columns of the right one to four.  Each port has half of either operand's trees."""
    machine = mesh_machine(4, 2, ((0, 0), (3, 0)), rate=64.0, multicast=True)
    layer = Layer(matmul_graph(64, 32, 64), machine)
    plan = layer.plan(Sizes(({"a0": 16, "a1": 16, "a2": 32},), True, ({"a0": 4, "a1": 2},)))
    assert plan is not None
    schedule = Schedule(layer.graph, emit(plan, machine.home.name), "tiles", 0)
    unit = check_lowered(schedule, machine)
    assert fault_in(schedule, machine, unit) is None
    rows = unit.instructions[unit.instructions["opcode"] == Opcode.MULTICAST]
    by_operand: dict[int, Counter[int]] = {}
    for row in rows:
        home = unit.resources[int(row["resource"][0])].instance
        by_operand.setdefault(int(row["dst"]), Counter())[home] += 1
    assert [sorted(each) for each in by_operand.values()] == [[0, 1]] * 2
    assert all(each[0] == each[1] for each in by_operand.values())


def test_home_has_a_port_at_each_of_its_routers() -> None:
    """Each with its part of home's 16 bytes a cycle; the links are faster here."""
    schedule = naive_matmul(64, 16, 64, (16, 16, 64), 4)
    cycles = []
    for ports in (((0, 0),), ((0, 0), (0, 3))):
        machine = mesh_machine(1, 4, ports, rate=64.0)
        unit = lower_unit(schedule, machine, "s" * 64)
        verify_program(unit, machine)
        used = [unit.resources[k] for k in np.unique(unit.instructions["resource"]) if k >= 0]
        home = {(r.instance, r.bytes_per_cycle) for r in used if r.level == "DDR"}
        assert home == {(k, 16.0 / len(ports)) for k in range(len(ports))}
        cycles.append(simulate_unit(unit, machine).cycles)
    # The same bytes a cycle in all, for the same bytes by each router.
    assert cycles[1] == pytest.approx(cycles[0], rel=0.05)
    wrong = next(k for k, r in enumerate(unit.resources) if r.level == "DDR")
    resources = list(unit.resources)
    resources[wrong] = replace(resources[wrong], instance=1 - resources[wrong].instance)
    with pytest.raises(VerifyError) as caught:
        verify_program(replace(unit, resources=tuple(resources)), machine)
    assert caught.value.rule == "way"


def test_loops_over_nodes_are_as_short_as_without_a_mesh() -> None:
    machine = mesh_machine(2, 4, ((0, 1), (1, 3)))
    schedule = naive_matmul(256, 128, 256, (8, 8, 8), 8)
    unit, plain = (
        lower_unit(schedule, m, "s" * 64, most_rows=0)
        for m in (machine, replace(machine, links=()))
    )
    assert unit.num_rows == plain.num_rows < 200
    assert unit.num_instructions == plain.num_instructions > 40_000
    assert simulate_unit(unit, machine).cycles == run_unit(expanded(unit), machine).cycles


@COSTLY
@given(
    st.integers(1, 3), st.integers(1, 3), st.integers(1, 40), st.integers(1, 40),
    st.integers(1, 40), st.booleans(), st.data(),
)  # fmt: skip
def test_random_products_on_random_meshes(
    rows: int, columns: int, m: int, n: int, k: int, multicast: bool, data: st.DataObject
) -> None:
    ports = data.draw(
        st.lists(
            st.tuples(st.integers(0, rows - 1), st.integers(0, columns - 1)),
            min_size=1, max_size=3, unique=True,
        )
    )  # fmt: skip
    machine = mesh_machine(rows, columns, tuple(ports), multicast=multicast)
    schedule = naive_matmul(m, n, k, (4, 8, 8), rows * columns)
    unit = check_lowered(schedule, machine)
    assert fault_in(schedule, machine, unit) is None


def test_a_slower_mesh_costs_what_it_is_slower() -> None:
    """8000 times slower at its links, everything waits for them."""
    schedule = naive_matmul(32, 16, 24, (8, 8, 12), 4)
    fast, slow = (
        simulate_unit(lower_unit(schedule, m, "s" * 64), m)
        for m in (mesh_machine(rate=RATE), mesh_machine(rate=RATE / 8000))
    )
    assert slow.cycles > 7000 * fast.cycles
    assert hop_energy(slow) == hop_energy(fast) > 0


def test_wrong_ways_are_refused() -> None:
    machine = mesh_machine(2, 2, ((0, 0), (1, 1)))
    unit = lower_unit(naive_matmul(32, 16, 24, (8, 8, 12), 4), machine, "s" * 64)
    mesh = machine.links[0].mesh
    assert mesh is not None
    verify_program(unit, machine)
    at = next(k for k, r in enumerate(unit.resources) if r.level == "noc")
    begin, end = mesh.ends(unit.resources[at].instance)
    for way, rule in (
        (mesh.way(begin, (end + 1) % 4), "way"), (mesh.way(mesh.num_nodes + 1, end), "way"),
        (mesh.num_ways, "instance"),
    ):  # fmt: skip
        ports = list(unit.resources)
        ports[at] = replace(ports[at], instance=way)
        with pytest.raises(VerifyError) as caught:
            verify_program(replace(unit, resources=tuple(ports)), machine)
        assert caught.value.rule == rule
    rows = unit.instructions.copy()
    named = np.flatnonzero(rows["resource"][0] == at)
    if len(named):
        rows["resource"][0, named[0] :] = [*rows["resource"][0, named[0] + 1 :], -1]
        with pytest.raises(VerifyError):
            verify_program(replace(unit, instructions=rows), machine)


def test_a_multicast_may_begin_at_any_port_but_at_one() -> None:
    machine = mesh_machine(2, 2, ((0, 0), (1, 1)), multicast=True)
    program = Program(machine)
    program.load(0, count=2)
    unit, _, _ = program.run()
    at = [k for k, r in enumerate(unit.resources) if r.level in ("noc", "DDR")]

    def begun(way: int, home: int) -> UnitProgram:
        ports = list(unit.resources)
        for k in at:
            is_home = ports[k].level == "DDR"
            begin = program.mesh.way(program.mesh.num_nodes + way, 0)
            ports[k] = replace(ports[k], instance=home if is_home else begin)
        return replace(unit, resources=tuple(ports))

    check_ways(begun(0, 0), machine)
    check_ways(begun(1, 1), machine)
    for way, home in ((0, 1), (1, 0)):
        with pytest.raises(VerifyError) as caught:
            check_ways(begun(way, home), machine)
        assert caught.value.rule == "way"


def test_a_machine_with_a_mesh_survives_its_document() -> None:
    assert machine_of(machine_document(MACHINE)).links == MACHINE.links


def test_equals_use_the_port_listed_first() -> None:
    mesh = Mesh(1, 3, ((0, 2), (0, 0)))
    assert [mesh.port_of(node) - 3 for node in range(3)] == [1, 0, 0]
