"""The C interface of a bundle's library: in place, several at once, and what it refuses."""

from __future__ import annotations

import platform
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from libraries import (
    WHOLE_MODEL,
    Library,
    Refused,
    damaged_copy,
    expected,
    inputs_of,
    library,
    sources,
)
from onnx import TensorProto, helper, numpy_helper
from region_bundles import Array, bundled, compiled_from, made

from worker.compiler.assembly.packing import bundle_contents
from worker.compiler.package.build import find_compiler, flags_for
from worker.compiler.package.bundle import write_bundle
from worker.compiler.package.library.build import build_into
from worker.compiler.package.runtime import open_bundle

_HERE = Path(__file__).parent
WHOLE = ("conv", "view")
"""Models that are on the accelerator as a whole."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("libraries")


def opened(name: str, folder: Path) -> Library:
    return Library(library(name, folder)[0] / "libmodel.so")


@pytest.mark.parametrize("name", WHOLE)
def test_a_whole_model_runs_in_place(name: str, folder: Path) -> None:
    shared = opened(name, folder)
    inputs = inputs_of(name, folder)
    kept = {n: a.copy() for n, a in inputs.items()}
    got, want = shared.run(inputs), expected(name, folder)
    assert got.keys() == want.keys()
    for output, value in want.items():
        np.testing.assert_array_equal(got[output], value)
    for n, array in kept.items():
        np.testing.assert_array_equal(inputs[n], array)
    parts = library(name, folder)[1].library.parts
    assert all(v.is_direct for part in parts for v in (*part.inputs, *part.outputs))


@pytest.mark.parametrize("name", ["int8", "host_between", "loop"])
def test_every_value_of_a_region_is_bound_without_a_copy(name: str, folder: Path) -> None:
    for part in library(name, folder)[1].library.parts[1:]:
        assert all(v.is_direct for v in (*part.inputs, *part.outputs))


def shared_outputs() -> onnx.ModelProto:
    """relu -> flatten, both of them outputs, then a sum; and an input that nothing reads."""
    weight = numpy_helper.from_array(np.arange(6, dtype=np.float32), "w")
    ports = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (
        ("x", [2, 3]), ("unread", [5]), ("r", [2, 3]), ("f", [6]), ("s", [6]),
    )]  # fmt: skip
    nodes = [
        helper.make_node("Relu", ["x"], ["r"], name="relu"),
        helper.make_node("Reshape", ["r", "flat"], ["f"], name="flatten"),
        helper.make_node("Add", ["f", "w"], ["s"], name="add"),
    ]
    flat = numpy_helper.from_array(np.array([6], np.int64), "flat")
    graph = helper.make_graph(nodes, "shared", ports[:2], ports[2:], [weight, flat])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def test_outputs_that_share_storage_are_both_given(tmp_path: Path) -> None:
    compiled_model = compiled_from(shared_outputs(), "a100", tmp_path)
    bundle = tmp_path / "shared.twb"
    write_bundle(bundle, bundle_contents(compiled_model, {}, b"{}", b"{}", b"\x1f\x8b"))
    with open_bundle(bundle) as opened_bundle:
        built = build_into(opened_bundle, tmp_path, tmp_path / "build")
    whole = built.library.parts[0]
    assert (whole.refusal, len(whole.regions)) == (None, len(built.library.regions))
    assert {v.name: v.is_direct for v in whole.outputs} == {"r": True, "f": False, "s": True}
    assert {v.name: v.tensor is None for v in whole.inputs} == {"x": False, "unread": True}
    x = np.array([[-1, 2, -3], [4, -5, 6]], np.float32)
    given = {"x": x, "unread": np.zeros(5, np.float32)}
    r = np.maximum(x, 0)
    got = Library(tmp_path / "libmodel.so").run(given)
    for name, want in (("r", r), ("f", r.ravel()), ("s", r.ravel() + np.arange(6))):
        np.testing.assert_array_equal(got[name], want.astype(np.float32))
    options = onnxruntime.SessionOptions()
    options.register_custom_ops_library(str(tmp_path / "libmodel.so"))
    session = onnxruntime.InferenceSession(
        str(tmp_path / "host.onnx"), options, providers=["CPUExecutionProvider"]
    )
    for name, want in zip("rfs", session.run(list("rfs"), given), strict=True):
        np.testing.assert_array_equal(got[name], want)


def test_a_session_reads_what_is_bound_at_the_time_of_the_run(folder: Path) -> None:
    shared = opened("conv", folder)
    session = shared.session()
    x = inputs_of("conv", folder)["x"]
    (y,) = shared.values(WHOLE_MODEL, "output").values()
    shared.bind(session, "x", x)
    shared.bind(session, "y", y)
    for seed in (3, 4):
        x[...] = inputs_of("conv", folder, seed)["x"]
        shared.call("tw_run", session)
        np.testing.assert_array_equal(y, expected("conv", folder, seed)["y"])
    shared.c.tw_session_free(session)


def test_regions_run_one_by_one_around_the_host(folder: Path) -> None:
    shared = opened("host_between", folder)
    (m0,) = shared.run(inputs_of("host_between", folder), 0).values()
    v = -np.sort(-m0, axis=1)[:, :8]  # TopK
    (y,) = shared.run({"v": v}, 1).values()
    np.testing.assert_array_equal(y, expected("host_between", folder)["y"])


def test_two_threads_with_sessions_of_their_own(folder: Path) -> None:
    shared = opened("conv", folder)

    def work(seed: int) -> list[Array]:
        return [shared.run(inputs_of("conv", folder, seed))["y"] for _ in range(25)]

    want = {seed: expected("conv", folder, seed)["y"] for seed in (3, 4)}
    with ThreadPoolExecutor(2) as pool:
        for seed, rounds in zip(want, pool.map(work, want), strict=True):
            assert all(np.array_equal(each, want[seed]) for each in rounds)


def test_what_is_opened_wrongly_is_refused(folder: Path, tmp_path: Path) -> None:
    path = library("conv", folder)[0] / "libmodel.so"
    digest = library("conv", folder)[1].library.digest
    assert Library(path, digest=digest).c.tw_num_regions(Library(path).model) == 1
    other = library("view", folder)[1].library.digest
    at = path.read_bytes().index(made("conv", folder).constants["w3"]().tobytes())
    broken = damaged_copy(path, tmp_path / "broken.so", at)
    for file, version, asked, code, pointer in (
        (path, 2, None, "TW-LIB-001", "/library/api"),
        (path, 1, other, "TW-LIB-003", "/library/digest"),
        (broken, 1, None, "TW-LIB-004", "/library/weights"),
    ):
        with pytest.raises(Refused, match="tilewright") as caught:
            Library(file, version, asked)
        assert (caught.value.id, caught.value.pointer) == (code, pointer)


def test_a_library_for_a_processor_with_more_is_refused(folder: Path, tmp_path: Path) -> None:
    """The sources say which features they took for granted: all that there are, here."""
    if platform.machine() != "x86_64":
        pytest.skip("only libraries for x86-64 say what they need")
    own = shutil.copytree(sources("view", folder), tmp_path / "src")
    tables = own / "tw_tables.c"
    tables.write_text(tables.read_text().replace("TW_FEATURES", "0x1fffff"))
    with pytest.raises(Refused, match="was compiled for a processor with") as caught:
        Library(compiled(own, tmp_path / "libnewer.so"))
    assert (caught.value.id, caught.value.pointer) == ("TW-LIB-002", "/library/cpu")


def test_what_is_bound_wrongly_is_refused(folder: Path) -> None:
    shared = opened("conv", folder)
    session = shared.session()
    x = inputs_of("conv", folder)["x"]
    tilted = np.frombuffer(bytearray(x.nbytes + 1), np.uint8)[1:]
    assert tilted.ctypes.data % 4
    for name, array, pointer in (
        ("z", x, "/z"), ("x", x[:, :2], "/inputs/x/bytes"), ("x", tilted, "/inputs/x/data"),
    ):  # fmt: skip
        with pytest.raises(Refused) as caught:
            shared.bind(session, name, array)
        assert (caught.value.id, caught.value.pointer) == ("TW-LIB-005", pointer)
    shared.bind(session, "x", x)
    with pytest.raises(Refused, match="tw_bind") as caught:
        shared.call("tw_run", session)
    assert (caught.value.id, caught.value.pointer) == ("TW-LIB-005", "/outputs/y/data")
    shared.c.tw_session_free(session)


def test_regions_that_there_are_not_are_refused(folder: Path) -> None:
    shared = opened("host_between", folder)
    for region in (-2, 2):
        with pytest.raises(Refused, match="has 2") as caught:
            shared.session(region)
        assert (caught.value.id, caught.value.pointer) == ("TW-LIB-005", f"/regions/{region}")
        assert shared.c.tw_num_inputs(shared.model, region) == -1
    with pytest.raises(Refused, match=r"host\.onnx") as caught:
        shared.session()
    assert caught.value.id == "TW-LIB-006"


def test_same_bundle_same_sources(folder: Path, tmp_path: Path) -> None:
    with open_bundle(bundled("conv", folder)) as bundle:
        build_into(bundle, tmp_path, tmp_path / "build", sources_only=True)
    one, two = sources("conv", folder), tmp_path / "src"
    files = sorted(str(p.relative_to(one)) for p in one.rglob("*") if p.is_file())
    assert files == sorted(str(p.relative_to(two)) for p in two.rglob("*") if p.is_file())
    assert all((one / name).read_bytes() == (two / name).read_bytes() for name in files)


def compiled(source: Path, target: Path, *more: str) -> Path:
    """All sources by the one command that the documents give, with the flags of kernels."""
    cc = find_compiler()
    files = sorted(str(p.relative_to(source)) for p in source.rglob("*.c"))
    shared = [] if target.suffix == "" else ["-shared"]
    command = [
        str(cc), *flags_for(cc), "-Werror", *shared, "-I.", *more, *files, "-o", str(target), "-lm",
        "-lpthread",
    ]  # fmt: skip
    done = subprocess.run(command, cwd=source, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return target


@pytest.mark.parametrize("sanitizer", ["address,undefined", "thread"])
@pytest.mark.parametrize("name", WHOLE)
def test_sanitizers_have_nothing_to_say(
    name: str, sanitizer: str, folder: Path, tmp_path: Path
) -> None:
    probe = tmp_path / "probe.c"
    probe.write_text("int main(void) { return 0; }\n")
    sanitize = [f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all", "-O1", "-g"]
    asked = [str(find_compiler()), *sanitize, str(probe), "-o", str(tmp_path / "probe")]
    if subprocess.run(asked, capture_output=True, check=False).returncode:
        pytest.skip(f"the C compiler has no sanitizer {sanitizer}")
    program = compiled(
        sources(name, folder), tmp_path / "plain", *sanitize, str(_HERE / "use_library.c")
    )
    (x,) = inputs_of(name, folder).values()
    (tmp_path / "in").write_bytes(x.tobytes())
    digest = library(name, folder)[1].library.digest
    ran = subprocess.run(
        [str(program), digest, str(tmp_path / "in"), str(tmp_path / "out")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (ran.returncode, ran.stderr) == (0, "")
    (want,) = expected(name, folder).values()
    got = np.fromfile(tmp_path / "out", want.dtype).reshape(4, *want.shape)
    for each in got:
        np.testing.assert_array_equal(each, want)
