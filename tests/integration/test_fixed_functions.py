"""A third compute unit: one of fixed functions, which has an output stage and no other rate."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx_models import conv_net

import tilewright as tw
from worker.compiler.machine import lint_document, load_machine, preset_document

POOLS = {"name": "PDP", "kind": "vector", "memory": "CBUF", "output_stage": {"pool": {"i8": 64}}}


def chip(unit: dict[str, Any] | None) -> dict[str, Any]:
    document = deepcopy(preset_document("nvdla-large"))
    if unit is not None:
        document["engines"].insert(2, unit)
    return document


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "conv_net.onnx"
    onnx.save(conv_net(), path)
    return path


def test_only_units_of_passes_may_lack_rates() -> None:
    def found(unit: dict[str, Any]) -> list[tuple[str, str]]:
        return [
            (f.pointer, f.message) for f in lint_document(chip(unit)) if f.code == "TW-SPEC-002"
        ]

    assert found(POOLS) == []
    bare = {key: POOLS[key] for key in ("name", "kind", "memory")}
    assert found(bare) == [(
        "/engines/2/macs_per_cycle",
        "a vector engine needs a rate for at least one dtype, here or of an output stage",
    )]  # fmt: skip
    assert ("/engines/2/macs_per_cycle", "a matrix engine needs a rate for at least one dtype") in (
        found(POOLS | {"kind": "matrix"})
    )


def test_its_operations_cost_energy() -> None:
    """Those of its formats, by the generic table where the document has none."""
    stated = POOLS | {"op_energy_pj": {"i8": 0.5}}
    for unit, least in ((POOLS, 0.01), (stated, 0.5)):
        assert (load_machine(chip(unit)).engine("PDP").op_energy_pj or {})["i8"] >= least


@pytest.mark.parametrize("strategy", ["naive", "graphturbo"])
def test_three_units_share_a_network(model: Path, strategy: str) -> None:
    """Pooling leaves the unit that it shared with the rest, and all figures hold."""
    causes, cycles = [], []
    for unit in (None, POOLS):
        done = tw.compile(model, tw.Machine(chip(unit)), strategy=strategy, verify="full")
        summary = done.report["summary"]
        assert all(check["passed"] for check in done.report["sanity"])
        assert summary["lower_bound_cycles"] <= summary["latency_cycles"]
        causes.append({cause["cause"] for cause in summary["causes"]})
        cycles.append(summary["latency_cycles"])
    assert "engine:PDP" in causes[1] - causes[0]
    assert {"engine:CONV", "engine:SDP"} <= causes[1]
    assert cycles[1] < cycles[0]
