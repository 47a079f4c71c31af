"""Every rule of a gate decides: findings of runs whose figures are known by heart."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import pytest
import yaml
from gate_documents import Kernel, outcome
from hypothesis import assume, given
from hypothesis import strategies as st

from service.gate.baseline import Base
from service.gate.figures import FIGURES, OF_A_LEVEL, figure_of, layer_figures, whole_figure
from service.gate.judging import judge
from service.gate.reading import read_gate
from service.gate.runs import Outcome
from service.gate.selection import Pair
from service.gate.tree import Folder
from service.gate.verdict import Check, Finding, Result, State, Verdict

TODAY = date(2026, 6, 1)
STEM = Kernel("stem", {"engine:PE": 600, "launch": 400}, energy_pj=2e9)
HEAD = Kernel("head", {"port:DRAM.read": 2000, "launch": 400}, energy_pj=3e9, read=9000)
"""Together 3400 cycles = 3.4 ms, 5 mJ, 11 000 bytes."""
BASE = (STEM, HEAD)
KEY = ("net", "chip")
PAIR = Pair("net", "chip", "net.onnx", None, "chip", {}, None, None, "/models/0")
FRAME = """
schema: 1
models: [{path: net.onnx}]
hardware: [{preset: chip}]
baseline: {source: merge-base, branch: main}
"""


def verdict_of(
    rules: str, head: Outcome, base: Outcome | None = None, *, known: Base | None = None
) -> Verdict:
    """The verdict on one pair; the base is BASE unless given."""
    text = FRAME + rules
    before = known or Base("the base", {KEY: base or outcome(*BASE)}, [KEY])
    gate = read_gate(text, "gate.yaml")
    return judge(gate, text, "gate.yaml", [PAIR], {KEY: head}, before, TODAY, Folder(Path()), "")


def only(verdict: Verdict, check: Check) -> Finding:
    found = [finding for finding in verdict.findings if finding.check is check]
    assert len(found) == 1, found
    return found[0]


def test_figures_of_a_whole_run() -> None:
    report = outcome(*BASE).report
    assert report is not None
    expected = {
        "latency_ms": 3.4, "latency_cycles": 3400, "throughput_per_s": 1 / 3.4e-3,
        "energy_mj": 5.0, "power_w": 5e-3 / 3.4e-3, "edp": 5e9 * 3.4e-3, "offchip_mb": 0.011,
        "peak_kib": 4.0, "weight_kib": 2.0, "boundary_mb": 0.0, "host_ops": 0,
        "accelerator_mac_pct": 100.0, "utilization_pct": 50.0, "kernels": 2, "kernels_unique": 2,
        "instructions": 14, "launch_cycles": 800, "host_cycles": 0, "repeated_macs": 0,
        "distance_to_bound": 1.5, "traffic_mb:DRAM": 0.011, "peak_level_kib:DRAM": 4.0,
    }  # fmt: skip
    assert {*FIGURES, *(f"{stem}:DRAM" for stem in OF_A_LEVEL)} == set(expected)
    for name, value in expected.items():
        assert whole_figure(report, name) == pytest.approx(value), name
    assert whole_figure(report, "traffic_mb:L1") is None
    assert figure_of("latency") is None
    assert figure_of("traffic_mb:") is None
    assert figure_of("latency_ms:DRAM") is None


@pytest.mark.parametrize(
    ("figure", "values"),
    [
        ("latency_ms", (1.0, 2.4)),
        ("latency_cycles", (1000, 2400)),
        ("energy_mj", (2.0, 3.0)),
        ("traffic_mb:DRAM", (0.0015, 0.0095)),
    ],
)
def test_figures_of_layers(figure: str, values: tuple[float, float]) -> None:
    report = outcome(*BASE).report
    assert report is not None
    assert [f.value for f in layer_figures(report, figure, "*")] == pytest.approx(list(values))
    assert [f.value for f in layer_figures(report, figure, "hea?")] == pytest.approx(values[1:])


def test_groups_of_a_fused_kernel_are_layers_of_their_own() -> None:
    fused = outcome(Kernel("a", {"engine:PE": 90, "launch": 10})).report
    assert fused is not None
    fused["layers"][0].update(
        onnx_nodes=["a", "b"],
        groups=[
            {"onnx_nodes": [n], "op_type": "Conv", "cycles": c, "macs": 1, "repeated_macs": 0,
             "causes": [{"cause": "engine:PE", "cycles": c}]}
            for n, c in (("a", 60), ("b", 30))
        ],
    )  # fmt: skip
    cycles = {f.nodes: f.value for f in layer_figures(fused, "latency_cycles", "*")}
    assert cycles == {("a",): 60, ("b",): 30}
    assert [f.nodes for f in layer_figures(fused, "energy_mj", "b")] == [("a", "b")]


WHOLE_BUDGETS = [
    ("latency_ms", 3.4), ("energy_mj", 5.0), ("kernels", 2), ("traffic_mb:DRAM", 0.011),
    ("host_ops", 0), ("peak_kib", 4), ("accelerator_mac_pct", 100),
]  # fmt: skip


@pytest.mark.parametrize(("figure", "value"), WHOLE_BUDGETS)
def test_a_budget_holds_at_its_limit_and_not_beyond(figure: str, value: float) -> None:
    def result(limit: str) -> Result:
        rules = f"budgets: [{{figure: '{figure}', {limit}}}]"
        return only(verdict_of(rules, outcome(*BASE)), Check.BUDGET).result

    assert result(f"at_most: {value * 1.000001}") is Result.PASSED
    assert result(f"at_least: {value * 0.999999}") is Result.PASSED
    assert result(f"at_least: {value + 0.001}") is Result.FAILED
    if value:
        assert result(f"at_most: {value * 0.999}") is Result.FAILED


def test_a_budget_of_layers_and_causes_names_them() -> None:
    rules = "budgets: [{figure: latency_cycles, node: '*', at_most: 2000}]"
    found = [f for f in verdict_of(rules, outcome(*BASE)).findings if f.check is Check.BUDGET]
    assert [(f.nodes, f.result) for f in found] == [
        (("stem",), Result.PASSED),
        (("head",), Result.FAILED),
    ]
    assert found[1].message == (
        "net on chip, layer head: latency_cycles is 2400 cycles, over the budget of 2000 cycles"
    )
    rules = "budgets: [{figure: latency_ms, cause: 'port:*', at_most: 1.9}]"
    found = [f for f in verdict_of(rules, outcome(*BASE)).findings if f.check is Check.BUDGET]
    assert [(f.cause, f.head, f.result) for f in found] == [("port:*", 2.0, Result.FAILED)]
    rules = "budgets: [{figure: latency_cycles, node: stem, cause: launch, at_most: 400}]"
    assert only(verdict_of(rules, outcome(*BASE)), Check.BUDGET).head == 400


def test_rules_are_for_the_pairs_that_they_name() -> None:
    for pattern, count in (("net", 1), ("n*", 1), ("other", 0)):
        rules = f"budgets: [{{figure: kernels, at_most: 1, model: {pattern}}}]"
        found = [f for f in verdict_of(rules, outcome(*BASE)).findings if f.check is Check.BUDGET]
        assert len(found) == count


SLOWER = Kernel("head", {"port:DRAM.read": 2100, "launch": 400}, energy_pj=3e9, read=9000)
"""100 cycles more: 2.94 % of the whole, 4.17 % of the layer, 5 % of the cause."""


@pytest.mark.parametrize(
    ("limit", "result"),
    [
        ("percent: 2.95", Result.PASSED),
        ("percent: 2.94", Result.FAILED),
        ("absolute: 100", Result.PASSED),
        ("absolute: 99", Result.FAILED),
        ("percent: 0, absolute: 100", Result.PASSED),  # within either is allowed
        ("percent: 3, absolute: 0", Result.PASSED),
        ("percent: 1, absolute: 1", Result.FAILED),
        ("percent: 4.1, node: head", Result.FAILED),
        ("percent: 4.2, node: head", Result.PASSED),
        ("percent: 0, node: stem", Result.PASSED),
        ("percent: 4.9, cause: 'port:*'", Result.FAILED),
        ("percent: 5, cause: 'port:*'", Result.PASSED),
        ("percent: 0, cause: launch", Result.PASSED),
        ("absolute: 99, node: head, cause: 'port:*'", Result.FAILED),
        ("absolute: 0, node: head, cause: launch", Result.PASSED),
    ],
)
def test_a_regression_is_allowed_up_to_its_limit(limit: str, result: Result) -> None:
    rules = f"regressions: [{{figure: latency_cycles, {limit}}}]"
    verdict = verdict_of(rules, outcome(STEM, SLOWER))
    assert only(verdict, Check.REGRESSION).result is result
    assert verdict.state is (State.FAIL if result is Result.FAILED else State.PASS)
    faster = verdict_of(rules, outcome(*BASE), outcome(STEM, SLOWER))
    assert faster.state is State.PASS


def test_energy_and_traffic_regress_too() -> None:
    worse = Kernel("head", HEAD.causes, energy_pj=3.3e9, read=9100)
    for rule, result in (
        ("figure: energy_mj, percent: 5.9", Result.FAILED),
        ("figure: energy_mj, percent: 6.1", Result.PASSED),
        ("figure: energy_mj, node: head, percent: 9.9", Result.FAILED),
        ("figure: energy_mj, node: stem, percent: 0", Result.PASSED),
        ("figure: 'traffic_mb:DRAM', absolute: 0.00009", Result.FAILED),
        ("figure: 'traffic_mb:DRAM', node: head, percent: 1", Result.FAILED),
        ("figure: 'traffic_mb:DRAM', node: head, percent: 2", Result.PASSED),
    ):
        verdict = verdict_of(f"regressions: [{{{rule}}}]", outcome(STEM, worse))
        assert only(verdict, Check.REGRESSION).result is result, rule


def test_the_item_that_most_of_the_energy_went_to_is_named() -> None:
    before, after = outcome(*BASE), outcome(STEM, Kernel("head", HEAD.causes, energy_pj=4e9))
    for run, items in ((before, {"mac": 2e9, "static": 3e9}), (after, {"mac": 1e9, "static": 5e9})):
        report = run.report
        assert report is not None
        report["energy"] = [{"item": name, "pj": pj} for name, pj in items.items()]  # type: ignore[index]
    rules = "regressions: [{figure: energy_mj, percent: 1}]"
    assert verdict_of(rules, after, before).first_line == (
        "FAIL: net on chip: energy_mj 20 % more (5 -> 6 mJ), most by static (3 -> 5 mJ);"
        " allowed: 1 %"
    )


def test_layers_that_one_side_lacks_count_in_the_whole_only() -> None:
    added = outcome(STEM, HEAD, Kernel("tail", {"engine:PE": 500}, op_type="Softmax"))
    rules = "regressions: [{figure: latency_cycles, node: '*', percent: 0}]"
    for head, base in ((added, outcome(*BASE)), (outcome(*BASE), added)):
        verdict = verdict_of(rules, head, base)
        nodes = [f.nodes for f in verdict.findings if f.check is Check.REGRESSION]
        assert nodes == [("stem",), ("head",)]
        assert verdict.state is State.PASS
    whole = "regressions: [{figure: latency_cycles, percent: 0}]"
    assert verdict_of(whole, added).state is State.FAIL


def test_where_more_is_better_less_is_a_regression() -> None:
    rules = "regressions: [{figure: throughput_per_s, percent: 2}]"
    assert verdict_of(rules, outcome(STEM, SLOWER)).state is State.FAIL
    assert verdict_of(rules, outcome(*BASE), outcome(STEM, SLOWER)).state is State.PASS


def test_the_first_line_has_the_verdict_the_cause_the_layer_and_what_went_in() -> None:
    rules = "regressions: [{figure: latency_ms, percent: 1}, {figure: latency_cycles, percent: 1}]"
    changed = outcome(STEM, SLOWER, spec={"name": "h", "clock_hz": 1e6, "slow": 1})
    line = verdict_of(rules, changed).first_line
    assert line.startswith("FAIL: net on chip slower by 2.94 %: 3.4 ms -> 3.5 ms")
    assert "most by port:DRAM.read (+100 cycles) and in head (+100)" in line
    assert "/slow" in line
    assert line.endswith("allowed: 1 % (and 1 more)")


def test_failures_are_told_before_regressions_and_those_before_budgets() -> None:
    rules = """
regressions: [{figure: energy_mj, percent: 0}, {figure: latency_ms, percent: 0}]
budgets: [{figure: kernels, at_most: 1}]
"""
    worse = outcome(STEM, Kernel("head", SLOWER.causes, energy_pj=9e9))
    assert verdict_of(rules, worse).first_line.startswith("FAIL: net on chip slower by")
    thirsty = outcome(STEM, Kernel("head", HEAD.causes, energy_pj=9e9))
    assert "energy_mj 120 % more" in verdict_of(rules, thirsty).first_line
    assert "kernels is 2" in verdict_of(rules, outcome(*BASE)).first_line


PROBLEM = {"code": "TW-MODEL-004", "detail": "a cycle", "node": "loop", "fault": "user"}


@pytest.mark.parametrize(
    ("level", "result"),
    [("fail", Result.FAILED), ("warn", Result.WARNED), ("ignore", Result.NOTED)],
)
def test_changes_have_the_level_that_they_are_given(level: str, result: Result) -> None:
    def rules(name: str) -> str:
        return f"changes: {{{name}: {level}}}"

    failing = verdict_of(rules("failing"), Outcome(problem=PROBLEM))
    found = only(failing, Check.FAILING)
    assert found.result is result
    assert found.message == (
        "net on chip fails: TW-MODEL-004 a cycle (node loop); the base compiles"
    )
    on_host = outcome(STEM, Kernel("head", HEAD.causes, is_on_host=True))
    assert only(verdict_of(rules("host"), on_host), Check.HOST).result is result
    other = Base("the base", {KEY: outcome(*BASE)}, [("old", "chip"), KEY])
    gone = only(verdict_of(rules("missing"), outcome(*BASE), known=other), Check.MISSING)
    assert (gone.model, gone.result) == ("old", result)
    fresh = only(verdict_of(rules("new"), outcome(*BASE), known=Base("the base")), Check.NEW)
    assert fresh.result is result
    for rule in (
        "budgets: [{figure: latency_ms, node: nowhere, at_most: 1}]",
        "budgets: [{figure: 'traffic_mb:L7', at_most: 1}]",
        "regressions: [{figure: latency_ms, node: nowhere, percent: 1}]",
        "regressions: [{figure: 'traffic_mb:L7', percent: 1}]",
    ):
        verdict = verdict_of(f"{rules('unmatched')}\n{rule}", outcome(*BASE))
        assert only(verdict, Check.UNMATCHED).result is result, rule


@pytest.mark.parametrize("rule", ["budgets: [{at_most: 0", "regressions: [{percent: 0"])
def test_causes_that_no_run_has_are_said_and_fail_nothing(rule: str) -> None:
    rules = f"{rule}, figure: latency_ms, cause: 'port:L7.*'}}]"
    verdict = verdict_of(rules, outcome(*BASE))
    found = only(verdict, Check.UNMATCHED)
    assert found.result is Result.WARNED
    assert "no run has a cause port:L7.*" in found.message
    assert verdict.first_line == "PASS: 1 check holds, 1 warned; no difference in 1 pair"
    quiet = verdict_of(f"changes: {{unmatched: ignore}}\n{rules}", outcome(*BASE))
    assert only(quiet, Check.UNMATCHED).result is Result.NOTED
    used = f"{rule}, figure: latency_ms, cause: 'port:*'}}]"
    checks = [f.check for f in verdict_of(used, outcome(*BASE)).findings]
    assert Check.UNMATCHED not in checks


def test_a_node_that_the_base_has_not_got_may_not_go_to_the_host_either() -> None:
    added = outcome(STEM, HEAD, Kernel("tail", {"host": 5}, is_on_host=True, op_type="Loop"))
    found = only(verdict_of("", added), Check.HOST)
    assert found.nodes == ("tail",)
    assert "the base has no such node" in found.message
    before = outcome(STEM, Kernel("head", HEAD.causes, is_on_host=True))
    assert not [f for f in verdict_of("", before, before).findings if f.check is Check.HOST]


def test_what_failed_before_and_fails_the_same_way_is_nobodys_failure() -> None:
    same = verdict_of("", Outcome(problem=PROBLEM), Outcome(problem=PROBLEM))
    assert only(same, Check.FAILING).result is Result.NEUTRAL
    assert same.first_line == (
        "NEUTRAL: net on chip fails: TW-MODEL-004 a cycle (node loop); so does the base;"
        " nothing to check"
    )
    other = {**PROBLEM, "code": "TW-PLAN-001"}
    assert verdict_of("", Outcome(problem=other), Outcome(problem=PROBLEM)).state is State.FAIL
    mended = verdict_of("", outcome(*BASE), Outcome(problem=PROBLEM))
    assert only(mended, Check.NEW).result is Result.NOTED
    assert mended.state is State.PASS


def test_a_missing_baseline_is_neutral_with_the_reason_and_budgets_still_hold() -> None:
    none = Base("nothing", why_none="the clone is shallow")
    rules = (
        "regressions: [{figure: latency_ms, percent: 1}]\nbudgets: [{figure: kernels, at_most: %d}]"
    )
    verdict = verdict_of(rules % 2, outcome(*BASE), known=none)
    assert verdict.state is State.NEUTRAL
    assert verdict.first_line == ("NEUTRAL: no baseline: the clone is shallow; 1 check holds")
    assert verdict_of(rules % 1, outcome(*BASE), known=none).state is State.FAIL
    part = Base("the base", keys=[KEY], reasons={KEY: "a pointer of Git LFS"})
    verdict = verdict_of(rules % 2, outcome(*BASE), known=part)
    assert verdict.state is State.NEUTRAL
    assert "net on chip has no baseline: a pointer of Git LFS" in verdict.first_line


THRESHOLD = st.floats(0, 1e6, allow_nan=False)
ANY_FIGURE = st.sampled_from([*FIGURES, *(f"{stem}:DRAM" for stem in OF_A_LEVEL)])


@st.composite
def regressions(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Any regressions that a gate file takes."""
    found = []
    for _ in range(draw(st.integers(1, 4))):
        name = draw(ANY_FIGURE)
        figure = figure_of(name)
        assert figure is not None
        rule: dict[str, Any] = {"figure": name}
        rule.update(draw(st.sampled_from([{"percent": 0}, {"absolute": 0}])))
        rule[next(iter(set(rule) - {"figure"}))] = draw(THRESHOLD)
        if figure.of_layers and draw(st.booleans()):
            rule["node"] = draw(st.sampled_from(["*", "k*"]))
        if figure.of_causes and draw(st.booleans()):
            rule["cause"] = draw(st.sampled_from(["*", "launch", "port:*"]))
        found.append(rule)
    return found


KERNELS = st.lists(
    st.builds(
        lambda causes, energy, read: (causes, energy, read),
        st.dictionaries(
            st.sampled_from(["launch", "port:DRAM.read", "engine:PE"]), st.integers(0, 10**6),
            min_size=1,
        ),
        st.floats(0, 1e12, allow_nan=False), st.integers(0, 10**9),
    ),
    min_size=1, max_size=5,
)  # fmt: skip


@given(regressions(), KERNELS)
def test_identical_runs_pass_whatever_the_thresholds(
    rules: list[dict[str, Any]], told: list[tuple[dict[str, int], float, int]]
) -> None:
    assume(any(sum(causes.values()) for causes, _, _ in told))  # no time, no power
    kernels = [
        Kernel(f"k{n}", causes, energy_pj=energy, read=read)
        for n, (causes, energy, read) in enumerate(told)
    ]
    verdict = verdict_of(
        yaml.safe_dump({"regressions": rules}), outcome(*kernels), outcome(*kernels)
    )
    assert verdict.state is State.PASS
    assert verdict.first_line.endswith("no difference in 1 pair")
