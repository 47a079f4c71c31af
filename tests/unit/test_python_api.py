"""The Python module without a compile: its names, what it refuses, machines, errors, tables."""

from __future__ import annotations

import doctest
import importlib
import json
import sys
import typing
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import onnx_models
import pytest
import typer.main
from test_imports import COMPILER, SERVER, STORE, loaded

import tilewright as tw
from service.cli.main import app
from service.settings import Settings
from tilewright.html import MOST_LAYERS, result_page
from tilewright.options import Options, order_of
from worker.compiler.error_catalog import ERROR_CATALOG
from worker.compiler.options import CompileOptions
from worker.sandbox.problems import error_of

REPO = Path(__file__).parents[2]
NET = onnx_models.conv_net()
SHORT = tw.Shortfall("memory:L1", 9, 4, "bytes", (("weights", 9),), ("Raise L1 to 9 bytes.",))


# --- the module -----------------------------------------------------------------------------------


def test_importing_it_imports_nothing_else(tmp_path: Path) -> None:
    found = loaded("import tilewright; dir(tilewright)", tmp_path)
    assert not found & (COMPILER | SERVER | STORE | {"pydantic", "yaml", "msgspec", "worker"})


def test_an_error_can_be_named_without_the_compiler(tmp_path: Path) -> None:
    found = loaded("import tilewright as tw; tw.CompilerError, tw.Machine, tw.ApiError", tmp_path)
    assert "worker" in found
    assert not found & (COMPILER | STORE)


@pytest.mark.parametrize("name", tw.__all__)
def test_every_public_name_is_there_and_says_what_it_is(name: str) -> None:
    found = getattr(tw, name)
    assert found.__doc__
    assert name in dir(tw)


def test_other_names_are_refused() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'compiel'"):
        _ = tw.compiel  # type: ignore[attr-defined]  # it is misspelt
    assert tw.__version__


def test_types_are_shipped_with_every_package() -> None:
    for package in ("tilewright", "service", "worker"):
        assert (REPO / package / "py.typed").exists()
    assert '"py.typed"' in (REPO / "pyproject.toml").read_text()


def test_examples_of_machines_are_true() -> None:
    module = importlib.import_module("tilewright.machine")
    assert doctest.testmod(module).attempted >= 6
    assert doctest.testmod(module).failed == 0


# --- options --------------------------------------------------------------------------------------


def test_options_are_those_of_jobs_and_of_the_command_line() -> None:
    hints = {name: hint.__forward_arg__ for name, hint in Options.__annotations__.items()}
    assert set(hints) == {f.name for f in fields(CompileOptions)} | {"variant"}
    group: Any = typer.main.get_command(app)
    flags = {p.name for p in group.commands["compile"].params}
    own = {"ranges", "percentile", "correct", "keep_float", "min_sqnr"}
    assert (set(hints) - {"strategy_options", "quantization"}) | own <= flags
    for name in ("objective", "effort", "precision", "partition", "verify"):
        kind = next(f.type for f in fields(CompileOptions) if f.name == name)
        members = getattr(importlib.import_module("worker.compiler.options"), str(kind))
        literal = typing.get_type_hints(type("_", (), {"__annotations__": {"a": hints[name]}}),
                                        vars(typing))["a"]  # fmt: skip
        assert typing.get_args(literal) == tuple(str(m) for m in members)


@pytest.mark.parametrize(
    ("options", "pointer"),
    [
        ({"speed": 3}, "/options/speed"),
        ({"objective": "speed"}, "/options/objective"),
        ({"strategy": "welder"}, "/options/strategy"),
        ({"variant": "v1"}, "/options/variant"),
        ({"strategy": "graphturbo", "variant": "v9"}, "/options/strategy_options/graphturbo"),
        ({"strategy_options": {"graphturbo": {"nope": 1}}}, "/options/strategy_options/graphturbo"),
        ({"strategy": "naive", "variant": "v1"}, "/options/strategy_options/naive"),
        ({"symbols": {"batch": 0}}, "/options/symbols"),
        ({"inputs": 3}, "/options/inputs"),
        ({"inputs": {"x": [1.0]}, "verify": "none"}, "/options/inputs"),
        ({"no_cache": True, "require_cache": True}, "/options/require_cache"),
    ],
)
def test_options_that_do_not_exist_are_refused(
    options: dict[str, Any], pointer: str, tmp_path: Path
) -> None:
    with pytest.raises(tw.OptionError) as caught:
        tw.compile(NET, "a100", output=tmp_path / "out", **options)
    assert caught.value.code == "TW-OPT-001"
    places = [finding.pointer for finding in caught.value.findings] or [caught.value.place.pointer]
    assert [place for place in places if place and place.startswith(pointer)]
    assert not (tmp_path / "out").exists()


def test_an_order_is_what_the_command_line_would_give(tmp_path: Path) -> None:
    options = {"strategy": "graphturbo", "variant": "v1", "inputs": {"x": np.ones(3)}, "seed": 4}
    order = order_of(NET, "a100", options, tmp_path / "out", tmp_path)
    assert order.model == tmp_path / "conv_net.onnx"
    assert order.hardware == {"preset": "a100"}
    assert order.options["strategy_options"] == {"graphturbo": {"variant": "v1"}}
    assert order.inputs is not None
    assert len(order.options["inputs"]) == 64
    with np.load(order.inputs) as arrays:
        assert arrays["x"].tolist() == [1, 1, 1]
    assert CompileOptions.from_json(order.options).to_json() == order.options


@pytest.mark.parametrize("model", ["nowhere.onnx", Path("nowhere.onnx")])
def test_a_model_that_is_not_there(model: str | Path, tmp_path: Path) -> None:
    with pytest.raises(tw.InputError) as caught:
        tw.compile(model, "a100", output=tmp_path)
    assert caught.value.code == "TW-CLI-001"


# --- machines -------------------------------------------------------------------------------------


def test_a_machine_comes_from_a_preset_a_file_or_a_document() -> None:
    from_file = tw.Machine(REPO / "examples" / "my_chip.yaml")
    assert (from_file.name, from_file["/clock_hz"]["tag"]) == ("my-chip", "G")
    assert from_file == tw.Machine(from_file.document)
    assert tw.Machine({"inherits": "a100", "name": "x"}).digest == tw.Machine("a100").digest
    assert "a100" in tw.Machine.presets()


def test_one_field_is_replaced_and_the_first_machine_stays(tmp_path: Path) -> None:
    edge = tw.Machine("kapla-edge")
    faster = edge.with_field("/levels/DRAM/read_bytes_per_cycle", 99.5, name="faster")
    assert edge["/levels/0/read_bytes_per_cycle"] != 99.5
    assert (faster.name, faster["/levels/0/read_bytes_per_cycle"]) == ("faster", 99.5)
    assert "99.5 read" in faster.describe()
    assert faster.digest != edge.digest
    faster.save(tmp_path / "faster.yaml")
    assert tw.Machine(tmp_path / "faster.yaml").digest == faster.digest


@pytest.mark.parametrize("pointer", ["/clok_hz", "/levels/L9/capacity_bytes", "/clock_hz/x/y", ""])
def test_a_field_that_is_not_there_is_refused(pointer: str) -> None:
    with pytest.raises(tw.SpecError) as caught:
        tw.Machine("kapla-edge").with_field(pointer, 1)
    assert (caught.value.code, caught.value.place.pointer) == ("TW-SPEC-001", pointer)


def test_defects_are_listed_and_shown_and_nothing_is_built_of_them() -> None:
    broken = tw.Machine("kapla-edge").with_field("/clock_hz", -1)
    assert [f.pointer for f in broken.lint()] == ["/clock_hz"]
    assert "/clock_hz" in broken._repr_html_()
    with pytest.raises(tw.SpecError):
        broken.describe()


def test_an_unknown_preset_is_told_with_the_nearest() -> None:
    with pytest.raises(tw.SpecError, match="a100") as caught:
        tw.Machine("a1000")
    assert caught.value.code == "TW-SPEC-003"


# --- errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", ERROR_CATALOG)
def test_an_error_survives_its_problem_document(code: str) -> None:
    finding = tw.Finding(code, "it is", "/a", "n", [1, 2], "three")
    told = tw.CompilerError(
        code, "what", stage="report", node="n", pointer="/a", attribute="axis", limit=3, actual=4,
        remedy="Do this.", findings=(finding,),
    ).to_problem()  # fmt: skip
    back = error_of(json.loads(json.dumps(told)))
    assert back.to_problem() == told
    assert isinstance(back, tw.CompilerError)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("TW-MODEL-004", tw.ModelError),
        ("TW-SPEC-001", tw.SpecError),
        ("TW-OPT-001", tw.OptionError),
        ("TW-RUN-002", tw.InputError),
        ("TW-VERIFY-001", tw.SimulationError),
        ("TW-INT-002", tw.InternalError),
    ],
)
def test_codes_have_classes(code: str, kind: type[tw.CompilerError]) -> None:
    assert type(error_of(tw.CompilerError(code, "what").to_problem())) is kind


def test_what_does_not_fit_says_what_is_short() -> None:
    back = error_of(tw.Infeasible("too much", SHORT, node="conv", stage="schedule").to_problem())
    assert isinstance(back, tw.Infeasible)
    assert back.shortfall == SHORT
    assert (back.place.node, back.limit, back.actual) == ("conv", 4, 9)


def test_documents_of_other_makers_are_errors_all_the_same() -> None:
    assert error_of({"code": "TW-NEW-001", "detail": "new"}).message == "TW-NEW-001: new"
    odd = error_of({"code": "TW-SIM-001", "detail": 3, "errors": [1, {"code": "X"}], "node": []})
    assert (odd.code, odd.message, [f.code for f in odd.findings]) == ("TW-SIM-001", "", ["X"])


# --- tables ---------------------------------------------------------------------------------------


def report(count: int) -> dict[str, Any]:
    rows: list[dict[str, Any]] = [
        {"index": k, "op_type": "<b>Conv</b>", "cycles_total": k, "bytes_L1_read": 1}
        for k in range(count)
    ]
    rows.append({"index": count, "op_type": "Add", "cycles_total": None, "placement": "host"})
    return {
        "model": {"name": "<script>"}, "hardware": {"name": "chip"}, "layers": rows,
        "summary": {"latency_cycles": 12345, "edp": 0.123456},
        "verification": {"passed": None, "mode": "none"}, "strategies": [],
    }  # fmt: skip


def result_of(document: dict[str, Any], folder: Path) -> tw.Result:
    (folder / "report.json").write_text(json.dumps(document))
    return tw.Result(folder, Settings(data_dir=folder))


def test_a_notebook_shows_names_as_text_and_the_slowest_layers() -> None:
    page = result_page(report(MOST_LAYERS + 5))
    assert "<script>" not in page
    assert "<b>Conv" not in page
    assert "&lt;script&gt; on chip" in page
    assert "12,345" in page
    assert f"slowest {MOST_LAYERS} of {MOST_LAYERS + 6}" in page
    assert page.count("<tr><td>14</td>") == 1
    assert "<tr><td>2</td>" not in page


def test_summaries_of_strategies_are_given_by_name(tmp_path: Path) -> None:
    told = {"schema_version": 3, "chains": 2}
    newer = {**report(1), "schema_version": 2, "summaries": {"chains": told}}
    assert result_of(newer, tmp_path).summaries == {"chains": told}
    older = {**report(1), "schema_version": 1, "graphturbo": {"variant": "v1"}}
    assert result_of(older, tmp_path).summaries == {"graphturbo": {"variant": "v1"}}


def test_layers_are_rows_where_there_is_no_pandas(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    layers = result_of(report(1), tmp_path).layers
    assert isinstance(layers, list)
    columns = ["part", "index", "op_type", "cycles_total", "bytes_L1_read", "placement"]
    assert [list(row) for row in layers] == [columns, columns]


def test_layers_are_a_frame_where_there_is_pandas(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    result = result_of(report(2), tmp_path)
    assert isinstance(result.layers, pandas.DataFrame)
    assert result.layers["op_type"].tolist() == [row["op_type"] for row in result.rows]
    assert list(result.layers.columns) == list(result.rows[0])


def test_a_folder_without_results_is_refused(tmp_path: Path) -> None:
    with pytest.raises(tw.InputError) as caught:
        tw.load(tmp_path)
    assert caught.value.code == "TW-CLI-001"
    with pytest.raises(tw.InputError, match="no bundle"):
        _ = result_of(report(1), tmp_path).bundle
