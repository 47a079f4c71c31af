"""Equations of Einsum: what they say is what numpy makes of them; what says nothing is refused."""

from __future__ import annotations

import string

import numpy as np
import onnx_ir
import pytest
from onnx import TensorProto, helper

from worker.compiler.frontend.equation import MalformedEquationError, read_equation
from worker.compiler.frontend.model_summary import einsum_steps


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("ij,jk->ik", [(2, 3), (3, 4)]),
        ("ij,jk", [(2, 3), (3, 4)]),
        ("ba", [(2, 3)]),
        (" i j , j -> i", [(2, 3), (3,)]),
        ("ii->i", [(3, 3)]),
        ("...ij,...jk->...ik", [(2, 1, 3, 4), (5, 4, 2)]),
        ("...i,i", [(2, 3, 4), (4,)]),
        ("i...,i...->...", [(4, 2, 1), (4, 5)]),
        ("...,->...", [(2, 3), ()]),
        ("...i->i...", [(2, 3, 4)]),
        ("ij,ij,ij->", [(2, 3)] * 3),
    ],
)
def test_indices_say_what_numpy_computes(equation: str, shapes: list[tuple[int, ...]]) -> None:
    """The same with a letter for every index and with the result spelt out."""
    rng = np.random.default_rng(1)
    arrays = [rng.standard_normal(shape) for shape in shapes]
    said = read_equation(equation, [len(shape) for shape in shapes])
    letter = dict(zip(said.indices, string.ascii_letters, strict=False))
    extents = {i: max(a.shape[own.index(i)] for a, own in zip(arrays, said.operands, strict=True)
                      if i in own) for i in said.indices}  # fmt: skip
    whole = [  # numpy broadcasts dots alone
        np.broadcast_to(a, [extents[i] for i in own])
        for a, own in zip(arrays, said.operands, strict=True)
    ]
    spelt = ",".join("".join(letter[i] for i in own) for own in said.operands)
    spelt += "->" + "".join(letter[i] for i in said.result)
    assert np.allclose(np.einsum(spelt, *whole), np.einsum(equation, *arrays))


@pytest.mark.parametrize(
    ("equation", "ranks", "said"),
    [
        ("ij->i", [2, 2], "for 2 operands"),
        ("ij->i", [3], "does not fit operands of rank 3"),
        ("i1->i", [2], "does not fit"),
        ("ij->ii", [2], "malformed result"),
        ("ij->k", [2], "malformed result"),
    ],
)
def test_what_says_nothing_is_refused(equation: str, ranks: list[int], said: str) -> None:
    with pytest.raises(MalformedEquationError, match=said):
        read_equation(equation, ranks)


def test_steps_are_counted_for_each_broadcast_dimension() -> None:
    """Dots of 1 x 5 and of 3 x 1 are 3 x 5 together."""
    shapes = {"a": (1, 5, 2), "b": (3, 1, 2)}
    node = helper.make_node("Einsum", ["a", "b"], ["y"], equation="...i,...i->...")
    graph = helper.make_graph(
        [node], "g",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in shapes.items()],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (3, 5))],
    )  # fmt: skip
    model = onnx_ir.serde.deserialize_model(helper.make_model(graph))
    assert einsum_steps(model.graph.node(0)) == 3 * 5 * 2
