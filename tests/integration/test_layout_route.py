"""Whole models through the pipeline on machines that want another layout, against ONNX Runtime."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from layout_models import BLOCKED, NHWC, RegionBuilder, blocked_by
from onnx_models import conv_net, saved

from worker.compiler.assembly.packing import kernel_texts, program_contents
from worker.compiler.cache import MemoryCache
from worker.compiler.frontend.limits import Limits
from worker.compiler.judge.compiled import CompiledModel
from worker.compiler.layout.change import ChangeKind
from worker.compiler.machine import load_preset
from worker.compiler.machine.layout_policy import LayoutPolicy
from worker.compiler.machine.machine import Machine
from worker.compiler.options import CompileOptions
from worker.compiler.package.build import build_library
from worker.compiler.package.runtime import load_program
from worker.compiler.pipeline import compile_model
from worker.job.ports import open_ports
from worker.job.request import NoProgress

BUILD_DIR = Path(tempfile.gettempdir()) / "tilewright-layout-kernels"
"""Shared by runs: libraries are found by content."""


def wanting(policy: LayoutPolicy | None) -> Machine:
    """An A100 whose target wants a layout."""
    machine = load_preset("a100")
    return replace(machine, targets=tuple(replace(t, layout=policy) for t in machine.targets))


def compiled(model: onnx.ModelProto, policy: LayoutPolicy | None, folder: Path) -> CompiledModel:
    machine, options = wanting(policy), CompileOptions()
    ports = open_ports(machine, options, MemoryCache(), NoProgress())
    return compile_model(saved(model, folder), "m", machine, options, ports, Limits())


def assert_runs(model: onnx.ModelProto, made: CompiledModel) -> None:
    """Outputs as ONNX Runtime's, through ONNX's shapes at the boundary."""
    runner = load_program(program_contents(made), build_library(kernel_texts(made), BUILD_DIR))
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    random = np.random.default_rng(11)
    inputs = {
        i.name: random.standard_normal(i.shape).astype(np.float32) for i in session.get_inputs()
    }
    names = [o.name for o in session.get_outputs()]
    got = runner.run(inputs)
    for name, want in zip(names, session.run(names, inputs), strict=True):
        assert got[name].shape == want.shape
        # sums cancel here, so errors are small against what was summed, not against each result
        largest = float(np.max(np.abs(want)))
        np.testing.assert_allclose(got[name], want, rtol=0, atol=5e-6 * largest, err_msg=name)


def two_regions() -> onnx.ModelProto:
    """Convolutions on either side of an operator that no accelerator takes, one input shared."""
    region = RegionBuilder({"x": (1, 16, 6, 6)}, seed=4)
    for name in ("w1", "w2", "w3"):
        region.constant(name, (16, 16, 3, 3))
    region.add("Conv", ["x", "w1"], "a", pads=[1, 1, 1, 1])
    region.add("NonZero", ["a"], "k")
    region.add("Cast", ["k"], "f", to=onnx.TensorProto.FLOAT)
    region.add("ReduceSum", ["f"], "s", keepdims=0)
    region.add("Mul", ["a", "s"], "b")
    region.add("Conv", ["b", "w2"], "c", pads=[1, 1, 1, 1])
    region.add("Conv", ["x", "w3"], "d", pads=[1, 1, 1, 1])
    region.add("Add", ["c", "d"], "y")
    return region.model(["y"])


@pytest.mark.parametrize("policy", [NHWC, blocked_by(4)], ids=["nhwc", "nchw4c"])
def test_a_network_in_another_layout(policy: LayoutPolicy, tmp_path: Path) -> None:
    model = conv_net()
    made = compiled(model, policy, tmp_path)
    packed = [c for _, c in made.layouts if c.kind is ChangeKind.PREPACKED_CONSTANT]
    assert len(packed) == 2
    assert_runs(model, made)
    plain = compiled(model, None, tmp_path)
    assert plain.layouts == ()
    assert [row.target for row in made.placement] == [row.target for row in plain.placement]


@pytest.mark.parametrize("policy", [NHWC, BLOCKED], ids=["nhwc", "nchw16c"])
def test_regions_around_the_host(policy: LayoutPolicy, tmp_path: Path) -> None:
    model = two_regions()
    made = compiled(model, policy, tmp_path)
    assert len(made.region_graphs) > 1
    assert {ChangeKind.BOUNDARY_IN, ChangeKind.BOUNDARY_OUT} <= {c.kind for _, c in made.layouts}
    assert_runs(model, made)
