"""What a spec says of a memory's rates: what it sustains of them, and what it moves at least."""

from __future__ import annotations

import pytest
from test_machine_lint import edit, tiny

from worker.compiler.machine import digest, load_machine
from worker.compiler.machine.bursts import burst_units, counted_at


def test_rates_are_what_is_sustained() -> None:
    document = tiny()
    edit("/levels/0/sustained_fraction", 0.5)(document)
    edit("/levels/2/sustained_fraction", {"value": 0.25, "tag": "S"})(document)
    edit("/engines/0/dataflow", {"stationary": "weight"})(document)
    found = load_machine(document)
    assert [level.read_bytes_per_cycle for level in found.levels] == [4, 8, 2]
    assert [level.write_bytes_per_cycle for level in found.levels] == [4, 8, 2]
    # The array's ports are its core's share of what the memory sustains.
    assert found.engine("MM").feed_bytes_per_cycle == found.engine("MM").drain_bytes_per_cycle == 2
    assert "/levels/0/sustained_fraction" not in {guess.pointer for guess in found.guesses}


def test_what_is_left_out_costs_nothing_and_is_a_guess() -> None:
    found = load_machine(tiny())
    assert found.home.read_bytes_per_cycle == 8
    assert burst_units(found) == (1, 1)
    assert {counted_at(level, found) for level in found.levels} == {"bytes"}
    guessed = {guess.pointer: guess.value for guess in found.guesses}
    assert guessed["/levels/0/sustained_fraction"] == "1"
    assert guessed["/levels/0/burst_bytes"] == guessed["/levels/1/burst_bytes"] == "1"
    left = [p for p in guessed if p.startswith("/levels/2/") and "energy" not in p]
    assert left == ["/levels/2/engine_ports"]  # engines compute from this one


@pytest.mark.parametrize(("home", "cache"), [(64, 1), (1, 32), (64, 32)])
def test_ports_count_bursts_where_the_spec_says_so(home: int, cache: int) -> None:
    document = tiny()
    edit("/levels/0/burst_bytes", home)(document)
    edit("/levels/1/burst_bytes", cache)(document)
    found = load_machine(document)
    assert burst_units(found) == (home, cache)
    counted = [counted_at(level, found) for level in found.levels]
    assert counted == [
        "bytes" if home == 1 else "drawn", "bytes" if cache == 1 else "returned", "bytes",
    ]  # fmt: skip
    assert digest(found) != digest(load_machine(tiny()))
