"""Random regions in random layouts compute what they computed, bit for bit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from layout_models import OP_TYPES, RegionBuilder, assert_same

from worker.compiler.cost.compute import contraction
from worker.compiler.frontend.express import Expressed
from worker.compiler.ir.affine import Affine
from worker.compiler.ir.op import TensorOp
from worker.compiler.ir.text import print_graph
from worker.compiler.layout.lay_out import ChangeKind, lay_out
from worker.compiler.layout.rewrite import TRANSFORM
from worker.compiler.machine.layout_policy import LayoutPolicy

ACTIVATIONS = ("NHWC", "NCHW2c", "NCHW4c", "NHWC2c", "NCHW4c2h", "CHWN", "NCHW2c2c", "NCHW")
WEIGHTS = ("OIHW", "HWIO", "OHWI", "OIHW2i2o", "OIHW4o", "OIHW4i4o", "OHWI2i", "OIHW2i2o2i")


@dataclass
class Growing:
    """A tensor of the region so far."""

    name: str
    channels: int
    space: tuple[int, ...]


def _conv(draw: st.DrawFn, region: RegionBuilder, x: Growing, out: str) -> Growing:
    kinds = ["plain", "depthwise", "grouped"] if x.channels % 2 == 0 else ["plain", "depthwise"]
    kind = draw(st.sampled_from(kinds))
    groups = {"plain": 1, "depthwise": x.channels, "grouped": 2}[kind]
    channels = groups * draw(st.sampled_from([1, 2, 4] if groups > 1 else [2, 3, 4, 6, 8]))
    kernel = draw(st.sampled_from([1, 3]))
    pad = draw(st.integers(0, 1)) if kernel == 3 else 0
    stride = draw(st.integers(1, 2))
    if any(n + 2 * pad < kernel for n in x.space):
        kernel, pad = 1, 0
    rank = len(x.space)
    inputs = [
        x.name,
        region.constant(f"w_{out}", (channels, x.channels // groups, *[kernel] * rank)),
    ]
    if draw(st.booleans()):
        inputs.append(region.constant(f"b_{out}", (channels,)))
    region.add("Conv", inputs, out, group=groups, strides=[stride] * rank, pads=[pad] * (2 * rank))
    space = tuple((n + 2 * pad - kernel) // stride + 1 for n in x.space)
    return Growing(out, channels, space)


def _transposed(draw: st.DrawFn, region: RegionBuilder, x: Growing, out: str) -> Growing:
    groups = draw(st.sampled_from([1, 2])) if x.channels % 2 == 0 else 1
    each = draw(st.sampled_from([1, 2, 4]))
    stride = draw(st.integers(1, 2))
    rank = len(x.space)
    weights = region.constant(f"w_{out}", (x.channels, each, *[2] * rank))
    region.add("ConvTranspose", [x.name, weights], out, group=groups, strides=[stride] * rank)
    return Growing(out, each * groups, tuple((n - 1) * stride + 2 for n in x.space))


def _pool(draw: st.DrawFn, region: RegionBuilder, x: Growing, out: str) -> Growing:
    rank = len(x.space)
    kind = draw(st.sampled_from(["MaxPool", "AveragePool"]))
    kernel = 2 if min(x.space) >= 2 else 1
    region.add(kind, [x.name], out, kernel_shape=[kernel] * rank, strides=[1] * rank)
    return Growing(out, x.channels, tuple(n - kernel + 1 for n in x.space))


def _unary(draw: st.DrawFn, region: RegionBuilder, x: Growing, out: str) -> Growing:
    match draw(st.sampled_from(["Relu", "slope", "scale", "shuffle", "softmax"])):
        case "Relu":
            region.add("Relu", [x.name], out)
        case "slope":
            slope = region.constant(f"s_{out}", (x.channels, *[1] * len(x.space)))
            region.add("PRelu", [x.name, slope], out)
        case "scale":
            region.add("Neg", [x.name], out)
        case "shuffle":
            order = np.roll(np.arange(x.channels), 1)
            region.add("Gather", [x.name, region.array(f"g_{out}", order)], out, axis=1)
        case _:
            region.add("ReduceMax", [x.name, region.array(f"r_{out}", np.array([1]))], f"m_{out}")
            region.add("Sub", [x.name, f"m_{out}"], out)
    return Growing(out, x.channels, x.space)


def _turned(draw: st.DrawFn, region: RegionBuilder, x: Growing, out: str) -> Growing:
    """Channels last for one operator, as exporters of channels-last models write it."""
    rank = len(x.space) + 2
    region.add("Transpose", [x.name], f"l_{out}", perm=[0, *range(2, rank), 1])
    last = f"l_{out}"
    if draw(st.booleans()):
        last = region.add("Neg", [last], f"n_{out}")
    region.add("Transpose", [last], out, perm=[0, rank - 1, *range(1, rank - 1)])
    return Growing(out, x.channels, x.space)


@st.composite
def regions(draw: st.DrawFn) -> Expressed:
    """Up to seven nodes; any tensor may be an output as well."""
    rank = draw(st.integers(1, 3))
    space = tuple(draw(st.integers(2, 5)) for _ in range(rank))
    batch, channels = draw(st.integers(1, 2)), draw(st.sampled_from([2, 3, 4, 8]))
    region = RegionBuilder({"x": (batch, channels, *space), "z": (batch, channels, *space)},
                           draw(st.integers(0, 99)))  # fmt: skip
    grown = [Growing("x", channels, space), Growing("z", channels, space)]
    made: list[str] = []
    for k in range(draw(st.integers(1, 7))):
        x = draw(st.sampled_from(grown))
        out = f"t{k}"
        step: Any = draw(st.sampled_from([_conv, _conv, _transposed, _pool, _unary, _turned, None]))
        if step is not None:
            grown.append(step(draw, region, x, out))
        else:
            mates = [y for y in grown if y.space == x.space]
            y = draw(st.sampled_from(mates))
            if y.channels == x.channels and draw(st.booleans()):
                region.add("Add", [x.name, y.name], out)
                grown.append(Growing(out, x.channels, x.space))
            else:
                region.add("Concat", [x.name, y.name], out, axis=1)
                grown.append(Growing(out, x.channels + y.channels, x.space))
        made.append(out)
    extra = draw(st.lists(st.sampled_from(made), max_size=2))
    return region.express(list(dict.fromkeys([*extra, made[-1]])))


@st.composite
def policies(draw: st.DrawFn) -> LayoutPolicy:
    some = st.lists(st.sampled_from(OP_TYPES), min_size=1, unique=True).map(tuple)
    wanting = draw(st.one_of(st.just(OP_TYPES), st.just(("Conv", "MaxPool")), some))
    return LayoutPolicy(draw(st.sampled_from(ACTIVATIONS)), draw(st.sampled_from(WEIGHTS)), wanting)


def _kept_linear(old: TensorOp, new: TensorOp) -> bool:
    """No // or % that the operator did not have before."""

    def odd(indices: tuple[Affine, ...]) -> int:
        return sum(not e.is_linear for e in indices)

    pairs = zip((*old.reads, old.write), (*new.reads, new.write), strict=True)
    return all(odd(b.index) <= odd(a.index) for a, b in pairs)


@given(regions(), policies(), st.integers(0, 1000))
def test_layouts_change_no_value(region: Expressed, policy: LayoutPolicy, seed: int) -> None:
    laid = lay_out(region, policy)
    assert_same(region, laid, seed)
    graph = laid.expressed.graph
    converts = [
        c for c in laid.changes
        if c.kind in (ChangeKind.BOUNDARY_IN, ChangeKind.BOUNDARY_OUT, ChangeKind.INTERIOR)
    ]  # fmt: skip
    inserted = [op for op in graph.ops if op.origin.op_type == TRANSFORM]
    assert len(converts) == laid.transforms_inserted == len(inserted)
    if all(not b.isdigit() for b in policy.activations):
        assert all(c.kind is not ChangeKind.INTERIOR for c in converts)
    for op in region.graph.ops:
        if any(op.name == other.name for other in graph.ops):
            new = graph.op(op.name)
            assert _kept_linear(op, new)
            assert (contraction(op) is None) == (contraction(new) is None)
            digits = dict.fromkeys(a.name.partition(".")[0] for a in new.reduce_axes)
            assert tuple(digits) == tuple(a.name for a in op.reduce_axes)
    again = lay_out(region, policy)
    assert print_graph(again.expressed.graph) == print_graph(graph)
    assert again.changes == laid.changes


@given(regions(), policies(), st.data())
def test_composites_get_no_conversion_inside(
    region: Expressed, policy: LayoutPolicy, data: st.DataObject
) -> None:
    names = [op.name for op in region.graph.ops]
    first = data.draw(st.integers(0, len(names) - 1))
    members = tuple(names[first : first + data.draw(st.integers(2, 4))])
    laid = lay_out(region, policy, [members])
    assert_same(region, laid)
    graph = laid.expressed.graph
    writes = {op.write.tensor for op in graph.ops if op.name in members}
    converted = {op.write.tensor: op.reads[0].tensor for op in graph.ops
                 if op.origin.op_type == TRANSFORM}  # fmt: skip
    for op in graph.ops:
        if op.name in members:
            assert all(converted.get(r.tensor) not in writes for r in op.reads)
