"""Signals between cores: what they take, in specs, machines and time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from graphturbo_nets import Net, clustered, scheduled
from timing_oracle import Step, unit_program
from toy_schedules import machine

from worker.compiler.clock.signals import token_delays
from worker.compiler.isa.loops import LOOP, NO_LOOPS, STRIDE, Loops, frozen
from worker.compiler.isa.program import Stream
from worker.compiler.lower.lower import lower_unit
from worker.compiler.machine import digest, load_machine, load_preset, preset_names
from worker.compiler.machine.digest import machine_document, machine_of
from worker.compiler.machine.presets import preset_document
from worker.simulator.run import simulate_unit

TWO = (Stream(0, "vec"), Stream(1, "vec"), Stream(0, "in"))


def test_another_core_sees_a_finish_later_and_the_signal_is_blamed() -> None:
    """Core 0 works for 10 cycles, core 1 for 5 with the result, 2 of each for the pipeline: seen 3
    cycles late for the latency and 7 more for the signal."""
    steps = [Step(0, cycles=10, latency=3, signals=(0,)), Step(1, cycles=5, waits=(0,))]
    program = unit_program(steps, TWO, ())
    sim = simulate_unit(program, replace(machine(2), signal_cycles=7))
    assert sim.cycles == 10 + 3 + 7 + 5
    assert {c.cause: c.cycles for c in sim.causes} == {
        "engine:vec": 11, "fill:vec": 4, "latency": 3, "synchronisation": 7,
    }  # fmt: skip


def test_between_the_engines_of_a_core_they_take_nothing() -> None:
    steps = [Step(0, cycles=10, signals=(0,)), Step(2, cycles=5, waits=(0,))]
    sim = simulate_unit(unit_program(steps, TWO, ()), replace(machine(2), signal_cycles=7))
    assert sim.cycles == 15


def test_unless_the_spec_says_so() -> None:
    """10 cycles of work, a signal of 4 to the other engine, 5 of work."""
    steps = [Step(0, cycles=10, signals=(0,)), Step(2, cycles=5, waits=(0,))]
    on = replace(machine(2), signal_cycles=7, engine_signal_cycles=4)
    sim = simulate_unit(unit_program(steps, TWO, ()), on)
    assert sim.cycles == 10 + 4 + 5
    assert {c.cause: c.cycles for c in sim.causes}["synchronisation"] == 4
    document = preset_document("a100")
    (guess,) = (g for g in load_machine(document).guesses if g.pointer == "/engine_signal_cycles")
    given = load_machine({**document, "engine_signal_cycles": 4})
    assert (
        given.engine_signal_cycles == machine_of(machine_document(given)).engine_signal_cycles == 4
    )
    assert guess.value == "0" and given.guesses == tuple(
        g for g in load_machine(document).guesses if g != guess
    )


def test_a_kernel_whose_cores_wait_for_each_other_is_slow_for_it() -> None:
    """Compiled for signals that take nothing, run where they take long.  (Compiled for slow ones,
    networks become kernels whose cores need none.)"""
    on = clustered(clusters=2, cores=2, gb_bytes=1 << 16, l1_bytes=1 << 13)
    net = Net()
    x = net.given(1, 4, 16, 16)
    for _ in range(3):
        x = net.relu(net.conv(x, 8, 3))
    schedule = scheduled(net.graph(x), on)
    slow = replace(on, signal_cycles=100_000)
    fast, late = (simulate_unit(lower_unit(schedule, m, "s"), m) for m in (on, slow))
    causes = {c.cause: c.cycles for c in late.causes}
    assert "synchronisation" not in {c.cause for c in fast.causes}
    assert max(causes, key=lambda name: causes[name]) == "synchronisation"
    assert causes["synchronisation"] > 0.75 * late.cycles


def test_a_flag_that_several_cores_use_is_slow_for_all_of_them() -> None:
    """Token 0 is core 0's alone, 1 both cores', 2 is sent by one core and awaited by the other."""
    stream = np.array([0, 1, 0, 1], dtype=np.int32)
    waits = np.array([0, 0, 1, 2, 3], np.int32), np.array([2, 0, 1], np.int32)
    signals = np.array([0, 3, 4, 4, 4], np.int32), np.array([0, 1, 2, 1], np.int32)
    found = token_delays(stream, np.array([0, 1]), (waits, signals), NO_LOOPS, 3, (0, 9))
    assert found.tolist() == [0, 9, 9]
    alone = token_delays(stream, np.array([0, 0]), (waits, signals), NO_LOOPS, 3, (0, 9))
    assert alone.tolist() == [0, 0, 0]
    # Two engines of one core, and stream 0's token is its alone.
    engines = token_delays(stream, np.array([0, 0]), (waits, signals), NO_LOOPS, 3, (2, 9))
    assert engines.tolist() == [0, 2, 2]
    both = token_delays(stream, np.array([0, 1]), (waits, signals), NO_LOOPS, 3, (2, 9))
    assert both.tolist() == [0, 9, 9]


@pytest.mark.parametrize(("token_step", "expected"), [(1, [0, 0, 0]), (0, [9, 0, 0])])
def test_loops_over_cores_have_a_token_each_or_share_one(
    token_step: int, expected: list[int]
) -> None:
    """One row that three cores run signals and awaits token 0, or each a token of its own."""
    stride = np.zeros((1, 1), STRIDE)
    stride["stream"] = 1
    steps = np.full((1, 1), token_step, np.int32)
    loops = frozen(Loops(np.array([(0, 1, 3)], LOOP), stride, steps, steps.copy()))
    use = np.array([0, 1], np.int32), np.zeros(1, np.int32)
    found = token_delays(np.zeros(1, np.int32), np.arange(3), (use, use), loops, 3, (0, 9))
    assert found.tolist() == expected


def test_left_out_it_is_a_guess_two_accesses_where_all_cores_meet() -> None:
    document = preset_document("a100")
    given = load_machine(document)
    del document["signal_cycles"]
    guessed = load_machine(document)
    assert given.signal_cycles == guessed.signal_cycles == 2 * 200
    (guess,) = (g for g in guessed.guesses if g.pointer == "/signal_cycles")
    assert guess.value == "400"
    assert not [g for g in given.guesses if g.pointer == "/signal_cycles"]
    slow = load_machine({**document, "signal_cycles": 1000})
    assert slow.signal_cycles == machine_of(machine_document(slow)).signal_cycles == 1000
    assert digest(slow) != digest(given)


@pytest.mark.parametrize("name", preset_names())
def test_presets_say_it_where_they_have_several_cores(name: str) -> None:
    found = load_preset(name)
    assert (found.signal_cycles > 0) == (found.num_cores > 1)
    assert "not given" not in str([g for g in found.guesses if g.pointer == "/signal_cycles"])
