"""The three code formats of a region say the same: as graph, as C and as a stream."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper
from region_bundles import Array, bundled, made, members, region_call, region_library
from safetensors.numpy import load

from worker.compiler.assembly.packing import nested_models, programs
from worker.compiler.frontend.slice import host_submodel
from worker.compiler.isa.binary import decode_program
from worker.compiler.isa.text import print_program
from worker.compiler.package.emulator import Arena, Emulator
from worker.compiler.package.executable import level_specs
from worker.compiler.package.region_code import EntryRole, RegionCode
from worker.compiler.package.stream.codec import decode_stream, encode_stream
from worker.compiler.package.stream.text import print_region
from worker.verification.inputs import seeded_inputs

NAMES = ("conv", "host_between", "int8", "view", "loop")
_ELEMENT = {
    "f32": onnx.TensorProto.FLOAT, "i64": onnx.TensorProto.INT64, "i32": onnx.TensorProto.INT32,
    "i8": onnx.TensorProto.INT8, "u8": onnx.TensorProto.UINT8, "bool": onnx.TensorProto.BOOL,
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("regions")


def rows_of(files: Mapping[str, bytes]) -> list[dict[str, Any]]:
    rows = json.loads(files["manifest.json"])["regions"]
    assert rows
    return list(rows)


def rebuilt(document: dict[str, Any], files: Mapping[str, bytes]) -> onnx.ModelProto:
    """An ONNX model from the JSON alone, written against FORMATS.md, not against our classes."""
    entries = document["entries"]
    stored = {name: load(data) for name, data in files.items() if name.endswith(".safetensors")}

    def value(where: dict[str, Any]) -> Array:
        array = stored[where["member"]][where["tensor"]]
        assert hashlib.sha256(array.tobytes()).hexdigest() == where["sha256"]
        assert list(array.shape) == where["shape"]
        return array

    def attribute(row: dict[str, Any]) -> onnx.AttributeProto:
        if row["type"] == "tensor":
            return helper.make_attribute(row["name"], numpy_helper.from_array(value(row["value"])))
        given = row["value"]
        if row["type"] in ("float", "floats"):
            given = [float(v) for v in given] if isinstance(given, list) else float(given)
        kind = onnx.AttributeProto.AttributeType.Value(row["type"].upper())
        return helper.make_attribute(row["name"], given, attr_type=kind)

    def info(number: int) -> onnx.ValueInfoProto:
        entry = entries[number]
        return helper.make_tensor_value_info(
            entry["name"], _ELEMENT[entry["dtype"]], entry["shape"]
        )

    nodes = []
    for row in document["nodes"]:
        sides = [
            ["" if k is None else entries[k]["name"] for k in row[side]]
            for side in ("inputs", "outputs")
        ]
        node = helper.make_node(row["op_type"], *sides, name=row["name"], domain=row["domain"])
        node.attribute.extend(attribute(each) for each in row["attributes"])
        nodes.append(node)
    constants = [
        numpy_helper.from_array(value(e["stored"]), e["name"])
        for e in entries
        if e["role"] == "constant"
    ]
    graph = helper.make_graph(
        nodes, "region", [info(k) for k in document["inputs"]],
        [info(k) for k in document["outputs"]], constants,
    )  # fmt: skip
    imports = [helper.make_opsetid(d, v) for d, v in document["opsets"].items()]
    return helper.make_model(graph, opset_imports=imports, ir_version=9)


def run(model: bytes, names: list[str], feeds: Mapping[str, Array]) -> dict[str, Array]:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return dict(zip(names, session.run(names, dict(feeds)), strict=True))


def whole_values(name: str, folder: Path, wanted: list[str]) -> dict[str, Array]:
    """Values of the whole compiled model on seeded inputs, by ONNX Runtime."""
    model = made(name, folder).model
    nodes, inputs = list(model.ir.graph), seeded_inputs(model, 3)
    known = {n: inputs[n] for n in wanted if n in inputs}
    others = [n for n in wanted if n not in known]
    if not others:
        return known
    return {**known, **run(host_submodel(model, nodes, list(inputs), others), others, inputs)}


def own_regions(files: Mapping[str, bytes]) -> Iterator[tuple[dict[str, Any], RegionCode]]:
    """Regions of the model itself, as (JSON, decoded stream)."""
    for row in rows_of(files):
        if not row["program"]:
            yield json.loads(files[row["graph"]]), decode_stream(files[row["stream"]])


@pytest.mark.parametrize("name", NAMES)
def test_the_json_graph_is_the_region(name: str, folder: Path) -> None:
    files = members(bundled(name, folder))
    for document, _ in own_regions(files):
        ends = {
            side: [document["entries"][k]["name"] for k in document[side]]
            for side in ("inputs", "outputs")
        }
        model = rebuilt(document, files)
        onnx.checker.check_model(model, full_check=True)
        reference = whole_values(name, folder, ends["inputs"] + ends["outputs"])
        feeds = {n: reference[n] for n in ends["inputs"]}
        got = run(model.SerializeToString(), ends["outputs"], feeds)
        for output in ends["outputs"]:
            np.testing.assert_array_equal(got[output], reference[output], err_msg=output)


def test_graphs_name_composites_quantisation_and_layouts(folder: Path) -> None:
    files = members(bundled("int8", folder))
    ((document, _),) = own_regions(files)
    entries, nodes = document["entries"], document["nodes"]
    assert {c["kind"] for c in document["composites"]} == {"cluster"}
    for composite in document["composites"]:
        assert {nodes[k]["composite"] for k in composite["nodes"]} <= {
            c["id"] for c in document["composites"]
        }
    sides = {"QuantizeLinear": "outputs", "DequantizeLinear": "inputs"}
    quantized = {nodes[k][sides[n["op_type"]]][0] for k, n in enumerate(nodes)
                 if n["op_type"] in sides}  # fmt: skip
    assert quantized == {e["id"] for e in entries if e["quantization"] is not None}
    constants = {
        n: array
        for member in ("weights.safetensors", "regions/constants.safetensors")
        for n, array in load(files[member]).items()
    }
    for number in quantized:
        row = entries[number]["quantization"]
        scale = constants[entries[row["scale"]]["name"]]
        assert row["scale_values"] == [float(v) for v in scale.reshape(-1)]
        assert (row["axis"] is None) == (scale.shape == ())
    packed = [r for r in document["layouts"] if r["kind"] == "prepacked_constant"]
    assert packed
    for row in packed:
        stored = entries[row["entry"]]["stored"]
        assert stored["member"] == "regions/constants.safetensors"  # kernels have another order


def test_shared_weights_are_stored_once(folder: Path) -> None:
    files = members(bundled("conv", folder))
    ((document, _),) = own_regions(files)
    where = {e["name"]: e["stored"]["member"] for e in document["entries"] if e["stored"]}
    assert set(where.values()) == {"weights.safetensors"}
    assert set(where) == set(load(files["weights.safetensors"]))


@pytest.mark.parametrize("name", NAMES)
def test_c_functions_give_the_bytes_of_single_calls(name: str, folder: Path) -> None:
    files = members(bundled(name, folder))
    library = region_library(bundled(name, folder), folder)
    model = made(name, folder)
    for document, code in own_regions(files):
        outside = [document["entries"][k]["name"] for k in document["inputs"]]
        values = {**whole_values(name, folder, outside), **load(files["weights.safetensors"])}
        found = []
        for through_c in (False, True):
            emulator = Emulator(library, level_specs(model.machine), code.units, poison=True)
            arenas = [Arena(entry.size_bytes) for entry in code.entries]
            for entry, arena in zip(code.entries, arenas, strict=True):
                if entry.role in (EntryRole.INPUT, EntryRole.CONSTANT):
                    arena.buffer()[: entry.size_bytes] = values[entry.name].tobytes()
            addresses = [
                arenas[k if entry.alias_of is None else entry.alias_of].address
                for k, entry in enumerate(code.entries)
            ]
            if through_c:
                assert region_call(library, code.function, emulator.machine, addresses) == 0
            else:
                for call in code.calls:
                    emulator.call(
                        code.kernels[call.unit], code.units[call.unit],
                        [addresses[k] for k in call.entries],
                    )  # fmt: skip
            found.append([bytes(arena.buffer()) for arena in arenas])
        assert found[0] == found[1]
        assert any(any(content) for content in found[0])


def test_a_c_function_stops_at_the_first_fault(folder: Path) -> None:
    files = members(bundled("view", folder))
    library = region_library(bundled("view", folder), folder)
    ((_, code),) = own_regions(files)
    emulator = Emulator(library, level_specs(made("view", folder).machine), code.units)
    arenas = [Arena(entry.size_bytes) for entry in code.entries]
    addresses = [arena.address for arena in arenas]
    for level in range(16):
        emulator.machine.capacity_bytes[level] = 0
    assert region_call(library, code.function, emulator.machine, addresses) == 1
    assert emulator.machine.num_faults > 0


@pytest.mark.parametrize("name", NAMES)
def test_the_stream_is_the_program_it_came_from(name: str, folder: Path) -> None:
    files = members(bundled(name, folder))
    compiled = list(programs(made(name, folder)))
    folders = [r["program"] for r in rows_of(files)]
    for row in rows_of(files):
        data = files[row["stream"]]
        code = decode_stream(data)
        assert encode_stream(code) == data
        assert (code.index, code.target, code.function) == (
            row["index"], row["target"], row["function"],
        )  # fmt: skip
        prefix = row["program"]
        program = decode_program(files[f"{prefix}program.bin"])
        texts = {unit.signature: print_program(unit) for unit in program.units}
        shown = print_region(code)
        for unit in code.units:
            assert print_program(unit) == texts[unit.signature]
            assert texts[unit.signature] in shown
    assert len(set(folders)) == len([c for c in compiled if c.units])
    assert len(compiled) == 1 + len(nested_models(made(name, folder)))


def test_formats_of_nested_programs_have_their_own_names(folder: Path) -> None:
    files = members(bundled("loop", folder))
    rows = rows_of(files)
    assert {row["program"] for row in rows} == {"", "bodies/0/"}
    assert len({row["function"] for row in rows}) == len(rows)
    for row in rows:
        assert {row["graph"], row["c"], row["stream"]} <= set(files)
        assert json.loads(files[row["graph"]])["target"] == row["target"]
        assert row["function"] in files[f"{row['program']}regions/regions.h"].decode()


def test_every_call_of_the_program_is_in_one_region(folder: Path) -> None:
    files = members(bundled("host_between", folder))
    calls = json.loads(files["model/graph.json"])["calls"]
    kernels = [c["onnx_nodes"] for c in calls if c["type"] == "kernel"]
    streams = [code for _, code in own_regions(files)]
    assert len(streams) > 1
    assert [list(call.onnx_nodes) for code in streams for call in code.calls] == kernels


@pytest.mark.parametrize("name", ["int8", "loop"])
def test_bundles_with_regions_are_deterministic(name: str, folder: Path) -> None:
    first = members(bundled(name, folder))
    made.cache_clear()
    again = folder / "again"
    again.mkdir(exist_ok=True)
    assert members(bundled(name, again)) == first
