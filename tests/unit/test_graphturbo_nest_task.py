"""A layer in front of many more weights leaves them a part of the global buffer."""

from __future__ import annotations

from math import inf

import pytest
from graphturbo_nets import Net, unit_context
from machine_rates import with_rate

from worker.compiler.ir.dtype import DType
from worker.compiler.ir.graph import Graph
from worker.compiler.machine import load_preset
from worker.compiler.strategies.graphturbo.site import Part, Site, Spread
from worker.compiler.strategies.graphturbo.unit_plan import Planner
from worker.compiler.tiling.layer import nest_task
from worker.compiler.tiling.layer.plan_layer import bytes_in
from worker.compiler.tiling.nest.plan import Plan

ON = with_rate(load_preset("stcp920-inferred"), "MME", DType.F32, 512)
"""With an FP32 rate on its matrix engine: the sizes below are of 4-byte words."""
SHARE = int(ON.level("LLB").usable_bytes * nest_task.WEIGHT_SHARE)


def chain(layers: int) -> Graph:
    """Products with weights of 4 MiB each: more than a lean layer's share, less than the room."""
    net = Net()
    last = net.given(64, 1024)
    for _ in range(layers):
        last = net.matmul(last, 1024)
    return net.graph(last)


def planner(layers: int) -> Planner:
    graph = chain(layers)
    ctx = unit_context(graph, ON)
    part = Part(tuple(range(len(ctx.layers))), None, 1)
    site = Site(ON, ctx.buffer, Spread(1, ON.num_cores // ctx.clusters), (part,), {})
    return Planner(graph, ctx.layers, ctx.engines, site)


def weights_in_buffer(layers: int) -> list[int]:
    """Bytes of weights in the cluster's buffer at once, per layer."""
    found = planner(layers)
    plan = found.plan((False,) * layers)
    assert plan is not None
    tiles = [layer.tiles for layer in plan.layers]
    assert len(tiles) == layers and all(isinstance(t, Plan) for t in tiles)
    return [bytes_in(t, "LLB", found.graph.constants) for t in tiles if isinstance(t, Plan)]


def test_layers_in_front_of_many_weights_take_their_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nest_task, "RESERVE_GAIN", inf)
    found = weights_in_buffer(4)
    # 8 MiB and more follow the first two, 4 MiB the third: the rest of the buffer holds them.
    assert max(found[:2]) <= SHARE
    assert min(found[2:]) > SHARE


def test_a_layer_that_would_be_much_slower_keeps_the_buffer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(nest_task, "RESERVE_GAIN", 0)
    assert min(weights_in_buffer(4)) > SHARE
