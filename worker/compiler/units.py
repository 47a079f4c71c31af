"""Units: the cached, shared grain of compilation — one canonical graph, scheduled, lowered, coded.

A unit is found by signature.  `solve` asks the cache first; what it computes it stores.  Three
entries per unit: SCHEDULE (text of the tree, by signature, machine, strategy, options), PROGRAM
(lowered, by schedule text and machine) and KERNEL (C text, by the same and the code generator),
which has only what is kept: most units are simulated just to be compared.  A hit re-runs `verify`.
That something does not fit, or broke, is an entry too: finding it out can cost as much as a
schedule; the versions in the keys are what such an answer holds for.
Source: 2-architecture.md "Caches".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from hashlib import sha256

import msgspec

from worker.compiler.cache import Cache, CacheEvent, CacheKey, CacheKind
from worker.compiler.codegen.kernel import CODEGEN_VERSION, generate_kernel
from worker.compiler.errors import Infeasible, InputError, OptionError, Shortfall, VerifyError
from worker.compiler.faults import Fault, T, attempt
from worker.compiler.ir.graph import Graph
from worker.compiler.ir.signature import IR_VERSION, Canonical
from worker.compiler.ir.text import print_graph
from worker.compiler.isa.binary import decode_program, encode_program, program_parts
from worker.compiler.isa.program import Program, UnitProgram
from worker.compiler.isa.verify import verify_program
from worker.compiler.lower.lower import LOWER_VERSION, lower_unit
from worker.compiler.machine import digest
from worker.compiler.machine.machine import Machine
from worker.compiler.options import CompileOptions, StrategyName
from worker.compiler.schedule.nodes import Schedule
from worker.compiler.schedule.stages import Group, Grouping
from worker.compiler.schedule.text import parse_schedule, print_schedule
from worker.compiler.schedule.verify import verify
from worker.compiler.strategies.base import Strategy


@dataclass(frozen=True, slots=True)
class Unit:
    """One kernel, complete."""

    signature: str
    """Hex sha256 of the canonical graph."""
    schedule: Schedule
    schedule_text: str
    program: UnitProgram
    kernel_name: str
    kernel: str
    """C text; empty until `UnitSolver.coded`, as most units are only compared with others."""


def encode_unit(program: UnitProgram) -> bytes:
    """One unit as bytes: a program with no calls."""
    return encode_program(Program((program,), (), 0, 0, 0))


def unit_digest(program: UnitProgram) -> str:
    """Hex sha256 of `encode_unit`'s bytes, which are not put together."""
    found = sha256()
    for part in program_parts(Program((program,), (), 0, 0, 0)):
        found.update(part)
    return found.hexdigest()


def decode_unit(data: bytes) -> UnitProgram:
    """The inverse of `encode_unit`."""
    (program,) = decode_program(data).units
    return program


class _KernelEntry(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    kernel: str


def _damaged(key: CacheKey, why: str) -> VerifyError:
    return VerifyError("cache", f"{key.kind} {key.digest[:16]}", "readable", why)


def _kernel(stored: bytes, key: CacheKey) -> str:
    try:
        return msgspec.msgpack.decode(stored, type=_KernelEntry).kernel
    except (msgspec.DecodeError, UnicodeDecodeError) as error:  # also what a wrong structure raises
        raise _damaged(key, str(error)) from error


class _FaultEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    fault: Fault


_FAULT_BEGINS = b'{"fault":'


def _stored_no(answer: Shortfall | Fault) -> bytes:
    return msgspec.json.encode(_FaultEntry(answer) if isinstance(answer, Fault) else answer)


def _is_no(stored: bytes) -> bool:
    """Whether an entry says that something does not fit or broke; nothing else begins so."""
    return stored[:1] == b"{"


def _no(stored: bytes, key: CacheKey) -> Shortfall | Fault:
    try:
        if stored.startswith(_FAULT_BEGINS):
            return msgspec.json.decode(stored, type=_FaultEntry).fault
        return msgspec.json.decode(stored, type=Shortfall)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _damaged(key, str(error)) from error


@dataclass(slots=True)
class UnitSolver:
    """Solves units for one machine, strategy and set of options, through one cache."""

    machine: Machine
    machine_digest: str
    strategy: Strategy
    options: CompileOptions
    cache: Cache
    events: list[CacheEvent]

    @staticmethod
    def create(
        machine: Machine, strategy: Strategy, options: CompileOptions, cache: Cache
    ) -> UnitSolver:
        return UnitSolver(machine, digest(machine), strategy, options, cache, [])

    def schedule_key(self, signature: str) -> CacheKey:
        """Everything that decides a schedule, by name (so that misses can be explained).

        The variant counts for GraphTurbo only: other strategies know none.
        """
        is_variable = self.strategy.name == StrategyName.GRAPHTURBO
        variant = (("variant", str(self.options.variant)),) if is_variable else ()
        return CacheKey(
            CacheKind.SCHEDULE,
            (
                ("signature", signature),
                ("machine", self.machine_digest),
                ("strategy", self.strategy.name),
                ("strategy_version", self.strategy.version),
                ("objective", str(self.options.objective)),
                ("effort", str(self.options.effort)),
                *variant,
                ("ir_version", IR_VERSION),
            ),
        )

    def program_key(self, schedule_text: str) -> CacheKey:
        """Everything that decides a program."""
        return CacheKey(CacheKind.PROGRAM, self._program_fields(schedule_text))

    def kernel_key(self, schedule_text: str) -> CacheKey:
        """Everything that decides a kernel."""
        version = ("codegen_version", CODEGEN_VERSION)
        return CacheKey(CacheKind.KERNEL, (*self._program_fields(schedule_text), version))

    def _program_fields(self, schedule_text: str) -> tuple[tuple[str, str], ...]:
        return (
            ("schedule", sha256(schedule_text.encode()).hexdigest()),
            ("machine", self.machine_digest),
            ("lower_version", LOWER_VERSION),
        )

    def solve(self, canonical: Canonical, label: str) -> Unit | Shortfall | Fault:
        """Schedule, lower and code one unit, or say what does not fit or broke.

        Raises: as `lowered` and `coded`.
        """
        unit = self.lowered(canonical, label)
        return self.coded(unit, label) if isinstance(unit, Unit) else unit

    def lowered(self, canonical: Canonical, label: str) -> Unit | Shortfall | Fault:
        """Schedule and lower one unit, all that simulating it takes, or say what does not fit.

        A schedule's buffers may fit by size and still find no addresses: that is a shortfall too.

        Raises:
            OptionError: TW-OPT-002 when --require-cache is set and an entry is missing.
            VerifyError: a corrupted cache entry.
        """
        signature = canonical.signature
        scheduled = self._schedule(canonical.graph, signature, label)
        if isinstance(scheduled, Shortfall | Fault):
            return scheduled
        schedule, text = scheduled
        name = f"tw_unit_{signature[:16]}"
        key = self.program_key(text)
        stored = self._get(key, signature, label)
        if stored is not None:
            if _is_no(stored):
                return _no(stored, key)
            try:
                program = decode_unit(stored)
            except InputError as error:
                raise _damaged(key, str(error)) from error
            return Unit(signature, schedule, text, program, name, "")
        try:
            found = self._attempt("lower", lambda: self._program(schedule, signature))
        except Infeasible as error:
            self.cache.put(key, _stored_no(error.shortfall))
            return error.shortfall
        if isinstance(found, Fault):
            self.cache.put(key, _stored_no(found))
            return found
        self.cache.put(key, encode_unit(found))
        return Unit(signature, schedule, text, found, name, "")

    def coded(self, unit: Unit, label: str) -> Unit | Fault:
        """The unit with its kernel.

        Raises: as `lowered`.
        """
        if unit.kernel:
            return unit
        key = self.kernel_key(unit.schedule_text)
        stored = self._get(key, unit.signature, label)
        if stored is not None:
            if _is_no(stored):
                no = _no(stored, key)
                if isinstance(no, Shortfall):
                    raise _damaged(key, "it says that a kernel does not fit")
                return no
            return replace(unit, kernel=_kernel(stored, key))
        kernel = self._attempt(
            "codegen",
            lambda: generate_kernel(unit.schedule, unit.program, self.machine, unit.kernel_name),
        )
        if isinstance(kernel, Fault):
            self.cache.put(key, _stored_no(kernel))
            return kernel
        self.cache.put(key, msgspec.msgpack.encode(_KernelEntry(kernel)))
        return replace(unit, kernel=kernel)

    def plan(self, graph: Graph) -> Schedule | Shortfall:
        """Run the strategy on one canonical graph, without the cache, and verify its plan."""
        whole = Grouping(graph, (Group(tuple(op.name for op in graph.ops)),))
        arrangement = self.strategy.schedule(whole, 0, self.machine)
        if isinstance(arrangement, Shortfall):
            return arrangement
        found = self.strategy.tile(arrangement, self.machine)
        if not isinstance(found, Shortfall):
            verify(found, self.machine)
        return found

    def _schedule(
        self, graph: Graph, signature: str, label: str
    ) -> tuple[Schedule, str] | Shortfall | Fault:
        key = self.schedule_key(signature)
        stored = self._get(key, signature, label)
        if stored is not None and _is_no(stored):
            return _no(stored, key)
        if stored is not None:
            try:
                text = stored.decode()
            except UnicodeDecodeError as error:
                raise _damaged(key, str(error)) from error
            schedule = parse_schedule(text)
            if print_graph(schedule.graph, with_origin=False) != print_graph(
                graph, with_origin=False
            ):
                raise _damaged(key, "it is the schedule of another unit")
            verify(schedule, self.machine)
            return schedule, text
        planned = self._attempt("schedule", lambda: self._planned(graph))
        if isinstance(planned, Shortfall | Fault):
            self.cache.put(key, _stored_no(planned))
            return planned
        self.cache.put(key, planned[1].encode())
        return planned

    def _planned(self, graph: Graph) -> tuple[Schedule, str] | Shortfall:
        found = self.plan(graph)
        return found if isinstance(found, Shortfall) else (found, print_schedule(found))

    def _program(self, schedule: Schedule, signature: str) -> UnitProgram:
        program = lower_unit(schedule, self.machine, signature)
        verify_program(program, self.machine)
        return program

    def _attempt(self, step: str, work: Callable[[], T]) -> T | Fault:
        return attempt(self.strategy.name, self.strategy.version, step, work)

    def _get(self, key: CacheKey, signature: str, label: str) -> bytes | None:
        value = self.cache.get(key)
        outcome = "miss" if value is None else "hit"
        self.events.append(CacheEvent(str(key.kind), key.digest, outcome, label, signature))
        if value is None and self.options.require_cache:
            raise OptionError(
                "TW-OPT-002",
                f"no {key.kind} entry for unit {label}",
                node=label,
                actual=key.digest,
            )
        return value
