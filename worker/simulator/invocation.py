"""Who spends an invocation's cycles: launching kernels, moving data over the host link, executing,
or the host; in all, and region by region.

Source: BYOC section 5, figures 7 and 8 (launch, data transfer and kernel execution).  Deviates: the
paper counts the host's own operators as launch; here they are a share of their own.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Mapping, Sequence
from itertools import accumulate
from math import ceil

from worker.compiler.isa.program import HostCall, OperandRole, Program, UnitCall
from worker.compiler.machine.machine import Machine
from worker.simulator.control import ControlCost
from worker.simulator.results import CallTiming, Invocation, RegionTiming

_WRITTEN = (OperandRole.OUTPUT, OperandRole.SCRATCH)


def invocation(
    program: Program,
    timings: Sequence[CallTiming],
    machine: Machine,
    costs: Mapping[int, ControlCost],
) -> Invocation:
    """Split the cycles of a simulated run.  The parts sum to the cycles of `timings`.

    `timings` are parallel to the program's calls; `costs` are those of interpreted control-flow
    nodes, whose nested programs count in the totals and in no region.
    Cost: linear in calls and their tensors.
    """
    owners = _Owners(program)
    rows = {region: [0, 0, 0] for region in owners.regions}
    launch = transfer = execute = host = 0
    for number, (call, timing) in enumerate(zip(program.calls, timings, strict=True)):
        length = timing.end_cycle - timing.start_cycle
        if isinstance(call, UnitCall):
            row = rows[call.region]
            row[0] += timing.overhead_cycles
            row[2] += length - timing.overhead_cycles
            launch += timing.overhead_cycles
            execute += length - timing.overhead_cycles
            continue
        copies = timing.overhead_cycles - host_launch(timing.overhead_cycles, machine)
        for region, cycles in _spread(copies, owners.shares(number, call, machine)):
            rows[region][1] += cycles
        cost = costs.get(call.host)
        inner = (
            (0, 0, 0)
            if cost is None
            else (cost.launch_cycles, cost.transfer_cycles, cost.kernel_cycles)
        )
        launch += inner[0]
        transfer += copies + inner[1]
        execute += inner[2]
        host += length - copies - sum(inner)
    regions = tuple(RegionTiming(region, *row) for region, row in rows.items())
    return Invocation(launch, transfer, execute, host, regions)


def host_launch(overhead_cycles: int, machine: Machine) -> int:
    """The part of a host call's overhead that is no copy."""
    return min(overhead_cycles, ceil(machine.host.launch_overhead_s * machine.clock_hz))


def _spread(cycles: int, shares: Sequence[tuple[int, float]]) -> list[tuple[int, int]]:
    """`cycles` in proportion to the weights, as integers that sum to it."""
    whole = sum(weight for _, weight in shares)
    if not whole:
        return []
    tops = [round(cycles * part / whole) for part in accumulate(w for _, w in shares)]
    tops[-1] = cycles
    return [
        (region, top - below)
        for (region, _), top, below in zip(shares, tops, [0, *tops[:-1]], strict=True)
    ]


class _Owners:
    """Which region made, and which will read, a tensor in the home memory."""

    def __init__(self, program: Program) -> None:
        self._made: dict[str, list[tuple[int, int]]] = {}
        self._read: dict[str, list[tuple[int, int]]] = {}
        self._size: dict[str, int] = {}
        self._order: list[tuple[int, int]] = []
        """(call, region), ascending: as are the lists above."""
        for number, call in enumerate(program.calls):
            if not isinstance(call, UnitCall):
                continue
            self._order.append((number, call.region))
            operands = program.units[call.unit].operands
            for operand, binding in zip(operands, call.bindings, strict=True):
                uses = self._made if operand.role in _WRITTEN else self._read
                uses.setdefault(binding.tensor, []).append((number, call.region))
                self._size[binding.tensor] = operand.size_bytes
        self.regions = tuple(dict.fromkeys(region for _, region in self._order))

    def shares(self, number: int, call: HostCall, machine: Machine) -> list[tuple[int, float]]:
        """(region, seconds of its tensors' copies) of a host call; views of tensors that kernels
        name otherwise go to the region next in time."""
        found: list[tuple[int, float]] = []
        for names, num_bytes, is_input in (
            (call.inputs, call.input_bytes, True),
            (call.outputs, call.output_bytes, False),
        ):
            seconds = machine.host.copy_s(num_bytes)
            left = num_bytes
            for name in names:
                size = min(self._size.get(name, 0), left)
                region = self._owner(number, name, is_input)
                if size and region is not None:
                    found.append((region, seconds * size / num_bytes))
                    left -= size
            nearest = self._nearest(number, is_input)
            if left and seconds and nearest is not None:
                found.append((nearest, seconds * left / num_bytes))
        return found

    def _owner(self, number: int, name: str, is_input: bool) -> int | None:
        if is_input:
            made = [region for call, region in self._made.get(name, ()) if call < number]
            if made:
                return made[-1]
        read = self._read.get(name, ())
        later = [region for call, region in read if call > number]
        return later[0] if later else read[-1][1] if read else None

    def _nearest(self, number: int, is_input: bool) -> int | None:
        if not self._order:
            return None
        at = bisect(self._order, (number, -1))
        if is_input:
            return self._order[max(at - 1, 0)][1]
        return self._order[min(at, len(self._order) - 1)][1]
