"""A laid-out region as text, as golden files: conversions, accesses and row orders in full."""

from __future__ import annotations

from pathlib import Path

import pytest
from layout_models import BLOCKED, NHWC, conv_relu_conv

from worker.compiler.ir.parse import parse_graph
from worker.compiler.ir.text import print_graph
from worker.compiler.layout.lay_out import lay_out
from worker.compiler.machine.layout_policy import LayoutPolicy

GOLDEN = Path(__file__).parent / "layout"


@pytest.mark.parametrize("policy", [NHWC, BLOCKED], ids=["nhwc", "nchw16c"])
def test_conv_relu_conv(policy: LayoutPolicy, request: pytest.FixtureRequest) -> None:
    laid = lay_out(conv_relu_conv(), policy)
    header = "".join(
        f"# {c.kind} {c.tensor}: {c.from_layout} -> {c.to_layout}: {c.reason}\n"
        for c in laid.changes
    )
    graph = laid.expressed.graph
    text = print_graph(graph)
    assert parse_graph(text) == graph
    path = GOLDEN / f"conv_relu_conv.{policy.activations.lower()}.graph"
    if request.config.getoption("--update-golden"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(header + text)
    assert path.read_text() == header + text
