"""Serializers, engines and oracles of a vendor's: what they do, and what becomes of rude ones."""

from __future__ import annotations

import json
import sys
import zipfile
from collections.abc import Iterator
from hashlib import sha256
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import onnx
import pytest
import vendor_plugins
from onnx_models import conv_net

from worker.compiler import vendors
from worker.compiler.cache import MemoryCache
from worker.compiler.errors import CompilerError, Mismatch, SpecError
from worker.compiler.faults import limited_by
from worker.compiler.options import CompileOptions, VerifyMode
from worker.compiler.package.runtime import Origin, load_bundle
from worker.job.job import run_job
from worker.job.request import JobRequest, NoProgress
from worker.job.watchdog import Watchdog
from worker.verification.inputs import seeded_inputs

Documents = tuple[dict[str, Any], dict[str, Any], Path]


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Entry points of a package that brings all of `vendor_plugins`, beside Tilewright's own."""
    own = vendors.entry_points

    def found(group: str) -> list[EntryPoint]:
        table = group.removeprefix("tilewright.").upper()
        more = [
            EntryPoint(name, f"vendor_plugins:{table}_{name}", group)
            for name in getattr(vendor_plugins, table)
        ]
        return [*own(group=group), *more]

    for table in ("SERIALIZERS", "ENGINES", "ORACLES"):
        for name, descriptor in getattr(vendor_plugins, table).items():
            monkeypatch.setattr(vendor_plugins, f"{table}_{name}", descriptor, raising=False)
    monkeypatch.setitem(sys.modules, "vendor_plugins", vendor_plugins)
    monkeypatch.setattr(vendors, "entry_points", found)
    found_before = (
        vendors.installed_serializers, vendors.installed_engines, vendors.installed_oracles,
    )  # fmt: skip
    for listed in found_before:
        listed.cache_clear()
    yield
    for listed in found_before:
        listed.cache_clear()


def compiled(
    folder: Path,
    serializer: str = "",
    engine: str = "",
    preset: str = "ethos-u65",
    oracle: str = "",
    **options: Any,
) -> Documents:
    """Report, manifest and bundle of a small quantised net."""
    model, out = folder / "net.onnx", folder / "out"
    onnx.save(conv_net(), model)
    named = {"serializer": serializer, "engine": engine}
    hardware = {
        "inherits": preset,
        "name": "chip",
        "capabilities": {word: name for word, name in named.items() if name},
    }
    if oracle:
        call = {"name": "mm", "op": "conv", "extents": [1, 8, 8, 8, 3, 3, 8], "oracle": oracle}
        hardware["engines"] = [{"name": "MAC", "intrinsics": [call]}]
    options.setdefault("verify", VerifyMode.NONE)
    asked = CompileOptions(strategy="naive", **options)
    run_job(
        JobRequest(model, "net", hardware, asked, folder / "build"), out, MemoryCache(),
        NoProgress(),
    )  # fmt: skip
    bundle = out / "net.twb"
    with zipfile.ZipFile(bundle) as archive:
        manifest = json.loads(archive.read("manifest.json"))
    return json.loads((out / "report.json").read_bytes()), manifest, bundle


def refused(folder: Path, serializer: str = "", engine: str = "", **options: Any) -> CompilerError:
    with pytest.raises(CompilerError) as caught:
        compiled(folder, serializer, engine, **options)
    return caught.value


def test_what_it_writes_lands_in_the_bundle_with_format_version_and_digest(tmp_path: Path) -> None:
    report, manifest, bundle = compiled(tmp_path, "wraps")
    assert manifest["regions"]
    with zipfile.ZipFile(bundle) as archive:
        for row in manifest["regions"]:
            stream, own = row["images"]
            assert stream["member"] == row["stream"]
            assert (stream["serializer"], stream["format"], stream["format_version"]) == (
                "stream", "stream", 3,
            )  # fmt: skip
            content = archive.read(own["member"])
            assert own["sha256"] == sha256(content).hexdigest()
            assert (own["version"], own["format"], own["size_bytes"]) == (
                "3", "wrapped", len(content),
            )  # fmt: skip
            assert content.startswith(vendor_plugins.MARK)
    assert report["toolchain"]["serializers"]["wraps"]["version"] == "3"
    assert manifest["toolchain"]["serializers"] == report["toolchain"]["serializers"]
    told = [row["sha256"] for row in report["images"] if row["serializer"] == "wraps"]
    assert told == [row["images"][1]["sha256"] for row in manifest["regions"]]


def test_without_names_there_are_the_built_in_formats_alone(tmp_path: Path) -> None:
    report, manifest, _ = compiled(tmp_path)
    assert list(report["toolchain"]["serializers"]) == ["stream"]
    assert report["toolchain"]["engines"] == {}
    assert all(len(row["images"]) == 1 and not row["engine"] for row in manifest["regions"])


@pytest.mark.parametrize(
    ("serializer", "said"),
    [
        ("raises", "ValueError: no idea what"),
        ("exits", "SystemExit: 0"),
        ("gives_a_number", "it gave a int, and no bytes"),
        ("gives_nothing", "it gave nothing, and no bytes"),
    ],
)
def test_one_that_fails_ends_the_job_with_its_name(
    serializer: str, said: str, tmp_path: Path
) -> None:
    error = refused(tmp_path, serializer)
    assert error.code == "TW-PLUG-002"
    assert f"serializer {serializer} 3" in error.message and said in error.message


def test_one_that_hangs_is_stopped(tmp_path: Path) -> None:
    with limited_by(Watchdog(0.5)):
        error = refused(tmp_path, "hangs")
    assert error.code == "TW-PLUG-002" and "timed out after 0.5 s of CPU" in error.message


def test_a_region_it_cannot_say_falls_back_or_ends_the_job(tmp_path: Path) -> None:
    report, manifest, bundle = compiled(tmp_path, "refuses", "unwraps")
    (told, *_) = [r["message"] for r in report["warnings"] if r["code"] == "SERIALIZER_REFUSED"]
    assert "keeps the built-in formats: refuses cannot write it" in told
    assert "there is no instruction for" in told
    assert all(len(row["images"]) == 1 and not row["engine"] for row in manifest["regions"])
    assert load_bundle(bundle, tmp_path / "build").engines == ("kernels",)
    error = refused(tmp_path, "refuses", "unwraps", preset="a100", fail_on_fallback=True)
    assert error.code == "TW-PLUG-005"


def test_the_engine_runs_its_bytes_and_verification_compares(tmp_path: Path) -> None:
    report, manifest, bundle = compiled(tmp_path, "wraps", "unwraps", verify=VerifyMode.SAMPLE)
    assert report["verification"]["passed"] is True
    assert "regions on engines (unwraps)" in report["verification"]["detail"]
    rows = [r for r in report["verification"]["outputs"] if "on engine unwraps" in r["name"]]
    assert rows and all((r["max_abs_err"], r["tolerance"]) == (0.0, 0.0) for r in rows)
    assert report["toolchain"]["engines"]["unwraps"]["version"] == "4"
    assert {row["engine"] for row in manifest["regions"]} == {"unwraps"}
    inputs = inputs_of(tmp_path)
    ran = {}
    for engine in ("", "kernels", "interpreter"):
        loaded = load_bundle(bundle, tmp_path / "build", engine=engine)
        wanted = engine or "unwraps"
        assert loaded.engines == (wanted,)
        assert (loaded.origin is Origin.ENGINES) == (wanted != "kernels")
        outputs = loaded.runner.run(inputs)
        assert loaded.runner.run(inputs)["y"].tobytes() == outputs["y"].tobytes()
        ran[engine] = {name: value.tobytes() for name, value in outputs.items()}
    assert ran[""] == ran["kernels"] == ran["interpreter"]


def inputs_of(folder: Path) -> dict[str, Any]:
    from worker.compiler.frontend.limits import Limits
    from worker.compiler.frontend.load import load_model
    from worker.compiler.frontend.simplify import simplify

    return seeded_inputs(simplify(load_model(folder / "net.onnx", Limits(), "net")), 5)


@pytest.mark.parametrize("engine", ["wrong", "idle"])
def test_wrong_bits_of_an_engine_fail_the_job(engine: str, tmp_path: Path) -> None:
    error = refused(tmp_path, "wraps", engine, verify=VerifyMode.SAMPLE)
    assert isinstance(error, Mismatch)
    assert f"on engine {engine}" in error.message


@pytest.mark.parametrize(
    ("serializer", "engine", "said"),
    [
        ("gives_garbage", "unwraps", "failed to load: ValueError: these bytes are no wrapped"),
        ("wraps", "stalls", "failed to open: RuntimeError: no driver"),
        ("wraps", "leaves", "bytes are enough"),
    ],
)
def test_an_engine_that_fails_is_named(
    serializer: str, engine: str, said: str, tmp_path: Path
) -> None:
    error = refused(tmp_path, serializer, engine, verify=VerifyMode.SAMPLE)
    assert error.code == "TW-PLUG-003"
    assert f"engine {engine} 4" in error.message and said in error.message


def test_names_that_nothing_brings_are_refused_with_their_place(tmp_path: Path) -> None:
    for word, names in (("serializer", ("absent", "")), ("engine", ("", "absent"))):
        error = refused(tmp_path, *names)
        assert isinstance(error, SpecError) and error.code == "TW-PLUG-001"
        assert error.place.pointer == f"/capabilities/{word}"
        assert f"{word} absent, which is not installed here" in error.message


def test_an_engine_of_another_format_is_refused(tmp_path: Path) -> None:
    error = refused(tmp_path, "wraps", "foreign")
    assert error.code == "TW-PLUG-004" and error.place.pointer == "/capabilities/engine"
    assert "reads foreign 1" in error.message and "stream 3, wrapped 1" in error.message
    _, _, bundle = compiled(tmp_path, "wraps")
    with pytest.raises(CompilerError) as caught:
        load_bundle(bundle, tmp_path / "build", engine="foreign")
    assert caught.value.code == "TW-PLUG-004"
    with pytest.raises(CompilerError) as caught:
        load_bundle(bundle, tmp_path / "build", engine="gone")
    assert caught.value.code == "TW-PLUG-001"


def test_what_an_oracle_says_is_in_report_bundle_and_toolchain(tmp_path: Path) -> None:
    report, manifest, bundle = compiled(tmp_path, oracle="counts")
    rows = report["hardware"]["oracles"]
    assert {(row["engine"], row["intrinsic"], row["oracle"]) for row in rows} == {
        ("MAC", "mm", "counts")
    }
    (row,) = [row for row in rows if row["dtype"] == "i8"]
    assert (row["sizes"], row["whole_cycles"]) == (1, 1 + 64 * 8 * 72 // 2048)
    assert report["toolchain"]["oracles"] == {"counts": {"version": "5", "distribution": ""}}
    assert manifest["toolchain"]["oracles"] == report["toolchain"]["oracles"]
    with zipfile.ZipFile(bundle) as archive:
        assert b'"at_steps"' in archive.read("hardware.json")
        assert b"intrinsic=mm" in archive.read("schedule.json")
    without, _, _ = compiled(tmp_path)
    assert without["hardware"]["oracles"] == [] and without["toolchain"]["oracles"] == {}


def test_an_oracle_that_fails_ends_the_job_with_its_place(tmp_path: Path) -> None:
    for oracle, code in (("guesses", "TW-PLUG-006"), ("absent", "TW-PLUG-001")):
        error = refused(tmp_path, oracle=oracle)
        assert isinstance(error, SpecError) and error.code == code
        assert error.place.pointer == "/engines/0/intrinsics/0/oracle"
