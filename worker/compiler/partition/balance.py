"""What a whole program costs with every unit on one of its sides: the measure that weighing lowers.

Total = work of every unit on its side + launches + transfers + invocations of host parts.

- A *unit* is a composite or a single node.
- Launch: per unit with accelerator work where the target launches kernels, per region otherwise;
  and what an invocation of a region costs beside.
- Transfer: one per value that the host (or the caller) and an accelerator share: into the
  accelerator once however many read it, out once.  None where memory is shared or the size unknown.
- Invocation: the host's launch overhead per host part; their number follows from the order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil

from worker.compiler.machine.machine import LaunchUnit, Machine
from worker.compiler.partition.flow import Flow
from worker.compiler.partition.measure import shared_nodes
from worker.compiler.partition.parts import host_levels
from worker.compiler.partition.plan import Part
from worker.compiler.partition.quotient import contract, units_of

ON_HOST = -1


@dataclass(frozen=True, slots=True)
class NodeCosts:
    """Cycles of the accelerator's clock, by node position.

    The cost of a composite stands at one of its nodes that no other composite shares (the first,
    or the last), on both sides; accelerator cycles of nodes that no target takes are not read.
    """

    accelerator_cycles: tuple[int, ...]
    host_cycles: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Shared:
    """A value that may have to be copied over the host link."""

    producer: int
    """Unit; -1: the caller of the model."""
    consumers: tuple[int, ...]
    """Units, the producer excluded."""
    is_output: bool
    cycles: int


@dataclass(frozen=True, slots=True)
class Balance:
    """The program in units.  `side` arguments give the region of every unit, or ON_HOST."""

    members: tuple[tuple[int, ...], ...]
    """Node positions of every unit."""
    accelerator: tuple[int, ...]
    """Cycles of every unit, its own launch included."""
    host: tuple[int, ...]
    successors: tuple[tuple[int, ...], ...]
    values: tuple[Shared, ...]
    """Only those that cost something."""
    is_control: tuple[bool, ...]
    runs_kernel: tuple[bool, ...]
    launch_of: Mapping[int, int]
    """Cycles of one invocation of a region, by region number; absent: kernels pay alone."""
    invocation_cycles: int
    region_of: tuple[int, ...]
    """The side of every unit as partitioned."""

    launch_by_unit: tuple[int, ...]
    """Launch cycles contained in `accelerator`."""
    is_operator: tuple[bool, ...]
    """False: a node that composites share, no operator of its own."""
    needs: Mapping[int, tuple[int, ...]]
    """Units that a unit must have in its own region on the accelerator (shared nodes)."""
    values_of: tuple[tuple[int, ...], ...]
    """Indices of the values that a unit makes or reads."""

    def total(self, side: Sequence[int]) -> int:
        """Cycles of the whole program.  Cost: linear in units, edges and values."""
        return self.run_cycles(side) + self.copy_cycles(range(len(self.values)), side)

    def copy_cycles(self, numbers: Iterable[int], side: Sequence[int]) -> int:
        """Transfers of some of the values."""
        values = self.values
        return sum(crossing(values[k], side) * values[k].cycles for k in numbers)

    def run_cycles(self, side: Sequence[int]) -> int:
        """Everything but transfers.  Cost: linear in units and edges."""
        cycles = self.host_parts(side) * self.invocation_cycles
        launched: set[int] = set()
        for unit, region in enumerate(side):
            if region == ON_HOST:
                cycles += self.host[unit]
                continue
            cycles += self.accelerator[unit]
            if self.runs_kernel[unit]:
                launched.add(region)
        return cycles + sum(self.launch_of.get(region, 0) for region in launched)

    def host_parts(self, side: Sequence[int]) -> int:
        """How many host parts run; the regions of `side` must not form a cycle."""
        group_of, count = _groups(side)
        is_host = [False] * count
        alone = 0
        for unit, region in enumerate(side):
            if region == ON_HOST:
                alone += self.is_control[unit]
                is_host[group_of[unit]] = not self.is_control[unit]
        levels = host_levels(contract(self.successors, group_of, count), is_host)
        return alone + len({level for level, host in zip(levels, is_host, strict=True) if host})

    def region_costs(self, units: Sequence[int]) -> tuple[int, int, int, int]:
        """(accelerator work, transfers, launches, host work) of a region as partitioned, in cycles;
        a transfer counts where the other end is the host or the caller."""
        inside = set(units)
        region = self.region_of[units[0]]
        kernels = sum(self.runs_kernel[u] for u in units)
        work = sum(self.accelerator[u] for u in units)
        launches = sum(self.launch_by_unit[u] for u in units)
        work -= launches
        launches += self.launch_of.get(region, 0) if kernels else 0
        moved = 0
        for number in dict.fromkeys(k for unit in units for k in self.values_of[unit]):
            value = self.values[number]
            if value.producer in inside:
                away = value.is_output or any(self.region_of[u] == ON_HOST for u in value.consumers)
            else:
                away = (value.producer < 0 or self.region_of[value.producer] == ON_HOST) and any(
                    u in inside for u in value.consumers
                )
            moved += value.cycles * away
        return work, moved, launches, sum(self.host[u] for u in units)


def _groups(side: Sequence[int]) -> tuple[list[int], int]:
    """(group of every unit, number of groups): a region is one group, a host unit its own."""
    number: dict[int, int] = {}
    group_of: list[int] = []
    count = 0
    for region in side:
        if region != ON_HOST and region in number:
            group_of.append(number[region])
            continue
        if region != ON_HOST:
            number[region] = count
        group_of.append(count)
        count += 1
    return group_of, count


def crossing(value: Shared, side: Sequence[int]) -> int:
    """How often a value is copied over the host link: into the accelerator, or out, or not."""
    made_on_host = value.producer < 0 or side[value.producer] == ON_HOST
    if made_on_host:
        return int(any(side[unit] != ON_HOST for unit in value.consumers))
    return int(value.is_output or any(side[unit] == ON_HOST for unit in value.consumers))


def balance_of(
    flow: Flow, machine: Machine, parts: Sequence[Part], costs: NodeCosts
) -> tuple[Balance, tuple[str, ...]]:
    """(the program in units, names of values of unknown size).  Regions are numbered by `parts`.

    Cost: linear.
    """
    regions = [part for part in parts if not part.is_host]
    composites = [c for part in regions for c in part.composites]
    unit_of, members = units_of(len(flow.names), [c.nodes for c in composites])
    shared = shared_nodes(composites)
    region_of = [ON_HOST] * len(members)
    launch_of: dict[int, int] = {}
    launch_by_unit = [0] * len(members)
    accelerator = [0] * len(members)
    runs_kernel = [False] * len(members)
    for number, part in enumerate(regions):
        target = machine.target(part.target)
        by_kernel = target.launch_unit is LaunchUnit.KERNEL
        latency, gap = machine.launch_latency(target), machine.launch_gap(target)
        # Every kernel pays the gap; the first finds the device idle and pays the rest as well.
        once = target.region_overhead_cycles + latency - (gap if by_kernel else 0)
        if once or not by_kernel:
            launch_of[number] = once
        for node in part.nodes:
            unit = unit_of[node]
            region_of[unit] = number
            accelerator[unit] += costs.accelerator_cycles[node]
        for unit in {unit_of[node] for node in part.nodes}:
            runs_kernel[unit] = accelerator[unit] > 0
            if by_kernel and runs_kernel[unit]:
                launch_by_unit[unit] = gap
                accelerator[unit] += launch_by_unit[unit]
    needs: dict[int, tuple[int, ...]] = {}
    for composite in composites:
        own = unit_of[composite.nodes[-1]]
        outside = tuple(unit_of[n] for n in composite.nodes if unit_of[n] != own)
        if outside:
            needs[own] = outside
    values: list[Shared] = []
    values_of: list[list[int]] = [[] for _ in members]
    unknown: list[str] = []
    for value in flow.activations:
        if value.size_bytes is None:
            unknown.append(value.name)
            continue
        cycles = ceil(machine.host.copy_s(value.size_bytes) * machine.clock_hz)
        producer = unit_of[value.producer] if value.producer >= 0 else -1
        users = tuple(dict.fromkeys(unit_of[n] for n in value.consumers))
        users = tuple(user for user in users if user != producer)
        if cycles and (users or value.is_output):
            for unit in (*users, producer):
                if unit >= 0:
                    values_of[unit].append(len(values))
            values.append(Shared(producer, users, value.is_output, cycles))
    return Balance(
        tuple(tuple(nodes) for nodes in members),
        tuple(accelerator),
        tuple(sum(costs.host_cycles[n] for n in nodes) for nodes in members),
        tuple(tuple(after) for after in contract(flow.successors, unit_of, len(members))),
        tuple(values),
        tuple(flow.is_control[nodes[0]] for nodes in members),
        tuple(runs_kernel),
        launch_of,
        ceil(machine.host.launch_overhead_s * machine.clock_hz),
        tuple(region_of),
        tuple(launch_by_unit),
        tuple(nodes[0] not in shared for nodes in members),
        needs,
        tuple(tuple(numbers) for numbers in values_of),
    ), tuple(unknown)
