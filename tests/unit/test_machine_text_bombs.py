"""Hardware documents whose reading was meant to be dear: refused before they are built."""

from __future__ import annotations

import time

import pytest

from tilewright import Machine
from worker.compiler.errors import SpecError
from worker.compiler.machine import lint_document, load_machine, parse_document

MERGES = "\n".join(
    ["a0: &a0 {x: 1}"]
    + [f"a{k}: &a{k} {{<<: [{', '.join([f'*a{k - 1}'] * 9)}]}}" for k in range(1, 11)]
)
ALIASES = "\n".join(
    ["a0: &a0 [1]"] + [f"a{k}: &a{k} [{', '.join([f'*a{k - 1}'] * 9)}]" for k in range(1, 30)]
)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (MERGES, "written out"),
        (ALIASES, "written out"),
        ("a: &a [*a]", "holds itself"),
        ("a: &a {<<: *a}", "holds itself"),
        ("x: " + "[" * 5000, "nest"),  # the library's own words since PyYAML 6.0.4
        ('{"x": ' + "[" * 5000, "nested"),
        ("x: " + "9" * 5000, "digits"),
        ('{"x": ' + "9" * 5000 + "}", "digits"),
        ('{"x": "\\ud800"}', "surrogate"),
        ('{"\\ud800": 1}', "surrogate"),
        ('{"x": NaN}', "not a number"),
        ("x: .inf", "not a number"),
        ('{"x": 1, "x": 2}', "twice"),
        ("{" + "x" * 200_000, "too long"),
    ],
    ids=range(14),
)
def test_a_bomb_is_refused_at_once(text: str, words: str) -> None:
    assert len(MERGES) < 800
    started = time.process_time()
    with pytest.raises(SpecError) as refused:
        parse_document(text)
    assert refused.value.code == "TW-SPEC-004"
    assert words in str(refused.value)
    assert time.process_time() - started < 2.0


def test_a_deep_document_is_refused_whoever_brings_it() -> None:
    """Given as a dictionary, it ended in a RecursionError."""
    deep: dict[str, object] = {}
    for _ in range(5000):
        deep = {"x": deep}
    (finding,) = lint_document(deep)
    assert (finding.code, finding.pointer) == ("TW-SPEC-004", "")
    for read in (load_machine, Machine):
        with pytest.raises(SpecError, match="nested too deeply") as refused:
            read(deep)
        assert refused.value.code == "TW-SPEC-004"


def test_aliases_and_merges_of_honest_size_are_read() -> None:
    text = "base: &base {capacity: 1, width: 2}\nlevels:\n- {<<: *base, width: 4}\n- *base\n"
    assert parse_document(text)["levels"] == [
        {"capacity": 1, "width": 4},
        {"capacity": 1, "width": 2},
    ]
