"""Footprints and Algorithm 1 on the paper's numbers and on pieces written out by hand."""

from __future__ import annotations

import pytest

from worker.compiler.ir.affine import Affine, var
from worker.compiler.ir.axis import Axis, AxisKind
from worker.compiler.ir.dtype import DType
from worker.compiler.ir.graph import Graph
from worker.compiler.ir.op import Access, Origin, Reduce, Tensor, TensorOp
from worker.compiler.ir.scalar import Apply, Fn, Read
from worker.compiler.machine import load_preset
from worker.compiler.schedule.nodes import Span
from worker.compiler.strategies.graphturbo.split_info import (
    factor_of,
    lb_capacity,
    num_clusters,
    split_values,
)
from worker.compiler.tiling.slices.footprint import (
    peak_bytes,
    peak_bytes_of_slices,
    piece_outputs,
)
from worker.compiler.tiling.slices.propagate import propagate

ORIGIN = Origin(("n",), "Test")
KiB, MiB = 1 << 10, 1 << 20
LLB = 8 * MiB


class Net:
    """Operators of a network on F16 tensors, in order of execution."""

    def __init__(self, *shape: int) -> None:
        self.ops: list[TensorOp] = []
        self.tensors = {"x": Tensor("x", shape, DType.F16)}
        self.constants: list[str] = []

    def shape(self, name: str) -> tuple[int, ...]:
        return self.tensors[name].shape

    def op(
        self, axes: dict[str, int], reads: list[tuple[str, str | tuple[Affine, ...]]], out: str,
        reduce: str = "",
    ) -> str:  # fmt: skip
        """`reads` and `out` index by one letter per dimension; a `reads` index may be affine."""
        name = f"t{len(self.ops)}"
        kind = dict.fromkeys(reduce, AxisKind.REDUCE)
        accesses = [
            Access(t, tuple(map(Affine.of, index)), None if isinstance(index, str) else 0)
            for t, index in reads
        ]
        self.tensors[name] = Tensor(name, tuple(axes[a] for a in out), DType.F16)
        body = (
            Apply(Fn.ADD, tuple(Read(k) for k in range(len(reads)))) if len(reads) > 1 else Read(0)
        )
        self.ops.append(
            TensorOp(
                name, tuple(Axis(a, e, kind.get(a, AxisKind.PARALLEL)) for a, e in axes.items()),
                tuple(accesses), Access(name, tuple(map(Affine.of, out))), body,
                Reduce.ADD if reduce else None, ORIGIN,
            )
        )  # fmt: skip
        return name

    def weight(self, *shape: int) -> str:
        name = f"w{len(self.constants)}"
        self.tensors[name] = Tensor(name, shape, DType.F16)
        self.constants.append(name)
        return name

    def conv(self, x: str, out: int, kernel: int = 1, stride: int = 1, *, deep: bool = True) -> str:
        """Padded to keep [n, h, w, c] at a stride of 1; depthwise when not `deep`."""
        n, h, w, c = self.shape(x)
        pad = kernel // 2
        weight = self.weight(*((out, c) if deep else (c,)), kernel, kernel)
        rows, columns = (var(a) * stride + var(k) - pad for a, k in (("h", "k"), ("w", "l")))
        size = {"n": n, "h": -(-h // stride), "w": -(-w // stride), "c": out}
        window = {"k": kernel, "l": kernel}
        if not deep:
            reads = [(x, (var("n"), rows, columns, var("c"))), (weight, "ckl")]
            return self.op(size | window, reads, "nhwc", "kl")
        reads = [(x, (var("n"), rows, columns, var("i"))), (weight, "cikl")]
        return self.op(size | {"i": c} | window, reads, "nhwc", "ikl")

    def pool(self, x: str, kernel: int, stride: int) -> str:
        n, h, w, c = self.shape(x)
        rows, columns = (
            var(a) * stride + var(k) - kernel // 2 for a, k in (("h", "k"), ("w", "l"))
        )
        axes = {"n": n, "h": h // stride, "w": w // stride, "c": c, "k": kernel, "l": kernel}
        return self.op(axes, [(x, (var("n"), rows, columns, var("c")))], "nhwc", "kl")

    def same(self, *names: str) -> str:
        """An activation of one tensor, or the sum of several."""
        letters = "nhwc"[: len(self.shape(names[0]))]
        axes = dict(zip(letters, self.shape(names[0]), strict=True))
        return self.op(axes, [(name, letters) for name in names], letters)

    def graph(self, *outputs: str) -> Graph:
        return Graph.build(
            tuple(self.ops), tuple(self.tensors.values()), ("x",), outputs, tuple(self.constants)
        )


def bottleneck(net: Net, x: str, mid: int, stride: int) -> str:
    """A block of ResNet v1.5: the stride is in the 3x3 convolution."""
    out = 4 * mid
    shortcut = x
    if stride > 1 or net.shape(x)[3] != out:
        shortcut = net.conv(x, out, 1, stride)
    a = net.same(net.conv(x, mid))
    b = net.same(net.conv(a, mid, 3, stride))
    return net.same(net.same(net.conv(b, out), shortcut))


BLOCKS = (3, 4, 6, 3)


def stage(number: int, images: int) -> tuple[Net, str]:
    """Stage 1 .. 4 alone, from its input `x`."""
    size, channels = (56, 64) if number == 1 else (112 >> (number - 1), 128 << (number - 1))
    net = Net(images, size, size, channels)
    x = "x"
    for k in range(BLOCKS[number - 1]):
        x = bottleneck(net, x, 32 << number, 2 if number > 1 and not k else 1)
    return net, x


def resnet(images: int) -> tuple[Net, str]:
    net = Net(images, 224, 224, 3)
    x = net.pool(net.same(net.conv("x", 64, 7, 2)), 3, 2)
    for number, blocks in enumerate(BLOCKS, 1):
        for k in range(blocks):
            x = bottleneck(net, x, 32 << number, 2 if number > 1 and not k else 1)
    return net, x


def bert_layer(length: int, hidden: int = 768, heads: int = 12) -> tuple[Net, str]:
    net = Net(length, hidden)
    deep = hidden // heads
    project = {"h": heads, "q": length, "d": deep, "i": hidden}
    q, k, v = (
        net.op(project, [("x", "qi"), (net.weight(heads, deep, hidden), "hdi")], "hqd", "i")
        for _ in range(3)
    )
    pairs = {"h": heads, "q": length, "k": length}
    scores = net.op(pairs | {"d": deep}, [(q, "hqd"), (k, "hkd")], "hqk", "d")
    for _ in range(2):  # subtract the maximum, divide by the sum
        row = net.op(pairs, [(scores, "hqk")], "hq", "k")
        scores = net.op(pairs, [(scores, "hqk"), (row, "hq")], "hqk")
    mixed = net.op(
        {"h": heads, "q": length, "d": deep, "k": length}, [(scores, "hqk"), (v, "hkd")], "hqd", "k"
    )
    back = {"q": length, "o": hidden, "h": heads, "d": deep}
    out = net.op(back, [(mixed, "hqd"), (net.weight(hidden, heads, deep), "ohd")], "qo", "hd")
    x = net.same(out, "x")
    wide = net.same(_dense(net, x, 4 * hidden))
    return net, net.same(_dense(net, wide, hidden), x)


def _dense(net: Net, x: str, out: int) -> str:
    length, size = net.shape(x)
    axes = {"q": length, "o": out, "i": size}
    return net.op(axes, [(x, "qi"), (net.weight(out, size), "oi")], "qo", "i")


def peak(made: tuple[Net, str], *, in_place: bool = True) -> int:
    net, out = made
    return peak_bytes(net.graph(out), net.ops, in_place=in_place)


class TestFootprint:
    def test_resnet_peaks_where_the_block_input_waits_for_the_add(self) -> None:
        # TV-GT-9: 2 samples per cluster, 1 if the add could not overwrite an operand
        assert peak(resnet(1)) == 3_612_672
        assert LLB // peak(resnet(1)) == 2
        assert peak(resnet(1), in_place=False) == 4_816_896
        assert LLB // peak(resnet(1), in_place=False) == 1

    @pytest.mark.parametrize(
        ("length", "mebibytes", "samples"),
        [(128, 1.125, 7), (256, 3, 2), (384, 5.625, 1), (512, 9, 0)],
    )
    def test_bert_peaks_at_its_scores(self, length: int, mebibytes: float, samples: int) -> None:
        # TV-GT-9
        assert peak(bert_layer(length)) == mebibytes * MiB
        assert LLB // peak(bert_layer(length)) == samples

    def test_mobilenet_peaks_at_its_first_wide_layer(self) -> None:
        # model G of table 3: 2 samples per cluster
        net = Net(1, 224, 224, 3)
        x = net.same(net.conv("x", 32, 3, 2))
        x = net.conv(net.same(net.conv(x, 32, 3, deep=False)), 16)
        x = net.same(net.conv(x, 96))
        x = net.conv(net.same(net.conv(x, 96, 3, 2, deep=False)), 24)
        assert peak((net, x)) == 2 * (112 * 112 + 56 * 56) * 96
        assert LLB // peak((net, x)) == 2

    def test_stages_of_resnet(self) -> None:
        # TV-GT-10
        net = Net(1, 224, 224, 3)
        stem = net.pool(net.same(net.conv("x", 64, 7, 2)), 3, 2)
        assert peak((net, stem)) == 2_007_040
        stages = [stage(k, 1) for k in range(1, 5)]
        assert [peak(s) for s in stages] == [3_612_672, 3_211_264, 1_605_632, 802_816]
        sizes = [net.tensors[out].size_bytes for net, out in stages]
        assert sizes == [1_605_632, 802_816, 401_408, 200_704]

    def test_what_may_be_overwritten(self) -> None:
        net = Net(4, 4)
        turned = net.op({"n": 4, "h": 4}, [("x", "hn")], "nh")
        assert peak((net, turned)) == 64  # read at other elements than written
        net = Net(4, 4)
        assert peak((net, net.same("x"))) == 32
        net = Net(4, 4)
        first = net.same("x")
        assert peak((net, net.same(first, "x"))) == 64  # x is still needed at the first
        net = Net(4, 4)
        kept = net.same("x")
        last = net.same(kept)
        assert peak_bytes(net.graph(kept, last), net.ops) == 64  # an output is not overwritten

    def test_a_reduction_does_not_overwrite_what_it_reads(self) -> None:
        net = Net(4, 4)
        axes = {"n": 4, "h": 4, "k": 3}
        out = net.op(axes, [("x", "nh"), (net.weight(3), "k")], "nh", "k")
        assert peak((net, out)) == 64

    def test_slices_share_memory_only_where_their_boxes_are_equal(self) -> None:
        net = Net(1, 16, 8, 2)
        a = net.same("x")
        b = net.conv(a, 2, 3)
        c = net.same(a)  # a has two rows of halo that c has not
        graph = net.graph(b, c)
        slices = propagate(graph, net.ops, [b, c], 1, 4, "g")
        assert slices is not None
        assert peak_bytes_of_slices(graph, net.ops, slices) == (6 + 4 + 4) * 8 * 2 * 2

    def test_a_box_wider_than_its_tensor_counts_as_the_tensor(self) -> None:
        net = Net(1, 4, 8, 2)
        out = net.conv(net.conv("x", 2, 3), 2, 3)
        graph = net.graph(out)
        slices = propagate(graph, net.ops, [out], 1, 4, "g")
        assert slices is not None
        assert slices.boxes["x"][1].extent == 5
        assert peak_bytes_of_slices(graph, net.ops, slices) == (4 + 3) * 8 * 2 * 2

    def test_a_piece_keeps_what_others_read(self) -> None:
        net = Net(4, 4)
        a = net.same("x")
        b = net.same(a)
        c = net.same(a, b)
        graph = net.graph(c)
        assert piece_outputs(graph, net.ops[:2]) == (a, b)
        assert piece_outputs(graph, net.ops) == (c,)
        assert peak_bytes(graph, net.ops[:1]) == 32
        assert peak_bytes(graph, net.ops[:2]) == 64

    def test_one_instance_holds_its_rows_and_their_halo(self) -> None:
        net = Net(1, 16, 8, 2)
        a = net.conv("x", 2, 3)
        out = net.conv(a, 2, 3)
        graph = net.graph(out)
        slices = propagate(graph, net.ops, [out], 1, 4, "g")
        assert slices is not None
        row = 8 * 2 * 2
        assert peak_bytes_of_slices(graph, net.ops, slices) == (8 + 6) * row
        assert peak_bytes(graph, net.ops) == 2 * 16 * row


class TestPropagate:
    def test_rows_of_two_convolutions(self) -> None:
        net = Net(1, 16, 8, 2)
        a = net.conv("x", 2, 3)
        out = net.conv(a, 2, 3)
        slices = propagate(net.graph(out), net.ops, [out], 1, 4, "g")
        assert slices is not None
        assert slices.boxes[out][1] == Span(var("g") * 4, 4)
        assert slices.boxes[a][1] == Span(var("g") * 4 + -1, 6)
        assert slices.boxes["x"][1] == Span(var("g") * 4 + -2, 8)
        assert slices.boxes["w0"] == (*(Span(Affine.of(0), e) for e in (2, 2, 3, 3)),)
        # six rows at three inner edges, each of 8 * 2 elements with 2 * 3 * 3 points
        assert slices.extra_points == {"t0": 6 * 16 * 18, "t1": 0}
        assert slices.recompute == {"t0"}

    def test_images_are_cut_without_recomputation(self) -> None:
        net, out = stage(2, 8)
        slices = propagate(net.graph(out), net.ops, [out], 0, 4, "g")
        assert slices is not None
        assert not slices.recompute
        assert {box[0] for name, box in slices.boxes.items() if name[0] != "w"} == {
            Span(var("g") * 2, 2)
        }

    def test_rows_that_nothing_reads_are_computed_too(self) -> None:
        # a 1x1 convolution of stride 2 behind a layer of the piece reads even rows only
        net = Net(1, 16, 16, 2)
        a = net.conv("x", 2)
        out = net.conv(a, 2, 1, 2)
        slices = propagate(net.graph(out), net.ops, [out], 1, 4, "g")
        assert slices is not None
        assert slices.boxes[a][1] == Span(var("g") * 4, 4)
        assert slices.boxes["x"][1] == Span(var("g") * 4, 4)
        assert slices.extra_points == {"t0": 0, "t1": 0}

    def test_attention_cut_by_queries_repeats_keys_and_values(self) -> None:
        net, out = bert_layer(16, hidden=24, heads=2)
        slices = propagate(net.graph(out), net.ops, [out], 0, 4, "g")
        assert slices is not None
        keys = [op.name for op in net.ops[1:3]]
        assert slices.recompute == set(keys)
        assert [slices.extra_points[k] for k in keys] == [3 * 16 * 24 * 24] * 2

    def test_a_second_exit_is_cut_along_the_same_axis(self) -> None:
        net = Net(2, 8, 8, 4)
        a = net.conv("x", 4)
        turned = net.op({"n": 2, "h": 8, "w": 8, "c": 4}, [(a, "nhwc")], "hncw")
        out = net.conv(a, 4, 1, 2)
        slices = propagate(net.graph(out, turned), net.ops, [out, turned], 1, 4, "g")
        assert slices is not None
        assert slices.shares[turned][0] == Span(var("g") * 2, 2)
        assert slices.shares[out][1] == Span(var("g"), 1)

    def test_what_cannot_be_cut(self) -> None:
        net = Net(2, 8, 8, 4)
        out = net.conv("x", 4)
        total = net.op({"n": 2, "c": 4, "h": 8, "w": 8}, [(out, "nhwc")], "nc", "hw")
        graph = net.graph(out, total)
        assert propagate(graph, net.ops, [out, total], 1, 2, "g") is None  # rows of a sum
        assert propagate(graph, net.ops, [out, total], 0, 2, "g") is not None
        assert propagate(graph, net.ops, [out], 1, 16, "g") is None  # more pieces than rows
        assert propagate(graph, net.ops, [out], 1, 2, "g") is None  # nobody needs the sum
        with pytest.raises(ValueError, match="dimension 4"):
            propagate(graph, net.ops, [out], 4, 2, "g")


class TestFactor:
    def test_values_tried(self) -> None:
        assert tuple(split_values(12)) == (1, 2, 4, 8, 9, 10, 11, 12)
        assert tuple(split_values(8)) == (1, 2, 4, 8)
        assert tuple(split_values(12, 3)) == (4, 8, 9, 10, 11, 12)
        assert tuple(split_values(12, 10)) == (10, 11, 12)
        assert tuple(split_values(7)) == (1, 2, 4)
        assert tuple(split_values(3)) == (1, 2)
        assert tuple(split_values(1)) == (1,)

    @pytest.mark.parametrize(("units", "factor"), [(16, 8), (8, 4), (4, 2), (2, 1), (1, 1)])
    def test_stages_of_figure_three(self, units: int, factor: int) -> None:
        # TV-GT-3: eight samples whose stage takes `units` where the local buffers hold two
        net = Net(8, 4, 4, units)
        graph = net.graph(net.conv("x", units))
        assert peak_bytes(graph, net.ops) == units * 512
        assert factor_of(graph, net.ops, ["t0"], 2 * 512) == factor

    @pytest.mark.parametrize("lb", [MiB, 4 * MiB, 6 * MiB, 16 * MiB, 64 * MiB])
    def test_stages_of_resnet_on_sixteen_images(self, lb: int) -> None:
        # TV-GT-10: the least number of instances whose images fit, times the printed footprints
        footprints = (3_612_672, 3_211_264, 1_605_632, 802_816)
        for number, per_image in enumerate(footprints, 1):
            net, out = stage(number, 16)
            fits = [v for v in (1, 2, 4, *range(8, 17)) if per_image * -(-16 // v) <= lb]
            assert factor_of(net.graph(out), net.ops, [out], lb) == (fits[0] if fits else None)

    def test_the_factors_of_the_four_stages(self) -> None:
        # TV-GT-10, recorded for 6 MiB: eight cores of 1 MiB less a quarter for weights
        made = [stage(number, 16) for number in range(1, 5)]
        found = [factor_of(net.graph(out), net.ops, [out], 6 * MiB) for net, out in made]
        assert found == [16, 16, 8, 4]

    def test_recomputation_beyond_a_tenth_is_refused(self) -> None:
        """Sequences of one batch share keys and values, which every instance would compute."""
        net, out = bert_layer(16, hidden=24, heads=2)
        graph = net.graph(out)
        assert factor_of(graph, net.ops, [out], peak_bytes(graph, net.ops)) == 1
        assert factor_of(graph, net.ops, [out], peak_bytes(graph, net.ops) - 1) is None

    def test_outputs_without_common_samples_fit_as_one_instance_only(self) -> None:
        net = Net(4, 4)
        rows = net.op({"n": 4, "h": 4}, [("x", "nh")], "n", "h")
        columns = net.op({"n": 4, "h": 4}, [("x", "nh")], "h", "n")
        graph = net.graph(rows, columns)
        assert factor_of(graph, net.ops, [rows, columns], 48) == 1
        assert factor_of(graph, net.ops, [rows, columns], 47) is None

    def test_a_number_has_no_samples(self) -> None:
        net = Net(4, 4)
        whole = net.op({"n": 4, "h": 4}, [("x", "nh")], "", "nh")
        assert factor_of(net.graph(whole), net.ops, [whole], MiB) is None


class TestCapacity:
    def test_local_buffers_of_a_cluster_less_the_reserve(self) -> None:
        assert lb_capacity(load_preset("stcp920-inferred")) == 6 * MiB
        assert lb_capacity(load_preset("stcp920")) == 384 * KiB
        assert lb_capacity(load_preset("stcp920"), weight_reserve=0.0) == 512 * KiB

    def test_clusters_are_the_owners_of_a_shared_scratchpad(self) -> None:
        assert num_clusters(load_preset("stcp920")) == 4
        assert num_clusters(load_preset("ascend910")) == 1
        assert num_clusters(load_preset("a100")) == 1
