"""Real compiles compared: cold and warm, renamed, edited, on another machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import onnx
import pytest
from control_models import counted_loop, loop_in_if, scan
from onnx_models import conv_net, saved, with_host_part

import tilewright as tw
from service.compare import Comparison, ReasonKind, RowKind, Verdict, compare, read_path
from worker.compiler.cache import MemoryCache
from worker.compiler.options import CompileOptions
from worker.job.job import run_job
from worker.job.request import JobRequest, NoProgress

CHIP = "kapla-16x16"
Compile = Callable[..., Path]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Compile:
    """Compiles into a folder of its own; one cache for all, and a cold one where asked for."""
    shared = MemoryCache()

    def make(
        model: onnx.ModelProto, hardware: object = CHIP, cache: MemoryCache | None = None,
        strategy: str = "naive",
    ) -> Path:  # fmt: skip
        folder = tmp_path_factory.mktemp("compiled")
        document = {"preset": hardware} if isinstance(hardware, str) else hardware
        options = CompileOptions.from_json({"strategy": strategy, "verify": "none"})
        request = JobRequest(saved(model, folder), "net", document, options, folder / "build")  # type: ignore[arg-type]  # a document
        (folder / "out").mkdir()
        run_job(request, folder / "out", shared if cache is None else cache, NoProgress())
        return folder / "out"

    return make


@pytest.fixture(scope="module")
def base(compiled: Compile) -> Path:
    return compiled(conv_net())


def diff(base: Path, head: Path) -> Comparison:
    found = compare(read_path(base), read_path(head))
    assert sum(row.delta_cycles for row in found.layers) == found.delta_cycles
    assert sum(row.delta_cycles for row in found.causes) == found.delta_cycles
    return found


def graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """A graph, and those in its nodes."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from graphs(attribute.g)


def renamed(model: onnx.ModelProto) -> onnx.ModelProto:
    """Every node and tensor with another name, of another order by the alphabet."""
    other = onnx.ModelProto()
    other.CopyFrom(model)
    parts = [*graphs(other.graph)]
    values = [v for part in parts for v in (*part.input, *part.output, *part.initializer)]
    nodes = [node for part in parts for node in part.node]
    names = {name for node in nodes for name in (*node.input, *node.output)} - {""}
    names |= {value.name for value in values}
    new = {name: f"t{len(names) - k}" for k, name in enumerate(sorted(names))}
    for number, node in enumerate(nodes):
        node.name = f"q{len(nodes) - number}"
        for row in (node.input, node.output):
            row[:] = [new.get(name, name) for name in row]
    for value in values:
        value.name = new[value.name]
    for part in parts:
        del part.value_info[:]
    return other


@pytest.mark.parametrize("strategy", ["naive", "auto"])
def test_a_warm_compile_is_no_difference_from_a_cold_one(compiled: Compile, strategy: str) -> None:
    cache = MemoryCache()
    cold = compiled(conv_net(), cache=cache, strategy=strategy)
    warm = compiled(conv_net(), cache=cache, strategy=strategy)
    assert (cold / "run.json").read_bytes() != (warm / "run.json").read_bytes()
    found = diff(cold, warm)
    assert (found.verdict, found.reasons, found.moved) == (Verdict.SAME, (), ())
    assert found.base.missing == found.head.missing == ()
    assert found.headline.startswith("no difference: ")


@pytest.mark.parametrize("model", [conv_net, with_host_part, counted_loop, loop_in_if, scan])
def test_a_renamed_model_is_no_difference(
    compiled: Compile, model: Callable[[], onnx.ModelProto]
) -> None:
    found = diff(compiled(model()), compiled(renamed(model())))
    assert (found.verdict, found.reasons) == (Verdict.SAME, ()), found.headline
    assert found.nodes.renamed > 0 and found.nodes.added == found.nodes.removed == ()


@pytest.mark.parametrize("model", [conv_net, with_host_part])
def test_a_folder_its_bundle_and_its_report_tell_the_same(
    compiled: Compile, model: Callable[[], onnx.ModelProto]
) -> None:
    folder = compiled(model())
    (bundle,) = folder.glob("*.twb")
    alone = folder / "alone.json"
    alone.write_bytes((folder / "report.json").read_bytes())
    for other in (bundle, folder / "report.json", alone):
        found = diff(folder, other)
        assert (found.verdict, found.reasons) == (Verdict.SAME, ()), found.headline
    assert diff(folder, bundle).nodes.by == diff(folder, folder).nodes.by


def test_one_spec_field_gives_verdict_layers_and_cause(compiled: Compile, base: Path) -> None:
    slow: dict[str, Any] = {
        "inherits": CHIP, "name": "slow",
        "levels": [{"name": "DRAM", "read_bytes_per_cycle": 1.0}],
    }  # fmt: skip
    found = diff(base, compiled(conv_net(), slow))
    assert found.verdict is Verdict.SLOWER
    specs = [reason for reason in found.reasons if reason.kind is ReasonKind.SPEC]
    assert specs[0].where == "/levels/DRAM/read_bytes_per_cycle"
    assert specs[0].cycles is not None and specs[0].cycles > 0
    assert found.causes[0].cause == "port:DRAM.read"
    assert "port:DRAM.read" in found.headline and specs[0].where in found.headline
    assert all(reason.kind is not ReasonKind.MODEL for reason in found.reasons)
    first = found.moved[0]
    assert first.causes[0].cause == "port:DRAM.read" and first.delta_cycles > 0


def test_an_inserted_node_shows_as_that(compiled: Compile, base: Path) -> None:
    model = conv_net()
    at = next(k for k, node in enumerate(model.graph.node) if node.name == "pool")
    extra = onnx.helper.make_node("Sigmoid", ["a1"], ["s1"], name="extra")
    model.graph.node[at].input[0] = "s1"
    model.graph.node.insert(at, extra)
    found = diff(base, compiled(model))
    assert (found.nodes.added, found.nodes.removed) == (("extra",), ())
    assert [r.sentence for r in found.reasons if r.kind is ReasonKind.MODEL] == [
        "added: Sigmoid extra"
    ]
    assert RowKind.ADDED in {row.kind for row in found.layers}


@pytest.mark.parametrize(
    ("edit", "expected"),
    [
        ("weights", "weights of head"),
        ("attribute", "attribute pads of block/conv: [1, 1, 1, 1] -> [2, 2, 2, 2]"),
    ],
)
def test_a_changed_node_is_named(compiled: Compile, base: Path, edit: str, expected: str) -> None:
    model = conv_net()
    if edit == "weights":
        weights = next(each for each in model.graph.initializer if each.name == "w3")
        array = onnx.numpy_helper.to_array(weights) * 2
        weights.CopyFrom(onnx.numpy_helper.from_array(array, "w3"))
    else:
        conv = next(node for node in model.graph.node if node.name == "block/conv")
        conv.attribute.append(onnx.helper.make_attribute("dilations", [2, 2]))
        (pads,) = (each for each in conv.attribute if each.name == "pads")
        pads.ints[:] = [2, 2, 2, 2]
    found = diff(base, compiled(model))
    sentences = [r.sentence for r in found.reasons if r.kind is ReasonKind.MODEL]
    assert expected in sentences
    assert found.nodes.added == found.nodes.removed == ()
    if edit == "weights":
        assert found.verdict is Verdict.SAME


def test_a_changed_body_of_a_loop_is_an_attribute_of_the_loop(compiled: Compile) -> None:
    edited = counted_loop()
    body = next(part for part in graphs(edited.graph) if part is not edited.graph)
    (node, *_) = (each for each in body.node if each.op_type == "Relu")
    node.op_type = "Sigmoid"
    found = diff(compiled(counted_loop()), compiled(edited))
    whats = [r.where for r in found.reasons if r.kind is ReasonKind.MODEL]
    assert "attribute body" in whats


def test_the_python_module_compares_results_and_paths(base: Path) -> None:
    found = tw.compare(tw.load(base), base)
    assert isinstance(found, tw.Comparison)
    assert found.is_same and repr(found).startswith("<Comparison: no difference: ")
    with pytest.raises(tw.InputError) as refusal:
        tw.compare(base, base / "nothing")
    assert refusal.value.code == "TW-CLI-001"
