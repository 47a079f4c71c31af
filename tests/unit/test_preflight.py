"""Preflight tells everything at once: problems, fallbacks, shortfalls, guesses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
from onnx_models import conv_net, repeated_layers, saved, with_host_part

from worker.compiler.options import CompileOptions
from worker.job.preflight import preflight


def checked(model: onnx.ModelProto, folder: Path, hardware: dict[str, Any]) -> dict[str, Any]:
    return preflight(saved(model, folder), hardware, CompileOptions())


def test_a_model_that_fits_is_ok(tmp_path: Path) -> None:
    found = checked(conv_net(), tmp_path, {"preset": "a100"})
    assert found["ok"] is True
    assert found["compiles"] is True
    assert (found["problems"], found["fallbacks"], found["shortfalls"]) == ([], [], [])
    assert found["model"]["nodes"] > 0


def test_a_fallback_compiles_but_is_not_ok(tmp_path: Path) -> None:
    found = checked(with_host_part(), tmp_path, {"preset": "a100"})
    assert found["compiles"] is True
    assert found["ok"] is False
    (row,) = found["fallbacks"]
    assert (row["node"], row["op_type"]) == ("top", "TopK")
    assert row["reason_code"] != "OFFLOADED"
    assert len(row["reason"]) > 10


def test_what_does_not_fit_is_named_once_per_signature_with_a_lever(tmp_path: Path) -> None:
    tiny = {
        "inherits": "kapla-16x16",
        "name": "tiny",
        "levels": [{"name": "GBUF", "capacity_bytes": 32}],
    }
    found = checked(repeated_layers(3), tmp_path, tiny)
    assert found["ok"] is False
    # three equal layers: the operator is named once; the smaller Relu still fits
    assert [row["node"] for row in found["shortfalls"]] == ["layer0/matmul"]
    for row in found["shortfalls"]:
        assert row["demand"] > row["bound"]
        assert "GBUF" in row["resource"]
        assert row["levers"]
        assert sum(size for _, size in row["terms"]) == row["demand"]


def test_problems_of_model_and_hardware_come_together(tmp_path: Path) -> None:
    found = checked(conv_net("batch"), tmp_path, {"preset": "no-such-chip"})
    assert found["compiles"] is False
    codes = [p["code"] for p in found["problems"]]
    assert any(code.startswith("TW-SPEC") for code in codes)
    assert "TW-MODEL-012" in codes
    assert all(p["remedy"] for p in found["problems"])


def test_guessed_numbers_are_listed(tmp_path: Path) -> None:
    found = checked(repeated_layers(1), tmp_path, {"preset": "stcp920-inferred"})
    assert found["guesses"]
    assert all(g["pointer"].startswith("/") for g in found["guesses"])
