"""The sanity block: what must hold of any simulation, checked on each one.

A violated check is our bug; it is printed on the report and fails the job.
"""

from __future__ import annotations

import numpy as np

from worker.compiler.isa.program import UnitProgram
from worker.compiler.machine.machine import Machine, Managed
from worker.simulator.engine import Timing
from worker.simulator.results import Bound, Check, LevelTraffic, Occupancy
from worker.simulator.timing import BUSY, RESOURCE, TOKEN

_BLOCK = 1 << 14


def unit_checks(
    program: UnitProgram,
    machine: Machine,
    run: Timing,
    bounds: tuple[Bound, ...],
    moved: tuple[LevelTraffic, ...],
    curves: tuple[Occupancy, ...],
) -> tuple[Check, ...]:
    """All checks of one unit.  Totals are re-counted from the instructions, apart from the loop."""
    payload, first, last, work = _recount(program)
    counted = int(run.stream_macs.sum())
    busy, idle = run.stream_stats[:, BUSY], run.stream_stats[:, [TOKEN, RESOURCE]].sum(axis=1)
    residual = int(np.abs(run.stream_free - busy - idle).sum())
    over = int(busy.max(initial=0))
    ports = int(run.resource_busy.max(initial=0))
    overflow = [c for c in curves if c.peak_bytes > machine.level(c.level).usable_bytes]
    caches = {level.name for level in machine.levels if level.managed is Managed.CACHE}
    ports_read = sum(m.read_bytes for m in moved if m.level not in caches)
    ports_written = sum(m.write_bytes for m in moved if m.level not in caches)
    tightest = max(bounds, key=lambda b: b.cycles)
    return (
        Check(
            "cycles-above-bounds", run.cycles >= tightest.cycles,
            f"{run.cycles} cycles, {tightest.name} needs {tightest.cycles}",
        ),
        Check(
            "bytes-conserved",
            first == payload == last and ports_read == ports_written == payload,
            f"payload {payload}, read {ports_read}, written {ports_written}",
        ),
        Check("macs-conserved", work == counted, f"instructions {work}, engines {counted}"),
        Check(
            "occupancy-within-capacity", not overflow,
            ", ".join(f"{c.level} {c.peak_bytes}/{c.capacity_bytes}" for c in overflow or curves),
        ),
        Check("parts-sum-to-total", residual == 0, f"residual {residual} cycles"),
        Check(
            "no-overbooking", over <= run.cycles and ports <= run.cycles,
            f"busiest engine {over}, busiest port {ports}, of {run.cycles} cycles",
        ),
    )  # fmt: skip


def _recount(program: UnitProgram) -> tuple[int, int, int, int]:
    """(payload, bytes leaving through first ports, arriving at last ports, work), by numpy.

    Works on blocks of rows that stay in the processor's cache while every field is read.
    """
    directions = [r.direction for r in program.resources]
    is_read = np.array([d == "read" for d in directions] + [False])  # index -1: no port
    is_write = np.array([d == "write" for d in directions] + [False])
    payload = leaving = arriving = work = 0
    for begin in range(0, program.num_instructions, _BLOCK):
        rows = program.instructions[begin : begin + _BLOCK]
        size, ports = rows["bytes"].copy(), rows["resource"]
        payload += int(size.sum())
        work += int(rows["macs"].sum())
        first = last = ports[:, 0].copy()
        for column in range(1, ports.shape[1]):
            port = ports[:, column]
            if port.max() < 0:
                break
            last = np.where(port >= 0, port, last)
        leaving += int(size @ is_read[first])
        arriving += int(size @ is_write[last])
    return payload, leaving, arriving, work
