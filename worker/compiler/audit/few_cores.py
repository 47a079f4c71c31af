"""A few cores that stand for all: where a loop over cores does the same everywhere, only its first
two and its last two iterations are audited.

Why that is enough.  Let v number the iterations.  Those of the schedule are apart and, for inner v,
translations of each other (`translated`); the program's rows run for all inner v or for one edge
(`_picked`), a step in v leads every row to the same engine of the next core, to its ports and as
far on at home as all rows of its leaf (`_check_steps`, `_check_ports`), and no token is used by two
v (`_check_tokens`).  So instructions of one v meet those of another in no stream, token, buffer or
element that is written, and what the audit says of one inner v it says of all.  That a leaf's rows
step as far as the schedule asks follows from auditing two of them: at both the offsets are those of
all its iterations, and their sum moves by the step times their number.  Whether outputs are
complete is counted, each inner v writing as many elements as the first (`audit`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from worker.compiler.audit.translated import is_translated
from worker.compiler.isa.loops import Loops, last_counters, nesting, unrolled
from worker.compiler.isa.program import Opcode, UnitProgram, late_by, listing
from worker.compiler.machine.links import meshes, num_ports_of
from worker.compiler.machine.machine import Machine
from worker.compiler.schedule.grid import Ints, coordinates, core_ids
from worker.compiler.schedule.nodes import LoopKind, Schedule
from worker.compiler.schedule.walk import Frame, Frames, Walk

LEAST_CORES = 8
"""Iterations of the loop from which on at most half of them are looked at."""
LEAST_RUNS = 1 << 14
"""Instructions from which on it is worth asking: fewer are audited in some 50 ms."""
RUNS_PER_ROW = 256
"""Instructions that a row has to stand for: asking takes 0.3 ms a row, auditing 3 to 8 us an
instruction (products of some thousands on a100)."""
BLOCK = 1 << 16
"""Instructions that are listed at a time."""


@dataclass(frozen=True, slots=True)
class Runs:
    """What a few cores run of a program, in its order."""

    unit: UnitProgram
    loops: Loops
    """Its loops, shorter."""
    depths: tuple[int, ...]
    counters: Mapping[int, Ints]
    """By loop that is shorter: which of its runs are left."""
    count: int

    def some(self, begin: int, end: int) -> tuple[Ints, UnitProgram]:
        """(rows, listed) of the instructions begin : end."""
        rows, counters = unrolled(self.loops, begin, end)
        for number, runs in self.counters.items():
            first, last, _ = self.loops.table[number].tolist()
            inside = (rows >= first) & (rows < last)
            depth = self.depths[number]
            counters[inside, depth] = runs[counters[inside, depth]]
        return rows, listing(self.unit, rows, counters)


@dataclass(frozen=True, slots=True)
class FewCores:
    """What is audited of a unit."""

    var: str
    values: Ints
    """Of that loop's variable, ascending."""
    times: Ints
    """For how many iterations each stands."""
    runs: Runs
    """Their instructions."""
    value_of: Ints
    """[streams] In which iteration each runs."""
    lanes: Ints
    """[n, 2] Stream and latency of what they run, each once."""

    def stands_for(self, streams: Ints) -> Ints:
        """For how many iterations each of some streams stands."""
        return self.times[np.searchsorted(self.values, self.value_of[streams])]


class _Differ(Exception):
    """Nothing is said of other cores."""


def few_cores(
    schedule: Schedule, flat: Walk, unit: UnitProgram, machine: Machine
) -> FewCores | None:
    """The few cores of a unit that are enough, of its longest loop over cores; None: all of them.

    Cost: leaves times operands, rows times cores, and what the few run.
    """
    least = max(LEAST_RUNS, RUNS_PER_ROW * unit.num_rows)
    if not len(unit.loops.table) or unit.num_instructions < least:
        return None
    shared = [f for f in flat.leaves[0].frames if f.kind is LoopKind.CORES]
    shared = [f for f in shared if all(f in leaf.frames for leaf in flat.leaves)]
    frame = max(shared, key=lambda f: f.trip, default=None)
    if frame is None or frame.trip < LEAST_CORES:
        return None
    if not is_translated(schedule, flat, frame, machine):
        return None
    last = frame.trip - 1
    values = np.array([0, 1, last - 1, last], dtype=np.int64)
    try:
        value_of = _value_of_streams(flat, frame, unit)
        picked = _picked(unit, frame, value_of, values)
        _check_steps(unit, picked, value_of, frame)
        _check_ports(unit, picked, frame, machine)
        runs = _runs(unit, picked)
        lanes = _check_tokens(runs, picked, value_of, frame, machine)
    except _Differ:
        return None
    return FewCores(frame.var, values, np.array([1, last - 2, 1, 1]), runs, value_of, lanes)


def _value_of_streams(flat: Walk, frame: Frame, unit: UnitProgram) -> Ints:
    """[streams] The iteration in which each stream's core is at work, -1 where in none."""
    cores = np.array([stream.core for stream in unit.streams], dtype=np.int64)
    found = np.full(int(cores.max(initial=0)) + 1, -1, dtype=np.int64)
    around = [(leaf.frames, leaf.core_base) for leaf in flat.leaves]
    around += [(scope.frames, scope.core_base) for scope in flat.scopes]
    for frames, base in dict.fromkeys((_loops(frames), base) for frames, base in around):
        coords = coordinates(frames)
        ids = core_ids(base, frames, coords).ravel()
        own = np.broadcast_to(coords[frame.var], [f.trip for f in frames]).ravel()
        _require(bool(np.all(ids < len(found))))
        _require(bool(np.all((found[ids] < 0) | (found[ids] == own))))
        found[ids] = own
        _require(bool(np.all(found[ids] == own)))
    return found[cores]


def _loops(frames: Frames) -> Frames:
    return tuple(f for f in frames if f.kind is LoopKind.CORES)


@dataclass(frozen=True, slots=True)
class _Picked:
    """Which runs of a program's loops are looked at."""

    depth: Ints
    """[rows] Depth of the loop around each whose runs are the iterations; -1: there is none."""
    stride: Ints
    """[rows] Runs of that loop from one iteration to the next: a program has one loop over the
    cores of several where nothing else differs."""
    inner: dict[int, Ints]
    """By row with such a loop: its runs that are the first inner iteration."""
    counters: dict[int, Ints]
    """By loop: the runs that are looked at."""


def _picked(unit: UnitProgram, frame: Frame, value_of: Ints, values: Ints) -> _Picked:
    """The runs of every loop that are some of `values`.

    Raises:
        _Differ: rows run for some of the inner iterations and not for others.
    """
    loops, last = unit.loops, frame.trip - 1
    stream = unit.instructions["stream"].astype(np.int64)
    steps = loops.stride["stream"].astype(np.int64)
    depth, stride = np.full(unit.num_rows, -1, dtype=np.int64), np.ones(unit.num_rows, np.int64)
    iterations: dict[int, Ints] = {}
    counters: dict[int, Ints] = {}
    depths = nesting(loops.table)
    for number, (begin, end, trip) in enumerate(loops.table.tolist()):
        at = depths[number]
        if not steps[begin:end, at].any():
            continue
        found = _values(
            value_of, stream[begin:end, None] + steps[begin:end, at, None] * np.arange(trip)
        )
        if np.all(found == found[:, :1]):
            continue
        _require(bool(np.all(found == found[0]) and np.all(depth[begin:end] < 0)))
        stride[begin:end], low, high = _in_turn(found[0])
        _require(0 <= low <= 1 and last - 1 <= high <= last)
        depth[begin:end] = at
        counters[number] = np.flatnonzero(np.isin(found[0], values))
        iterations.update(dict.fromkeys(range(begin, end), found[0]))
    first = _values(value_of, stream)
    alone = depth < 0
    _require(bool(np.all((first[alone] == 0) | (first[alone] == last))))
    trips = last_counters(loops) + 1
    for row in range(unit.num_rows):
        # Every stream that the row runs on is of the iteration that its loop says.
        each, value = stream[row : row + 1], first[row : row + 1]
        for at in np.flatnonzero(steps[row]).tolist():
            turns = np.arange(trips[row, at])
            each = np.add.outer(each, steps[row, at] * turns).ravel()
            own = iterations[row] - first[row] if at == depth[row] else 0 * turns
            value = np.add.outer(value, own).ravel()
        _require(np.array_equal(_values(value_of, each), value))
    inner = {row: np.flatnonzero(each == 1) for row, each in iterations.items()}
    return _Picked(depth, stride, inner, counters)


def _values(value_of: Ints, streams: Ints) -> Ints:
    _require(bool(np.all((streams >= 0) & (streams < len(value_of)))))
    return value_of[streams]


def _in_turn(values: Ints) -> tuple[int, int, int]:
    """(runs for each iteration, the first one, the last) of a loop whose runs are of these: of each
    as often as of any other, in turn, perhaps several times.

    Raises:
        _Differ: they come in another order.
    """
    each = int(np.argmax(values != values[0]))
    again = np.flatnonzero(values[each:] == values[0])
    many = (each + int(again[0]) if len(again) else len(values)) // each
    low = int(values[0])
    _require(len(values) % (each * many) == 0)
    _require(np.array_equal(values, low + np.arange(len(values)) // each % many))
    return each, low, low + many - 1


def _check_steps(unit: UnitProgram, picked: _Picked, value_of: Ints, frame: Frame) -> None:
    """Raise _Differ unless all rows step alike: in streams, and those of a leaf in offsets."""
    rows = np.flatnonzero(picked.depth >= 0)
    table, steps = unit.instructions.take(rows), unit.loops.stride[rows, picked.depth[rows]]
    runs = picked.stride[rows]
    by = set((steps["stream"] * runs).tolist())
    _require(len(by) == 1)
    cores = np.array([stream.core for stream in unit.streams], dtype=np.int64)
    first = np.flatnonzero(value_of == 1)
    turns = np.arange(frame.trip - 2)
    along = first[:, None] + by.pop() * turns
    _require(bool(np.all((along >= 0) & (along < len(cores)))))
    _require(bool(np.all(cores[along] == cores[first][:, None] + frame.stride * turns)))
    kinds = [table[name].tolist() for name in ("node", "opcode", "src", "dst")]
    offsets = zip(*((steps[name] * runs).tolist() for name in ("src_offset", "dst_offset")),
                  strict=True)  # fmt: skip
    found: dict[tuple[int, ...], tuple[int, int]] = {}
    for kind, step in zip(zip(*kinds, strict=True), offsets, strict=True):
        _require(found.setdefault(kind, step) == step)


def _check_ports(unit: UnitProgram, picked: _Picked, frame: Frame, machine: Machine) -> None:
    """Raise _Differ unless ports go with the core, or stay where a level has one instance."""
    _require(not np.any(unit.instructions["opcode"] == Opcode.MULTICAST))
    _check_ways(unit, machine)
    levels = {
        level.name: number for number, level in enumerate(machine.levels)
        if num_ports_of(level, machine) == level.instances  # by router of home: as their ways
    }  # fmt: skip
    kinds = np.array(
        [(levels.get(r.level, -1), r.direction == "write", r.count) for r in unit.resources],
        dtype=np.int64,
    ).reshape(-1, 3)
    instance = np.array([r.instance for r in unit.resources], dtype=np.int64)
    goes_by = np.array([
        frame.stride * (r.level in levels and machine.level(r.level).instances > 1)
        for r in unit.resources
    ], dtype=np.int64)  # fmt: skip
    turns = np.arange(frame.trip - 2)
    trips = last_counters(unit.loops) + 1
    for row in np.flatnonzero(picked.depth >= 0).tolist():
        at = picked.depth[row]
        for port, base in enumerate(unit.instructions["resource"][row].tolist()):
            steps = unit.loops.stride["resource"][row, :, port].astype(np.int64)
            if base < 0:
                _require(not steps.any())
                continue
            each = base + steps[at] * picked.inner[row]
            for k in np.flatnonzero(steps).tolist():
                if k != at:
                    each = np.add.outer(each, steps[k] * np.arange(trips[row, k])).ravel()
            along = each[:, None] + steps[at] * picked.stride[row] * turns
            _require(bool(np.all((along >= 0) & (along < len(instance)))))
            _require(bool(np.all(kinds[along] == kinds[along[:, :1]])))
            goes = np.diff(instance[along], axis=1) == goes_by[along[:, :1]]
            _require(bool(np.all(goes | (kinds[along[:, :1], 0] < 0))))


def _check_ways(unit: UnitProgram, machine: Machine) -> None:
    """Raise _Differ unless what crosses a mesh comes from home or goes there, and is seen later
    than what does not on every core: else who finishes before whom might differ with the hops."""
    rows = unit.instructions
    moves = rows["opcode"] != Opcode.COMPUTE
    for name, link in meshes(machine).items():
        mesh = link.mesh
        assert mesh is not None
        ways = [w for r in unit.resources if r.level == name for w in r.instances]
        _require(all(max(mesh.ends(way)) >= mesh.num_nodes for way in ways))
        is_way = np.array([r.level == name for r in unit.resources] + [False])
        crosses = is_way[rows["resource"]].any(axis=1)
        near = rows["latency"][moves & ~crosses].max(initial=0)
        _require(near <= rows["latency"][crosses].min(initial=near))


def _runs(unit: UnitProgram, picked: _Picked) -> Runs:
    """The runs that are looked at."""
    table = unit.loops.table.copy()
    for number, runs in picked.counters.items():
        table["trip"][number] = len(runs)
    loops = replace(unit.loops, table=table)
    count = replace(unit, loops=loops).num_instructions
    return Runs(unit, loops, tuple(nesting(table)), picked.counters, count)


def _check_tokens(
    runs: Runs, picked: _Picked, value_of: Ints, frame: Frame, machine: Machine
) -> Ints:
    """Raise _Differ unless each token is used in one iteration only; gives the lanes."""
    unit = runs.unit
    inner, edges, lanes = (np.zeros((0, 2), dtype=np.int64) for _ in range(3))
    for first in range(0, runs.count, BLOCK):
        rows, few = runs.some(first, min(first + BLOCK, runs.count))
        stream = few.instructions["stream"].astype(np.int64)
        late = late_by(few.instructions, unit.resources, meshes(machine))
        lanes = _distinct(lanes, stream, late)
        for pointer, token, whole, stride in (
            (few.wait_ptr, few.wait_token, unit.wait_ptr, unit.loops.wait_stride),
            (few.signal_ptr, few.signal_token, unit.signal_ptr, unit.loops.signal_stride),
        ):
            counts = np.diff(pointer)
            row = np.repeat(rows, counts)
            entry = whole[:-1][row] + np.arange(len(token)) - np.repeat(pointer[:-1], counts)
            step = stride[entry, picked.depth[row]].astype(np.int64) * picked.stride[row]
            of = np.repeat(value_of[stream], counts)
            inner = _distinct(inner, token[of == 1], step[of == 1])
            is_edge = (of == 0) | (of == frame.trip - 1)
            edges = _distinct(edges, token[is_edge], of[is_edge])
    count = frame.trip - 2
    _require(len(inner) * count <= unit.num_tokens)
    along = inner[:, :1] + inner[:, 1:] * np.arange(count)
    used = np.concatenate([along.ravel(), edges[:, 0]])
    _require(bool(np.all((used >= 0) & (used < unit.num_tokens))))
    _require(bool(np.all(np.bincount(used, minlength=1) <= 1)))
    return lanes


def _distinct(known: Ints, first: Ints, second: Ints) -> Ints:
    """[n, 2] Pairs, those known so far among them, each once."""
    return np.unique(np.concatenate([known, np.stack([first, second], axis=1)]), axis=0)


def _require(holds: bool) -> None:
    if not holds:
        raise _Differ
