"""Gate files that nobody would write are refused or read, and nothing else happens."""

from __future__ import annotations

import json
from typing import Any

import jsonschema_rs
import yaml
from hypothesis import given
from hypothesis import strategies as st

from service.gate.places import line_of
from service.gate.reading import read_gate
from service.gate.schema import gate_json_schema
from worker.compiler.errors import InputError

GOOD: dict[str, Any] = {
    "schema": 1,
    "models": [{"path": "m/*.onnx", "symbols": {"n": 2}, "options": {"effort": "fast"}}],
    "hardware": [{"preset": "kapla-edge"}, {"spec": "h.yaml", "name": "h"}],
    "options": {"objective": "energy"},
    "baseline": {"source": "file", "path": "b.json", "branch": "main"},
    "budgets": [{"figure": "latency_ms", "at_most": 1.5, "node": "a*"}],
    "regressions": [{"figure": "energy_mj", "percent": 1, "absolute": 0.5}],
    "changes": {"host": "warn"},
    "waivers": [{"owner": "a", "reason": "b", "expires": "2026-01-01", "check": "host"}],
}
SCHEMA = jsonschema_rs.validator_for(gate_json_schema())
LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12)
ANYTHING = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)


@st.composite
def damaged(draw: st.DrawFn) -> dict[str, Any]:
    """A good file with something put in, taken away or replaced, anywhere."""
    document: dict[str, Any] = json.loads(json.dumps(GOOD))
    for _ in range(draw(st.integers(1, 3))):
        at: Any = document
        while True:
            keys = list(at) if isinstance(at, dict) else list(range(len(at)))
            if not keys:
                break
            key = draw(st.sampled_from(keys))
            if isinstance(at[key], dict | list) and draw(st.booleans()):
                at = at[key]
                continue
            if draw(st.booleans()):
                at[key] = draw(ANYTHING)
            else:
                del at[key]
            break
        if isinstance(at, dict) and draw(st.booleans()):
            at[draw(st.sampled_from(["name", "node", "cause", "x"]))] = draw(ANYTHING)
    return document


def read(text: str) -> bool:
    """Whether it is read; a refusal has a finding with a line for everything."""
    try:
        read_gate(text, "g")
    except InputError as error:
        assert error.code == "TW-GATE-001"
        assert error.findings
        lines = text.count("\n") + 1
        for finding in error.findings:
            assert 1 <= int(finding.message.split(":")[1]) <= lines
            assert finding.pointer is not None
            assert line_of(text, finding.pointer) <= lines
        json.dumps(error.to_problem(), allow_nan=False)
        return False
    return True


@given(damaged())
def test_damaged_files_are_read_or_refused(document: dict[str, Any]) -> None:
    is_read = read(yaml.safe_dump(document, sort_keys=False))
    if is_read:  # the schema asks for no more than the reader does
        assert SCHEMA.is_valid(json.loads(json.dumps(document)))


@given(st.text(max_size=200) | ANYTHING.map(yaml.safe_dump))
def test_any_text_is_read_or_refused(text: str) -> None:
    read(text)


def test_the_good_one_is_read() -> None:
    assert read(yaml.safe_dump(GOOD))
    assert SCHEMA.is_valid(GOOD)
