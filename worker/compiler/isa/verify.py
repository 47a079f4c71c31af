"""Legality of a UnitProgram: what every consumer may rely on."""

from __future__ import annotations

from math import prod

import numpy as np
import numpy.typing as npt

from worker.compiler.errors import VerifyError
from worker.compiler.ir.dtype import DType
from worker.compiler.isa.program import Opcode, UnitProgram
from worker.compiler.machine.machine import Machine

_TRANSFERS = (Opcode.LOAD, Opcode.STORE, Opcode.COPY, Opcode.MULTICAST, Opcode.PUSH, Opcode.POP)

_WIDEST = max(dtype.size_bytes for dtype in DType)


def verify_program(unit: UnitProgram, machine: Machine) -> None:
    """Check `unit` against `machine`.

    Rules: indices in range; buffers inside their level's arena, aligned, and large enough for their
    tile; offsets inside buffers and operands; transfers name ports, computes do not; every wait is
    on a token signalled by an earlier instruction.
    Raises:
        VerifyError: the first broken rule, with the instruction or buffer.
    Cost: linear.
    """
    _check_tables(unit, machine)
    _check_instructions(unit)
    _check_tokens(unit)


def _fail(place: str, rule: str, message: str) -> VerifyError:
    return VerifyError("lower", place, rule, message)


def _check_tables(unit: UnitProgram, machine: Machine) -> None:
    levels = {level.name: level for level in machine.levels}
    engines = {engine.name for engine in machine.engines}
    links = {link.name for link in machine.links}
    for k, buffer in enumerate(unit.buffers):
        place = f"buffer {k}"
        if buffer.level not in levels:
            raise _fail(place, "level", f"no level {buffer.level!r}")
        level = levels[buffer.level]
        end = buffer.address + buffer.size_bytes
        if buffer.address < 0 or end > level.usable_bytes:
            raise _fail(
                place, "arena", f"[{buffer.address}, {end}) leaves {level.usable_bytes} bytes"
            )
        if buffer.address % level.align_bytes or buffer.slot_bytes % level.align_bytes:
            raise _fail(place, "alignment", f"not aligned to {level.align_bytes} bytes")
        if prod(buffer.extents) * DType(buffer.dtype).size_bytes > buffer.slot_bytes:
            raise _fail(place, "size", f"tile {buffer.extents} exceeds {buffer.slot_bytes} bytes")
        if buffer.copies < 1 or buffer.blocks < 1 or buffer.block_stride < 1:
            raise _fail(place, "copies", "copies, blocks and block_stride must be >= 1")
    for k, stream in enumerate(unit.streams):
        if stream.engine not in engines or not 0 <= stream.core < machine.num_cores:
            raise _fail(f"stream {k}", "engine", f"no {stream.engine!r} in core {stream.core}")
    for k, resource in enumerate(unit.resources):
        if resource.level not in levels and resource.level not in links:
            raise _fail(f"resource {k}", "level", f"no level or link {resource.level!r}")
        if resource.bytes_per_cycle <= 0:
            raise _fail(f"resource {k}", "rate", "bandwidth must be positive")


def _check_instructions(unit: UnitProgram) -> None:
    rows = unit.instructions
    if not len(rows):
        return
    num_ops = int(rows["op"].max()) + 1
    for field, low, high in (
        ("opcode", int(min(Opcode)), int(max(Opcode)) + 1),
        ("stream", 0, len(unit.streams)),
        ("node", 0, len(unit.nodes)),
        ("op", -1, num_ops),
        ("src", -1, len(unit.buffers)),
        ("dst", -1, len(unit.buffers)),
        ("resource", -1, len(unit.resources)),
        ("bytes", 0, None),
        ("macs", 0, None),
        ("cycles", 0, None),
        ("latency", 0, None),
    ):
        values = rows[field].astype(np.int64)
        bad = (values < low) if high is None else (values < low) | (values >= high)
        table = np.asarray(bad).reshape(len(rows), -1)
        _refuse(np.asarray(table.any(axis=1)), field, f"{field} out of range")
    is_transfer = np.isin(rows["opcode"], [int(o) for o in _TRANSFERS])
    is_compute = rows["opcode"] == int(Opcode.COMPUTE)
    _refuse(is_transfer & (rows["resource"][:, 0] < 0), "resource", "a transfer without ports")
    _refuse(is_compute & (rows["bytes"] > 0), "bytes", "a compute with bytes")
    _refuse(is_transfer & (rows["cycles"] > 0), "cycles", "a transfer with engine cycles")
    _refuse(is_compute & (rows["op"] < 0), "op", "a compute without an operator")
    sizes = [b.size_bytes for b in unit.buffers]
    home = max((o.size_bytes for o in unit.operands), default=0)
    limit = np.array([*sizes, home], dtype=np.int64)  # the last entry serves index -1
    elems = np.array([*(prod(b.extents) for b in unit.buffers), home], dtype=np.int64)
    for side in ("src", "dst"):
        offset, size = rows[f"{side}_offset"], limit[rows[side]]
        _refuse(
            (offset < 0) | ((offset >= size) & (rows["bytes"] > 0)),
            f"{side}_offset", "an address outside its buffer",
        )  # fmt: skip
        fits = rows["bytes"] <= elems[rows[side]] * _WIDEST  # bytes count the slower end's type
        _refuse(is_transfer & (rows[side] >= 0) & ~fits, "bytes", "more bytes than a slot holds")


def _check_tokens(unit: UnitProgram) -> None:
    count = unit.num_instructions
    for name, pointer, tokens in (
        ("wait", unit.wait_ptr, unit.wait_token),
        ("signal", unit.signal_ptr, unit.signal_token),
    ):
        if len(pointer) != count + 1 or (count and pointer[0] != 0) or pointer[-1] != len(tokens):
            raise _fail(name, "pointers", "offsets do not match the lists")
        if np.any(np.diff(pointer) < 0):
            raise _fail(name, "pointers", "offsets decrease")
        if len(tokens) and (tokens.min() < 0 or tokens.max() >= unit.num_tokens):
            raise _fail(name, "tokens", f"a token is outside 0..{unit.num_tokens - 1}")
    signaller = np.repeat(np.arange(count), np.diff(unit.signal_ptr))
    first = np.full(max(unit.num_tokens, 1), count, dtype=np.int64)
    np.minimum.at(first, unit.signal_token, signaller)
    waiter = np.repeat(np.arange(count), np.diff(unit.wait_ptr))
    late = first[unit.wait_token] >= waiter
    if np.any(late):
        at = int(np.flatnonzero(late)[0])
        raise _fail(
            f"instruction {int(waiter[at])}", "backward",
            f"waits for token {int(unit.wait_token[at])}, which nothing has signalled before",
        )  # fmt: skip


def _refuse(bad: npt.NDArray[np.bool_], rule: str, message: str) -> None:
    if np.any(bad):
        raise _fail(f"instruction {int(np.flatnonzero(bad)[0])}", rule, message)
