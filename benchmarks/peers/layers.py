"""Single layers, compiled and simulated as any model is, with the kernels to export."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from worker.compiler.cache import MemoryCache
from worker.compiler.cost.compute import compute_dtypes, contracted_points
from worker.compiler.export.export import Kernel
from worker.compiler.frontend.limits import Limits
from worker.compiler.machine import load_preset
from worker.compiler.machine.machine import Machine
from worker.compiler.options import CompileOptions
from worker.compiler.pipeline import compile_model
from worker.job.ports import open_ports
from worker.job.request import NoProgress
from worker.simulator.results import UnitSimulation
from worker.simulator.run import simulate_unit


@dataclass(frozen=True, slots=True)
class Layer:
    """A matrix product (size 0) or a convolution of a square image, in float16."""

    rows: int
    """Of the product; samples of the convolution."""
    inner: int
    """Summed over; input channels."""
    columns: int
    """Output channels."""
    size: int = 0
    kernel: int = 1
    stride: int = 1


LAYERS = {
    "gemm 64x128x96": Layer(64, 128, 96),
    "gemm 512x512x512": Layer(512, 512, 512),
    "gemm 49x1024x1024": Layer(49, 1024, 1024),
    "gemm 1x1024x1024": Layer(1, 1024, 1024),
    "resnet18 conv2_x": Layer(1, 64, 64, 56, 3),
    "resnet18 conv3_x": Layer(1, 128, 128, 28, 3),
    "resnet18 down3": Layer(1, 64, 128, 56, 1, 2),
    "resnet18 conv4_x": Layer(1, 256, 256, 14, 3),
    "resnet18 conv5_x": Layer(1, 512, 512, 7, 3),
    "resnet50 expand2": Layer(1, 64, 256, 56),
    "alexnet conv3": Layer(1, 256, 384, 13, 3),
    "conv 16x16x16": Layer(1, 16, 32, 16, 3),
}
"""ResNet and AlexNet as published; products of every shape."""
PRESETS = ("kapla-edge", "eyeriss", "kapla-16x16")


@dataclass(frozen=True, slots=True)
class Compiled:
    """One layer on one machine."""

    machine: Machine
    kernel: Kernel
    simulation: UnitSimulation


def compiled(name: str, preset: str, scratch: Path) -> Compiled:
    """Compile and simulate; the layer is one kernel of one operator.

    On a chip that moves any byte alone, as it does in every peer.
    """
    machine, options = load_preset(preset), CompileOptions(strategy="naive")
    levels = tuple(replace(level, burst_bytes=1) for level in machine.levels)
    machine = replace(machine, levels=levels)
    path = scratch / "layer.onnx"
    onnx.save(_model(LAYERS[name]), path)
    ports = open_ports(machine, options, MemoryCache(), NoProgress())
    found = compile_model(path, name, machine, options, ports, Limits())
    (unit,) = found.units
    points = contracted_points(unit.schedule.graph.ops)
    graph = unit.schedule.graph
    run = simulate_unit(
        unit.program, machine, unit.schedule.predicted_cycles, points,
        formats=compute_dtypes(graph),
    )  # fmt: skip
    kernel = Kernel(unit.kernel_name, (name,), unit.schedule, machine.targets[0].name)
    return Compiled(machine, kernel, run)


def _model(layer: Layer) -> onnx.ModelProto:
    if layer.size:
        shape = [layer.rows, layer.inner, layer.size, layer.size]
        out_size = -(-layer.size // layer.stride)
        out = [layer.rows, layer.columns, out_size, out_size]
        weights: tuple[int, ...] = (layer.columns, layer.inner, layer.kernel, layer.kernel)
        node = helper.make_node(
            "Conv", ["x", "w"], ["y"], strides=[layer.stride] * 2, pads=[layer.kernel // 2] * 4
        )
    else:
        shape, out = [layer.rows, layer.inner], [layer.rows, layer.columns]
        weights = (layer.inner, layer.columns)
        node = helper.make_node("MatMul", ["x", "w"], ["y"])
    constant = numpy_helper.from_array(np.full(weights, 0.5, np.float16), "w")
    graph = helper.make_graph(
        [node], "layer",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT16, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT16, out)], [constant],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
