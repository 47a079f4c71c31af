"""Kernels that call a vendor's library for products of integers, beside their own code: equal bits.

A reference allows a rounding, and what a library gets wrong by less than that goes through it.
Sums of integers have no order and no rounding, so there is nothing to allow.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np

from worker.compiler.codegen.kernel import library_calls
from worker.compiler.ir.dtype import DType
from worker.compiler.isa.program import UnitCall
from worker.compiler.judge.compiled import CompiledModel
from worker.compiler.package.build import build_library
from worker.compiler.package.emulator import Emulator
from worker.compiler.package.executable import level_specs
from worker.verification.interleaved import poisoned
from worker.verification.interleaving import distance


class OwnKernels:
    """Those kernels of a model whose calls are all of integers, built without the library."""

    def __init__(self, compiled: CompiledModel, library: Path, build_dir: Path) -> None:
        """`library` holds the kernels that call.

        Raises:
            CompilerError: TW-VERIFY-002 without a C compiler.
        Cost: one more build of the kernels, and one more call of each.
        """
        self._compiled = compiled
        self.done: dict[str, None] = {}
        """Kernels that were compared."""
        texts: dict[str, str] = {}
        programs = []
        seen: set[int] = set()
        for call in compiled.linked.program.calls:
            if not isinstance(call, UnitCall) or call.unit in seen:
                continue
            seen.add(call.unit)
            unit = compiled.units[call.unit]
            target = compiled.partitioning.regions[call.region].target
            on = compiled.machine.restricted(compiled.machine.target(target))
            symbols = [c.symbol for c in library_calls(unit.schedule, unit.program, on) if c.symbol]
            if symbols and not any(DType(s.rpartition("_")[2]).is_float for s in symbols):
                texts[unit.kernel_name] = unit.kernel
                programs.append(unit.program)
        self._kernels = frozenset(texts)
        if texts:
            levels = level_specs(compiled.machine)
            own = build_library(texts, build_dir, is_quick=True)
            self._linked, self._own = (Emulator(path, levels, programs) for path in (library, own))

    def differs(self, call: UnitCall, base: int) -> float | None:
        """By how much the outputs of this call's kernel are apart from those of its own code; None:
        by nothing, or it is none of these, or has run before.

        `base` is the address of the home arena, after the call.
        """
        unit = self._compiled.units[call.unit]
        name = unit.kernel_name
        if name not in self._kernels or name in self.done:
            return None
        self.done[name] = None
        operands = [
            np.frombuffer(ctypes.string_at(base + b.address, o.size_bytes), dtype=np.uint8)
            for o, b in zip(unit.program.operands, call.bindings, strict=True)
        ]
        found = []
        for emulator in (self._linked, self._own):
            made = poisoned(unit.program, operands)
            emulator.call(name, unit.program, [value.ctypes.data for value in made])
            found.append(made)
        return distance(unit.program, *found) or None
