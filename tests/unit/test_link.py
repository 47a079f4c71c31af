"""Linking: storage is shared by views, bound by name, and counted at the host's boundary."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx_models import conv_net, repeated_layers, saved, with_host_part

from worker.compiler.cache import MemoryCache
from worker.compiler.frontend.limits import Limits
from worker.compiler.isa.program import HostCall, OperandRole, UnitCall
from worker.compiler.judge.compiled import CompiledModel
from worker.compiler.machine import load_preset
from worker.compiler.options import CompileOptions
from worker.compiler.pipeline import compile_model
from worker.job.ports import open_ports
from worker.job.request import NoProgress


def compiled(model: onnx.ModelProto, folder: Path) -> CompiledModel:
    machine, options = load_preset("a100"), CompileOptions(strategy="naive")
    ports = open_ports(machine, options, MemoryCache(), NoProgress())
    return compile_model(saved(model, folder), "m", machine, options, ports, Limits())


def only_a_view() -> onnx.ModelProto:
    graph = helper.make_graph(
        [
            helper.make_node("Relu", ["x"], ["r"], name="relu"),
            helper.make_node("Flatten", ["r"], ["f"], name="flatten"),
            helper.make_node("Exp", ["f"], ["y"], name="exp"),
        ],
        "view",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 12])],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def test_a_view_shares_its_sources_address_and_runs_nothing(tmp_path: Path) -> None:
    linked = compiled(only_a_view(), tmp_path).linked
    (view,) = linked.views
    assert view.onnx_nodes == ("flatten",)
    assert linked.address_of[view.tensor] == linked.address_of[view.source]
    assert [c.onnx_nodes for c in linked.program.calls] == [("relu",), ("exp",)]


@pytest.mark.parametrize("build", [conv_net, repeated_layers, with_host_part])
def test_every_operand_is_bound_to_a_tensor_of_its_shape(
    tmp_path: Path, build: type[onnx.ModelProto]
) -> None:
    model = compiled(build(), tmp_path)
    linked = model.linked
    for call in linked.program.calls:
        if not isinstance(call, UnitCall):
            continue
        operands = model.units[call.unit].program.operands
        assert len(call.bindings) == len(operands)
        for operand, binding in zip(operands, call.bindings, strict=True):
            tensor = linked.tensors[binding.tensor]
            assert (tensor.shape, str(tensor.dtype)) == (operand.shape, operand.dtype)
            assert binding.address == linked.address_of[binding.tensor]
            assert binding.address >= 0
            assert binding.address + tensor.size_bytes <= linked.program.home_bytes


def test_live_operands_of_one_call_never_overlap(tmp_path: Path) -> None:
    model = compiled(conv_net(), tmp_path)
    for call in model.linked.program.calls:
        assert isinstance(call, UnitCall)
        spans = sorted(
            {(b.address, b.address + model.linked.tensors[b.tensor].size_bytes)
             for b in call.bindings}
        )  # fmt: skip
        assert all(end <= start for (_, end), (start, _) in pairwise(spans))


def test_layers_of_one_unit_read_their_own_constants(tmp_path: Path) -> None:
    model = compiled(repeated_layers(4), tmp_path)
    read: list[str] = []
    for call in model.linked.program.calls:
        assert isinstance(call, UnitCall)
        operands = model.units[call.unit].program.operands
        read += [
            b.tensor
            for o, b in zip(operands, call.bindings, strict=True)
            if o.role is OperandRole.CONSTANT
        ]
    assert len(read) == len(set(read)) == 4
    assert set(read) == set(model.linked.constants)
    addresses = [model.linked.address_of[name] for name in model.linked.constants]
    assert addresses == sorted(addresses)
    assert model.linked.program.weight_bytes >= 4 * 32 * 32 * 4
    for name in model.linked.constants:
        assert np.asarray(model.constants[name]()).shape == (32, 32)


def test_bytes_that_cross_to_the_host_are_the_tensors_kernels_touch(tmp_path: Path) -> None:
    linked = compiled(with_host_part(), tmp_path).linked
    (call,) = [c for c in linked.program.calls if isinstance(c, HostCall)]
    assert call.inputs == ("m0",)
    assert call.input_bytes == 4 * 16 * 4
    # the values feed a kernel; the indices nobody reads cross nothing
    assert call.output_bytes == 4 * 8 * 4
    assert call.onnx_nodes == ("top",)
    assert call.op_types == ("TopK",)
    assert linked.hosts[call.host].onnx_nodes == ("top",)
