"""The tables of one unit as values: leaves, their loops, operands and places."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

from worker.compiler.errors import MemoryFault
from worker.compiler.ir.dtype import DType
from worker.compiler.isa.sums import OrderKind
from worker.compiler.package.stream.records import ELEMENT_TYPES, NONE, Fill, FrameKind, LeafKind
from worker.compiler.package.unit_tasks import UnitTasks
from worker.interpreter.expressions import Expressions


@dataclass(frozen=True, slots=True)
class Frame:
    trip: int
    weight: int
    kind: FrameKind
    stride: int


@dataclass(frozen=True, slots=True)
class Span:
    start: int
    axis: int
    extent: int
    limit: int


@dataclass(frozen=True, slots=True)
class Scope:
    """A place: what stands in a buffer, entry after entry."""

    number: int
    buffer: int
    is_identity: bool
    value: int
    entry: int
    slot: int
    core: int
    starts: tuple[int, ...]
    extents: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Access:
    scope: Scope | None
    operand: int
    type: DType
    is_staged: bool
    outside: Fill
    fill: int
    index: tuple[int, ...]
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Leaf:
    number: int
    kind: LeafKind
    reduce: int
    """0: none, else 1 + its number."""
    order: OrderKind
    frames: tuple[Frame, ...]
    box: tuple[Span, ...]
    accesses: tuple[Access, ...]
    body: int
    width: int
    groups: tuple[tuple[int, ...], ...]
    run: int
    around: int
    work: int
    core: int

    @property
    def reads(self) -> tuple[Access, ...]:
        return self.accesses[:-1]

    @property
    def write(self) -> Access:
        return self.accesses[-1]

    def counters(self, iteration: int) -> list[int]:
        """Of all frames; 0 inside the instruction.

        Raises:
            MemoryFault: there is no such iteration.
        """
        found = [0] * len(self.frames)
        outer = [k for k, f in enumerate(self.frames) if f.kind is not FrameKind.INSIDE]
        for k in sorted(outer, key=lambda k: (-self.frames[k].weight, self.frames[k].trip != 1)):
            frame = self.frames[k]
            if frame.trip > 1:
                found[k], iteration = divmod(iteration, frame.weight)
                if found[k] >= frame.trip:
                    raise MemoryFault(f"leaf {self.number} has no such iteration")
        if iteration:
            raise MemoryFault(f"leaf {self.number} has no such iteration")
        return found

    def core_of(self, counters: list[int]) -> int:
        return self.core + sum(
            f.stride * c
            for f, c in zip(self.frames, counters, strict=True)
            if f.kind is FrameKind.CORES
        )

    def on_core(self, counters: list[int], core: int) -> list[int]:
        """The counters of another core at the same moment.

        Raises:
            MemoryFault: it carries out nothing then.
        """
        cores = [k for k, f in enumerate(self.frames) if f.kind is FrameKind.CORES]
        for values in product(*(range(self.frames[k].trip) for k in cores)):
            other = counters.copy()
            for k, value in zip(cores, values, strict=True):
                other[k] = value
            if self.core_of(other) == core:
                return other
        raise MemoryFault(f"leaf {self.number} does not run on core {core}")

    def step(self, counters: list[int]) -> int:
        """Number of the iteration within its core."""
        found = 0
        for frame, counter in zip(self.frames, counters, strict=True):
            if frame.kind is FrameKind.TIME:
                found = found * frame.trip + counter
        return found

    def lanes(self, counters: list[int]) -> list[list[int]]:
        """The counters of everything inside the instruction, in order."""
        inside = [k for k, f in enumerate(self.frames) if f.kind is FrameKind.INSIDE]
        found = []
        for values in product(*(range(self.frames[k].trip) for k in inside)):
            lane = counters.copy()
            for k, value in zip(inside, values, strict=True):
                lane[k] = value
            found.append(lane)
        return found


class Leaves:
    """All leaves of a unit."""

    def __init__(self, tasks: UnitTasks) -> None:
        self._tables = tasks.tables
        self.expressions = Expressions(tasks)
        self.scopes = [self._scope(k, row) for k, row in enumerate(tasks.tables["scopes"])]
        self.all = [self._leaf(k, row) for k, row in enumerate(tasks.tables["leaves"])]

    def _rows(self, table: str, row: Any, name: str) -> Any:
        first, count = int(row[f"{name}_first"]), int(row[f"{name}_count"])
        return self._tables[table][first : first + count]

    def _scope(self, number: int, row: Any) -> Scope:
        dims = self._rows("dims", row, "dims")
        return Scope(
            number, int(row["buffer"]), bool(row["identity"]), int(row["value"]),
            int(row["entry"]), int(row["slot"]), int(row["core"]),
            tuple(dims["index"].tolist()), tuple(dims["extent"].tolist()),
        )  # fmt: skip

    def _access(self, row: Any) -> Access:
        dims = self._rows("dims", row, "dims")
        scope = int(row["scope"])
        return Access(
            None if scope == NONE else self.scopes[scope], int(row["operand"]),
            ELEMENT_TYPES[int(row["type"])], bool(row["staged"]), Fill(int(row["outside"])),
            int(row["fill"]), tuple(dims["index"].tolist()), tuple(dims["extent"].tolist()),
        )  # fmt: skip

    def _leaf(self, number: int, row: Any) -> Leaf:
        frames = tuple(
            Frame(f["trip"], f["weight"], FrameKind(f["kind"]), f["stride"])
            for f in _dicts(self._rows("frames", row, "frames"))
        )
        box = tuple(
            Span(s["start"], s["axis"], s["extent"], s["limit"])
            for s in _dicts(self._rows("spans", row, "box"))
        )
        groups: dict[int, list[int]] = {}
        for axis, group in self._rows("groups", row, "groups").tolist():
            groups.setdefault(group, []).append(axis)
        return Leaf(
            number, LeafKind(int(row["kind"])), int(row["reduce"]), OrderKind(int(row["order"])),
            frames, box, tuple(self._access(a) for a in self._rows("accesses", row, "accesses")),
            int(row["body"]), int(row["width"]), tuple(tuple(g) for g in groups.values()),
            int(row["run"]), int(row["around"]), int(row["work"]), int(row["core"]),
        )  # fmt: skip


def _dicts(rows: Any) -> list[dict[str, Any]]:
    names = rows.dtype.names
    return [dict(zip(names, row, strict=True)) for row in rows.tolist()]


def strides(extents: tuple[int, ...]) -> tuple[int, ...]:
    """Row-major, in elements."""
    return tuple(prod(extents[d + 1 :]) for d in range(len(extents)))
