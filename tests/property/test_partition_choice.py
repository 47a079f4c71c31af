"""Automatic partitioning against its candidates and against every partitioning there is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis_profiles import COSTLY
from partition_toys import Toy, chips, nets

from worker.compiler.frontend.model import OnnxModel
from worker.compiler.machine.machine import Machine
from worker.compiler.options import PartitionChoice
from worker.compiler.partition.partition import all_on_host


@pytest.mark.parametrize("strategy", ["naive", "auto"])
@COSTLY
@given(model=nets(most=7), machine=chips())
def test_auto_is_never_slower_than_any_candidate(
    strategy: str, model: OnnxModel, machine: Machine
) -> None:
    toy = Toy(model, machine, strategy)
    auto = toy.cycles(PartitionChoice.AUTO)
    assert auto <= toy.cycles(PartitionChoice.GREEDY)
    assert auto <= toy.cycles(PartitionChoice.CRITERIA)
    _, host = toy.scheduled(PartitionChoice.CRITERIA, all_on_host(model))
    assert auto <= host.cycles


@COSTLY
@given(model=nets(), machine=chips())
def test_auto_is_within_a_hundredth_of_the_best_partitioning(
    model: OnnxModel, machine: Machine
) -> None:
    toy = Toy(model, machine)
    best = min(toy.every_partitioning())
    assert toy.cycles(PartitionChoice.AUTO) <= 1.01 * best
