"""Lowering: a Schedule becomes a UnitProgram.

flatten -> resolve -> issue order -> buffers -> instructions -> tokens -> time order -> loops.
Nothing here knows which strategy made the schedule.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from worker.compiler.clock.run import Wiring, run_unit
from worker.compiler.cost.compute import work
from worker.compiler.heuristics import Heuristic
from worker.compiler.ir.scalar import Read
from worker.compiler.isa.loops import NO_LOOPS
from worker.compiler.isa.program import Opcode, Stream, UnitProgram
from worker.compiler.lower.buffers import plan_buffers, plan_operands
from worker.compiler.lower.emit.carry import TransferEmitter
from worker.compiler.lower.emit.emit import Emitter
from worker.compiler.lower.emit.emit_compute import staged_width
from worker.compiler.lower.grid import Ints
from worker.compiler.lower.issue import hoisted_loops, prefetches, timings
from worker.compiler.lower.order.conflicts import latest_conflicts
from worker.compiler.lower.order.folding import Unfoldable, fold
from worker.compiler.lower.order.layers import EarlyFill, early_fills
from worker.compiler.lower.order.pace import paced
from worker.compiler.lower.order.sync import Tokens, most_waits, synchronise
from worker.compiler.lower.order.time_order import Moves, in_time_order
from worker.compiler.lower.resolve import flatten, resolve
from worker.compiler.lower.rows.batch import merge
from worker.compiler.lower.rows.cached import Cached, has_cache
from worker.compiler.lower.rows.hazards import home_hazards
from worker.compiler.lower.rows.storage import Storages
from worker.compiler.lower.rows.touches import Touches, touches_of
from worker.compiler.lower.window import (
    EVERYTHING,
    most_instructions,
    periods_of,
    window_of,
    without_gaps,
)
from worker.compiler.machine.links import meshes, wires
from worker.compiler.machine.machine import EngineKind, Machine
from worker.compiler.schedule.nodes import Schedule
from worker.compiler.schedule.unread import Unread
from worker.compiler.schedule.walk import Walk

LOWER_VERSION = "24"
"""Bump when programs change for the same schedule: cached kernels must miss."""
LISTED_ROWS = 1 << 14
"""Instructions that a program lists one by one at most, if it can: 1.5 MB of them."""
MANY_WAITS = 8
"""Waits per instruction, repeated ones included, that are too many to list for an order's sake."""

HARDLY = 64
"""Elements moved for each operation computed, from which on layers do not overlap in long programs.
What can hide then is 1/64 of a vector unit's time, if it takes as long to move as to compute; the
number was not varied (decision 0054)."""


def lower_unit(
    schedule: Schedule, machine: Machine, signature: str, most_rows: int = LISTED_ROWS
) -> UnitProgram:
    """Lower one unit.

    Where more than `most_rows` instructions would run, repeating ones are listed once, in loops; a
    program whose layers overlap in time (`in_time_order`) has none.  Layers that hardly compute do
    not overlap in programs of more than `LISTED_ROWS` (decision 0054).
    Where cores can be served together (`emit.multicast`), the program that does is taken unless it
    takes longer, or as long with more energy for its transfers, or would list more than
    `LISTED_ROWS`.

    Raises:
        Infeasible: a memory level cannot hold the buffers that are alive together.
        VerifyError: the schedule names storage or operators that cannot be lowered.
    Cost: linear in listed instructions and touches; `in_time_order` has more than half of it.
        Twice that, and two runs of the clock, where cores can be served together.
    """
    shared: UnitProgram | None = None
    if Heuristic.MULTICAST not in schedule.without and any(k.multicast for k in machine.links):
        shared = _lowered(schedule, machine, signature, most_rows, shares=True)
        if shared is not None and not np.any(shared.instructions["opcode"] == Opcode.MULTICAST):
            return shared
    alone = _lowered(schedule, machine, signature, most_rows, shares=False)
    assert alone is not None
    if shared is None:
        return alone
    return min((shared, alone), key=lambda unit: _price(unit, machine))


def _price(unit: UnitProgram, machine: Machine) -> tuple[int, float]:
    """(cycles, energy of all transfers in pJ)"""
    run, joined = run_unit(unit, machine), meshes(machine)
    return run.cycles, sum(
        num_bytes
        * wires(joined, port.level, port.instances)[1]
        * machine.port_energy(port.level, port.direction)
        for port, num_bytes in zip(unit.resources, run.resource_bytes.tolist(), strict=True)
    )


def _lowered(
    schedule: Schedule, machine: Machine, signature: str, most_rows: int, *, shares: bool
) -> UnitProgram | None:
    """The program; None where `shares` keeps it from having loops, or not from being long."""
    nest = flatten(schedule, machine)
    refs, unread = resolve(nest, machine), Unread(nest, machine)
    ahead = prefetches(nest, refs)
    without = frozenset(schedule.without)
    widths = [staged_width(r) for r in refs]
    most = most_instructions(nest, widths)
    early: tuple[EarlyFill, ...] = ()
    if Heuristic.AHEAD not in without and not (most > LISTED_ROWS and hardly_computes(nest)):
        early = early_fills(nest, refs, ahead, machine)
    longest = max(most_rows, LISTED_ROWS)
    if shares and early and most > longest:
        return None  # trying costs as much as all else (decision 0045)
    planned = plan_buffers(
        nest, refs, hoisted_loops(nest, refs, ahead), machine,
        paced(nest, refs, early, machine, without),
        is_spread=Heuristic.SPREAD not in without,
    )  # fmt: skip
    buffers = planned.buffers
    timing = timings(nest, refs, ahead, widths, planned.leads)
    num_staged = sum(ref.staged for r in refs for ref in (*r.reads, r.write))
    hazards = home_hazards(nest, refs)
    by_tile = bool(early) and Heuristic.TILES not in without  # layers may overlap, nothing loops
    storages = Storages(nest, refs, buffers, machine, hazards, num_staged, by_tile=by_tile)
    cached = Cached(nest, refs, ahead, timing, unread, machine) if has_cache(machine) else None
    transfers = TransferEmitter(nest, machine, storages, cached)
    window = EVERYTHING if early else window_of(nest, refs, unread, ahead, widths, most_rows)
    while True:
        emitter = Emitter(transfers, unread, shares=shares)
        batches = [
            batch
            for number, leaf in enumerate(nest.leaves)
            for batch in emitter.leaf(
                number, leaf, refs[number], timing[number], ahead[number], window
            )
        ]
        is_shared = any(batch.opcode is Opcode.MULTICAST for batch in batches)
        listed = 0 if window.gaps else sum(batch.count for batch in batches)
        if is_shared and listed > longest:
            return None
        instructions, places = merge(batches, machine.num_cores, len(machine.engines))
        touches = touches_of(batches, places)
        if not window.gaps:
            batches, places = [], ()  # as large as the program, and done with
        tokens, loops = synchronise(touches, storages, instructions["stream"]), NO_LOOPS
        if early and Heuristic.TIME_ORDER not in without:  # layers may overlap
            moves = _moves(instructions["stream"], touches, storages, machine)
            wiring = Wiring(
                transfers.routes.resources(),
                tuple(np.arange(machine.num_cores).repeat(len(machine.engines)).tolist()),
                machine.signals,
                meshes(machine),
            )
            instructions, tokens = in_time_order(instructions, tokens, wiring, moves)
        used_streams, number_of = _compact(
            instructions["stream"], machine.num_cores * len(machine.engines)
        )
        instructions["stream"] = number_of[instructions["stream"]]
        used, number_of = _compact(instructions["resource"], transfers.routes.count)
        instructions["resource"] = number_of[instructions["resource"]]  # -1 stays: the last entry
        if not window.gaps:
            break
        periods = periods_of(nest, refs)
        try:
            instructions, tokens, loops = fold(
                instructions, tokens, batches, places, nest.leaves, window, periods
            )
        except Unfoldable as error:
            if shares and not error.paths:
                return None
            window = without_gaps(window, error.paths or set(window.gaps))
            continue
        break

    for array in (
        instructions, tokens.wait_ptr, tokens.wait_token, tokens.signal_ptr, tokens.signal_token,
    ):  # fmt: skip
        array.setflags(write=False)
    engines = [e.name for e in machine.engines]
    return UnitProgram(
        signature,
        plan_operands(nest, refs),
        buffers,
        tuple(Stream(*_core_engine(s, engines)) for s in used_streams.tolist()),
        tuple(transfers.routes.resource(r) for r in used.tolist()),
        tuple(leaf.path for leaf in nest.leaves),
        instructions,
        tokens.wait_ptr,
        tokens.wait_token,
        tokens.signal_ptr,
        tokens.signal_token,
        tokens.num_tokens,
        loops,
    )


def hardly_computes(nest: Walk) -> bool:
    """Whether operators that only move data have nearly all the work.

    All layers use the same engines and ports then: overlapping them hides what little the others
    compute, and one tile's way in and out at every seam.
    """
    moved = computed = 0
    for op in nest.schedule.graph.ops:
        if op.reduce is None and isinstance(op.body, Read):
            moved += op.num_points
        else:
            computed += work(op, op.num_points)
    return computed * HARDLY <= moved


def _moves(
    stream: npt.NDArray[np.int32], touches: Touches, storages: Storages, machine: Machine
) -> Moves:
    """What may change its place."""
    stream = stream.copy()

    def tokens_of(order: Ints) -> Tokens:
        return synchronise(touches, storages, stream, order)

    full = None
    if most_waits(touches, storages) <= MANY_WAITS * len(stream):
        full = synchronise(touches, storages, stream, repeats=True)
    return Moves(_moving_streams(machine), latest_conflicts(touches, storages), tokens_of, full)


def _moving_streams(machine: Machine) -> npt.NDArray[np.bool_]:
    """Streams (core * engines + engine) of transfers."""
    moves = [e.kind in (EngineKind.DMA_IN, EngineKind.DMA_OUT) for e in machine.engines]
    return np.tile(np.array(moves, dtype=np.bool_), machine.num_cores)


def _compact(numbers: npt.NDArray[np.int32], count: int) -> tuple[Ints, npt.NDArray[np.int32]]:
    """(values in use, ascending; map from old to new number, whose last entry is -1)."""
    is_used = np.zeros(count + 1, dtype=bool)
    is_used[numbers] = True
    used = np.flatnonzero(is_used[:count])
    number_of = np.full(count + 1, -1, dtype=np.int32)
    number_of[used] = np.arange(len(used), dtype=np.int32)
    return used, number_of


def _core_engine(stream: int, engines: list[str]) -> tuple[int, str]:
    core, engine = divmod(stream, len(engines))
    return core, engines[engine]
