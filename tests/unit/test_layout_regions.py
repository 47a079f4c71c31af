"""Where layouts go in a region, where conversions stand, and why something is refused."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from types import MappingProxyType
from typing import NoReturn

import numpy as np
import pytest
from layout_models import (
    BLOCKED,
    NHWC,
    OP_TYPES,
    RegionBuilder,
    assert_same,
    blocked_by,
    conv_relu_conv,
)

from worker.compiler.frontend.express import Expressed
from worker.compiler.ir.affine import const, var
from worker.compiler.ir.axis import Axis
from worker.compiler.ir.dtype import DType
from worker.compiler.ir.graph import Graph
from worker.compiler.ir.op import Access, Origin, Tensor, TensorOp
from worker.compiler.ir.scalar import Read
from worker.compiler.ir.signature import signature
from worker.compiler.layout.cancel import is_whole_copy
from worker.compiler.layout.lay_out import ChangeKind, LaidOut, LayoutChange, lay_out
from worker.compiler.layout.rewrite import TRANSFORM
from worker.compiler.machine.layout_policy import LayoutPolicy


def kinds(laid: LaidOut) -> Counter[ChangeKind]:
    return Counter(change.kind for change in laid.changes)


def refusals(laid: LaidOut) -> dict[str, LayoutChange]:
    return {c.tensor: c for c in laid.changes if c.kind is ChangeKind.REFUSED}


def transforms(laid: LaidOut) -> list[TensorOp]:
    found = [op for op in laid.expressed.graph.ops if op.origin.op_type == TRANSFORM]
    return list(found)


@pytest.mark.parametrize("policy", [NHWC, BLOCKED])
def test_a_chain_is_converted_at_its_ends_only(policy: LayoutPolicy) -> None:
    region = conv_relu_conv()
    laid = lay_out(region, policy)
    assert_same(region, laid)
    assert kinds(laid) == {
        ChangeKind.BOUNDARY_IN: 1, ChangeKind.BOUNDARY_OUT: 1, ChangeKind.PREPACKED_CONSTANT: 2,
    }  # fmt: skip
    assert [op.origin.nodes for op in transforms(laid)] == [("n_a",), ("n_y",)]
    assert laid.transforms_inserted == 2
    assert laid.transforms_cancelled == 0


def test_shapes_inside_are_the_accelerators() -> None:
    shapes = {t.shape for t in lay_out(conv_relu_conv(), BLOCKED).expressed.graph.tensors.values()}
    assert shapes == {
        (1, 32, 6, 6), (1, 2, 6, 6, 16), (1, 1, 4, 4, 16), (1, 16, 4, 4),
        (2, 2, 3, 3, 16, 16), (1, 2, 3, 3, 16, 16),
    }  # fmt: skip


@pytest.mark.parametrize("policy", [NHWC, BLOCKED])
def test_the_models_own_layout_changes_nothing(policy: LayoutPolicy) -> None:
    region = conv_relu_conv()
    for same in (LayoutPolicy("NCHW", "OIHW", OP_TYPES), replace(policy, op_types=("LRN",))):
        laid = lay_out(region, same)
        assert laid.expressed.graph == region.graph
        assert laid.changes == ()


def test_pointwise_operators_convert_as_they_go() -> None:
    region = RegionBuilder({"x": (1, 4, 5, 5)})
    region.constant("w", (8, 4, 3, 3))
    region.add("Relu", ["x"], "a")
    region.add("Conv", ["a", "w"], "b")
    region.add("Relu", ["b"], "y")
    region_before = region.express(["y"])
    laid = lay_out(region_before, NHWC)
    assert_same(region_before, laid)
    assert laid.transforms_inserted == 0


def test_a_composite_is_one_operator_with_one_layout() -> None:
    region = RegionBuilder({"x": (1, 4, 5, 5)})
    region.constant("w", (8, 4, 3, 3))
    region.add("Conv", ["x", "w"], "a")
    region.add("Relu", ["a"], "y")
    before = region.express(["y"])
    laid = lay_out(before, NHWC, [("a", "y")])
    assert_same(before, laid)
    assert kinds(laid)[ChangeKind.BOUNDARY_OUT] == 1
    assert laid.expressed.graph.tensors["y.NHWC"].shape == (1, 3, 3, 8)
    assert laid.together == (("a", "y"),)


def test_one_conversion_serves_all_readers_of_an_input() -> None:
    region = RegionBuilder({"x": (1, 4, 5, 5)})
    region.constant("w1", (4, 4, 3, 3))
    region.constant("w2", (4, 4, 1, 1))
    region.add("Conv", ["x", "w1"], "a", pads=[1, 1, 1, 1])
    region.add("Conv", ["x", "w2"], "b")
    region.add("Add", ["a", "b"], "c")
    region.add("Add", ["c", "x"], "y")
    before = region.express(["y"])
    laid = lay_out(before, NHWC)
    assert_same(before, laid)
    assert kinds(laid)[ChangeKind.BOUNDARY_IN] == 1
    # the last sum is outside in ONNX's layout, and reads the input as it comes
    assert laid.expressed.graph.op("y").reads[1].tensor == "x"


def test_an_output_used_inside_is_converted_once() -> None:
    region = RegionBuilder({"x": (1, 4, 6, 6)})
    region.constant("w1", (4, 4, 3, 3))
    region.constant("w2", (4, 4, 3, 3))
    region.add("Conv", ["x", "w1"], "a")
    region.add("Relu", ["a"], "b")
    region.add("Conv", ["b", "w2"], "y")
    before = region.express(["b", "y"])
    laid = lay_out(before, NHWC)
    assert_same(before, laid)
    outs = [c.tensor for c in laid.changes if c.kind is ChangeKind.BOUNDARY_OUT]
    assert sorted(outs) == ["b", "y"]
    assert laid.expressed.graph.op("y").reads[0].tensor == "b.NHWC"


def test_channels_that_are_no_multiple_of_the_block() -> None:
    region = RegionBuilder({"x": (1, 3, 6, 6)})
    region.constant("w1", (16, 3, 3, 3))
    region.constant("w2", (24, 16, 3, 3))
    region.add("Conv", ["x", "w1"], "a")
    region.add("Conv", ["a", "w2"], "y")
    before = region.express(["y"])
    laid = lay_out(before, BLOCKED)
    assert_same(before, laid)
    graph = laid.expressed.graph
    assert graph.tensors["a.NCHW16c"].shape == (1, 1, 4, 4, 16)
    found = refusals(laid)
    assert found["x"].reason == "C is 3, no multiple of 16: not blocked"
    assert found["y"].reason == "C is 24, no multiple of 16: not blocked"
    assert "O is 24 in blocks of 16" in found["w2"].reason
    assert graph.tensors["w1.OIHW.OIHW16i16o"].shape == (1, 1, 3, 3, 16, 16)  # 3 padded to 16
    assert graph.tensors["w2.OIHW.OIHW16i"].shape == (24, 1, 3, 3, 16)
    assert laid.transforms_inserted == 0


def test_groups_across_blocks_are_read_unblocked() -> None:
    region = RegionBuilder({"x": (1, 16, 4, 4)})
    region.constant("w1", (16, 16, 1, 1))
    region.constant("w2", (16, 2, 1, 1))
    region.add("Conv", ["x", "w1"], "a")
    region.add("Conv", ["a", "w2"], "b", group=8)
    region.constant("w3", (48, 16, 1, 1))
    region.constant("w4", (48, 24, 1, 1))
    region.add("Conv", ["b", "w3"], "c")
    region.add("Conv", ["c", "w4"], "y", group=2)
    before = region.express(["y"])
    laid = lay_out(before, BLOCKED)
    assert_same(before, laid)
    # groups of 2 channels divide a block of 16; groups of 24 do not, on either side
    assert "b" not in refusals(laid)
    assert refusals(laid)["c"].reason == "Conv y does not walk the blocks in steps"
    interior = [c for c in laid.changes if c.kind is ChangeKind.INTERIOR]
    assert [(c.tensor, c.from_layout, c.to_layout) for c in interior] == [("c", "NCHW16c", "NCHW")]


def test_an_uneven_concat_is_blocked_by_one_conversion() -> None:
    region = RegionBuilder({"x": (1, 16, 4, 4)})
    for name, shape in (("w1", (24, 16, 1, 1)), ("w2", (8, 16, 1, 1)), ("w3", (16, 32, 1, 1))):
        region.constant(name, shape)
    region.add("Conv", ["x", "w1"], "a")
    region.add("Conv", ["x", "w2"], "b")
    region.add("Concat", ["a", "b"], "c", axis=1)
    region.add("Conv", ["c", "w3"], "y")
    before = region.express(["y"])
    laid = lay_out(before, BLOCKED)
    assert_same(before, laid)
    assert [c.tensor for c in laid.changes if c.kind is ChangeKind.INTERIOR] == ["c"]
    even = lay_out(before, blocked_by(8))
    assert_same(before, even)
    assert kinds(even)[ChangeKind.INTERIOR] == 0


def test_a_piece_across_two_blocks_is_written_unblocked() -> None:
    region = RegionBuilder({"x": (1, 4, 3, 3)})
    for name, channels in (("w1", 2), ("w2", 4), ("w3", 2)):
        region.constant(name, (channels, 4, 1, 1))
    region.constant("w4", (4, 8, 1, 1))
    pieces = [region.add("Conv", ["x", f"w{k}"], f"p{k}") for k in (1, 2, 3)]
    region.add("Concat", pieces, "c", axis=1)
    region.add("Conv", ["c", "w4"], "y")
    before = region.express(["y"])
    laid = lay_out(before, blocked_by(4))
    assert_same(before, laid)
    # channels 2 to 5 lie in both blocks of the joined tensor
    assert [c.tensor for c in laid.changes if c.kind is ChangeKind.INTERIOR] == ["c"]
    graph = laid.expressed.graph
    for op in graph.ops:
        assert all(e.is_linear for access in (*op.reads, op.write) for e in access.index)


def test_a_composite_across_blocks_stays_unblocked() -> None:
    region = RegionBuilder({"x": (1, 16, 4, 4)})
    region.constant("w1", (48, 16, 1, 1))
    region.constant("w2", (48, 24, 1, 1))
    region.add("Conv", ["x", "w1"], "c")
    region.add("Conv", ["c", "w2"], "y", group=2)
    before = region.express(["y"])
    laid = lay_out(before, BLOCKED, [("c", "y")])
    assert_same(before, laid)
    assert kinds(laid)[ChangeKind.INTERIOR] == 0
    overlapping = lay_out(before, BLOCKED, [("c", "y"), ("y", "other")])
    assert overlapping.expressed.graph == laid.expressed.graph


@pytest.mark.parametrize("rank", [3, 4, 5])
def test_every_number_of_spatial_dimensions(rank: int) -> None:
    space = (4, 3, 5)[: rank - 2]
    region = RegionBuilder({"x": (2, 8, *space)})
    region.constant("w", (8, 8, *[1] * (rank - 2)))
    region.add("Conv", ["x", "w"], "y")
    before = region.express(["y"])
    laid = lay_out(before, NHWC)
    assert_same(before, laid)
    names = {3: "NWC", 4: "NHWC", 5: "NDHWC"}
    assert laid.expressed.graph.tensors[f"y.{names[rank]}"].shape == (2, *space, 8)


class TestConstants:
    def test_packed_when_asked_for_and_once(self) -> None:
        region = RegionBuilder({"x": (1, 4, 5, 5)})
        region.constant("w", (4, 4, 3, 3))
        region.add("Conv", ["x", "w"], "a", pads=[1, 1, 1, 1])
        region.add("Conv", ["a", "w"], "y")
        before = region.express(["y"])

        def unread() -> NoReturn:
            raise AssertionError("a constant was read while laying out")

        lazy = replace(before, constants=MappingProxyType({"w": unread}))
        assert lay_out(lazy, NHWC).expressed.graph.constants == ("w.OIHW.HWIO",)
        laid = lay_out(before, NHWC)
        np.testing.assert_array_equal(
            laid.expressed.constants["w.OIHW.HWIO"](), before.constants["w"]().transpose(2, 3, 1, 0)
        )
        assert kinds(laid)[ChangeKind.PREPACKED_CONSTANT] == 1

    def test_kept_while_something_else_reads_it(self) -> None:
        region = RegionBuilder({"x": (1, 4, 3, 3)})
        region.constant("w", (4, 4, 3, 3))
        region.add("Conv", ["x", "w"], "a")
        region.add("Neg", ["w"], "y")
        before = region.express(["a", "y"])
        laid = lay_out(before, NHWC)
        assert_same(before, laid)
        assert laid.expressed.graph.constants == ("w", "w.OIHW.HWIO")

    def test_transposed_convolutions_keep_inputs_first(self) -> None:
        region = RegionBuilder({"x": (1, 4, 3, 3)})
        region.constant("w", (4, 6, 2, 2))
        region.add("ConvTranspose", ["x", "w"], "y", strides=[2, 2])
        before = region.express(["y"])
        laid = lay_out(before, LayoutPolicy("NHWC", "OHWI", OP_TYPES))
        assert_same(before, laid)
        packed = laid.expressed.constants["w.IOHW.OHWI"]()
        np.testing.assert_array_equal(packed, before.constants["w"]().transpose(1, 2, 3, 0))

    def test_padding_is_never_read(self) -> None:
        region = RegionBuilder({"x": (1, 3, 2, 2)})
        region.constant("w", (4, 3, 1, 1))
        region.add("Conv", ["x", "w"], "y")
        before = region.express(["y"])
        (op,) = before.graph.ops
        # the last channel reads one past the weights, where a 5 stands instead
        x, w = op.reads
        past = Access("w", (w.index[0], w.index[1] + 1, *w.index[2:]), 5.0)
        shifted = replace(before.graph, ops=(replace(op, reads=(x, past)),))
        laid = lay_out(replace(before, graph=shifted), blocked_by(4))
        assert_same(replace(before, graph=shifted), laid)
        assert laid.expressed.graph.constants == ("w.OIHW.OIHW4o",)
        assert lay_out(before, blocked_by(4)).expressed.graph.constants == ("w.OIHW.OIHW4i4o",)

    def test_depthwise_weights_are_not_padded(self) -> None:
        region = RegionBuilder({"x": (1, 32, 4, 4)})
        region.constant("w", (32, 1, 3, 3))
        region.add("Conv", ["x", "w"], "y", group=32)
        before = region.express(["y"])
        laid = lay_out(before, BLOCKED)
        assert_same(before, laid)
        assert laid.expressed.graph.tensors["w.OIHW.OIHW16o"].shape == (2, 1, 3, 3, 16)
        assert refusals(laid)["w"].reason == "I is 1 in blocks of 16: not blocked"

    def test_weights_from_run_time_stay(self) -> None:
        region = RegionBuilder({"x": (1, 4, 4, 4), "w": (4, 4, 3, 3)})
        region.add("Conv", ["x", "w"], "y")
        before = region.express(["y"])
        laid = lay_out(before, NHWC)
        assert_same(before, laid)
        assert refusals(laid)["w"].reason == "weights are computed at run time"
        assert laid.expressed.graph.op("y").reads[1].tensor == "w"

    def test_blocks_beyond_the_rank_limit(self) -> None:
        region = RegionBuilder({"x": (1, 16, 2, 2, 2)})
        region.constant("w", (16, 16, 1, 1, 1))
        region.add("Conv", ["x", "w"], "y")
        before = region.express(["y"])
        laid = lay_out(before, LayoutPolicy("NCHW2c2c2c2c", "OIHW2i2o2i2o", OP_TYPES))
        assert_same(before, laid)
        assert "has 9 dimensions, 8 are supported" in refusals(laid)["x"].reason
        assert "has 9 dimensions, 8 are supported" in refusals(laid)["w"].reason


def test_quantised_convolutions() -> None:
    region = RegionBuilder({"x": (1, 8, 5, 5)})
    region.typed("x", 2)  # uint8
    region.constant("w", (8, 8, 3, 3), "int8")
    for name, value in (("s", np.float32(0.5)), ("zx", np.uint8(3)), ("zw", np.int8(1))):
        region.array(name, np.array(value))
    region.add("QLinearConv", ["x", "s", "zx", "w", "s", "zw", "s", "zx"], "y", pads=[1] * 4)
    before = region.express(["y"])
    for policy in (NHWC, blocked_by(4)):
        laid = lay_out(before, policy)
        assert_same(before, laid)
        assert kinds(laid)[ChangeKind.PREPACKED_CONSTANT] == 1
        assert laid.transforms_inserted == 2


@pytest.mark.parametrize("policy", [NHWC, blocked_by(4)])
def test_clusters_of_quantised_convolutions(policy: LayoutPolicy) -> None:
    region = RegionBuilder({"x": (1, 8, 5, 5)})
    region.typed("x", 2)  # uint8
    for name, value in (("s", np.float32(0.5)), ("zx", np.uint8(3)), ("zw", np.int8(0))):
        region.array(name, np.array(value))
    last = "x"
    for k in (1, 2):
        region.constant(f"w{k}", (8, 8, 3, 3), "int8")
        region.add("DequantizeLinear", [last, "s", "zx"], f"d{k}")
        region.add("DequantizeLinear", [f"w{k}", "s", "zw"], f"v{k}")
        region.add("Conv", [f"d{k}", f"v{k}"], f"c{k}", pads=[1, 1, 1, 1])
        region.add("Relu", [f"c{k}"], f"r{k}")
        last = region.add("QuantizeLinear", [f"r{k}", "s", "zx"], f"q{k}")
    before = region.express([last])
    assert len(before.together) == 2
    laid = lay_out(before, policy)
    assert_same(before, laid)
    assert kinds(laid) == {
        ChangeKind.BOUNDARY_IN: 1, ChangeKind.BOUNDARY_OUT: 1, ChangeKind.PREPACKED_CONSTANT: 2,
    }  # fmt: skip
    assert laid.expressed.together == before.together


class TestCancelling:
    def channels_last_model(self) -> Expressed:
        """A model made channels-last, exported with a Transpose at either end."""
        region = RegionBuilder({"x": (1, 5, 5, 4)})
        region.constant("w", (6, 4, 3, 3))
        region.add("Transpose", ["x"], "a", perm=[0, 3, 1, 2])
        region.add("Conv", ["a", "w"], "b")
        region.add("Transpose", ["b"], "y", perm=[0, 2, 3, 1])
        return region.express(["y"])

    def test_transposes_of_the_model_meet_the_layout(self) -> None:
        before = self.channels_last_model()
        laid = lay_out(before, NHWC, [("a", "b", "y"), ("b", "y")])
        assert_same(before, laid)
        assert [op.name for op in laid.expressed.graph.ops] == ["b"]
        assert (laid.transforms_inserted, laid.transforms_cancelled) == (0, 2)
        assert laid.together == ()
        own = lay_out(replace(before, together=(("a", "b", "y"), ("b", "y"))), NHWC)
        assert own.expressed.together == ()

    def test_both_ends_named_leave_a_copy(self) -> None:
        region = RegionBuilder({"x": (1, 5, 5, 4)})
        region.constant("w", (6, 4, 3, 3))
        region.add("Transpose", ["x"], "a", perm=[0, 3, 1, 2])
        region.add("Transpose", ["a"], "y", perm=[0, 2, 3, 1])
        region.add("Conv", ["a", "w"], "z")
        before = region.express(["y", "z"])
        laid = lay_out(before, NHWC)
        assert_same(before, laid)

    @pytest.mark.parametrize(
        "policy", [NHWC, blocked_by(2), LayoutPolicy("NHWC2c", "OIHW", OP_TYPES)]
    )
    def test_joined_regions_lose_the_pair_between_them(self, policy: LayoutPolicy) -> None:
        parts = []
        for source, result in (("x", "m"), ("m", "y")):
            region = RegionBuilder({source: (1, 4, 5, 5)})
            region.constant(f"w_{result}", (4, 4, 1, 1))
            region.add("Conv", [source, f"w_{result}"], result)
            parts.append(region.express([result]))
        plain = joined(parts)
        apart = joined([lay_out(part, policy).expressed for part in parts])
        laid = lay_out(apart, policy)
        assert_same(plain, laid)
        assert len(transforms(lay_out(plain, policy))) == len(transforms(laid)) == 2
        assert (laid.transforms_inserted, laid.transforms_cancelled) == (0, 2)

    @pytest.mark.parametrize("other", [blocked_by(2), LayoutPolicy("CHWN", "OIHW", OP_TYPES)])
    def test_different_layouts_do_not_cancel(self, other: LayoutPolicy) -> None:
        parts = []
        for source, result, policy in (("x", "m", NHWC), ("m", "y", other)):
            region = RegionBuilder({source: (4, 4, 4, 4)})  # every permutation has this shape
            region.constant(f"w_{result}", (4, 4, 1, 1))
            region.add("Conv", [source, f"w_{result}"], result)
            parts.append(lay_out(region.express([result]), policy).expressed)
        apart = joined(parts)
        laid = lay_out(apart, NHWC)
        assert laid.transforms_cancelled == 0
        assert laid.expressed.graph == apart.graph

    def test_a_copy_of_a_part_is_no_whole_copy(self) -> None:
        tensors = {n: Tensor(n, (2, 3), DType.F32) for n in ("a", "b")}
        for index, axes in (
            ((const(0), var("j")), (Axis("j", 3),)),
            ((var("i"), var("j")), (Axis("i", 2), Axis("j", 3))),
        ):
            op = TensorOp(
                "op", axes, (Access("a", index),), Access("b", index), Read(0), None,
                Origin((), TRANSFORM),
            )  # fmt: skip
            assert is_whole_copy(op, tensors) == (len(axes) == 2)


def joined(parts: list[Expressed]) -> Expressed:
    """Two regions as one: the first one's outputs feed the second and stay inside."""
    first, second = (part.graph for part in parts)
    tensors = {**first.tensors, **second.tensors}
    graph = Graph.build(
        (*first.ops, *second.ops), tuple(tensors.values()), first.inputs, second.outputs,
        (*first.constants, *second.constants),
    )  # fmt: skip
    return replace(
        parts[0],
        graph=graph,
        constants=MappingProxyType({**parts[0].constants, **parts[1].constants}),
    )


def test_op_types_without_channels_are_refused() -> None:
    region = RegionBuilder({"x": (3, 4)})
    region.constant("w", (4, 5))
    region.add("MatMul", ["x", "w"], "y")
    before = region.express(["y"])
    laid = lay_out(before, LayoutPolicy("NHWC", "HWIO", ("MatMul",)))
    assert laid.expressed.graph == before.graph
    assert "MatMul has no batch, channel and spatial dimensions" in refusals(laid)["y"].reason


@pytest.mark.parametrize("policy", [NHWC, BLOCKED])
def test_signatures_repeat(policy: LayoutPolicy) -> None:
    first, second = (lay_out(conv_relu_conv(), policy).expressed.graph for _ in range(2))
    assert signature(first) == signature(second)


@pytest.mark.parametrize(
    ("activations", "weights", "sentence"),
    [
        ("XYZ", "OIHW", "needs N and C"),
        ("NHWC", "OIHW16", "'16' is neither"),
        ("OIHW", "OIHW", "layout 'OIHW': one with N and C is needed here"),
        ("NHWC", "NHWC", "layout 'NHWC': one with O and I is needed here"),
    ],
)
def test_a_wrong_layout_is_refused(activations: str, weights: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        lay_out(conv_relu_conv(), LayoutPolicy(activations, weights, OP_TYPES))
