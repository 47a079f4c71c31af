"""`tilewright build`, `tw.load` of a bundle and `tw.Application`: what they give and refuse."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from libraries import damaged_copy, expected, inputs_of, library
from region_bundles import bundled, compiled_from, members
from typer.testing import CliRunner

import tilewright as tw
from service.cli.main import app
from worker.compiler.package.stream.codec import decode_stream, encode_stream

Members = dict[str, bytes]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("apps")


def changed(bundle: Path, target: Path, change: Callable[[Members], None]) -> Path:
    """A bundle with a change and the digests that it needs."""
    found = dict(members(bundle))
    change(found)
    manifest = json.loads(found.pop("manifest.json"))
    manifest["members"] = [row for row in manifest["members"] if row["name"] in found]
    for row in manifest["members"]:
        data = found[row["name"]]
        row["sha256"], row["size_bytes"] = sha256(data).hexdigest(), len(data)
    with zipfile.ZipFile(target, "w") as archive:
        for name, data in {**found, "manifest.json": json.dumps(manifest).encode()}.items():
            archive.writestr(name, data)
    return target


def build(bundle: Path, target: Path, *more: str) -> tuple[int, dict[str, Any]]:
    """Exit code and JSON of `tilewright build`."""
    arguments = ["build", str(bundle), "-o", str(target), "--data-dir", str(target / "data")]
    done = CliRunner().invoke(app, [*arguments, *more, "--json"])
    return done.exit_code, json.loads(done.stdout)


def test_the_command_builds_what_a_bundle_opens(folder: Path, tmp_path: Path) -> None:
    code, told = build(bundled("host_between", folder), tmp_path / "app")
    assert (code, told["files"]) == (0, ["libmodel.so", "tilewright.h", "host.onnx"])
    assert told["needs_onnxruntime"].startswith("1 parts of the model run on the host")
    assert [region["inputs"][0]["name"] for region in told["regions"]] == ["x", "v"]
    assert (told["regions_in_control_flow"], told["origin"]) == (0, "compared")
    session = tw.Application(tmp_path / "app", told["digest"]).session()
    (y,) = session.run(None, inputs_of("host_between", folder))
    np.testing.assert_array_equal(y, expected("host_between", folder)["y"])


def test_a_loaded_bundle_runs_and_is_built(folder: Path, tmp_path: Path) -> None:
    result = tw.load(bundled("view", folder), data_dir=tmp_path / "data")
    assert (result.bundle, result.verification) == (bundled("view", folder), {"passed": None})
    want = expected("view", folder)["y"]
    np.testing.assert_array_equal(result.run(inputs_of("view", folder))["y"], want)
    session = result.build(tmp_path / "app").session()
    own = session.get_session_options()
    assert own.get_session_config_entry("session.x64quantprecision") == "1"
    np.testing.assert_array_equal(session.run(None, inputs_of("view", folder))[0], want)
    assert (result.save(tmp_path / "kept").folder / "view.twb").is_file()


def test_sources_are_left_once(folder: Path, tmp_path: Path) -> None:
    code, told = build(bundled("loop", folder), tmp_path, "--sources")
    assert code == 0 and "src/tw_library.c" in told["files"]
    assert not (tmp_path / "libmodel.so").exists()
    assert told["regions_in_control_flow"] == 1
    code, problem = build(bundled("loop", folder), tmp_path, "--sources")
    assert (code, problem["code"]) == (3, "TW-CLI-001")


def _other_kernel(files: Members) -> None:
    name = next(n for n in sorted(files) if n.startswith("kernels/") and n.endswith(".c"))
    files[name] += b"\n"


def _other_calls(files: Members) -> None:
    code = decode_stream(files["regions/0/stream.bin"])
    files["regions/0/stream.bin"] = encode_stream(replace(code, calls=code.calls[:-1]))


def _other_tensor(files: Members) -> None:
    code = decode_stream(files["regions/0/stream.bin"])
    moved = replace(code.entries[0], address=code.entries[0].address + 64)
    entries = (moved, *code.entries[1:])
    files["regions/0/stream.bin"] = encode_stream(replace(code, entries=entries))


@pytest.mark.parametrize(
    ("change", "code", "word"),
    [
        (_other_kernel, "TW-RUN-005", "kernel"),
        (_other_calls, "TW-RUN-001", "other calls"),
        (_other_tensor, "TW-RUN-001", "another tensor"),
    ],
    ids=["kernel", "calls", "tensor"],
)
def test_a_changed_bundle_is_not_built(
    change: Callable[[Members], None], code: str, word: str, folder: Path, tmp_path: Path
) -> None:
    bundle = changed(bundled("view", folder), tmp_path / "changed.twb", change)
    status, problem = build(bundle, tmp_path / "app")
    assert (status, problem["code"]) == (3, code)
    assert word in problem["detail"]
    assert not (tmp_path / "app" / "libmodel.so").exists()


def test_a_bundle_without_a_host_model_is_built_where_none_is_needed(
    folder: Path, tmp_path: Path
) -> None:
    def older(files: Members) -> None:
        del files["host.onnx"]

    whole = changed(bundled("view", folder), tmp_path / "whole.twb", older)
    code, told = build(whole, tmp_path / "app")
    assert (code, told["files"]) == (0, ["libmodel.so", "tilewright.h"])
    parts = changed(bundled("host_between", folder), tmp_path / "parts.twb", older)
    code, problem = build(parts, tmp_path / "none")
    assert (code, problem["code"]) == (4, "TW-LIB-010")
    assert problem["errors"] or "host.onnx" in problem["detail"]


def test_a_model_without_a_region_is_no_library(tmp_path: Path) -> None:
    import onnx
    from onnx import TensorProto, helper

    from worker.compiler.assembly.packing import bundle_contents
    from worker.compiler.package.bundle import write_bundle

    graph = helper.make_graph(
        [helper.make_node("NonZero", ["x"], ["y"], name="nonzero")], "host",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3])],
        [helper.make_tensor_value_info("y", TensorProto.INT64, [1, None])],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=9)
    compiled = compiled_from(model, "a100", tmp_path)
    bundle = tmp_path / "host.twb"
    write_bundle(bundle, bundle_contents(compiled, {}, b"{}", b"{}", b"\x1f\x8b"))
    code, problem = build(bundle, tmp_path / "app")
    assert (code, problem["code"]) == (4, "TW-LIB-010")


def refused(application: tw.Application) -> tuple[str, str | None]:
    """(code, pointer) with which it makes no session."""
    with pytest.raises(tw.InputError) as caught:
        application.session()
    return caught.value.code, caught.value.to_problem()["pointer"]  # type: ignore[return-value]


def test_a_library_of_another_kind_is_refused(folder: Path, tmp_path: Path) -> None:
    own, _ = library("view", folder)
    for name in ("host.onnx", "tilewright.h"):
        (tmp_path / name).write_bytes((own / name).read_bytes())
    application, shared = tw.Application(tmp_path), tmp_path / "libmodel.so"
    data = bytearray((own / "libmodel.so").read_bytes())
    data[18:20] = (183 if data[18] != 183 else 62).to_bytes(2, "little")
    shared.write_bytes(data)
    assert refused(application) == ("TW-LIB-002", "/library/architecture")
    shared.write_bytes(b"no library")
    assert refused(application) == ("TW-LIB-004", "/library")
    shared.write_bytes((library("conv", folder)[0] / "libmodel.so").read_bytes())
    assert refused(application) == ("TW-LIB-003", "/nodes/region0")
    shared.unlink()
    assert refused(application)[0] == "TW-CLI-001"


def test_a_library_of_another_bundle_than_asked_for_is_refused(folder: Path) -> None:
    own, made = library("view", folder)
    assert refused(tw.Application(own, "0" * 64)) == ("TW-LIB-003", "/nodes/region0/digest")
    tw.Application(own, made.library.digest).session()


def test_a_damaged_library_is_refused(folder: Path, tmp_path: Path) -> None:
    from region_bundles import made

    own, _ = library("conv", folder)
    (tmp_path / "host.onnx").write_bytes((own / "host.onnx").read_bytes())
    at = (own / "libmodel.so").read_bytes().index(made("conv", folder).constants["w3"]().tobytes())
    damaged_copy(own / "libmodel.so", tmp_path / "libmodel.so", at)
    assert refused(tw.Application(tmp_path)) == ("TW-LIB-004", "/library/weights")
