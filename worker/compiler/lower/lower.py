"""Lowering: a Schedule becomes a UnitProgram.

flatten -> resolve -> issue order -> buffers -> instructions -> tokens -> time order.  Nothing here
knows which strategy made the schedule.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from worker.compiler.heuristics import Heuristic
from worker.compiler.isa.program import Stream, UnitProgram
from worker.compiler.lower.buffers import plan_buffers, plan_operands
from worker.compiler.lower.emit.carry import TransferEmitter
from worker.compiler.lower.emit.emit import Emitter
from worker.compiler.lower.emit.emit_compute import staged_width
from worker.compiler.lower.grid import Ints
from worker.compiler.lower.issue import hoisted_loops, prefetches, timings
from worker.compiler.lower.order.conflicts import latest_conflicts
from worker.compiler.lower.order.layers import early_fills
from worker.compiler.lower.order.pace import paced
from worker.compiler.lower.order.sync import Tokens, most_waits, synchronise
from worker.compiler.lower.order.time_order import Moves, in_time_order
from worker.compiler.lower.resolve import flatten, resolve
from worker.compiler.lower.rows.batch import merge
from worker.compiler.lower.rows.hazards import home_hazards
from worker.compiler.lower.rows.storage import Storages
from worker.compiler.lower.rows.touches import touches_of
from worker.compiler.machine.machine import EngineKind, Machine
from worker.compiler.schedule.nodes import Schedule

LOWER_VERSION = "9"
"""Bump when programs change for the same schedule: cached kernels must miss."""
MANY_WAITS = 8
"""Waits per instruction, repeated ones included, that are too many to list for an order's sake."""


def lower_unit(schedule: Schedule, machine: Machine, signature: str) -> UnitProgram:
    """Lower one unit.

    Raises:
        Infeasible: a memory level cannot hold the buffers that are alive together.
        VerifyError: the schedule names storage or operators that cannot be lowered.
    Cost: linear in instructions and touches; `in_time_order` has more than half of it.
    """
    nest = flatten(schedule, machine)
    refs = resolve(nest, machine)
    ahead = prefetches(nest, refs)
    without = frozenset(schedule.without)
    early = () if Heuristic.AHEAD in without else early_fills(nest, refs, ahead, machine)
    planned = plan_buffers(
        nest, refs, hoisted_loops(nest, refs, ahead), machine,
        paced(nest, refs, early, machine, without),
        is_spread=Heuristic.SPREAD not in without,
    )  # fmt: skip
    buffers = planned.buffers
    widths = [staged_width(r) for r in refs]
    timing = timings(nest, refs, ahead, widths, planned.leads)
    hazards = home_hazards(nest, refs)
    num_staged = sum(ref.staged for r in refs for ref in (*r.reads, r.write))
    storages = Storages(nest, refs, buffers, machine, hazards.tensors, num_staged)
    transfers = TransferEmitter(nest, machine, storages, hazards.disjoint)
    emitter = Emitter(transfers)
    batches = [
        batch
        for number, leaf in enumerate(nest.leaves)
        for batch in emitter.leaf(number, leaf, refs[number], timing[number], ahead[number])
    ]
    instructions, places = merge(batches, machine.num_cores, len(machine.engines))
    touches = touches_of(batches, places)
    del emitter, batches, places  # as large as the program, and done with
    tokens = synchronise(touches, storages, instructions["stream"])
    if early and Heuristic.TIME_ORDER not in without:  # layers may overlap
        stream = instructions["stream"]

        def tokens_of(order: Ints) -> Tokens:
            return synchronise(touches, storages, stream, order)

        latest, full = latest_conflicts(touches, storages), None
        if most_waits(touches, storages) <= MANY_WAITS * len(stream):
            full = synchronise(touches, storages, stream, repeats=True)
        moves = Moves(_moving_streams(machine), latest, tokens_of, full)
        instructions, tokens = in_time_order(instructions, tokens, transfers.routes.rates(), moves)

    used_streams, number_of = _compact(
        instructions["stream"], machine.num_cores * len(machine.engines)
    )
    instructions["stream"] = number_of[instructions["stream"]]
    used, number_of = _compact(instructions["resource"], transfers.routes.count)
    instructions["resource"] = number_of[instructions["resource"]]  # -1 stays -1: the last entry

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
    )


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
