"""A kernel of many nodes is named by its ends and its count."""

from __future__ import annotations

import pytest

from worker.report.node_names import kernel_op_type, node_span, short_op_type

KINDS = {"c": "Conv", "r": "Relu", "a": "Add", "q": "QuantizeLinear", "d": "DequantizeLinear"}


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ([], ""),
        (["conv1"], "conv1"),
        (["a", "b", "c"], "a, b, c"),
        (["a", "b", "c", "d"], "a .. d (4 nodes)"),
        (["conv1", *map(str, range(9)), "relu_5"], "conv1 .. relu_5 (11 nodes)"),
    ],
)
def test_spans(names: list[str], text: str) -> None:
    assert node_span(names) == text


@pytest.mark.parametrize(
    ("first", "nodes", "text"),
    [
        ("Conv", "c", "Conv"),
        ("Conv", "", "Conv"),
        ("Conv", "crcra", "Conv+Relu+Add"),
        ("Conv", "dcrq", "Conv+Relu"),
        ("DequantizeLinear", "dcq", "Conv"),
        ("QuantizeLinear", "q", "QuantizeLinear"),
        ("LayoutTransform", "cr", "LayoutTransform+Conv+Relu"),
        ("Conv+Relu", "cra", "Conv+Relu+Add"),
        ("Conv", "cx", "Conv"),  # a node the table does not know is left out
    ],
)
def test_operator_types_of_a_kernel(first: str, nodes: str, text: str) -> None:
    assert kernel_op_type(first, list(nodes), KINDS) == text


def test_long_types_are_cut_for_plots() -> None:
    assert short_op_type("Conv+Relu+Add") == "Conv+Relu+Add"
    assert short_op_type("Conv+Relu+Add+MaxPool+Gemm") == "Conv+Relu+Add+2 more"
