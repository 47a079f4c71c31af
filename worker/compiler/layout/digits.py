"""Splitting the axes of an operator so that blocked tensors are indexed without // and %.

A tensor blocked by 16 along c is indexed by c // 16 and c % 16.  When c is an axis (or a sum such
as 32*g + ci) the axes are split into digits instead, ci = 16*ci.0 + ci.1, and the two indices are
2*g + ci.0 and ci.1: linear, so that boxes, splits and strides stay exact.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import gcd

from worker.compiler.ir.affine import Affine, Interval, Var, var
from worker.compiler.ir.axis import Axis, AxisKind
from worker.compiler.ir.layout import Layout
from worker.compiler.ir.op import Access, TensorOp


@dataclass(slots=True)
class Digits:
    """The factors at which the axes of one operator are split; grows while accesses are added."""

    op: TensorOp
    factors: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Ascending per axis; each divides the next, and the last divides the extent."""

    def accept(self, access: Access, layout: Layout) -> bool:
        """Split further so that `access` indexes a tensor of `layout` linearly.

        Returns False, and changes nothing, when the blocked dimensions would need // or %.
        Cost: linear in the index expressions.
        """
        grown = dict(self.factors)
        for letter in layout.blocked_letters:
            expr = access.index[layout.position(letter)]
            if not expr.is_linear:
                return False
            below = 1
            for block in reversed(layout.blocks(letter)):
                below *= block
                if not self._split(expr, below, grown):
                    return False
        values, box = _digit_values(self.op, grown)
        physical = layout.index(tuple(e.substitute(values) for e in access.index))
        for dim, expr in zip(layout.dims, physical, strict=True):
            if layout.blocks(dim.letter) and not expr.within(box).is_linear:
                return False
        self.factors = grown
        return True

    def _split(self, expr: Affine, block: int, grown: dict[str, tuple[int, ...]]) -> bool:
        for atom, coeff in expr.terms:
            assert isinstance(atom, Var)
            axis = self.op.axis(atom.name)
            factor = block // gcd(block, coeff)
            if factor == 1 or factor >= axis.extent:
                continue
            chain = tuple(sorted({*grown.get(axis.name, ()), factor}))
            ends = (*chain, axis.extent)
            if axis.kind is AxisKind.SCAN or any(
                b % a for a, b in zip(chain, ends[1:], strict=True)
            ):
                return False
            grown[axis.name] = chain
        return True

    def axes(self) -> tuple[Axis, ...]:
        """The split domain: digits stand where their axis stood, so the order of points stays."""
        return tuple(d for axis in self.op.domain for d in _digits(self.op, axis, self.factors))

    def values(self) -> dict[str, Affine]:
        """What to substitute for the axes that were split."""
        return _digit_values(self.op, self.factors)[0]


def _digits(op: TensorOp, axis: Axis, factors: Mapping[str, tuple[int, ...]]) -> tuple[Axis, ...]:
    """Digits of one axis, most significant first."""
    chain = factors.get(axis.name, ())
    if not chain:
        return (axis,)
    taken = {a.name for a in op.domain}
    base = axis.name
    while any(f"{base}.{k}" in taken for k in range(len(chain) + 1)):
        base += "_"
    ends = (*chain, axis.extent)
    extents = [chain[0], *(b // a for a, b in zip(chain, ends[1:], strict=True))]
    return tuple(
        Axis(f"{base}.{k}", extent, axis.kind) for k, extent in enumerate(reversed(extents))
    )


def _digit_values(
    op: TensorOp, factors: Mapping[str, tuple[int, ...]]
) -> tuple[dict[str, Affine], dict[str, Interval]]:
    """Split axes as sums of their digits, and the range of every digit."""
    values: dict[str, Affine] = {}
    box: dict[str, Interval] = {}
    for axis in op.domain:
        digits = _digits(op, axis, factors)
        box.update((d.name, (0, d.extent - 1)) for d in digits)
        if len(digits) > 1:
            weights = (1, *factors[axis.name])[::-1]
            values[axis.name] = sum(
                (var(d.name) * w for d, w in zip(digits, weights, strict=True)), Affine()
            )
    return values, box
