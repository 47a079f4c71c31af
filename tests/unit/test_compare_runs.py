"""Comparisons by hand: what differs, where, by which cause, and why as far as documents tell."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
from compared_runs import (
    NODES,
    SLOW,
    SPEC,
    graph,
    group,
    kernel,
    layers,
    node,
    report,
    run,
    slow_spec,
)

from service.compare import (
    CauseDelta,
    Comparison,
    LayerDelta,
    ReasonKind,
    RowKind,
    Run,
    Verdict,
    compare,
)
from worker.compiler.errors import InputError

LAYERS = layers()
BASE = run(NODES, LAYERS, name="base")
SLOWER = layers(a=40, c=90)


def nested(depth: int) -> dict[str, Any]:
    document: dict[str, Any] = {}
    for _ in range(depth):
        document = {"a": document}
    return document


def changed(row: LayerDelta) -> tuple[tuple[str, ...], int]:
    return row.nodes, row.delta_cycles


def sentences(found: Comparison, kind: ReasonKind) -> list[str]:
    return [reason.sentence for reason in found.reasons if reason.kind is kind]


def test_a_spec_field_that_makes_layers_slower_is_named_with_layers_and_cause() -> None:
    head = run(NODES, SLOWER, spec=slow_spec(), name="head", **SLOW)
    found = compare(BASE, head)
    assert found.verdict is Verdict.SLOWER
    assert (found.delta_cycles, found.figure("latency_cycles").ratio) == (80, 255 / 175)
    assert found.causes[0] == CauseDelta("port:DRAM.read", 50, 130)
    assert {row.cause: row.delta_cycles for row in found.causes[1:]} == {
        "engine:PE": 0,
        "launch": 0,
    }
    assert [changed(row) for row in found.moved] == [(("c",), 60), (("a",), 20)]
    assert found.moved[0].causes == (CauseDelta("port:DRAM.read", 30, 90),)
    (reason,) = found.reasons
    assert (reason.kind, reason.where) == (ReasonKind.SPEC, "/levels/DRAM/read_bytes_per_cycle")
    assert (reason.base, reason.head, reason.cycles) == (16.0, 8.0, 80)
    assert found.headline == (
        "slower by 45.7 %: 175 ns -> 255 ns, 175 -> 255 cycles; most by port:DRAM.read"
        " (+80 cycles) and in c (+60); differs: the spec's /levels/DRAM/read_bytes_per_cycle:"
        " 16 -> 8"
    )


def test_the_other_way_round_it_is_faster_by_as_much() -> None:
    head = run(NODES, SLOWER)
    found, back = compare(BASE, head), compare(head, BASE)
    assert (found.verdict, back.verdict) == (Verdict.SLOWER, Verdict.FASTER)
    assert back.delta_cycles == -found.delta_cycles
    assert [row.delta_cycles for row in back.causes] == [-row.delta_cycles for row in found.causes]
    assert "most by port:DRAM.read (-80 cycles) and in c (-60)" in back.headline


def test_what_a_spec_says_of_its_numbers_is_told_apart_and_once() -> None:
    document = deepcopy(SPEC)
    document["clock_hz"] = 2e9
    document["guesses"] = []
    head = run(NODES, LAYERS, spec=document, hardware={"name": "toy", "digest": "e"})
    assert [reason.where for reason in compare(BASE, head).reasons] == ["/clock_hz"]
    document["clock_hz"] = 1e9
    head = run(NODES, LAYERS, spec=document, hardware={"name": "toy", "digest": "e"})
    assert [reason.where for reason in compare(BASE, head).reasons] == ["/guesses/~1clock_hz"]


def test_a_machine_of_another_name_is_the_same_machine() -> None:
    head = run(NODES, LAYERS, spec={**SPEC, "name": "other"},
               hardware={"name": "other", "digest": "d"})  # fmt: skip
    found = compare(BASE, head)
    assert (found.verdict, found.reasons) == (Verdict.SAME, ())


def test_a_faster_clock_is_faster_with_equal_cycles() -> None:
    document = report(NODES, LAYERS)
    document["summary"]["latency_s"] /= 2
    found = compare(BASE, Run.of("head", document, graph=graph(NODES), spec=SPEC))
    assert (found.verdict, found.delta_cycles) == (Verdict.FASTER, 0)
    assert found.headline.startswith("faster by 50 %: 175 ns -> 87.5 ns, 175 -> 175 cycles")


def test_a_kernel_that_was_split_is_compared_whole_and_said_to_be() -> None:
    head = [
        kernel(group(["a"], PE=60, DRAM=20), launch=5),
        kernel(group(["b", "c"], PE=70, DRAM=30), launch=5),
    ]
    found = compare(BASE, run(NODES, head))
    rows = {row.base_nodes: row for row in found.layers if not row.is_rest}
    assert rows["b", "c"].kind is RowKind.REGROUPED
    assert (len(rows["b", "c"].base_rows), len(rows["b", "c"].head_rows)) == (2, 1)
    assert rows["b", "c"].delta_cycles == 70 + 30 + 5 - (10 + 50 + 30)
    assert rows[("a",)].delta_cycles == 5  # its launch is its own now
    (rest,) = (row for row in found.layers if row.is_rest)
    assert (rest.kind, rest.delta_cycles) == (RowKind.REMOVED, -5)
    (reason,) = (r for r in found.reasons if r.kind is ReasonKind.GROUPING)
    assert reason.sentence == "a, b, c: 1 kernel in base, 2 kernels in head, cut otherwise"
    assert reason.cycles == found.delta_cycles == 15


def test_groups_that_share_a_node_are_compared_together_only_where_they_have_to() -> None:
    base = [kernel(group(["a"], PE=10), group(["a", "b"], PE=20), group(["c"], PE=5))]
    head = [kernel(group(["a", "b"], PE=25), group(["c"], PE=5))]
    found = compare(run(NODES, base), run(NODES, head))
    assert [(row.kind, row.base_cycles, row.head_cycles) for row in found.layers[:2]] == [
        (RowKind.REGROUPED, 30, 25), (RowKind.SAME, 5, 5)
    ]  # fmt: skip


def test_other_loops_name_tile_cores_and_buffer() -> None:
    head = [{**LAYERS[0], "tile": "8x8", "cores": 2, "peak_buffer_bytes": 128, "energy_pj": 4.0}]
    found = compare(BASE, run(NODES, head))
    assert found.verdict is Verdict.EQUAL_LATENCY
    (delta,) = found.kernels
    assert [(c.what, c.base, c.head) for c in delta.changes if c.what != "schedule"] == [
        ("tile", "4x4", "8x8"), ("cores", 1, 2), ("peak_buffer_bytes", 64, 128)
    ]  # fmt: skip
    assert sentences(found, ReasonKind.SCHEDULE) == [
        "a, b, c: other loops, tile 4x4 -> 8x8, cores 1 -> 2, peak_buffer_bytes 64 -> 128"
    ]


def test_another_winner_is_told_with_what_the_loser_took() -> None:
    rows = [
        {"name": "second", "chosen": True, "reason": "least latency of 2 programs"},
        {"name": "first", "chosen": False, "reason": "latency is 1.3 times the least"},
    ]
    found = compare(BASE, run(NODES, SLOWER, strategies=rows))
    assert sentences(found, ReasonKind.STRATEGY) == [
        "second won (least latency of 2 programs), no longer first: latency is 1.3 times the least"
    ]
    gone = compare(BASE, run(NODES, SLOWER, strategies=rows[:1]))
    assert sentences(gone, ReasonKind.STRATEGY)[0].endswith("first: it has no program there")


def test_a_node_that_moves_to_the_host_says_why() -> None:
    document = report(NODES, LAYERS)
    row = document["placement"][1]
    document["placement"][1] = {**row, "target": "host", "reason_code": "DTYPE", "reason": "no f64"}
    found = compare(BASE, run(NODES, LAYERS, placement=document["placement"]))
    assert [(p.head_node, p.base_target, p.head_target) for p in found.placement] == [
        ("b", "accelerator", "host")
    ]
    assert sentences(found, ReasonKind.PLACEMENT) == [
        "b: accelerator (OFFLOADED) -> host (DTYPE), no f64"
    ]
    assert found.verdict is Verdict.EQUAL_LATENCY


@pytest.mark.parametrize(
    ("edit", "expected"),
    [
        ({"attributes": {"pads": [1]}}, "attribute pads of a: none -> [1]"),
        ({"shape": [1, 9]}, "shape of output 0 of a: [1, 8] -> [1, 9]"),
        ({"weights": "other"}, "weights of a"),
        ({"op_type": "Gemm"}, "operator of a: Conv -> Gemm"),
    ],
)  # fmt: skip
def test_what_changed_of_a_node_is_named(edit: dict[str, Any], expected: str) -> None:
    nodes = [{**NODES[0], **edit}, *NODES[1:]]
    found = compare(BASE, run(nodes, LAYERS))
    assert sentences(found, ReasonKind.MODEL)[0] == expected
    assert found.reasons[0].nodes[0] == "a"


def test_toolchain_and_options_are_told_but_those_that_decide_nothing() -> None:
    head = run(NODES, LAYERS, toolchain={"version": "0.2.0", "simulator": "10"},
               options={"objective": "energy", "no_cache": True})  # fmt: skip
    found = compare(BASE, head)
    assert [reason.sentence for reason in found.reasons] == [
        "toolchain /version: 0.1.0 -> 0.2.0", "option /objective: latency -> energy"
    ]  # fmt: skip
    assert found.is_same  # nothing that came out differs
    assert found.headline.startswith("no difference: 175 cycles, 175 ns; differs: toolchain")


@pytest.mark.parametrize(("before", "after", "is_told"), [(True, False, True), (True, None, False)])
def test_another_outcome_of_verification_is_a_difference(
    before: bool, after: bool | None, is_told: bool
) -> None:
    left = run(NODES, LAYERS, verification={"passed": before})
    found = compare(left, run(NODES, LAYERS, verification={"passed": after}))
    assert found.is_same is not is_told
    assert bool(sentences(found, ReasonKind.VERIFICATION)) is is_told


def test_what_is_missing_is_said_and_not_guessed() -> None:
    alone = Run.of("alone", report(NODES, LAYERS, hardware={"name": "toy", "digest": "e"}))
    found = compare(BASE, alone)
    assert found.base.missing == ()
    assert [text.partition(" (")[0] for text in found.head.missing] == [
        "which strategy and loops each kernel has",
        "edges, attributes, shapes and weights of nodes",
        "fields of the machine",
    ]
    assert [reason.sentence for reason in found.reasons] == [
        "the machines differ; which fields do is in the bundles, of which one is not here"
    ]
    assert found.is_same


def test_a_report_alone_is_matched_by_the_order_of_its_nodes() -> None:
    others = [{**n, "name": f"x{k}"} for k, n in enumerate(NODES)]
    other = [kernel(group(["x0"], PE=60, DRAM=20), group(["x1"], PE=10),
                     group(["x2"], PE=50, DRAM=30), launch=5)]  # fmt: skip
    base, head = Run.of("base", report(NODES, LAYERS)), Run.of("head", report(others, other))
    found = compare(base, head)
    assert (found.verdict, found.reasons, found.nodes.renamed) == (Verdict.SAME, (), 3)


def test_numbered_names_that_move_along_are_not_believed() -> None:
    """An exporter that numbers its nodes: one more in front, and every name is another's."""
    base = [node("c1", weights="p"), node("r1", "Relu", ["c1"]),
            node("c2", reads=["r1"], weights="q"), node("r2", "Relu", ["c2"])]  # fmt: skip
    head = [node("c1", weights="new"), node("c2", reads=["c1"], weights="p"),
            node("r1", "Relu", ["c2"]), node("c3", reads=["r1"], weights="q"),
            node("r2", "Relu", ["c3"])]  # fmt: skip
    costs = {"new": 9, "p": 20, "q": 30, "": 4}

    def costly(nodes: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [kernel(*(group([n["name"]], PE=costs[n["weights"]]) for n in nodes))]

    found = compare(run(base, costly(base)), run(head, costly(head)))
    assert [(row.kind, row.nodes, row.delta_cycles) for row in found.moved] == [
        (RowKind.ADDED, ("c1",), 9)
    ]
    assert (found.nodes.added, found.nodes.renamed) == (("c1",), 2)
    assert sentences(found, ReasonKind.MODEL) == ["added: Conv c1"]


def test_cycles_that_a_report_gives_no_cause_for_have_one_of_their_own() -> None:
    document = report(NODES, LAYERS)
    document["summary"]["latency_cycles"] += 11
    document["layers"][0]["cycles_total"] += 4
    found = compare(BASE, Run.of("head", document, graph=graph(NODES), spec=SPEC))
    assert found.delta_cycles == 11
    assert found.causes[0] == CauseDelta("untold", 0, 11)
    assert sum(row.delta_cycles for row in found.layers) == 11


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (7, "the report is no JSON object"),
        ({"schema_version": 1}, "the report has version 1"),
        ({}, "the report has version None"),
        ({**report(NODES, LAYERS), "layers": [{"op_type": "Conv"}]}, "onnx_nodes"),
        ({**report(NODES, LAYERS), "summary": {}}, "latency_cycles"),
        ({**report(NODES, LAYERS), "placement": None}, "placement"),
        ({**report(NODES, LAYERS), "options": nested(200)}, "nested deeper than 64 levels"),
    ],
)  # fmt: skip
def test_documents_of_another_shape_are_refused(document: object, message: str) -> None:
    with pytest.raises(InputError) as refusal:
        Run.of("head", document)
    assert refusal.value.code == "TW-CMP-001"
    assert message in refusal.value.message
    assert "head: " in refusal.value.message


def test_the_document_is_json_with_everything() -> None:
    found = compare(BASE, run(NODES, SLOWER)).as_json()
    assert found["verdict"] == "slower"
    rows = found["layers"]
    assert isinstance(rows, list) and len(rows) == 4
    assert sum(row["delta_cycles"] for row in rows) == 80  # type: ignore[index, call-overload, misc, arg-type]  # JSON
