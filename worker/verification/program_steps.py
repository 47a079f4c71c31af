"""What each instruction of a program does: which iteration of which leaf, and where it stands.

Slots and entries are those of the audit's tables; the statements are those of the C kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import numpy.typing as npt

from worker.compiler.audit.expected import Batch, Expected
from worker.compiler.audit.match import matched
from worker.compiler.audit.parts import Part
from worker.compiler.audit.storage import Stores, entry_of, spot_of
from worker.compiler.audit.wanted import FIELDS
from worker.compiler.errors import VerifyError
from worker.compiler.isa.program import Opcode, UnitProgram
from worker.compiler.machine.machine import Machine
from worker.compiler.schedule.grid import Ints, core_ids
from worker.compiler.schedule.nodes import Move, Schedule
from worker.compiler.schedule.walk import (
    Leaf,
    Scope,
    compute_ends,
    move_ends,
    walk,
)

_PART = 1 << 20
"""Iterations of a leaf that are listed at a time."""


ITSELF_MOVED, ITSELF_COMPUTED, RESULT = -1, -2, -3
"""What an instruction of a leaf is: the move, the compute, the transfer of its staged result."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where one operand of a leaf is: in its k-th scope, or in the program's k-th operand."""

    is_scope: bool
    number: int


@dataclass(frozen=True, slots=True)
class LeafSteps:
    """Iterations of one leaf."""

    leaf: Leaf
    counters: list[list[int]]
    """[iterations][loops around it]"""
    instances: list[list[int]]
    """[iterations][scopes around it]"""
    offsets: list[list[int]]
    """[iterations][scopes around it] Bytes from the beginning of the level's instance."""
    entries: list[list[int]]
    """[iterations][scopes around it]"""
    staging: list[int]
    """[iterations] Which of the staging slots of its leaf it uses: two for each core, in turn."""
    reads: tuple[Place, ...]
    staged: tuple[Place, ...]
    """Of a compute: what transfers bring beside its buffers, in the order of these."""
    write: Place
    is_write_staged: bool


@dataclass(frozen=True, slots=True)
class Step:
    """What one instruction does."""

    leaf: int
    iteration: int
    turn: int
    """Which of a compute's staged operands it brings, or one of the constants above."""
    source_shift: int
    """Bytes between the address that it has and the one that the schedule asks for."""
    target_shift: int


def leaf_steps(
    schedule: Schedule, unit: UnitProgram, cores: Ints, machine: Machine
) -> tuple[list[LeafSteps], list[Step]]:
    """(leaves, what each instruction does), of a program without loops; `cores`: that each serves.

    Instructions find their iterations as in the audit; one whose address is another takes an
    iteration that is left, one that is there twice repeats its own.

    Raises:
        VerifyError: an instruction is none of the schedule's.
    Cost: linear in iterations, times the scopes around each.
    """
    flat = walk(schedule)
    stores = Stores(unit.buffers, machine)
    expected = Expected(schedule, flat, stores, machine, is_precise=False)
    operands = {operand.tensor: k for k, operand in enumerate(unit.operands)}
    leaves: list[LeafSteps] = []
    steps: list[Step | None] = [None] * unit.num_rows
    nodes = unit.instructions["node"]
    for leaf in flat.leaves:
        places = _places(schedule, leaf, expected, operands)
        rows: tuple[list[list[int]], ...] = ([], [], [], [])
        staging: list[int] = []
        offered: list[Ints] = [np.zeros((len(FIELDS) + 2, 0), dtype=np.int64)]
        for part in expected.parts(leaf, _PART):
            offered.append(_offered(expected, part, len(staging)))
            for found, values in zip(rows, _iterations(part, unit, stores), strict=True):
                found += values.tolist()
            core = core_ids(leaf.core_base, leaf.frames, part.coords)
            slot = _flat(core, part.shape) * 2 + _flat(part.step, part.shape) % 2
            staging += slot.tolist()
        counters, instances, offsets, entries = rows
        leaves.append(LeafSteps(leaf, counters, instances, offsets, entries, staging, *places))
        if leaf.path not in unit.nodes:
            continue
        mine = np.flatnonzero(nodes == unit.nodes.index(leaf.path))
        table = unit.instructions.take(mine)
        columns = [cores[mine] if name == "core" else table[name] for name in FIELDS]
        asked = np.stack([column.astype(np.int64) for column in columns])
        taken = _match(leaf.path, asked, np.concatenate(offered, axis=1), mine)
        for at, fields in zip(mine.tolist(), taken, strict=True):
            steps[at] = Step(leaf.number, *fields)
    for number, step in enumerate(steps):
        if step is None:
            raise VerifyError("lower", f"instruction {number}", "carried-out", "is of no leaf")
    return leaves, [step for step in steps if step is not None]


def _offered(expected: Expected, part: Part, first: int) -> Ints:
    """[FIELDS and turn and iteration, n] What the iterations of a part ask for, as they run."""
    batches = list(expected.batches(part))
    found = [
        _fields(batch, turn, first) for batch, turn in zip(batches, _turns(batches), strict=True)
    ]
    listed = np.concatenate(found, axis=1)
    return listed[:, np.argsort((listed[-1] - first) // part.num_cores, kind="stable")]


def _match(path: str, asked: Ints, offered: Ints, numbers: Ints) -> list[tuple[int, int, int, int]]:
    """(iteration, turn, shifts) of each instruction."""
    fields = offered[: len(FIELDS)]
    which, left = matched(asked, fields)
    unused = dict.fromkeys(np.setdiff1d(np.arange(fields.shape[1]), which).tolist())
    moved = [FIELDS.index("src_offset"), FIELDS.index("dst_offset")]
    kept = [k for k in range(len(FIELDS)) if k not in moved]
    for at in left.tolist():
        like = np.flatnonzero((fields[kept] == asked[kept, at][:, None]).all(axis=0)).tolist()
        like = [k for k in like if _may_move(int(offered[-2, k]), fields[:, k] != asked[:, at])]
        same = [k for k in like if (fields[:, k] == asked[:, at]).all()]
        free = [k for k in like if k in unused]
        if not (free or same):
            raise VerifyError(
                "lower", f"instruction {int(numbers[at])}", "carried-out",
                f"is no iteration of {path}",
            )  # fmt: skip
        which[at] = (same or free)[0]
        unused.pop(int(which[at]), None)
    shifts = asked[moved] - fields[moved][:, which]
    return [
        (int(offered[-1, k]), int(offered[-2, k]), int(a), int(b))
        for k, a, b in zip(which, *shifts, strict=True)
    ]


def _may_move(turn: int, differs: npt.NDArray[np.bool_]) -> bool:
    """Whether an instruction may have other addresses there than its iteration, and still be run:
    a transfer, at an end that is a buffer or an operand."""
    source, target = differs[FIELDS.index("src_offset")], differs[FIELDS.index("dst_offset")]
    if turn == ITSELF_COMPUTED:
        return not (source or target)
    return not (target if turn >= 0 else turn == RESULT and source)


def _turns(batches: Sequence[Batch]) -> list[int]:
    """Of each batch, `Step.turn`."""
    middle = [k for k, batch in enumerate(batches) if batch.opcode is Opcode.COMPUTE]
    if not middle:
        return [ITSELF_MOVED]
    return [*range(middle[0]), ITSELF_COMPUTED, *(RESULT for _ in batches[middle[0] + 1 :])]


def _fields(batch: Batch, turn: int, first: int) -> Ints:
    """[FIELDS and turn and iteration, n] of the iterations that a batch keeps."""
    kept = np.flatnonzero(_flat(batch.keep, batch.shape))
    values = (
        batch.core, np.array(int(batch.opcode)), np.array(batch.src), np.array(batch.dst),
        batch.src_offset, batch.dst_offset, batch.num_bytes,
    )  # fmt: skip
    found = [_flat(value, batch.shape)[kept] for value in values]
    return np.stack([*found, np.full(len(kept), turn), kept + first]).astype(np.int64)


def _flat(values: Ints, shape: tuple[int, ...]) -> Ints:
    """One value per iteration, of the first lane."""
    while np.ndim(values) > len(shape):
        values = values[..., 0]
    return np.broadcast_to(values, shape).reshape(prod(shape))


def _iterations(part: Part, unit: UnitProgram, stores: Stores) -> tuple[Ints, Ints, Ints, Ints]:
    """Counters, instances, offsets and entries; arrays [iterations, ...]."""
    leaf, coords, shape = part.leaf, part.coords, part.shape
    counters = [_flat(coords[frame.var], shape) for frame in leaf.frames]
    instances, offsets, entries = [], [], []
    for scope in leaf.scopes:
        buffer = unit.buffers[stores.number_of[scope.path]]
        spot = spot_of(scope, buffer, coords, stores.machine)
        instances.append(_flat(spot.instance, shape))
        offsets.append(buffer.address + _flat(spot.local, shape) * buffer.slot_bytes)
        entries.append(_flat(entry_of(scope, coords), shape))
    count = prod(shape)
    counted, instance, offset, entry = (
        np.stack(each, axis=1) if each else np.zeros((count, 0), dtype=np.int64)
        for each in (counters, instances, offsets, entries)
    )
    return counted, instance, offset, entry


def _places(
    schedule: Schedule, leaf: Leaf, expected: Expected, operands: dict[str, int]
) -> tuple[tuple[Place, ...], tuple[Place, ...], Place, bool]:
    """What a leaf reads where it stands, what is staged, what it writes and if that is staged."""

    def place(tensor: str, scope: Scope | None) -> Place:
        if scope is None:
            return Place(False, operands[tensor])
        return Place(True, leaf.scopes.index(scope))

    if isinstance(leaf.node, Move):
        ends = move_ends(leaf, leaf.node, expected.machine.home.name)
        assert not isinstance(ends, str), ends  # schedules are verified
        tensor = leaf.node.tensor
        return (place(tensor, ends.reads[0]),), (), place(tensor, ends.write), False
    op = schedule.graph.op(leaf.node.op)
    ends = compute_ends(leaf, leaf.node, schedule.graph, expected.machine)
    reads: list[Place] = []
    staged: list[Place] = []
    for access, scope in zip(op.reads, ends.reads, strict=True):
        beside = expected.is_staged(scope, leaf, leaf.node)
        (staged if beside else reads).append(place(access.tensor, scope))
    written = place(op.write.tensor, ends.write)
    return tuple(reads), tuple(staged), written, expected.is_staged(ends.write, leaf, leaf.node)
