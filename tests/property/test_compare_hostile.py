"""Documents that a job wrote may hold anything: they are compared or refused, never a crash."""

from __future__ import annotations

import json
from typing import Any

from compared_runs import NODES, SLOW, SPEC, graph, layers, report, run, schedule_of, slow_spec
from hypothesis import given
from hypothesis import strategies as st

from service.api.schemas.compare import ComparisonAnswer
from service.compare import Run, compare
from service.compare.markdown import markdown
from service.compare.page import page
from worker.compiler.errors import InputError

DOCUMENTS: dict[str, Any] = {
    "report": report(NODES, layers(a=40, c=90), **SLOW), "graph": graph(NODES),
    "schedule": schedule_of(layers()), "spec": slow_spec(),
}  # fmt: skip
BASE = run(NODES, layers(), spec=SPEC)
ANYTHING = st.sampled_from(
    [None, True, 0, -1, 2**62, 1.5, "", "a", "a.out", "<b>", [], ["a"], [[]], {}, {"name": 1},
     [{"name": "a"}, {"name": "a"}], {"a": {"b": [None]}}]
)  # fmt: skip


def places(value: Any, way: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a document."""
    inner = value.items() if isinstance(value, dict) else enumerate(value)
    found = [way]
    if isinstance(value, dict | list):
        for key, held in inner:
            found += places(held, (*way, key)) if isinstance(held, dict | list) else [(*way, key)]
    return found


PLACES = places(DOCUMENTS)[1:]


@given(st.lists(st.tuples(st.sampled_from(PLACES), ANYTHING), min_size=1, max_size=3))
def test_edited_documents_are_compared_or_refused(edits: list[tuple[Any, Any]]) -> None:
    documents = json.loads(json.dumps(DOCUMENTS))
    for way, value in edits:
        at = documents
        try:
            for step in way[:-1]:
                at = at[step]
            at[way[-1]] = value
        except (KeyError, IndexError, TypeError):
            continue  # an earlier edit has taken this place away
    try:
        head = Run.of("head", **documents)
        for base, other in ((BASE, head), (head, BASE), (head, head)):
            found = compare(base, other)
            assert sum(row.delta_cycles for row in found.layers) == found.delta_cycles
            assert sum(row.delta_cycles for row in found.causes) == found.delta_cycles
            ComparisonAnswer.of(found).model_dump_json()
            markdown(found)
            page(found)
    except InputError as refusal:
        assert refusal.code == "TW-CMP-001"
    else:
        assert compare(head, head).is_same
