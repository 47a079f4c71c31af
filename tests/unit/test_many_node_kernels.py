"""What is told of a kernel of many ONNX nodes: its share of cycles, slices, views and cache."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from compile_ports import ports_of
from hypothesis import given
from hypothesis import strategies as st
from onnx_models import conv_net, repeated_layers, saved
from test_simulator_units import MACHINE, chain, two_calls_and_a_host

from worker.compiler.cache import CacheEvent, MemoryCache
from worker.compiler.errors import Detail
from worker.compiler.frontend.limits import Limits
from worker.compiler.isa.program import Binding, Program, UnitCall
from worker.compiler.judge.compiled import CompiledModel, Ports
from worker.compiler.judge.figures import Figures
from worker.compiler.judge.link import PlannedCall
from worker.compiler.judge.pool import UnitPool
from worker.compiler.judge.programs import node_costs, shared_out
from worker.compiler.judge.solve import Solved
from worker.compiler.machine import load_preset
from worker.compiler.machine.machine import Machine
from worker.compiler.options import CompileOptions
from worker.compiler.pipeline import compile_model
from worker.job.job import stable_report
from worker.job.preflight import preflight
from worker.report.run import cache_outcomes
from worker.simulator.results import ModelSimulation
from worker.simulator.run import simulate_program, simulate_unit
from worker.simulator.trace import trace_json


def ports(cycles: int, cache: MemoryCache) -> Ports:
    return ports_of(cache, lambda _: Figures(cycles))


def compiled_of(path: Path, cache: MemoryCache) -> CompiledModel:
    options = CompileOptions(strategy="naive")
    machine = load_preset("kapla-edge")
    return compile_model(path, "m", machine, options, ports(1000, cache), Limits())


# -- shares of cycles ------------------------------------------------------------------------------


@given(st.integers(0, 10**12), st.lists(st.integers(0, 10**9), min_size=1, max_size=40))
def test_shares_are_whole_and_in_proportion(cycles: int, weights: list[int]) -> None:
    shares = shared_out(cycles, weights)
    assert sum(shares) == cycles
    exact = weights if any(weights) else [1] * len(weights)
    for share, weight in zip(shares, exact, strict=True):
        # |share - cycles * weight / total| < 1, in integers
        assert abs(share * sum(exact) - cycles * weight) < sum(exact)


def test_shares_of_one_node_and_of_nodes_without_work() -> None:
    assert shared_out(7, [3]) == (7,)
    assert shared_out(7, [0, 0, 0]) == (2, 2, 3)
    assert shared_out(100, [1, 0, 3]) == (25, 0, 75)


def solved_with(
    tmp_path: Path, names: tuple[str, ...]
) -> tuple[CompiledModel, Machine, tuple[int, ...]]:
    """Costs when one kernel of 1000 cycles stands for `names`."""
    cache = MemoryCache()
    compiled = compiled_of(saved(conv_net(), tmp_path), cache)
    call = PlannedCall(0, (), names, "Conv", 0, compiled.machine.targets[0].name)
    solved = Solved((call,), compiled.units, (), {}, (), frozenset(), ())
    costs = node_costs(
        compiled.model, compiled.partitioning, solved, lambda _: Figures(1000), compiled.machine
    )
    return compiled, compiled.machine, costs.accelerator_cycles


def test_a_kernel_of_many_nodes_is_not_charged_to_its_last(tmp_path: Path) -> None:
    compiled = compiled_of(saved(conv_net(), tmp_path), MemoryCache())
    names = tuple(node.name or "" for node in compiled.model.ir.graph)
    _, _, cycles = solved_with(tmp_path, names)
    assert sum(cycles) == 1000
    assert sum(c > 0 for c in cycles) > 1
    convs = [k for k, n in enumerate(compiled.model.ir.graph) if n.op_type == "Conv"]
    others = [k for k, n in enumerate(compiled.model.ir.graph) if n.op_type == "Relu"]
    assert max(cycles[k] for k in others) < max(cycles[k] for k in convs)


def test_a_kernel_of_no_node_is_charged_to_its_region(tmp_path: Path) -> None:
    compiled, _, cycles = solved_with(tmp_path, ())
    assert sum(cycles) == 1000
    first = compiled.partitioning.regions[0].nodes[0]
    assert [k for k, c in enumerate(cycles) if c] == [
        next((c.nodes[-1] for c in compiled.partitioning.regions[0].composites if first in c.nodes),
             first)
    ]  # fmt: skip


# -- views in the bound ----------------------------------------------------------------------------


def test_reading_a_view_is_no_fresh_traffic_and_its_source_is_no_result() -> None:
    unit = chain()
    sim = simulate_unit(unit, MACHINE)

    def bound(second_reads: str, views: dict[str, str]) -> int:
        inward = (Binding("x", 0), Binding("w0", 64), Binding("m", 96))
        onward = (Binding(second_reads, 96), Binding("w0", 64), Binding("y", 160))
        calls = (
            UnitCall(0, inward, ("n1",), "MatMul", 0, 100),
            UnitCall(0, onward, ("n2",), "MatMul", 0, 100),
        )
        whole = simulate_program(
            Program((unit,), calls, 4096, 32, 128), (sim,), MACHINE, views=views
        )
        return {b.name: b.cycles for b in whole.bounds}["traffic:DDR"]

    plain = bound("m", {})
    assert bound("v", {"v": "m"}) == plain
    assert bound("v2", {"v2": "v", "v": "m"}) == plain
    assert bound("other", {}) > plain
    # a view of an outside input is that input: x and w0 are read once
    assert bound("v", {"v": "x"}) == plain


# -- the trace -------------------------------------------------------------------------------------


def test_slices_name_the_first_and_last_of_many_nodes() -> None:
    program = two_calls_and_a_host()
    first = replace(program.calls[0], onnx_nodes=("n1", "n2", "n3", "n4"))
    program = replace(program, calls=(first, *program.calls[1:]))
    sim = simulate_unit(program.units[0], MACHINE)
    whole: ModelSimulation = simulate_program(program, (sim,), MACHINE)
    events = json.loads(trace_json(program, (sim,), whole, MACHINE))["traceEvents"]
    inside = [e["args"] for e in events if e["ph"] == "X" and e["pid"] > 0]
    many = [a for a in inside if a.get("onnx_nodes") == ["n1", "n4"]]
    single = [a for a in inside if a.get("onnx_node") == "n3"]
    assert len(many) == len(single) == len(sim.slices)
    assert {a["num_onnx_nodes"] for a in many} == {4}


# -- the cache -------------------------------------------------------------------------------------


def test_units_that_share_a_first_node_have_outcomes_of_their_own(tmp_path: Path) -> None:
    compiled = compiled_of(saved(conv_net(), tmp_path), MemoryCache())
    one, two = (unit.signature for unit in compiled.units[:2])
    same = "conv"
    events = (
        CacheEvent("schedule", "0", "hit", same, one),
        CacheEvent("kernel", "1", "hit", same, one),
        CacheEvent("schedule", "2", "miss", same, two),
        CacheEvent("schedule", "3", "miss", same, "of a unit that was tried and dropped"),
    )
    assert cache_outcomes((one, two, "neither"), events) == {one: "hit", two: "miss"}


def test_a_warm_compile_hits_for_every_unit(tmp_path: Path) -> None:
    path, cache = saved(conv_net(), tmp_path), MemoryCache()
    cold, warm = compiled_of(path, cache), compiled_of(path, cache)
    signatures = {unit.signature for unit in cold.units}
    assert cache_outcomes(signatures, cold.cache_events) == dict.fromkeys(signatures, "miss")
    assert cache_outcomes(signatures, warm.cache_events) == dict.fromkeys(signatures, "hit")


# -- options ---------------------------------------------------------------------------------------


def test_options_of_strategies_decide_results_and_how_a_job_runs_does_not() -> None:
    def told(**options: object) -> dict[str, Detail]:
        return stable_report({"options": {"seed": 1, **options}, "layers": []})

    assert told(strategy_options={"a": 1}) != told(strategy_options={"a": 2})
    assert told(verify="none") == told(verify="full")


def test_preflight_tries_operators_one_by_one_whatever_the_strategy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: list[list[str]] = []
    whole = UnitPool.__init__

    def watched(self: UnitPool, *args: object) -> None:
        whole(self, *args)  # type: ignore[arg-type]
        names.append([entrant.name for entrant in (*self.entrants, self.last_resort)])

    monkeypatch.setattr(UnitPool, "__init__", watched)
    turbo = CompileOptions(strategy="graphturbo")
    found = preflight(saved(repeated_layers(2), tmp_path), {"preset": "kapla-edge"}, turbo)
    assert (found["ok"], found["shortfalls"]) == (True, [])
    assert names == [["naive", "naive"]]
