"""Bundles: determinism, damage, running them, wrong inputs, no compiler."""

from __future__ import annotations

import json
import shutil
import zipfile
from dataclasses import replace
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kernel_toys import BUILD_DIR, machine, matmul_graph, tiled
from onnx import TensorProto, helper

from worker.compiler.codegen.kernel import generate_kernel
from worker.compiler.codegen.runtime_header import runtime_header
from worker.compiler.errors import CompilerError, InputError, MemoryFault
from worker.compiler.isa.binary import decode_program, encode_program
from worker.compiler.isa.program import Binding, HostCall, Program, UnitCall
from worker.compiler.lower.lower import lower_unit
from worker.compiler.package.build import build_library, find_compiler
from worker.compiler.package.bundle import BundleContents, write_bundle
from worker.compiler.package.executable import ExecutableModel, HomeTensor, Port, level_specs
from worker.compiler.package.runtime import ModelRunner, run_bundle
from worker.compiler.package.weights import read_weights
from worker.compiler.schedule.text import print_schedule

M, N, K = 12, 20, 33


def host_model() -> bytes:
    """s = softmax(c); also passes an untouched boolean through."""
    graph = helper.make_graph(
        [helper.make_node("Softmax", ["c"], ["s"], axis=1), helper.make_node("Not", ["f"], ["g"])],
        "host",
        [helper.make_tensor_value_info("c", TensorProto.FLOAT, [M, N]),
         helper.make_tensor_value_info("f", TensorProto.BOOL, [2])],
        [helper.make_tensor_value_info("s", TensorProto.FLOAT, [M, N]),
         helper.make_tensor_value_info("g", TensorProto.BOOL, [2])],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return bytes(model.SerializeToString(deterministic=True))


def contents(seed: int = 1) -> BundleContents:
    """c = a @ b (kernel); s = softmax(c), g = not f (host); d = s @ e (kernel, same unit shape)."""
    mach = machine()
    first = tiled(matmul_graph(M, N, K), {"i": 5, "k": 16})
    second = tiled(matmul_graph(M, 7, N), {"i": 5})
    units = tuple(lower_unit(s, mach, "0" * 64) for s in (first, second))
    shapes = {"b": (K, N), "e": (N, 7), "a": (M, K), "c": (M, N), "s": (M, N), "d": (M, 7)}
    address, tensors = 0, []
    for name, shape in shapes.items():
        size = 4 * shape[0] * shape[1]
        tensors.append(HomeTensor(name, "f32", shape, address, size))
        address += -(-size // 64) * 64
    where = {t.name: t.address for t in tensors}

    def call(unit: int, *names: str) -> UnitCall:
        return UnitCall(unit, tuple(Binding(n, where[n]) for n in names), ("node",), "MatMul")

    host = HostCall(0, ("c", "f"), ("s", "g"), 0, 0, 0, 0, ("softmax", "not"), ("Softmax", "Not"))
    program = Program(units, (call(0, "a", "b", "c"), host, call(1, "s", "e", "d")), address, 0, 0)
    names = ("tw_first", "tw_second")
    kernels = {
        n: generate_kernel(s, p, mach, n)
        for n, s, p in zip(names, (first, second), units, strict=True)
    }
    model = ExecutableModel(
        "toy",
        (Port("a", "f32", (M, K)), Port("f", "bool", (2,))),
        (Port("d", "f32", (M, 7)), Port("g", "bool", (2,)), Port("s", "f32", (M, N))),
        level_specs(mach), program, names, tuple(tensors), ("b", "e"),
        targets=(mach.targets[0].name,),
    )  # fmt: skip
    rng = np.random.default_rng(seed)
    weights = {n: rng.standard_normal(shapes[n], dtype=np.float32) for n in ("b", "e")}
    schedules = dict(zip(names, map(print_schedule, (first, second)), strict=True))
    return BundleContents(
        model, kernels, schedules, {n: (lambda n=n: weights[n]) for n in weights},
        (host_model(),), encode_program(program), "text of the program\n", b"{}", b'{"a": 1}',
        b"\x1f\x8bgz", {"version": "0.1"}, mach,
    )  # fmt: skip


def inputs() -> dict[str, np.ndarray]:
    a = np.random.default_rng(5).standard_normal((M, K), dtype=np.float32)
    return {"a": a, "f": np.array([True, False])}


def expected() -> tuple[np.ndarray, np.ndarray]:
    made = contents()
    c = inputs()["a"] @ made.constants["b"]()
    e = np.exp(c - c.max(axis=1, keepdims=True))
    s = e / e.sum(axis=1, keepdims=True)
    return s, s @ made.constants["e"]()


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    path = tmp_path / "toy.twb"
    digest = write_bundle(path, contents())
    assert digest == sha256(path.read_bytes()).hexdigest()
    return path


def test_same_contents_give_the_same_bytes(bundle: Path, tmp_path: Path) -> None:
    again = tmp_path / "again.twb"
    write_bundle(again, contents())
    assert again.read_bytes() == bundle.read_bytes()
    write_bundle(again, contents(seed=2))
    assert again.read_bytes() != bundle.read_bytes()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["again.twb", "toy.twb"]


def test_tables_of_the_machine_in_another_order_give_the_same_bytes(tmp_path: Path) -> None:
    """Specs say the same in any order of keys."""
    made = contents()
    tables = [
        replace(e, macs_per_cycle=dict(reversed(e.macs_per_cycle.items())))
        for e in made.machine.engines
    ]
    assert any(len(e.macs_per_cycle) > 1 for e in tables)
    other = replace(made, machine=replace(made.machine, engines=tuple(tables)))
    digests = [write_bundle(tmp_path / f"{k}.twb", each) for k, each in enumerate((made, other))]
    assert digests[0] == digests[1]


def test_manifest_lists_every_member_with_its_digest(bundle: Path) -> None:
    with zipfile.ZipFile(bundle) as archive:
        manifest = json.loads(archive.read("manifest.json"))
        assert {m["name"] for m in manifest["members"]} == set(archive.namelist()) - {
            "manifest.json"
        }
        for member in manifest["members"]:
            data = archive.read(member["name"])
            assert sha256(data).hexdigest() == member["sha256"]
            assert len(data) == member["size_bytes"]
        assert archive.getinfo("weights.safetensors").compress_type == zipfile.ZIP_STORED
        assert all(i.date_time == (1980, 1, 1, 0, 0, 0) for i in archive.infolist())
        graph = json.loads(archive.read("model/graph.json"))
    assert manifest["provenance"][0]["onnx_nodes"] == ["node"]
    assert [call["type"] for call in graph["calls"]] == ["kernel", "host", "kernel"]
    assert [o["tensor"] for o in graph["calls"][0]["operands"]] == ["a", "b", "c"]


def test_weights_are_readable_by_the_safetensors_library(bundle: Path) -> None:
    from safetensors.numpy import load

    with zipfile.ZipFile(bundle) as archive:
        tensors = load(archive.read("weights.safetensors"))
    np.testing.assert_array_equal(tensors["e"], contents().constants["e"]())
    np.testing.assert_array_equal(tensors["b"], contents().constants["b"]())


def test_a_bundle_runs_kernels_and_host_parts(bundle: Path) -> None:
    outputs = run_bundle(bundle, inputs(), BUILD_DIR)
    s, d = expected()
    assert list(outputs) == ["d", "g", "s"]
    np.testing.assert_allclose(outputs["s"], s, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(outputs["d"], d, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(outputs["g"], [False, True])


def test_a_model_runs_without_a_bundle_and_shows_every_call() -> None:
    made = contents()
    runner = ModelRunner(made.model, build_library(made.kernels, BUILD_DIR), made.host_models)
    runner.load_constants(made.constants)
    seen: list[tuple[int, float]] = []
    first = runner.run(
        inputs(), lambda k, call, read: seen.append((k, float(read(call.bindings[2].tensor)[0, 0])))
    )
    second = runner.run(inputs())
    assert [k for k, _ in seen] == [0, 2]
    assert seen[1][1] == first["d"][0, 0]
    np.testing.assert_array_equal(first["d"], second["d"])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"f": np.zeros(2, bool)}, "input 'a' is missing"),
        ({"a": np.zeros((M, K + 1), np.float32)}, r"must be f32\[12, 33\], got float32\[12, 34\]"),
        ({"a": np.zeros((M, K), np.float64)}, "got float64"),
        ({"zz": np.zeros(1)}, "no input 'zz'"),
    ],
)
def test_wrong_inputs_are_refused(bundle: Path, wrong: dict[str, np.ndarray], message: str) -> None:
    given = {**inputs(), **wrong}
    if "missing" in message:
        del given["a"]
    with pytest.raises(InputError, match=message) as caught:
        run_bundle(bundle, given, BUILD_DIR)
    assert caught.value.code == "TW-RUN-002" and len(caught.value.findings) == 1


def rewrite(path: Path, change: dict[str, bytes | None]) -> None:
    """Replace or drop members without touching the manifest."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in {**members, **change}.items():
            if data is not None:
                archive.writestr(name, data)


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("kernels/tw_first.c", b"int x;", "kernels/tw_first.c does not match its digest"),
        ("program.bin", None, "disagree about program.bin"),
        ("extra.txt", b"", "disagree about extra.txt"),
        ("manifest.json", b"{", "manifest.json is not valid"),
        ("manifest.json", b'{"model": "\x80"}', "manifest.json is not valid"),
        ("../evil", b"", "unsafe member name"),
    ],
)
def test_damaged_bundles_are_refused(
    bundle: Path, name: str, data: bytes | None, message: str
) -> None:
    rewrite(bundle, {name: data})
    with pytest.raises(InputError, match=message) as caught:
        run_bundle(bundle, inputs(), BUILD_DIR)
    assert caught.value.code == "TW-RUN-001"


def reseal(path: Path, manifest: dict[str, Any], name: str, data: bytes) -> None:
    """Replace a member, and make the manifest's digest and size of it right again."""
    row = next(row for row in manifest["members"] if row["name"] == name)
    row |= {"sha256": sha256(data).hexdigest(), "size_bytes": len(data)}
    rewrite(path, {name: data, "manifest.json": json.dumps(manifest).encode()})


@pytest.mark.parametrize("change", ["dropped", "renamed", "moved", "twice"])
def test_a_tensor_that_kernels_know_elsewhere_is_refused(bundle: Path, change: str) -> None:
    """With all digests right: an input would be written where no kernel reads it."""
    with zipfile.ZipFile(bundle) as archive:
        manifest = json.loads(archive.read("manifest.json"))
        graph = json.loads(archive.read("model/graph.json"))
    tensors = graph["tensors"]
    given = next(tensor for tensor in tensors if tensor["name"] == "a")
    if change == "dropped":
        tensors.remove(given)
    elif change == "renamed":
        given["name"] = "aa"
    elif change == "moved":
        given["address"] += -64 if given["address"] else 64
    else:
        tensors.append(given)
    reseal(bundle, manifest, "model/graph.json", json.dumps(graph).encode())
    with pytest.raises(InputError, match=r"tensor a|a tensor twice") as caught:
        run_bundle(bundle, inputs(), BUILD_DIR)
    assert caught.value.code == "TW-RUN-001"


@pytest.mark.parametrize(
    ("change", "message"),
    [("unit", "calls unit 99 of"), ("before", "calls unit -1 of"), ("fewer", "another number of")],
)
def test_a_call_of_no_unit_is_refused(bundle: Path, change: str, message: str) -> None:
    with zipfile.ZipFile(bundle) as archive:
        manifest = json.loads(archive.read("manifest.json"))
        program = decode_program(archive.read("program.bin"))
    calls = list(program.calls)
    at, call = next((k, c) for k, c in enumerate(calls) if isinstance(c, UnitCall))
    calls[at] = {
        "unit": replace(call, unit=99),
        "before": replace(call, unit=-1),
        "fewer": replace(call, bindings=call.bindings[:-1]),
    }[change]
    data = encode_program(replace(program, calls=tuple(calls)))
    reseal(bundle, manifest, "program.bin", data)
    with pytest.raises(InputError, match=message) as caught:
        run_bundle(bundle, inputs(), BUILD_DIR)
    assert caught.value.code == "TW-RUN-001"


HOST_CHANGES: dict[str, tuple[dict[str, Any], str]] = {
    "another part": ({"host": 1}, "about what is called"),
    "no part": ({"host": -1}, "calls host part -1"),
    "another input": ({"inputs": ("c", "g")}, "'g' before it is made"),
    "an input that is none": ({"inputs": ("c", "nowhere")}, "'nowhere', which is none"),
    "inputs exchanged": ({"inputs": ("f", "c")}, "about what is called"),
    "an output fewer": ({"outputs": ("s",)}, "about what is called"),
    "another node": ({"onnx_nodes": ("other",)}, "about what is called"),
}


@pytest.mark.parametrize("change", HOST_CHANGES)
def test_a_host_part_that_is_called_otherwise_is_refused(bundle: Path, change: str) -> None:
    fields, message = HOST_CHANGES[change]
    with zipfile.ZipFile(bundle) as archive:
        manifest = json.loads(archive.read("manifest.json"))
        program = decode_program(archive.read("program.bin"))
    calls = [replace(c, **fields) if isinstance(c, HostCall) else c for c in program.calls]
    data = encode_program(replace(program, calls=tuple(calls)))
    reseal(bundle, manifest, "program.bin", data)
    with pytest.raises(InputError, match=message) as caught:
        run_bundle(bundle, inputs(), BUILD_DIR)
    assert caught.value.code == "TW-RUN-001"


def test_calls_in_another_order_are_refused(bundle: Path) -> None:
    """What a call reads would not be there yet."""
    with zipfile.ZipFile(bundle) as archive:
        manifest = json.loads(archive.read("manifest.json"))
        program = decode_program(archive.read("program.bin"))
    data = encode_program(replace(program, calls=program.calls[::-1]))
    reseal(bundle, manifest, "program.bin", data)
    with pytest.raises(InputError, match="before it is made"):
        run_bundle(bundle, inputs(), BUILD_DIR)


@pytest.mark.parametrize("change", ["part", "unknown", "later", "twice"])
def test_both_documents_changed_alike_end_in_a_code(bundle: Path, change: str) -> None:
    with zipfile.ZipFile(bundle) as archive:
        manifest = json.loads(archive.read("manifest.json"))
        program = decode_program(archive.read("program.bin"))
        graph = json.loads(archive.read("model/graph.json"))
    at = next(k for k, c in enumerate(program.calls) if isinstance(c, HostCall))
    host, calls, rows = program.calls[at], list(program.calls), graph["calls"]
    if change == "part":
        calls[at], rows[at]["model"] = replace(host, host=7), "host/0007.onnx"
    elif change == "unknown":
        calls[at], rows[at]["inputs"] = replace(host, inputs=("c", "nowhere")), ["c", "nowhere"]
    elif change == "later":
        calls.reverse(), rows.reverse()
    else:
        calls[at], rows[at]["outputs"] = replace(host, outputs=("s", "s")), ["s", "s"]
    data = encode_program(replace(program, calls=tuple(calls)))
    reseal(bundle, manifest, "program.bin", data)
    reseal(bundle, manifest, "model/graph.json", json.dumps(graph).encode())
    with pytest.raises(CompilerError) as caught:
        run_bundle(bundle, inputs(), BUILD_DIR)
    assert caught.value.code.startswith("TW-RUN-")


@pytest.mark.parametrize(("shift", "is_whole"), [(0, True), (64, False)])
def test_a_tensor_may_be_another_under_a_second_name(
    tmp_path: Path, shift: int, is_whole: bool
) -> None:
    """A reshape costs no call: what reads its result reads where its source was written."""
    made = contents()
    (s,) = (t for t in made.model.tensors if t.name == "s")
    flat = replace(s, name="flat", address=s.address + shift)
    calls = tuple(
        replace(c, bindings=tuple(replace(b, tensor="flat", address=flat.address)
                                  if b.tensor == "s" else b for b in c.bindings))
        if isinstance(c, UnitCall) else c
        for c in made.model.program.calls
    )  # fmt: skip
    program = replace(
        made.model.program, calls=calls, home_bytes=made.model.program.home_bytes + 64
    )
    model = replace(made.model, program=program, tensors=(*made.model.tensors, flat))
    path = tmp_path / "named.twb"
    write_bundle(path, replace(made, model=model, program_binary=encode_program(program)))
    if is_whole:
        np.testing.assert_allclose(
            run_bundle(path, inputs(), BUILD_DIR)["d"], expected()[1], rtol=1e-5, atol=1e-5
        )
    else:
        with pytest.raises(InputError, match="'flat' before it is made"):
            run_bundle(path, inputs(), BUILD_DIR)


def test_truncated_flipped_and_foreign_files_are_refused(bundle: Path, tmp_path: Path) -> None:
    whole = bundle.read_bytes()
    broken = tmp_path / "broken.twb"
    flipped = bytearray(whole)
    with zipfile.ZipFile(bundle) as archive:
        flipped[archive.getinfo("weights.safetensors").header_offset + 400] ^= 1
    for data in (whole[: len(whole) // 2], bytes(flipped), b"PK", b""):
        broken.write_bytes(data)
        with pytest.raises(InputError) as caught:
            run_bundle(broken, inputs(), BUILD_DIR)
        assert caught.value.code == "TW-RUN-001"
    with pytest.raises(InputError):
        run_bundle(tmp_path / "absent.twb", inputs(), BUILD_DIR)


def test_another_format_version_is_refused(bundle: Path) -> None:
    with zipfile.ZipFile(bundle) as archive:
        manifest = json.loads(archive.read("manifest.json"))
    manifest["format_version"] = 99
    rewrite(bundle, {"manifest.json": json.dumps(manifest).encode()})
    with pytest.raises(InputError, match=r"format 99, made by Tilewright 0\.1") as caught:
        run_bundle(bundle, inputs(), BUILD_DIR)
    assert caught.value.code == "TW-RUN-004"


def test_without_a_c_compiler_the_error_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CompilerError) as caught:
        find_compiler("no-such-compiler")
    assert caught.value.code == "TW-VERIFY-002"
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(CompilerError, match="cc, gcc, clang"):
        find_compiler()


def test_rejected_c_is_our_bug_and_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(CompilerError, match="rejects generated code") as caught:
        build_library({"k": "this is not C"}, tmp_path)
    assert caught.value.code == "TW-INT-001"
    assert str(tmp_path) not in caught.value.message  # it has no more room for what is wrong, else
    assert list(tmp_path.iterdir()) == []


def test_libraries_are_reused_by_content(tmp_path: Path) -> None:
    made = contents()
    first = build_library(made.kernels, tmp_path)
    stamp = first.stat().st_mtime_ns
    assert build_library(made.kernels, tmp_path) == first
    assert first.stat().st_mtime_ns == stamp
    assert build_library({"k": "int tw_k(void); int tw_k(void) { return 1; }"}, tmp_path) != first
    assert len(list(tmp_path.iterdir())) == 2


def test_a_header_of_another_layout_is_refused() -> None:
    made = contents()
    header = runtime_header().replace("int32_t poison;", "int32_t poison; int64_t extra;")
    library = build_library(made.kernels, BUILD_DIR, header=header)
    runner = ModelRunner(made.model, library, made.host_models)  # engines start on first use
    with pytest.raises(InputError, match="runtime header describes") as caught:
        runner.run(inputs())
    assert caught.value.code == "TW-RUN-001"


def test_poisoned_results_stay_visible_when_a_call_is_missing() -> None:
    made = contents()
    model = made.model
    program = model.program
    skipped = Program(program.units, program.calls[1:], program.home_bytes, 0, 0)
    broken = ExecutableModel(
        model.name, model.inputs, model.outputs, model.levels, skipped, model.kernels,
        model.tensors, model.constants,
    )  # fmt: skip
    runner = ModelRunner(broken, build_library(made.kernels, BUILD_DIR), made.host_models)
    runner.load_constants(made.constants)
    assert np.isnan(runner.run(inputs())["d"]).all()


def test_a_fault_names_buffer_path_and_numbers() -> None:
    made = contents()
    text = made.kernels["tw_first"].replace("0, 1, v1,", "0, 1, 99,").replace(
        "0, 1, 0,", "0, 1, 99,"
    )  # fmt: skip
    library = build_library({**made.kernels, "tw_first": text}, BUILD_DIR)
    runner = ModelRunner(made.model, library, made.host_models)
    with pytest.raises(MemoryFault, match=r"buffer of c at 0\.0 in L1 asks for instance 99 of 16"):
        runner.run(inputs())


@pytest.mark.parametrize("header", [b'{"b": 3}', b'{"\x80": 1}', b"{", b"[]"])
def test_damaged_weight_headers_are_refused(header: bytes) -> None:
    source = BytesIO(len(header).to_bytes(8, "little") + header)
    with pytest.raises(InputError) as caught:
        read_weights(source, contents().model.tensors[:1], memoryview(bytearray(64)))
    assert caught.value.code == "TW-RUN-001"
