"""What kernels keep to themselves: their observed forms, run beside the plain ones.

After a call, the observed form of its kernel runs on the same operands.  Its outputs must be the
same bits, so that what it shows of its inner tensors holds for the kernel that is shipped.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from worker.compiler.codegen.kernel import generate_kernel
from worker.compiler.ir.bits import load
from worker.compiler.ir.dtype import DType
from worker.compiler.ir.op import Tensor
from worker.compiler.isa.program import OperandRole, UnitCall
from worker.compiler.judge.compiled import CompiledModel
from worker.compiler.judge.units import Unit
from worker.compiler.package.build import build_library
from worker.compiler.package.emulator import Emulator
from worker.compiler.package.executable import level_specs
from worker.compiler.package.kernel_library import KernelLibrary
from worker.verification.whole_outputs import checked_calls

Array = npt.NDArray[Any]
_SUFFIX = "_observed"
OPTIMISED_FROM_POINTS = 1 << 26
"""Below, compiling with optimisation takes longer than running without."""


@dataclass(frozen=True, slots=True)
class InnerValue:
    """An inner tensor after one call."""

    tensor: str
    """Its name in the model."""
    value: Array
    computed: npt.NDArray[np.bool_]
    """Elements that the kernel computed; nothing reads the others."""


def inner_tensors(unit: Unit) -> tuple[Tensor, ...]:
    """What a kernel writes and hands to nobody, in order of writing."""
    graph = unit.schedule.graph
    written = dict.fromkeys(op.write.tensor for op in graph.ops)
    return tuple(graph.tensors[name] for name in written if name not in graph.outputs)


def inner_names(
    compiled: CompiledModel, kernels: Collection[str], every_call: bool, limit_bytes: int
) -> dict[int, dict[str, str]]:
    """By position of a call: canonical inner tensors of its unit -> the model's names.

    Only kernels in `kernels`, their first calls unless `every_call`.  Past `limit_bytes` of values
    the rest is left out.
    """
    found: dict[int, dict[str, str]] = {}
    left = limit_bytes
    for position, _, unit in checked_calls(compiled, kernels, every_call=every_call):
        names = compiled.linked.names[position]
        for tensor in inner_tensors(unit):
            if tensor.size_bytes <= left:
                left -= tensor.size_bytes
                found.setdefault(position, {})[tensor.name] = names[tensor.name]
    return found


def num_points(unit: Unit) -> int:
    """Points that one call computes."""
    return sum(op.num_points for op in unit.schedule.graph.ops)


def _are_same(a: Array, b: Array) -> bool:
    """Whether every bit is, but for what kind of NaN stands somewhere."""
    return bool(np.array_equal(a, b, equal_nan=a.dtype.kind == "f"))


class ObservedKernels:
    """The observed forms of some kernels, built and ready."""

    def __init__(
        self,
        compiled: CompiledModel,
        wanted: Mapping[int, Mapping[str, str]],
        build_dir: Path,
        link: KernelLibrary | None = None,
    ) -> None:
        """`wanted` is what `inner_names` gives, or less; `link`: what kernels are linked with.

        Raises:
            CompilerError: TW-VERIFY-002 without a C compiler.
        """
        self._compiled = compiled
        self._wanted = wanted
        self._inner: dict[int, dict[str, None]] = {}
        """By unit: its observed tensors, in the order of the kernel's extra operands."""
        targets: dict[int, str] = {}
        for position, names in wanted.items():
            call = compiled.linked.program.calls[position]
            assert isinstance(call, UnitCall)
            self._inner.setdefault(call.unit, {}).update(dict.fromkeys(names))
            targets[call.unit] = compiled.partitioning.regions[call.region].target
        texts: dict[str, str] = {}
        machine = compiled.machine
        for index, tensors in self._inner.items():
            unit = compiled.units[index]
            name = unit.kernel_name + _SUFFIX
            on = machine.restricted(machine.target(targets[index]))
            texts[name] = generate_kernel(
                unit.schedule, unit.program, on, name, observed=tuple(tensors)
            )
        programs = [compiled.units[index].program for index in self._inner]
        runs = [compiled.linked.program.calls[position] for position in wanted]
        points = sum(
            num_points(compiled.units[call.unit]) for call in runs if isinstance(call, UnitCall)
        )
        is_quick = points < OPTIMISED_FROM_POINTS
        library = build_library(texts, build_dir, is_quick=is_quick, link=link)
        self._engine = Emulator(library, level_specs(machine), programs)

    def values(
        self, position: int, call: UnitCall, base: int, read: Callable[[str], Array]
    ) -> Iterator[InnerValue | None]:
        """Inner tensors of a call that has just run; nothing where none is wanted.

        `base` is the address of the home arena, `read` gives home tensors.  None comes first where
        the observed form wrote other outputs than the plain one.

        Raises:
            MemoryFault: the observed form left its buffers.
        """
        names = self._wanted.get(position)
        if names is None:
            return
        unit = self._compiled.units[call.unit]
        tensors = [unit.schedule.graph.tensors[name] for name in self._inner[call.unit]]
        data = [np.zeros(max(t.size_bytes, 1), np.uint8) for t in tensors]
        marks = [np.zeros(max(t.num_elems, 1), np.uint8) for t in tensors]
        extra = [a.ctypes.data for pair in zip(data, marks, strict=True) for a in pair]
        pairs = zip(unit.program.operands, call.bindings, strict=True)
        outputs = {
            binding.tensor: DType(operand.dtype)
            for operand, binding in pairs
            if operand.role is OperandRole.OUTPUT
        }
        before = [load(read(name), dtype) for name, dtype in outputs.items()]
        addresses = [base + binding.address for binding in call.bindings]
        self._engine.call(unit.kernel_name + _SUFFIX, unit.program, [*addresses, *extra])
        after = [load(read(name), dtype) for name, dtype in outputs.items()]
        if not all(map(_are_same, before, after)):
            yield None
        for tensor, raw, mark in zip(tensors, data, marks, strict=True):
            if tensor.name in names:
                size, count = tensor.size_bytes, tensor.num_elems
                value = raw[:size].view(tensor.dtype.numpy).reshape(tensor.shape)
                computed = mark[:count].astype(bool).reshape(tensor.shape)
                yield InnerValue(names[tensor.name], value, computed)
