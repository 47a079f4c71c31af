"""Signatures: name-free digests of graphs, the first field of every cache key.

Two graphs that differ only in names (of tensors, operators, axes, ONNX nodes) or in weight values
have one canonical form; anything else changes it.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256

from worker.compiler.ir.affine import Affine, FloorDiv, Lookup, Mod, Var, var
from worker.compiler.ir.axis import Axis
from worker.compiler.ir.graph import Graph
from worker.compiler.ir.op import Access, Origin, Tensor, TensorOp
from worker.compiler.ir.scalar import Apply, Cast, Index, Scalar, Select
from worker.compiler.ir.text import print_graph

IR_VERSION = "1"
"""Bump when the canonical text or its meaning changes: old cache entries must miss."""

CANONICAL_ORIGIN = Origin((), "unit")


@dataclass(frozen=True, slots=True)
class Canonical:
    """A graph with canonical names, and the way back."""

    graph: Graph
    tensor_of: tuple[tuple[str, str], ...]
    """(canonical name, original name)."""

    @property
    def signature(self) -> str:
        text = f"ir {IR_VERSION}\n" + print_graph(self.graph, with_origin=False)
        return sha256(text.encode()).hexdigest()


def canonicalize(graph: Graph) -> Canonical:
    """Rename operators, tensors and axes by position.

    Tensors are numbered by first use walking the operators in graph order, read slots before the
    write; axes by position in their domain.  Cost: linear.
    """
    order: dict[str, str] = {}

    def name_of(tensor: str) -> str:
        return order.setdefault(tensor, f"t{len(order)}")

    ops: list[TensorOp] = []
    for k, op in enumerate(graph.ops):
        ops.append(_rename_op(op, f"op{k}", name_of))
    for name in (*graph.inputs, *graph.constants, *graph.outputs):
        name_of(name)
    tensors = tuple(
        Tensor(new, graph.tensors[old].shape, graph.tensors[old].dtype)
        for old, new in order.items()
    )
    canonical = Graph.build(
        tuple(ops),
        tensors,
        tuple(sorted((order[n] for n in graph.inputs), key=_number)),
        tuple(sorted((order[n] for n in graph.outputs), key=_number)),
        tuple(sorted((order[n] for n in graph.constants), key=_number)),
    )
    return Canonical(canonical, tuple((new, old) for old, new in order.items()))


def signature(graph: Graph) -> str:
    """Hex sha256 of the canonical form."""
    return canonicalize(graph).signature


def _number(name: str) -> int:
    return int(name[1:])


def _rename_op(op: TensorOp, name: str, name_of: object) -> TensorOp:
    assert callable(name_of)
    axes = {axis.name: f"a{k}" for k, axis in enumerate(op.domain)}
    domain = tuple(Axis(axes[a.name], a.extent, a.kind) for a in op.domain)

    def access(old: Access) -> Access:
        index = tuple(rename_affine(e, axes) for e in old.index)
        return Access(name_of(old.tensor), index, old.fill)

    reads = tuple(access(a) for a in op.reads)
    body = _rename_scalar(op.body, axes)
    return TensorOp(
        name, domain, reads, access(op.write), body, op.reduce, CANONICAL_ORIGIN, op.instruction
    )


def rename_affine(expr: Affine, names: dict[str, str]) -> Affine:
    """Rename variables; all at once, so swaps are safe."""
    total = Affine((), expr.const)
    for atom, coeff in expr.terms:
        match atom:
            case Var(name):
                part = var(names.get(name, name))
            case FloorDiv(arg, divisor):
                part = Affine(((FloorDiv(rename_affine(arg, names), divisor), 1),), 0)
            case Mod(arg, divisor):
                part = Affine(((Mod(rename_affine(arg, names), divisor), 1),), 0)
            case Lookup():
                part = Affine(((atom, 1),), 0)
        total = total + part * coeff
    return total


def _rename_scalar(expr: Scalar, names: dict[str, str]) -> Scalar:
    match expr:
        case Index(affine):
            return Index(rename_affine(affine, names))
        case Apply(fn, args):
            return Apply(fn, tuple(_rename_scalar(a, names) for a in args))
        case Cast(dtype, arg):
            return Cast(dtype, _rename_scalar(arg, names))
        case Select(cond, a, b):
            return Select(
                _rename_scalar(cond, names), _rename_scalar(a, names), _rename_scalar(b, names)
            )
        case _:
            return expr
