"""Apply an assignment of layouts: rewritten accesses, conversions, packed constants.

Inside the region a tensor in another layout gets another name, so that a name of the model always
means the model's layout.  Inputs and outputs keep theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy.typing as npt

from worker.compiler.ir.affine import Affine, Interval, Var, const, var
from worker.compiler.ir.axis import Axis, AxisKind
from worker.compiler.ir.graph import Graph
from worker.compiler.ir.layout import Layout
from worker.compiler.ir.op import (
    Access,
    Origin,
    Tensor,
    TensorOp,
)
from worker.compiler.ir.scalar import Apply, Cast, Index, Read, Scalar, Select
from worker.compiler.ir.text import fresh_name
from worker.compiler.layout.assign import Assignment, Reading
from worker.compiler.layout.change import ChangeKind, LayoutChange
from worker.compiler.layout.digits import Digits

TRANSFORM = "LayoutTransform"
"""Op type of inserted conversions."""

Thunk = Callable[[], npt.NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A region in its new layouts."""

    graph: Graph
    constants: Mapping[str, Thunk]
    changes: tuple[LayoutChange, ...]
    transforms: tuple[str, ...]
    """Names of the inserted operators."""


def rewrite(graph: Graph, constants: Mapping[str, Thunk], assignment: Assignment) -> Rewritten:
    """Rewrite every operator, inserting what converts.  Cost: linear in the region."""
    return _Rewriter(graph, constants, assignment).run()


def physical(
    op: TensorOp, reading: Reading, names: Sequence[str], write_name: str, home: Layout | None
) -> TensorOp:
    """`op` over split axes, its reads and its write indexing tensors in their new layouts.

    The order of the domain's points stays, so sums keep their order.
    """
    axes = reading.digits.axes()
    values = reading.digits.values()
    box = {a.name: (0, a.extent - 1) for a in axes}

    def moved(access: Access, name: str, layout: Layout | None) -> Access:
        index = tuple(e.substitute(values) if values else e for e in access.index)
        if layout is not None:
            index = layout.index(index)
            if layout.blocked_letters:
                index = tuple(_simplified(e, box) for e in index)
        return Access(name, index, access.fill)

    reads = tuple(moved(r, n, f) for r, n, f in zip(op.reads, names, reading.forms, strict=True))
    write = moved(op.write, write_name, home)
    body = _substituted(op.body, values) if values else op.body
    return replace(op, domain=axes, reads=reads, write=write, body=body)


def _simplified(expr: Affine, box: Mapping[str, Interval]) -> Affine:
    return expr if expr.is_linear else expr.within(box)


def _substituted(expr: Scalar, values: Mapping[str, Affine]) -> Scalar:
    """A body with the axes that its index expressions name replaced."""
    match expr:
        case Index(affine):
            return Index(affine.substitute(values))
        case Apply(fn, args):
            return Apply(fn, tuple(_substituted(a, values) for a in args))
        case Cast(dtype, arg):
            return Cast(dtype, _substituted(arg, values))
        case Select(cond, a, b):
            return Select(
                _substituted(cond, values), _substituted(a, values), _substituted(b, values)
            )
        case _:
            return expr


class _Rewriter:
    """Grows the new region operator by operator."""

    def __init__(
        self, graph: Graph, constants: Mapping[str, Thunk], assignment: Assignment
    ) -> None:
        self._graph = graph
        self._constants = dict(constants)
        self._plan = assignment
        self._ops: list[TensorOp] = []
        self._tensors: dict[str, Tensor] = dict(graph.tensors)
        self._names = set(graph.tensors)
        self._op_names = {op.name for op in graph.ops}
        self._changes: list[LayoutChange] = []
        self._transforms: list[str] = []
        self._variants: dict[tuple[str, Layout | None], str] = {}
        self._last_writer: dict[str, int] = {}
        for k, op in enumerate(graph.ops):
            self._last_writer[op.write.tensor] = k

    def run(self) -> Rewritten:
        graph = self._graph
        for name in graph.tensors:
            home = self._plan.home.get(name)
            self._variants[name, home] = (
                name if home is None else self._add(name, f"{name}.{home}", home)
            )
        for k, op in enumerate(graph.ops):
            self._rewrite(k, op)
            name = op.write.tensor
            is_done = self._last_writer[name] == k
            if is_done and name in graph.outputs and name in self._plan.home:
                self._produce_output(name, op)
        used = dict.fromkeys(n for op in self._ops for n in (*op.input_names(), op.write.tensor))
        kept = (*graph.inputs, *graph.outputs)
        constants = {n: t for n, t in self._constants.items() if n in used or n in kept}
        tensors = tuple(t for t in self._tensors.values() if t.name in used or t.name in kept)
        result = Graph.build(
            tuple(self._ops), tensors, graph.inputs, graph.outputs, tuple(constants)
        )
        changes = (*self._changes, *self._plan.refused)
        return Rewritten(result, constants, changes, tuple(self._transforms))

    def _rewrite(self, k: int, op: TensorOp) -> None:
        reading = self._plan.readings[k]
        names = [
            self._variant(read.tensor, form, op)
            for read, form in zip(op.reads, reading.forms, strict=True)
        ]
        home = self._plan.home.get(op.write.tensor)
        target = self._variants[op.write.tensor, home]
        moved = physical(op, reading, names, target, home)
        self._ops.append(moved if home is None else _in_memory_order(moved))

    def _variant(self, name: str, form: Layout | None, reader: TensorOp) -> str:
        """The tensor that holds `name` in a form, converted or packed if there is none yet."""
        known = self._variants.get((name, form))
        if known is not None:
            return known
        if name in self._graph.constants:
            assert form is not None
            return self._pack(name, form, reader)
        home = self._plan.home.get(name)
        is_input = name in self._graph.inputs
        shown = form or home
        assert shown is not None
        text = str(form) if form is not None else shown.logical
        # Another region may convert the same input: the reader's name keeps the two apart.
        base = f"{name}.{text}.{reader.name}" if is_input else f"{name}.{text}"
        made = self._add(name, base, form)
        self._variants[name, form] = made
        kind = ChangeKind.BOUNDARY_IN if is_input else ChangeKind.INTERIOR
        self._convert(name, form, reader.origin.nodes, kind, f"{_who(reader)} reads {text}")
        return made

    def _produce_output(self, name: str, writer: TensorOp) -> None:
        self._variants[name, None] = name
        home = self._plan.home[name]
        self._convert(
            name, None, writer.origin.nodes, ChangeKind.BOUNDARY_OUT,
            f"{_who(writer)} writes {home}, and outside the region it is {home.logical}",
        )  # fmt: skip

    def _convert(
        self, name: str, form: Layout | None, nodes: tuple[str, ...], kind: ChangeKind, reason: str
    ) -> None:
        """Append a copy of a tensor from its home form to another one."""
        home = self._plan.home.get(name)
        tensor = self._graph.tensors[name]
        index = tuple(
            var(f"i{d}") if extent > 1 else const(0) for d, extent in enumerate(tensor.shape)
        )
        axes = tuple(Axis(f"i{d}", extent) for d, extent in enumerate(tensor.shape) if extent > 1)
        target = self._variants[name, form]
        copy = TensorOp(
            fresh_name(target, self._op_names), axes, (Access(name, index),),
            Access(target, index), Read(0), None, Origin(nodes, TRANSFORM),
        )  # fmt: skip
        digits = Digits(copy)
        for layout in (home, form):
            if layout is not None:
                accepted = digits.accept(copy.write, layout)
                assert accepted, name  # plain axes split, and extents were checked
        moved = physical(
            copy, Reading((home,), digits), (self._variants[name, home],), target, form
        )
        self._ops.append(_in_memory_order(moved))
        self._transforms.append(copy.name)
        shown = home or form
        assert shown is not None
        self._changes.append(
            LayoutChange(name, str(home or shown.logical), str(form or shown.logical), kind, reason)
        )

    def _pack(self, name: str, form: Layout, reader: TensorOp) -> str:
        """A constant rearranged while compiling.  Its name says both orders: see `Layout`."""
        made = self._add(name, f"{name}.{form.logical}.{form}", form)
        self._variants[name, form] = made
        given = self._constants[name]
        self._constants[made] = lambda: form.pack(given())
        self._changes.append(
            LayoutChange(
                name, form.logical, str(form), ChangeKind.PREPACKED_CONSTANT,
                f"weights of {_who(reader)}, packed while compiling",
            )
        )  # fmt: skip
        return made

    def _add(self, name: str, base: str, layout: Layout | None) -> str:
        tensor = self._graph.tensors[name]
        shape = tensor.shape if layout is None else layout.shape(tensor.shape)
        made = fresh_name(base, self._names)
        self._tensors[made] = Tensor(made, shape, tensor.dtype)
        return made


def _who(op: TensorOp) -> str:
    node = op.origin.nodes[0] if op.origin.nodes else op.name
    return f"{op.origin.op_type} {node}"


def _in_memory_order(op: TensorOp) -> TensorOp:
    """PARALLEL axes in the order in which the write walks memory, the others behind them as before.

    Loops then run along rows of the result, as they did in ONNX's layout.
    """
    if any(axis.kind is AxisKind.SCAN for axis in op.domain):
        return op
    walked = [
        atom.name
        for expr in op.write.index
        for atom, _ in sorted(expr.terms, key=lambda term: -term[1])
        if isinstance(atom, Var)
    ]
    rank = {name: k for k, name in enumerate(dict.fromkeys(walked))}
    axes = sorted(
        op.domain,
        key=lambda a: (a.kind is not AxisKind.PARALLEL, rank.get(a.name, len(rank))),
    )
    return replace(op, domain=tuple(axes))
