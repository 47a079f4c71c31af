"""Energies that are not known: what a spec may say of them, and what they make of a run's."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
from test_simulator_units import MACHINE, chain, two_calls_and_a_host

from worker.compiler.errors import SpecError
from worker.compiler.ir.dtype import DType
from worker.compiler.machine.build import load_machine, load_preset
from worker.compiler.machine.energy_range import Spent, priced
from worker.compiler.machine.evidence import EnergyRange
from worker.compiler.machine.machine import Machine
from worker.compiler.machine.presets import preset_document
from worker.simulator.compose import simulate_program
from worker.simulator.run import simulate_unit


def a100(**fields: Any) -> dict[str, Any]:
    return {**deepcopy(preset_document("a100")), **fields}


def ranges(machine: Machine) -> dict[str, tuple[float, float]]:
    return {each.pointer: (each.low, each.high) for each in machine.energy_ranges}


def test_what_is_vouched_for_is_exact_and_what_is_not_spans_its_kind() -> None:
    cited = load_machine(a100(static_power_w={"value": 80, "tag": "S", "note": "data sheet"}))
    plain = load_machine(a100(static_power_w=80))
    guess = load_machine(a100(static_power_w={"value": 80, "tag": "G"}))
    assert "/static_power_w" not in {**ranges(cited), **ranges(plain)}
    assert ranges(guess)["/static_power_w"] == (64.0, 152.0)
    # Left out of every GPU's document, so of the generic table.
    assert ranges(guess)["/levels/0/read_energy_pj_per_byte"] == (30.625, 56.875)


@pytest.mark.parametrize("watts", [3e-9, 6.4e-7, 1.2345678])
def test_a_guess_lies_in_its_range_however_small(watts: float) -> None:
    low, high = ranges(load_machine(a100(static_power_w={"value": watts, "tag": "G"})))[
        "/static_power_w"
    ]
    assert (low, high) == pytest.approx((0.8 * watts, 1.9 * watts), rel=1e-5)
    assert low < watts < high


def test_a_range_that_is_stated_counts_whatever_the_tag() -> None:
    for tag in ("G", "S", None):
        stated = {"value": 80, "low": 70, "high": 81}
        spec = a100(static_power_w=stated if tag is None else {**stated, "tag": tag})
        assert ranges(load_machine(spec))["/static_power_w"] == (70, 81)
    half = a100(static_power_w={"value": 80, "high": 90, "tag": "S"})
    assert ranges(load_machine(half))["/static_power_w"] == (80, 90)
    half = a100(static_power_w={"value": 80, "high": 90, "tag": "G"})
    assert ranges(load_machine(half))["/static_power_w"] == (64, 90)


@pytest.mark.parametrize(
    ("stated", "allowed"),
    [
        ({"value": 80, "low": 81}, ">= 0 and <= the value, 80"),
        ({"value": 80, "low": -1}, ">= 0 and <= the value, 80"),
        ({"value": 80, "high": 79.5}, ">= the value, 80, and <= 100000"),
        ({"value": 80, "high": float("nan")}, ">= the value, 80, and <= 100000"),
    ],
)
def test_a_range_is_around_its_value(stated: dict[str, float], allowed: str) -> None:
    with pytest.raises(SpecError) as caught:
        load_machine(a100(static_power_w=stated))
    (finding,) = caught.value.findings
    assert (finding.pointer, finding.allowed) == ("/static_power_w", allowed)


def test_only_energies_have_ranges() -> None:
    with pytest.raises(SpecError) as caught:
        load_machine(a100(clock_hz={"value": 1e9, "low": 5e8}))
    assert [finding.pointer for finding in caught.value.findings] == ["/clock_hz/low"]


def test_an_energy_left_out_is_a_guess() -> None:
    spec = a100()
    del spec["static_power_w"]
    listed = {guess.pointer: guess.note for guess in load_machine(spec).guesses}
    assert listed["/static_power_w"] == "not given; it costs no energy"


def test_the_ends_reach_every_part() -> None:
    """Of a chip whose energies are all ranges, by owner and field: none is forgotten."""
    machine = load_preset("simba")
    owners = {each.name: each for each in (*machine.levels, *machine.links)}
    fields = [
        *((level.name, f"{way}_energy_pj_per_byte") for level in machine.levels
          for way in ("read", "write")),
        *((link.name, "energy_pj_per_byte") for link in machine.links),
        *((engine.name, dtype.value) for engine in machine.engines
          for dtype in engine.op_energy_pj or {}),
        ("host", "energy_pj_per_flop"), ("", "static_power_w"),
    ]  # fmt: skip
    spread = tuple(EnergyRange("", *each, k, 1000 + k) for k, each in enumerate(fields))
    low, high = priced(replace(machine, energy_ranges=spread))[1:]

    def of(found: Machine, owner: str, field: str) -> float:
        if owner in owners:
            (part,) = (p for p in (*found.levels, *found.links) if p.name == owner)
            return float(getattr(part, field))
        if owner in ("host", ""):
            return float(getattr(found.host if owner else found, field))
        return (found.engine(owner).op_energy_pj or {})[DType(field)]

    assert [of(low, *each) for each in fields] == list(range(len(fields)))
    assert [of(high, *each) for each in fields] == [1000 + k for k in range(len(fields))]


def test_a_run_costs_what_it_costs_at_both_ends() -> None:
    """Each end is the run on a machine that states that end."""
    spread = (
        EnergyRange("", "DDR", "read_energy_pj_per_byte", 2.0, 9.0),
        EnergyRange("", "R", "write_energy_pj_per_byte", 0.1, 0.7),
        EnergyRange("", "mm", "f32", 1.0, 4.0),
        EnergyRange("", "", "static_power_w", 0.0005, 0.002),
    )
    uncertain = replace(MACHINE, energy_ranges=spread)
    sim = simulate_unit(chain(), uncertain)
    ends = [simulate_unit(chain(), machine) for machine in priced(uncertain)]
    stated, low, high = ({line.item: line.pj for line in end.energy} for end in ends)
    for line in sim.energy:
        assert line.pj == stated[line.item]
        assert line.low_pj == pytest.approx(low[line.item])
        assert line.high_pj == pytest.approx(high[line.item])
    assert {line.item for line in sim.energy if line.low_pj < line.pj < line.high_pj} == {
        "mac", "level:DDR", "register:R", "static",
    }  # fmt: skip


def test_a_program_sums_up_its_kernels_hosts_and_leakage_at_both_ends() -> None:
    spread = (
        EnergyRange("", "host", "energy_pj_per_flop", 1.0, 10.0),
        EnergyRange("", "mm", "f32", 1.5, 2.0),
        EnergyRange("", "", "static_power_w", 0.0005, 0.002),
    )
    uncertain = replace(MACHINE, energy_ranges=spread)
    program = two_calls_and_a_host()
    kernels = tuple(simulate_unit(unit, uncertain) for unit in program.units)
    whole = simulate_program(program, kernels, uncertain)
    lines = {line.item: (line.low_pj, line.pj, line.high_pj) for line in whole.energy}
    assert lines["host"] == (8000, 24_000, 80_000)
    assert lines["mac"] == (120, 160, 160)
    leaked = whole.cycles / MACHINE.clock_hz * 1e12
    assert lines["static"] == pytest.approx((0.0005 * leaked, 0.001 * leaked, 0.002 * leaked))
    assert lines["level:DDR"][0] == lines["level:DDR"][2] > 0
    low, high = (sum(line[end] for line in lines.values()) for end in (0, 2))
    assert whole.energy_range_pj == pytest.approx((low, high))


def test_a_machine_without_ranges_has_one_price() -> None:
    assert priced(MACHINE).each(lambda machine: machine.static_power_w) == Spent(*[0.001] * 3)
