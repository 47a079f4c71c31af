"""The energy ledger of one unit: operations, memories, registers, links, leakage.

- `mac` / `vector`: operations x energy per operation of the engine.
- `level:NAME`: bytes through the level's read and write ports.
- `feed:NAME`: what engines draw from their own memory and return to it, as every instruction says
  (`cost.feeds`): operands once for every fold of an array, sums as often as they leave it; of
  vector engines every element once that an instruction reads or writes, and of their products
  both factors for every step.
- `register:NAME`: four words per MAC, where the machine has registers: two operands are read, the
  sum is read and written.
- `bus:NAME`: bytes inside the array of an engine with a dataflow (`cost.feeds`).
- `link:NAME`: bytes over explicit links, of a mesh over each hop.
- `static`: leakage power x time.
A multicast reads its source once, and is charged at every port of a link or receiver that it
takes.
Each three times: as the machine states its energies, and with all that are estimates at either end.
Source: the accounting of nn_dataflow (4-papers.md, KAPLA), with ports in place of reuse formulas.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from worker.compiler.clock.run import Ints, Timing
from worker.compiler.ir.dtype import DType
from worker.compiler.isa.program import UnitProgram
from worker.compiler.machine.energy_range import NOTHING, Priced, Spent
from worker.compiler.machine.engine_ports import serves_an_engine
from worker.compiler.machine.links import meshes, wires
from worker.compiler.machine.machine import Engine, EngineKind, Machine, Managed
from worker.simulator.rates import main_dtype
from worker.simulator.results import EnergyLine
from worker.simulator.sanity import Recount

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


def ledger(
    program: UnitProgram,
    prices: Priced,
    run: Timing,
    found: Recount,
    formats: Mapping[int, DType],
) -> tuple[EnergyLine, ...]:
    """Lines in a fixed order; lines of zero are left out, `static` excepted.

    `formats`: of the operators, the number format that each computes in; of those that are not in
    it, that of the largest operand which their engine knows.
    """
    machine, bill = prices.stated, Bill()
    joined = meshes(machine)
    for k, name in enumerate(found.engines):
        _charge_operations(
            bill, machine.engine(name), program, prices, found.by_engine[:, k], formats
        )
        memory = machine.engine(name).memory
        drawn = _port(prices, memory, "read").times(int(found.drawn[k]))
        returned = _port(prices, memory, "write").times(int(found.returned[k]))
        bill.add(f"feed:{memory}", drawn.plus(returned))
        bill.add(f"bus:{name}", _on_lines(prices, name).times(int(found.inside[k])))
    for port, num_bytes in zip(program.resources, run.resource_bytes.tolist(), strict=True):
        if serves_an_engine(port.level, port.counted, machine):
            continue  # `feed:` has it
        kind = "link" if port.direction == "link" else "level"
        per_byte = _port(prices, port.level, port.direction)
        times = wires(joined, port.level, port.instances)[1]
        bill.add(f"{kind}:{port.level}", per_byte.times(num_bytes * times))
    order = ["mac", "vector"]
    for prefix in ("level", "feed", "register"):
        order += [f"{prefix}:{level.name}" for level in machine.levels]
    order += [f"bus:{engine.name}" for engine in machine.engines]
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


def _charge_operations(
    bill: Bill,
    engine: Engine,
    program: UnitProgram,
    prices: Priced,
    work: Ints,
    formats: Mapping[int, DType],
) -> None:
    """What an engine computes, operator by operator, and the registers that it needs for it."""
    is_matrix = engine.kind is EngineKind.MATRIX
    registers = [m.name for m in prices.stated.levels if m.managed is Managed.REGISTER]
    usual = main_dtype(engine, program)
    for op in np.flatnonzero(work).tolist():
        dtype, many = formats.get(op, usual), int(work[op])
        if dtype not in (engine.op_energy_pj or {}):
            dtype = usual
        if dtype is None:
            continue
        per_op = _operation(prices, engine.name, dtype)
        bill.add("mac" if is_matrix else "vector", per_op.times(many))
        for level in registers if is_matrix else ():
            per_mac = _port(prices, level, "read").times(3).plus(_port(prices, level, "write"))
            bill.add(f"register:{level}", per_mac.times(many * dtype.size_bytes))


def _on_lines(prices: Priced, engine: str) -> Spent:
    """Of one byte on the lines of an array."""
    return prices.each(lambda machine: machine.engine(engine).bus_energy_pj_per_byte)


def _operation(prices: Priced, engine: str, dtype: DType) -> Spent:
    """Of one operation of an engine."""
    return prices.each(lambda machine: (machine.engine(engine).op_energy_pj or {}).get(dtype, 0.0))


def _port(prices: Priced, level: str, direction: str) -> Spent:
    """Of one byte through a port of a level or over a link."""
    return prices.each(lambda machine: machine.port_energy(level, direction))
