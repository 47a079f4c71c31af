"""A machine at the ends of what is not known of its energies."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import NamedTuple

from worker.compiler.machine.machine import Machine


class Spent(NamedTuple):
    """An energy in pJ as the machine states it, and with every estimate at either end.

    The ends are those of all estimates together: no error cancels another.
    """

    pj: float
    low: float
    high: float

    def plus(self, other: Spent) -> Spent:
        return Spent(self.pj + other.pj, self.low + other.low, self.high + other.high)

    def times(self, factor: float) -> Spent:
        return Spent(self.pj * factor, self.low * factor, self.high * factor)


NOTHING = Spent(0.0, 0.0, 0.0)


class Priced(NamedTuple):
    """One machine three times: with its energies as stated, at their least and at their most."""

    stated: Machine
    low: Machine
    high: Machine

    def each(self, price: Callable[[Machine], float]) -> Spent:
        """What `price` says of the three."""
        return Spent(price(self.stated), price(self.low), price(self.high))


def priced(machine: Machine) -> Priced:
    """The machine and both ends of its energies.

    Cost: linear in its parts.
    """
    if not machine.energy_ranges:
        return Priced(machine, machine, machine)
    low = {(each.owner, each.field): each.low for each in machine.energy_ranges}
    high = {(each.owner, each.field): each.high for each in machine.energy_ranges}
    return Priced(machine, _with(machine, low), _with(machine, high))


def _with(machine: Machine, values: Mapping[tuple[str, str], float]) -> Machine:
    """The machine with other energies, by owner and field; what it lacks is not asked for."""

    def of(owner: str, field: str, stated: float) -> float:
        return values.get((owner, field), stated)

    return replace(
        machine,
        levels=tuple(
            replace(
                level,
                read_energy_pj_per_byte=of(
                    level.name, "read_energy_pj_per_byte", level.read_energy_pj_per_byte
                ),
                write_energy_pj_per_byte=of(
                    level.name, "write_energy_pj_per_byte", level.write_energy_pj_per_byte
                ),
            )
            for level in machine.levels
        ),
        engines=tuple(
            engine
            if engine.op_energy_pj is None
            else replace(
                engine,
                op_energy_pj={
                    dtype: of(engine.name, dtype.value, pj)
                    for dtype, pj in engine.op_energy_pj.items()
                },
                bus_energy_pj_per_byte=of(
                    engine.name, "bus_energy_pj_per_byte", engine.bus_energy_pj_per_byte
                ),
            )
            for engine in machine.engines
        ),
        links=tuple(
            replace(
                link,
                energy_pj_per_byte=of(link.name, "energy_pj_per_byte", link.energy_pj_per_byte),
            )
            for link in machine.links
        ),
        host=replace(
            machine.host,
            energy_pj_per_flop=of("host", "energy_pj_per_flop", machine.host.energy_pj_per_flop),
        ),
        static_power_w=of("", "static_power_w", machine.static_power_w),
    )
