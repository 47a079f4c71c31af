"""Building one TensorOp: axes first, then reads, then the write that emits it.

Axes of extent 1 vanish (their index is the constant 0), indices are simplified with the axes'
ranges, and equal reads share a slot, so that equal computations get equal operators.
"""

from __future__ import annotations

from collections.abc import Sequence

from worker.compiler.frontend.ops.emitter import Emitter
from worker.compiler.ir.affine import Affine, Interval, Lookup, const, var
from worker.compiler.ir.axis import Axis, AxisKind
from worker.compiler.ir.op import Access, Origin, Reduce, Tensor, TensorOp
from worker.compiler.ir.scalar import Read, Scalar


class Nest:
    """A TensorOp under construction."""

    def __init__(self, emitter: Emitter, origin: Origin) -> None:
        self._emitter = emitter
        self._origin = origin
        self._axes: list[Axis] = []
        self._reads: list[Access] = []
        self._box: dict[str, Interval] = {}

    def axis(self, name: str, extent: int, kind: AxisKind = AxisKind.PARALLEL) -> Affine:
        """Add an axis and give its index expression."""
        if extent == 1:
            return const(0)
        self._axes.append(Axis(name, extent, kind))
        self._box[name] = (0, extent - 1)
        return var(name)

    def axes(self, prefix: str, shape: Sequence[int]) -> tuple[Affine, ...]:
        """One PARALLEL axis per dimension, named prefix0, prefix1, ..."""
        return tuple(self.axis(f"{prefix}{k}", extent) for k, extent in enumerate(shape))

    def reduce_axes(self, prefix: str, shape: Sequence[int]) -> tuple[Affine, ...]:
        """One REDUCE axis per dimension."""
        return tuple(
            self.axis(f"{prefix}{k}", extent, AxisKind.REDUCE) for k, extent in enumerate(shape)
        )

    def _slot(self, tensor: Tensor, index: Sequence[Affine | int], fill: float | int | None) -> int:
        exprs = tuple(self._simplify(e) for e in index)
        if fill is not None and all(
            self._inside(e, extent) for e, extent in zip(exprs, tensor.shape, strict=True)
        ):
            fill = None
        access = Access(tensor.name, exprs, fill)
        if access in self._reads:
            return self._reads.index(access)
        self._reads.append(access)
        return len(self._reads) - 1

    def _simplify(self, index: Affine | int) -> Affine:
        expr = Affine.of(index)
        return expr if expr.is_linear else expr.within(self._box)

    def _inside(self, expr: Affine, extent: int) -> bool:
        if expr.has_lookup:
            return True
        low, high, _ = expr.bounds(self._box)
        return low >= 0 and high < extent

    def read(
        self, tensor: Tensor, index: Sequence[Affine | int], fill: float | int | None = None
    ) -> Scalar:
        """Read an element; `fill` is dropped when no index can leave the tensor."""
        return Read(self._slot(tensor, index, fill))

    def lookup(self, tensor: Tensor, index: Sequence[Affine | int]) -> Affine:
        """An index that is the value of an integer tensor's element."""
        return Affine(((Lookup(self._slot(tensor, index, None)), 1),), 0)

    def write(
        self,
        out: Tensor,
        index: Sequence[Affine | int],
        body: Scalar,
        reduce: Reduce | None = None,
    ) -> Tensor:
        """Emit the operator; returns `out` for chaining.

        `reduce` is dropped when every REDUCE axis vanished.
        """
        has_reduce = any(a.kind is AxisKind.REDUCE for a in self._axes)
        self._emitter.ops.append(
            TensorOp(
                self._emitter.op_name(out.name),
                tuple(self._axes),
                tuple(self._reads),
                Access(out.name, tuple(self._simplify(e) for e in index)),
                body,
                reduce if has_reduce else None,
                self._origin,
            )
        )
        return out
