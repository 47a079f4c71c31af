"""A rate that the spec does not give is none: who runs what, by hand, and what refusals say."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest
from kernel_toys import elementwise_graph, matmul_graph, tiled
from kernel_toys import machine as flat_machine
from naive_schedules import naive_answer, naive_schedule
from onnx import helper
from onnx_models import saved

from worker.compiler.cost.bounds import bound_cycles
from worker.compiler.cost.compute import (
    able_engines,
    compute_dtype,
    contracted_points,
    engine_cycles,
    pick_engine,
)
from worker.compiler.cost.floor import kernel_floor
from worker.compiler.errors import Shortfall, VerifyError
from worker.compiler.ir.dtype import DType
from worker.compiler.ir.graph import Graph
from worker.compiler.ir.scalar import Apply, Cast, Fn, Read
from worker.compiler.lower.lower import lower_unit
from worker.compiler.machine import load_preset
from worker.compiler.machine.machine import Machine
from worker.compiler.options import CompileOptions
from worker.job.preflight import preflight
from worker.simulator.run import simulate_unit


def picked(graph: Graph, machine: Machine) -> tuple[str, int]:
    """(engine, cycles of one core) of the graph's only operator."""
    (op,) = graph.ops
    engine = pick_engine(op, machine, graph.tensors)
    assert engine is not None
    extents = tuple(axis.extent for axis in op.domain)
    return engine.name, engine_cycles(op, extents, engine, graph.tensors)


# -- by hand ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("preset", ["v100", "xavier", "a100"])
def test_fp32_products_run_on_the_64_lanes_of_an_sm(preset: str) -> None:
    """64 x 64 x 64 MACs at 64 a cycle, 8 to start: neither a guess nor TF32 on the tensor cores."""
    machine = load_preset(preset)
    graph = matmul_graph(64, 64, 64)
    assert picked(graph, machine) == ("CUDA", 8 + 64 * 64 * 64 // 64)
    assert bound_cycles(graph, replace(machine, num_cores=1)) >= 64 * 64 * 64 // 64


def test_fp16_products_of_a_v100_stay_on_its_tensor_cores() -> None:
    """512 a cycle, 16 to start."""
    assert picked(matmul_graph(64, 64, 64, DType.F16), load_preset("v100")) == (
        "TC", 16 + 64 * 64 * 64 // 512,
    )  # fmt: skip


def test_a_simulated_fp32_product_takes_as_long_as_the_lanes_do() -> None:
    """On one SM: the busy cycles are the MACs over 64, and 8 for each of the instructions."""
    machine = replace(load_preset("v100"), num_cores=1)
    machine = replace(machine, levels=tuple(replace(m, instances=1) for m in machine.levels))
    graph = matmul_graph(64, 64, 64)
    program = lower_unit(naive_schedule(graph, machine), machine, "fp32")
    sim = simulate_unit(program, machine, contractions=contracted_points(graph.ops))
    (cuda,) = [use for use in sim.engines if use.engine == "CUDA"]
    assert sim.macs == 64**3
    assert cuda.busy_cycles >= 64**3 // 64 + 8
    assert (cuda.busy_cycles - 64**3 // 64) % 8 == 0
    assert sim.cycles >= 64**3 // 64


# -- what is missing -------------------------------------------------------------------------------


def without(machine: Machine, name: str, dtype: DType) -> Machine:
    return replace(machine, engines=tuple(
        replace(e, macs_per_cycle={d: r for d, r in e.macs_per_cycle.items() if d is not dtype})
        if e.name == name else e
        for e in machine.engines))  # fmt: skip


def no_special(machine: Machine) -> Machine:
    return replace(
        machine, engines=tuple(replace(e, special_ops_per_cycle=0.0) for e in machine.engines)
    )


def test_no_format_has_the_rate_of_another() -> None:
    """bf16 is not FP16, uint32 not int32, and no type is run at the slowest listed rate."""
    machine = load_preset("v100")
    for dtype in (DType.BF16, DType.U32, DType.F8E4M3FN):
        graph = elementwise_graph(Apply(Fn.ADD, (Read(0), Read(1))), (dtype,) * 2, dtype, (8, 8))
        assert able_engines(graph.ops[0], machine, graph.tensors) == ()
        answer = naive_answer(graph, machine)
        assert isinstance(answer, Shortfall)
        assert answer.levers[0].endswith(f"/engines/CUDA/macs_per_cycle/{dtype}")
        assert f"a rate for {dtype} operations" in answer.unit
        # Nothing is claimed of what its engines would need.
        assert not [name for name, _ in kernel_floor(graph, machine) if "compute" in name]


def test_a_format_that_the_target_converts_has_the_option_as_its_remedy() -> None:
    """xavier turns FP32 into FP16; without a rate for that either, the option is no remedy."""
    machine = load_preset("xavier")
    bare = replace(machine, engines=tuple(
        e for e in without(machine, "CUDA", DType.F32).engines if e.name != "TC"))  # fmt: skip
    graph = elementwise_graph(Apply(Fn.NEG, (Read(0),)), (DType.F32,), DType.F32, (8, 8))
    answer = naive_answer(graph, bare)
    assert isinstance(answer, Shortfall)
    assert answer.levers[1] == "convert the model: option precision=f16"
    barer = naive_answer(graph, without(bare, "CUDA", DType.F16))
    assert isinstance(barer, Shortfall)
    assert not [lever for lever in barer.levers if "precision" in lever]
    scarce = naive_answer(
        elementwise_graph(Apply(Fn.EXP, (Read(0),)), (DType.F32,), DType.F32, (8, 8)),
        no_special(machine),
    )
    assert isinstance(scarce, Shortfall)
    assert not [lever for lever in scarce.levers if "precision" in lever]


def test_special_functions_need_a_rate_of_their_own() -> None:
    machine = load_preset("v100")
    graph = elementwise_graph(Apply(Fn.EXP, (Read(0),)), (DType.F32,), DType.F32, (8, 8))
    assert picked(graph, machine) == ("CUDA", 8 + 64 // 16)
    answer = naive_answer(graph, no_special(machine))
    assert isinstance(answer, Shortfall)
    assert answer.levers[0].endswith("/engines/CUDA/special_ops_per_cycle")
    plain = elementwise_graph(Apply(Fn.NEG, (Read(0),)), (DType.F32,), DType.F32, (8, 8))
    # One cycle at 64 a cycle, two for 256 bytes through shared memory's 128 a cycle.
    assert picked(plain, no_special(machine)) == ("CUDA", 8 + 2)


def test_a_matrix_engine_runs_sums_of_products_only() -> None:
    """Where the target may use nothing else, the lever says so."""
    machine = load_preset("v100")
    alone = replace(machine, engines=tuple(e for e in machine.engines if e.name != "CUDA"))
    graph = elementwise_graph(Apply(Fn.NEG, (Read(0),)), (DType.F16,), DType.F16, (8, 8))
    answer = naive_answer(graph, alone)
    assert isinstance(answer, Shortfall)
    assert answer.levers[0] == "let the target use a vector engine"


def test_a_schedule_cannot_use_an_engine_without_the_rate() -> None:
    machine, schedule = flat_machine(), tiled(matmul_graph(16, 16, 16), {})
    lower_unit(schedule, machine, "right")
    with pytest.raises(VerifyError, match="mme lacks a rate for it in f32") as caught:
        lower_unit(schedule, without(machine, "mme", DType.F32), "wrong")
    assert caught.value.rule == "rates"


def test_scales_of_an_integer_stage_are_no_format() -> None:
    """x * scale, rounded: 32-bit integers, though the scale is a float; of floats it is one."""
    body = Cast(DType.I8, Apply(Fn.MUL, (Cast(DType.F32, Read(0)), Read(1))))
    for data, wanted in ((DType.I8, DType.I32), (DType.I64, DType.I64), (DType.F16, DType.F32)):
        graph = elementwise_graph(body, (data, DType.F32), DType.I8, (8, 8))
        (op,) = graph.ops
        tensors = dict(graph.tensors)
        scale = op.reads[1].tensor
        tensors[scale] = replace(tensors[scale], shape=(8,))
        assert compute_dtype(op, tensors) is wanted
        # As many floats as integers are data.
        assert compute_dtype(op, graph.tensors) is (data if data is DType.I64 else DType.F32)


# -- what a user reads -----------------------------------------------------------------------------


def _model(op_type: str, element: int) -> onnx.ModelProto:
    node = helper.make_node(op_type, ["x"], ["y"], name="it")
    values = [helper.make_tensor_value_info(name, element, [4, 8]) for name in ("x", "y")]
    graph = helper.make_graph([node], "one", values[:1], values[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


@pytest.mark.parametrize(
    ("op_type", "element", "engine", "field"),
    [
        ("Exp", onnx.TensorProto.FLOAT, {"special_ops_per_cycle": 0}, "special_ops_per_cycle"),
        ("Neg", onnx.TensorProto.INT64, {}, "macs_per_cycle/i64"),
    ],
)
def test_an_operator_without_a_rate_stays_on_the_host_for_that_reason(
    op_type: str, element: int, engine: dict[str, Any], field: str, tmp_path: Path
) -> None:
    hardware: dict[str, Any] = {
        "inherits": "a100", "name": "bare",
        "engines": [
            {"name": "CUDA", "remove": True},
            {"name": "ALU", "kind": "vector", "memory": "SMEM", "macs_per_cycle": {"f32": 8},
             **engine},
        ],
        "capabilities": {"dtypes": ["f32"], "conversions": []},
    }  # fmt: skip
    found: dict[str, Any] = preflight(
        saved(_model(op_type, element), tmp_path), hardware, CompileOptions()
    )
    assert found["problems"] == []
    (row,) = found["shortfalls"]
    assert row["node"] == "it"
    assert row["resource"] == "engine"
    assert any(f"/engines/ALU/{field}" in lever for lever in row["levers"])
