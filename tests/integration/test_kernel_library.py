"""A vendor's kernel library: what it computes is what runs, and what becomes of an unfit one."""

from __future__ import annotations

import json
import zipfile
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from instruction_chips import chip, cv, quantised
from sqlalchemy.orm import Session
from vendor_libraries import FLOATS, INTEGERS, SYMBOL, counted, most, vendor_library

from service.client import Client
from service.jobs.submit import check_arrays
from service.orders.here import compile_here
from service.orders.order import Order
from service.orders.served import submit
from service.settings import Settings
from worker.compiler.cache import MemoryCache
from worker.compiler.errors import CompilerError, InputError, Mismatch, OptionError
from worker.compiler.options import CompileOptions, VerifyMode
from worker.compiler.package.kernel_library import read_library
from worker.compiler.package.runtime import load_bundle
from worker.job.job import run_job
from worker.job.request import JobRequest, NoProgress

MACS = 16 * 16 * 32 * 16 * 3 * 3
"""Of the convolution of `quantised`."""


def hardware(symbol: str | None = SYMBOL) -> dict[str, Any]:
    call = cv(10)
    return chip(call if symbol is None else {**call, "call": symbol})


def compiled(
    folder: Path, library: Path | None, verify: VerifyMode = VerifyMode.SAMPLE,
    document: dict[str, Any] | None = None,
) -> tuple[dict[str, Any], dict[str, Any], Path]:  # fmt: skip
    """Report, manifest and bundle."""
    model = quantised(folder / "net.onnx", 1)
    link = "" if library is None else sha256(library.read_bytes()).hexdigest()
    options = CompileOptions(strategy="naive", verify=verify, link=link)
    request = JobRequest(
        model, "net", document or hardware(), options, folder / "build", link_path=library
    )
    run_job(request, folder / "out", MemoryCache(), NoProgress())
    bundle = folder / "out" / "net.twb"
    with zipfile.ZipFile(bundle) as archive:
        manifest = json.loads(archive.read("manifest.json"))
    return json.loads((folder / "out" / "report.json").read_bytes()), manifest, bundle


def refused(folder: Path, library: Path | None, **more: Any) -> CompilerError:
    with pytest.raises(CompilerError) as caught:
        compiled(folder, library, **more)
    return caught.value


def inputs() -> dict[str, Any]:
    values = np.random.default_rng(3).normal(size=(1, 16, 16, 16))
    return {"x": values.astype(np.float32)}


def test_the_library_is_what_runs_and_the_bundle_names_it(tmp_path: Path) -> None:
    library = vendor_library(tmp_path / "lib")
    report, manifest, bundle = compiled(tmp_path, library)
    assert report["verification"]["passed"] is True
    told = report["verification"]["detail"]
    assert "kernels linked with vendor_mm 1.0, bits of 1 equal to their own code's" in told
    assert counted(tmp_path / "build") >= MACS
    digest = sha256(library.read_bytes()).hexdigest()
    assert manifest["toolchain"]["library"] == {
        "name": "vendor_mm", "version": "1.0", "abi": 1, "sha256": digest,
        "symbols": [f"{SYMBOL}_i8_i8_i32"],
    }  # fmt: skip
    assert report["toolchain"]["library"] == manifest["toolchain"]["library"]
    other = tmp_path / "other"
    ran = load_bundle(bundle, other, link=library).runner
    linked = ran.run(inputs())["y"]
    assert counted(other) == MACS
    ran.run(inputs())
    assert counted(other) == 2 * MACS
    assert all(a <= b for a, b in zip(most(other), (64, 32, 144), strict=True))
    own = load_bundle(bundle, tmp_path / "streams", engine="interpreter").runner
    assert own.run(inputs())["y"].tobytes() == linked.tobytes()


def test_all_kernels_of_a_full_verification_call_it(tmp_path: Path) -> None:
    report, _, _ = compiled(tmp_path, vendor_library(tmp_path / "lib"), VerifyMode.FULL)
    assert report["verification"]["passed"] is True


@pytest.mark.parametrize("off", ["+ 100", "+ 7", "- 1"])
def test_a_library_that_computes_wrongly_is_caught(tmp_path: Path, off: str) -> None:
    """By less than a quantum of the output, too."""
    error = refused(tmp_path, vendor_library(tmp_path / "lib", off=off))
    assert isinstance(error, Mismatch)
    assert "other integers than its own code" in error.message


def test_without_it_kernels_run_their_own_code_and_say_so(tmp_path: Path) -> None:
    report, manifest, bundle = compiled(tmp_path, None)
    assert report["verification"]["passed"] is True
    assert "library" not in manifest["toolchain"]
    with pytest.raises(InputError) as caught:
        load_bundle(bundle, tmp_path / "b", link=vendor_library(tmp_path / "lib"))
    assert caught.value.code == "TW-LINK-007"


def test_running_asks_for_the_very_library(tmp_path: Path) -> None:
    _, _, bundle = compiled(tmp_path, vendor_library(tmp_path / "lib"), VerifyMode.NONE)
    with pytest.raises(InputError) as caught:
        load_bundle(bundle, tmp_path / "b")
    assert caught.value.code == "TW-LINK-006" and "vendor_mm 1.0" in caught.value.message
    newer = vendor_library(tmp_path / "lib", "libnewer.so", version="2.0")
    with pytest.raises(InputError) as caught:
        load_bundle(bundle, tmp_path / "b", link=newer)
    assert caught.value.code == "TW-LINK-006"
    assert "vendor_mm 1.0" in caught.value.message and "vendor_mm 2.0" in caught.value.message


def test_a_missing_function_is_named_with_region_and_node(tmp_path: Path) -> None:
    error = refused(tmp_path, vendor_library(tmp_path / "lib", products=FLOATS))
    assert error.code == "TW-LINK-004"
    assert f"{SYMBOL}_i8_i8_i32" in error.message and "region 0" in error.message
    (finding,) = error.findings
    assert finding.node == error.place.node and finding.node in ("conv", "q0", "dq0", "q1")
    assert finding.pointer is not None and finding.pointer.endswith("/intrinsics/0/call")


def test_a_library_that_nothing_calls_is_refused(tmp_path: Path) -> None:
    error = refused(tmp_path, vendor_library(tmp_path / "lib"), document=hardware(None))
    assert error.code == "TW-LINK-007" and "names a `call`" in error.message


def test_a_library_that_cannot_be_loaded_is_refused(tmp_path: Path) -> None:
    more = "void nobody_has_this(void);\n" + INTEGERS
    library = vendor_library(tmp_path / "lib", products=more, before="nobody_has_this()",
                             flags=("-shared", "-Wl,-z,now"))  # fmt: skip
    error = refused(tmp_path, library)
    assert error.code == "TW-LINK-005" and "nobody_has_this" in error.message


@pytest.mark.parametrize(
    ("before", "code"), [("*(volatile int *)0 = 0", "TW-LINK-005"), ("for (;;) {}", "TW-SVC-008")]
)
def test_a_library_that_crashes_or_hangs_ends_the_compile(
    tmp_path: Path, before: str, code: str
) -> None:
    """In the sandbox, as from the command line: this process goes on."""
    library = vendor_library(tmp_path / "lib", before=before)
    options = CompileOptions(strategy="naive", link=sha256(library.read_bytes()).hexdigest())
    order = Order(quantised(tmp_path / "net.onnx", 1), hardware(), options.to_json(),
                  tmp_path / "out", link=library)  # fmt: skip
    settings = Settings(data_dir=tmp_path / "data", wall_limit_s=20.0)
    error = compile_here(order, settings, NoProgress())["error"]
    assert error["code"] == code, error


def test_what_its_file_says_is_checked_before_anything_runs(tmp_path: Path) -> None:
    good = vendor_library(tmp_path)
    assert read_library(good).label == "vendor_mm 1.0"
    data = good.read_bytes()

    def code_of(content: bytes) -> str:
        path = tmp_path / "changed.so"
        path.write_bytes(content)
        with pytest.raises(InputError) as caught:
            read_library(path)
        assert caught.value.place.pointer == "/options/link"
        return caught.value.code

    machine = (data[18] ^ 1).to_bytes(1, "little")
    assert code_of(data[:18] + machine + data[19:]) == "TW-LINK-002"
    assert code_of(data[:4] + b"\x01" + data[5:]) == "TW-LINK-002"
    assert code_of(b"#!/bin/sh\n") == "TW-LINK-001"
    assert code_of(b"") == "TW-LINK-001"
    for end in (30, 70, len(data) // 2):
        assert code_of(data[:end]) == "TW-LINK-001"
    assert code_of(vendor_library(tmp_path, "old.so", abi=0).read_bytes()) == "TW-LINK-003"
    program = vendor_library(
        tmp_path, "program", products="int main(void) { return 0; }", flags=("-no-pie",)
    )
    assert code_of(program.read_bytes()) == "TW-LINK-001"
    unnamed = vendor_library(tmp_path, "unnamed.so", version=" ")
    assert code_of(unnamed.read_bytes()) == "TW-LINK-001"


def test_a_server_takes_none(tmp_path: Path) -> None:
    options = CompileOptions(link="0" * 64)
    order = Order(tmp_path / "net.onnx", {}, options.to_json(), tmp_path)
    with Session() as session, pytest.raises(OptionError) as caught:
        check_arrays(session, options, "somebody")
    assert caught.value.code == "TW-LINK-008" and caught.value.place.pointer == "/options/link"
    with Client("http://127.0.0.1:9") as client, pytest.raises(OptionError) as caught:
        submit(client, order)
    assert caught.value.code == "TW-LINK-008"


def test_any_damage_of_a_file_is_a_refusal(tmp_path: Path) -> None:
    data = bytearray(vendor_library(tmp_path).read_bytes())
    rng = np.random.default_rng(0)
    path = tmp_path / "damaged.so"
    for _ in range(200):
        changed = bytearray(data)
        for at in rng.integers(0, 64 if rng.random() < 0.5 else len(data), 4):
            changed[at] = int(rng.integers(256))
        path.write_bytes(changed)
        try:
            read_library(path)
        except InputError as error:
            assert error.code.startswith("TW-LINK-")
