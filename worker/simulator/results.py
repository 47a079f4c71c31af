"""What a simulation returns: frozen structs that serialise to bytes (msgspec) for the cache.

All times are integer cycles of the machine's clock; energies are picojoules; traffic is bytes.
Per-level tables are tuples parallel to `Machine.levels`; per-engine tables to `Machine.engines`.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

OUTSIDE = ("launch", "host", "host-link")
"""Causes of cycles that no kernel runs in."""


class LevelTraffic(msgspec.Struct, frozen=True, array_like=True):
    """Bytes that crossed one level's ports, summed over instances."""

    level: str
    read_bytes: int
    write_bytes: int
    unasked_bytes: int = 0
    """Of both, parts of bursts that no transfer moves."""


class LinkLoad(msgspec.Struct, frozen=True, array_like=True):
    """What one link of a mesh carries."""

    link: int
    """As `machine.mesh` numbers links."""
    bytes: int
    busy_cycles: int


class EngineUse(msgspec.Struct, frozen=True, array_like=True):
    """One engine kind, summed over cores."""

    engine: str
    busy_cycles: int
    instructions: int


class EnergyLine(msgspec.Struct, frozen=True, array_like=True):
    """One line of the ledger."""

    item: str
    """`mac`, `vector`, `level:NAME`, `feed:NAME`, `register:NAME`, `bus:NAME`, `link:NAME`, `host`
    or `static`."""
    pj: float
    low_pj: float
    """With every energy of the machine that is an estimate at the low end of its range."""
    high_pj: float


class Occupancy(msgspec.Struct, frozen=True, array_like=True):
    """Bytes in use over time in the fullest instance of one level (step function)."""

    level: str
    capacity_bytes: int
    peak_bytes: int
    cycles: tuple[int, ...]
    used_bytes: tuple[int, ...]
    """used_bytes[k] holds from cycles[k] on; at most 256 steps (the peak is always kept)."""


class Bound(msgspec.Struct, frozen=True, array_like=True):
    """A lower bound on cycles, or one summand of it."""

    name: str
    """`compute:ENGINE` or `traffic:LEVEL`; of a summand also `latency`, `launch`, `host`,
    `host-link`."""
    cycles: int


class Check(msgspec.Struct, frozen=True, array_like=True):
    """One invariant of the sanity block."""

    name: str
    passed: bool
    detail: str


class Slice(msgspec.Struct, frozen=True, array_like=True):
    """One box of the timeline; neighbouring instructions of a stream may be merged."""

    core: int
    engine: str
    name: str
    start_cycle: int
    end_cycle: int
    merged: int
    """How many instructions the slice stands for."""


class Cause(msgspec.Struct, frozen=True, array_like=True):
    """Cycles that one cause is to blame for (`attribution`)."""

    cause: str
    cycles: int


class Blame(msgspec.Struct, frozen=True, array_like=True):
    """Cycles of a kernel that one cause is to blame for at one node of its schedule tree."""

    cause: str
    path: str
    cycles: int


class UnitSimulation(msgspec.Struct, frozen=True, array_like=True):
    """One kernel, simulated alone (units are separated by barriers)."""

    signature: str
    cycles: int
    """From launch to the last finish, without launch overhead."""
    instructions: int
    macs: int
    """Multiply-accumulates of contractions, whatever engine runs them."""
    repeated_macs: int
    """Of them, those of points that are computed more than once (halo)."""
    other_ops: int
    """Elementary operations of all other operators."""
    work: tuple[int, ...]
    """Multiply-accumulates or elementary operations, by operator of the kernel's graph."""
    active_cores: int
    compute_cycles: int
    """Cycles during which at least one compute engine is busy."""
    traffic: tuple[LevelTraffic, ...]
    engines: tuple[EngineUse, ...]
    energy: tuple[EnergyLine, ...]
    occupancy: tuple[Occupancy, ...]
    bounds: tuple[Bound, ...]
    """Of the roofline: each holds by itself."""
    checks: tuple[Check, ...]
    slices: tuple[Slice, ...]
    predicted_cycles: int
    """What the cost model predicted, for comparison."""
    blame: tuple[Blame, ...]
    """Who is to blame for its cycles; they sum to `cycles`."""
    floor: tuple[Bound, ...] = ()
    """What every schedule of the kernel spends at least, in summands: the tight lower bound."""
    mesh: tuple[LinkLoad, ...] = ()
    """Links of the machine's mesh that carry anything, by number."""

    @property
    def causes(self) -> tuple[Cause, ...]:
        """All causes, the costliest first."""
        return summed_causes((b.cause, b.cycles) for b in self.blame)

    @property
    def energy_pj(self) -> float:
        return sum(line.pj for line in self.energy)

    @property
    def roofline(self) -> Bound:
        """The largest of `bounds`."""
        return max(self.bounds, key=lambda b: b.cycles)

    @property
    def lower_bound_cycles(self) -> int:
        """The sum of `floor`."""
        return sum(b.cycles for b in self.floor)

    def to_bytes(self) -> bytes:
        return msgspec.msgpack.encode(self)

    @staticmethod
    def from_bytes(raw: bytes) -> UnitSimulation:
        return msgspec.msgpack.decode(raw, type=UnitSimulation)


def summed_causes(parts: Iterable[tuple[str, int]]) -> tuple[Cause, ...]:
    """Cycles by cause, the costliest first, equal ones by name; causes of nothing are left out."""
    table: dict[str, int] = {}
    for cause, cycles in parts:
        table[cause] = table.get(cause, 0) + cycles
    return tuple(
        Cause(*row) for row in sorted(table.items(), key=lambda r: (-r[1], r[0])) if row[1]
    )


class CallTiming(msgspec.Struct, frozen=True, array_like=True):
    """When one call of the program runs."""

    call: int
    """Index into Program.calls."""
    kind: str
    """`unit` or `host`."""
    start_cycle: int
    end_cycle: int
    overhead_cycles: int
    """Launch overhead (unit), or boundary copies and host launch (host), inside the interval."""
    energy_pj: float
    causes: tuple[Cause, ...]
    """Who is to blame for the interval, the costliest first; they sum to its length."""


class BodyTiming(msgspec.Struct, frozen=True, array_like=True):
    """One body of a control-flow node."""

    cycles_per_iteration: int
    """With the copies that recur in every iteration."""
    iterations: int
    """How often the simulation ran it."""
    simulation: ModelSimulation | None
    """Of one iteration; None: the host runs the body."""


class ControlTiming(msgspec.Struct, frozen=True, array_like=True):
    """One interpreted control-flow node."""

    node: str
    trips: int
    trips_assumed: bool
    """The count is not known at compile time."""
    branch: int
    """The body that was simulated."""
    branch_assumed: bool
    """The condition is open: the slower branch was taken."""
    once_cycles: int
    """Copies of captured values."""
    cycles: int
    """All iterations and `once_cycles`."""
    energy_pj: float
    macs: int
    """Of kernels, in all iterations."""
    repeated_macs: int
    lower_bound_cycles: int
    """All iterations of what may run, at least; copies of captured values included."""
    roofline_cycles: int
    """The largest of its bounds."""
    bodies: tuple[BodyTiming, ...]


class RegionTiming(msgspec.Struct, frozen=True, array_like=True):
    """What one region of the model takes, its copies over the host link included."""

    region: int
    launch_cycles: int
    transfer_cycles: int
    execute_cycles: int


class Invocation(msgspec.Struct, frozen=True, array_like=True):
    """One run by who spends its cycles; the four parts sum to the whole."""

    launch_cycles: int
    """Starting kernels."""
    transfer_cycles: int
    """Copies over the host link."""
    execute_cycles: int
    """Kernels."""
    host_cycles: int
    """Host parts and their launches."""
    regions: tuple[RegionTiming, ...]
    """In execution order; nested programs count above only."""

    @property
    def cycles(self) -> int:
        return self.launch_cycles + self.transfer_cycles + self.execute_cycles + self.host_cycles


class ModelSimulation(msgspec.Struct, frozen=True, array_like=True):
    """A whole program, simulated."""

    cycles: int
    calls: tuple[CallTiming, ...]
    host_cycles: int
    launch_cycles: int
    boundary_bytes: int
    traffic: tuple[LevelTraffic, ...]
    energy: tuple[EnergyLine, ...]
    macs: int
    """Of kernels, nested programs' included."""
    repeated_macs: int
    causes: tuple[Cause, ...]
    """The costliest first; they sum to `cycles`.  Beside those of kernels: `launch`, `host` and
    `host-link`, as in `Invocation`."""
    roofline: Bound
    """The largest of `bounds`."""
    peak_bytes: tuple[tuple[str, int], ...]
    """(level, peak bytes in its fullest instance); home is the planned arenas, nested programs'
    included."""
    checks: tuple[Check, ...]
    bounds: tuple[Bound, ...] = ()
    """Of the roofline: each holds by itself, for every cut of the same placement into kernels."""
    floor: tuple[Bound, ...] = ()
    """What every schedule of the same kernels and host parts spends at least, in summands, the
    costliest first: the tight lower bound."""
    invocation: Invocation = Invocation(0, 0, 0, 0, ())
    control: tuple[ControlTiming, ...] = ()
    """Interpreted control-flow nodes, in call order; inside their calls' intervals."""
    mesh: tuple[LinkLoad, ...] = ()
    """Links of the machine's mesh that carry anything, by number."""

    @property
    def energy_pj(self) -> float:
        return sum(line.pj for line in self.energy)

    @property
    def energy_range_pj(self) -> tuple[float, float]:
        """With every estimate of an energy at its low end, and at its high one."""
        low, high = (line.low_pj for line in self.energy), (line.high_pj for line in self.energy)
        return sum(low), sum(high)

    @property
    def lower_bound_cycles(self) -> int:
        """The sum of `floor`."""
        return sum(b.cycles for b in self.floor)
