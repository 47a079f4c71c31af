"""The sanity block: what must hold of any simulation, checked on each one.

A violated check is our bug; it is printed on the report and fails the job.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from worker.compiler.clock.run import BUSY, IDLE, Ints, Timing
from worker.compiler.isa.loops import repetitions
from worker.compiler.isa.program import UnitProgram, passed, port_sets, widths
from worker.compiler.machine.links import meshes
from worker.compiler.machine.machine import Machine, Managed
from worker.simulator.results import Blame, Bound, Check, LevelTraffic, Occupancy

_BLOCK = 1 << 14
_EXACT = (1 << 53) // _BLOCK
"""So much in every row of a block adds up in floats without rounding."""


def unit_checks(
    program: UnitProgram,
    machine: Machine,
    run: Timing,
    bounds: tuple[tuple[Bound, ...], tuple[Bound, ...]],
    moved: tuple[LevelTraffic, ...],
    curves: tuple[Occupancy, ...],
    found: Recount,
    contractions: Mapping[int, int],
    blamed: tuple[Blame, ...],
) -> tuple[Check, ...]:
    """All checks of one unit.  Totals are re-counted from the instructions, apart from the loop.

    `bounds`: those of the roofline, and the summands of the tight one.
    """
    payload, work, counted = found.payload, int(found.work.sum()), int(run.stream_macs.sum())
    short = [k for k, points in contractions.items() if found.of(k) < points]
    busy, idle = run.stream_stats[:, BUSY], run.stream_stats[:, IDLE]
    residual = int(np.abs(run.stream_free - busy - idle).sum())
    unblamed = run.cycles - sum(b.cycles for b in blamed)
    over = int(busy.max(initial=0))
    pointer, port, num_ports = port_sets(program.resources, meshes(machine))
    on_port = np.zeros(num_ports, np.int64)
    np.add.at(on_port, port, np.repeat(run.resource_busy, np.diff(pointer)))
    ports = int(on_port.max(initial=0))
    overflow = [c for c in curves if c.peak_bytes > machine.level(c.level).usable_bytes]
    caches = {level.name for level in machine.levels if level.managed is Managed.CACHE}
    ports_read = sum(m.read_bytes for m in moved if m.level not in caches)
    ports_written = sum(m.write_bytes for m in moved if m.level not in caches)
    return (
        above_bounds(run.cycles, *bounds),
        Check(
            "bytes-conserved",
            found.leaving == payload
            and payload + found.unasked[0] == ports_read + found.held
            and found.arriving + found.unasked[1] == ports_written >= payload - found.kept,
            f"payload {payload}, of bursts {found.unasked} more, read {ports_read} and {found.held}"
            " held by caches,"
            f" written {ports_written} and {found.kept} kept",
        ),
        Check(
            "macs-conserved", work == counted and not short,
            f"instructions {work}, engines {counted}"
            + "".join(f"; operator {k}: {found.of(k)} of {contractions[k]}" for k in short[:4]),
        ),
        Check(
            "occupancy-within-capacity", not overflow,
            ", ".join(f"{c.level} {c.peak_bytes}/{c.capacity_bytes}" for c in overflow or curves),
        ),
        Check("parts-sum-to-total", residual == 0, f"residual {residual} cycles"),
        Check(
            "causes-sum-to-total", unblamed == 0, f"{unblamed} of {run.cycles} cycles have no cause"
        ),
        Check(
            "no-overbooking", over <= run.cycles and ports <= run.cycles,
            f"busiest engine {over}, busiest port {ports}, of {run.cycles} cycles",
        ),
    )  # fmt: skip


def above_bounds(cycles: int, roofline: Sequence[Bound], floor: Sequence[Bound]) -> Check:
    """Neither any bound of the roofline nor the sum of the tight one's parts exceeds a run."""
    largest = max(roofline, key=lambda b: b.cycles)
    least = sum(b.cycles for b in floor)
    return Check(
        "cycles-above-bounds",
        cycles >= max(largest.cycles, least),
        f"{cycles} cycles, {largest.name} needs {largest.cycles}, "
        + (" + ".join(f"{b.name} {b.cycles}" for b in floor) or "nothing")
        + f" needs {least}",
    )


@dataclass(frozen=True, slots=True)
class Recount:
    """Totals of a program's instructions, counted apart from the loop that times them."""

    payload: int
    """Bytes of all transfers."""
    leaving: int
    """Of them, those through first ports."""
    arriving: int
    """And through last ones, as often as there are instances that they arrive in."""
    held: int
    """Of them, those that a cache has, or gets by another transfer: they leave no memory."""
    kept: int
    """Those that go no farther than a cache."""
    unasked: tuple[int, int]
    """Bytes of bursts that are no payload, through first ports and through last ones."""
    engines: tuple[str, ...]
    """Names of those that have streams."""
    by_engine: Ints
    """[operators of the unit's graph, engines] Multiply-accumulates, or elementary operations."""
    drawn: Ints
    """[engines] Bytes that they read of their own memory."""
    returned: Ints
    """[engines] Bytes that they write there."""
    inside: Ints
    """[engines] Bytes that the lines of their arrays carry."""

    @property
    def work(self) -> Ints:
        """[operators] Multiply-accumulates, or elementary operations."""
        return np.asarray(self.by_engine.sum(axis=1))

    def of(self, op: int) -> int:
        """Work of one operator; 0 where no instruction computes it."""
        return int(self.by_engine[op].sum()) if op < len(self.by_engine) else 0


def recount(program: UnitProgram, caches: Collection[str] = ()) -> Recount:
    """Totals, by numpy; `caches`: names of levels that are.

    Works on blocks of rows that stay in the processor's cache while every field is read.
    """
    directions = [r.direction for r in program.resources]
    is_read = np.array([d == "read" for d in directions] + [False])  # index -1: no port
    is_write = np.append([d == "write" for d in directions] * widths(program.resources), 0)
    is_found = np.array([r.level in caches for r in program.resources] + [False])
    sharers = np.array([r.sharers for r in program.resources] + [1], dtype=np.int64)
    shared = np.zeros(len(sharers), np.int64)
    payload = leaving = arriving = held = kept = unread = unwritten = 0
    engines = tuple(dict.fromkeys(stream.engine for stream in program.streams))
    # A loop over cores changes an instruction's stream, and never its engine.
    engine_of = np.array([engines.index(s.engine) for s in program.streams], dtype=np.int64)
    num_ops = int(program.instructions["op"].max(initial=-1)) + 1
    work = np.zeros((num_ops, len(engines)), np.int64)
    fed = np.zeros((3, len(engines)), np.int64)
    times = repetitions(program.loops)
    for begin in range(0, program.num_rows, _BLOCK):
        rows = program.instructions[begin : begin + _BLOCK]
        many: Ints = times[begin : begin + _BLOCK] if len(times) else np.ones(1, np.int64)
        size, ports = rows["bytes"] * many, rows["resource"]
        sizes, counted = passed(rows, program.resources)
        payload += int(size.sum())
        computes = rows["op"] >= 0
        engine = engine_of[rows["stream"][computes]]
        place = rows["op"][computes].astype(np.int64) * len(engines) + engine
        macs = rows["macs"] * many
        work += _sums(place, macs[computes], work.size).reshape(work.shape)
        for row, name in zip(fed, ("drawn", "returned", "inside"), strict=True):
            row += _sums(engine, (rows[name] * many)[computes], len(engines))
        # Computes by ports of their engines bring no payload.
        first = last = np.where(computes, -1, ports[:, 0])
        for column in range(1, ports.shape[1]):
            port = np.where(computes, -1, ports[:, column])
            if port.max() < 0:
                break
            last = np.where(port >= 0, port, last)
        leaving += int(size @ is_read[first])
        arriving += int(size @ is_write[last])
        brought = size
        if len(sizes) > 1:
            brought, taken = (
                np.choose(np.append(counted, 0)[end], sizes) * many for end in (first, last)
            )
            unread += int((brought - size) @ is_read[first])
            unwritten += int((taken - size) @ is_write[last])
        if is_found.any():
            held += int(brought @ is_found[first])
            kept += int(size @ is_found[last])
            np.add.at(shared, first, brought)
    held += int((shared - shared // sharers).sum())
    return Recount(
        payload, leaving, arriving, held, kept, (unread, unwritten), engines, work, *fed
    )  # fmt: skip


def _sums(place: Ints, values: Ints, count: int) -> Ints:
    """Sums of at most `_BLOCK` values by their places: by floats, which are fast, where these are
    exact."""
    if values.max(initial=0) <= _EXACT:
        return np.bincount(place, values, minlength=count).astype(np.int64)
    found = np.zeros(count, np.int64)
    np.add.at(found, place, values)
    return found
