"""What calls of an engine's declared instructions cost: the other way to run a box of an operator.

An instruction works on at most its extents at a time; a box takes as many calls as cover it, and a
call at an edge is priced at the size that is left.  Its cycles are the vendor's word: neither the
engine's rate nor its ports or dataflow are asked again.

Which operators: where there are pattern tables, what a row that names the instruction has matched
(`TensorOp.instruction`); where there are none, every product of its kind.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import ceil, prod

from worker.compiler.errors import InternalError
from worker.compiler.ir.axis import AxisKind
from worker.compiler.ir.dtype import DType
from worker.compiler.ir.op import Access, TensorOp
from worker.compiler.machine.intrinsic import CallSize, Intrinsic
from worker.compiler.machine.machine import Engine


@dataclass(frozen=True, slots=True)
class CallRate:
    """What one instruction takes for boxes of one operator."""

    name: str
    sizes: tuple[CallSize, ...]
    """Of which a box takes the one that is cheapest for it."""
    groups: tuple[tuple[int, ...], ...] | None
    """Positions of axes that are rows, columns, depth, batch; None: points count alike."""

    def cycles(self, extents: Sequence[int], lanes: int = 1) -> int:
        """Cycles of all calls that cover `lanes` boxes of `extents` (domain order).

        Cost: linear in sizes and rank.
        """
        if self.groups is None:
            m, n, k, batch = prod(extents) * lanes, 1, 1, 1
        else:
            m, n, k, batch = (prod(extents[i] for i in group) for group in self.groups)
            n *= lanes
        return ceil(batch * min(covering(size, (m, n, k)) for size in self.sizes))

    @property
    def peak(self) -> float:
        """Points per cycle that no box of any size beats: those of the best call."""
        return max(size.peak for size in self.sizes)


def covering(size: CallSize, box: tuple[int, int, int]) -> float:
    """Cycles of calls of one size over (rows, columns, depth)."""
    runs = []
    for extent, most in zip(box, size.extents, strict=True):
        full, rest = divmod(extent, most)
        runs.append([(e, times) for e, times in ((most, full), (rest, 1)) if e and times])
    return sum(
        prod(times for _, times in parts) * size.cycles(tuple(e for e, _ in parts))
        for parts in product(*runs)
    )


def calls_of(
    op: TensorOp, engine: Engine, groups: tuple[tuple[int, ...], ...] | None, dtype: DType
) -> tuple[CallRate, ...]:
    """Instructions of `engine` that may run `op`, in the order of the spec.

    `groups`: its rows, columns, depth and batch where it is a product, else None; `dtype`: the
    format that it computes in.

    Raises:
        InternalError: TW-INT-001, an instruction's oracle has not been asked.
    """
    return tuple(
        CallRate(i.name, _sizes(i, dtype), groups)
        for i in engine.intrinsics
        if _may_run(i, op, is_product=groups is not None, has_windows=_has_windows(op))
    )


def _sizes(intrinsic: Intrinsic, dtype: DType) -> tuple[CallSize, ...]:
    """An oracle has answers for each format that the engine has a rate for."""
    if intrinsic.question is None:
        return intrinsic.sizes
    found = tuple(size for size in intrinsic.sizes if size.answers and size.answers.dtype is dtype)
    if not found:
        raise InternalError(
            "TW-INT-001",
            f"oracle {intrinsic.question.oracle} was not asked for {intrinsic.name} in {dtype}",
        )
    return found


def _may_run(intrinsic: Intrinsic, op: TensorOp, *, is_product: bool, has_windows: bool) -> bool:
    if (intrinsic.op == "elementwise") is is_product:
        return False
    if intrinsic.is_by_pattern:
        return intrinsic.name == op.instruction
    # An element-wise instruction is one function, and only a pattern says which.
    return is_product and (intrinsic.op == "conv" or not has_windows)


def _has_windows(op: TensorOp) -> bool:
    """Whether an index adds a summed axis to another: taps of a window."""
    summed = {axis.name for axis in op.domain if axis.kind is AxisKind.REDUCE}

    def slides(access: Access) -> bool:
        names = [set(expr.variables()) for expr in access.index]
        return any(found & summed and found - summed for found in names)

    return any(slides(access) for access in op.reads)
