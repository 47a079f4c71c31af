"""Executing a region: call after call, instruction after instruction, in an order that is drawn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from math import prod

import numpy as np

from worker.compiler.errors import MemoryFault
from worker.compiler.ir.dtype import DType
from worker.compiler.isa.order import predecessors
from worker.compiler.isa.program import Opcode, UnitProgram, expanded
from worker.compiler.package.archive import damaged
from worker.compiler.package.region_code import EntryRole, RegionCode
from worker.compiler.package.stream.codec import decode_stream
from worker.compiler.package.stream.records import Fill, LeafKind
from worker.interpreter.compute import Computation, box_of, converted, touched
from worker.interpreter.expressions import constant
from worker.interpreter.leaves import Access, Leaf, Leaves
from worker.interpreter.memory import FLOAT_POISON, INTEGER_POISON, Memory, Storage
from worker.interpreter.values import Array, store


@dataclass(frozen=True, slots=True)
class Counts:
    """What one call of a kernel has done."""

    unit: int
    macs: int
    """Multiply-accumulates, or elementary operations, of the points that were computed."""
    port_bytes: tuple[int, ...]
    """Through each port of the unit's resources: what was moved, or whole bursts where it says."""


class Interpreter:
    """One region, from its stream.

    Raises:
        InputError: TW-RUN-001, the bytes are no stream, or constants are not those it was made for.
    """

    def __init__(self, stream: bytes, *, seed: int = 0, is_fused: bool = True) -> None:
        """`seed`: of the order in which streams that may go on do.  `is_fused`: products of floats
        and their sums are rounded once, as engines and CPUs with such an instruction do."""
        self.code = decode_stream(stream)
        self._seed = seed
        self._is_fused = is_fused
        self._leaves = [Leaves(tasks) for tasks in self.code.tasks]
        self._units = [expanded(unit) for unit in self.code.units]
        self._before = [predecessors(unit) for unit in self._units]
        self.counts: list[Counts] = []
        """Of the calls of the last run."""

    def run_on(self, read: Callable[[str], bytes]) -> dict[str, bytes]:
        """`run` on what `read` gives for the name of each input and constant."""
        wanted = (EntryRole.INPUT, EntryRole.CONSTANT)
        return self.run({e.name: read(e.name) for e in self.code.entries if e.role in wanted})

    def run(self, given: Mapping[str, bytes]) -> dict[str, bytes]:
        """Outputs by name, from inputs and constants by name: bytes, row-major, little endian.

        Raises:
            InputError: TW-RUN-001, one is missing, or is not what the stream was made for.
            MemoryFault: an instruction leaves its operands, or does not do what it says.
        """
        code = self.code
        home: list[Array] = []
        for entry in code.entries:
            if entry.alias_of is not None:
                home.append(np.zeros(0, dtype=np.uint8))  # its source's, which may come later
                continue
            value = np.full(
                entry.size_bytes,
                FLOAT_POISON if DType(entry.dtype).is_float else INTEGER_POISON, dtype=np.uint8,
            )  # fmt: skip
            if entry.role in (EntryRole.INPUT, EntryRole.CONSTANT):
                raw = given.get(entry.name)
                if raw is None or len(raw) != entry.size_bytes:
                    raise damaged(f"the stream wants {entry.size_bytes} bytes for {entry.name!r}")
                if entry.sha256 is not None and sha256(raw).hexdigest() != entry.sha256:
                    raise damaged(f"constant {entry.name!r} is not the one the stream is made for")
                value[:] = np.frombuffer(raw, dtype=np.uint8)
            home.append(value)
        for k, entry in enumerate(code.entries):
            if entry.alias_of is not None:
                home[k] = home[entry.alias_of]
        rng = np.random.default_rng(self._seed)
        self.counts = []
        for call in code.calls:
            unit, leaves = self._units[call.unit], self._leaves[call.unit]
            operands = [home[k] for k in call.entries]
            memory = Memory(unit, leaves.expressions, code.levels, code.cores, operands)
            execution = _Execution(code, call.unit, unit, leaves, memory, self._is_fused)
            self.counts.append(execution.run(self._before[call.unit], rng))
        return {
            entry.name: home[k].tobytes()
            for k, entry in enumerate(code.entries)
            if entry.role is EntryRole.OUTPUT
        }


class _Execution:
    """One call of one unit."""

    def __init__(
        self, code: RegionCode, number: int, unit: UnitProgram, leaves: Leaves, memory: Memory,
        is_fused: bool,
    ) -> None:  # fmt: skip
        self.number = number
        self.unit = unit
        self.leaves = leaves
        self.memory = memory
        self.expressions = leaves.expressions
        self.is_fused = is_fused
        self.cores = code.cores
        self.macs = 0
        self.ports = [0] * len(unit.resources)
        self.staged: dict[tuple[int, int, int, int], tuple[int, list[Storage]]] = {}
        """By leaf, core, turn and access: the step, and what was brought for each lane."""
        self.results: dict[tuple[int, int, int], tuple[int, list[dict[int, Storage]]]] = {}
        """By leaf, core and turn: the step, and what its result is computed from."""

    def run(self, before: Sequence[Sequence[int]], rng: np.random.Generator) -> Counts:
        """All instructions, in an order that streams and tokens allow."""
        streams: dict[int, list[int]] = {}
        for number, stream in enumerate(self.unit.instructions["stream"].tolist()):
            streams.setdefault(stream, []).append(number)
        waiting = [list(reversed(own)) for own in streams.values()]
        waiting = [waiting[k] for k in rng.permutation(len(waiting)).tolist()]
        # Either those drawn first go as far as they can, or whoever may goes on by chance.
        is_ranked = bool(rng.integers(2))
        done = bytearray(self.unit.num_rows)
        while waiting:
            ready = [own for own in waiting if all(done[k] for k in before[own[-1]])]
            own = ready[0 if is_ranked else int(rng.integers(len(ready)))]
            number = own.pop()
            self.instruction(number)
            done[number] = 1
            if not own:
                waiting.remove(own)
        passed = zip(self.ports, self.unit.resources, strict=True)
        return Counts(
            self.number, self.macs, tuple(total // port.sharers for total, port in passed)
        )  # fmt: skip

    def instruction(self, number: int) -> None:
        row = self.unit.instructions[number]
        try:
            self._instruction(row)
        except MemoryFault as fault:
            raise MemoryFault(
                f"unit {self.number}, instruction {number}: {fault.message}"
            ) from None

    def _instruction(self, row: np.void) -> None:
        leaf = self.leaves.all[int(row["node"])]
        counters = leaf.counters(int(row["iteration"]))
        core = leaf.core_of(counters)
        if core != self.unit.streams[int(row["stream"])].core:
            raise MemoryFault(f"iteration {row['iteration']} is not of its stream's core")
        opcode = Opcode(int(row["opcode"]))
        if opcode is Opcode.COMPUTE:
            self._compute(row, leaf, counters, core)
            return
        for k in row["resource"].tolist():
            if k >= 0:
                self.ports[k] += int(row[self.unit.resources[k].counted])
        if leaf.kind is LeafKind.COMPUTE:
            self._carry(row, leaf, counters, core)
        elif opcode is Opcode.MULTICAST:
            for other in self._receivers(row, core):
                self._move(row, leaf, leaf.on_core(counters, other))
        else:
            self._move(row, leaf, counters)

    def _receivers(self, row: np.void, core: int) -> list[int]:
        ports = [self.unit.resources[k] for k in row["resource"].tolist() if k >= 0]
        many = [p for p in ports if p.count > 1 and p.direction == "write"]
        if not many:
            raise MemoryFault("a multicast has one receiver")
        per = self.cores // self.memory.instances[many[-1].level]
        return [core + k * many[-1].step * per for k in range(many[-1].count)]

    def _end(self, access: Access, counters: Sequence[int]) -> tuple[int, int]:
        """(buffer or -1, bytes from its base to the slot) of an operand."""
        if access.scope is None:
            return -1, 0
        return access.scope.buffer, self.memory.slot_offset(access.scope, counters)

    def _level(self, access: Access) -> int:
        if access.scope is None:
            return 0
        return self.memory.level_of[self.unit.buffers[access.scope.buffer].level]

    def _expect(self, row: np.void, side: str, end: tuple[int, int]) -> None:
        """The instruction and its leaf say the same."""
        said = int(row[side]), int(row[f"{side}_offset"])
        if said != end:
            raise MemoryFault(f"its {side} is {said}, its leaf has {end}")

    def _move(self, row: np.void, leaf: Leaf, counters: Sequence[int]) -> None:
        read, write = leaf.accesses
        source, target = (self.memory.storage(a, counters) for a in (read, write))
        starts = [self.expressions.integer(span.start, counters) for span in leaf.box]
        box = box_of(leaf, self.expressions, counters)
        for side, access, storage in (("src", read, source), ("dst", write, target)):
            buffer, offset = self._end(access, counters)
            first = storage.offsets([np.array(low) for low, _ in box.ranges])
            at = offset + int(first) * storage.dtype.size_bytes
            self._expect(row, side, (buffer, at))
        slower = min(
            ((self._level(read), source), (self._level(write), target)), key=lambda end: end[0]
        )[1]
        moved = box.num_points * slower.dtype.size_bytes
        if moved != int(row["bytes"]):
            raise MemoryFault(f"it moves {moved} bytes, it says {row['bytes']}")
        wanted = [span.extent for span in leaf.box]
        is_cut = [count for _, count in box.ranges] != wanted
        if write.outside is Fill.VALUE and is_cut:
            places = self._places(target, list(zip(starts, wanted, strict=True)))
            fill = constant(write.fill, target.dtype)
            target.elements[places] = store(fill, target.dtype, target.dtype)
        if box.num_points:
            elements = source.elements[self._places(source, box.ranges)]
            if source.dtype is not target.dtype:
                elements = converted(elements, source.dtype, target.dtype)
            target.elements[self._places(target, box.ranges)] = elements

    def _places(self, storage: Storage, ranges: Sequence[tuple[int, int]]) -> Array:
        """Numbers of the elements of a box; all of them are there."""
        index = []
        for k, (low, count) in enumerate(ranges):
            shape = [1] * len(ranges)
            shape[k] = count
            index.append(np.arange(low, low + count, dtype=np.int64).reshape(shape))
        if not np.all(storage.holds(index)):
            raise MemoryFault("a box leaves its storage")
        return storage.offsets(index)

    def _carry(self, row: np.void, leaf: Leaf, counters: list[int], core: int) -> None:
        """A transfer of what the engine of a compute cannot address."""
        number = int(row["operand"])
        if not 0 <= number < len(leaf.accesses) or not leaf.accesses[number].is_staged:
            raise MemoryFault(f"it carries operand {number} of leaf {leaf.number}")
        access, step = leaf.accesses[number], leaf.step(counters)
        turn = leaf.number, core, step % 2
        lanes = leaf.lanes(counters)
        moved = 0
        copies: list[Storage] = []
        for place, lane in enumerate(lanes):
            storage = self.memory.storage(access, lane)
            box = box_of(leaf, self.expressions, lane)
            ranges = touched(access, box, self.expressions)
            if ranges is None:
                elems = box.num_points
                ends = zip(storage.starts, storage.extents, strict=True)
                ranges = [(start, start + extent - 1) for start, extent in ends]
                first = 0
            else:
                elems = prod(max(high - low + 1, 0) for low, high in ranges)
                elems = min(elems, box.num_points)
                corner = [
                    np.array(min(low, extent - 1))
                    for (low, _), extent in zip(ranges, access.shape, strict=True)
                ]
                first = int(storage.offsets(corner))
            moved += elems * storage.dtype.size_bytes
            if place == 0:
                buffer, offset = self._end(access, lane)
                near, far = ("src", "dst") if number == len(leaf.reads) else ("dst", "src")
                self._expect(row, near, (-1, 0))
                self._expect(row, far, (buffer, offset + first * storage.dtype.size_bytes))
            if number < len(leaf.reads):
                copies.append(self._copied(storage, ranges))
        if moved != int(row["bytes"]):
            raise MemoryFault(f"it carries {moved} bytes, it says {row['bytes']}")
        if number < len(leaf.reads):
            self.staged[*turn, number] = step, copies
            return
        made_in, parts = self.results.get(turn, (-1, []))
        if made_in != step:
            raise MemoryFault("it carries a result that is not there")
        for lane, storages in zip(lanes, parts, strict=True):
            storages[number] = self.memory.storage(access, lane)
            self._points(leaf, lane, storages)

    @staticmethod
    def _copied(storage: Storage, ranges: Sequence[tuple[int, int]]) -> Storage:
        """Elements from the first to the last that are touched, as they are now."""
        starts = [max(low, s) for (low, _), s in zip(ranges, storage.starts, strict=True)]
        ends = [
            min(high + 1, s + e)
            for (_, high), s, e in zip(ranges, storage.starts, storage.extents, strict=True)
        ]
        extents = tuple(max(end - start, 0) for start, end in zip(starts, ends, strict=True))
        if not prod(extents):
            return Storage(storage.elements[:0].copy(), storage.dtype, tuple(starts), extents)
        index = [
            np.arange(start, start + extent, dtype=np.int64).reshape(
                [extent if d == k else 1 for d in range(len(extents))]
            )
            for k, (start, extent) in enumerate(zip(starts, extents, strict=True))
        ]
        elements = np.asarray(storage.elements[storage.offsets(index)]).reshape(-1).copy()
        return Storage(elements, storage.dtype, tuple(starts), extents)

    def _compute(self, row: np.void, leaf: Leaf, counters: list[int], core: int) -> None:
        if leaf.kind is not LeafKind.COMPUTE:
            raise MemoryFault(f"leaf {leaf.number} is no compute")
        step = leaf.step(counters)
        turn = leaf.number, core, step % 2
        direct = [a for a in leaf.reads if not a.is_staged and a.scope is not None]
        nowhere = -1, 0
        self._expect(row, "src", self._end(direct[0], counters) if direct else nowhere)
        into = nowhere if leaf.write.is_staged else self._end(leaf.write, counters)
        self._expect(row, "dst", into)
        held: list[dict[int, Storage]] = []
        points = 0
        for place, lane in enumerate(leaf.lanes(counters)):
            storages: dict[int, Storage] = {}
            for number, access in enumerate(leaf.accesses):
                is_write = number == len(leaf.reads)
                if access.is_staged:
                    if is_write:
                        continue
                    brought_in, copies = self.staged.get((*turn, number), (-1, []))
                    if brought_in != step:
                        raise MemoryFault(f"operand {number} has not been brought")
                    storages[number] = copies[place]
                else:
                    storages[number] = self.memory.storage(access, lane)
            points += box_of(leaf, self.expressions, lane).num_points
            if leaf.write.is_staged:
                held.append({k: s.copy() for k, s in storages.items()})
            else:
                self._points(leaf, lane, storages)
        if leaf.write.is_staged:
            self.results[turn] = step, held
        if points * leaf.work != int(row["macs"]):
            raise MemoryFault(f"it computes {points * leaf.work}, it says {row['macs']}")
        self.macs += points * leaf.work

    def _points(self, leaf: Leaf, lane: Sequence[int], storages: Mapping[int, Storage]) -> None:
        box = box_of(leaf, self.expressions, lane)
        Computation(leaf, self.expressions, lane, storages, self.is_fused).run(box)
