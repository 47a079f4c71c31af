"""A hardware document becomes a `Machine`: resolve, check, fill defaults, collect guesses."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from math import prod
from typing import Any

from worker.compiler.errors import SpecError
from worker.compiler.ir.dtype import DType
from worker.compiler.machine.build_calls import build_calls, doubtful_calls, has_patterns
from worker.compiler.machine.build_targets import build_targets
from worker.compiler.machine.dataflow import Dataflow, Stationary
from worker.compiler.machine.energy_table import (
    DEFAULT_NM,
    HOST_SPREAD,
    STATIC_SPREAD,
    Generic,
    Spread,
    hop_pj_per_byte,
    mac_pj,
    memory_pj_per_byte,
)
from worker.compiler.machine.evidence import EnergyRange, Guess
from worker.compiler.machine.inherit import escape, resolve
from worker.compiler.machine.lint.document import lint_document
from worker.compiler.machine.machine import (
    Engine,
    EngineKind,
    Host,
    Link,
    LinkKind,
    Machine,
    Managed,
    MemoryLevel,
    StageOperation,
)
from worker.compiler.machine.mesh import Mesh, Numbering
from worker.compiler.machine.operator import DeclaredOperator
from worker.compiler.machine.presets import preset_document
from worker.compiler.machine.quantity import Estimate, Flag, Quantity
from worker.compiler.machine.spec import (
    EngineSpec,
    HardwareSpec,
    HostSpec,
    LevelSpec,
    LinkSpec,
    MeshSpec,
)

_COMPUTE = ("matrix", "vector", "scalar")
_NO_SOURCE = "no source: chosen so that the simulation can run"


def canonical_document(document: Mapping[str, object]) -> dict[str, Any]:
    """Give the document with `inherits` resolved; tags and notes stay.

    Raises:
        SpecError: the base preset is unknown, or an edit names nothing.
    """
    return resolve(document, preset_document).document


def load_machine(document: Mapping[str, object]) -> Machine:
    """Build the machine a document describes.

    Raises:
        SpecError: with every finding of `lint_document`, pointers into the user's document.
    """
    findings = lint_document(document)
    if findings:
        first = findings[0]
        more = f" (and {len(findings) - 1} more)" if len(findings) > 1 else ""
        raise SpecError(
            first.code, first.message + more, pointer=first.pointer, limit=first.allowed,
            actual=first.actual, findings=findings,
        )  # fmt: skip
    resolved = resolve(document, preset_document)
    spec = HardwareSpec.model_validate(resolved.document)
    return _Builder(spec, resolved.document, resolved.user_pointer).machine()


@cache
def load_preset(name: str) -> Machine:
    """Build a shipped preset.

    Raises:
        SpecError: TW-SPEC-003 when there is none of that name.
    """
    return load_machine(preset_document(name))


def _num(quantity: Quantity | None, default: float = 0.0) -> float:
    return default if quantity is None else quantity.value


def _int(quantity: Quantity | None, default: int = 0) -> int:
    return default if quantity is None else int(quantity.value)


def _flag(flag: Flag | None, *, default: bool) -> bool:
    return default if flag is None else flag.value


def tagged_guesses(document: object, at: str = "") -> Iterator[Guess]:
    """Find every number tagged G, in document order."""
    if isinstance(document, dict):
        if document.get("tag") == "G" and "value" in document:
            number = document["value"]
            is_number = isinstance(number, int | float) and not isinstance(number, bool)
            text = f"{number:g}" if is_number else str(number).lower()
            yield Guess(at, text, str(document.get("note") or _NO_SOURCE))
            return
        for key, value in document.items():
            yield from tagged_guesses(value, f"{at}/{escape(key)}")
    elif isinstance(document, list):
        for k, value in enumerate(document):
            yield from tagged_guesses(value, f"{at}/{k}")


class _Builder:
    """Turns one checked spec into values; remembers which defaults it had to guess."""

    def __init__(
        self,
        spec: HardwareSpec,
        document: Mapping[str, Any],
        user_pointer: Callable[[str], str],
    ) -> None:
        self._spec = spec
        self._user_pointer = user_pointer
        self._by_pattern = has_patterns(spec)
        self._nm = _num(spec.process_nm, DEFAULT_NM)
        self._guesses = list(tagged_guesses(document))
        self._ranges: list[EnergyRange] = []

    def machine(self) -> Machine:
        spec = self._spec
        levels = tuple(self._level(k, level) for k, level in enumerate(spec.levels))
        engines = tuple(self._engine(k, engine) for k, engine in enumerate(spec.engines))
        links = tuple(self._link(k, link) for k, link in enumerate(spec.links))
        return Machine(
            name=spec.name,
            clock_hz=spec.clock_hz.value,
            num_cores=_int(spec.num_cores),
            num_clusters=_int(spec.num_clusters, 1),
            levels=levels,
            engines=engines,
            links=links,
            host=self._host(spec.host),
            targets=build_targets(
                spec, {level.name: level.usable_bytes for level in levels}, self._user_pointer
            ),
            launch_latency_cycles=_int(spec.launch_latency_cycles),
            static_power_w=self._estimated(
                spec.static_power_w, "/static_power_w", "", "static_power_w", STATIC_SPREAD
            ),
            signal_cycles=self._signal_cycles(levels),
            engine_signal_cycles=self._engine_signal_cycles(),
            launch_gap_cycles=self._launch_gap(spec),
            # By pointer: the order of a document's keys must not reach digests or reports.
            guesses=tuple(sorted(self._guesses, key=lambda guess: guess.pointer)),
            energy_ranges=tuple(sorted(self._ranges, key=lambda each: each.pointer)),
            operators=tuple(
                DeclaredOperator(
                    o.name, o.definition, self._user_pointer(f"/operators/{k}/definition")
                )
                for k, o in enumerate(spec.operators)
            ),
        )

    def _launch_gap(self, spec: HardwareSpec) -> int:
        """Left out: as long as on an idle device, the worst that it can be."""
        latency = spec.launch_latency_cycles
        given: list[tuple[str, Quantity | None, Quantity | None]] = [
            ("", latency, spec.launch_gap_cycles)
        ]
        given += [
            (f"/targets/{k}", target.launch_latency_cycles, target.launch_gap_cycles)
            for k, target in enumerate(spec.targets)
        ]
        for at, own, gap in given:
            if own is not None and own.value and gap is None:
                text = f"not given; as launch_latency_cycles, {_int(own)}"
                self._guesses.append(Guess(f"{at}/launch_gap_cycles", str(_int(own)), text))
        return _int(spec.launch_gap_cycles, _int(latency))

    def _signal_cycles(self, levels: Sequence[MemoryLevel]) -> int:
        """Left out: as long as it takes to set a flag and to see it where all cores can."""
        if self._spec.signal_cycles is not None or _int(self._spec.num_cores) == 1:
            return _int(self._spec.signal_cycles)
        shared = next(level for level in reversed(levels) if level.instances == 1)
        cycles = 2 * shared.latency_cycles
        note = f"not given; a flag in {shared.name}, one access to set it and one to see it"
        self._guesses.append(Guess("/signal_cycles", str(cycles), note))
        return cycles

    def _engine_signal_cycles(self) -> int:
        if self._spec.engine_signal_cycles is None:
            note = "not given; engines of a core see each other's signals at once"
            self._guesses.append(Guess("/engine_signal_cycles", "0", note))
        return _int(self._spec.engine_signal_cycles)

    def _estimated(
        self, given: Estimate | None, pointer: str, owner: str, field: str, spread: Spread
    ) -> float:
        """The value; its range is kept where it has one or is a guess.  Left out: 0, a guess."""
        if given is None:
            self._guesses.append(Guess(pointer, "0", "not given; it costs no energy"))
            return 0.0
        guessed = spread.around(given.value) if given.tag == "G" else (given.value, given.value)
        low = guessed[0] if given.low is None else given.low
        high = guessed[1] if given.high is None else given.high
        if low < high:
            self._ranges.append(EnergyRange(pointer, owner, field, low, high))
        return given.value

    def _energy(
        self, given: Estimate | None, pointer: str, owner: str, field: str, generic: Generic
    ) -> float:
        """The value given, or that of the generic table, which is a guess."""
        if given is None:
            value = round(generic.pj, 4)
            note = f"not given; generic energy table, {generic.what} at {self._nm:g} nm"
            self._guesses.append(Guess(pointer, f"{value:g}", note))
            given = Estimate(value=value, tag="G")
        return self._estimated(given, pointer, owner, field, generic.spread)

    def _level(self, k: int, level: LevelSpec) -> MemoryLevel:
        capacity = _int(level.capacity_bytes)
        technology = level.technology
        if technology is None:
            technology = "register" if level.managed == "register" else "sram"
            technology = "ddr" if k == 0 else technology
        generic = memory_pj_per_byte(technology, capacity, self._nm)
        rates = _rates(level)
        if k == 0 and level.sustained_fraction is None:
            note = "not given; the rates are taken for what it sustains"
            self._guesses.append(Guess("/levels/0/sustained_fraction", "1", note))
        at, reading, writing = f"/levels/{k}", "read_energy_pj_per_byte", "write_energy_pj_per_byte"
        return MemoryLevel(
            name=level.name,
            capacity_bytes=capacity,
            instances=_int(level.instances),
            read_bytes_per_cycle=rates[0],
            write_bytes_per_cycle=rates[1],
            latency_cycles=_int(level.latency_cycles),
            read_energy_pj_per_byte=self._energy(
                level.read_energy_pj_per_byte, f"{at}/{reading}", level.name, reading, generic
            ),
            write_energy_pj_per_byte=self._energy(
                level.write_energy_pj_per_byte, f"{at}/{writing}", level.name, writing, generic
            ),
            managed=Managed(level.managed),
            align_bytes=_int(level.align_bytes, 1),
            reserve_fraction=_num(level.reserve_fraction),
            burst_bytes=self._burst(k, level),
            half_duplex=self._is_half_duplex(k, level),
            serves_engines=self._serves_engines(k, level),
        )  # fmt: skip

    def _burst(self, k: int, level: LevelSpec) -> int:
        if level.burst_bytes is None and (k == 0 or level.managed == "cache"):
            note = "not given; bytes that lie apart are moved one by one"
            self._guesses.append(Guess(f"/levels/{k}/burst_bytes", "1", note))
        return _int(level.burst_bytes, 1)

    def _is_half_duplex(self, k: int, level: LevelSpec) -> bool:
        """Left out: so at home, the worse for the machine and true of the data bus of any DRAM."""
        if level.duplex is not None:
            return level.duplex.value == "half"
        if k:
            return False
        note = "not given; taken as a DRAM, whose data bus serves one direction at a time"
        self._guesses.append(Guess("/levels/0/duplex", "half", note))
        return True

    def _serves_engines(self, k: int, level: LevelSpec) -> bool:
        """Left out: no, what engines draw passes beside transfers."""
        if level.engine_ports is not None:
            return level.engine_ports.value == "shared"
        if any(e.kind in _COMPUTE and e.memory == level.name for e in self._spec.engines):
            note = "not given; engines have ports of their own beside those of transfers"
            self._guesses.append(Guess(f"/levels/{k}/engine_ports", "own", note))
        return False

    def _engine(self, k: int, engine: EngineSpec) -> Engine:
        speeds = {DType(name): rate.value for name, rate in engine.macs_per_cycle.items()}
        energies: dict[DType, float] | None = None
        if engine.kind in _COMPUTE:
            given = engine.op_energy_pj or {}
            staged = (DType(name) for rates in engine.output_stage.values() for name in rates)
            energies = {
                dtype: self._energy(
                    given.get(dtype.value), f"/engines/{k}/op_energy_pj/{dtype}",
                    engine.name, dtype.value, mac_pj(dtype, self._nm),
                )
                for dtype in dict.fromkeys([*speeds, *staged])
            }  # fmt: skip
        feed, drain = self._ports(k, engine)
        calls = build_calls(
            engine, lambda at: self._user_pointer(f"/engines/{k}{at}"), by_pattern=self._by_pattern
        )
        self._guesses += doubtful_calls(f"/engines/{k}", speeds.values(), calls)
        return Engine(
            name=engine.name,
            kind=EngineKind(engine.kind),
            memory=engine.memory,
            macs_per_cycle=speeds,
            array=tuple(_int(extent) for extent in engine.array),
            startup_cycles=_int(engine.startup_cycles),
            op_energy_pj=energies,
            special_ops_per_cycle=_num(engine.special_ops_per_cycle),
            output_stage={
                StageOperation(name): {DType(dtype): rate.value for dtype, rate in rates.items()}
                for name, rates in engine.output_stage.items()
            },
            intrinsics=calls,
            dataflow=self._dataflow(engine),
            feed_bytes_per_cycle=feed,
            drain_bytes_per_cycle=drain,
            accumulators=engine.accumulators or "",
            setup_cycles=_int(engine.setup_cycles),
            outstanding_bytes=self._outstanding(k, engine),
            bus_energy_pj_per_byte=self._bus(k, engine),
        )

    def _dataflow(self, engine: EngineSpec) -> Dataflow | None:
        spec = engine.dataflow
        if spec is None:
            return None
        cell_bytes = 0
        if spec.registers is not None:
            level = next(level for level in self._spec.levels if level.name == spec.registers)
            cell_bytes = _int(level.capacity_bytes) // prod(_int(e) for e in engine.array)
        return Dataflow(
            stationary=Stationary(spec.stationary.value),
            is_systolic=_flag(spec.systolic, default=True),
            is_double_buffered=_flag(spec.double_buffered, default=False),
            is_pipelined=_flag(spec.pipelined, default=False),
            load_bytes_per_cycle=_num(spec.load_bytes_per_cycle),
            hold=tuple(_int(extent) for extent in spec.hold),
            accumulator_bytes=_int(spec.accumulator_bytes),
            registers=spec.registers or "",
            cell_bytes=cell_bytes,
        )

    def _bus(self, k: int, engine: EngineSpec) -> float:
        """Left out beside a dataflow: nothing, a guess.  Without one nobody says what moves."""
        if engine.dataflow is None:
            return 0.0
        field = "bus_energy_pj_per_byte"
        return self._estimated(
            engine.dataflow.bus_energy_pj_per_byte, f"/engines/{k}/dataflow/{field}", engine.name,
            field, hop_pj_per_byte(self._nm).spread,
        )  # fmt: skip

    def _ports(self, k: int, engine: EngineSpec) -> tuple[float, float]:
        """Bytes per cycle into an engine and out of it; 0: any.

        Left out beside a dataflow, registers for sums, or a memory whose ports it shares: the
        core's share of these.  Else nobody says what streams, so nothing is timed.
        """
        given = _num(engine.feed_bytes_per_cycle), _num(engine.drain_bytes_per_cycle)
        if engine.kind not in _COMPUTE:
            return 0.0, 0.0
        level = next(level for level in self._spec.levels if level.name == engine.memory)
        share = _int(level.instances) / _int(self._spec.num_cores)
        is_shared = level.engine_ports is not None and level.engine_ports.value == "shared"
        is_said = engine.dataflow is not None or engine.accumulators is not None or is_shared
        ports = _rates(level)
        found: list[float] = []
        for way, stated, port in zip(("feed", "drain"), given, ports, strict=True):
            rate = stated
            if not stated:
                rate = port * share if is_said else 0.0
                note = (
                    f"not given; the core's share of {level.name}'s port" if rate
                    else "not given; its operands cost the engine no time"
                )  # fmt: skip
                text = f"{rate:g}" if rate else "unlimited"
                self._guesses.append(Guess(f"/engines/{k}/{way}_bytes_per_cycle", text, note))
            found.append(rate)
        if engine.kind == "matrix" and engine.dataflow is None:
            note = "not given; loading, filling and draining its array costs no time"
            self._guesses.append(Guess(f"/engines/{k}/dataflow", "none", note))
        return found[0], found[1]

    def _outstanding(self, k: int, engine: EngineSpec) -> int:
        """Bytes on their way at once; 0: any.  What a DMA engine leaves out is a guess."""
        if engine.kind in _COMPUTE:
            return 0
        for field, given, value, note in (
            ("setup_cycles", engine.setup_cycles, "0", "setting up a transfer takes no time"),
            ("outstanding_bytes", engine.outstanding_bytes, "unlimited",
             "as many bytes are on their way as the ports take"),
        ):  # fmt: skip
            if given is None:
                self._guesses.append(Guess(f"/engines/{k}/{field}", value, f"not given; {note}"))
        return _int(engine.outstanding_bytes)

    def _link(self, k: int, link: LinkSpec) -> Link:
        return Link(
            name=link.name,
            src=link.src,
            dst=link.dst,
            kind=LinkKind(link.kind),
            bytes_per_cycle=link.bytes_per_cycle.value,
            latency_cycles=_int(link.latency_cycles),
            energy_pj_per_byte=self._energy(
                link.energy_pj_per_byte, f"/links/{k}/energy_pj_per_byte", link.name,
                "energy_pj_per_byte", hop_pj_per_byte(self._nm),
            ),
            shared_by=_int(link.shared_by, 1),
            multicast=link.multicast is not None and link.multicast.value,
            mesh=None if link.mesh is None else _mesh(link.mesh),
        )  # fmt: skip

    def _host(self, host: HostSpec) -> Host:
        return Host(
            name=host.name,
            flops_per_s=host.flops_per_s.value,
            memory_bytes_per_s=host.memory_bytes_per_s.value,
            link_bytes_per_s=host.link_bytes_per_s.value,
            link_latency_s=host.link_latency_s.value,
            launch_overhead_s=host.launch_overhead_s.value,
            shared_memory=host.shared_memory,
            energy_pj_per_flop=self._estimated(
                host.energy_pj_per_flop, "/host/energy_pj_per_flop", "host",
                "energy_pj_per_flop", HOST_SPREAD,
            ),
            efficiency=_num(host.efficiency, 1.0),
        )  # fmt: skip


def _rates(level: LevelSpec) -> tuple[float, float]:
    """Bytes per cycle that an instance sustains, out of it and into it."""
    share = 1.0 if level.sustained_fraction is None else level.sustained_fraction.value
    return level.read_bytes_per_cycle.value * share, level.write_bytes_per_cycle.value * share


def _mesh(spec: MeshSpec) -> Mesh:
    ports = tuple((_int(row), _int(column)) for row, column in spec.ports)
    said = Numbering.HOME if spec.numbering is None else Numbering(spec.numbering.value)
    return Mesh(_int(spec.rows), _int(spec.columns), ports, said)
