"""A bundle's library in ONNX Runtime: a plain program with another model and one more line."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from libraries import damaged_copy, expected, inputs_of, library
from region_bundles import Array, made

MODELS = ("conv", "int8", "host_between", "view", "loop")
HEADERS = os.environ.get("ORT_INCLUDE")
_HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("applications")


def opened(model: Path, shared: Path) -> Any:
    """The plain program's session."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    options.register_custom_ops_library(str(shared))
    return onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])


def session_of(name: str, folder: Path) -> Any:
    app, _ = library(name, folder)
    return opened(app / "host.onnx", app / "libmodel.so")


def run(session: Any, inputs: dict[str, Array]) -> dict[str, Array]:
    names = [value.name for value in session.get_outputs()]
    return dict(zip(names, session.run(None, inputs), strict=True))


@pytest.mark.parametrize("name", MODELS)
def test_outputs_are_those_of_the_executor(name: str, folder: Path) -> None:
    got = run(session_of(name, folder), inputs_of(name, folder))
    want = expected(name, folder)
    assert got.keys() == want.keys()
    for output, value in want.items():
        np.testing.assert_array_equal(got[output], value, err_msg=output)


def test_outputs_are_those_of_onnx_runtime(folder: Path) -> None:
    """An oracle without our kernels: ONNX Runtime on the model before it was partitioned."""
    from worker.compiler.frontend.slice import host_submodel

    model = made("host_between", folder).model
    whole = host_submodel(model, list(model.ir.graph), ["x"], ["y"])
    reference = onnxruntime.InferenceSession(whole, providers=["CPUExecutionProvider"])
    inputs = inputs_of("host_between", folder)
    got = run(session_of("host_between", folder), inputs)
    np.testing.assert_allclose(got["y"], reference.run(["y"], inputs)[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["conv", "int8", "host_between"])
def test_two_sessions_and_two_threads_each_at_once(name: str, folder: Path) -> None:
    sessions = [session_of(name, folder) for _ in range(2)]
    seeds = [3, 4]
    want = {seed: expected(name, folder, seed) for seed in seeds}
    inputs = {seed: inputs_of(name, folder, seed) for seed in seeds}

    def work(session: Any, seed: int) -> bool:
        rounds = [run(session, inputs[seed]) for _ in range(25)]
        return all(np.array_equal(r[k], v) for r in rounds for k, v in want[seed].items())

    with ThreadPoolExecutor(4) as pool:
        jobs = [pool.submit(work, session, seed) for session in sessions for seed in seeds]
        assert all(job.result() for job in jobs)
    assert any(not np.array_equal(want[3][k], want[4][k]) for k in want[3])


def test_two_models_live_in_one_process(folder: Path) -> None:
    for name in ("conv", "view"):
        got = run(session_of(name, folder), inputs_of(name, folder))
        for output, value in expected(name, folder).items():
            np.testing.assert_array_equal(got[output], value)


def refusal(text: object) -> tuple[str, str]:
    """(code, pointer) in what ONNX Runtime raises."""
    found = re.search(r"(TW-LIB-\d{3}) at (\S+): \S", str(text))
    assert found is not None, text
    return found[1], found[2]


def test_another_bundles_library_is_refused(folder: Path) -> None:
    with pytest.raises(Exception, match="TW-LIB") as caught:
        opened(library("conv", folder)[0] / "host.onnx", library("view", folder)[0] / "libmodel.so")
    assert refusal(caught.value) == ("TW-LIB-003", "/nodes/region0")


def test_damaged_weights_are_refused(folder: Path, tmp_path: Path) -> None:
    app, _ = library("conv", folder)
    weight = made("conv", folder).constants["w3"]().tobytes()
    at = (app / "libmodel.so").read_bytes().index(weight)
    broken = damaged_copy(app / "libmodel.so", tmp_path / "broken.so", at)
    with pytest.raises(Exception, match="TW-LIB") as caught:
        opened(app / "host.onnx", broken)
    assert refusal(caught.value) == ("TW-LIB-004", "/library/weights")


def test_another_shape_is_refused_and_the_session_goes_on(folder: Path, tmp_path: Path) -> None:
    import onnx

    app, _ = library("conv", folder)
    model = onnx.load(str(app / "host.onnx"))
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
    onnx.save(model, str(tmp_path / "open.onnx"))
    session = opened(tmp_path / "open.onnx", app / "libmodel.so")
    with pytest.raises(Exception, match="TW-LIB") as caught:
        session.run(None, {"x": np.zeros((2, 3, 12, 12), np.float32)})
    assert refusal(caught.value) == ("TW-LIB-005", "/inputs/x")
    got = run(session, inputs_of("conv", folder))
    np.testing.assert_array_equal(got["y"], expected("conv", folder)["y"])


def test_a_runtime_without_the_version_is_refused(folder: Path) -> None:
    """A runtime of version 15, as far as the library asks it."""
    shared = ctypes.CDLL(str(library("view", folder)[0] / "libmodel.so"))
    asked: list[int] = []
    get_api = ctypes.CFUNCTYPE(ctypes.c_size_t, ctypes.c_uint32)
    get_version = ctypes.CFUNCTYPE(ctypes.c_size_t)
    status = ctypes.CFUNCTYPE(ctypes.c_size_t, ctypes.c_int, ctypes.c_char_p)
    told: list[tuple[int, bytes]] = []

    @status
    def create_status(code: int, text: bytes) -> int:
        told.append((code, text))
        return 4711

    table = (ctypes.c_void_p * 1)(ctypes.cast(create_status, ctypes.c_void_p))

    @get_api
    def api(version: int) -> int:
        asked.append(version)
        return ctypes.addressof(table) if version <= 15 else 0

    name = ctypes.create_string_buffer(b"1.15.1")

    @get_version
    def version() -> int:
        return ctypes.addressof(name)

    base = (ctypes.c_void_p * 2)(
        ctypes.cast(api, ctypes.c_void_p), ctypes.cast(version, ctypes.c_void_p)
    )
    shared.RegisterCustomOps.restype = ctypes.c_void_p
    assert shared.RegisterCustomOps(ctypes.c_void_p(1), base) == 4711
    assert asked == [16, 1]
    code, text = told[0]
    assert code == 1 and refusal(text.decode()) == ("TW-LIB-009", "/onnxruntime/api")
    assert "1.15.1" in text.decode()


needs_headers = pytest.mark.skipif(
    HEADERS is None, reason="ORT_INCLUDE does not name a folder with onnxruntime_c_api.h"
)


def compiler(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"no {name}")
    return found


@needs_headers
def test_declared_entries_are_where_the_runtimes_header_has_them(tmp_path: Path) -> None:
    own = files("worker.compiler.package.library").joinpath("tw_onnxruntime.h").read_text()
    entries = re.findall(r"X\((\d+), (\w+),", own)
    fields = re.findall(r"\(\*(\w+)\)\(", own.split("typedef struct OrtCustomOp {")[1])
    assert len(entries) == 16 and fields[0] == "CreateKernel" and len(fields) == 18
    checks = [
        f"_Static_assert(offsetof(OrtApi, {name}) == {position} * sizeof(void *), \"{name}\");"
        for position, name in entries
    ] + [
        f"_Static_assert(offsetof(OrtCustomOp, {name}) == {k + 1} * sizeof(void *), \"{name}\");"
        for k, name in enumerate(fields)
    ]  # fmt: skip
    source = tmp_path / "entries.c"
    source.write_text('#include <stddef.h>\n#include "onnxruntime_c_api.h"\n' + "\n".join(checks))
    command = [compiler("cc"), "-std=c11", "-fsyntax-only", f"-I{HEADERS}", str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@needs_headers
@pytest.mark.parametrize("name", ["conv", "int8", "host_between"])
def test_a_plain_cpp_program_runs_it(name: str, folder: Path, tmp_path: Path) -> None:
    shared = next((Path(onnxruntime.__file__).parent / "capi").glob("libonnxruntime.so.*"), None)
    if shared is None:
        pytest.skip("this ONNX Runtime comes without libonnxruntime.so")
    program = tmp_path / "plain"
    (tmp_path / "libonnxruntime.so.1").symlink_to(shared)  # by the name that it calls itself
    command = [
        compiler("c++"), "-std=c++17", f"-I{HEADERS}", str(_HERE / "plain_onnxruntime.cpp"),
        str(shared), f"-Wl,-rpath,{tmp_path}", "-lpthread", "-o", str(program),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    inputs = inputs_of(name, folder)
    assert list(inputs) == ["x"]
    (tmp_path / "x.bin").write_bytes(inputs["x"].tobytes())
    app, _ = library(name, folder)
    arguments = [str(app / "host.onnx"), str(app / "libmodel.so"), str(tmp_path / "x.bin")]
    ran = subprocess.run(
        [str(program), *arguments, str(tmp_path / "y.bin")], capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    want = expected(name, folder)["y"]
    got = np.fromfile(tmp_path / "y.bin", want.dtype).reshape(4, *want.shape)
    for each in got:
        np.testing.assert_array_equal(each, want)
