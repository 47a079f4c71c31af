"""The shipped example through the real compiler: demo over HTTP, local compile, run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from typer.testing import CliRunner, Result

from service.cli.demo import EXAMPLE
from service.cli.embedded import embedded_service
from service.cli.main import app
from service.client import ApiError, Client

CONTRACT_FILES = ("report.json", "report.html", "run.json", "layers.csv", "trace.json.gz")


def tilewright(*words: object, code: int = 0) -> Result:
    """Run a verb in this process."""
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert done.exit_code == code, done.output
    return done


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def demos(home: Path) -> list[dict[str, Any]]:
    """Run the demo twice on one data directory."""
    runs = []
    for name in ("first", "second"):
        out = home / name
        words = ["demo", "--data-dir", home / "data", "-o", out, "--json"]
        command = [sys.executable, "-m", "service.cli.main", *map(str, words)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        runs.append({**json.loads(done.stdout), "out": out})
    return runs


@pytest.mark.document
def test_demo_downloads_a_verified_bundle(demos: list[dict[str, Any]]) -> None:
    first = demos[0]
    assert first["state"] == "succeeded"
    for name in CONTRACT_FILES:
        assert (first["out"] / name).is_file()
    assert len(list(first["out"].glob("*.twb"))) == 1
    report = json.loads((first["out"] / "report.json").read_text())
    assert report["verification"]["passed"] is True
    assert all(check["passed"] for check in report["sanity"])


@pytest.mark.document
def test_second_demo_hits_the_cache_for_every_unit(demos: list[dict[str, Any]]) -> None:
    first, second = (json.loads((d["out"] / "report.json").read_text()) for d in demos)
    cold, warm = (json.loads((d["out"] / "run.json").read_text())["cache"] for d in demos)
    assert cold["misses"] > 0
    assert (warm["hits"], warm["misses"]) == (cold["misses"], 0)
    assert second == first
    bundles = [next(d["out"].glob("*.twb")).read_bytes() for d in demos]
    assert bundles[0] == bundles[1]


@pytest.mark.document
def test_local_compile_gives_the_same_bundle_from_the_same_cache(
    home: Path, demos: list[dict[str, Any]]
) -> None:
    out = home / "local"
    done = tilewright(
        *("compile", EXAMPLE, "--hardware", "stcp920-inferred", "--data-dir", home / "data"),
        *("-o", out, "--require-cache", "--json"),
    )
    job = json.loads(done.stdout)
    assert job["progress"]["units_solved"] == 0
    assert job["bundle_sha256"] == demos[0]["bundle_sha256"]
    by_server = next(demos[0]["out"].glob("*.twb")).read_bytes()
    assert next(out.glob("*.twb")).read_bytes() == by_server


@pytest.mark.document
def test_bundle_runs_like_the_model(home: Path, demos: list[dict[str, Any]]) -> None:
    image = np.random.default_rng(7).normal(size=(1, 3, 32, 32)).astype(np.float32)
    np.savez(home / "in.npz", image=image)
    bundle = next(demos[0]["out"].glob("*.twb"))
    tilewright("run", bundle, "--input", home / "in.npz", "-o", home / "out.npz")
    got = np.load(home / "out.npz")["probabilities"]
    want = onnxruntime.InferenceSession(EXAMPLE).run(None, {"image": image})[0]
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    np.savez(home / "bad.npz", picture=image)
    bad = tilewright("run", bundle, "--input", home / "bad.npz", "-o", home / "x.npz", code=3)
    assert "TW-RUN-002" in bad.stderr


@pytest.mark.document
def test_results_are_readable_from_the_folder_and_the_bundle(demos: list[dict[str, Any]]) -> None:
    out = demos[0]["out"]
    bundle = next(out.glob("*.twb"))
    rows = json.loads(tilewright("layers", out, "--json").stdout)["items"]
    report = json.loads(tilewright("report", bundle, "--json").stdout)
    assert sum(row["cycles_total"] for row in rows) == report["summary"]["latency_cycles"]
    placed = json.loads(tilewright("placement", bundle, "--json").stdout)["items"]
    assert {row["node"] for row in placed} >= {"stem/conv", "head/fc"}
    assert "stem/conv" in tilewright("schedule", bundle).stdout
    assert "verification: passed" in tilewright("report", out).stdout


def test_refusals_have_their_exit_codes(home: Path) -> None:
    base = ("--data-dir", home / "other", "-o", home / "refused")
    cases: list[tuple[int, str, tuple[object, ...]]] = [
        (4, "TW-UNSUP-001", (EXAMPLE, "--hardware", "dpu-zu", "--fail-on-fallback")),
        (4, "TW-OPT-002", (EXAMPLE, "--hardware", "kapla-edge", "--require-cache")),
    ]
    for code, text, words in cases:
        done = tilewright("compile", *words, *base, code=code)
        assert text in done.stderr
        assert "hint:" in done.stderr


def test_preflight_locally_and_over_http(home: Path) -> None:
    done = tilewright("preflight", EXAMPLE, "--hardware", "dpu-zu", "--json")
    local = json.loads(done.stdout)
    assert local["compiles"] is True
    assert {row["node"] for row in local["fallbacks"]} == {"head/fc", "head/softmax"}
    assert any("Gemm" in row["sentence"] for row in local["unlock"])
    garbage = home / "garbage.onnx"
    garbage.write_bytes(b"garbage")
    tilewright("preflight", garbage, "--hardware", "dpu-zu", code=3)
    with embedded_service(home / "preflight") as url, Client(url) as client:
        model = client.upload_model(EXAMPLE)
        found = client.get(f"/v1/models/{model['id']}/preflight", {"hardware": "dpu-zu"})
        assert found["fallbacks"] == local["fallbacks"]
        with pytest.raises(ApiError) as caught:
            client.get(f"/v1/models/{model['id']}/preflight", {"hardware": "nope"})
        assert caught.value.code == "TW-SPEC-003"
        with pytest.raises(ApiError) as caught:
            client.get(f"/v1/models/{model['id']}/graph")
        assert caught.value.code == "TW-SVC-015"
        job = client.submit(
            {"model": model["id"], "hardware": "kapla-edge", "options": {"strategy": "naive"}}
        )
        assert client.wait(str(job["id"]), timeout_s=120)["state"] == "succeeded"
        graph: Any = client.get(f"/v1/models/{model['id']}/graph")
        assert graph["summary"]["nodes"] == len(graph["nodes"])
        assert {row["name"] for row in graph["nodes"]} >= {"stem/conv", "head/fc"}
        run = client.get(f"/v1/jobs/{job['id']}/run")
        rows: Any = client.get(f"/v1/jobs/{job['id']}/layers")["items"]
        kernels = {row["signature"]: row["cache"] for row in rows if row["signature"]}
        assert run["cache"]["units"] == kernels == dict.fromkeys(kernels, "miss")
        assert run["timings"]["schedule"] > 0
        shown = tilewright("report", str(job["id"]), "--json", "--server", url)
        assert json.loads(shown.stdout)["run"]["cache"] == run["cache"]
        events = [event.type for event in client.events(str(job["id"]))]
        assert {"state", "stage", "units", "artifact"} <= set(events)
