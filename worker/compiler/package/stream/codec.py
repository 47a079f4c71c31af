"""A region as the tables of its stream, and back.  FORMATS.md has every byte.

Source: BYOC section 3.3, option 3 (a custom representation, with its own serialiser and reader).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from worker.compiler.ir.dtype import DType
from worker.compiler.isa.loops import NO_LOOPS, Loops
from worker.compiler.isa.program import (
    PASSED,
    Buffer,
    Operand,
    OperandRole,
    Resource,
    Stream,
    UnitProgram,
)
from worker.compiler.package.archive import damaged
from worker.compiler.package.emulator import LevelSpec
from worker.compiler.package.region_code import DataEntry, EntryRole, RegionCall, RegionCode
from worker.compiler.package.stream.checks import check_region
from worker.compiler.package.stream.container import Container, pack, unpack
from worker.compiler.package.stream.records import ELEMENT_TYPES, NONE, OF_UNIT, TABLE_OF, TASKS
from worker.compiler.package.unit_tasks import UnitTasks

Rows = npt.NDArray[Any]
_LISTS = {
    "wait_offsets": "wait_ptr", "wait_tokens": "wait_token", "signal_offsets": "signal_ptr",
    "signal_tokens": "signal_token",
}  # fmt: skip
"""Table -> field of a program."""


def encode_stream(code: RegionCode) -> bytes:
    """Bytes of a region's stream.  Same region, same bytes.  Cost: one copy of the programs."""
    writer = _Writer()
    target, function = writer.text(code.target), writer.text(code.function)
    level_of = {level.name: k for k, level in enumerate(code.levels)}
    for level in code.levels:
        writer.add("levels", writer.text(level.name), level.instances, level.capacity_bytes)
    for entry in code.entries:
        alias = NONE if entry.alias_of is None else entry.alias_of
        writer.add(
            "entries", writer.text(entry.name), ELEMENT_TYPES.index(DType(entry.dtype)),
            int(entry.role), 0, *writer.numbers(entry.shape), alias, 0, entry.address,
            entry.size_bytes, np.frombuffer(bytes.fromhex(entry.sha256 or "00" * 32), np.uint8),
        )  # fmt: skip
    for call in code.calls:
        names = [writer.text(node) for node in call.onnx_nodes]
        writer.add(
            "calls", call.unit, writer.text(call.op_type), *writer.numbers(call.entries),
            *writer.numbers(names), call.launch_cycles,
        )  # fmt: skip
    for kernel, unit, tasks in zip(code.kernels, code.units, code.tasks, strict=True):
        writer.unit(kernel, unit, tasks, level_of)
    return pack(code.index, target, function, code.cores, writer.tables())


class _Writer:
    """Rows of the tables, and what they number."""

    def __init__(self) -> None:
        self._rows: dict[str, list[tuple[Any, ...]]] = {name: [] for name in TABLE_OF}
        self._arrays: dict[str, list[Rows]] = {name: [] for name in TABLE_OF}
        self._strings: dict[str, int] = {}
        self._numbers: list[int] = []

    def text(self, value: str) -> int:
        return self._strings.setdefault(value, len(self._strings))

    def numbers(self, values: Iterable[int]) -> tuple[int, int]:
        first = len(self._numbers)
        self._numbers += values
        return first, len(self._numbers) - first

    def add(self, table: str, *row: Any) -> None:
        self._rows[table].append(row)

    def array(self, table: str, rows: Rows) -> None:
        self._arrays[table].append(rows)

    def unit(
        self, kernel: str, unit: UnitProgram, tasks: UnitTasks, level_of: Mapping[str, int]
    ) -> None:
        for o in unit.operands:
            self.add(
                "operands", self.text(o.tensor), int(o.role),
                ELEMENT_TYPES.index(DType(o.dtype)), 0, *self.numbers(o.shape), o.size_bytes,
            )  # fmt: skip
        for b in unit.buffers:
            self.add(
                "buffers", self.text(b.tensor), self.text(b.path), level_of[b.level],
                ELEMENT_TYPES.index(DType(b.dtype)), (0, 0, 0), *self.numbers(b.extents),
                b.address, b.slot_bytes, b.copies, b.blocks, b.block_stride, b.first_core,
            )  # fmt: skip
        for s in unit.streams:
            self.add("streams", s.core, self.text(s.engine))
        for r in unit.resources:
            self.add(
                "resources", self.text(r.level), r.instance, self.text(r.direction),
                int(r.half_duplex), PASSED.index(r.counted), 0, r.bytes_per_cycle, r.sharers,
                r.count, r.step, 0,
            )  # fmt: skip
        for name in TASKS:
            rows = tasks.tables[name]
            if name == "leaves":
                rows = rows.copy()
                rows["path"] = [self.text(path) for path in unit.nodes]
            self.array(name, rows)
        loops = unit.loops
        self.array("instructions", unit.instructions)
        for name, field in _LISTS.items():
            self.array(name, getattr(unit, field))
        self.array("loops", loops.table)
        self.array("strides", loops.stride.reshape(-1))
        self.array("wait_strides", loops.wait_stride.reshape(-1))
        self.array("signal_strides", loops.signal_stride.reshape(-1))
        counts = {
            "operands": len(unit.operands), "buffers": len(unit.buffers),
            "streams": len(unit.streams), "resources": len(unit.resources),
            "instructions": unit.num_rows,
            **{name: len(tasks.tables[name]) for name in TASKS},
        }  # fmt: skip
        row = {
            "kernel": self.text(kernel), "signature": self.text(unit.signature), **counts,
            "waits": len(unit.wait_token), "signals": len(unit.signal_token),
            "loops": len(loops.table), "depth": loops.depth, "tokens": unit.num_tokens,
        }  # fmt: skip
        self.add("units", *(row[name] for name in TABLE_OF["units"].dtype.names or ()))

    def tables(self) -> dict[str, Rows]:
        packed = [name.encode() for name in self._strings]
        self._arrays["text"].append(np.frombuffer(b"".join(packed), dtype=np.uint8))
        self._arrays["strings"].append(np.array([len(raw) for raw in packed], dtype="<u4"))
        self._arrays["numbers"].append(np.array(self._numbers, dtype="<i8"))
        found: dict[str, Rows] = {}
        for name, table in TABLE_OF.items():
            names = table.dtype.names or ()
            kind = table.dtype if len(names) > 1 else table.dtype[0]
            parts = [part.astype(kind, copy=False) for part in self._arrays[name]]
            if self._rows[name]:
                parts.append(np.array(self._rows[name], dtype=kind))
            found[name] = np.concatenate(parts) if parts else np.zeros(0, dtype=kind)
        return found


def decode_stream(data: bytes) -> RegionCode:
    """Read a region's stream, checking everything a reader relies on.

    Raises:
        InputError: TW-RUN-001 when the bytes are not a whole, undamaged stream of this version, or
            an id points outside its table.
    Cost: linear; memory grows with the bytes given, never with what they claim.
    """
    reader = _Reader(unpack(data))
    code = reader.region()
    check_region(code)
    return code


class _Reader:
    """Values of a container's rows."""

    def __init__(self, container: Container) -> None:
        self._container = container
        self._tables = container.tables
        self._numbers = container.tables["numbers"].tolist()
        self._at = dict.fromkeys(TABLE_OF, 0)

    def text(self, number: Any) -> str:
        return self._container.text(int(number))

    def numbers(self, row: Any, name: str) -> tuple[int, ...]:
        first, count = int(row[f"{name}_first"]), int(row[f"{name}_count"])
        if first + count > len(self._numbers):
            raise damaged(
                f"a list of the stream ends at {first + count} of {len(self._numbers)} numbers"
            )
        return tuple(self._numbers[first : first + count])

    def region(self) -> RegionCode:
        c, tables = self._container, self._tables
        levels = tuple(
            LevelSpec(self.text(r["name"]), int(r["capacity_bytes"]), int(r["instances"]))
            for r in tables["levels"]
        )
        entries = tuple(self._entry(row) for row in tables["entries"])
        calls = tuple(
            RegionCall(
                int(r["unit"]), self.numbers(r, "entries"), int(r["launch_cycles"]),
                self.text(r["op_type"]), tuple(self.text(k) for k in self.numbers(r, "nodes")),
            )
            for r in tables["calls"]
        )  # fmt: skip
        units, tasks, kernels = [], [], []
        for row in tables["units"]:
            kernels.append(self.text(row["kernel"]))
            unit, does = self._unit(row, levels)
            units.append(unit)
            tasks.append(does)
        for name in (*OF_UNIT, *_LISTS, "loops", "strides", "wait_strides", "signal_strides"):
            if self._at[name] != len(tables[name]):
                raise damaged(
                    f"units have {self._at[name]} rows of {name}, the stream {len(tables[name])}"
                )
        return RegionCode(
            c.region, self.text(c.target), self.text(c.function), entries, tuple(units),
            tuple(kernels), calls, tuple(tasks), levels, c.cores,
        )  # fmt: skip

    def _entry(self, row: Any) -> DataEntry:
        role = int(row["role"])
        if role >= len(EntryRole):
            raise damaged(f"a data entry of the stream has role {role}")
        alias = int(row["alias"])
        digest = row["sha256"].tobytes()
        return DataEntry(
            self.text(row["name"]), EntryRole(role), _type(row["type"]),
            self.numbers(row, "shape"), int(row["address"]), int(row["size_bytes"]),
            None if alias == NONE else alias, digest.hex() if any(digest) else None,
        )  # fmt: skip

    def _take(self, name: str, count: int) -> Rows:
        """The next rows of a table."""
        begin = self._at[name]
        self._at[name] = begin + count
        if begin + count > len(self._tables[name]):
            raise damaged(
                f"units have more rows of {name} than the {len(self._tables[name])} of the stream"
            )
        return np.asarray(self._tables[name][begin : begin + count])

    def _unit(self, row: Any, levels: Sequence[LevelSpec]) -> tuple[UnitProgram, UnitTasks]:
        taken = {name: self._take(name, int(row[name])) for name in OF_UNIT}
        count, waits, signals = (int(row[k]) for k in ("instructions", "waits", "signals"))
        depth, num_loops = int(row["depth"]), int(row["loops"])
        sizes = {
            "wait_offsets": count + 1, "wait_tokens": waits, "signal_offsets": count + 1,
            "signal_tokens": signals,
        }  # fmt: skip
        lists = {field: self._take(name, sizes[name]) for name, field in _LISTS.items()}
        if bool(num_loops) != bool(depth) or depth > num_loops:
            raise damaged(f"a unit has {num_loops} loops {depth} deep")
        loops = NO_LOOPS
        if num_loops:
            loops = Loops(
                self._take("loops", num_loops),
                self._take("strides", count * depth).reshape(count, depth),
                self._take("wait_strides", waits * depth).reshape(waits, depth),
                self._take("signal_strides", signals * depth).reshape(signals, depth),
            )
        nodes = tuple(self.text(r["path"]) for r in taken["leaves"])
        unit = UnitProgram(
            self.text(row["signature"]),
            tuple(self._operand(r) for r in taken["operands"]),
            tuple(self._buffer(r, levels) for r in taken["buffers"]),
            tuple(Stream(int(r["core"]), self.text(r["engine"])) for r in taken["streams"]),
            tuple(self._resource(r) for r in taken["resources"]),
            nodes, taken["instructions"], **lists, num_tokens=int(row["tokens"]), loops=loops,
        )  # fmt: skip
        tasks = {name: taken[name] for name in TASKS}
        tasks["leaves"] = tasks["leaves"].copy()
        tasks["leaves"]["path"] = np.arange(len(nodes))
        tasks["leaves"].setflags(write=False)
        return unit, UnitTasks(tasks)

    def _operand(self, r: Any) -> Operand:
        if int(r["role"]) >= len(OperandRole):
            raise damaged(f"an operand of the stream has role {r['role']}")
        return Operand(
            self.text(r["tensor"]), OperandRole(int(r["role"])), _type(r["type"]),
            self.numbers(r, "shape"), int(r["size_bytes"]),
        )  # fmt: skip

    def _buffer(self, r: Any, levels: Sequence[LevelSpec]) -> Buffer:
        if int(r["level"]) >= len(levels):
            raise damaged(f"a buffer of the stream is in level {r['level']} of {len(levels)}")
        return Buffer(
            self.text(r["tensor"]), levels[int(r["level"])].name, int(r["address"]),
            int(r["slot_bytes"]), int(r["copies"]), _type(r["type"]), self.numbers(r, "extents"),
            self.text(r["path"]), int(r["blocks"]), int(r["block_stride"]), int(r["first_core"]),
        )  # fmt: skip

    def _resource(self, r: Any) -> Resource:
        if int(r["counted"]) >= len(PASSED) or int(r["half_duplex"]) > 1:
            raise damaged(f"a port of the stream counts {r['counted']}")
        return Resource(
            self.text(r["level"]), int(r["instance"]), self.text(r["direction"]),
            float(r["bytes_per_cycle"]), bool(r["half_duplex"]), int(r["sharers"]),
            int(r["count"]), int(r["step"]), PASSED[int(r["counted"])],
        )  # fmt: skip


def _type(number: Any) -> str:
    if int(number) >= len(ELEMENT_TYPES):
        raise damaged(f"the stream has element type {int(number)}")
    return str(ELEMENT_TYPES[int(number)])
