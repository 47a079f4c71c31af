"""What the tiles of a kernel are predicted to take and to move, without making a schedule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from worker.compiler.errors import Shortfall
from worker.compiler.ir.graph import Graph
from worker.compiler.machine.machine import Machine
from worker.compiler.options import Objective
from worker.compiler.strategies.base import Estimated, Port
from worker.compiler.strategies.naive.descriptor import NaiveOptions
from worker.compiler.strategies.naive.tilings import layer_of, offers, shortfall
from worker.compiler.tiling.nest.measure import Measure
from worker.compiler.tiling.nest.plan import Plan
from worker.compiler.tiling.nest.search import measured


def estimate(unit: Graph, machine: Machine, options: NaiveOptions) -> Estimated | Shortfall:
    """The tiling of one canonical graph that is predicted to take the fewest cycles.

    It depends on sizes, rates and waits of the machine, not on its energies or its clock.
    Cost: the search for tiles, once over; nothing is lowered.
    """
    layer = layer_of(unit, machine)
    if isinstance(layer, Shortfall):
        return layer
    found = tuple(offers(layer, machine, options, (Objective.LATENCY,)))
    plans = [plan for offered in found for plan in offered.plans]
    if not plans:
        return shortfall(layer, machine)
    best = min(plans, key=lambda plan: plan.predicted_cycles)
    proofs = found[-1].proofs.values()
    least = min((proof.bound for proof in proofs), default=0.0)
    ports = [(m.name, way) for m in machine.levels for way in ("read", "write")]
    links = [(link.name, "link") for link in machine.links]
    return Estimated(
        cycles=best.predicted_cycles,
        least_cycles=min(least, best.predicted_cycles),
        moved=_bytes(best, machine, (*ports, *links), is_fed=False),
        fed=_bytes(best, machine, ports, is_fed=True),
    )


def _bytes(
    plan: Plan, machine: Machine, ports: Sequence[Port], *, is_fed: bool
) -> dict[Port, float]:
    """Bytes through every port, of those through which any pass: a charge is a sum over ports where
    lines inside an array cost nothing."""
    plan = replace(plan, engine=replace(plan.engine, bus_energy_pj_per_byte=0.0))
    found: dict[Port, float] = {}
    for port in ports:
        prices = {other: float(other == port) for other in ports}
        measure = Measure(0.0, {}, prices) if is_fed else Measure(0.0, prices)
        if amount := measured(plan, machine, measure).charge:
            found[port] = amount
    return found
