"""A graph of operators in a deterministic dataflow order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from worker.compiler.errors import VerifyError
from worker.compiler.ir.op import Tensor, TensorOp, check_op


@dataclass(frozen=True, slots=True)
class Graph:
    """Operators in execution order over named tensors.

    `inputs` and `constants` are defined from outside; every other tensor is written by one
    operator, or by several with disjoint writes (concat).  Constant *values* live elsewhere.
    """

    ops: tuple[TensorOp, ...]
    tensors: Mapping[str, Tensor]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    constants: tuple[str, ...] = ()

    @staticmethod
    def build(
        ops: tuple[TensorOp, ...],
        tensors: tuple[Tensor, ...],
        inputs: tuple[str, ...],
        outputs: tuple[str, ...],
        constants: tuple[str, ...] = (),
    ) -> Graph:
        """Construct and check.

        Raises:
            VerifyError: see `check_op`; also use before definition and duplicate names.
        """
        table = {t.name: t for t in tensors}
        if len(table) != len(tensors):
            raise VerifyError("express", "graph", "unique-tensors", "tensor names repeat")
        graph = Graph(ops, MappingProxyType(table), inputs, outputs, constants)
        graph.check()
        return graph

    def check(self) -> None:
        """Raise VerifyError if any structural rule is broken.  Cost: linear."""
        defined = {*self.inputs, *self.constants}
        op_names: set[str] = set()
        for op in self.ops:
            if op.name in op_names:
                raise VerifyError("express", op.name, "unique-ops", "operator names repeat")
            op_names.add(op.name)
            check_op(op, self.tensors)
            for name in op.input_names():
                if name not in defined:
                    raise VerifyError("express", op.name, "defined", f"{name} read before written")
            name = op.write.tensor
            if name in self.inputs or name in self.constants:
                raise VerifyError("express", op.name, "single-def", f"{name} is an input")
            defined.add(op.write.tensor)
        for name in self.outputs:
            if name not in defined:
                raise VerifyError("express", "graph", "outputs", f"{name} is never written")

    def op(self, name: str) -> TensorOp:
        """The operator called `name`; KeyError if there is none."""
        for op in self.ops:
            if op.name == name:
                return op
        raise KeyError(name)
