"""Programs as text: a disassembly that parses back to the same value.

One line per table entry or instruction, `key=value` fields; instructions leave out fields that
hold their default, resources `half_duplex` where it is false, `sharers` where it is 1, `count` and
`step` where they stand for one port, `counted` where they pass payload.  Names are JSON strings, so
any user-given name survives.  A line `loop` says how often the next so many rows run; an
instruction inside says in `steps`, for every loop around it, outermost first, what an iteration
adds to its fields.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from worker.compiler.errors import VerifyError
from worker.compiler.isa.loops import LOOP, NO_LOOPS, STRIDE, Loops, frozen
from worker.compiler.isa.program import (
    INSTRUCTION,
    MAX_RESOURCES,
    Buffer,
    Opcode,
    Operand,
    OperandRole,
    Resource,
    Stream,
    UnitProgram,
)

_DEFAULTS = {
    "op": -1, "bytes": 0, "macs": 0, "cycles": 0, "drawn": 0, "returned": 0, "inside": 0,
    "starved": 0, "latency": 0, "src": -1, "dst": -1,
    "src_offset": 0, "dst_offset": 0, "iteration": 0, "operand": -1,
}  # fmt: skip
STEPPING = "stream", "src_offset", "dst_offset", "iteration"
_HALF = {"half_duplex": True}
HEADER = "tilewright program 6"


def print_program(unit: UnitProgram) -> str:
    """Disassemble; `parse_program` is the inverse.  Cost: about 10 us per instruction."""
    lines = [HEADER, _line("unit", signature=unit.signature, tokens=unit.num_tokens)]
    lines += [
        _line("operand", tensor=o.tensor, role=o.role.name, dtype=o.dtype, shape=list(o.shape),
              size_bytes=o.size_bytes)
        for o in unit.operands
    ]  # fmt: skip
    lines += [
        _line("buffer", tensor=b.tensor, level=b.level, address=b.address, slot_bytes=b.slot_bytes,
              copies=b.copies, dtype=b.dtype, extents=list(b.extents), path=b.path,
              blocks=b.blocks, block_stride=b.block_stride, first_core=b.first_core)
        for b in unit.buffers
    ]  # fmt: skip
    lines += [_line("stream", core=s.core, engine=s.engine) for s in unit.streams]
    lines += [
        _line("resource", level=r.level, instance=r.instance, direction=r.direction,
              bytes_per_cycle=r.bytes_per_cycle,
              **{"sharers": r.sharers} if r.sharers != 1 else {}, **_HALF if r.half_duplex else {},
              **{"count": r.count, "step": r.step} if r.count > 1 else {},
              **{"counted": r.counted} if r.counted != "bytes" else {})
        for r in unit.resources
    ]  # fmt: skip
    lines += [_line("node", path=path) for path in unit.nodes]
    opened: dict[int, list[str]] = {}
    for first, end, trip in unit.loops.table.tolist():
        opened.setdefault(first, []).append(_line("loop", trip=trip, rows=end - first))
    around = _around(unit.loops, unit.num_rows)
    for number, row in enumerate(unit.instructions):
        lines += opened.get(number, [])
        lines.append(_instruction_line(unit, number, row, int(around[number])))
    return "\n".join(lines) + "\n"


def parse_program(text: str) -> UnitProgram:
    """Read what `print_program` wrote.

    Raises:
        VerifyError: not such a text; the place is the line number.
    """
    reader = _Reader()
    lines = text.splitlines()
    if not lines or lines[0] != HEADER:
        raise VerifyError("lower", "line 1", "text", f"expected {HEADER!r}")
    for number, line in enumerate(lines[1:], start=2):
        try:
            reader.take(line)
        except (KeyError, ValueError, TypeError, msgspec.ValidationError) as error:
            raise VerifyError("lower", f"line {number}", "text", str(error)) from error
    return reader.finish()


def _line(keyword: str, **fields: object) -> str:
    return " ".join([keyword, *(f"{key}={_text(value)}" for key, value in fields.items())])


def _text(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def _around(loops: Loops, rows: int) -> npt.NDArray[np.int64]:
    """Loops around every row."""
    found = np.zeros(rows, dtype=np.int64)
    for first, end, _ in loops.table.tolist():
        found[first:end] += 1
    return found


def _instruction_line(unit: UnitProgram, number: int, row: npt.NDArray[np.void], depth: int) -> str:
    fields: dict[str, object] = {"stream": int(row["stream"]), "node": int(row["node"])}
    for key, default in _DEFAULTS.items():
        value = int(row[key])
        if value != default:
            fields[key] = value
    ports = [int(r) for r in row["resource"] if r >= 0]
    lists = {
        "ports": ports,
        "wait": unit.wait_token[unit.wait_ptr[number] : unit.wait_ptr[number + 1]].tolist(),
        "signal": unit.signal_token[unit.signal_ptr[number] : unit.signal_ptr[number + 1]].tolist(),
    }
    fields.update({key: value for key, value in lists.items() if value})
    if depth:
        fields["steps"] = [_steps(unit, number, k, len(ports)) for k in range(depth)]
    return _line(Opcode(int(row["opcode"])).name, **fields)


def _steps(unit: UnitProgram, number: int, depth: int, num_ports: int) -> dict[str, object]:
    """What one iteration of the loop at a depth adds to an instruction's fields."""
    loops = unit.loops
    step = loops.stride[number, depth]
    found: dict[str, object] = {name: int(step[name]) for name in STEPPING if step[name]}
    waits = slice(unit.wait_ptr[number], unit.wait_ptr[number + 1])
    signals = slice(unit.signal_ptr[number], unit.signal_ptr[number + 1])
    lists = {
        "ports": step["resource"][:num_ports].tolist(),
        "wait": loops.wait_stride[waits, depth].tolist(),
        "signal": loops.signal_stride[signals, depth].tolist(),
    }
    return found | {key: value for key, value in lists.items() if any(value)}


class _Reader:
    def __init__(self) -> None:
        self.loops: list[tuple[int, int, int]] = []
        self.steps: list[list[dict[str, object]]] = []
        self.signature = ""
        self.num_tokens = 0
        self.operands: list[Operand] = []
        self.buffers: list[Buffer] = []
        self.streams: list[Stream] = []
        self.resources: list[Resource] = []
        self.nodes: list[str] = []
        self.rows: list[tuple[object, ...]] = []
        self.waits: list[list[int]] = []
        self.signals: list[list[int]] = []

    def take(self, line: str) -> None:
        keyword, fields = fields_of(line)
        match keyword:
            case "unit":
                self.signature = msgspec.convert(fields["signature"], str)
                self.num_tokens = msgspec.convert(fields["tokens"], int)
            case "operand":
                fields["role"] = int(OperandRole[str(fields["role"])])
                self.operands.append(msgspec.convert(fields, Operand))
            case "buffer":
                self.buffers.append(msgspec.convert(fields, Buffer))
            case "stream":
                self.streams.append(msgspec.convert(fields, Stream))
            case "resource":
                self.resources.append(msgspec.convert(fields, Resource))
            case "node":
                self.nodes.append(msgspec.convert(fields["path"], str))
            case "loop":
                trip, rows = _ints([fields["trip"], fields["rows"]], np.int64)
                self.loops.append((len(self.rows), len(self.rows) + rows, trip))
            case _:
                self._instruction(Opcode[keyword], fields)

    def _instruction(self, opcode: Opcode, fields: dict[str, object]) -> None:
        ports = fields.pop("ports", [])
        self.steps.append(msgspec.convert(fields.pop("steps", []), list[dict[str, object]]))
        self.waits.append(_ints(fields.pop("wait", [])))
        self.signals.append(_ints(fields.pop("signal", [])))
        padded = [*_ints(ports), *[-1] * MAX_RESOURCES][:MAX_RESOURCES]
        values = {**_DEFAULTS, **fields, "opcode": int(opcode), "resource": tuple(padded)}
        names = INSTRUCTION.names or ()
        unknown = sorted(set(values) - set(names))
        if unknown:
            raise KeyError(f"unknown fields {unknown}")
        for name in names:
            if name != "resource":
                _ints([values[name]], INSTRUCTION[name])
        self.rows.append(tuple(values[name] for name in names))

    def finish(self) -> UnitProgram:
        wait_ptr, wait_token = _csr(self.waits)
        signal_ptr, signal_token = _csr(self.signals)
        rows = np.array(self.rows, dtype=INSTRUCTION)
        rows.setflags(write=False)
        return UnitProgram(
            self.signature, tuple(self.operands), tuple(self.buffers), tuple(self.streams),
            tuple(self.resources), tuple(self.nodes), rows, wait_ptr, wait_token, signal_ptr,
            signal_token, self.num_tokens, self._loops(wait_ptr, signal_ptr),
        )  # fmt: skip

    def _loops(self, wait_ptr: npt.NDArray[np.int32], signal_ptr: npt.NDArray[np.int32]) -> Loops:
        if not self.loops:
            return NO_LOOPS
        depth = max(map(len, self.steps))
        stride = np.zeros((len(self.rows), depth), dtype=STRIDE)
        tokens = {
            "wait": (wait_ptr, np.zeros((wait_ptr[-1], depth), dtype=np.int32)),
            "signal": (signal_ptr, np.zeros((signal_ptr[-1], depth), dtype=np.int32)),
        }
        for number, steps in enumerate(self.steps):
            for k, step in enumerate(steps):
                for name in STEPPING:
                    stride[name][number, k] = _ints([step.get(name, 0)], STRIDE[name])[0]
                ports = _ints(step.get("ports", []))
                stride["resource"][number, k, : len(ports)] = ports
                for name, (pointer, array) in tokens.items():
                    if name in step:
                        array[pointer[number] : pointer[number + 1], k] = _ints(step[name])
        table = np.array(self.loops, dtype=LOOP)
        return frozen(Loops(table, stride, tokens["wait"][1], tokens["signal"][1]))


def fields_of(line: str) -> tuple[str, dict[str, object]]:
    """Keyword and fields of a line; values are JSON, which may contain spaces in strings."""
    keyword, _, rest = line.partition(" ")
    decoder = json.JSONDecoder()
    fields: dict[str, object] = {}
    position = 0
    while position < len(rest):
        key, _, _ = rest[position:].partition("=")
        value, end = decoder.raw_decode(rest, position + len(key) + 1)
        fields[key] = value
        position = end + 1
    return keyword, fields


def _ints(value: object, dtype: npt.DTypeLike = np.int32) -> list[int]:
    found, bounds = msgspec.convert(value, list[int]), np.iinfo(dtype)
    if found and not bounds.min <= min(found) <= max(found) <= bounds.max:
        raise ValueError(f"{found[:8]} is out of the range of {np.dtype(dtype).name}")
    return found


def _csr(lists: Sequence[Sequence[int]]) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    pointer = np.zeros(len(lists) + 1, dtype=np.int32)
    np.cumsum([len(x) for x in lists], out=pointer[1:], dtype=np.int32)
    tokens = np.array([t for x in lists for t in x], dtype=np.int32)
    pointer.setflags(write=False)
    tokens.setflags(write=False)
    return pointer, tokens
