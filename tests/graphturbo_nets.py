"""Small networks of operators, and the road from GraphTurbo's plan of one to numbers and cycles."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from kernel_runs import check_kernel
from row_chain_graphs import Axes, fn, op
from toy_schedules import machine as toy_machine

from worker.compiler.cost.compute import engines_of
from worker.compiler.errors import Shortfall
from worker.compiler.ir.affine import var
from worker.compiler.ir.dtype import DType
from worker.compiler.ir.evaluate import evaluate
from worker.compiler.ir.graph import Graph
from worker.compiler.ir.op import Reduce, Tensor, TensorOp
from worker.compiler.ir.scalar import Fn, Read, Scalar
from worker.compiler.isa.program import UnitProgram
from worker.compiler.isa.verify import verify_program
from worker.compiler.lower.lower import lower_unit
from worker.compiler.machine.machine import Machine
from worker.compiler.schedule.interpret import interpret
from worker.compiler.schedule.nodes import Loop, Node, Pipe, Place, Schedule, Seq
from worker.compiler.schedule.verify import verify
from worker.compiler.strategies.graphturbo.descriptor import GraphTurboOptions, Variant
from worker.compiler.strategies.graphturbo.sections import UnitContext
from worker.compiler.strategies.graphturbo.strategy import GraphTurboStrategy
from worker.compiler.strategies.graphturbo.variants import FEATURES
from worker.compiler.tiling.layer.layers import form_layers
from worker.simulator.results import UnitSimulation

Arrays: TypeAlias = "dict[str, npt.NDArray[Any]]"

_MUL = fn(Fn.MUL, Read(0), Read(1))
_ADD = fn(Fn.ADD, Read(0), Read(1))
_RELU = fn(Fn.MAX, Read(0), 0.0)
_NAMES = ("n", "c", "y", "x")


class Net:
    """A network under construction; methods return the name of the tensor they add."""

    def __init__(self, dtype: DType = DType.F32) -> None:
        self.dtype = dtype
        self.ops: list[TensorOp] = []
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.inputs: list[str] = []
        self.constants: list[str] = []

    def given(self, *shape: int) -> str:
        """A graph input."""
        self.inputs.append(self._new(shape))
        return self.inputs[-1]

    def weight(self, *shape: int) -> str:
        """A constant."""
        self.constants.append(self._new(shape))
        return self.constants[-1]

    def conv(self, source: str, channels: int, kernel: int = 3, stride: int = 1) -> str:
        """Convolution of NCHW with padding kernel // 2."""
        batch, cin, height, width = self.shapes[source]
        weight = self.weight(channels, cin, kernel, kernel)
        pad = kernel // 2
        at = ("n", "ci", var("y") * stride + var("ky") - pad, var("x") * stride + var("kx") - pad)
        axes: Axes = [
            ("n", batch), ("c", channels), ("y", -(-height // stride)), ("x", -(-width // stride)),
            ("ci", cin, "r"), ("ky", kernel, "r"), ("kx", kernel, "r"),
        ]  # fmt: skip
        reads = [(source, at, 0.0), (weight, ("c", "ci", "ky", "kx"))]
        return self.op("conv", axes, reads, _MUL, Reduce.ADD)

    def grouped(self, source: str, groups: int) -> str:
        """1 x 1 convolution of NCHW in groups, to as many channels."""
        batch, channels, height, width = self.shapes[source]
        size = channels // groups
        weight, out = self.weight(channels, size), self._new((batch, channels, height, width))
        axes: Axes = [
            ("n", batch), ("g", groups), ("c", size), ("y", height), ("x", width),
            ("ci", size, "r"),
        ]  # fmt: skip
        made = var("g") * size + var("c")
        reads = [(source, ("n", var("g") * size + var("ci"), "y", "x")), (weight, (made, "ci"))]
        write = (out, ("n", made, "y", "x"))
        self.ops.append(op(f"grouped_{out}", axes, reads, write, _MUL, Reduce.ADD))
        return out

    def pool(self, source: str) -> str:
        """Maximum over 2 x 2 windows of stride 2."""
        batch, channels, height, width = self.shapes[source]
        at = ("n", "c", var("y") * 2 + var("ky"), var("x") * 2 + var("kx"))
        axes: Axes = [
            ("n", batch), ("c", channels), ("y", height // 2), ("x", width // 2),
            ("ky", 2, "r"), ("kx", 2, "r"),
        ]  # fmt: skip
        return self.op("pool", axes, [(source, at)], Read(0), Reduce.MAX)

    def relu(self, source: str) -> str:
        return self.pointwise("relu", (source,), _RELU)

    def up_sample(self, source: str) -> str:
        """Every row and column of NCHW twice."""
        batch, channels, height, width = self.shapes[source]
        axes: Axes = [("n", batch), ("c", channels), ("y", 2 * height), ("x", 2 * width)]
        at = ("n", "c", var("y").floordiv(2), var("x").floordiv(2))
        return self.op("up", axes, [(source, at)], Read(0))

    def add(self, left: str, right: str) -> str:
        return self.pointwise("add", (left, right), _ADD)

    def pointwise(self, name: str, sources: tuple[str, ...], body: Scalar) -> str:
        """One operator over equal shapes."""
        shape = self.shapes[sources[0]]
        axes: Axes = [(f"a{k}", size) for k, size in enumerate(shape)]
        at = tuple(f"a{k}" for k in range(len(shape)))
        return self.op(name, axes, [(source, at) for source in sources], body)

    def empty(self, *shape: int) -> str:
        """A tensor that several operators write: see `into`."""
        return self._new(shape)

    def into(self, whole: str, source: str, first: int) -> None:
        """A rectified NCHW tensor as channels `first` .. of another: a piece of a concatenation."""
        batch, channels, height, width = self.shapes[source]
        axes: Axes = [("n", batch), ("c", channels), ("y", height), ("x", width)]
        write = (whole, ("n", var("c") + first, "y", "x"))
        reads = [(source, ("n", "c", "y", "x"))]
        self.ops.append(op(f"into_{source}", axes, reads, write, _RELU))

    def matmul(self, source: str, columns: int) -> str:
        """[rows, k] times a constant [k, columns]."""
        rows, depth = self.shapes[source]
        weight = self.weight(depth, columns)
        axes: Axes = [("i", rows), ("j", columns), ("k", depth, "r")]
        return self.op("mm", axes, [(source, ("i", "k")), (weight, ("k", "j"))], _MUL, Reduce.ADD)

    def over(self, source: str, dim: int, body: Scalar, reduce: Reduce) -> str:
        """Reduction of one dimension, which is gone."""
        shape = self.shapes[source]
        kept: Axes = [(f"a{k}", size) for k, size in enumerate(shape) if k != dim]
        at = tuple(f"a{k}" for k in range(len(shape)))
        return self.op("over", [*kept, (f"a{dim}", shape[dim], "r")], [(source, at)], body, reduce)

    def softmax(self, source: str, dim: int) -> str:
        """exp(x - max) / sum, along `dim`."""
        shape = self.shapes[source]
        axes: Axes = [(f"a{k}", size) for k, size in enumerate(shape)]
        at = tuple(f"a{k}" for k in range(len(shape)))
        row = tuple(f"a{k}" for k in range(len(shape)) if k != dim)
        top = self.over(source, dim, Read(0), Reduce.MAX)
        gap = fn(Fn.EXP, fn(Fn.SUB, Read(0), Read(1)))
        power = self.op("exp", axes, [(source, at), (top, row)], gap)
        total = self.over(power, dim, Read(0), Reduce.ADD)
        return self.op("div", axes, [(power, at), (total, row)], fn(Fn.DIV, Read(0), Read(1)))

    def graph(self, *outputs: str) -> Graph:
        """All of it, with these outputs."""
        tensors = tuple(Tensor(n, s, self.dtype) for n, s in self.shapes.items())
        return Graph.build(
            tuple(self.ops), tensors, tuple(self.inputs), outputs, tuple(self.constants)
        )

    def _new(self, shape: tuple[int, ...]) -> str:
        name = f"t{len(self.shapes)}"
        self.shapes[name] = shape
        return name

    def op(
        self, kind: str, axes: Axes, reads: Any, body: Scalar, reduce: Reduce | None = None
    ) -> str:
        kept = [a for a in axes if len(a) == 2]
        out = self._new(tuple(a[1] for a in kept))
        write = (out, tuple(a[0] for a in kept))
        self.ops.append(op(f"{kind}_{out}", axes, reads, write, body, reduce))
        return out


def down_sampled(samples: int = 16, depth: int = 4) -> Graph:
    """Images halve and channels double from one convolution to the next."""
    net = Net()
    x = net.given(samples, 2, 8, 8)
    for k in range(depth):
        x = net.relu(net.conv(x, 4 * 2**k, 3, 2 if k else 1))
    return net.graph(x)


def towers(samples: int = 16) -> Graph:
    """Two inputs of equal shape, two convolutions each, concatenated and halved twice."""
    net = Net()
    ends = [net.given(samples, 2, 8, 8) for _ in range(2)]
    for stride in (1, 2):
        ends = [net.relu(net.conv(x, 4, 3, stride)) for x in ends]
    whole = net.empty(samples, 8, 4, 4)
    for k, x in enumerate(ends):
        net.into(whole, x, 4 * k)
    halved = net.relu(net.conv(whole, 8, 3, 2))
    return net.graph(net.relu(net.conv(halved, 16, 3, 2)))


def clustered(
    clusters: int = 2, cores: int = 2, gb_bytes: int = 1 << 14, l1_bytes: int = 1 << 12
) -> Machine:
    """Home -> one buffer per cluster -> one per core; `cores` of each cluster."""
    base = toy_machine(clusters * cores, l1_bytes)
    home, gb, l1 = base.levels
    return replace(
        base, num_clusters=clusters,
        levels=(home, replace(gb, instances=clusters, capacity_bytes=gb_bytes), l1),
    )  # fmt: skip


def arrays_of(graph: Graph) -> Arrays:
    """Inputs of small integers, weights of -1, 0 and 1: short sums are exact in every order."""
    random = np.random.default_rng(11)
    found: Arrays = {}
    for name in (*graph.inputs, *graph.constants):
        most = 1 if name in graph.constants else 3
        tensor = graph.tensors[name]
        found[name] = random.integers(-most, most + 1, tensor.shape).astype(tensor.dtype.numpy)
    return found


LAST = 99
"""The candidate without any hand-over in LB, whatever its number is."""


def unit_context(graph: Graph, machine: Machine, variant: Variant = Variant.FULL) -> UnitContext:
    """A unit as sections are planned for it, layers formed."""
    features = FEATURES[variant]
    engines = engines_of(graph.ops, graph.tensors, machine)
    assert not isinstance(engines, str)
    layers = form_layers(graph, machine, chains=features.row_chains)
    return UnitContext(graph, layers, engines, machine, features)


def scheduled(
    graph: Graph, machine: Machine, variant: Variant = Variant.FULL, *, number: int = 0
) -> Schedule:
    """A candidate for a graph as one unit, verified; the last one where there are fewer."""
    asked = GraphTurboOptions(variant)
    found = list(GraphTurboStrategy().candidates(graph, machine, asked))
    chosen = found[min(number, len(found) - 1)]
    assert not isinstance(chosen, Shortfall), chosen
    verify(chosen, machine)
    return chosen


def check_meaning(schedule: Schedule) -> None:
    """The tree computes what its graph says (interpreted, against NumPy)."""
    inputs = arrays_of(schedule.graph)
    got = interpret(schedule, inputs, home="DDR")
    want = evaluate(schedule.graph, inputs)
    for name in schedule.graph.outputs:
        np.testing.assert_allclose(got[name], want[name], rtol=1e-5, atol=1e-6)


def lowered(schedule: Schedule, machine: Machine) -> UnitProgram:
    """Its program, checked."""
    program = lower_unit(schedule, machine, "unit")
    verify_program(program, machine)
    return program


def check_as_c(schedule: Schedule, machine: Machine, folder: Path) -> UnitSimulation:
    """Its kernel computes what its graph says, in arenas as planned; returns the simulation."""
    return check_kernel(schedule, machine, arrays_of(schedule.graph), folder, near=1e-5, orders=12)


def nodes(node: Node) -> Iterator[Node]:
    """A tree's nodes, parents first, in order."""
    yield node
    match node:
        case Loop() | Place():
            yield from nodes(node.body)
        case Seq(parts):
            for part in parts:
                yield from nodes(part)
        case Pipe():
            for stage in node.stages:
                yield from nodes(stage.body)
        case _:
            pass
