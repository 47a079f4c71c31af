"""Memories that read or write, but not both at once: in specs, machines and programs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jsonschema_rs
import pytest

from worker.compiler.machine import (
    digest,
    load_machine,
    load_preset,
    parse_document,
    preset_names,
    spec_json_schema,
)
from worker.compiler.machine.digest import machine_document, machine_of
from worker.compiler.machine.machine import Managed, MemoryLevel
from worker.compiler.machine.presets import preset_document

POINTER = "/levels/0/duplex"


def one_core(**duplex: Any) -> dict[str, Any]:
    """A document of two levels, with the duplex of some."""
    document = parse_document(
        """
        name: one
        clock_hz: 1e9
        num_cores: 1
        launch_overhead_cycles: 1
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
