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
Source: the accounting of nn_dataflow (4-papers.md, KAPLA), with ports in place of reuse formulas.
"""

from __future__ import annotations

from worker.compiler.clock.run import Timing
from worker.compiler.isa.program import UnitProgram
from worker.compiler.machine.machine import Engine, EngineKind, Machine, Managed
from worker.simulator.rates import main_dtype
from worker.simulator.results import EnergyLine


def ledger(program: UnitProgram, machine: Machine, run: Timing) -> tuple[EnergyLine, ...]:
    """Lines in a fixed order; lines of zero are left out, `static` excepted."""
    totals: dict[str, float] = {"mac": 0.0, "vector": 0.0}
    for stream, work in zip(program.streams, run.stream_macs.tolist(), strict=True):
        engine = machine.engine(stream.engine)
        if work:
            _charge_engine(totals, engine, program, machine, work)
    for port, num_bytes in zip(program.resources, run.resource_bytes.tolist(), strict=True):
        kind = "link" if port.direction == "link" else "level"
        per_byte = machine.port_energy(port.level, port.direction)
        _add(totals, f"{kind}:{port.level}", num_bytes * port.count * per_byte)
    order = ["mac", "vector"]
    for prefix in ("level", "feed", "register"):
        order += [f"{prefix}:{level.name}" for level in machine.levels]
    order += [f"link:{link.name}" for link in machine.links]
    lines = [EnergyLine(item, totals[item]) for item in order if totals.get(item)]
    return (*lines, EnergyLine("static", static_pj(machine, run.cycles)))


def static_pj(machine: Machine, cycles: int) -> float:
    """Leakage of the whole chip during `cycles`."""
    return machine.static_power_w * cycles / machine.clock_hz * 1e12


def _charge_engine(
    totals: dict[str, float], engine: Engine, program: UnitProgram, machine: Machine, work: int
) -> None:
    dtype = main_dtype(engine, program)
    if dtype is None:
        return
    per_op = (engine.op_energy_pj or {}).get(dtype, 0.0)
    is_matrix = engine.kind is EngineKind.MATRIX
    _add(totals, "mac" if is_matrix else "vector", work * per_op)
    memory = machine.level(engine.memory)
    size = dtype.size_bytes
    if is_matrix:
        rows, columns = (*engine.array, 1, 1)[:2]
        reads, writes = 1.0 / rows + 1.0 / columns, 0.0
        for level in machine.levels:
            if level.managed is Managed.REGISTER:
                per_mac = 3 * level.read_energy_pj_per_byte + level.write_energy_pj_per_byte
                _add(totals, f"register:{level.name}", work * size * per_mac)
    else:
        reads, writes = 1.0, 1.0
    feed = reads * memory.read_energy_pj_per_byte + writes * memory.write_energy_pj_per_byte
    _add(totals, f"feed:{memory.name}", work * size * feed)


def _add(totals: dict[str, float], item: str, pj: float) -> None:
    totals[item] = totals.get(item, 0.0) + pj
