"""Neighbouring regions run as one where the strategy wants that and no criterion limits them."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_partition_criteria import Node, host, machine_with, model_of, regions

from worker.compiler.cache import MemoryCache
from worker.compiler.frontend.limits import Limits
from worker.compiler.frontend.model import OnnxModel
from worker.compiler.machine.machine import Machine, PartitionMode
from worker.compiler.options import CompileOptions
from worker.compiler.partition.join import joined
from worker.compiler.partition.partition import partition
from worker.compiler.partition.plan import Action, Partitioning
from worker.compiler.pipeline import compile_model
from worker.job.ports import open_ports
from worker.job.request import NoProgress

NODES: list[Node] = [
    ("a0", "Relu", ["x"]),
    ("b0", "Neg", ["x"]),
    ("a1", "Exp", ["a0"]),
    ("b1", "Exp", ["b0"]),
    ("h", "Add", ["a1", "b1"]),
    ("c", "Relu", ["h"]),
    ("d", "Neg", ["h"]),
]


def parts_of(folder: Path, machine: Machine) -> tuple[OnnxModel, Partitioning]:
    model = model_of(NODES, ["c", "d"], folder)
    return model, partition(model, machine, host(["h"]))


def test_neighbours_become_one_part_and_the_host_stays_between(tmp_path: Path) -> None:
    machine = machine_with()
    model, apart = parts_of(tmp_path, machine)
    assert regions(apart) == [["a0", "a1"], ["b0", "b1"], ["c"], ["d"]]
    found = joined(apart, model, machine)
    assert regions(found) == [["a0", "b0", "a1", "b1"], ["c", "d"]]
    assert [part.is_host for part in found.parts] == [False, True, False]
    first, _, last = found.parts
    assert (first.inputs, first.outputs) == (("x",), ("a1", "b1"))
    assert (last.inputs, last.outputs) == (("h",), ("c", "d"))
    assert [(d.first_node, d.action) for d in found.decisions] == [
        ("a0", Action.KEPT), ("b0", Action.JOINED), ("c", Action.KEPT), ("d", Action.JOINED),
    ]  # fmt: skip
    assert "runs as one with the region at a0" in found.decisions[1].sentence
    assert joined(found, model, machine) is found


def test_limits_keep_regions_apart_unless_the_mode_ignores_them(tmp_path: Path) -> None:
    machine = machine_with(max_ops=3)
    model, apart = parts_of(tmp_path, machine)
    assert joined(apart, model, machine) is apart
    assert len(joined(apart, model, machine, PartitionMode.GREEDY).regions) == 2


@pytest.mark.parametrize(("strategy", "count"), [("naive", 2), ("graphturbo", 1)])
def test_only_strategies_that_span_regions_ask_for_it(
    tmp_path: Path, strategy: str, count: int
) -> None:
    model_of(NODES[:4], ["a1", "b1"], tmp_path)
    options = CompileOptions.from_json({"verify": "none", "strategy": strategy})
    machine = machine_with()
    ports = open_ports(machine, options, MemoryCache(), NoProgress())
    (path,) = tmp_path.glob("*.onnx")
    compiled = compile_model(path, "m", machine, options, ports, Limits())
    assert len(compiled.partitioning.regions) == count
    assert len(compiled.region_graphs) == count
