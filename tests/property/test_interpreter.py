"""The interpreter of streams against the C kernels: same bits in any order, and faults that show.

Every toy of `check_kernel` is interpreted as well; here are orders, faults and damage.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from audit_cases import CASES
from audit_oracle import is_sound
from interpreted_runs import assert_counts, interpreter_of, region_of, stream_of
from looped_trees import TREES
from lower_toys import cluster_machine, cluster_matmul, flat_machine, naive_matmul
from program_faults import FAULTS
from sealed_streams import sealed

from worker.compiler.errors import InputError, SimulationError, VerifyError
from worker.compiler.ir.dtype import DType
from worker.compiler.ir.evaluate import evaluate
from worker.compiler.isa.program import UnitProgram
from worker.compiler.isa.verify import verify_program
from worker.compiler.lower.lower import lower_unit
from worker.compiler.machine.machine import Machine
from worker.compiler.package.stream.codec import decode_stream
from worker.compiler.package.stream.records import DIRECTORY, HEADER, TABLES
from worker.compiler.schedule.nodes import Schedule
from worker.interpreter.run import Interpreter


class Case:
    """A toy, its program, its inputs in small integers, and the outputs that numpy says."""

    def __init__(self, schedule: Schedule, machine: Machine, most_rows: int = 1 << 14) -> None:
        self.schedule, self.machine = schedule, machine
        self.program = lower_unit(schedule, machine, "0" * 64, most_rows=most_rows)
        graph, rng = self.schedule.graph, np.random.default_rng(11)
        arrays: dict[str, np.ndarray[Any, Any]] = {
            n: rng.integers(1, 9, graph.tensors[n].shape).astype(
                DType(graph.tensors[n].dtype).numpy
            )
            for n in (*graph.inputs, *graph.constants)
        }
        self.given = {name: np.ascontiguousarray(a).tobytes() for name, a in arrays.items()}
        self.want = {n: np.ascontiguousarray(v).tobytes() for n, v in
                     evaluate(graph, arrays).items() if n in graph.outputs}  # fmt: skip

    def interpreter(self, program: UnitProgram, seed: int) -> Interpreter:
        return interpreter_of(self.schedule, program, self.machine, seed)

    def is_wrong(self, program: UnitProgram, seeds: range) -> bool:
        """Whether some order gives other outputs, or is caught."""
        for seed in seeds:
            try:
                if self.interpreter(program, seed).run(self.given) != self.want:
                    return True
            except SimulationError:
                return True
        return False


def made(name: str) -> tuple[Schedule, Machine]:
    schedule, machine = CASES[name]()
    return schedule, machine


@cache
def case(name: str) -> Case:
    return Case(*made(name))


@pytest.mark.parametrize("name", CASES)
def test_every_order_of_a_sound_program_is_right(name: str) -> None:
    each = case(name)
    for seed in range(6):
        interpreter = each.interpreter(each.program, seed)
        assert interpreter.run(each.given) == each.want
        assert_counts(interpreter.counts[0], each.program, each.machine)


LOOPED = {**TREES, "clusters": (cluster_matmul(2, 2, 4), cluster_machine())}
"""That of `TREES` is cut into more tiles than it has rows: it loops, and computes nothing."""


@pytest.mark.parametrize("name", LOOPED)
def test_loops_change_nothing(name: str) -> None:
    """A program that lists as few rows as can be: the right answer, and the same counts."""
    each = Case(*LOOPED[name], most_rows=0)
    interpreter = each.interpreter(each.program, 3)
    assert interpreter.run(each.given) == each.want
    assert_counts(interpreter.counts[0], each.program, each.machine)


def test_a_stream_does_not_grow_with_its_trips() -> None:
    """Four times the depth, the same number of rows."""
    sizes = [
        len(stream_of(s, lower_unit(s, flat_machine(1), "0" * 64, most_rows=0), flat_machine(1)))
        for s in (naive_matmul(8, 8, depth, (8, 8, 8), 1) for depth in (320, 1280))
    ]
    assert sizes[0] == sizes[1]


@cache
def faults_shown(name: str) -> tuple[int, int, int]:
    """(harmful, of these shown in some order, harmless ones that were) of dropped waits and
    signals, and instructions moved forward."""
    each, rng = case(name), np.random.default_rng(31)
    harmful = shown = alarms = 0
    for kind in ("hasty", "silent", "early"):
        for _ in range(2):
            broken = FAULTS[kind](each.program, rng)
            try:
                verify_program(broken, each.machine)
            except VerifyError:
                continue
            is_wrong = each.is_wrong(broken, range(8))
            if is_sound(each.schedule, each.machine, broken):
                alarms += is_wrong
            else:
                harmful += 1
                shown += is_wrong
    return harmful, shown, alarms


@pytest.mark.parametrize("name", [name for name in CASES if name != "scalar"])
def test_harmless_faults_change_nothing(name: str) -> None:
    assert faults_shown(name)[2] == 0


def test_most_harmful_faults_show_in_some_of_eight_orders() -> None:
    found = [faults_shown(name) for name in CASES if name != "scalar"]
    harmful, shown, _ = map(sum, zip(*found, strict=True))
    assert harmful >= 10
    assert 4 * shown >= 3 * harmful, (shown, harmful)


@pytest.mark.parametrize("name", [name for name in CASES if name != "scalar"])
def test_a_wrong_address_is_caught(name: str) -> None:
    """The instruction says another place than its leaf."""
    each, rng = case(name), np.random.default_rng(5)
    for _ in range(6):
        broken = FAULTS["misplaced"](each.program, rng)
        with pytest.raises((SimulationError, InputError)):
            each.interpreter(broken, 0).run(each.given)


def test_bits_flipped_behind_right_digests_never_pass_for_another_answer() -> None:
    """In the tables that decide values: refused, caught, or the outputs are right all the same.

    What is left is a sound stream of another program, whose outputs are wrong because the change
    says so: an operation, a constant, a fill.  Those are the digests' to see.
    """
    each = case("naive")
    stream = stream_of(each.schedule, each.program, each.machine)
    rows = np.frombuffer(stream, DIRECTORY.dtype, len(TABLES), HEADER.dtype.itemsize)
    rng = np.random.default_rng(3)
    refused = caught = right = other = 0
    for row, table in zip(rows, TABLES, strict=True):
        if table.name in ("text", "strings") or not row["count"]:
            continue
        size = int(row["count"]) * int(row["record_bytes"])
        for _ in range(12):
            broken = bytearray(stream)
            broken[int(row["offset"]) + int(rng.integers(size))] ^= 1 << int(rng.integers(8))
            with pytest.raises(InputError):
                decode_stream(bytes(broken))  # as it came
            try:
                made = Interpreter(sealed(bytes(broken))).run(each.given)
            except (InputError, VerifyError):
                refused += 1
            except SimulationError:
                caught += 1
            else:
                right += made == each.want
                other += made != each.want
    assert refused > 0
    assert caught > 0
    assert other < (refused + caught + right) // 10


def test_inputs_and_constants_are_checked() -> None:
    each = case("naive")
    stream = stream_of(each.schedule, each.program, each.machine)
    name = next(iter(each.given))
    with pytest.raises(InputError, match="bytes for"):
        Interpreter(stream).run({**each.given, name: each.given[name][:-1]})
    with pytest.raises(InputError, match="bytes for"):
        Interpreter(stream).run({n: v for n, v in each.given.items() if n != name})


def test_what_a_stream_says_of_itself_is_what_it_was_made_of() -> None:
    each = case("naive")
    code = region_of(each.schedule, each.program, each.machine)
    again = decode_stream(stream_of(each.schedule, each.program, each.machine))
    assert again.levels == code.levels
    assert (again.cores, again.entries, again.calls) == (code.cores, code.entries, code.calls)
    for table, rows in code.tasks[0].tables.items():
        np.testing.assert_array_equal(again.tasks[0].tables[table], rows)
