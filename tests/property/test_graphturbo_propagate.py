"""Slices of one instance against a point-by-point count on random small pieces."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.compiler.ir.affine import Affine, Lookup, var
from worker.compiler.ir.axis import Axis, AxisKind
from worker.compiler.ir.dtype import DType
from worker.compiler.ir.evaluate import Array, index_values
from worker.compiler.ir.graph import Graph
from worker.compiler.ir.op import Access, Origin, Reduce, Tensor, TensorOp
from worker.compiler.ir.scalar import Apply, Fn, Read
from worker.compiler.schedule.nodes import Box
from worker.compiler.tiling.slices.lines import Line
from worker.compiler.tiling.slices.propagate import Slices, propagate

ORIGIN = Origin(("n",), "Test")


class Net:
    """A piece under construction; every tensor is f32."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.ops: list[TensorOp] = []
        self.tensors = {"X": Tensor("X", shape, DType.F32)}
        self.outside = ["X"]

    def shape(self, name: str) -> tuple[int, ...]:
        return self.tensors[name].shape

    def tensor(self, shape: tuple[int, ...], *, outside: bool = False) -> str:
        name = f"T{len(self.tensors)}"
        self.tensors[name] = Tensor(name, shape, DType.F32)
        if outside:
            self.outside.append(name)
        return name

    def op(
        self, extents: dict[str, int], reads: list[Access], write: Access, reduce: str = "",
        scan: str = "",
    ) -> str:  # fmt: skip
        kinds = dict.fromkeys(reduce, AxisKind.REDUCE) | dict.fromkeys(scan, AxisKind.SCAN)
        domain = tuple(Axis(a, e, kinds.get(a, AxisKind.PARALLEL)) for a, e in extents.items())
        args = tuple(Read(k) for k in range(len(reads)))
        body = Apply(Fn.ADD, args) if len(args) > 1 else args[0]
        how = Reduce.ADD if reduce else None
        self.ops.append(
            TensorOp(f"o{len(self.ops)}", domain, tuple(reads), write, body, how, ORIGIN)
        )
        return write.tensor

    def graph(self, outputs: list[str]) -> Graph:
        return Graph.build(
            tuple(self.ops), tuple(self.tensors.values()), tuple(self.outside), tuple(outputs)
        )


def at(tensor: str, *index: Affine | str | int, fill: float | None = None) -> Access:
    return Access(tensor, tuple(Affine.of(i) for i in index), fill)


def window(net: Net, name: str, kernel: int, stride: int, pad: int) -> str:
    """Convolution along the second dimension; [n, h, c] stays [n, h', c]."""
    n, h, c = net.shape(name)
    out = (h + 2 * pad - kernel) // stride + 1
    index = var("h") * stride + var("k") - pad
    weight = net.tensor((c, c, kernel), outside=True)
    return net.op(
        {"n": n, "h": out, "c": c, "i": c, "k": kernel},
        [at(name, "n", index, "i", fill=0), at(weight, "c", "i", "k")],
        at(net.tensor((n, out, c)), "n", "h", "c"), reduce="ik",
    )  # fmt: skip


def softmax(net: Net, name: str, along: int) -> str:
    """A reduction of one dimension and a broadcast of its result."""
    axes = dict(zip("abc", net.shape(name), strict=True))
    gone = "abc"[along]
    kept = [a for a in "abc" if a != gone]
    total = net.op(
        axes, [at(name, *"abc")], at(net.tensor(tuple(axes[a] for a in kept)), *kept), reduce=gone
    )
    return net.op(
        axes, [at(name, *"abc"), at(total, *kept)], at(net.tensor(net.shape(name)), *"abc")
    )


def pointwise(net: Net, name: str, other: str) -> str:
    axes = dict(zip("abc", net.shape(name), strict=True))
    return net.op(
        axes, [at(name, *"abc"), at(other, *"abc")], at(net.tensor(net.shape(name)), *"abc")
    )


def concat(net: Net, name: str, other: str, along: int) -> str:
    first, second = net.shape(name), net.shape(other)
    shape = tuple(a + b if k == along else a for k, (a, b) in enumerate(zip(first, second)))  # noqa: B905
    target = net.tensor(shape)
    for source, offset in ((name, 0), (other, first[along])):
        place = [var(a) + (offset if k == along else 0) for k, a in enumerate("abc")]
        net.op(dict(zip("abc", net.shape(source), strict=True)), [at(source, *"abc")],
               at(target, *place))  # fmt: skip
    return target


def attention(net: Net, name: str) -> str:
    """Scores of all pairs of positions, then their product with the values."""
    n, h, c = net.shape(name)
    scores = net.op(
        {"n": n, "q": h, "k": h, "c": c}, [at(name, "n", "q", "c"), at(name, "n", "k", "c")],
        at(net.tensor((n, h, h)), "n", "q", "k"), reduce="c",
    )  # fmt: skip
    weights = softmax(net, scores, 2)
    return net.op(
        {"n": n, "q": h, "c": c, "k": h}, [at(weights, "n", "q", "k"), at(name, "n", "k", "c")],
        at(net.tensor((n, h, c)), "n", "q", "c"), reduce="k",
    )  # fmt: skip


def merge_and_split(net: Net, name: str, *, by_write: bool) -> str:
    """[n, h, c] to [n*h, c] (by the write or by the read map) and back."""
    n, h, c = net.shape(name)
    flat = net.tensor((n * h, c))
    if by_write:
        net.op({"n": n, "h": h, "c": c}, [at(name, "n", "h", "c")],
               at(flat, var("n") * h + var("h"), "c"))  # fmt: skip
    else:
        net.op({"m": n * h, "c": c}, [at(name, var("m").floordiv(h), var("m").mod(h), "c")],
               at(flat, "m", "c"))  # fmt: skip
    return net.op({"n": n, "h": h, "c": c}, [at(flat, var("n") * h + var("h"), "c")],
                  at(net.tensor((n, h, c)), "n", "h", "c"))  # fmt: skip


def upsample(net: Net, name: str, times: int) -> str:
    n, h, c = net.shape(name)
    return net.op({"n": n, "h": h * times, "c": c}, [at(name, "n", var("h").floordiv(times), "c")],
                  at(net.tensor((n, h * times, c)), "n", "h", "c"))  # fmt: skip


def flip_or_turn(net: Net, name: str, *, flip: bool) -> str:
    n, h, c = net.shape(name)
    if flip:
        return net.op({"n": n, "h": h, "c": c}, [at(name, "n", var("h") * -1 + (h - 1), "c")],
                      at(net.tensor((n, h, c)), "n", "h", "c"))  # fmt: skip
    return net.op({"a": h, "b": n, "c": c}, [at(name, "b", "a", "c")],
                  at(net.tensor((h, n, c)), "a", "b", "c"))  # fmt: skip


def lookup(net: Net, name: str) -> str:
    n, h, c = net.shape(name)
    rows = net.tensor((h,), outside=True)
    index = (Affine.of("n"), Affine(((Lookup(0), 1),)), Affine.of("c"))
    return net.op({"n": n, "h": h, "c": c}, [at(rows, "h"), Access(name, index)],
                  at(net.tensor((n, h, c)), "n", "h", "c"))  # fmt: skip


def recurrence(net: Net, name: str, *, lean: int = 0) -> str:
    """out[n, 0, c] = start[n, c]; out[n, h, c] = x[n, h, c] + out[n, h-1, c+lean]."""
    n, h, c = net.shape(name)
    target = net.tensor((n, h, c))
    start = name if h == 1 else net.tensor((n, 1, c), outside=True)
    net.op({"n": n, "c": c}, [at(start, "n", 0, "c")], at(target, "n", 0, "c"))
    if h == 1:
        return target
    step = var("h") + 1
    return net.op({"n": n, "h": h - 1, "c": c},
                  [at(name, "n", step, "c"), at(target, "n", "h", var("c") + lean, fill=0)],
                  at(target, "n", step, "c"), scan="h")  # fmt: skip


def flatten(net: Net, name: str, *, by_write: bool) -> str:
    """[n, h, c] to [1, n*h, c]."""
    n, h, c = net.shape(name)
    flat = net.tensor((1, n * h, c))
    if by_write:
        return net.op({"n": n, "h": h, "c": c}, [at(name, "n", "h", "c")],
                      at(flat, 0, var("n") * h + var("h"), "c"))  # fmt: skip
    return net.op({"m": n * h, "c": c}, [at(name, var("m").floordiv(h), var("m").mod(h), "c")],
                  at(flat, 0, "m", "c"))  # fmt: skip


def crop(net: Net, name: str) -> str:
    """Without the first row."""
    n, h, c = net.shape(name)
    return net.op({"n": n, "h": h - 1, "c": c}, [at(name, "n", var("h") + 1, "c")],
                  at(net.tensor((n, h - 1, c)), "n", "h", "c"))  # fmt: skip


def diagonal(net: Net, name: str) -> str:
    """[n, h, c] to [n, h, 1], from the elements with equal h and c."""
    n, h, c = net.shape(name)
    size = min(h, c)
    return net.op({"n": n, "h": size, "c": 1}, [at(name, "n", "h", "h")],
                  at(net.tensor((n, size, 1)), "n", "h", "c"))  # fmt: skip


@st.composite
def pieces(draw: st.DrawFn) -> tuple[Net, str]:
    net = Net((draw(st.integers(1, 4)), draw(st.integers(1, 9)), draw(st.integers(1, 3))))
    name = "X"
    earlier: list[str] = []
    for _ in range(draw(st.integers(1, 5))):
        same = [t for t in earlier if net.shape(t) == net.shape(name)]
        kinds = ["window", "softmax", "attention", "merge", "upsample", "turn", "lookup", "scan"]
        kinds += ["flatten", "crop", "diagonal"]
        kind = draw(st.sampled_from(kinds + ["add", "concat"] * bool(same)))
        earlier.append(name)
        height = net.shape(name)[1]
        if kind == "window":
            kernel, pad = draw(st.integers(1, min(3, height))), draw(st.integers(0, 1))
            name = window(net, name, kernel, draw(st.integers(1, 2)), pad)
        elif kind == "softmax":
            name = softmax(net, name, draw(st.integers(0, 2)))
        elif kind == "attention":
            name = attention(net, name)
        elif kind == "merge":
            name = merge_and_split(net, name, by_write=draw(st.booleans()))
        elif kind == "upsample" and height < 10:
            name = upsample(net, name, draw(st.integers(2, 3)))
        elif kind == "lookup":
            name = lookup(net, name)
        elif kind == "scan":
            name = recurrence(net, name, lean=draw(st.integers(0, 1)))
        elif kind == "flatten" and height < 10:
            name = flatten(net, name, by_write=draw(st.booleans()))
        elif kind == "crop" and height > 1:
            name = crop(net, name)
        elif kind == "diagonal":
            name = diagonal(net, name)
        elif kind == "add":
            name = pointwise(net, name, draw(st.sampled_from(same)))
        elif kind == "concat" and height < 10:
            name = concat(net, name, draw(st.sampled_from(same)), draw(st.integers(0, 2)))
        else:
            name = flip_or_turn(net, name, flip=draw(st.booleans()))
    return net, name


def clipped(box: Box, shape: tuple[int, ...], g: int) -> tuple[slice, ...]:
    starts = [span.start.evaluate({"g": g}) for span in box]
    return tuple(
        slice(max(s, 0), max(0, min(s + span.extent, e)))
        for s, span, e in zip(starts, box, shape, strict=True)
    )


def touched(op: TensorOp, k: int, points: dict[str, Array], shape: tuple[int, ...]) -> Array:
    """Elements inside the tensor that read slot k (or the write) touches, one row each.

    A lookup touches every value it might have."""
    access = (*op.reads, op.write)[k]
    size = len(next(iter(points.values())))
    rows = []
    free = [d for d, e in enumerate(access.index) if e.has_lookup]
    for values in product(*(range(shape[d]) for d in free)):
        slots: list[Array] = [np.zeros(size, np.int64)] * len(op.reads)
        if values:
            slots[0] = np.full(size, values[0])
        rows.append(np.stack(
            [np.broadcast_to(index_values(e, points, tuple(slots)), size) for e in access.index], 1
        ))  # fmt: skip
    all_rows = np.concatenate(rows)
    inside = np.all((all_rows >= 0) & (all_rows < np.array(shape)), axis=1)
    return all_rows[inside]


def check(net: Net, slices: Slices, factor: int) -> None:
    tensors = net.tensors
    times = {op.name: np.zeros([a.extent for a in op.domain], np.int64) for op in net.ops}
    answered = {name: np.zeros(tensors[name].shape, np.int64) for name in slices.shares}
    inner = {op.write.tensor for op in net.ops}
    for g in range(factor):
        held = {name: np.zeros(t.shape, bool) for name, t in tensors.items()}
        made = {name: np.zeros(t.shape, bool) for name, t in tensors.items()}
        for name, box in slices.boxes.items():
            held[name][clipped(box, tensors[name].shape, g)] = True
        for op in net.ops:
            where = clipped(slices.domains[op.name], times[op.name].shape, g)
            times[op.name][where] += 1
            grid = np.meshgrid(*(np.arange(s.start, max(s.start, s.stop)) for s in where),
                               indexing="ij")  # fmt: skip
            points = {a.name: v.ravel() for a, v in zip(op.domain, grid, strict=True)}
            if not grid[0].size:
                continue
            out = touched(op, len(op.reads), points, tensors[op.write.tensor].shape)
            if op.write.tensor in (a.tensor for a in op.reads):  # a recurrence reads its own steps
                made[op.write.tensor][tuple(out.T)] = True
            for k, access in enumerate(op.reads):
                rows = touched(op, k, points, tensors[access.tensor].shape)
                assert held[access.tensor][tuple(rows.T)].all(), (op.name, access.tensor, g)
                if access.tensor in inner:
                    assert made[access.tensor][tuple(rows.T)].all(), (op.name, access.tensor, g)
            assert held[op.write.tensor][tuple(out.T)].all(), (op.name, g)
            made[op.write.tensor][tuple(out.T)] = True
        for name, box in slices.shares.items():
            mine = clipped(box, tensors[name].shape, g)
            answered[name][mine] += 1
            assert made[name][mine].all()
    assert all((count == 1).all() for count in answered.values())
    for op in net.ops:
        assert times[op.name].min() >= 1, op.name
        extra = int(times[op.name].sum()) - op.num_points
        assert slices.extra_points[op.name] == extra
        assert (op.name in slices.recompute) == (extra > 0)


@given(pieces(), st.data())
def test_instances_of_random_pieces_are_sound_and_counted(
    piece: tuple[Net, str], data: st.DataObject
) -> None:
    net, name = piece
    shape = net.shape(name)
    dim = data.draw(st.integers(0, len(shape) - 1))
    factor = data.draw(st.integers(min(2, shape[dim]), shape[dim]))
    more = [op.write.tensor for op in net.ops if op.write.tensor != name]
    exits = [name]
    if more and data.draw(st.booleans()):
        exits.append(data.draw(st.sampled_from(more)))
    slices = propagate(net.graph(exits), net.ops, exits, dim, factor, "g")
    if slices is not None:
        check(net, slices, factor)


Step = Callable[[Net, str], str]
RECIPES: dict[str, tuple[tuple[int, ...], list[Step]]] = {
    "halo": ((1, 8, 2), [lambda n, t: window(n, t, 3, 1, 1)] * 3),
    "stride": ((1, 9, 2), [lambda n, t: window(n, t, 3, 1, 1), lambda n, t: window(n, t, 3, 2, 1)]),
    "gaps": ((1, 9, 2), [lambda n, t: window(n, t, 3, 1, 1), lambda n, t: window(n, t, 1, 2, 0)]),
    "crop": ((1, 8, 2), [lambda n, t: window(n, t, 3, 1, 1), crop]),
    "up-sampled halo": (
        (1, 8, 2),
        [lambda n, t: pointwise(n, t, t), lambda n, t: upsample(n, t, 2),
         lambda n, t: window(n, t, 3, 1, 1)],
    ),
    "flat halo, read": (
        (4, 4, 2),
        [lambda n, t: pointwise(n, t, t), lambda n, t: flatten(n, t, by_write=False),
         lambda n, t: window(n, t, 3, 1, 1)],
    ),
    "flat halo, written": (
        (4, 4, 2),
        [lambda n, t: flatten(n, t, by_write=True), lambda n, t: window(n, t, 3, 1, 1)],
    ),
    "flat halo of an input": (
        (4, 4, 2),
        [lambda n, t: flatten(n, t, by_write=False), lambda n, t: window(n, t, 3, 1, 1)],
    ),
    "diagonal": ((2, 4, 4), [lambda n, t: pointwise(n, t, t), diagonal]),
    "leaning recurrence": (
        (2, 3, 6),
        [lambda n, t: pointwise(n, t, t), lambda n, t: recurrence(n, t, lean=1),
         lambda n, t: pointwise(n, t, t)],
    ),
    "two halves": (
        (2, 4, 2),
        [lambda n, t: concat(n, pointwise(n, t, t), pointwise(n, t, t), 1),
         lambda n, t: window(n, t, 3, 1, 1)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_way_of_cutting_is_sound(recipe: str) -> None:
    shape, steps = RECIPES[recipe]
    net, name = Net(shape), "X"
    for step in steps:
        name = step(net, name)
    graph = net.graph([name])
    for dim, extent in enumerate(net.shape(name)):
        for factor in range(1, extent + 1):
            slices = propagate(graph, net.ops, [name], dim, factor, "g")
            assert slices is not None
            check(net, slices, factor)


def test_halves_of_a_concat_are_computed_by_the_instance_that_holds_them() -> None:
    net = Net((2, 4, 2))
    name = concat(net, pointwise(net, "X", "X"), pointwise(net, "X", "X"), 1)
    slices = propagate(net.graph([name]), net.ops, [name], 1, 2, "g")
    assert slices is not None
    assert not slices.recompute


def test_an_outer_extent_of_one_does_not_hide_the_axis() -> None:
    net = Net((1, 8, 2))
    name = flatten(net, pointwise(net, "X", "X"), by_write=True)
    slices = propagate(net.graph([name]), net.ops, [name], 1, 4, "g")
    assert slices is not None
    assert not slices.recompute


def test_exits_that_cannot_be_written_slice_by_slice() -> None:
    net = Net((3, 4, 2))
    flat = flatten(net, "X", by_write=True)
    assert propagate(net.graph([flat]), net.ops, [flat], 1, 3, "g") is not None
    assert propagate(net.graph([flat]), net.ops, [flat], 1, 2, "g") is None
    net = Net((2, 4, 6))
    out = recurrence(net, "X", lean=1)
    graph = net.graph([out])
    assert propagate(graph, net.ops, [out], 0, 2, "g") is not None
    assert propagate(graph, net.ops, [out], 1, 2, "g") is None  # its steps are in order
    assert propagate(graph, net.ops, [out], 2, 2, "g") is None  # it needs ever more of itself


@given(
    slope=st.integers(-9, 9).filter(bool),
    base=st.integers(-40, 80),
    width=st.integers(1, 12),
    extent=st.integers(1, 60),
)
def test_instances_inside_are_those_that_begin_and_end_there(
    slope: int, base: int, width: int, extent: int
) -> None:
    line = Line(slope, base, width)
    within = [g for g in range(-200, 200) if 0 <= line.start(g) <= extent - width]
    first, last = line.inside(extent)
    assert list(range(first, last + 1)) == within
