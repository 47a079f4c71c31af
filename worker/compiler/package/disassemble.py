"""A region's stream as text: the tables, every unit's program, the calls.

A unit's part is exactly what `print_program` says of the program it was encoded from.
"""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np

from worker.compiler.isa.loops import Loops
from worker.compiler.isa.program import UnitProgram
from worker.compiler.isa.text import print_program
from worker.compiler.package.region_code import RegionCode


def print_region(code: RegionCode, limit: int | None = None) -> str:
    """Disassemble a region; `limit` cuts each unit after that many instructions, with a note."""
    lines = [
        "tilewright region 1",
        _line("region", index=code.index, target=code.target, function=code.function),
    ]
    lines += [
        _line("entry", id=k, role=entry.role.name, name=entry.name, dtype=entry.dtype,
              shape=list(entry.shape), address=entry.address, size_bytes=entry.size_bytes,
              alias_of=entry.alias_of)
        for k, entry in enumerate(code.entries)
    ]  # fmt: skip
    for k, (kernel, unit) in enumerate(zip(code.kernels, code.units, strict=True)):
        lines.append(_line("kernel", unit=k, name=kernel))
        lines.append(print_unit(unit, limit).rstrip("\n"))
    lines += [
        _line("call", id=k, unit=call.unit, entries=list(call.entries), op_type=call.op_type,
              launch_cycles=call.launch_cycles, nodes=list(call.onnx_nodes))
        for k, call in enumerate(code.calls)
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def print_unit(unit: UnitProgram, limit: int | None = None) -> str:
    """A unit's text, cut after `limit` instructions with a note of how many there are."""
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


def _line(keyword: str, **fields: object) -> str:
    shown = {key: value for key, value in fields.items() if value is not None}
    return " ".join(
        [keyword, *(f"{k}={json.dumps(v, separators=(',', ':'))}" for k, v in shown.items())]
    )
