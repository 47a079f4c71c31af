"""Memories that read or write, but not both at once: in specs, machines and programs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jsonschema_rs
import lower_toys as toys
import pytest

from worker.compiler.errors import VerifyError
from worker.compiler.isa.binary import decode_program, encode_program
from worker.compiler.isa.program import Program, Resource, UnitProgram, port_numbers
from worker.compiler.isa.text import parse_program, print_program
from worker.compiler.isa.verify import verify_program
from worker.compiler.lower.lower import lower_unit
from worker.compiler.machine import (
    digest,
    load_machine,
    load_preset,
    parse_document,
    preset_names,
    spec_json_schema,
)
from worker.compiler.machine.bursts import Sizes
from worker.compiler.machine.digest import machine_document, machine_of
from worker.compiler.machine.machine import Machine, Managed, MemoryLevel
from worker.compiler.machine.presets import preset_document
from worker.compiler.tiling.chain.cost import Busy, Flow, Timing, predict
from worker.compiler.tiling.chain.cut import Held

POINTER = "/levels/0/duplex"


def one_core(**duplex: Any) -> dict[str, Any]:
    """A document of two levels, with the duplex of some."""
    document = parse_document(
        """
        name: one
        clock_hz: 1e9
        num_cores: 1
        launch_latency_cycles: 1
        levels:
          - {name: DDR, capacity_bytes: 4096, instances: 1, read_bytes_per_cycle: 8,
             write_bytes_per_cycle: 4, latency_cycles: 1}
          - {name: L1, capacity_bytes: 1024, instances: 1, read_bytes_per_cycle: 8,
             write_bytes_per_cycle: 4, latency_cycles: 1}
        engines:
          - {name: V, kind: vector, memory: L1, macs_per_cycle: {f32: 1}}
          - {name: I, kind: dma_in, memory: L1}
          - {name: O, kind: dma_out, memory: L1}
        host: {name: cpu, flops_per_s: 1e9, memory_bytes_per_s: 1e9, link_bytes_per_s: 1e9,
               link_latency_s: 0, launch_overhead_s: 0}
        capabilities: {dtypes: [f32], max_rank: 4, groups: [broad]}
        """
    )
    for level in document["levels"]:
        if level["name"] in duplex:
            level["duplex"] = duplex[level["name"]]
    return document


def test_left_out_home_is_half_duplex_and_a_guess_and_other_levels_are_full() -> None:
    machine = load_machine(one_core())
    assert [level.half_duplex for level in machine.levels] == [True, False]
    guesses = {g.pointer: g for g in machine.guesses if g.pointer.endswith("duplex")}
    assert list(guesses) == [POINTER]
    assert guesses[POINTER].value == "half"


@pytest.mark.parametrize("said", ["full", {"value": "full", "tag": "S", "note": "two buses"}])
def test_what_a_spec_says_of_home_is_no_guess(said: object) -> None:
    machine = load_machine(one_core(DDR=said, L1="half"))
    assert [level.half_duplex for level in machine.levels] == [False, True]
    assert not [g for g in machine.guesses if g.pointer.endswith("duplex")]


def test_a_duplex_tagged_as_a_guess_is_listed_as_one() -> None:
    machine = load_machine(one_core(DDR={"value": "full", "tag": "G", "note": "two buses?"}))
    found = [(g.pointer, g.value, g.note) for g in machine.guesses if "duplex" in g.pointer]
    assert found == [(POINTER, "full", "two buses?")]


def test_it_is_part_of_the_digest_and_comes_back_from_the_document() -> None:
    half, full = load_machine(one_core(DDR="half")), load_machine(one_core(DDR="full"))
    assert digest(half) != digest(full)
    for machine in (half, full):
        assert machine_of(machine_document(machine)).levels == machine.levels


def test_an_inheriting_spec_changes_it_and_nothing_else() -> None:
    base = load_preset("kapla-edge")
    mine = load_machine({
        "name": "mine", "inherits": "kapla-edge", "levels": [{"name": "DRAM", "duplex": "full"}],
    })  # fmt: skip
    assert base.home.half_duplex
    assert mine.levels == (replace(base.home, half_duplex=False), *base.levels[1:])


def test_the_schema_takes_words_and_tagged_words_alone() -> None:
    validator = jsonschema_rs.validator_for(spec_json_schema())
    tagged = {"value": "half", "tag": "K", "note": "JEDEC"}
    assert all(validator.is_valid(one_core(DDR=said)) for said in ("full", "half", tagged))
    refused = ("both", True, {"tag": "K"}, {"value": "half", "tag": "X"})
    assert not any(validator.is_valid(one_core(DDR=said)) for said in refused)


@pytest.mark.parametrize("name", sorted(set(preset_names()) - {"stcp920-inferred"}))
def test_every_preset_says_it_of_home_with_evidence(name: str) -> None:
    """DRAM has one data bus; what PCIe lanes bound to less than that has two directions."""
    level = preset_document(name)["levels"][0]
    assert level["duplex"]["tag"] and level["duplex"]["note"]
    assert load_preset(name).home.half_duplex == (name not in ("ipu-gc2", "ipu-gc200"))


def test_time_of_reads_and_writes() -> None:
    """100 bytes read at 8 and 60 written at 4 a cycle: 12.5 and 15 cycles."""
    full = MemoryLevel("M", 1 << 20, 2, 8.0, 4.0, 1, 1.0, 1.0, Managed.SCRATCHPAD)
    half = replace(full, half_duplex=True)
    assert full.transfer_cycles(100, 60) == 15
    assert half.transfer_cycles(100, 60) == 27.5
    assert full.transfer_cycles(100, 60, 2) == 7.5
    assert half.transfer_cycles(100, 60, 2) == 13.75
    assert (full.both_bytes_per_cycle, half.both_bytes_per_cycle) == (12, 8)


def halved(machine: Machine, *names: str) -> Machine:
    """The machine with some levels half duplex."""
    levels = tuple(replace(m, half_duplex=m.name in names) for m in machine.levels)
    return replace(machine, levels=levels)


def product(machine: Machine) -> UnitProgram:
    """A product of 4 x 4 matrices on two cores."""
    return lower_unit(toys.naive_matmul(4, 4, 4, (2, 2, 2), 2), machine, "s")


def test_lowering_marks_both_directions_of_a_half_duplex_level() -> None:
    full, half = product(toys.flat_machine()), product(halved(toys.flat_machine(), "DDR"))
    assert not any(r.half_duplex for r in full.resources)
    assert {(r.level, r.direction): r.half_duplex for r in half.resources} == {
        ("DDR", "read"): True, ("DDR", "write"): True,
        ("L2", "read"): False, ("L1", "read"): False, ("L1", "write"): False,
    }  # fmt: skip
    bare = tuple(replace(r, half_duplex=False) for r in half.resources)
    assert bare == full.resources
    assert (half.instructions == full.instructions).all()


def test_half_duplex_directions_of_an_instance_are_one_port() -> None:
    def port(level: str, instance: int, way: str, half: bool = True) -> Resource:
        return Resource(level, instance, way, 1.0, half)

    assert port_numbers(()).tolist() == []
    ports = (
        port("L1", 1, "write"), port("DDR", 0, "read", False), port("L1", 0, "read"),
        port("L1", 1, "read"), port("DDR", 0, "write", False), port("L1", 0, "write"),
        port("bus", 0, "link", False), port("L2", 0, "write"),
    )  # fmt: skip
    assert port_numbers(ports).tolist() == [0, 1, 2, 0, 4, 2, 6, 7]


@pytest.mark.parametrize("names", [(), ("DDR",), ("DDR", "L1")])
def test_programs_carry_it_as_text_and_as_bytes(names: tuple[str, ...]) -> None:
    unit = product(halved(toys.flat_machine(), *names))
    text = print_program(unit)
    lines = [line for line in text.splitlines() if line.startswith("resource")]
    assert {line.endswith(" half_duplex=true") for line in lines if '"DDR"' in line} == {
        "DDR" in names
    }
    again = parse_program(text)
    assert again.resources == unit.resources
    assert print_program(again) == text
    data = encode_program(Program((unit,), (), 1, 1, 0))
    assert decode_program(data).units[0].resources == unit.resources


def test_a_text_that_does_not_say_it_is_full_duplex() -> None:
    text = print_program(product(halved(toys.flat_machine(), "DDR")))
    old = parse_program(text.replace(" half_duplex=true", ""))
    assert not any(r.half_duplex for r in old.resources)


def test_a_program_and_its_machine_must_agree() -> None:
    full, half = toys.flat_machine(), halved(toys.flat_machine(), "L1")
    verify_program(product(half), half)
    first = next(k for k, r in enumerate(product(half).resources) if r.level == "L1")
    for unit, machine in ((product(half), full), (product(full), half)):
        with pytest.raises(VerifyError) as caught:
            verify_program(unit, machine)
        assert (caught.value.rule, caught.value.path) == ("duplex", f"resource {first}")
    unit = product(half)
    torn = tuple(
        replace(r, half_duplex=False) if (r.level, r.direction) == ("L1", "write") else r
        for r in unit.resources
    )
    with pytest.raises(VerifyError, match="shares one port"):
        verify_program(replace(unit, resources=torn), half)
    link = replace(unit.resources[first], direction="link")
    with pytest.raises(VerifyError, match="no level or link"):
        verify_program(replace(unit, resources=(*unit.resources[:first], link)), half)


@pytest.mark.parametrize("half", [(), ("DDR",), ("L1",), ("DDR", "L1")])
def test_row_chains_take_turns_at_a_port_of_both_directions(half: tuple[str, ...]) -> None:
    """Eight rows of 64 bytes in and of 32 out on each of two cores, which share home.

    A core gets home's 1 byte a cycle in halves for reads, and 2 in halves for writes; its own
    memory takes 16 either way: 1024 cycles and 256 at home, 48 in all at L1.
    """
    machine = toys.flat_machine()
    rates = {"DDR": (1.0, 2.0), "L1": (16.0, 16.0)}
    levels = tuple(
        replace(m, latency_cycles=0, read_bytes_per_cycle=rates[m.name][0],
                write_bytes_per_cycle=rates[m.name][1], half_duplex=m.name in half)
        for m in machine.levels if m.name in rates
    )  # fmt: skip
    rows = (0,)
    flows = [
        Flow(Held("t", (toys.span(0, n),), rows), "DDR", Sizes(4 * n, 4 * n, 4 * n))
        for n in (16, 8)
    ]
    timing = Timing(((rows, 10),), (), (flows[0],), (flows[1],))
    cycles, _ = predict(
        timing, (8,), Busy(2, 1), "L1", replace(machine, levels=levels), overlaps=True
    )
    apart = 8 * 64 * 2 + 64 * 2 + 32  # the slower of both, the first fetch, the last store
    in_turns = 8 * 64 * 2 + 8 * 32
    assert cycles == (max(apart, in_turns) if "DDR" in half else apart)
    assert in_turns > apart
