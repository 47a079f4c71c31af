"""What every reader of a region's stream may rely on: no id points outside its table.

Only what needs no machine is checked; nothing is allocated in proportion to a number that the
stream claims.
"""

from __future__ import annotations

from math import prod

import numpy as np
import numpy.typing as npt

from worker.compiler.errors import InputError, VerifyError
from worker.compiler.ir.dtype import DType
from worker.compiler.isa.program import Opcode, UnitProgram
from worker.compiler.isa.verify import check_loops
from worker.compiler.package.archive import damaged
from worker.compiler.package.region_code import RegionCode
from worker.compiler.package.stream.task_checks import check_tasks

_INT64_LIMIT = 1 << 63


def check_region(code: RegionCode) -> None:
    """Check the tables of a region against each other.

    Raises:
        InputError: TW-RUN-001, the first id or size that is wrong.
    """
    if len(code.kernels) != len(code.units):
        raise damaged(f"the stream names {len(code.kernels)} kernels for {len(code.units)} units")
    if not code.function.isidentifier() or not code.function.isascii():
        raise damaged(f"the region's function {code.function!r} is not a C identifier")
    for k, entry in enumerate(code.entries):
        if prod(entry.shape) * DType(entry.dtype).size_bytes != entry.size_bytes:
            raise damaged(
                f"entry {k} has {entry.size_bytes} bytes for {entry.dtype}{list(entry.shape)}"
            )
        if entry.address + entry.size_bytes >= _INT64_LIMIT:
            raise damaged(f"entry {k} lies at address {entry.address}")
        if entry.alias_of is not None and not _is_alias(code, k, entry.alias_of):
            raise damaged(f"entry {k} shares the storage of entry {entry.alias_of}, it cannot")
    for k, (unit, tasks) in enumerate(zip(code.units, code.tasks, strict=True)):
        _check_unit(unit, f"unit {k}")
        check_tasks(tasks, unit, f"unit {k}")
    for k, call in enumerate(code.calls):
        _check_call(code, k, call.unit, call.entries)


def _is_alias(code: RegionCode, number: int, source: int) -> bool:
    if source >= len(code.entries) or source == number:
        return False
    given, own = code.entries[source], code.entries[number]
    return given.alias_of is None and given.size_bytes == own.size_bytes


def _check_call(code: RegionCode, number: int, unit: int, entries: tuple[int, ...]) -> None:
    if unit >= len(code.units):
        raise damaged(f"call {number} runs unit {unit} of {len(code.units)}")
    operands = code.units[unit].operands
    if len(operands) != len(entries):
        raise damaged(f"call {number} has {len(entries)} entries for {len(operands)} operands")
    for operand, entry in zip(operands, entries, strict=True):
        if entry >= len(code.entries):
            raise damaged(f"call {number} names entry {entry} of {len(code.entries)}")
        bound = code.entries[entry]
        if (bound.dtype, bound.shape) != (operand.dtype, operand.shape):
            raise damaged(
                f"call {number} gives entry {entry}, {bound.dtype}{list(bound.shape)}, for"
                f" {operand.dtype}{list(operand.shape)}"
            )


def _check_unit(unit: UnitProgram, place: str) -> None:
    for operand in unit.operands:
        dims_fit = all(0 <= extent < _INT64_LIMIT for extent in operand.shape)
        if operand.dtype not in DType.__members__.values() or not dims_fit:
            raise damaged(f"{place}: operand {operand.tensor} has no valid type")
        if prod(operand.shape) * DType(operand.dtype).size_bytes != operand.size_bytes:
            raise damaged(f"{place}: operand {operand.tensor} has {operand.size_bytes} bytes")
    rows = unit.instructions
    for field, low, high in (
        ("opcode", int(min(Opcode)), int(max(Opcode)) + 1),
        ("stream", 0, len(unit.streams)),
        ("node", 0, len(unit.nodes)),
        ("op", -1, None),
        ("src", -1, len(unit.buffers)),
        ("dst", -1, len(unit.buffers)),
        ("resource", -1, len(unit.resources)),
        ("bytes", 0, None),
        ("macs", 0, None),
        ("cycles", 0, None),
        ("drawn", 0, None),
        ("returned", 0, None),
        ("inside", 0, None),
        ("starved", 0, None),
        ("latency", 0, None),
        ("iteration", 0, None),
        ("operand", -1, None),
    ):
        _refuse_outside(rows[field], low, high, f"{place}: {field}")
    _check_lists(unit.wait_ptr, unit.wait_token, unit.num_tokens, f"{place}: wait")
    _check_lists(unit.signal_ptr, unit.signal_token, unit.num_tokens, f"{place}: signal")
    try:
        check_loops(unit)
    except VerifyError as error:
        raise damaged(f"{place}: {error.message}") from error


def _check_lists(
    pointer: npt.NDArray[np.int32], tokens: npt.NDArray[np.int32], num_tokens: int, what: str
) -> None:
    if not len(pointer) or pointer[0] != 0 or pointer[-1] != len(tokens):
        raise damaged(f"{what} offsets do not match the list of tokens")
    if np.any(pointer[1:] < pointer[:-1]):
        raise damaged(f"{what} offsets decrease")
    _refuse_outside(tokens, 0, num_tokens, f"{what} token")


def _refuse_outside(values: npt.NDArray[np.generic], low: int, high: int | None, what: str) -> None:
    if not values.size:
        return
    least, most = int(values.min()), int(values.max())
    if least < low or (high is not None and most >= high):
        raise _outside(what, least if least < low else most, high)


def _outside(what: str, actual: int, high: int | None) -> InputError:
    return InputError(
        "TW-RUN-001", f"{what} {actual} points outside its table", limit=high, actual=actual
    )
