"""Choosing cores and tiles for one operator: a small, deterministic descent.

For each way of cutting the output over cores, start from the largest tile and halve the axis that
costs least until the buffers fit; keep the cheapest result.  The cost is a two-term roofline per
operator (engine time per core, home traffic over the shared port) plus what each instruction adds.
The search never looks at a clock; its size is bounded by the number of axes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, prod

from worker.compiler.cost.compute import engine_cycles
from worker.compiler.errors import Shortfall
from worker.compiler.ir.op import Tensor, TensorOp
from worker.compiler.machine.machine import Engine, Machine, MemoryLevel
from worker.compiler.strategies.naive.nest import Nest, build_nest

SMALL_POINTS = 4096
"""Domains below this stay on one core: splitting them costs more than it saves."""
MAX_CORE_CUTS = 14
INSTRUCTION_CYCLES = 4
"""Cost of issuing one instruction, per core."""
MAX_INSTRUCTIONS = 200_000


@dataclass(frozen=True, slots=True)
class Found:
    nest: Nest
    cycles: int
    """Predicted."""


def core_share_bytes(machine: Machine, level: MemoryLevel) -> int:
    """Capacity one core may use of its instance of `level`."""
    per_instance = max(1, machine.num_cores // level.instances)
    return level.usable_bytes // per_instance


def core_cuts(op: TensorOp, num_cores: int) -> list[dict[str, int]]:
    """Ways to cut the output over cores: pieces per PARALLEL axis, at most three axes."""
    if num_cores == 1 or op.num_points <= SMALL_POINTS:
        return [{}]
    axes = [a for a in op.parallel_axes if a.extent > 1]

    def greedy(order: list[str]) -> dict[str, int]:
        left = num_cores
        cut: dict[str, int] = {}
        extents = {a.name: a.extent for a in axes}
        for name in order:
            pieces = min(extents[name], left)
            if pieces > 1 and len(cut) < 3:
                chunk = ceil(extents[name] / pieces)
                cut[name] = ceil(extents[name] / chunk)
                left //= cut[name]
        return cut

    names = [a.name for a in axes]
    by_extent = [a.name for a in sorted(axes, key=lambda a: -a.extent)]
    orders = [names, by_extent, names[::-1]]
    orders += [[n, *(m for m in by_extent if m != n)] for n in names]
    cuts: list[dict[str, int]] = []
    for order in orders:
        cut = greedy(order)
        if cut not in cuts:
            cuts.append(cut)
    for first in axes[:3]:
        for second in axes:
            pieces = 4
            while first is not second and pieces * 2 <= num_cores:
                cut = {
                    first.name: min(pieces, first.extent),
                    second.name: min(num_cores // pieces, second.extent),
                }
                if cut not in cuts:
                    cuts.append(cut)
                pieces *= 4
    half: list[dict[str, int]] = [{}] if op.num_points < 64 * SMALL_POINTS else []
    return (cuts[:MAX_CORE_CUTS] + half) or [{}]


def predict(
    op: TensorOp,
    tensors: Mapping[str, Tensor],
    nest: Nest,
    machine: Machine,
    level: MemoryLevel,
    engine: Engine,
) -> tuple[float, int]:
    """(cycles, instructions) of a nest.

    max(engine time of one core, home traffic / home bandwidth) + one tile's latency, plus the
    issue cost of instructions.
    """
    tiles = nest.trips(len(nest.loops))
    moves = sum(nest.trips(o.depth) for o in nest.operands) + nest.trips(nest.out_depth)
    read = sum(nest.trips(o.depth) * o.slot_bytes for o in nest.operands)
    written = nest.trips(nest.out_depth) * nest.out_bytes
    points = tuple(min(nest.tile[a.name], a.extent) for a in op.domain)
    gathered = sum(
        prod(points) * tiles * tensors[t].dtype.size_bytes for t in nest.in_place
    )
    busy = engine_cycles(op, points, engine, tensors)
    cores = nest.num_cores
    home = machine.home
    inner = level.write_bytes_per_cycle * min(cores, level.instances)
    traffic = (read + gathered) / min(home.read_bytes_per_cycle, inner)
    traffic += written / min(home.write_bytes_per_cycle, inner)
    latency = home.latency_cycles + level.latency_cycles
    per_core = ceil((tiles + moves) / cores)
    cycles = max(busy * tiles / cores, traffic) + busy + 2 * latency
    return cycles + INSTRUCTION_CYCLES * per_core + latency * 0.1 * moves / cores, tiles + moves


def search(
    op: TensorOp, tensors: Mapping[str, Tensor], machine: Machine, engine: Engine
) -> Found | Shortfall:
    """The cheapest nest that fits the innermost scratchpad, or what is missing.

    Cost: O(cuts * halvings * axes) nest evaluations, a few milliseconds per operator.
    """
    level = machine.scratchpads[-1]
    capacity = core_share_bytes(machine, level)
    best: tuple[float, Nest] | None = None
    smallest: Nest | None = None
    for cut in core_cuts(op, machine.num_cores):
        nest = _descend(op, tensors, machine, level, engine, cut, capacity)
        if nest.buffer_bytes > capacity:
            smallest = nest
            continue
        cycles, instructions = predict(op, tensors, nest, machine, level, engine)
        if instructions > MAX_INSTRUCTIONS:
            cycles *= instructions / MAX_INSTRUCTIONS
        if best is None or cycles < best[0]:
            best = (cycles, nest)
    if best is not None:
        return Found(best[1], ceil(best[0]))
    assert smallest is not None
    return _shortfall(smallest, op, level, capacity, machine)


def _descend(
    op: TensorOp,
    tensors: Mapping[str, Tensor],
    machine: Machine,
    level: MemoryLevel,
    engine: Engine,
    cut: Mapping[str, int],
    capacity: int,
) -> Nest:
    """Halve axes, cheapest first, until the buffers fit or nothing can be halved."""
    tile = {a.name: ceil(a.extent / cut.get(a.name, 1)) for a in op.domain}
    nest = build_nest(op, tensors, cut, tile, level.align_bytes)
    while nest.buffer_bytes > capacity:
        options: list[tuple[float, int, int, Nest]] = []
        for k, axis in enumerate(op.domain):
            if tile[axis.name] == 1:
                continue
            smaller = {**tile, axis.name: ceil(tile[axis.name] / 2)}
            candidate = build_nest(op, tensors, cut, smaller, level.align_bytes)
            cycles, _ = predict(op, tensors, candidate, machine, level, engine)
            over = max(1.0, candidate.buffer_bytes / capacity)
            options.append((cycles * over, candidate.buffer_bytes, k, candidate))
        if not options:
            return nest
        nest = min(options, key=lambda o: o[:3])[3]
        tile = dict(nest.tile)
    return nest


def _shortfall(
    nest: Nest, op: TensorOp, level: MemoryLevel, capacity: int, machine: Machine
) -> Shortfall:
    terms = [(f"read {o.tensor} x{o.copies}", o.copies * o.slot_bytes) for o in nest.operands]
    terms.append((f"write {op.write.tensor}", nest.out_bytes))
    terms.sort(key=lambda t: (-t[1], t[0]))
    need = nest.buffer_bytes * max(1, machine.num_cores // level.instances)
    return Shortfall(
        f"memory:{level.name}",
        nest.buffer_bytes,
        capacity,
        "bytes per core",
        tuple(terms),
        (
            f"raise the capacity of {level.name} to at least {need} bytes",
            "leave the operator to the host by removing it from the capabilities",
        ),
    )
