"""A plain walk of a schedule tree: the meaning of lowering, one iteration at a time.

Shares no code with worker/compiler/lower: storage, slots, cores and clipping are decided again
here, from the docstring of schedule/nodes.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product
from math import prod

from worker.compiler.ir.dtype import DType
from worker.compiler.isa.program import Opcode, UnitProgram
from worker.compiler.machine.machine import Machine
from worker.compiler.schedule.nodes import (
    Box,
    Compute,
    Init,
    Loop,
    LoopKind,
    Move,
    Node,
    Pipe,
    Place,
    Schedule,
    Seq,
)

Byte = tuple[str, int, int]
"""(memory or tensor, instance, byte)"""
Entry = tuple[str, tuple[tuple[str, int], ...]]
"""Path of a Place, and the iteration of the loops around it."""


@dataclass
class Event:
    """One instruction, with every byte it reads and writes."""

    path: str
    core: int
    opcode: Opcode
    num_bytes: int
    src_address: int
    dst_address: int
    reads: frozenset[Byte] = frozenset()
    writes: frozenset[Byte] = frozenset()
    takes: frozenset[Entry] = frozenset()
    fills: Entry | None = None
    """Of a Move into a Place."""


@dataclass
class Live:
    """A Place or Queue that is open."""

    tensor: str
    memory: str
    start: tuple[int, ...]
    extents: tuple[int, ...]
    size: int
    instance: int
    base: int
    """Arena address of the current slot."""
    producer: bool | None = None
    """Queues: whether the walk is inside the producing stage."""
    entry: Entry | None = None
    """Places only."""
    fresh: set[int] = field(default_factory=set)
    """Bytes that still hold the identity nobody has written."""

    def address(self, point: tuple[int, ...]) -> int:
        flat = 0
        for x, s, e in zip(point, self.start, self.extents, strict=True):
            flat = flat * e + (x - s)
        return self.base + flat * self.size

    def bytes_of(self, point: tuple[int, ...]) -> list[int]:
        at = self.address(point)
        return list(range(at, at + self.size))


class Walk:
    """Events of a schedule in sequential order."""

    def __init__(self, schedule: Schedule, machine: Machine, program: UnitProgram) -> None:
        self.graph = schedule.graph
        self.machine = machine
        self.buffers = {b.path: b for b in program.buffers}
        self.entries: Counter[tuple[str, int]] = Counter()
        self.events: list[Event] = []
        self.computed: set[str] = set()
        """Places that computes write."""
        self.visit(schedule.root, "0", {}, 0, [])
        while self.prune():
            pass

    def prune(self) -> bool:
        """Drop moves into what nothing takes; whether there were any."""
        taken = {entry for event in self.events for entry in event.takes}
        kept = [
            e for e in self.events
            if e.fills is None or e.fills in taken or e.fills[0] in self.computed
        ]  # fmt: skip
        self.events, before = kept, len(self.events)
        return len(kept) < before

    def visit(
        self, node: Node, path: str, env: dict[str, int], core: int, live: list[Live]
    ) -> None:
        match node:
            case Seq(parts):
                for i, part in enumerate(parts):
                    self.visit(part, f"{path}.{i}", env, core, live)
            case Loop(var, trip, kind, body, stride):
                assert kind is not LoopKind.LANES
                for value in range(trip):
                    there = core + value * stride if kind is LoopKind.CORES else core
                    self.visit(body, f"{path}.0", {**env, var: value}, there, live)
            case Place():
                slot = self.entries[path, core] % node.copies
                self.entries[path, core] += 1
                opened = self.open(path, node.tensor, node.memory, node.tile, node.dtype, slot,
                                   env, core)  # fmt: skip
                opened.entry = path, tuple(env.items())
                if node.init is Init.IDENTITY:
                    opened.fresh = set(
                        range(opened.base, opened.base + prod(opened.extents) * opened.size)
                    )
                self.visit(node.body, f"{path}.0", env, core, [*live, opened])
            case Pipe():
                self.visit_pipe(node, path, env, core, live)
            case Move():
                self.move(node, path, env, core, live)
            case Compute():
                self.compute(node, path, env, core, live)

    def visit_pipe(
        self, pipe: Pipe, path: str, env: dict[str, int], core: int, live: list[Live]
    ) -> None:
        for value in range(pipe.trip):
            inner = {**env, pipe.var: value}
            for i, stage in enumerate(pipe.stages):
                rings: list[Live] = []
                for k, queue in enumerate(pipe.queues):
                    owner = core + pipe.stages[queue.producer].core_offset
                    ring = self.open(f"{path}.q{k}", queue.tensor, queue.memory, queue.tile,
                                     queue.dtype, value % queue.depth, inner, owner)  # fmt: skip
                    ring.producer = i == queue.producer
                    rings.append(ring)
                there = core + stage.core_offset
                self.visit(stage.body, f"{path}.{i}", inner, there, [*live, *rings])

    def open(
        self, path: str, tensor: str, memory: str, tile: Box, dtype: DType | None, slot: int,
        env: dict[str, int], core: int,
    ) -> Live:  # fmt: skip
        buffer = self.buffers[path]
        count = self.machine.level(memory).instances
        block = buffer.block_of(core, self.machine.num_cores // count)
        size = (dtype or self.graph.tensors[tensor].dtype).size_bytes
        base = buffer.address + block * buffer.block_bytes + slot * buffer.slot_bytes
        return Live(
            tensor, memory, tuple(s.start.evaluate(env) for s in tile),
            tuple(s.extent for s in tile), size, core * count // self.machine.num_cores, base,
        )  # fmt: skip

    def find(self, live: list[Live], tensor: str, *memories: str) -> Live | None:
        """Innermost open storage; None means home."""
        return next(
            (x for x in reversed(live) if x.tensor == tensor and x.memory in memories), None
        )

    def ends(self, move: Move, live: list[Live]) -> tuple[Live | None, Live | None]:
        if move.src != move.dst:
            return self.find(live, move.tensor, move.src), self.find(live, move.tensor, move.dst)
        outer, inner = [x for x in live if (x.tensor, x.memory) == (move.tensor, move.src)][-2:]
        return (inner, outer) if outer.producer else (outer, inner)

    def span(self, storage: Live | None, tensor: str, point: tuple[int, ...]) -> list[Byte]:
        if storage is not None:
            return [(storage.memory, storage.instance, b) for b in storage.bytes_of(point)]
        at = self.home_offset(tensor, point)
        size = self.graph.tensors[tensor].dtype.size_bytes
        return [(f"home:{tensor}", 0, b) for b in range(at, at + size)]

    def home_offset(self, tensor: str, point: tuple[int, ...]) -> int:
        described = self.graph.tensors[tensor]
        flat = 0
        for x, e in zip(point, described.shape, strict=True):
            flat = flat * e + x
        return flat * described.dtype.size_bytes

    def move(self, move: Move, path: str, env: dict[str, int], core: int, live: list[Live]) -> None:
        src, dst = self.ends(move, live)
        shape = self.graph.tensors[move.tensor].shape
        full = [(s.start.evaluate(env), s.start.evaluate(env) + s.extent) for s in move.box]
        inside = [(max(a, 0), min(b, n)) for (a, b), n in zip(full, shape, strict=True)]
        points = list(product(*(range(a, b) for a, b in inside)))
        if not points and move.fill is None:
            return
        reads = [b for p in points for b in self.span(src, move.tensor, p)]
        writes = [b for p in points for b in self.span(dst, move.tensor, p)]
        if move.fill is not None and dst is not None:
            everywhere = product(*(range(a, b) for a, b in full))
            writes = [b for p in everywhere for b in self.span(dst, move.tensor, p)]
        home = self.graph.tensors[move.tensor].dtype.size_bytes
        i, j = self.machine.level_index(move.src), self.machine.level_index(move.dst)
        size = (dst.size if dst else home) if j < i else (src.size if src else home)
        if dst is not None and dst.producer is not None:
            opcode = Opcode.PUSH
        elif src is not None and src.producer is not None:
            opcode = Opcode.POP
        else:
            opcode = Opcode.LOAD if i < j else Opcode.STORE if i > j else Opcode.COPY
        first = tuple(a for a, _ in inside)
        self.add(
            path, core, opcode, len(points) * size,
            self.address(src, move.tensor, first), self.address(dst, move.tensor, first),
            reads, writes, live, (src,), dst,
        )  # fmt: skip

    def address(self, storage: Live | None, tensor: str, point: tuple[int, ...]) -> int:
        return self.home_offset(tensor, point) if storage is None else storage.address(point)

    def compute(
        self, compute: Compute, path: str, env: dict[str, int], core: int, live: list[Live]
    ) -> None:
        op = self.graph.op(compute.op)
        engine = self.machine.engine(compute.engine)
        own = engine.memory, engine.accumulators
        ranges = []
        for span, axis in zip(compute.box, op.domain, strict=True):
            start = span.start.evaluate(env)
            ranges.append(range(max(start, 0), min(start + span.extent, axis.extent)))
        touched: dict[int, dict[tuple[int, ...], None]] = {k: {} for k in range(len(op.reads) + 1)}
        for point in product(*ranges):
            values = dict(zip((a.name for a in op.domain), point, strict=True))
            for slot, access in enumerate((*op.reads, op.write)):
                where = tuple(e.evaluate(values) for e in access.index)
                shape = self.graph.tensors[access.tensor].shape
                if all(0 <= x < n for x, n in zip(where, shape, strict=True)):
                    touched[slot][where] = None
        if not prod(len(r) for r in ranges):
            return
        reads: list[Byte] = []
        writes: list[Byte] = []
        after: list[tuple[object, ...]] = []
        sources = [self.find(live, access.tensor, *own) for access in op.reads]
        target = self.find(live, op.write.tensor, *own)
        if target is not None and target.entry is not None:
            self.computed.add(target.entry[0])
        for slot, access in enumerate((*op.reads, op.write)):
            storage = self.find(live, access.tensor, *own)
            is_write = slot == len(op.reads)
            spans = [b for p in touched[slot] for b in self.span(storage, access.tensor, p)]
            if storage is None:
                # Staging holds two steps: the transfer of one runs beside the compute of another.
                key = (f"{path}#{slot}", core)
                staged = [(f"stage:{path}", core, slot * 2 + self.entries[key] % 2)]
                self.entries[key] += 1
                corner = min(touched[slot])
                transfer = (len(spans), self.home_offset(access.tensor, corner), spans, staged)
                if is_write:
                    after.append(transfer)
                    writes += staged
                else:
                    num_bytes, offset, _, _ = transfer
                    self.add(path, core, Opcode.LOAD, num_bytes, offset, 0, spans, staged, live)
                    reads += staged
            elif is_write:
                writes += spans
            else:
                reads += spans
        self.add(path, core, Opcode.COMPUTE, 0, 0, 0, reads, writes, live, sources)
        for num_bytes, offset, spans, staged in after:
            self.add(path, core, Opcode.STORE, num_bytes, 0, offset, staged, spans, live)

    def add(
        self, path: str, core: int, opcode: Opcode, num_bytes: int, src: int, dst: int,
        reads: list[Byte], writes: list[Byte], live: list[Live],
        sources: Sequence[Live | None] = (), filled: Live | None = None,
    ) -> None:  # fmt: skip
        # Whoever touches identity bytes first has, in effect, written them.
        for storage in live:
            mine = {
                b for b in (*reads, *writes) if b[:2] == (storage.memory, storage.instance)
                and b[2] in storage.fresh
            }  # fmt: skip
            storage.fresh -= {b[2] for b in mine}
            writes = [*writes, *mine]
        self.events.append(
            Event(
                path,
                core,
                opcode,
                num_bytes,
                src,
                dst,
                frozenset(reads),
                frozenset(writes),
                frozenset(s.entry for s in sources if s is not None and s.entry is not None),
                None if filled is None else filled.entry,
            )
        )


def listed(program: UnitProgram) -> list[tuple[str, int, Opcode, int, int, int]]:
    """(path, core, opcode, bytes, source address, destination address) in program order; a
    multicast as a load of each receiver, of which every core has its own."""
    rows = []
    for row, receivers in zip(program.instructions, _receivers(program), strict=True):
        opcode = Opcode(int(row["opcode"]))
        if opcode is Opcode.MULTICAST:
            opcode = Opcode.LOAD
        addresses = []
        for side in ("src", "dst"):
            buffer = int(row[side])
            base = program.buffers[buffer].address if buffer >= 0 else 0
            addresses.append(base + int(row[f"{side}_offset"]))
        if opcode is Opcode.COMPUTE:
            addresses = [0, 0]
        rows += [
            (program.nodes[int(row["node"])], core, opcode, int(row["bytes"]), *addresses)
            for core in receivers
        ]
    return rows


def _receivers(program: UnitProgram) -> list[list[int]]:
    """Of each instruction, the cores that it works for."""
    found = []
    for row in program.instructions:
        core = program.streams[int(row["stream"])].core
        cores = [core]
        if int(row["opcode"]) == Opcode.MULTICAST:
            port = program.resources[[r for r in row["resource"].tolist() if r >= 0][-1]]
            assert port.instance == core
            cores = list(port.instances)
        found.append(cores)
    return found


def order_of_events(program: UnitProgram, walk: Walk) -> list[int]:
    """For each entry of `listed`, its event.

    Iterations of one leaf in one core keep their order where they use the same bytes.
    """
    waiting: dict[tuple[object, ...], list[int]] = {}
    for number, e in reversed(list(enumerate(walk.events))):
        key = (e.path, e.core, e.opcode, e.num_bytes, e.src_address, e.dst_address)
        waiting.setdefault(key, []).append(number)
    return [waiting[key].pop() for key in listed(program)]


def finish_before(program: UnitProgram) -> list[int]:
    """For each entry of `listed`, the bitset of those that have finished before it may start."""
    before: list[int] = []
    in_stream: dict[int, int] = {}
    signalled: dict[int, int] = {}
    for i, receivers in enumerate(_receivers(program)):
        own = ((1 << len(receivers)) - 1) << len(before)
        stream = int(program.instructions["stream"][i])
        done = in_stream.get(stream, 0)
        for token in program.wait_token[program.wait_ptr[i] : program.wait_ptr[i + 1]].tolist():
            done |= signalled[token]
        before += [done] * len(receivers)
        in_stream[stream] = done | own
        low, high = program.signal_ptr[i], program.signal_ptr[i + 1]
        for token in program.signal_token[low:high].tolist():
            signalled[token] = signalled.get(token, 0) | done | own
    return before
