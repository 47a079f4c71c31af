"""With `--verify full`: the first call of every kernel again, in other legal orders.

What an order gives must be the bits that the plain kernel gives on the same operands, which is the
one that is compared with the reference.  Kernels that would take too long are left out, and said.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from worker.compiler.codegen.kernel import generate_steps
from worker.compiler.errors import MemoryFault, VerifyError
from worker.compiler.ir.bits import load
from worker.compiler.ir.dtype import DType
from worker.compiler.isa.program import OperandRole, UnitCall, UnitProgram
from worker.compiler.judge.compiled import CompiledModel
from worker.compiler.machine.machine import Machine
from worker.compiler.package.build import build_library
from worker.compiler.package.emulator import Emulator
from worker.compiler.package.executable import level_specs
from worker.compiler.package.kernel_library import KernelLibrary
from worker.verification.interleaved import Bytes, InterleavedKernel, poisoned, why_not
from worker.verification.observing import num_points

ORDERS = 16
"""Up to twelve streams first, and at least four of the other ways.  Measured in decision 0047."""
MAX_INSTRUCTIONS = 1 << 14
"""Of all kernels of a model that are interleaved: times orders, some 10 s."""
MAX_POINTS = 1 << 26
"""Of their operators: times orders, some 10 s."""
_SUFFIX = "_steps"


class InterleavedKernels:
    """The kernels of a model that are run in other orders, and why the others are not."""

    def __init__(
        self,
        compiled: CompiledModel,
        library: Path,
        build_dir: Path,
        link: KernelLibrary | None = None,
    ) -> None:
        """`library` holds the plain kernels; `link`: what they are linked with.

        Raises:
            CompilerError: TW-VERIFY-002 without a C compiler.
        """
        self._compiled = compiled
        self.done: list[str] = []
        """Kernels that have run."""
        self.left_out: dict[str, str] = {}
        """Kernel -> why it does not."""
        texts: dict[str, str] = {}
        machine = compiled.machine
        instructions = points = 0
        self._machines: dict[int, Machine] = {}
        for call in compiled.linked.program.calls:
            if not isinstance(call, UnitCall) or call.unit in self._machines:
                continue
            unit = compiled.units[call.unit]
            on = machine.restricted(
                machine.target(compiled.partitioning.regions[call.region].target)
            )
            self._machines[call.unit] = on
            why = why_not(unit.schedule, unit.program, on)
            if why is None:
                more = instructions + unit.program.num_instructions, points + num_points(unit)
                why = _why_too_many(*more)
            if why is not None:
                self.left_out[unit.kernel_name] = why
                continue
            instructions, points = more
            name = unit.kernel_name + _SUFFIX
            texts[name] = generate_steps(unit.schedule, unit.program, on, name)
        self._library: Path | None = None
        if texts:
            self._library = build_library(texts, build_dir, is_quick=True, link=link)
        programs = [compiled.units[index].program for index in self._machines]
        self._plain = Emulator(library, level_specs(machine), programs)

    def differs(self, call: UnitCall, base: int) -> tuple[str, float] | None:
        """What another order of this call's kernel does that the plain one does not, and by how
        much the outputs are apart; None: nothing, or it is left out, or has run before.

        `base` is the address of the home arena, after the call.
        """
        unit = self._compiled.units[call.unit]
        name = unit.kernel_name
        if self._library is None or name in self.left_out or name in self.done:
            return None
        self.done.append(name)
        operands = [
            np.frombuffer(ctypes.string_at(base + b.address, o.size_bytes), dtype=np.uint8)
            for o, b in zip(unit.program.operands, call.bindings, strict=True)
        ]
        want = poisoned(unit.program, operands)
        self._plain.call(name, unit.program, [value.ctypes.data for value in want])
        on = self._machines[call.unit]
        try:
            kernel = InterleavedKernel(
                unit.schedule, unit.program, on, self._library, name + _SUFFIX
            )
            for seed in range(ORDERS):
                apart = distance(unit.program, kernel.run(operands, seed), want)
                if apart > 0:
                    return (
                        f"order {seed} of its instructions, which streams and tokens allow, gives"
                        " other outputs than the kernel: something does not wait for what it needs",
                        apart,
                    )
        except (MemoryFault, VerifyError) as fault:
            return f"instruction by instruction it fails: {fault.message}", np.inf
        return None


def _why_too_many(instructions: int, points: int) -> str | None:
    for have, most, what in (
        (instructions, MAX_INSTRUCTIONS, "instructions"), (points, MAX_POINTS, "points"),
    ):  # fmt: skip
        if have > most:
            return f"with those before it there are {have} {what}, more than {most}"
    return None


def distance(unit: UnitProgram, made: Sequence[Bytes], want: Sequence[Bytes]) -> float:
    """By how much outputs differ at most; 0: every bit is the same, but for kinds of NaN."""
    worst = 0.0
    for operand, a, b in zip(unit.operands, made, want, strict=True):
        if operand.role is not OperandRole.OUTPUT:
            continue
        dtype = DType(operand.dtype)
        first, second = (load(value.view(dtype.numpy), dtype) for value in (a, b))
        if np.array_equal(first, second, equal_nan=first.dtype.kind == "f"):
            continue
        with np.errstate(invalid="ignore"):
            apart = np.abs(first.astype(np.float64) - second.astype(np.float64))
        is_same = (first == second) | (np.isnan(first) & np.isnan(second))
        found = float(np.max(np.where(is_same, 0.0, apart)))
        worst = max(worst, np.inf if np.isnan(found) else found, np.finfo(np.float64).tiny)
    return worst
