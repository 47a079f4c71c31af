"""A strategy in a package of its own: installed by pip, offline, it takes part and wins."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from strategy_environment import environment_like_this, pip_into

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "chain_strategy"
SLOW_SIGNALS = "inherits: simba\nname: slow_signals\nsignal_cycles: 2000\n"
"""A chip on which kernels whose cores wait for each other take long; those of chains do not."""
POINTWISE = ("Relu", "Sigmoid", "Tanh", "Exp", "Neg", "Abs")


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment that has all of this one's packages, and the example."""
    folder = tmp_path_factory.mktemp("environment")
    python = environment_like_this(folder / "env")
    source = shutil.copytree(EXAMPLE, folder / "source")  # building leaves files beside the source
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-build-isolation", "--no-deps"]
    done = subprocess.run(
        [*command, str(source)],
        env={**os.environ, **pip_into(python)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return python


def tilewright(python: Path, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "TILEWRIGHT_DATA_DIR": str(folder / "data")}
    command = [str(python), "-P", "-m", "service.cli.main", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def chain() -> onnx.ModelProto:
    """A matrix product and six pointwise operators, none of which a pattern of a spec names."""
    weight = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["t0"])]
    nodes += [helper.make_node(op, [f"t{k}"], [f"t{k + 1}"]) for k, op in enumerate(POINTWISE)]
    last = f"t{len(POINTWISE)}"
    values = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [64, 64]) for name in ("x", last)
    ]
    graph = helper.make_graph(
        nodes, "chain", values[:1], values[1:], [numpy_helper.from_array(weight, "w")]
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def test_the_package_is_listed_with_its_options(python: Path, tmp_path: Path) -> None:
    listed = tilewright(python, tmp_path, "strategies", "--json")
    rows = {row["name"]: row for row in json.loads(listed.stdout)["strategies"]}
    assert rows["chains"]["package"] == "chain-strategy 1.0"
    assert list(rows["chains"]["options"]) == ["longest"]
    without = tilewright(Path(sys.executable), tmp_path, "strategies", "--json")
    assert [row["name"] for row in json.loads(without.stdout)["strategies"]] == [
        "graphturbo", "naive",
    ]  # fmt: skip


def test_it_wins_and_is_verified(python: Path, tmp_path: Path) -> None:
    model, out = tmp_path / "chain.onnx", tmp_path / "out"
    onnx.save(chain(), model)
    chip = tmp_path / "chip.yaml"
    chip.write_text(SLOW_SIGNALS)
    words = ["compile", str(model), "--hardware", str(chip), "--verify", "full", "--local", "-o"]
    done = tilewright(python, tmp_path, *words, str(out))
    assert done.returncode == 0, done.stderr
    report = json.loads((out / "report.json").read_bytes())
    assert report["verification"]["passed"] is True
    took_part = report["toolchain"]["strategies"]
    assert list(took_part) == sorted(took_part) and {"chains", "graphturbo", "naive"} <= set(
        took_part
    )
    assert took_part["chains"]["distribution"] == "chain-strategy 1.0"
    won, *others = report["strategies"]
    assert won["name"].split(",")[0] == "chains"
    others = [row for row in others if row["name"].split(",")[0] != "chains"]
    assert {row["name"].split(",")[0] for row in others} == {"graphturbo", "naive"}
    assert all(row["latency_cycles"] > won["latency_cycles"] for row in others)
    summary = report["summaries"]["chains"]
    assert (summary["schema_version"], summary["longest_allowed"]) == (1, 8)
    (fused,) = summary["chains"]
    assert len(fused["nodes"]) == 1 + len(POINTWISE)
    page = (out / "report.html").read_text()
    assert "<h2>Chains: nodes</h2>" in page and '<rect class="bar"' in page
    assert f"{fused['simulated_cycles']:,}" in page
    shown = tilewright(python, tmp_path, "report", str(out))
    assert "chains:\nkernels: 1\nlongest: 7\nallowed: 8\n" in shown.stdout
    without = tilewright(Path(sys.executable), tmp_path, "report", str(out))
    assert without.returncode == 0 and "longest" not in without.stdout
    assert "strategy chains is not installed here" in without.stderr
    shorter = ["--strategy-option", "chains.longest=2", "--strategy", "chains"]
    again = tilewright(python, tmp_path, *words, str(tmp_path / "short"), *shorter)
    assert again.returncode == 0, again.stderr
    short = json.loads((tmp_path / "short" / "report.json").read_bytes())
    assert short["summary"]["kernels"] > report["summary"]["kernels"]


def test_without_the_package_its_name_is_refused(tmp_path: Path) -> None:
    model = tmp_path / "chain.onnx"
    onnx.save(chain(), model)
    done = tilewright(
        Path(sys.executable),
        tmp_path,
        "compile",
        str(model),
        "--hardware",
        "simba",
        "--strategy",
        "chains",
        "--json",
    )
    assert done.returncode == 2
    assert "strategy must be one of auto, graphturbo, naive" in done.stdout + done.stderr
