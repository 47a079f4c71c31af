"""The gate file: what is refused, where, with which words; its schema says the same."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

import jsonschema_rs
import pytest
import yaml

from service.gate.file import ARRAYS, UNLINKED, GateFile
from service.gate.places import line_of
from service.gate.reading import read_gate, refused
from service.gate.schema import gate_json_schema
from service.gate.selection import select, unmatched_selectors
from service.gate.tree import Folder, matches
from worker.compiler.errors import InputError
from worker.compiler.options import CompileOptions

GOOD = """\
schema: 1
models:
  - path: models/*.onnx
    symbols: {batch: 8}
  - {path: net.zip, name: net, hardware: [edge], calibration: in.npz, options: {precision: i8}}
hardware:
  - preset: kapla-edge
  - {spec: hw/big.yaml, name: edge, options: {effort: fast}}
options: {objective: energy, strategy: auto}
baseline: {source: file, path: base.json, branch: main}
budgets:
  - {figure: latency_ms, at_most: 5}
  - {figure: "peak_level_kib:GBUF", at_most: 64, at_least: 1}
regressions:
  - {figure: latency_ms, percent: 1, node: "layer4/*", cause: "port:*"}
  - {figure: energy_mj, absolute: 0.5}
changes: {new: warn}
waivers:
  - {check: budget, model: net, owner: Ada, reason: why, expires: 2026-12-31}
"""


def refusals(text: str) -> list[tuple[str, str]]:
    """(pointer, message) of every finding."""
    with pytest.raises(InputError) as caught:
        read_gate(text, "gate.yaml")
    assert caught.value.code == "TW-GATE-001"
    return [(str(f.pointer), f.message) for f in caught.value.findings]


def test_everything_that_there_is_can_be_written() -> None:
    gate = read_gate(GOOD, "gate.yaml")
    assert gate.models[0].symbols == {"batch": 8}
    assert gate.waivers[0].expires.isoformat() == "2026-12-31"
    document = json.loads(json.dumps(yaml.safe_load(GOOD), default=str))
    assert read_gate(json.dumps(document), "gate.json") == gate  # JSON is YAML, days are texts
    assert jsonschema_rs.validator_for(gate_json_schema()).is_valid(document)


BAD = [
    ("schema: 1", "schema: 2", "/schema", 1, "schema must be 1"),
    ("schema: 1\n", "", "/schema", 1, "schema is missing"),
    ("models/*.onnx", "/models/*.onnx", "/models/0/path", 3, "must be relative"),
    ("models/*.onnx", "../m.onnx", "/models/0/path", 3, "must be relative"),
    ("symbols: {batch: 8}", "symbol: {batch: 8}", "/models/0/symbol", 4, "did you mean symbols?"),
    ("symbols: {batch: 8}", "symbols: {batch: 0}", "/models/0/symbols/batch", 4,
     "greater than or equal to 1"),
    ("symbols: {batch: 8}", "symbols: {b: 8}\n    options: {symbols: {b: 8}}",
     "/models/0/options/symbols", 5, "given twice"),
    ("hardware: [edge]", "hardware: []", "/models/1/hardware", 5, "at least 1 item"),
    ("precision: i8", "precision: i7", "/models/1/options/precision", 5, "one of native"),
    ("precision: i8", "calibration: x", "/models/1/options/calibration", 5, "is a file"),
    ("precision: i8", "link: x", "/models/1/options/link", 5, "links none"),
    ("effort: fast", "effrt: fast", "/hardware/1/options/effrt", 8, "unknown option 'effrt'"),
    ("objective: energy", "objective: speed", "/options/objective", 9, "one of latency"),
    ("strategy: auto", "strategy: best", "/options/strategy", 9, "strategy must be one of"),
    ("- preset: kapla-edge", "- {preset: kapla-edge, spec: a.yaml}", "/hardware/0", 7,
     "give a preset or a spec"),
    ("source: file", "source: files", "/baseline", 10, "baseline"),
    ("source: file, path: base.json", "source: merge-base", "/baseline/branch", 10, ""),
    ("latency_ms, at_most", "latency, at_most", "/budgets/0/figure", 12, "there is no figure"),
    ("at_most: 5", "at_mos: 5", "/budgets/0/at_mos", 12, "did you mean at_most?"),
    ("at_most: 5", "node: a", "/budgets/0", 12, "has at_most or at_least"),
    ("at_most: 5", "at_most: -5", "/budgets/0/at_most", 12, "greater than or equal to 0"),
    ("at_most: 5", "at_most: '5'", "/budgets/0/at_most", 12, "valid number"),
    ("at_most: 64, at_least: 1", "at_most: 1, at_least: 64", "/budgets/1", 13, "nothing is within"),
    ("at_most: 64, at_least: 1", "at_most: 1, node: a", "/budgets/1", 13, "leave node out"),
    ("absolute: 0.5", "absolute: 0.5, cause: launch", "/regressions/1", 16, "leave cause out"),
    (", absolute: 0.5", "", "/regressions/1", 16, "0 allows nothing"),
    ("new: warn", "new: maybe", "/changes/new", 17, "new must be 'fail', 'warn' or 'ignore'"),
    ("check: budget", "check: budgets", "/waivers/0/check", 19, "check must be 'budget'"),
    ("owner: Ada, ", "", "/waivers/0/owner", 19, "owner is missing"),
    ("expires: 2026-12-31", "expires: soon", "/waivers/0/expires", 19, "write YYYY-MM-DD"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "pointer", "line", "words"), BAD)
def test_what_is_wrong_is_refused_at_its_line(
    old: str, new: str, pointer: str, line: int, words: str
) -> None:
    text = GOOD.replace(old, new, 1)
    assert text != GOOD
    if old == "source: file, path: base.json":
        text = text.replace("source: merge-base, branch: main", "source: merge-base")
    found = dict(refusals(text))
    assert pointer in found, found
    assert found[pointer].startswith(f"gate.yaml:{line}: ")
    assert words in found[pointer]


def test_all_findings_come_at_once() -> None:
    text = GOOD.replace("at_most: 5", "at_mos: 5").replace("owner: Ada, ", "")
    assert {pointer for pointer, _ in refusals(text)} >= {"/budgets/0/at_mos", "/waivers/0/owner"}


def test_regressions_need_a_baseline() -> None:
    text = GOOD.replace("baseline: {source: file, path: base.json, branch: main}\n", "")
    assert refusals(text) == [("", "gate.yaml:1: the gate file: regressions need a baseline")]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "this one is empty"),
        ("- a", "this one is a list"),
        ("schema: 1\nschema: 1", "key 'schema' is given twice at line 2"),
        ("a: [", "line 2"),
        ("a: &a [*a]", "holds itself"),
        ("schema: .nan", "is not a number"),
    ],
)
def test_texts_that_are_no_document(text: str, words: str) -> None:
    ((pointer, message),) = refusals(text)
    assert pointer == ""
    assert words in message
    assert "hardware document" not in message


def test_the_schema_refuses_what_the_reader_refuses() -> None:
    """Of the bad documents above, those that are wrong by shape alone."""
    validator = jsonschema_rs.validator_for(gate_json_schema())
    beyond = {"must be relative", "given twice", "give a preset", "nothing is within",
              "leave node", "leave cause", "0 allows", "has at_most or", "strategy must be",
              "write YYYY"}  # fmt: skip
    judged = 0
    for old, new, _, _, words in BAD:
        document = yaml.safe_load(GOOD.replace(old, new, 1))
        document = json.loads(json.dumps(document, default=str))
        if not any(words.startswith(said) for said in beyond) and words:
            judged += 1
            assert not validator.is_valid(document), (old, new)
    assert judged > 12


def test_the_schema_completes_every_option_of_compile() -> None:
    schema = gate_json_schema()
    options = schema["$defs"]["Options"]["properties"]
    assert set(options) == {f.name for f in fields(CompileOptions)} - {*ARRAYS, *UNLINKED}
    validator = jsonschema_rs.validator_for(schema)
    document = yaml.safe_load("schema: 1\nmodels: [{path: a}]\nhardware: [{preset: b}]")
    defaults = {
        k: v for k, v in CompileOptions().to_json().items() if k not in {*ARRAYS, *UNLINKED}
    }
    assert validator.is_valid({**document, "options": defaults})
    assert not validator.is_valid({**document, "options": {"objective": "speed"}})
    for name, described in schema["properties"].items():
        assert name in ("schema", "budgets", "regressions", "waivers", "changes", "models",
                        "hardware") or described.get("description"), name  # fmt: skip
    assert set(schema["properties"]) == {f.alias or n for n, f in GateFile.model_fields.items()}


def test_a_pointer_has_the_line_of_its_key_or_item() -> None:
    assert line_of(GOOD, "/budgets/1") == 13
    assert line_of(GOOD, "/models/1/options/precision") == 5
    assert line_of(GOOD, "/changes/host") == 17  # its parent, where it is not there
    assert line_of("levels:\n  - name: A\n  - name: B\n    size: 1", "/levels/B/size") == 4
    assert line_of("{", "/a") == 1
    assert line_of('{"a~b": 1,\n "c/d": 2}', "/c~1d") == 2


@pytest.mark.parametrize(
    ("path", "pattern", "is_match"),
    [
        ("a/b.onnx", "a/*.onnx", True),
        ("a/c/b.onnx", "a/*.onnx", False),
        ("a/c/b.onnx", "a/**/*.onnx", True),
        ("a/b.onnx", "a/**/*.onnx", True),
        ("b.onnx", "**/*.onnx", True),
        ("a/b.onnx", "a/?.onnx", True),
        ("a/b.onnx", "A/b.onnx", False),
        ("a/b", "a", False),
    ],
)
def test_globs(path: str, pattern: str, is_match: bool) -> None:
    assert matches(path, pattern) is is_match


SELECTION = """
schema: 1
options: {objective: energy, effort: fast, symbols: {n: 1}}
models:
  - path: m/*.onnx
    symbols: {batch: 4}
  - {path: big.onnx, hardware: ["e*"], options: {effort: thorough, objective: offchip}}
hardware:
  - {preset: kapla-edge, options: {precision: f16, objective: edp}}
  - spec: hw/*.yaml
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("m/b.onnx", "m/a.onnx", "m/a.txt", "big.onnx", "hw/edge.yaml", "hw/x.yml"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    return tmp_path


def test_models_meet_chips_in_the_order_of_the_file(folder: Path) -> None:
    gate = read_gate(SELECTION, "gate.yaml")
    pairs, findings = select(gate, Folder(folder))
    assert not findings
    assert [pair.label for pair in pairs] == [
        "a on kapla-edge", "a on edge", "b on kapla-edge", "b on edge", "big on edge",
    ]  # fmt: skip
    assert pairs[0].options == {  # the file's, then the chip's, then the model's
        "objective": "edp", "effort": "fast", "precision": "f16", "symbols": {"n": 1, "batch": 4},
    }  # fmt: skip
    assert pairs[4].options["effort"] == "thorough"
    crossed = read_gate(SELECTION.replace('["e*"]', '["*"]'), "gate.yaml")
    on_preset = select(crossed, Folder(folder))[0][4]
    assert on_preset.label == "big on kapla-edge"
    assert on_preset.options["objective"] == "offchip"  # the chip says edp
    assert (pairs[1].spec, pairs[1].preset, pairs[1].path) == ("hw/edge.yaml", None, "m/a.onnx")


SELECTION_REFUSALS = [
    ("m/*.onnx", "n/*.onnx", "/models/0/path", "no file is n/*.onnx"),
    ("m/*.onnx\n", "m/*.onnx\n    name: one\n", "/models/0/name", "one name is not enough"),
    ("path: big.onnx", "path: big.onnx, name: a", "/models", "two models are called a"),
    ("path: big.onnx", "path: big.onnx, inputs: i.npz", "/models/1/inputs", "no file is i.npz"),
    ('["e*"]', '["e*", f]', "/models/1/hardware/1", "no chip is called 'f'"),
    ("preset: kapla-edge", "preset: kapla", "/hardware/0/preset", "there is no preset kapla"),
    ("hw/*.yaml", "hv/*.yaml", "/hardware/1/spec", "no file is hv/*.yaml"),
    ("preset: kapla-edge,", "preset: kapla-edge, name: edge,", "/hardware", "called edge"),
    ("effort: thorough,", "require_cache: true,", "/models/1", "exclude each other"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "pointer", "words"), SELECTION_REFUSALS)
def test_what_no_tree_has_is_refused(
    folder: Path, old: str, new: str, pointer: str, words: str
) -> None:
    text = SELECTION.replace(old, new, 1)
    if "require_cache" in new:
        text = text.replace("objective: energy,", "no_cache: true,")
    gate = read_gate(text, "gate.yaml")
    _, findings = select(gate, Folder(folder))
    error = refused(findings, "gate.yaml", text)
    assert any(f.pointer == pointer and words in f.message for f in error.findings), error.findings
    assert error.to_problem()["exit_code"] == 3


def test_a_rule_for_no_pair_is_refused(folder: Path) -> None:
    text = SELECTION + "budgets: [{figure: kernels, at_most: 1, model: big, hardware: kapla-*}]"
    gate = read_gate(text, "gate.yaml")
    pairs, _ = select(gate, Folder(folder))
    (finding,) = unmatched_selectors(gate, pairs)
    assert finding.pointer == "/budgets/0"
    assert "no pair is big on kapla-*" in finding.message
