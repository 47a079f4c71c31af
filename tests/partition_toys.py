"""Random nets, chips with random hosts, and programs of any partitioning, simulated."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import numpy as np
import onnx
import onnx_ir
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from worker.compiler.cache import MemoryCache
from worker.compiler.errors import CompilerError
from worker.compiler.frontend.model import OnnxModel
from worker.compiler.judge.entrants import entrants
from worker.compiler.judge.figures import Figures
from worker.compiler.judge.pool import UnitPool
from worker.compiler.judge.programs import Scheduled, mode_of, schedule
from worker.compiler.judge.solve import Uncounted
from worker.compiler.machine import load_preset
from worker.compiler.machine.machine import LaunchUnit, Machine
from worker.compiler.options import CompileOptions, PartitionChoice
from worker.compiler.partition.partition import partition
from worker.compiler.partition.plan import Partitioning
from worker.compiler.quantize.boundary import Converted
from worker.compiler.rejection import ReasonCode, Rejection
from worker.job.ports import open_ports
from worker.job.request import NoProgress

OPSET = 18


@st.composite
def nets(draw: st.DrawFn, least: int = 3, most: int = 5) -> OnnxModel:
    """Matrix products, additions, ReLUs and sums over a few rows, each of earlier results."""
    width = draw(st.sampled_from([8, 32, 128]))
    shape = [draw(st.sampled_from([4, 32])), width]
    nodes: list[onnx.NodeProto] = []
    weights: list[onnx.TensorProto] = []
    for k in range(draw(st.integers(least, most))):
        earlier = st.integers(max(0, k - 2), k)
        first = f"v{draw(earlier)}"
        kind = draw(st.sampled_from(["MatMul", "MatMul", "Relu", "Add", "CumSum"]))
        sources = [first]
        if kind == "MatMul":
            array = np.full((width, width), 1 + k, dtype=np.float32)
            weights.append(numpy_helper.from_array(array, f"w{k}"))
            sources.append(f"w{k}")
        elif kind == "Add":
            sources.append(f"v{draw(earlier)}")
        elif kind == "CumSum":
            weights.append(numpy_helper.from_array(np.array(1, dtype=np.int64), f"w{k}"))
            sources.append(f"w{k}")
        nodes.append(helper.make_node(kind, sources, [f"v{k + 1}"], name=f"n{k}"))
    read = {name for node in nodes for name in node.input}
    ends = [node.output[0] for node in nodes if node.output[0] not in read]

    def value(name: str) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)

    graph = helper.make_graph(nodes, "toy", [value("v0")], [value(name) for name in ends], weights)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=9)
    inferred = onnx.shape_inference.infer_shapes(proto, strict_mode=True)
    return OnnxModel(onnx_ir.serde.deserialize_model(inferred), "toy", "0" * 64, OPSET)


@st.composite
def chips(draw: st.DrawFn) -> Machine:
    """A preset whose host is slow or fast, near or far."""
    machine = load_preset(draw(st.sampled_from(["kapla-edge", "xavier", "stcp920-inferred"])))
    clock = machine.clock_hz
    host = replace(
        machine.host,
        flops_per_s=clock * draw(st.sampled_from([1, 8, 64])),
        memory_bytes_per_s=clock * draw(st.sampled_from([1, 4, 32])),
        link_bytes_per_s=clock * draw(st.sampled_from([1, 16])),
        link_latency_s=draw(st.sampled_from([0, 200, 5000])) / clock,
        launch_overhead_s=draw(st.sampled_from([0, 500, 5000])) / clock,
        shared_memory=draw(st.booleans()),
    )
    target = replace(
        machine.targets[0],
        launch_unit=draw(st.sampled_from(list(LaunchUnit))),
        launch_latency_cycles=draw(st.sampled_from([0, 300, 5000])),
    )
    return replace(machine, host=host, targets=(target, *machine.targets[1:]))


class Toy:
    """One net on one chip; what is solved once serves every partitioning of it."""

    def __init__(self, model: OnnxModel, machine: Machine, strategy: str = "naive") -> None:
        self.model = model
        self.machine = machine
        self._strategy = strategy
        self._cache = MemoryCache()

    def scheduled(
        self, choice: PartitionChoice, parts: Partitioning | None = None
    ) -> tuple[Scheduled, Figures]:
        """The program by a way of choosing regions, or of `parts`, and its simulation."""
        asked = CompileOptions(strategy=self._strategy, partition=choice)
        ports = open_ports(self.machine, asked, self._cache, NoProgress())
        field, last = entrants(asked)
        pool = UnitPool(
            self.machine, asked, ports.cache, field, last, ports.figures, ports.simulator
        )
        if parts is None:
            parts = partition(self.model, self.machine, {}, mode_of(asked))
        found = schedule(self.model, Converted(self.model), parts, asked, pool, ports, Uncounted())
        return found, ports.whole(found.program)

    def cycles(self, choice: PartitionChoice) -> int:
        """Of the program by a way of choosing regions."""
        return self.scheduled(choice)[1].cycles

    def every_partitioning(self) -> Iterator[int]:
        """Cycles of every set of nodes on the accelerator, in regions as large as they can be."""
        names = [node.name or "" for node in self.model.ir.graph]
        seen: set[object] = set()
        for bits in product([False, True], repeat=len(names)):
            refused = {
                name: Rejection(ReasonCode.WEIGHED, "chosen by the test")
                for name, bit in zip(names, bits, strict=True)
                if bit
            }
            parts = partition(self.model, self.machine, refused)
            if parts.parts in seen:
                continue
            seen.add(parts.parts)
            try:
                _, figures = self.scheduled(PartitionChoice.CRITERIA, parts)
            except CompilerError:
                continue
            yield figures.cycles
