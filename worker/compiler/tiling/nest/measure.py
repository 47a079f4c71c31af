"""What a search for tiles makes small: cycles, energy, or the bytes that leave the chip."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from worker.compiler.machine.machine import Machine
from worker.compiler.options import Objective

Number = TypeVar("Number", float, "npt.NDArray[np.float64]")
_TIE = 1e-6
"""Bytes that a cycle counts for where bytes decide: of tilings that move as much, the faster."""


@dataclass(frozen=True, slots=True)
class Measure:
    """So much for every cycle, and for every byte through a port: sums over kernels only.

    Energy leaves out what no tiling changes, operations and registers.
    """

    per_cycle: float = 1.0
    ports: Mapping[tuple[str, str], float] = field(default_factory=dict)
    """By (level, `read` or `write`) or (link, `link`), per byte; none where only cycles count."""
    feeds: Mapping[tuple[str, str], float] = field(default_factory=dict)
    """The same of bytes that engines draw from their memory and return to it."""

    @staticmethod
    def of(objective: Objective, machine: Machine) -> Measure:
        """Of one of the objectives that are sums.

        Raises:
            ValueError: it is none.
        """
        ways = [(m.name, way) for m in machine.levels for way in ("read", "write")]
        match objective:
            case Objective.LATENCY:
                return LATENCY
            case Objective.OFFCHIP:
                home = machine.home.name
                return Measure(_TIE, {port: 1.0 for port in ways if port[0] == home})
            case Objective.ENERGY:
                links = [(link.name, "link") for link in machine.links]
                prices = {port: machine.port_energy(*port) for port in (*ways, *links)}
                return Measure(machine.static_power_w / machine.clock_hz * 1e12, prices, prices)
            case _:
                raise ValueError(f"{objective} is no sum over kernels")

    def cost(self, cycles: Number, charge: Number) -> Number:
        """Of tilings that take so many cycles and are charged so much for what they move."""
        return self.per_cycle * cycles + charge


LATENCY = Measure()
