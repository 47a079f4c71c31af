"""The writer of a piece of a concatenation, taken apart: it writes a tensor of its own, and a copy
brings that to its place in the whole.

The copy can then take over what a reader of the whole does with it, so that the whole is never
stored, as for pieces that are copies anyway (GraphTurbo section 3.5: no copy where layouts allow).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from worker.compiler.ir.affine import Affine, var
from worker.compiler.ir.op import Access, Origin, Tensor, TensorOp
from worker.compiler.ir.scalar import Read


@dataclass(frozen=True, slots=True)
class SplitOff:
    """The writer of a piece, writing a tensor of its own, and the copy of that into the whole."""

    writer: TensorOp
    copy: TensorOp
    made: Tensor


def split_off(writer: TensorOp, op: TensorOp, tensors: Mapping[str, Tensor]) -> SplitOff | None:
    """A piece's writer and its copy, named after both and the reader `op`, which comes next.

    None unless every dimension of what it writes is one of its axes, moved, or one step.
    Cost: linear in the operator.
    """
    axes = {axis.name: axis for axis in writer.parallel_axes}
    at: list[Affine] = []
    shape: list[int] = []
    for expr in writer.write.index:
        names = expr.variables()
        if len(names) > 1 or (names and expr - expr.const != var(names[0])):
            return None
        at.append(expr - expr.const)
        shape.append(axes[names[0]].extent if names else 1)
    used = [name for expr in at for name in expr.variables()]
    left = [axis for name, axis in axes.items() if name not in used and axis.extent > 1]
    name = f"{writer.name}/{op.name}"
    if left or len(used) != len(set(used)):
        return None
    made = Tensor(name, tuple(shape), tensors[writer.write.tensor].dtype)
    alone = replace(writer, write=Access(name, tuple(at)))
    still = {n: Affine() for n in axes if n not in used}
    copy = TensorOp(
        name, tuple(axes[n] for n in used), (Access(name, tuple(at)),),
        Access(writer.write.tensor, tuple(e.substitute(still) for e in writer.write.index)),
        Read(0), None, Origin((), op.origin.op_type),
    )  # fmt: skip
    return SplitOff(alone, copy, made)
