"""The energy ledger of one unit: operations, memories, registers, links, leakage.

- `mac` / `vector`: operations x energy per operation of the engine.
- `level:NAME`: bytes through the level's read and write ports.
- `feed:NAME`: what engines draw from their own memory.  A matrix engine of rows x columns reuses
  each operand along the array, so a MAC reads 1/rows + 1/columns words; a vector operation reads
  and writes one word.
- `register:NAME`: four words per MAC, where the machine has registers: two operands are read, the
  sum is read and written.
- `link:NAME`: bytes over explicit links.  - `static`: leakage power x time.
A multicast reads its source once, and is charged at every port of a link or receiver that it
takes.
Each three times: as the machine states its energies, and with all that are estimates at either end.
Source: the accounting of nn_dataflow (4-papers.md, KAPLA), with ports in place of reuse formulas.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from worker.compiler.clock.run import Timing
from worker.compiler.isa.program import UnitProgram
from worker.compiler.machine.energy_range import NOTHING, Priced, Spent
from worker.compiler.machine.machine import EngineKind, Machine, Managed
from worker.simulator.rates import main_dtype
from worker.simulator.results import EnergyLine

STATIC, HOST = "static", "host"


class Bill:
    """Energies by item, in the order in which items first come up."""

    def __init__(self) -> None:
        self._items: dict[str, Spent] = {}

    def add(self, item: str, spent: Spent) -> None:
        self._items[item] = self._items.get(item, NOTHING).plus(spent)

    def add_lines(self, lines: Iterable[EnergyLine], times: int = 1) -> None:
        """Another bill, so many times, without its leakage, which goes with the clock."""
        for line in lines:
            if line.item != STATIC:
                self.add(line.item, Spent(line.pj, line.low_pj, line.high_pj).times(times))

    @property
    def pj(self) -> float:
        """The whole, as stated."""
        return sum(spent.pj for spent in self._items.values())

    def lines(self, order: Sequence[str] = ()) -> tuple[EnergyLine, ...]:
        """Lines of what was spent: first those of `order`; of nothing there is none."""
        items = dict.fromkeys((*order, *self._items))
        spent = ((item, self._items.get(item, NOTHING)) for item in items)
        return tuple(EnergyLine(item, *found) for item, found in spent if found.high)


def ledger(program: UnitProgram, prices: Priced, run: Timing) -> tuple[EnergyLine, ...]:
    """Lines in a fixed order; lines of zero are left out, `static` excepted."""
    machine, bill = prices.stated, Bill()
    for stream, work in zip(program.streams, run.stream_macs.tolist(), strict=True):
        if work:
            _charge_engine(bill, stream.engine, program, prices, work)
    for port, num_bytes in zip(program.resources, run.resource_bytes.tolist(), strict=True):
        kind = "link" if port.direction == "link" else "level"
        per_byte = _port(prices, port.level, port.direction)
        bill.add(f"{kind}:{port.level}", per_byte.times(num_bytes * port.count))
    order = ["mac", "vector"]
    for prefix in ("level", "feed", "register"):
        order += [f"{prefix}:{level.name}" for level in machine.levels]
    order += [f"link:{link.name}" for link in machine.links]
    return (*bill.lines(order), EnergyLine(STATIC, *static(prices, run.cycles)))


def static(prices: Priced, cycles: int) -> Spent:
    """Leakage of the whole chip during `cycles`."""
    return prices.each(lambda machine: static_pj(machine, cycles))


def host_spent(prices: Priced, flops: int) -> Spent:
    """Operations of the host."""
    return prices.each(lambda machine: machine.host.energy_pj_per_flop).times(flops)


def static_pj(machine: Machine, cycles: int) -> float:
    """Leakage of the whole chip during `cycles`, as stated."""
    return machine.static_power_w * cycles / machine.clock_hz * 1e12


def _charge_engine(bill: Bill, name: str, program: UnitProgram, prices: Priced, work: int) -> None:
    machine = prices.stated
    engine = machine.engine(name)
    dtype = main_dtype(engine, program)
    if dtype is None:
        return
    is_matrix = engine.kind is EngineKind.MATRIX
    per_op = prices.each(lambda m: (m.engine(name).op_energy_pj or {}).get(dtype, 0.0))
    bill.add("mac" if is_matrix else "vector", per_op.times(work))
    moved = work * dtype.size_bytes
    reads, writes = 1.0, 1.0
    if is_matrix:
        rows, columns = (*engine.array, 1, 1)[:2]
        reads, writes = 1.0 / rows + 1.0 / columns, 0.0
        for level in machine.levels:
            if level.managed is Managed.REGISTER:
                register = level.name
                reading, writing = _port(prices, register, "read"), _port(prices, register, "write")
                bill.add(f"register:{register}", reading.times(3).plus(writing).times(moved))
    reading, writing = _port(prices, engine.memory, "read"), _port(prices, engine.memory, "write")
    bill.add(f"feed:{engine.memory}", reading.times(reads).plus(writing.times(writes)).times(moved))


def _port(prices: Priced, level: str, direction: str) -> Spent:
    """Of one byte through a port of a level or over a link."""
    return prices.each(lambda machine: machine.port_energy(level, direction))
