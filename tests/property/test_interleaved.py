"""Kernels run in legal orders against brute force: a missing wait gives a wrong answer, and every
order of a sound program gives the right one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from audit_cases import CASES
from audit_oracle import is_sound, passes
from lower_oracle import finish_before
from program_faults import FAULTS

from worker.compiler.codegen.kernel import generate_steps
from worker.compiler.errors import VerifyError
from worker.compiler.ir.dtype import DType
from worker.compiler.ir.evaluate import evaluate
from worker.compiler.isa.order import predecessors
from worker.compiler.isa.program import OperandRole, UnitProgram
from worker.compiler.isa.verify import verify_program
from worker.compiler.lower.lower import lower_unit
from worker.compiler.machine.machine import Machine
from worker.compiler.package.build import build_library
from worker.compiler.schedule.nodes import Schedule
from worker.verification.interleaved import InterleavedKernel
from worker.verification.interleaving import ORDERS
from worker.verification.orders import legal_order
from worker.verification.receivers import receiver_by_receiver

NAME = "tw_steps"


class Case:
    """A toy, its program, its inputs in small integers, and the outputs that numpy says."""

    def __init__(self, name: str, folder: Path) -> None:
        self.schedule, self.machine = made(name)
        self.program = lower_unit(self.schedule, self.machine, "0" * 64)
        graph, rng = self.schedule.graph, np.random.default_rng(11)
        arrays = {
            o.tensor: rng.integers(1, 9, o.shape).astype(DType(o.dtype).numpy)
            for o in self.program.operands
        }
        self.operands = [np.frombuffer(a.tobytes(), dtype=np.uint8) for a in arrays.values()]
        given = {n: arrays[n] for n in (*graph.inputs, *graph.constants)}
        self.want = {n: np.ascontiguousarray(v).tobytes() for n, v in
                     evaluate(graph, given).items()}  # fmt: skip
        text = generate_steps(self.schedule, self.program, self.machine, NAME)
        self.library = build_library({NAME: text}, folder, is_quick=True)

    def wrong_orders(self, program: UnitProgram, orders: int) -> list[int]:
        """Seeds whose outputs are not what numpy says."""
        kernel = InterleavedKernel(self.schedule, program, self.machine, self.library, NAME)
        return [seed for seed in range(orders) if self._is_wrong(kernel, seed)]

    def _is_wrong(self, kernel: InterleavedKernel, seed: int) -> bool:
        got = kernel.run(self.operands, seed)
        return any(
            value.tobytes() != self.want[operand.tensor]
            for operand, value in zip(self.program.operands, got, strict=True)
            if operand.role is OperandRole.OUTPUT
        )


def made(name: str) -> tuple[Schedule, Machine]:
    schedule, machine = CASES[name]()
    return schedule, machine


@pytest.mark.parametrize("name", CASES)
def test_every_order_of_a_sound_program_is_right(name: str, tmp_path: Path) -> None:
    case = Case(name, tmp_path)
    assert case.wrong_orders(case.program, 3 * ORDERS) == []


@pytest.mark.parametrize("name", CASES)
def test_a_missing_wait_gives_a_wrong_answer(name: str, tmp_path: Path) -> None:
    """If, and only if, brute force calls the fault harmful; the audit says the same."""
    case = Case(name, tmp_path)
    rng = np.random.default_rng(31)
    ran = 0
    for kind in ("hasty", "silent", "early"):
        for _ in range(8):
            broken = FAULTS[kind](case.program, rng)
            harmful = not is_sound(case.schedule, case.machine, broken)
            assert harmful != passes(case.schedule, case.machine, broken)
            try:
                verify_program(broken, case.machine)
            except VerifyError:
                assert harmful  # it waits for what nothing signals: it would not even run
                continue
            ran += harmful
            assert bool(case.wrong_orders(broken, ORDERS)) == harmful, kind
    assert ran or name == "scalar"


@pytest.mark.parametrize("name", [name for name in CASES if name != "scalar"])
def test_a_wrong_address_gives_a_wrong_answer(name: str, tmp_path: Path) -> None:
    case = Case(name, tmp_path)
    rng = np.random.default_rng(5)
    ran = 0
    for _ in range(12):
        broken = FAULTS["misplaced"](case.program, rng)
        try:
            verify_program(broken, case.machine)
            assert case.wrong_orders(broken, ORDERS)
            ran += 1
        except VerifyError:
            pass  # refused, by the program's own rules or as no instruction of the schedule
    assert ran >= 3


@pytest.mark.parametrize("name", CASES)
def test_orders_are_legal_and_leave_no_pair_out(name: str) -> None:
    """By the clock of brute force; what it leaves open happens both ways."""
    schedule, machine = made(name)
    program, _ = receiver_by_receiver(lower_unit(schedule, machine, "0" * 64), machine)
    before, must = predecessors(program), finish_before(program)
    count = program.num_instructions
    seen = [0] * count
    for seed in range(120):
        events = legal_order(program, before, seed)
        assert events == legal_order(program, before, seed)
        assert sorted(events) == list(range(2 * count))
        begun = done = 0
        for event in events:
            number = event // 2
            if event % 2 == 0:
                assert done & must[number] == must[number]
                begun |= 1 << number
            else:
                assert begun >> number & 1
                seen[number] |= done
                done |= 1 << number
    for a in range(count):
        for b in range(a):
            if not must[a] >> b & 1:
                assert seen[a] >> b & 1
                assert seen[b] >> a & 1
