"""Whatever a hardware document holds, lint answers with findings and load agrees with lint."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.compiler.errors import SpecError
from worker.compiler.machine import digest, lint_document, load_machine, parse_document
from worker.compiler.machine.presets import preset_document

SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-5, 1 << 60), st.floats(), st.text(max_size=8),
    st.sampled_from(["L1", "DDR", "f32", "scratchpad", "matrix", "stcp920", "Conv"]),
)  # fmt: skip
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.one_of(
                st.sampled_from(["name", "value", "tag", "inherits", "levels", "remove", "min"]),
                st.text(max_size=4), st.integers(0, 3),
            ),
            inner, max_size=3,
        ),
    ),
    max_leaves=5,
)  # fmt: skip


PATTERNS: dict[str, Any] = {
    "name": "m", "inherits": "xavier",
    "capabilities": {"patterns": [
        {"name": "piece", "fragment": True, "match": {"op": "Conv", "inputs": ["any", "constant"]}},
        {"name": "swish", "match": {"op": "Mul", "commutative": True, "inputs": [
            {"op": "Conv", "bind": "x", "uses": {"min": 1, "max": 2}},
            {"op": "Sigmoid", "inputs": [{"same_as": "x"}]}]}},
        {"name": "chain", "match": {"op": ["Relu", "Clip"], "inputs": [
            {"path": ["Add", "Mul"], "to": {"alternatives": [{"use": "piece"}, {"op": "Gemm"}]}}],
            "attributes": {}}},
    ]},
}  # fmt: skip
"""Every form of the pattern language, so that all of them get damaged."""


@st.composite
def damaged(draw: st.DrawFn) -> dict[Any, Any]:
    """A preset, or an edit of one, with up to three places overwritten, added or deleted."""
    document: dict[Any, Any] = deepcopy(
        draw(
            st.sampled_from(
                [preset_document("stcp920"), preset_document("dpu-zu"), PATTERNS,
                 {"name": "m", "inherits": "a100", "levels": [{"name": "L2", "remove": True}]}]
            )
        )
    )  # fmt: skip
    for _ in range(draw(st.integers(1, 3))):
        node: Any = document
        while True:
            keys: list[Any] = list(node) if isinstance(node, dict) else list(range(len(node)))
            if not keys:
                break
            key = draw(st.sampled_from(keys))
            if isinstance(node[key], dict | list) and node[key] and draw(st.integers(0, 3)):
                node = node[key]
                continue
            match draw(st.sampled_from(["replace", "delete", "add"])):
                case "replace":
                    node[key] = draw(VALUES)
                case "delete":
                    del node[key]
                case _ if isinstance(node, dict):
                    node[draw(st.text(max_size=5))] = draw(VALUES)
                case _:
                    node.append(draw(VALUES))
            break
    return document


@given(damaged())
def test_lint_never_crashes_and_load_agrees(document: dict[Any, Any]) -> None:
    findings = lint_document(document)
    if findings:
        with pytest.raises(SpecError) as caught:
            load_machine(document)
        assert caught.value.findings == findings
        for finding in findings:
            assert finding.message
            assert finding.pointer == "" or str(finding.pointer).startswith("/")
            problem = caught.value.to_problem()
            assert problem["status"] in (404, 422)
            assert problem["exit_code"] == 3
    else:
        assert len(digest(load_machine(document))) == 64


@given(st.text(max_size=60))
def test_any_text_is_a_mapping_or_a_spec_error(text: str) -> None:
    try:
        assert isinstance(parse_document(text), dict)
    except SpecError as error:
        assert error.code == "TW-SPEC-004"
