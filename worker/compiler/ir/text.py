"""Graphs as text: the golden-file surface, the signature's preimage, and a parser for both.

Grammar (one line each; names are quoted when they are not plain identifiers):
    input NAME: DTYPE[d0,d1]        const NAME: DTYPE[..]      tensor NAME: DTYPE[..]
    op NAME (axis:extent:kind, ..) write T[i, ..] [reduce=FN] = BODY from OPTYPE {node, ..}
      read T[i, ..] [fill=V]
    output NAME
"""

from __future__ import annotations

import json
import re

from worker.compiler.ir.affine import Affine
from worker.compiler.ir.axis import Axis
from worker.compiler.ir.graph import Graph
from worker.compiler.ir.op import Access, Tensor, TensorOp
from worker.compiler.ir.scalar import Apply, Cast, Const, Index, Read, Scalar, Select

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*\Z")


def quote(name: str) -> str:
    """A name as a token: plain identifiers as they are, anything else as a JSON string."""
    return name if _PLAIN.match(name) else json.dumps(name)


def fresh_name(base: str, taken: set[str]) -> str:
    """`base`, or `base` with the first number from 2 on that makes it new; then it is taken."""
    name, k = base, 1
    while name in taken:
        k += 1
        name = f"{base}.{k}"
    taken.add(name)
    return name


def number(value: float | int) -> str:
    """A number exactly: ints in decimal, floats by shortest round-trip repr (inf, -inf)."""
    return str(value) if isinstance(value, int) else repr(float(value))


def print_scalar(expr: Scalar) -> str:
    """Print a body as an S-expression-like term."""
    match expr:
        case Read(slot):
            return f"${slot}"
        case Const(value, dtype):
            return f"{number(value)}:{dtype}"
        case Index(affine):
            return f"index({affine})"
        case Cast(dtype, arg):
            return f"cast_{dtype}({print_scalar(arg)})"
        case Select(cond, a, b):
            return f"select({print_scalar(cond)}, {print_scalar(a)}, {print_scalar(b)})"
        case Apply(fn, args):
            return f"{fn}({', '.join(map(print_scalar, args))})"


def _indices(index: tuple[Affine, ...]) -> str:
    return "[" + ", ".join(map(str, index)) + "]"


def _access(access: Access) -> str:
    fill = "" if access.fill is None else f" fill={number(access.fill)}"
    return f"{quote(access.tensor)}{_indices(access.index)}{fill}"


def _names(names: tuple[str, ...]) -> str:
    return "{" + ", ".join(map(json.dumps, names)) + "}"


def _axis(axis: Axis) -> str:
    return f"{quote(axis.name)}:{axis.extent}:{axis.kind}"


def print_op(op: TensorOp, *, with_origin: bool = True) -> list[str]:
    """Lines of one operator."""
    reduce = "" if op.reduce is None else f" reduce={op.reduce}"
    by = f" by {quote(op.instruction)}" if op.instruction else ""
    origin = f" from {op.origin.op_type} {_names(op.origin.nodes)}" if with_origin else ""
    axes = ", ".join(map(_axis, op.domain))
    lines = [
        f"op {quote(op.name)} ({axes}) write {_access(op.write)}{reduce}"
        f" = {print_scalar(op.body)}{by}{origin}"
    ]
    lines += [f"  read {_access(access)}" for access in op.reads]
    return lines


def _tensor(word: str, tensor: Tensor) -> str:
    return f"{word} {quote(tensor.name)}: {tensor.dtype}[{','.join(map(str, tensor.shape))}]"


def print_graph(graph: Graph, *, with_origin: bool = True) -> str:
    """Print a graph.  `parse_graph(print_graph(g)) == g`.

    `with_origin=False` leaves provenance out: the form that signatures are made of.
    """
    lines = [_tensor("input", graph.tensors[n]) for n in graph.inputs]
    lines += [_tensor("const", graph.tensors[n]) for n in graph.constants]
    known = {*graph.inputs, *graph.constants}
    lines += [_tensor("tensor", t) for n, t in graph.tensors.items() if n not in known]
    for op in graph.ops:
        lines += print_op(op, with_origin=with_origin)
    lines += [f"output {quote(n)}" for n in graph.outputs]
    return "\n".join(lines) + "\n"
