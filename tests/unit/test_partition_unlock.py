"""Unlock list: on a chain whose answer is known by hand, and what cannot be lifted."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from onnx import helper
from partition_models import machine_of, model_of, target

from worker.compiler.frontend.model import OnnxModel
from worker.compiler.ir.dtype import DType
from worker.compiler.machine.machine import Host, Machine, OpSupport
from worker.compiler.partition.estimate import estimated_seconds
from worker.compiler.partition.partition import partition
from worker.compiler.partition.plan import HOST, Partitioning
from worker.compiler.partition.unlock import Lift, Unlock, allowing, unlock_list
from worker.compiler.rejection import ReasonCode

SHAPE = (1, 4, 8, 8)
BYTES = 4 * 256


def islands() -> OnnxModel:
    """relu, sigmoid, relu, conv (stride 2), relu, sigmoid, relu, top: only relu is offered."""
    weights = {"w": np.ones((4, 4, 2, 2), np.float32)}
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], name="r0"),
        helper.make_node("Sigmoid", ["a"], ["b"], name="s0"),
        helper.make_node("Relu", ["b"], ["c"], name="r1"),
        helper.make_node("Conv", ["c", "w"], ["d"], name="conv", strides=[2, 2]),
        helper.make_node("Relu", ["d"], ["e"], name="r2"),
        helper.make_node("Sigmoid", ["e"], ["f"], name="s1"),
        helper.make_node("Relu", ["f"], ["g"], name="r3"),
        helper.make_node("Det", ["g"], ["y"], name="top"),
    ]
    return model_of(nodes, {"x": SHAPE}, ["y"], weights)


def machine(conv: OpSupport) -> Machine:
    """Copies take 1 s each and no bandwidth, an invocation of the host 0.25 s; work is free."""
    host = Host("cpu", 1e18, 1e18, 1e18, 1.0, 0.25)
    return replace(machine_of(target("npu", [conv, "Relu"])), host=host, launch_latency_cycles=0)


LIMITED = OpSupport("Conv", (), (("stride_h", 1, 1),))


def unlocked(model: OnnxModel, chip: Machine) -> tuple[Unlock, ...]:
    parts = partition(model, chip, {})
    base = estimated_seconds(model, chip, parts)

    def repartition(lifts: frozenset[Lift]) -> Partitioning:
        return partition(model, allowing(chip, lifts), {})

    return unlock_list(
        model, chip, parts, repartition, lambda new: base - estimated_seconds(model, chip, new)
    )


def test_the_answer_of_a_chain_is_known() -> None:
    rows = unlocked(islands(), machine(LIMITED))
    assert [(r.op_type, r.kind, r.nodes) for r in rows] == [
        ("Sigmoid", ReasonCode.CAPABILITY_OP, ("s0", "s1")),
        ("Conv", ReasonCode.CAPABILITY_ATTRIBUTE, ("conv",)),
        ("Det", rows[2].kind, ("top",)),
    ]
    # every operator that moves saves one host part and the two copies around it
    assert rows[0].saves_s == pytest.approx(2 * (2 * 1.0 + 0.25), abs=1e-4)
    assert rows[1].saves_s == pytest.approx(2 * 1.0 + 0.25, abs=1e-4)
    assert [(r.regions_before, r.regions_after) for r in rows] == [(4, 2), (4, 3), (4, 4)]
    small = BYTES // 4  # 4 x 4 x 4 elements after the stride
    before = 4 * BYTES + 4 * small
    assert [r.boundary_bytes_before for r in rows] == [before] * 3
    assert rows[0].boundary_bytes_after == before - 2 * BYTES - 2 * small
    assert rows[1].boundary_bytes_after == before - BYTES - small
    assert [r.macs for r in rows] == [0, 64 * 16, 0]
    assert "wider limits for Conv would move 1 operator and save 2.25 s" in rows[1].sentence


def test_what_the_algebra_cannot_say_comes_last_with_its_reason() -> None:
    last = unlocked(islands(), machine(LIMITED))[-1]
    assert (last.op_type, last.saves_s, last.nodes) == ("Det", None, ("top",))
    assert last.kind is not ReasonCode.CAPABILITY_OP
    assert "cannot be compiled" in last.sentence


def test_the_list_is_the_same_every_time() -> None:
    chip = machine(LIMITED)
    assert unlocked(islands(), chip) == unlocked(islands(), chip)


def test_kinds_of_one_operator_are_apart() -> None:
    weights = {"w": np.ones((4, 4, 2, 2), np.float32)}
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], name="wide", strides=[2, 2]),
        helper.make_node("Conv", ["a", "v"], ["y"], name="computed"),
    ]
    model = model_of(nodes, {"x": SHAPE, "v": (4, 4, 2, 2)}, ["y"], weights)
    rows = unlocked(model, machine(replace(LIMITED, constant_inputs=(1,))))
    assert {(r.kind, r.nodes) for r in rows} == {
        (ReasonCode.CAPABILITY_ATTRIBUTE, ("wide",)),
        (ReasonCode.CONSTANT_INPUT, ("computed",)),
    }


def test_a_type_without_an_engine_cannot_be_lifted() -> None:
    chip = machine(LIMITED)
    integers = replace(chip.targets[0].capabilities, dtypes=(DType.I8,))
    engines = tuple(
        replace(e, macs_per_cycle={DType.I8: 16.0} if e.macs_per_cycle else {})
        for e in chip.engines
    )
    chip = replace(
        chip, engines=engines, targets=(replace(chip.targets[0], capabilities=integers),)
    )
    rows = {row.op_type: row for row in unlocked(islands(), chip)}
    assert rows["Relu"].saves_s is None
    assert "needs f32, and engines have rates for i8 only" in rows["Relu"].sentence


def test_a_type_with_an_engine_can_be_lifted() -> None:
    chip = machine(OpSupport("Conv", (DType.F16,)))
    row = next(r for r in unlocked(islands(), chip) if r.op_type == "Conv")
    assert row.kind is ReasonCode.CAPABILITY_DTYPE
    assert row.saves_s == pytest.approx(2.25, abs=1e-4)


def test_a_lift_that_moves_nothing_says_so() -> None:
    chip = machine(OpSupport("Conv", (DType.F16,), (("stride_h", 1, 1),)))
    row = next(r for r in unlocked(islands(), chip) if r.op_type == "Conv")
    assert row.saves_s == pytest.approx(0.0)
    assert row.sentence == "more types for Conv alone would leave Conv (conv) on the host"


def test_allowing_nothing_changes_nothing() -> None:
    chip = machine(LIMITED)
    assert allowing(chip, frozenset()) == chip
    assert partition(islands(), chip, {}).placement[1].target == HOST
