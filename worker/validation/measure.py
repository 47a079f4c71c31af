"""Our figure for a row, in the row's unit."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from worker.compiler.machine.machine import Machine
from worker.compiler.options import CompileOptions, VerifyMode
from worker.simulator.results import UnitSimulation
from worker.validation.best import Best, best_mapping
from worker.validation.figures import Network, Operator, Row, Unit
from worker.validation.operators import graph_of, moved_bytes, operations
from worker.validation.outcome import Measured, Outcome
from worker.validation.published import hardware_of, machine_of


def measure_operator(row: Row) -> Outcome:
    """The row's operator by the best mapping of the brute force.

    Cost: seconds; rows that differ in their unit only share it.
    """
    assert not isinstance(row.work, Network)
    machine = machine_of(hardware_of(row))
    best = _best(row.work, json.dumps(hardware_of(row), sort_keys=True), row.simulate)
    if best is None:
        return Outcome(row, None, "not even single steps of it fit the machine")
    if row.unit is Unit.MW:
        figure, floor = power_mw(best.simulation, machine), None
    else:
        figure = operator_figure(row.unit, row.work, best.cycles, machine)
        floor = operator_figure(row.unit, row.work, best.floor, machine)
    examined = f"{best.tried} of {best.space:,} mappings simulated"
    return Outcome(row, Measured(figure, str(best.mapping), floor, examined))


@lru_cache(maxsize=64)
def _best(work: Operator, hardware: str, most: int) -> Best | None:
    return best_mapping(graph_of(work), machine_of(json.loads(hardware)), most)


def operator_figure(unit: Unit, work: Operator, cycles: float, machine: Machine) -> float:
    """Cycles of an operator in another unit."""
    seconds = cycles / machine.clock_hz
    match unit:
        case Unit.CYCLES:
            return cycles
        case Unit.MS:
            return seconds * 1e3
        case Unit.TOPS:
            return operations(work) / seconds / 1e12
        case Unit.TB_PER_S:
            return moved_bytes(graph_of(work)) / seconds / 1e12
        case _:
            raise ValueError(f"{unit} of one operator's cycles")


def power_mw(run: UnitSimulation, machine: Machine) -> float:
    """Mean power while the kernel runs, without what crosses the home memory's ports."""
    outside = f"level:{machine.home.name}"
    energy_pj = sum(line.pj for line in run.energy if line.item != outside)
    return energy_pj * 1e-12 / (run.cycles / machine.clock_hz) * 1e3


def network_options(network: Network) -> CompileOptions:
    """How a network's row is compiled: all strategies compete, nothing is verified by execution."""
    return CompileOptions(
        verify=VerifyMode.NONE, precision=network.precision,
        symbols=tuple(sorted(network.symbols.items())),
    )  # fmt: skip


def measure_report(row: Row, report: Mapping[str, Any]) -> Outcome:
    """A network from the report of its compile."""
    assert isinstance(row.work, Network)
    summary = report["summary"]
    cycles, seconds = int(summary["latency_cycles"]), float(summary["latency_s"])
    bound = int(summary["lower_bound_cycles"])
    figure = {
        Unit.CYCLES: float(cycles), Unit.MS: seconds * 1e3, Unit.FPS: row.work.samples / seconds,
    }[row.unit]  # fmt: skip
    floor = figure * cycles / bound if row.unit.is_rate else figure * bound / cycles
    largest = ", ".join(
        f"{cause['cause']} {100 * cause['cycles'] / cycles:.0f} %"
        for cause in summary["causes"][:3]
    )
    how = f"{summary['kernels']} kernels; cycles by cause: {largest}"
    return Outcome(row, Measured(figure, how, floor, "all strategies, effort normal"))
