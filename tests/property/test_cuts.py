"""Cutting pieces out of a graph, against the definition of each list."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from hypothesis_profiles import COSTLY

from worker.compiler.ir.affine import var
from worker.compiler.ir.axis import Axis
from worker.compiler.ir.dtype import DType
from worker.compiler.ir.graph import Graph
from worker.compiler.ir.op import Access, Origin, Tensor, TensorOp
from worker.compiler.ir.region import Cuts
from worker.compiler.ir.scalar import Read


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Random dataflow: each operator reads up to three earlier tensors and writes one."""
    count = draw(st.integers(1, 9))
    names = ["in0", "in1", "const0", "const1"]
    ops = []
    for k in range(count):
        reads = draw(st.lists(st.sampled_from(names), min_size=1, max_size=3))
        ops.append(
            TensorOp(
                f"op{k}",
                (Axis("i", 4),),
                tuple(Access(name, (var("i"),)) for name in reads),
                Access(f"t{k}", (var("i"),)),
                Read(0),
                None,
                Origin((f"n{k}",), "Sum"),
            )
        )
        names.append(f"t{k}")
    made = [op.write.tensor for op in ops]
    outputs = draw(st.lists(st.sampled_from(made), min_size=1, unique=True))
    tensors = tuple(Tensor(name, (4,), DType.F32) for name in names)
    return Graph.build(tuple(ops), tensors, ("in0", "in1"), tuple(outputs), ("const0", "const1"))


@given(graph=graphs(), data=st.data())
def test_piece_is_what_its_definition_says(graph: Graph, data: st.DataObject) -> None:
    names = [op.name for op in graph.ops]
    chosen = data.draw(st.lists(st.sampled_from(names), min_size=1, unique=True))
    piece = Cuts.of(graph).piece(chosen)
    inside = [op for op in graph.ops if op.name in chosen]
    outside = [op for op in graph.ops if op.name not in chosen]
    assert list(piece.ops) == inside
    written = [op.write.tensor for op in inside]
    read = [name for op in inside for name in op.input_names() if name not in written]
    expected_reads = sorted(set(read), key=read.index)
    assert piece.inputs == tuple(n for n in expected_reads if not n.startswith("const"))
    assert piece.constants == tuple(n for n in expected_reads if n.startswith("const"))
    needed = {name for op in outside for name in op.input_names()} | set(graph.outputs)
    assert piece.outputs == tuple(n for n in written if n in needed)
    assert set(piece.tensors) == {*written, *expected_reads}


@COSTLY
@given(graph=graphs())
def test_operators_are_found_by_name(graph: Graph) -> None:
    cuts = Cuts.of(graph)
    assert [cuts.op(op.name) for op in graph.ops] == list(graph.ops)
