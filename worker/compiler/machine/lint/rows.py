"""Rules about arrays whose cells keep rows (`cost/row_stationary.py`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod

from worker.compiler.ir.dtype import DType
from worker.compiler.machine.lint.view import Defect, SpecReader

MOST_CELLS = 64 * 64
"""A search for the filling of one takes about a millisecond at most; published arrays of rows have
64 to 256."""
_OF_FOLDS = (
    "systolic", "double_buffered", "pipelined", "load_bytes_per_cycle", "hold", "accumulator_bytes",
)  # fmt: skip


def rows_fill_two_dimensions(view: SpecReader) -> Iterator[Defect]:
    for engine, at, is_row in _described(view):
        dimensions = len(list(view.items(f"{engine}/array")))
        if is_row and dimensions not in (0, 2):  # none is a defect of its own
            yield Defect(
                f"{at}/stationary", "rows of a filter lie above each other and rows of the result "
                f"beside, but the array has {dimensions} dimensions", "an array of two", "row",
            )  # fmt: skip


def rows_fill_few_cells(view: SpecReader) -> Iterator[Defect]:
    for engine, at, is_row in _described(view):
        cells = _cells(view, engine)
        if is_row and cells > MOST_CELLS:
            yield Defect(
                f"{at}/stationary", "how each instruction fills an array of rows is searched for, "
                f"and an array of {cells} cells has too many ways", f"<= {MOST_CELLS} cells", "row",
            )  # fmt: skip


def _cells(view: SpecReader, engine: str) -> int:
    return prod(int(view.number(item) or 1) for item in view.items(f"{engine}/array"))


def rows_are_no_folds(view: SpecReader) -> Iterator[Defect]:
    for engine, at, is_row in _described(view):
        for field in _OF_FOLDS if is_row else ("registers",):
            if view.raw(f"{at}/{field}") not in (None, []):
                yield Defect(
                    f"{at}/{field}",
                    "cells keep rows in their registers, and nothing is loaded fold by fold: "
                    "nothing reads this" if is_row
                    else "an array that works fold by fold says what its cells hold: nothing reads "
                    "this", "absent", view.text(f"{at}/{field}"),
                )  # fmt: skip
        if is_row and view.raw(f"{engine}/accumulators") is not None:
            yield Defect(
                f"{engine}/accumulators", "sums of rows stand in the cells' registers while an "
                "instruction runs, and leave with it", "absent",
                view.text(f"{engine}/accumulators"),
            )  # fmt: skip


def rows_stand_in_registers(view: SpecReader) -> Iterator[Defect]:
    """Every core has its own, as its engines have, and a cell's part holds a step's operands."""
    by_name, cores = view.names("/levels"), view.number("/num_cores")
    for engine, at, is_row in _described(view):
        if not is_row:
            continue
        name = view.text(f"{at}/registers")
        level = by_name.get(name or "")
        if level is None or view.managed(level) != "register":
            yield Defect(
                f"{at}/registers", "cells that keep rows have registers for them: "
                + ("none are named" if name is None else f"{name} is no level of registers"),
                "a level with managed: register", name,
            )  # fmt: skip
            continue
        if cores and view.number(f"{level}/instances") != cores:
            yield Defect(
                f"{level}/instances", f"{name} is spread over the cells of each core's array, so "
                "each core has one", f"num_cores = {cores:g}", view.number(f"{level}/instances"),
            )  # fmt: skip
        cells = _cells(view, engine)
        room = int(view.number(f"{level}/capacity_bytes") or 0) // cells
        need, dtype = max(
            ((_step_bytes(DType(key)), key) for key in view.keys(f"{engine}/macs_per_cycle")
             if key in set(DType)), default=(0, ""),
        )  # fmt: skip
        if room < need:
            yield Defect(
                f"{level}/capacity_bytes", f"each of {cells} cells has {room} bytes of {name}; a "
                f"tap, an input and a sum in {dtype} are {need}", f">= {need * cells}",
                view.number(f"{level}/capacity_bytes"),
            )  # fmt: skip


def _step_bytes(dtype: DType) -> int:
    return 2 * dtype.size_bytes + dtype.accumulator.size_bytes


def _described(view: SpecReader) -> Iterator[tuple[str, str, bool]]:
    """(engine, its dataflow, whether it keeps rows) of all that have one."""
    for engine in view.items("/engines"):
        at = f"{engine}/dataflow"
        if isinstance(view.raw(at), dict):
            yield engine, at, view.choice(f"{at}/stationary") == "row"


ROW_RULES: tuple[Callable[[SpecReader], Iterator[Defect]], ...] = (
    rows_fill_two_dimensions, rows_fill_few_cells, rows_are_no_folds, rows_stand_in_registers,
)  # fmt: skip
