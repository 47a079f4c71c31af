"""Rows of the verification table: values of a compiled model against the reference's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from worker.compiler.assembly.packing import programs
from worker.compiler.frontend.ops.call import DTYPES
from worker.compiler.judge.compiled import CompiledModel
from worker.compiler.package.verify_numerics import (
    OutputComparison,
    coarsest,
    compare_outputs,
    in_blocks,
    plain_numbers,
)
from worker.report.verified_row import VerifiedRow
from worker.verification.left_open import MAXIMA, LeftOpen
from worker.verification.measured import floor_of, longest_sum

Array = npt.NDArray[Any]


class Comparer:
    """Compares values of one model, each within the floor of the whole model."""

    def __init__(self, compiled: CompiledModel) -> None:
        every = list(programs(compiled))
        used = [
            DTYPES[value.dtype]
            for program in every
            for node in program.model.ir.graph
            for value in node.outputs
            if value.dtype in DTYPES
        ]
        graphs = [graph for program in every for graph in program.region_graphs]
        self.coarsest = coarsest(used)
        self.floor = floor_of(self.coarsest, longest_sum(graphs))
        """The same whatever the strategy: it depends on the operators alone."""
        self._dtypes = {name: t.dtype for graph in graphs for name, t in graph.tensors.items()}
        self._left_open = LeftOpen((compiled.source.ir.graph, compiled.model.ir.graph))
        self._dtypes |= {
            v.name: DTYPES[v.dtype]
            for v in compiled.model.ir.graph.outputs
            if v.name is not None and v.dtype in DTYPES
        }

    def outputs(
        self, outputs: Mapping[str, Array], reference: Mapping[str, Array], place: str = ""
    ) -> Iterator[tuple[OutputComparison, VerifiedRow]]:
        """Every output of `reference` with the one of the same name; `place` stands before names
        of rows."""
        for found in compare_outputs(outputs, reference, self.floor, self._dtypes).outputs:
            row = _row_of(f"{place}{found.name}", found)
            if not found.passed and found.name in outputs:
                row = self._settled(row, found.name, outputs[found.name], reference[found.name])
            yield found, row

    def value(
        self,
        label: str,
        name: str,
        have: Array,
        want: Array,
        computed: npt.NDArray[np.bool_] | None = None,
    ) -> VerifiedRow:
        """One value inside the model; shapes are equal.

        8-bit values are judged as floats are: a value on a rounding boundary may land one step
        apart, and what later layers make of that is more than the step an output may be off.
        Where `computed` is false, nothing needed the element and there is none.
        """
        dtype = self._dtypes.get(name)
        have, want = plain_numbers(have, dtype), plain_numbers(want, dtype)
        if computed is not None:
            have = np.where(computed, have, want)
        if have.dtype.itemsize == 1 and have.dtype.kind in "iu":
            have, want = have.astype(np.float32), want.astype(np.float32)
        (found,) = compare_outputs({name: have}, {name: want}, self.floor).outputs
        return self._settled(_row_of(label, found), name, have, want)

    def _settled(self, row: VerifiedRow, name: str, have: Array, want: Array) -> VerifiedRow:
        """The row; open where what differs has no right value."""
        if not row.is_wrong:
            return row
        dtype = self._dtypes.get(name)
        have, want = (plain_numbers(np.asarray(each), dtype) for each in (have, want))
        reason = self._left_open.reason(name, have, want)
        rest = self._left_open.without_maxima(name, have, want)
        if rest is not None:
            (found,) = compare_outputs({name: rest[0]}, {name: rest[1]}, self.floor).outputs
            reason = MAXIMA if found.passed else ""
        return row._replace(reason=reason)


def _row_of(label: str, found: OutputComparison) -> VerifiedRow:
    """A comparison in the measure of its tolerance."""
    error = found.max_rel_err if found.is_relative else found.max_abs_err
    return VerifiedRow(label, found.max_abs_err, error, found.tolerance)


def changes(first: Mapping[str, Array], second: Mapping[str, Array]) -> dict[str, float]:
    """How far each value of the reference moves from one set of inputs to another: of its largest
    for floats, plainly for integers; `inf` where even shape or type differ."""
    return {
        name: _change(value, np.asarray(second[name]))
        for name, value in first.items()
        if name in second
    }


def _change(a: Array, b: Array) -> float:
    if a.shape != b.shape or a.dtype != b.dtype or a.dtype.kind in "OSU":
        return float("inf")
    is_float = a.dtype.kind in "fV"
    wide = np.float32 if a.dtype.kind == "V" else np.float64
    apart, scale = 0.0, 0.0 if is_float else 1.0
    for _, block_a, block_b in in_blocks(a, b):
        x, y = block_a.astype(wide).astype(np.float64), block_b.astype(wide).astype(np.float64)
        good = np.isfinite(x)
        if (good != np.isfinite(y)).any():
            return float("inf")
        x, y = np.where(good, x, 0.0), np.where(good, y, 0.0)
        apart = max(apart, float(np.max(np.abs(x - y))))
        if is_float:
            scale = max(scale, float(np.max(np.abs(x))))
    return apart / scale if scale > 0 else (0.0 if apart == 0 else float("inf"))
