"""What readers of a unit's tasks rely on: ids inside their tables, expressions in order."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from worker.compiler.isa.program import UnitProgram
from worker.compiler.isa.sums import OrderKind
from worker.compiler.package.archive import damaged
from worker.compiler.package.stream.records import (
    ELEMENT_TYPES,
    FUNCTIONS,
    NONE,
    REDUCTIONS,
    Fill,
    FrameKind,
    LeafKind,
    Op,
)
from worker.compiler.package.unit_tasks import UnitTasks

_LISTS = (
    ("leaves", "frames", "frames"), ("leaves", "box", "spans"), ("leaves", "accesses", "accesses"),
    ("leaves", "groups", "groups"), ("scopes", "dims", "dims"), ("accesses", "dims", "dims"),
    ("expressions", "lines", "lines"),
)  # fmt: skip
_IDS = (
    ("spans", "start", "expressions"), ("scopes", "entry", "expressions"),
    ("scopes", "slot", "expressions"), ("scopes", "core", "expressions"),
)  # fmt: skip
_OF_COUNTERS = (
    int(Op.CONSTANT), int(Op.COUNTER), int(Op.SCALE), int(Op.SUM), int(Op.QUOTIENT), int(Op.REST),
)  # fmt: skip
_KINDS: tuple[tuple[str, str, int], ...] = (
    ("leaves", "kind", len(LeafKind)), ("leaves", "reduce", 1 + len(REDUCTIONS)),
    ("leaves", "order", len(OrderKind)), ("frames", "kind", len(FrameKind)), ("spans", "axis", 3),
    ("scopes", "identity", 2), ("accesses", "type", len(ELEMENT_TYPES)),
    ("accesses", "staged", 2), ("accesses", "outside", len(Fill)),
    ("lines", "type", len(ELEMENT_TYPES)), ("lines", "op", int(Op.APPLY) + len(FUNCTIONS)),
)  # fmt: skip


def check_tasks(tasks: UnitTasks, unit: UnitProgram, place: str) -> None:
    """Check the tables of a unit's tasks.

    Raises:
        InputError: TW-RUN-001, the first id or number that is wrong.
    Cost: numpy over rows, Python over leaves and expressions.
    """
    tables = tasks.tables
    if len(tables["leaves"]) != len(unit.nodes):
        raise damaged(f"{place}: {len(unit.nodes)} leaves, tasks of {len(tables['leaves'])}")
    for table, name, of in _LISTS:
        ends = tables[table][f"{name}_first"].astype(np.int64) + tables[table][f"{name}_count"]
        _below(ends, len(tables[of]) + 1, f"{place}: end of {name} of {table}")
    for table, name, of in _IDS:
        _below(tables[table][name], len(tables[of]), f"{place}: {name} of {table}")
    for table, name, count in _KINDS:
        _below(tables[table][name], count, f"{place}: {name} of {table}")
    _below(tables["scopes"]["buffer"], len(unit.buffers), f"{place}: buffer of scopes")
    for name, limit in (("scope", len(tables["scopes"])), ("operand", len(unit.operands))):
        values = tables["accesses"][name]
        _below(values[values != NONE], limit, f"{place}: {name} of accesses")
    at_home = tables["accesses"]["scope"] == NONE
    if np.any((tables["accesses"]["operand"] == NONE) == at_home):
        raise damaged(f"{place}: an access is neither in a scope nor at home, or both")
    index = tables["dims"]["index"]
    _below(index[index != NONE], len(tables["expressions"]), f"{place}: index of dims")
    if np.any(tables["frames"]["trip"] < 1):
        raise damaged(f"{place}: a loop around a leaf runs no times")
    _check_lines(tables["expressions"], tables["lines"], place)
    for number, leaf in enumerate(tables["leaves"]):
        _check_leaf(leaf, tables, unit, f"{place}: leaf {number}")


def _check_lines(
    expressions: npt.NDArray[np.void], lines: npt.NDArray[np.void], place: str
) -> None:
    """Lines refer to earlier ones of their own expression."""
    for first, count in expressions.tolist():
        if not count:
            raise damaged(f"{place}: an expression has no lines")
        own = lines[first : first + count]
        for name in ("a", "b", "c"):
            refers = _refers(own["op"], name)
            if np.any(own[name][refers] >= np.arange(count)[refers]):
                raise damaged(f"{place}: line of the expression at {first} refers to a later one")
        divides = np.isin(own["op"], [int(Op.QUOTIENT), int(Op.REST)])
        if np.any(own["value"][divides] < 1):
            raise damaged(f"{place}: line of the expression at {first} divides by less than 1")
    known = [int(op) for op in Op] + [int(Op.APPLY) + k for k in range(len(FUNCTIONS))]
    if not np.all(np.isin(lines["op"], known)):
        raise damaged(f"{place}: a line has an operation that there is not")


def _refers(ops: npt.NDArray[Any], name: str) -> npt.NDArray[np.bool_]:
    """Lines in which a field is a line."""
    functions = ops >= int(Op.APPLY)
    by_name = {
        "a": (Op.SCALE, Op.SUM, Op.QUOTIENT, Op.REST, Op.CAST, Op.SELECT), "b": (Op.SUM, Op.SELECT),
        "c": (Op.SELECT,),
    }[name]  # fmt: skip
    found = np.isin(ops, [int(op) for op in by_name])
    return np.asarray(found | functions if name in ("a", "b") else found)


def _check_leaf(leaf: Any, tables: Any, unit: UnitProgram, place: str) -> None:
    """Its parts fit each other."""
    accesses = _rows(tables, "accesses", leaf, "accesses")
    spans = _rows(tables, "spans", leaf, "box")
    frames = _rows(tables, "frames", leaf, "frames")
    is_compute = int(leaf["kind"]) == LeafKind.COMPUTE
    if len(accesses) < 1 or (not is_compute and len(accesses) != 2):
        raise damaged(f"{place} has {len(accesses)} accesses")
    _check_uses(spans["start"], tables, len(frames), -1, -1, place)
    reads = len(accesses) - 1
    for number, access in enumerate(accesses):
        dims = _rows(tables, "dims", access, "dims")
        if int(access["scope"]) != NONE:
            scope = tables["scopes"][int(access["scope"])]
            own = _rows(tables, "dims", scope, "dims")
            buffer = unit.buffers[int(scope["buffer"])]
            if tuple(own["extent"].tolist()) != buffer.extents or len(own) != len(dims):
                raise damaged(f"{place}: its operand {number} is not as wide as its buffer")
            said = [own["index"], scope[["entry", "slot", "core"]].tolist()]
            for part in said:
                _check_uses(np.array(part), tables, len(frames), -1, -1, place)
        elif tuple(dims["extent"].tolist()) != unit.operands[int(access["operand"])].shape:
            raise damaged(f"{place}: its operand {number} has another shape")
        if is_compute:
            before = number if number < reads else 0
            _check_uses(dims["index"], tables, 0, len(spans), before, place)
        elif len(dims) != len(spans):
            raise damaged(f"{place} moves {len(dims)} dimensions in {len(spans)}")
    if not is_compute:
        return
    body = int(leaf["body"])
    if body >= len(tables["expressions"]):
        raise damaged(f"{place} computes expression {body}")
    groups = _rows(tables, "groups", leaf, "groups")
    _below(groups["axis"], len(spans), f"{place}: axis of groups")
    if int(leaf["reduce"]) and int(leaf["order"]) != OrderKind.SEQUENCE and (
        not len(groups) or not int(leaf["width"])
    ):  # fmt: skip
        raise damaged(f"{place} has an order of no width")
    _check_uses(np.array([body]), tables, 0, len(spans), reads, place, is_body=True)


def _check_uses(
    numbers: npt.NDArray[Any], tables: Any, counters: int, axes: int, reads: int, place: str,
    *, is_body: bool = False,
) -> None:  # fmt: skip
    """Expressions name counters, axes and reads that there are, and are what they are used for."""
    for number in numbers.tolist():
        if number == NONE and axes < 0:
            raise damaged(f"{place} lacks an expression")
        if number >= len(tables["expressions"]):
            raise damaged(f"{place} names expression {number}")
        lines = _rows(tables, "lines", tables["expressions"][number], "lines")
        for line in lines[["op", "value"]].tolist():
            op, value = line
            limit = {
                int(Op.COUNTER): counters, int(Op.COORDINATE): axes, int(Op.LOOKUP): reads,
                int(Op.READ): reads if is_body else 0,
            }.get(op)  # fmt: skip
            if limit is not None and not 0 <= value < limit:
                raise damaged(f"{place}: an expression names number {value} of {max(limit, 0)}")
            if op == Op.INDEX:
                if not is_body or not 0 <= value < len(tables["expressions"]):
                    raise damaged(f"{place}: an expression names expression {value}")
                _check_uses(np.array([value]), tables, 0, axes, reads, place)
            elif op > Op.LOOKUP and op not in _OF_COUNTERS and not is_body:
                raise damaged(f"{place}: an index computes {op}")


def _rows(tables: Any, table: str, row: Any, name: str) -> Any:
    first, count = int(row[f"{name}_first"]), int(row[f"{name}_count"])
    return tables[table][first : first + count]


def _below(values: npt.NDArray[Any], limit: int, what: str) -> None:
    if len(values) and int(values.max()) >= limit:
        raise damaged(f"{what} {int(values.max())} points outside its table")
