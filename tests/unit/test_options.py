"""Compile options: one parser for CLI and API, all problems at once."""

from __future__ import annotations

import pytest

from worker.compiler.errors import OptionError
from worker.compiler.judge.entrants import own_options
from worker.compiler.options import CompileOptions, VerifyMode
from worker.compiler.strategies.graphturbo.descriptor import GraphTurboOptions, Variant


def test_options_round_trip() -> None:
    options = CompileOptions(
        verify=VerifyMode.FULL,
        symbols=(("batch", 8), ("seq", 128)),
        fail_on_fallback=True,
        seed=7,
    )
    assert CompileOptions.from_json(options.to_json()) == options
    assert CompileOptions.from_json({}) == CompileOptions()


@pytest.mark.parametrize(
    ("document", "pointer"),
    [
        ({"objective": "speed"}, "/options/objective"),
        ({"effort": "express"}, "/options/effort"),
        ({"effort": "extended"}, "/options/effort"),
        ({"effort": 3}, "/options/effort"),
        ({"symbols": {"N": 0}}, "/options/symbols"),
        ({"symbols": {"N": True}}, "/options/symbols"),
        ({"symbols": [1]}, "/options/symbols"),
        ({"seed": -1}, "/options/seed"),
        ({"seed": True}, "/options/seed"),
        ({"no_cache": "yes"}, "/options/no_cache"),
        ({"nocache": True}, "/options/nocache"),
        ({"require_cache": True, "no_cache": True}, "/options/require_cache"),
        ({"variant": "v1"}, "/options/variant"),
        ({"strategy": "magic"}, "/options/strategy"),
        ({"quantization": []}, "/options/quantization"),
        ({"quantization": {"ranges": "widest"}}, "/options/quantization/ranges"),
        ({"quantization": {"rangs": "mse"}}, "/options/quantization"),
        ({"quantization": {"percentile": 50.0}}, "/options/quantization/percentile"),
        ({"quantization": {"ranges": "mse", "percentile": 99}}, "/options/quantization/percentile"),
        ({"quantization": {"corrections": ["luck"]}}, "/options/quantization/corrections"),
        ({"quantization": {"keep_float": [""]}}, "/options/quantization/keep_float"),
        ({"quantization": {"min_sqnr": 1000}}, "/options/quantization/min_sqnr"),
        ({"quantization": {"min_sqnr": float("nan")}}, "/options/quantization/min_sqnr"),
        ({"strategy_options": []}, "/options/strategy_options"),
        ({"strategy_options": {"magic": {}}}, "/options/strategy_options/'magic'"),
        ({"strategy_options": {3: {}}}, "/options/strategy_options/3"),
        ({"strategy_options": {"graphturbo": 3}}, "/options/strategy_options/graphturbo"),
        (
            {"strategy_options": {"graphturbo": {"variant": "v4"}}},
            "/options/strategy_options/graphturbo/variant",
        ),
        (
            {"strategy_options": {"graphturbo": {"speed": 4}}},
            "/options/strategy_options/graphturbo",
        ),
        ({"strategy_options": {"naive": {"variant": "v1"}}}, "/options/strategy_options/naive"),
    ],
)
def test_bad_options_are_named(document: object, pointer: str) -> None:
    with pytest.raises(OptionError) as refusal:
        CompileOptions.from_json(document)
    assert refusal.value.code == "TW-OPT-001"
    assert [f.pointer for f in refusal.value.findings] == [pointer]


def test_all_bad_options_come_at_once() -> None:
    with pytest.raises(OptionError) as refusal:
        CompileOptions.from_json({"effort": "x", "verify": "y", "z": 1})
    assert len(refusal.value.findings) == 3


@pytest.mark.parametrize("document", [None, [], "options", 3])
def test_options_are_an_object(document: object) -> None:
    with pytest.raises(OptionError):
        CompileOptions.from_json(document)


@pytest.mark.parametrize("variant", list(Variant))
def test_graphturbo_takes_every_variant(variant: Variant) -> None:
    document = {"strategy": "graphturbo", "strategy_options": turbo(variant)}
    options = CompileOptions.from_json(document)
    assert own_options("graphturbo", options) == GraphTurboOptions(variant)
    assert CompileOptions.from_json(options.to_json()) == options


@pytest.mark.parametrize("strategy", ["auto", "naive", "graphturbo"])
def test_options_that_are_all_default_say_nothing(strategy: str) -> None:
    read = CompileOptions.from_json(
        {"strategy": strategy, "strategy_options": {"graphturbo": {"variant": "full"}}}
    )
    assert read == CompileOptions(strategy=strategy)


def test_an_option_of_a_strategy_that_takes_no_part_is_refused() -> None:
    with pytest.raises(OptionError) as refusal:
        CompileOptions.from_json({"strategy_options": turbo("v2"), "strategy": "naive"})
    finding = refusal.value.findings[0]
    assert (finding.code, finding.actual) == ("TW-OPT-001", "naive")
    assert finding.pointer == "/options/strategy_options/graphturbo"
    assert finding.message == "options of strategy graphturbo do nothing with strategy naive"
    CompileOptions.from_json({"strategy_options": turbo("v2")})  # auto: it takes part


def turbo(variant: str) -> dict[str, dict[str, str]]:
    return {"graphturbo": {"variant": str(variant)}}
