"""Each kind of bad upload gets its own code, with the user's names in it."""

from __future__ import annotations

import io
import stat
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from worker.compiler.errors import ModelError
from worker.compiler.frontend.inference_guard import guard_inference
from worker.compiler.frontend.limits import Limits
from worker.compiler.frontend.load import load_model

Edit = Callable[[onnx.ModelProto], object]


def _model() -> onnx.ModelProto:
    weight = numpy_helper.from_array(np.arange(2048, dtype=np.float32).reshape(32, 64), "w")
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["h"], name="mul"),
            helper.make_node("LeakyRelu", ["h"], ["y"], name="act", alpha=0.1),
        ],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 32])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, 64])],
        [weight],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _refusal(path: Path, data: bytes, limits: Limits | None = None) -> ModelError:
    path.write_bytes(data)
    with pytest.raises(ModelError) as caught:
        load_model(path, limits or Limits())
    return caught.value


def _field(number: int, content: bytes) -> bytes:
    size, parts = len(content), bytearray()
    while size > 0x7F:
        parts.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes([number << 3 | 2, *parts, size]) + content


def _deep(depth: int) -> bytes:
    """A model of Ifs inside Ifs, in bytes: the parser cannot even build the deep ones."""
    graph = _field(2, b"g")
    for _ in range(depth):
        attribute = _field(1, b"then_branch") + _field(6, graph) + bytes([0xA0, 0x01, 5])
        node = _field(1, b"x") + _field(2, b"y") + _field(4, b"If") + _field(5, attribute)
        graph = _field(1, node)
    opset = _field(8, bytes([0x10, 17]))
    value = _field(12, _field(1, b"y"))
    return bytes([8, 8]) + opset + _field(7, graph + value)


def test_weights_are_read_from_the_file(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(_model().SerializeToString())
    found = load_model(path, Limits(), "mine")
    tensor = found.ir.graph.initializers["w"].const_value
    assert tensor is not None
    np.testing.assert_array_equal(tensor.numpy().ravel(), np.arange(2048))
    assert (found.name, found.opset, len(found.sha256)) == ("mine", 17, 64)


def test_empty_file(tmp_path: Path) -> None:
    assert _refusal(tmp_path / "m", b"").code == "TW-MODEL-002"


def test_truncated_file(tmp_path: Path) -> None:
    data = _model().SerializeToString()
    assert _refusal(tmp_path / "m", data[: len(data) // 2]).code == "TW-MODEL-002"


@pytest.mark.parametrize("data", [b"hello world", b"\xff" * 40, b"\x89PNG\r\n\x1a\n0000"])
def test_not_a_protobuf(tmp_path: Path, data: bytes) -> None:
    assert _refusal(tmp_path / "m", data).code == "TW-MODEL-001"


def test_byte_limit_names_both_numbers(tmp_path: Path) -> None:
    found = _refusal(tmp_path / "m", b"x" * 101, Limits(max_bytes=100))
    assert (found.code, found.place.node) == ("TW-MODEL-003", None)
    assert found.to_problem()["limit"] == 100 and found.to_problem()["actual"] == 101


def test_protobuf_over_two_gib(tmp_path: Path) -> None:
    path = tmp_path / "m"
    with path.open("wb") as file:
        file.truncate(1 << 31)
    with pytest.raises(ModelError) as caught:
        # Refused for its size before a byte is parsed; the file is sparse.
        load_model(path, Limits(max_bytes=(1 << 31) - 1))
    assert caught.value.code == "TW-MODEL-003"


def test_empty_node_bomb(tmp_path: Path) -> None:
    nodes = b"\x0a\x00" * 100_000
    data = b"\x08\x08\x3a" + bytes([0xC0, 0x9A, 0x0C]) + nodes
    assert len(nodes) == 0x0C << 14 | 0x1A << 7 | 0x40
    found = _refusal(tmp_path / "m", data, Limits(max_nodes=50_000))
    assert found.code == "TW-MODEL-014"


@pytest.mark.parametrize("depth", [15, 40])
def test_deep_nesting(tmp_path: Path, depth: int) -> None:
    found = _refusal(tmp_path / "m", _deep(depth))
    assert "TW-MODEL-014" in {found.code, *(f.code for f in found.findings)}


def _cycle(model: onnx.ModelProto) -> None:
    model.graph.node[0].input[0] = "y"


def _scale(model: onnx.ModelProto) -> None:
    model.graph.initializer.append(numpy_helper.from_array(np.array(np.nan, np.float32), "s"))
    model.graph.node.append(helper.make_node("QuantizeLinear", ["y", "s"], ["q"], name="quant"))


def _short(model: onnx.ModelProto) -> None:
    model.graph.initializer[0].raw_data = model.graph.initializer[0].raw_data[:-4]


def _add(op: str, inputs: list[str], domain: str = "") -> Edit:
    return lambda m: m.graph.node.append(
        helper.make_node(op, inputs, ["extra"], name="added", domain=domain)
    )


def _rename_output(name: str) -> Edit:
    def edit(model: onnx.ModelProto) -> None:
        model.graph.node[-1].output[0] = model.graph.output[0].name = name

    return edit


CASES: list[tuple[str, Edit, str, str | None]] = [
    ("missing input", _add("Relu", ["ghost"]), "TW-MODEL-005", "added"),
    ("missing weight", lambda m: m.graph.ClearField("initializer"), "TW-MODEL-005", "mul"),
    ("cycle", _cycle, "TW-MODEL-004", "mul"),
    ("left out", _add("Mean", ["x", ""]), "TW-MODEL-005", "added"),
    ("unknown op", _add("Frobnicate", ["x"]), "TW-MODEL-008", "added"),
    ("unknown domain", _add("Gelu", ["x"], "com.acme"), "TW-MODEL-008", "added"),
    ("twice", lambda m: m.graph.node.append(m.graph.node[1]), "TW-MODEL-016", "act"),
    ("no .npz can hold it", _rename_output("y" * 65_532), "TW-MODEL-016", None),
    ("empty", lambda m: m.graph.ClearField("node"), "TW-MODEL-013", None),
    ("old opset", lambda m: setattr(m.opset_import[0], "version", 6), "TW-MODEL-009", None),
    ("new opset", lambda m: setattr(m.opset_import[0], "version", 999), "TW-MODEL-009", None),
    ("wide version", lambda m: m.opset_import.add(domain="com.acme", version=1 << 31),
     "TW-MODEL-009", None),
    ("negative version", lambda m: m.opset_import.add(domain="com.acme", version=-1),
     "TW-MODEL-009", None),
    ("ir version", lambda m: setattr(m, "ir_version", 99), "TW-MODEL-009", None),
    ("bytes", _short, "TW-MODEL-015", None),
    ("negative dim", lambda m: setattr(m.graph.input[0].type.tensor_type.shape.dim[0],
                                       "dim_value", -3), "TW-MODEL-007", None),
    ("large dim", lambda m: setattr(m.graph.input[0].type.tensor_type.shape.dim[0],
                                    "dim_value", 1 << 31), "TW-MODEL-007", None),
    ("huge dim", lambda m: m.graph.initializer[0].dims.__setitem__(0, 1 << 40),
     "TW-MODEL-007", None),
    ("nan", lambda m: setattr(m.graph.node[1].attribute[0], "f", float("nan")),
     "TW-MODEL-018", "act"),
    ("nan scale", _scale, "TW-MODEL-018", "quant"),
    ("shapes", lambda m: setattr(m.graph.input[0].type.tensor_type.shape.dim[1], "dim_value", 31),
     "TW-MODEL-006", "mul"),
    ("attribute", lambda m: setattr(m.graph.node[1].attribute[0], "name", "alpah"),
     "TW-MODEL-021", "act"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("edit", "code", "node"), [c[1:] for c in CASES], ids=[c[0] for c in CASES]
)
def test_defects(tmp_path: Path, edit: Edit, code: str, node: str | None) -> None:
    model = _model()
    edit(model)
    found = _refusal(tmp_path / "m", model.SerializeToString())
    assert (found.findings[0].code, found.place.node) == (code, node)


def test_all_problems_in_one_answer(tmp_path: Path) -> None:
    model = _model()
    for _, edit, code, _node in CASES:
        if code in ("TW-MODEL-008", "TW-MODEL-015", "TW-MODEL-018"):
            edit(model)
    found = _refusal(tmp_path / "m", model.SerializeToString())
    assert {f.code for f in found.findings} >= {"TW-MODEL-008", "TW-MODEL-015", "TW-MODEL-018"}


def test_external_data_of_a_bare_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(bytes(8192))
    assert _refusal(tmp_path / "m", _external("w.bin")).code == "TW-MODEL-010"


def _external(location: str, offset: str = "0") -> bytes:
    model = _model()
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", offset), ("length", "8192")):
        tensor.external_data.add(key=key, value=value)
    return bytes(model.SerializeToString())


def _zip(members: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return buffer.getvalue()


WEIGHTS = np.arange(2048, dtype=np.float32).tobytes()


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_bundle_with_external_data(tmp_path: Path, method: int) -> None:
    path = tmp_path / "m.zip"
    path.write_bytes(_zip({"net/a.onnx": _external("w.bin"), "net/w.bin": WEIGHTS}, method))
    tensor = load_model(path, Limits()).ir.graph.initializers["w"].const_value
    assert tensor is not None and tensor.numpy()[31, 63] == 2047


@pytest.mark.parametrize(
    ("location", "offset"),
    [("../w.bin", "0"), ("/w.bin", "0"), ("C:\\w.bin", "0"), ("v.bin", "0"), ("w.bin", "4"),
     ("w.bin", "-1"), ("w.bin", "9" * 30), ("w\0.bin", "0"), ("", "0")],
)  # fmt: skip
def test_external_data_outside_the_bundle(tmp_path: Path, location: str, offset: str) -> None:
    data = _zip({"a.onnx": _external(location, offset), "w.bin": WEIGHTS})
    assert _refusal(tmp_path / "m.zip", data).code == "TW-MODEL-010"


@pytest.mark.parametrize("name", ["../a.onnx", "/a.onnx", "x\\a.onnx", "C:a.onnx", "x//a.onnx"])
def test_bundle_names(tmp_path: Path, name: str) -> None:
    found = _refusal(tmp_path / "m.zip", _zip({name: _model().SerializeToString()}))
    assert found.code == "TW-MODEL-011"


def test_bundle_symlink(tmp_path: Path) -> None:
    info = zipfile.ZipInfo("a.onnx")
    info.external_attr = (stat.S_IFLNK | 0o777) << 16
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(info, "target")
    assert "link" in _refusal(tmp_path / "m.zip", buffer.getvalue()).message


def test_bundle_overlap(tmp_path: Path) -> None:
    data = bytearray(_zip({"a.onnx": _model().SerializeToString(), "b.bin": WEIGHTS}))
    entry = data.rfind(b"PK\x01\x02")
    data[entry + 42 : entry + 46] = struct.pack("<I", 0)
    found = _refusal(tmp_path / "m.zip", bytes(data))
    assert any("overlap" in f.message for f in found.findings)


@pytest.mark.parametrize(
    ("members", "limits"),
    [
        ({"a.onnx": b"x", "zero.bin": bytes(1 << 20)}, Limits()),
        ({f"{k}.bin": b"" for k in range(6)}, Limits(max_entries=5)),
        ({"a.onnx": b"x", "w.bin": WEIGHTS, "v.bin": WEIGHTS}, Limits(max_bytes=15_000)),
        ({"w.bin": b""}, Limits()),
        ({"a.onnx": b"x", "b.onnx": b"x"}, Limits()),
    ],
    ids=["ratio", "entries", "total", "no model", "two models"],
)
def test_bundle_limits(tmp_path: Path, members: dict[str, bytes], limits: Limits) -> None:
    assert _refusal(tmp_path / "m.zip", _zip(members), limits).code == "TW-MODEL-011"


def test_bundle_that_lies_about_its_size(tmp_path: Path) -> None:
    data = bytearray(_zip({"a.onnx": _model().SerializeToString()}))
    entry = data.rfind(b"PK\x01\x02")
    data[entry + 24 : entry + 28] = struct.pack("<I", 100)
    assert _refusal(tmp_path / "m.zip", bytes(data)).code == "TW-MODEL-011"


_DIES = """
import sys
from pathlib import Path
from worker.compiler.errors import ModelError
from worker.compiler.frontend.bind import bind
from worker.compiler.frontend.limits import Limits
from worker.compiler.frontend.load import load_model
from worker.compiler.frontend.simplify import simplify
for path in sys.argv[1:]:
    try:
        simplify(bind(load_model(Path(path), Limits()), {}))
    except ModelError as error:
        print(error.code, error.place.node)
"""


def test_a_slice_of_a_negative_dimension_does_not_end_the_process(tmp_path: Path) -> None:
    """A window of 9 over 3 places makes -5 of them, of which ONNX's inference cannot take a part:
    it aborts.  In a process of its own, so that this one is left."""
    paths = []
    for opset in (9, 10, 11, 13, 18):
        borders = {"starts": [0], "ends": [1]} if opset == 9 else {}
        reads = ["p"] if opset == 9 else ["p", "s", "e"]
        graph = helper.make_graph(
            [helper.make_node("AveragePool", ["x"], ["p"], name="pool", kernel_shape=[9, 9]),
             helper.make_node("Slice", reads, ["y"], name="cut", **borders)],
            "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 1, 3, 3])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
            [numpy_helper.from_array(np.array([k], np.int64), n) for k, n in ((0, "s"), (1, "e"))],
        )  # fmt: skip
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
        model.ir_version = 8
        paths.append(tmp_path / f"{opset}.onnx")
        onnx.save(model, paths[-1])
    done = subprocess.run(
        [sys.executable, "-c", _DIES, *paths], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["TW-MODEL-021 pool"] * len(paths)


def test_inference_of_slices_is_as_it_was() -> None:
    """The guard asks the inference that was there, values that it carries along included."""
    graph = helper.make_graph(
        [helper.make_node("Slice", ["x", "s", "e"], ["y"]),
         helper.make_node("Shape", ["y"], ["all"]),
         helper.make_node("Slice", ["all", "s", "e"], ["some"]),
         helper.make_node("ConstantOfShape", ["some"], ["z"])],
        "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [7, 4])],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in ("y", "z")],
        [numpy_helper.from_array(np.array([k], np.int64), n) for k, n in ((0, "s"), (1, "e"))],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    guard_inference()
    found = onnx.shape_inference.infer_shapes(model, True, True, True).graph.output
    dims = [[d.dim_value for d in v.type.tensor_type.shape.dim] for v in found]
    assert dims == [[1, 4], [1]]


def test_a_slice_in_a_body_is_refused_at_the_node_around_it(tmp_path: Path) -> None:
    def body(name: str, axis: int) -> onnx.GraphProto:
        reads = {f"{name}{k}": v for k, v in enumerate((0, 1, axis))}
        cut = helper.make_node("Slice", ["x", *reads], [name], name="#9#")
        return helper.make_graph(
            [cut], name, [], [helper.make_tensor_value_info(name, TensorProto.FLOAT, None)],
            [numpy_helper.from_array(np.array([v], np.int64), n) for n, v in reads.items()],
        )  # fmt: skip

    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["r"], name="first"),
         helper.make_node("If", ["c"], ["y"], name="choice", then_branch=body("a", 0),
                          else_branch=body("b", 7))],
        "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, 4]),
              helper.make_tensor_value_info("c", TensorProto.BOOL, [])],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in ("y", "r")],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    error = _refusal(tmp_path / "m.onnx", model.SerializeToString())
    assert (error.code, error.place.node) == ("TW-MODEL-006", "choice")
    assert "Unexpected axis value: 7" in error.message
