"""The kernels of a bundle made again from the machine and schedules it carries.

C in a file from somebody else is a program of theirs.  What runs is what this version generates;
the bundle's own text is only compared with it, where the versions that made it are these.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from worker.compiler.codegen.kernel import CODEGEN_VERSION, generate_kernel
from worker.compiler.errors import Infeasible, InputError
from worker.compiler.faults import Fault, attempt
from worker.compiler.ir.signature import IR_VERSION
from worker.compiler.isa.binary import encode_program
from worker.compiler.isa.program import Program, UnitProgram
from worker.compiler.lower.lower import LOWER_VERSION, lower_unit
from worker.compiler.machine import document_digest, machine_of
from worker.compiler.machine.machine import Machine
from worker.compiler.package.archive import damaged
from worker.compiler.schedule.text import parse_schedule
from worker.compiler.schedule.verify import verify

VERSIONS = {"ir": IR_VERSION, "lower": LOWER_VERSION, "codegen": CODEGEN_VERSION}
"""What decides the text of a kernel beside its schedule and machine: in every manifest."""


@dataclass(frozen=True, slots=True)
class Regenerated:
    """One kernel, made here."""

    program: UnitProgram
    text: str


def read_machine(data: bytes, digest: str) -> Machine:
    """The machine of a bundle.

    Raises:
        InputError: TW-RUN-001 when it is none, or not the one the manifest names.
    """
    try:
        document = json.loads(data)
        machine = machine_of(document)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise damaged(f"the bundle's machine is not valid: {error!r}") from error
    if document_digest(document) != digest:
        raise damaged("the bundle's machine does not have the digest of the manifest")
    return machine


def regenerate(
    name: str, schedule_text: str, target: str, machine: Machine, came: UnitProgram
) -> Regenerated:
    """Lower and code one kernel; `came` is the program in the bundle, which says its operands.

    Raises:
        InputError: TW-RUN-005 names the kernel that cannot be made.
    Cost: that of lowering it.
    """
    kept = next((t for t in machine.targets if t.name == target), None)
    if kept is None:
        raise _unlike(name, f"its machine has no target {target!r}")
    seen = machine.restricted(kept)

    def made() -> Regenerated:
        schedule = parse_schedule(schedule_text)
        verify(schedule, seen)
        program = lower_unit(schedule, seen, came.signature)
        return Regenerated(program, generate_kernel(schedule, program, seen, name))

    try:
        found = attempt("bundle", "", "lower", made)  # numbers in it may break anything
    except Infeasible as error:
        raise _unlike(name, f"this version cannot make it: {error.message}") from error
    if isinstance(found, Fault):
        raise _unlike(name, f"this version cannot make it: {found.reason}")
    if found.program.operands != came.operands:
        raise _unlike(name, "its schedule has other operands than its calls")
    return found


def compare(name: str, made: Regenerated, text: str, program: UnitProgram) -> None:
    """Refuse a kernel that is not what its schedule gives.

    Raises:
        InputError: TW-RUN-005 names it.
    """
    if made.text != text:
        raise _unlike(name, "its C text is not what its schedule gives")
    if _bytes(made.program) != _bytes(program):
        raise _unlike(name, "its instructions are not what its schedule gives")


def is_own(toolchain: Mapping[str, object]) -> bool:
    """Whether a bundle was made by these versions of lowering and code generation."""
    return all(toolchain.get(name) == version for name, version in VERSIONS.items())


def _bytes(program: UnitProgram) -> bytes:
    return encode_program(Program((program,), (), 0, 0, 0))


def _unlike(name: str, why: str) -> InputError:
    return InputError("TW-RUN-005", f"kernel {name}: {why}", actual=name)
