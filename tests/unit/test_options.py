"""Compile options: one parser for CLI and API, all problems at once."""

from __future__ import annotations

import pytest

from worker.compiler.errors import OptionError
from worker.compiler.options import CompileOptions, StrategyName, Variant, VerifyMode


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
        ({"variant": "v4"}, "/options/variant"),
        ({"variant": "v1"}, "/options/variant"),
        ({"variant": "layerwise", "strategy": "auto"}, "/options/variant"),
        ({"variant": "astitch", "strategy": "naive"}, "/options/variant"),
        ({"variant": "v1", "strategy": "magic"}, "/options/strategy"),
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
    options = CompileOptions(strategy=StrategyName.GRAPHTURBO, variant=variant)
    assert options.to_json()["variant"] == str(variant)
    assert CompileOptions.from_json(options.to_json()) == options


@pytest.mark.parametrize("strategy", list(StrategyName))
def test_the_full_variant_goes_with_every_strategy(strategy: StrategyName) -> None:
    read = CompileOptions.from_json({"strategy": str(strategy), "variant": "full"})
    assert read == CompileOptions(strategy=strategy)


def test_a_variant_without_its_strategy_says_what_it_needs() -> None:
    with pytest.raises(OptionError) as refusal:
        CompileOptions.from_json({"variant": "v2", "strategy": "naive"})
    finding = refusal.value.findings[0]
    assert (finding.code, finding.allowed, finding.actual) == ("TW-OPT-001", "full", "v2")
    assert finding.message == "variant v2 needs strategy graphturbo, not naive"
