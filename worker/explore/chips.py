"""What a compiled model is estimated to take on a chip that differs from the one it was made for.

Kernels, and what the host does, stay as they were; every kernel is tiled anew for the chip.  A
program that is compiled for the chip may draw other kernels: winners are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from worker.compiler.cache import Cache, MemoryCache
from worker.compiler.descriptors import named, strategies
from worker.compiler.errors import OptionError, Shortfall, SpecError
from worker.compiler.faults import Fault, attempt
from worker.compiler.ir.graph import Graph
from worker.compiler.machine import digest, load_machine
from worker.compiler.machine.machine import Machine
from worker.compiler.oracles import asked
from worker.compiler.strategies.base import Estimated
from worker.explore.area import area_mm2, on_chip_bytes

Answer: TypeAlias = Estimated | Shortfall | Fault
COSTS = ("latency_s", "energy_pj", "on_chip_bytes", "area_mm2", "off_chip_bytes_per_s")
"""What is compared, less being better."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """One unit of the program."""

    name: str
    onnx_nodes: tuple[str, ...]
    graph: Graph
    strategy: str
    target: str
    calls: int
    overhead_cycles: int
    """Of all calls: launches that nothing hides."""


@dataclass(frozen=True, slots=True)
class Base:
    """A program, and what of it no chip that is explored changes."""

    kernels: tuple[Kernel, ...]
    constant_s: float
    """The host, copies to and from it, control flow."""
    constant_pj: float
    """Operations, and registers of engines."""


@dataclass(slots=True)
class Estimator:
    """Estimates chips one by one.

    What was found for a kernel holds on every chip that differs in energies or the clock alone.
    """

    base: Base
    searches: int = 0
    """Kernels tiled so far."""
    _known: dict[str, tuple[Answer, ...]] = field(default_factory=dict)
    _answers: Cache = field(default_factory=MemoryCache)
    """Of oracles: chips of a range ask them the same."""

    def row(self, document: Mapping[str, Any]) -> dict[str, Any]:
        """Figures of one chip, or why it has none: `refused`, the document is no chip, or the
        strategy broke on it; `misfits`, kernels that it has no room for.

        Cost: a search for tiles for every kernel, unless energies or the clock are all that is new.
        """
        try:
            machine = self.machine(document)
        except SpecError as error:
            return {"refused": error.message, "pointer": error.place.pointer}
        found = self._estimates(machine)
        broken = next((answer for answer in found if isinstance(answer, Fault)), None)
        if broken is not None:
            return {"refused": broken.sentence, "pointer": ""}
        misfits = [
            {"onnx_nodes": list(kernel.onnx_nodes), "resource": answer.resource,
             "demand": answer.demand, "bound": answer.bound}
            for kernel, answer in zip(self.base.kernels, found, strict=True)
            if isinstance(answer, Shortfall)
        ]  # fmt: skip
        if misfits:
            return {"misfits": misfits}
        estimates = [answer for answer in found if isinstance(answer, Estimated)]
        return figures(self.base, estimates, machine, document)

    def machine(self, document: Mapping[str, Any]) -> Machine:
        """The chip of a document, with what its oracles say.

        Raises:
            SpecError: it is no chip, or an oracle failed.
        """
        return asked(load_machine(document), self._answers)

    def _estimates(self, machine: Machine) -> tuple[Answer, ...]:
        plain = unpriced(machine)
        key = digest(plain)
        if key not in self._known:
            self.searches += len(self.base.kernels)
            self._known[key] = tuple(_estimate(kernel, plain) for kernel in self.base.kernels)
        return self._known[key]


def base_of(
    schedules: Sequence[tuple[str, str, Graph, str, Sequence[str], str]], report: Mapping[str, Any]
) -> Base:
    """The program of a bundle.

    Args:
        schedules: kernel, signature, graph, strategy, nodes, target.
    """
    clock_hz = float(report["hardware"]["clock_hz"])
    known = {signature for _, signature, *_ in schedules}
    calls: Counter[str] = Counter()
    overheads: Counter[str] = Counter()
    others = 0
    for row in report["layers"]:
        if row["signature"] in known:
            calls[row["signature"]] += 1
            overheads[row["signature"]] += row["overhead_cycles"]
        else:
            others += row["cycles_total"]
    constant = sum(
        line["pj"]
        for line in report["energy"]
        if not line["item"].startswith(("level:", "feed:", "link:", "static"))
    )
    kernels = tuple(
        Kernel(name, tuple(nodes), graph, strategy, target, calls[signature], overheads[signature])
        for name, signature, graph, strategy, nodes, target in schedules
        if calls[signature]
    )
    return Base(kernels, others / clock_hz, constant)


def figures(
    base: Base, estimates: Sequence[Estimated], machine: Machine, document: Mapping[str, Any]
) -> dict[str, Any]:
    """Figures of a chip whose kernels are estimated.

    Units: seconds, pJ, bytes, mm2, cycles of the whole program (`cycles`), and by how much of these
    tiles could be better as predictions go (`gap`).
    """
    cycles, least, moved = 0, 0.0, 0.0
    for kernel, found in zip(base.kernels, estimates, strict=True):
        cycles += kernel.calls * found.cycles + kernel.overhead_cycles
        least += kernel.calls * found.least_cycles + kernel.overhead_cycles
        for ways in (found.moved, found.fed):
            for port, amount in ways.items():
                moved += kernel.calls * amount * machine.port_energy(*port)
    seconds = cycles / machine.clock_hz + base.constant_s
    stated = document.get("process_nm")
    process_nm = stated.get("value") if isinstance(stated, Mapping) else stated
    home = machine.home
    home_rate = home.read_bytes_per_cycle + (not home.half_duplex) * home.write_bytes_per_cycle
    return {
        "latency_s": seconds,
        "energy_pj": moved + machine.static_power_w * seconds * 1e12 + base.constant_pj,
        "on_chip_bytes": on_chip_bytes(machine),
        "area_mm2": area_mm2(machine, process_nm),
        "off_chip_bytes_per_s": home.instances * home_rate * machine.clock_hz,
        "cycles": cycles,
        "gap": cycles / least - 1 if least else None,
    }


def unpriced(machine: Machine) -> Machine:
    """The machine without what decides no tiling by cycles: energies, leakage, the clock, names."""
    levels = tuple(
        replace(m, read_energy_pj_per_byte=0.0, write_energy_pj_per_byte=0.0)
        for m in machine.levels
    )
    links = tuple(replace(link, energy_pj_per_byte=0.0) for link in machine.links)
    engines = tuple(replace(e, bus_energy_pj_per_byte=0.0) for e in machine.engines)
    return replace(
        machine, name="", levels=levels, engines=engines, links=links, clock_hz=1.0,
        static_power_w=0.0, guesses=(), energy_ranges=(),
    )  # fmt: skip


def _estimate(kernel: Kernel, machine: Machine) -> Answer:
    descriptor = strategies().get(kernel.strategy)
    if descriptor is None or not descriptor.estimate:
        raise OptionError(
            "TW-OPT-001", f"strategy {kernel.strategy!r} estimates nothing",
            actual=kernel.strategy, remedy="Explore what one compiled that registers estimates.",
        )  # fmt: skip
    target = machine.restricted(machine.target(kernel.target))
    estimate, options = descriptor.estimate, descriptor.options()

    def work() -> Estimated | Shortfall:
        found: Estimated | Shortfall = named(estimate)(kernel.graph, target, options)
        return found

    return attempt(descriptor.name, descriptor.version, "estimate", work)
