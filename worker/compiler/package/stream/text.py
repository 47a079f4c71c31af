"""A region's stream as text that parses back to the same bytes.

One line per row, `key=value` fields with JSON values; what is 0 is left out of the lines of tasks.
A unit's instructions are exactly what `print_program` says of the program.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np

from worker.compiler.errors import VerifyError
from worker.compiler.ir.axis import AxisKind
from worker.compiler.isa.loops import Loops
from worker.compiler.isa.program import UnitProgram
from worker.compiler.isa.sums import OrderKind
from worker.compiler.isa.text import HEADER as PROGRAM_HEADER
from worker.compiler.isa.text import fields_of, parse_program, print_program
from worker.compiler.package.archive import damaged
from worker.compiler.package.emulator import LevelSpec
from worker.compiler.package.region_code import DataEntry, EntryRole, RegionCall, RegionCode
from worker.compiler.package.stream.checks import check_region
from worker.compiler.package.stream.records import (
    ELEMENT_TYPES,
    FUNCTIONS,
    NONE,
    REDUCTIONS,
    TABLE_OF,
    TASKS,
    Fill,
    FrameKind,
    LeafKind,
    Op,
)
from worker.compiler.package.unit_tasks import UnitTasks

_HEADER = "tilewright region 2"
_OPS = {int(op): op.name.lower() for op in Op if op is not Op.APPLY} | {
    int(Op.APPLY) + k: str(fn) for k, fn in enumerate(FUNCTIONS)
}
_TYPES = {k: str(dtype) for k, dtype in enumerate(ELEMENT_TYPES)}
_WORDS: Mapping[tuple[str, str], Mapping[int, str]] = {
    ("leaves", "kind"): {int(k): k.name.lower() for k in LeafKind},
    ("leaves", "order"): {int(k): k.name.lower() for k in OrderKind},
    ("leaves", "reduce"): {0: "none"} | {1 + k: str(r) for k, r in enumerate(REDUCTIONS)},
    ("frames", "kind"): {int(k): k.name.lower() for k in FrameKind},
    ("spans", "axis"): {k: str(kind) for k, kind in enumerate(AxisKind)},
    ("accesses", "type"): _TYPES,
    ("accesses", "outside"): {int(k): k.name.lower() for k in Fill},
    ("lines", "op"): _OPS,
    ("lines", "type"): _TYPES,
}  # fmt: skip


def print_region(code: RegionCode, limit: int | None = None) -> str:
    """Disassemble a region; `limit` cuts each unit after that many instructions, with a note, and
    leaves out what its leaves do: such a text does not parse."""
    lines = [
        _HEADER,
        _line("region", index=code.index, target=code.target, function=code.function,
              cores=code.cores),
    ]  # fmt: skip
    lines += [
        _line("level", name=level.name, instances=level.instances,
              capacity_bytes=level.capacity_bytes)
        for level in code.levels
    ]  # fmt: skip
    lines += [
        _line("entry", id=k, role=entry.role.name, name=entry.name, dtype=entry.dtype,
              shape=list(entry.shape), address=entry.address, size_bytes=entry.size_bytes,
              alias_of=entry.alias_of, sha256=entry.sha256)
        for k, entry in enumerate(code.entries)
    ]  # fmt: skip
    whole = zip(code.kernels, code.units, code.tasks, strict=True)
    for k, (kernel, unit, tasks) in enumerate(whole):
        lines.append(_line("kernel", unit=k, name=kernel))
        lines.append(print_unit(unit, limit).rstrip("\n"))
        if limit is None:
            lines += _tasks(tasks)
    lines += [
        _line("call", id=k, unit=call.unit, entries=list(call.entries), op_type=call.op_type,
              launch_cycles=call.launch_cycles, nodes=list(call.onnx_nodes))
        for k, call in enumerate(code.calls)
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def parse_region(text: str) -> RegionCode:
    """Read what `print_region` wrote of a whole region, with the checks of `decode_stream`.

    Raises:
        InputError: TW-RUN-001, not such a text; the message has the number of the line.
    """
    reader = _Reader()
    lines = [line for line in text.splitlines() if not line.startswith("# regions/")]
    if not lines or lines[0] != _HEADER:
        raise damaged(f"line 1: expected {_HEADER!r}")
    for number, line in enumerate(lines[1:], start=2):
        try:
            reader.take(line)
        except (KeyError, ValueError, TypeError, OverflowError, msgspec.ValidationError) as error:
            raise damaged(f"line {number}: {error}") from error
        except VerifyError as error:
            raise damaged(f"unit that ends before line {number}: {error.message}") from error
    try:
        code = reader.finish()
    except VerifyError as error:
        raise damaged(f"last unit: {error.message}") from error
    check_region(code)
    return code


def print_unit(unit: UnitProgram, limit: int | None) -> str:
    """A unit's program, cut after `limit` instructions with a note of how many there are."""
    count = unit.num_rows
    if limit is None or count <= limit:
        return print_program(unit)
    shown = print_program(_head(unit, limit))
    return f"{shown}# {limit} of {count} instructions; the binary has them all\n"


def _head(unit: UnitProgram, count: int) -> UnitProgram:
    """The unit with its first instructions only; loops that are cut end with them."""
    loops = unit.loops
    if len(loops.table):
        table = loops.table[loops.table["first"] < count].copy()
        table["end"] = np.minimum(table["end"], count)
        loops = Loops(
            table, loops.stride[:count], loops.wait_stride[: unit.wait_ptr[count]],
            loops.signal_stride[: unit.signal_ptr[count]],
        )  # fmt: skip
    return replace(
        unit,
        instructions=unit.instructions[:count],
        wait_ptr=unit.wait_ptr[: count + 1],
        wait_token=unit.wait_token[: unit.wait_ptr[count]],
        signal_ptr=unit.signal_ptr[: count + 1],
        signal_token=unit.signal_token[: unit.signal_ptr[count]],
        loops=loops,
    )


def _tasks(tasks: UnitTasks) -> list[str]:
    """What the leaves of a unit do."""
    lines = []
    for table in TASKS:
        rows = tasks.tables[table]
        names = [n for n in rows.dtype.names or () if not n.startswith("zero")]
        for row in rows:
            shown: dict[str, Any] = {}
            for name in names:
                value = int(row[name])
                if (table, name) in _WORDS:
                    shown[name] = _WORDS[table, name][value]
                elif value == NONE and row.dtype[name] == np.uint32:
                    shown[name] = None
                elif value:
                    shown[name] = value
            lines.append(" ".join(["task", table, *(f"{k}={_json(v)}" for k, v in shown.items())]))
    return lines


class _Reader:
    """Rows as they come."""

    def __init__(self) -> None:
        self.head: dict[str, Any] = {}
        self.levels: list[LevelSpec] = []
        self.entries: list[DataEntry] = []
        self.kernels: list[str] = []
        self.units: list[UnitProgram] = []
        self.tasks: list[dict[str, list[tuple[Any, ...]]]] = []
        self.calls: list[RegionCall] = []
        self.program: list[str] = []

    def take(self, line: str) -> None:
        keyword = line.partition(" ")[0]
        if keyword == "task":
            table, fields = fields_of(line.partition(" ")[2])
            self.end_program()
            self.tasks[-1][table].append(_row(table, fields))
            return
        if keyword == "kernel" or (keyword == "call" and self.kernels):
            self.end_program()
        elif self.program or line == PROGRAM_HEADER:
            self.program.append(line)
            return
        _, fields = fields_of(line)
        match keyword:
            case "region":
                self.head = fields
            case "level":
                self.levels.append(msgspec.convert(fields, LevelSpec))
            case "entry":
                self._in_order(fields, self.entries)
                fields["role"] = int(EntryRole[str(fields["role"])])
                self.entries.append(msgspec.convert(fields, DataEntry))
            case "kernel":
                self.kernels.append(msgspec.convert(fields["name"], str))
                self.tasks.append({name: [] for name in TASKS})
            case "call":
                self._in_order(fields, self.calls)
                fields["onnx_nodes"] = fields.pop("nodes")
                self.calls.append(msgspec.convert(fields, RegionCall))
            case _:
                raise ValueError(f"no line begins with {keyword!r}")

    @staticmethod
    def _in_order(fields: dict[str, Any], before: list[Any]) -> None:
        if fields.pop("id") != len(before):
            raise ValueError(f"number {len(before)} comes next")

    def end_program(self) -> None:
        if self.program:
            self.units.append(parse_program("\n".join(self.program)))
            self.program = []

    def finish(self) -> RegionCode:
        self.end_program()
        if not len(self.kernels) == len(self.units) == len(self.tasks):
            raise damaged(f"{len(self.kernels)} kernels have {len(self.units)} programs")
        tasks = tuple(
            UnitTasks({name: np.array(rows, TABLE_OF[name].dtype) for name, rows in each.items()})
            for each in self.tasks
        )
        try:
            head = msgspec.convert(self.head, _Head)
        except msgspec.ValidationError as error:
            raise damaged(f"line 2: {error}") from error
        return RegionCode(
            head.index, head.target, head.function, tuple(self.entries), tuple(self.units),
            tuple(self.kernels), tuple(self.calls), tasks, tuple(self.levels), head.cores,
        )  # fmt: skip


class _Head(msgspec.Struct):
    index: int
    target: str
    function: str
    cores: int


def _row(table: str, fields: dict[str, Any]) -> tuple[Any, ...]:
    """A record; what is not there is 0."""
    found: list[Any] = []
    for field in TABLE_OF[table].fields:
        if field.name.startswith("zero"):
            found.append((0, 0, 0) if field.type == "3u1" else 0)
            continue
        value = fields.pop(field.name, 0)
        words = _WORDS.get((table, field.name))
        if words is not None:
            value = {word: k for k, word in words.items()}[value]
        value = NONE if value is None else msgspec.convert(value, int)
        kind = TABLE_OF[table].dtype[field.name]
        limits = np.iinfo(kind)
        if not limits.min <= value <= limits.max:
            raise ValueError(f"{field.name} {value} is out of the range of {kind}")
        found.append(value)
    if fields:
        raise KeyError(f"unknown fields {sorted(fields)}")
    return tuple(found)


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def _line(keyword: str, **fields: object) -> str:
    shown = {key: value for key, value in fields.items() if value is not None}
    return " ".join([keyword, *(f"{k}={_json(v)}" for k, v in shown.items())])
