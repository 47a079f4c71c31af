"""What starting each kernel of a program costs, call by call.

The host submits kernels ahead and waits only for what a host part reads.  So a kernel behind one of
the same target is queued while that runs, and only the gap between the two is seen.  At the start,
after a host part and after a kernel of another target the device is idle, and the whole latency is.
Source: decision 0044.
"""

from __future__ import annotations

from worker.compiler.machine.machine import LaunchUnit, Machine


class Launches:
    """Goes along a program's calls in their order."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._launched: set[int] = set()
        self._before: str | None = None
        """Target of the kernel before; None: there is none, or the host waited for it."""

    def host_part(self) -> None:
        """A host part runs, and reads what kernels before it made."""
        self._before = None

    def kernel(self, target_name: str, region: int) -> int:
        """Cycles from the end of the call before to the start of a kernel of a region.

        Nothing inside a region that is launched as one; its first kernel pays for the invocation.
        """
        target = self._machine.target(target_name)
        is_queued, self._before = self._before == target_name, target_name
        latency, gap = self._machine.launch_latency(target), self._machine.launch_gap(target)
        launch = gap if is_queued else latency
        if region not in self._launched:
            self._launched.add(region)
            return launch + target.region_overhead_cycles
        return 0 if target.launch_unit is LaunchUnit.REGION and is_queued else launch
