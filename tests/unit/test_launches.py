"""Launches by hand and against a queue played out by events; older specs, which have one cost."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx_models import conv_net, repeated_layers, saved, with_host_part

from worker.compiler.cache import MemoryCache
from worker.compiler.frontend.limits import Limits
from worker.compiler.isa.program import UnitCall
from worker.compiler.judge.launches import Launches
from worker.compiler.machine import load_machine, load_preset
from worker.compiler.machine.lint.document import lint_document
from worker.compiler.machine.machine import LaunchUnit, Machine
from worker.compiler.machine.presets import preset_document
from worker.compiler.options import CompileOptions
from worker.compiler.pipeline import compile_model
from worker.job.ports import open_ports
from worker.job.request import NoProgress
from worker.simulator.run import simulate_program, simulate_unit

KERNEL, REGION = LaunchUnit.KERNEL, LaunchUnit.REGION


def chip(latency: int, gap: int, unit: LaunchUnit = KERNEL, overhead: int = 0) -> Machine:
    """Two targets, of which the second takes ten times as long to start."""
    machine = load_preset("a100")
    near = replace(
        machine.targets[0], name="near", launch_unit=unit, launch_latency_cycles=latency,
        launch_gap_cycles=gap, region_overhead_cycles=overhead,
    )  # fmt: skip
    far = replace(near, name="far", launch_latency_cycles=10 * latency)
    return replace(machine, targets=(near, far))


def costs(machine: Machine, calls: list[tuple[str, int]]) -> list[int]:
    """Of kernels; a call of the host is ("host", 0)."""
    launches, found = Launches(machine), []
    for target, region in calls:
        if target == "host":
            launches.host_part()
        else:
            found.append(launches.kernel(target, region))
    return found


# -- by hand ---------------------------------------------------------------------------------------


def test_two_kernels_in_sequence() -> None:
    assert costs(chip(50, 8), [("near", 0), ("near", 0)]) == [50, 8]
    assert costs(chip(50, 8), [("near", 0), ("near", 1)]) == [50, 8]


def test_a_kernel_after_a_host_part() -> None:
    calls = [("host", 0), ("near", 0), ("near", 0), ("host", 0), ("near", 1), ("near", 1)]
    assert costs(chip(50, 8), calls) == [50, 8, 50, 8]


def test_a_kernel_of_another_target_finds_it_idle() -> None:
    calls = [("near", 0), ("far", 1), ("far", 1), ("near", 2)]
    assert costs(chip(50, 8), calls) == [50, 500, 8, 50]


def test_a_region_that_is_launched_as_one() -> None:
    calls = [("near", 0), ("near", 0), ("near", 0), ("near", 1), ("near", 1), ("host", 0)]
    assert costs(chip(50, 8, REGION), calls) == [50, 0, 0, 8, 0]
    assert costs(chip(50, 8, REGION, 3), [*calls, ("near", 2)]) == [53, 0, 0, 11, 0, 53]
    assert costs(chip(50, 8, KERNEL, 3), calls) == [53, 8, 8, 11, 8]


# -- against a queue -------------------------------------------------------------------------------


def played(machine: Machine, calls: list[tuple[str, int, int]]) -> list[int]:
    """Starts of kernels, by events: the host submits in no time and waits where it must.

    A kernel starts when its submission has arrived and the one before it is a gap behind.
    """
    now = 0  # of the host
    ends: list[tuple[str, int]] = []
    regions: set[int] = set()
    starts: list[int] = []
    for target, region, length in calls:
        last = ends[-1] if ends else ("", 0)
        if target == "host":
            now = max(now, last[1]) + length
            ends.append(("host", now))
            continue
        place = machine.target(target)
        is_queued = last[0] == target
        if not is_queued:
            now = max(now, last[1])
        is_inside = region in regions and place.launch_unit is REGION
        start = now + machine.launch_latency(place)
        if is_queued:
            start = max(start, last[1] + machine.launch_gap(place)) if not is_inside else last[1]
        start += place.region_overhead_cycles * (region not in regions)
        regions.add(region)
        starts.append(start)
        ends.append((target, start + length))
    return starts


@st.composite
def programs(draw: st.DrawFn) -> list[tuple[str, int, int]]:
    """Regions of one target each, whole, with host parts between some of them."""
    calls: list[tuple[str, int, int]] = []
    length = st.integers(1, 90)
    for region in range(draw(st.integers(1, 5))):
        target = draw(st.sampled_from(["near", "near", "far"]))
        if draw(st.booleans()):
            calls.append(("host", 0, draw(length)))
        calls += [(target, region, draw(length)) for _ in range(draw(st.integers(1, 4)))]
    return calls


@given(programs(), st.integers(0, 60), st.integers(0, 60), st.sampled_from(LaunchUnit),
       st.sampled_from([0, 7]))  # fmt: skip
def test_costs_are_what_a_queue_shows(
    calls: list[tuple[str, int, int]], gap: int, more: int, unit: LaunchUnit, overhead: int
) -> None:
    machine = chip(gap + more, gap, unit, overhead)
    found = iter(costs(machine, [(target, region) for target, region, _ in calls]))
    clock, starts = 0, []
    for target, _, length in calls:
        if target != "host":
            clock += next(found)
            starts.append(clock)
        clock += length
    assert starts == played(machine, calls)


# -- in a program ----------------------------------------------------------------------------------


@pytest.mark.parametrize("model", [conv_net(), repeated_layers(4), with_host_part()])
@pytest.mark.parametrize("unit", LaunchUnit)
def test_a_simulated_program_pays_what_its_calls_say(
    tmp_path: Path, model: onnx.ModelProto, unit: LaunchUnit
) -> None:
    machine = load_preset("a100")
    target = replace(machine.targets[0], launch_unit=unit)
    machine = replace(machine, targets=(target,), launch_latency_cycles=7000, launch_gap_cycles=900)
    options = CompileOptions(strategy="naive")
    ports = open_ports(machine, options, MemoryCache(), NoProgress())
    found = compile_model(saved(model, tmp_path), "m", machine, options, ports, Limits())
    program = found.linked.program
    expected = after_host = 0
    for number, call in enumerate(program.calls):
        if not isinstance(call, UnitCall):
            continue
        before = program.calls[number - 1] if number else None
        cycles = (900 if unit is KERNEL else 0) if isinstance(before, UnitCall) else 7000
        after_host += cycles == 7000
        assert call.launch_cycles == cycles
        expected += cycles
    whole = simulate_program(
        program, tuple(simulate_unit(u.program, machine) for u in found.units), machine
    )
    assert whole.launch_cycles == expected
    assert sum(c.cycles for c in whole.causes if c.cause == "launch") == expected
    assert sum(b.cycles for b in whole.floor if b.name == "launch") == expected
    assert after_host >= 1
    assert all(check.passed for check in whole.checks)


# -- specs -----------------------------------------------------------------------------------------


def document(**fields: Any) -> dict[str, Any]:
    """A preset's document without launches, and other fields."""
    found = deepcopy(preset_document("v100"))
    for name in ("launch_latency_cycles", "launch_gap_cycles"):
        del found[name]
    return {**found, **fields}


def test_the_one_field_of_older_specs_gives_both() -> None:
    """Also where it is laid over a preset that states both, and with its evidence."""
    own = document(launch_overhead_cycles={"value": 123, "tag": "G", "note": "old"})
    over = {"name": "mine", "inherits": "v100", "launch_overhead_cycles": 123}
    for spec in (own, over):
        machine = load_machine(spec)
        assert (machine.launch_latency_cycles, machine.launch_gap_cycles) == (123, 123)
    listed = {g.pointer: g.note for g in load_machine(own).guesses}
    assert listed["/launch_gap_cycles"] == listed["/launch_latency_cycles"] == "old"


def test_the_old_field_of_a_target_is_its_own() -> None:
    spec = document(launch_latency_cycles=60, launch_gap_cycles=6)
    offered = spec.pop("capabilities")
    spec["targets"] = [
        {"name": "one", "capabilities": offered, "launch_overhead_cycles": 20},
        {"name": "two", "capabilities": offered, "launch_latency_cycles": 30},
        {"name": "three", "capabilities": offered},
        {"name": "four", "capabilities": offered, "launch_gap_cycles": 2},
    ]
    machine = load_machine(spec)
    found = {t.name: (machine.launch_latency(t), machine.launch_gap(t)) for t in machine.targets}
    assert found == {"one": (20, 20), "two": (30, 30), "three": (60, 6), "four": (60, 2)}
    assert "/targets/1/launch_gap_cycles" in {g.pointer for g in machine.guesses}


def test_old_and_new_field_together_are_refused_where_they_stand() -> None:
    spec = document(launch_overhead_cycles=5, launch_gap_cycles=1)
    (finding,) = lint_document(spec)
    assert (finding.code, finding.pointer, finding.allowed) == (
        "TW-SPEC-001", "/launch_overhead_cycles", "absent",
    )  # fmt: skip
    assert "launch_gap_cycles is given too" in finding.message


def test_what_is_wrong_with_a_lifted_field_points_at_what_the_user_wrote() -> None:
    pointers = [f.pointer for f in lint_document(document(launch_overhead_cycles=-1))]
    assert pointers == ["/launch_overhead_cycles"] * 2


def test_a_gap_that_is_left_out_is_the_latency_and_a_guess() -> None:
    machine = load_machine(document(launch_latency_cycles=77))
    assert machine.launch_gap(machine.targets[0]) == 77
    (guess,) = [g for g in machine.guesses if g.pointer == "/launch_gap_cycles"]
    assert guess.value == "77"
