"""Launch, transfer, execution and host: by hand, for loops, and that the parts are whole."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from region_bundles import made
from test_control_simulation import around, loop
from test_simulator_units import MACHINE, two_calls_and_a_host

from worker.compiler.cache import MemoryCache
from worker.compiler.isa.program import Binding, HostCall, Program, UnitCall
from worker.job.simulation import simulate_model
from worker.report.invocation import invocation_section
from worker.simulator.compose import invocation_check
from worker.simulator.results import Invocation, RegionTiming
from worker.simulator.run import simulate_program, simulate_unit

UNIT = two_calls_and_a_host().units[0]
SIM = simulate_unit(UNIT, MACHINE)


def test_shares_by_hand() -> None:
    whole = simulate_program(two_calls_and_a_host(), (SIM,), MACHINE)
    # Copies: 1 + 1 us out of the first region, 1 + 3 us into the second; 2 us of host launch and
    # 8 us of its work; two kernels of 60 cycles after launches of 100.
    assert whole.invocation == Invocation(
        200, 6000, 120, 10_000, (RegionTiming(0, 100, 2000, 60), RegionTiming(1, 100, 4000, 60))
    )


def test_shared_memory_has_no_transfer() -> None:
    machine = replace(MACHINE, host=replace(MACHINE.host, shared_memory=True))
    split = simulate_program(two_calls_and_a_host(), (SIM,), machine).invocation
    assert (split.transfer_cycles, split.host_cycles) == (0, 10_000)


def test_iterations_count_in_the_totals() -> None:
    whole = simulate_program(around(), (), MACHINE, {0: loop(3)})
    # The node: 2 + 4 us; captured values: 3 us; a trip: 3.5 us around the body, 6 us inside it.
    transfer = 6000 + 3000 + 3 * (3500 + 6000)
    assert whole.invocation == Invocation(600, transfer, 3 * 120, 2000 + 3 * 10_000, ())
    assert whole.invocation.cycles == whole.cycles


def test_copies_go_to_the_regions_whose_tensors_they_are() -> None:
    """`z` of region 1 is read by a host part after region 2 has run: region 1 pays for it."""

    def unit(region: int, x: str, z: str) -> UnitCall:
        names = (Binding(x, 0), Binding("w0", 64), Binding(z, 96))
        return UnitCall(0, names, ("n",), "MatMul", region, 100)

    size = UNIT.operands[-1].size_bytes
    late = HostCall(0, ("z", "u"), ("v",), 2 * size, 0, 0, 0, ("h",), ("TopK",))
    calls = (unit(1, "x", "z"), unit(2, "x", "u"), late)
    rows = simulate_program(Program((UNIT,), calls, 4096, 32, 128), (SIM,), MACHINE).invocation
    assert [r.region for r in rows.regions] == [1, 2]
    first, second = (r.transfer_cycles for r in rows.regions)
    assert abs(first - second) <= 1
    assert first + second == rows.transfer_cycles == 1000 + 2 * size


steps = st.tuples(
    st.booleans(), st.integers(0, 4), st.sampled_from("abcd"), st.sampled_from("abcd"),
    st.integers(0, 5000), st.integers(0, 5000),
)  # fmt: skip


@given(st.lists(steps, max_size=12))
def test_parts_sum_to_the_total_and_to_the_regions(
    plan: list[tuple[bool, int, str, str, int, int]],
) -> None:
    calls: list[UnitCall | HostCall] = []
    for is_unit, number, x, z, into, out in plan:
        if is_unit:
            names = (Binding(x, 0), Binding("w0", 64), Binding(z, 96))
            calls.append(UnitCall(0, names, ("n",), "MatMul", number, into))
        else:
            calls.append(HostCall(0, (x,), (z,), into, out, 50, 50, ("h",), ("TopK",)))
    whole = simulate_program(Program((UNIT,), tuple(calls), 4096, 32, 128), (SIM,), MACHINE)
    split = whole.invocation
    assert split.cycles == whole.cycles
    assert sum(r.launch_cycles for r in split.regions) == split.launch_cycles
    assert sum(r.execute_cycles for r in split.regions) == split.execute_cycles
    moved = sum(r.transfer_cycles for r in split.regions)
    assert moved == (split.transfer_cycles if split.regions else 0)
    assert all(min(msgspec.structs.astuple(row)) >= 0 for row in split.regions)


@pytest.mark.parametrize(
    ("split", "detail"),
    [
        (Invocation(1, 2, 3, 4, ()), "residual 1 cycles"),
        (Invocation(1, 2, 3, 5, (RegionTiming(0, 1, 3, 3),)), "regions exceed transfer_cycles"),
    ],
)
def test_the_sanity_check_fails_on_shares_that_are_not_whole(
    split: Invocation, detail: str
) -> None:
    check = invocation_check(split, 11)
    assert not check.passed
    assert detail in check.detail


def test_report_section(tmp_path: Path) -> None:
    compiled = made("host_between", tmp_path)
    _, whole = simulate_model(compiled, MemoryCache())
    section = invocation_section(compiled, whole)
    parts = [section[f"{name}_cycles"] for name in ("launch", "transfer", "execute", "host")]
    assert sum(parts) == whole.cycles  # type: ignore[arg-type]
    assert sum(section["shares_pct"].values()) == pytest.approx(100)  # type: ignore[union-attr]
    rows = section["regions"]
    assert [row["index"] for row in rows] == [0, 1]  # type: ignore[index,union-attr,call-overload]
    assert all(row["transfer_cycles"] > 0 for row in rows)  # type: ignore[index,union-attr]
