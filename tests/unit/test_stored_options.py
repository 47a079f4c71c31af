"""Stored options: sealed with a version, lifted step by step, never guessed."""

from __future__ import annotations

import pytest

from service.store import stored_options
from service.store.stored_options import KEY, STEPS, VERSION, lift, seal
from worker.compiler.errors import OptionError
from worker.compiler.judge.entrants import own_options
from worker.compiler.options import CompileOptions
from worker.compiler.strategies.graphturbo.descriptor import GraphTurboOptions, Variant

UNCAPPED = {"max_power_w": None, "max_latency_ms": None, "without": [], "quantization": {}}


def test_what_is_sealed_is_lifted_to_the_same() -> None:
    document = CompileOptions(symbols=(("batch", 8),), seed=3).to_json()
    stored = seal(document)
    assert stored[KEY] == VERSION
    assert lift(stored) == document
    assert CompileOptions.from_json(lift(stored)).to_json() == document


def test_each_older_version_goes_through_every_step_since(monkeypatch: pytest.MonkeyPatch) -> None:
    def rename(document: stored_options.Document) -> stored_options.Document:
        return {("grain" if key == "seed" else key): value for key, value in document.items()}

    monkeypatch.setattr(stored_options, "STEPS", (*STEPS, rename))
    monkeypatch.setattr(stored_options, "VERSION", VERSION + 1)
    wanted = {
        "grain": 1, "inputs": "", "strategy_options": {"graphturbo": {"variant": "v1"}}, **UNCAPPED,
    }  # fmt: skip
    assert lift({"seed": 1, "variant": "v1"}) == wanted
    assert lift({"seed": 1, "variant": "v1", KEY: 1}) == wanted
    assert lift({**wanted, KEY: VERSION + 1}) == wanted


def test_a_variant_became_an_option_of_its_strategy() -> None:
    plain = lift({"strategy": "graphturbo", "variant": "full"})
    assert plain == {"strategy": "graphturbo", "inputs": "", "strategy_options": {}, **UNCAPPED}
    stored = {"strategy": "graphturbo", "variant": "v2", KEY: 1}
    options = CompileOptions.from_json(lift(stored))
    assert own_options("graphturbo", options) == GraphTurboOptions(Variant.V2)


def test_caps_that_a_job_names_stay_and_older_jobs_have_none() -> None:
    assert lift({"seed": 1, KEY: 2}) == {"seed": 1, **UNCAPPED}
    named = {"max_power_w": 5.0, "max_latency_ms": None}
    assert lift(seal(named)) == named


def test_inputs_that_a_job_names_stay() -> None:
    assert lift({"inputs": "a" * 64, KEY: 1})["inputs"] == "a" * 64


@pytest.mark.parametrize("version", [VERSION + 1, -1, "1", True, None])
def test_a_version_nobody_knows_is_shown_and_refused_by_name(version: object) -> None:
    document = lift({"seed": 1, KEY: version})
    assert document[KEY] == version
    with pytest.raises(OptionError) as refused:
        CompileOptions.from_json(document)
    assert [finding.pointer for finding in refused.value.findings] == [f"/options/{KEY}"]
