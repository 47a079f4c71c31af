"""The benchmark's independent check refuses every kind of unsound partitioning."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from onnx import helper
from partition_models import machine_of, model_of, target

from benchmarks.partition_check import faults
from worker.compiler.partition.partition import partition
from worker.compiler.partition.plan import HOST, Part, Partitioning

MACHINE = machine_of(target("npu", ["Relu", "Abs", "Add"]))
MODEL = model_of(
    [
        helper.make_node("Relu", ["x"], ["a"], name="relu"),
        helper.make_node("CumSum", ["a", "axis"], ["b"], name="sum"),
        helper.make_node("Abs", ["b"], ["c"], name="abs"),
        helper.make_node("Add", ["a", "c"], ["y"], name="add"),
    ],
    {"x": (2, 3)},
    ["y"],
    {"axis": np.array(0, np.int64)},
)
SOUND = partition(MODEL, MACHINE, {})


def test_a_sound_partitioning_has_no_faults() -> None:
    assert faults(MODEL, MACHINE, SOUND) == ()
    assert [(p.target, p.nodes) for p in SOUND.parts] == [
        ("npu", (0,)), (HOST, (1,)), ("npu", (2, 3)),
    ]  # fmt: skip


def _rows(**changes: str) -> Partitioning:
    first = replace(SOUND.placement[0], **changes)  # type: ignore[arg-type]  # fields are strings
    return replace(SOUND, placement=(first, *SOUND.placement[1:]))


def _parts(*parts: Part) -> Partitioning:
    return replace(SOUND, parts=parts)


FIRST, MIDDLE, LAST = SOUND.parts
TORN = Part("npu", (0, 2, 3), ("x", "b"), ("a", "y"))


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (replace(SOUND, placement=SOUND.placement[1:]), "3 placement rows"),
        (_rows(target="tpu"), "which the machine lacks"),
        (_rows(reason=" "), "relu has no reason"),
        (_rows(target=HOST), "relu is placed on host, its part is of npu"),
        (_parts(FIRST, LAST), "sum is in 0 parts"),
        (_parts(FIRST, MIDDLE, LAST, FIRST), "relu is in 2 parts"),
        (_parts(FIRST, LAST, MIDDLE), "abs runs before sum"),
        (_parts(TORN, MIDDLE), "the region at relu is not convex"),
        (_parts(replace(FIRST, inputs=()), MIDDLE, LAST), "inputs of the part at relu"),
        (_parts(replace(FIRST, outputs=("a", "x")), MIDDLE, LAST), "outputs of the part at relu"),
    ],
)
def test_every_fault_is_named(broken: Partitioning, words: str) -> None:
    assert any(words in fault for fault in faults(MODEL, MACHINE, broken))
