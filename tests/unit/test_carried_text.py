"""Text that UTF-8 cannot carry is refused where it comes in, and shown where it lies."""

from __future__ import annotations

import json

import pytest

from service.text import carried, is_carried, shown, uncarried
from worker.compiler.errors import OptionError
from worker.compiler.options import MAX_SYMBOLS, CompileOptions

HALF = "\ud800"


def _nested(depth: int) -> object:
    value: object = "x"
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("value", "pointer"),
    [
        (HALF, ""), ({"a": [1, f"x{HALF}"]}, "/a/1"), ({"a": {HALF: 1}}, "/a"),
        ({"a": ["é", "😀", None, 1.5]}, None), (_nested(5000), None), ("", None), ({}, None),
    ],
)  # fmt: skip
def test_the_first_bad_text_is_pointed_at(value: object, pointer: str | None) -> None:
    assert uncarried(value) == pointer


def test_what_is_shown_can_be_sent_and_good_text_is_untouched() -> None:
    old = {"symbols": {HALF: 5, "é": 1}, "label": f"😀{HALF}", "more": [HALF, 2, None]}
    json.dumps(carried(old), ensure_ascii=False).encode()
    assert shown(old)["symbols"]["é"] == 1
    assert shown(old)["label"].startswith("😀")
    good = {"symbols": {"é": 1}}
    assert shown(good) == good
    assert is_carried("😀") and not is_carried(HALF)


@pytest.mark.parametrize(
    "symbols",
    [
        {HALF: 5},
        {"": 5},
        {"x" * 201: 1},
        {"N": 2**63},
        {f"s{k}": 1 for k in range(MAX_SYMBOLS + 1)},
    ],
    ids=["surrogate", "empty", "long", "vast", "many"],
)
def test_symbols_are_names_and_sizes_a_row_can_hold(symbols: dict[str, int]) -> None:
    with pytest.raises(OptionError) as refused:
        CompileOptions.from_json({"symbols": symbols})
    (finding,) = refused.value.findings
    assert finding.pointer == "/options/symbols"
    assert len(str(finding.actual)) <= 200
    assert is_carried(str(finding.actual))
