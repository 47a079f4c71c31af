"""Layers of a report taken apart: fused kernels by hand, and whatever else a report may hold."""

from __future__ import annotations

from typing import Any

import pytest

from worker.report.parts import causes_in, layer_parts

FUSED: dict[str, Any] = {
    "index": 3, "group_id": 1, "signature": "s", "placement": "accelerator",
    "placement_reason": "OFFLOADED", "onnx_nodes": ["a", "b"], "op_type": "Conv+Relu",
    "cycles_total": 100, "energy_pj": 7.0, "macs": 50, "repeated_macs": 5,
    "causes": [{"cause": "engine:PE", "cycles": 60}, {"cause": "latency", "cycles": 30},
               {"cause": "launch", "cycles": 10}],
    "groups": [
        {"onnx_nodes": ["a"], "op_type": "Conv", "cycles": 70, "macs": 50, "repeated_macs": 5,
         "causes": [{"cause": "engine:PE", "cycles": 50}, {"cause": "latency", "cycles": 20}]},
        {"onnx_nodes": ["b"], "op_type": "Relu", "cycles": 20, "macs": 0, "repeated_macs": 0,
         "causes": [{"cause": "engine:PE", "cycles": 10}, {"cause": "latency", "cycles": 10}]},
    ],
}  # fmt: skip
PLAIN = {"index": 4, "onnx_nodes": ["c"], "cycles_total": 100, "energy_pj": 1.0}


def test_a_fused_kernel_by_hand() -> None:
    kernel, conv, relu, plain = layer_parts([FUSED, PLAIN], 200)
    assert [p["part"] for p in (kernel, conv, relu, plain)] == ["kernel", "nodes", "nodes", "whole"]
    assert [p["cycles_total"] for p in (kernel, conv, relu)] == [10, 70, 20]
    assert [p["pct_cycles"] for p in (kernel, conv, relu)] == [5.0, 35.0, 10.0]
    assert kernel["causes"] == [{"cause": "launch", "cycles": 10}]
    assert (kernel["bound_by"], conv["bound_by"]) == ("launch", "engine:PE")
    assert (kernel["macs"], conv["macs"], conv["repeated_macs"]) == (0, 50, 5)
    assert (kernel["energy_pj"], conv["energy_pj"]) == (7.0, None)
    assert (relu["onnx_nodes"], relu["signature"], relu["index"]) == (["b"], "s", 3)
    assert {tuple(p) for p in (kernel, conv, relu)} == {tuple(plain)}  # the same columns
    assert "groups" not in plain


@pytest.mark.parametrize(
    "edit",
    [
        {"groups": 7}, {"groups": [7]}, {"groups": []}, {"groups": [{"onnx_nodes": ["a"]}]},
        {"cycles_total": None}, {"causes": "none"}, {"macs": "many"},
        {"groups": [{**FUSED["groups"][0], "causes": [{"cause": 1, "cycles": 2}]}]},
    ],
)  # fmt: skip
def test_groups_of_another_shape_leave_the_row_whole(edit: dict[str, Any]) -> None:
    (row,) = layer_parts([{**FUSED, **edit}], 200)
    assert row["part"] == "whole"
    assert row["cycles_total"] == {**FUSED, **edit}["cycles_total"]


@pytest.mark.parametrize("layers", [None, 7, "rows", {"a": 1}, [], [None, 3, "x"]])
def test_what_is_no_list_of_rows_has_none(layers: object) -> None:
    assert layer_parts(layers, 1) == []


def test_causes_of_another_shape_are_none() -> None:
    assert causes_in([{"cause": "launch", "cycles": 3}]) == [("launch", 3)]
    for told in (None, {}, [3], [{"cause": "launch"}], [{"cause": 1, "cycles": 1}], "x"):
        assert causes_in(told) == []
