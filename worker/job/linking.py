"""The kernel library of a job: read before anything is compiled, asked for what kernels call."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import msgspec

from worker.compiler.assembly.packing import programs
from worker.compiler.codegen.kernel import library_calls
from worker.compiler.codegen.library_calls import KernelCall
from worker.compiler.errors import Detail, InputError
from worker.compiler.isa.program import UnitCall
from worker.compiler.judge.compiled import CompiledModel
from worker.compiler.machine.machine import Machine
from worker.compiler.package.kernel_library import (
    KernelLibrary,
    LinkedLibrary,
    Wanted,
    read_library,
    require_symbols,
)
from worker.job.request import JobRequest


def linked_library(request: JobRequest, machine: Machine) -> KernelLibrary | None:
    """The library that the request names; None: none.

    Raises:
        InputError: TW-LINK-001 to -003, it is unfit; -006, it is not the file that the options
            name; -007, no instruction of the machine has a call.
    """
    if request.link_path is None:
        if request.options.link:
            raise InputError(
                "TW-LINK-006", "the options name a kernel library, and none is given",
                pointer="/options/link", limit=request.options.link,
            )  # fmt: skip
        return None
    library = read_library(request.link_path)
    if library.sha256 != request.options.link:
        raise InputError(
            "TW-LINK-006", f"{request.link_path.name} is not the file that the options name",
            pointer="/options/link", limit=request.options.link, actual=library.sha256,
        )  # fmt: skip
    if not any(i.call is not None for engine in machine.engines for i in engine.intrinsics):
        raise InputError(
            "TW-LINK-007",
            f"{library.label} is given, and no instruction of {machine.name} names a `call`",
            pointer="/options/link", actual=library.label,
        )  # fmt: skip
    return library


def require_linked(
    library: KernelLibrary, compiled: CompiledModel
) -> tuple[LinkedLibrary, tuple[tuple[str, str], ...]]:
    """What the bundle says of the library, and warnings.

    Raises:
        InputError: TW-LINK-004, it lacks a function.
    Cost: that of generating every kernel that names a call again.
    """
    called: list[Wanted] = []
    own: dict[str, None] = {}
    for call, where in _calls(compiled):
        if call.symbol:
            called.append(where)
        else:
            own.setdefault(where.node)
    warnings = []
    if own:
        few = ", ".join(list(own)[:5])
        said = f"kernels run code of their own for {len(own)} nodes whose instruction has a call"
        warnings.append(("NOT_CALLED", f"{said} that cannot say what they compute: {few}"))
    if not called:
        said = f"no kernel calls {library.label}: no instruction with a call runs any operator"
        warnings.append(("NOT_CALLED", said))
    return require_symbols(library, called), tuple(warnings)


def _calls(compiled: CompiledModel) -> Iterator[tuple[KernelCall, Wanted]]:
    for each in programs(compiled):
        known: dict[int, tuple[KernelCall, ...]] = {}
        for call in each.linked.program.calls:
            if not isinstance(call, UnitCall):
                continue
            target = each.partitioning.regions[call.region].target
            if call.unit not in known:
                unit = each.units[call.unit]
                on = each.machine.restricted(each.machine.target(target))
                known[call.unit] = library_calls(unit.schedule, unit.program, on)
            for found in known[call.unit]:
                node = call.onnx_nodes[0] if call.onnx_nodes else ""
                yield found, Wanted(found.symbol, found.pointer, call.region, target, node)


def told(compiled: CompiledModel, warnings: tuple[tuple[str, str], ...]) -> CompiledModel:
    """The model with more warnings."""
    return replace(compiled, warnings=(*compiled.warnings, *warnings))


def tool_of(linked: LinkedLibrary) -> dict[str, Detail]:
    """The library's row of the toolchain."""
    found: dict[str, Detail] = msgspec.to_builtins(linked)
    found["symbols"] = list[Detail](linked.symbols)
    return found
