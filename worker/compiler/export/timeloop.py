"""Timeloop: a folder per kernel with `arch.yaml`, `problem.yaml` and `mapping.yaml`, version 0.4.

A mapping there cuts the loops once per memory, for all operands that it keeps; buffers at different
loops have that form only where the loops between them do not move the operand.  Cores share no
transfers, which the mapping says.  Energies are not written: Timeloop asks Accelergy for them.
Permutations go from the innermost loop to the outermost.
Source: the inputs of Timeloop's front end, version 0.4, as its published exercises have them.  It
is on no package registry, so nothing here has been run by it.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from worker.compiler.export.documents import Export, Exported, Tagged, origin, plain_name, yaml_text
from worker.compiler.export.nest import LoopNest, NoForm, Reason, Refusal
from worker.compiler.export.unroll import Factors, Unrolled, unroll
from worker.compiler.export.untimed import untimed
from worker.compiler.machine.machine import Machine, MemoryLevel

_VERSION = 0.4
_MOST_DIMS = 26


def write_timeloop(nests: Sequence[LoopNest], machine: Machine) -> Export:
    """The files of every nest whose buffers are cut memory by memory."""
    files: list[tuple[str, str]] = []
    exported: list[Exported] = []
    refused: list[Refusal] = []
    for nest in nests:
        unrolled = unroll(nest)
        used = tuple(x for x in machine.levels[1:] if any(h.memory == x.name for h in nest.holds))
        problem = unrolled if isinstance(unrolled, NoForm) else _problem(nest, unrolled, used)
        if problem is not None:
            refused.append(problem.of(nest))
            continue
        assert isinstance(unrolled, Unrolled)
        name = plain_name(nest.name)
        note = origin(nest)
        files += [
            (f"{name}/arch.yaml", yaml_text(_arch(nest, unrolled, machine, used), note)),
            (f"{name}/problem.yaml", yaml_text(_workload(nest, name), note)),
            (f"{name}/mapping.yaml", yaml_text(_mapping(nest, unrolled, machine, used), note)),
        ]
        exported.append(Exported(nest, name, _caveats(nest) + untimed(nest, machine)))
    return Export(tuple(sorted(files)), tuple(exported), tuple(refused))


def _problem(nest: LoopNest, unrolled: Unrolled, used: Sequence[MemoryLevel]) -> NoForm | None:
    if nest.ragged:
        return NoForm(Reason.RAGGED, f"tiles overhang {', '.join(nest.ragged)}")
    if len(unrolled.sizes) > 2:
        return NoForm(Reason.ARRAY, f"{nest.engine.name} has three sides; a mesh has two")
    if len(nest.dims) > _MOST_DIMS:
        return NoForm(Reason.INDEX, f"{len(nest.dims)} dimensions; their names are letters")
    widths = sorted({operand.dtype.bits for operand in nest.operands})
    if len(widths) > 1:
        return NoForm(
            Reason.MEMORIES, f"tensors of {' and '.join(map(str, widths))} bits; a memory has words"
            " of one width",
        )  # fmt: skip
    for level in used:
        problem = _uneven(nest, level.name)
        if problem is not None:
            return problem
    for name, loops in _cut(nest, used).items():
        dims = [dim for dim, _ in loops]
        if len(set(dims)) < len(dims):
            return NoForm(Reason.TILING, f"{name} would loop twice over one dimension")
    late = [k for k, x in enumerate(nest.loops) if x.is_spatial]
    if late and any(x.trip > 1 and not x.is_spatial for x in nest.loops[: late[-1]]):
        return NoForm(Reason.CORES, "a loop in time lies outside of a loop over cores")
    return None


def _uneven(nest: LoopNest, memory: str) -> NoForm | None:
    """Whether a memory's buffers are not cut at one place between the loops."""
    holds = [hold for hold in nest.holds if hold.memory == memory]
    if len({hold.operand for hold in holds}) < len(holds):
        return NoForm(Reason.MEMORIES, f"an operand has two buffers in {memory}")
    cut = max(hold.depth for hold in holds)
    for hold in holds:
        operand = nest.operands[hold.operand]
        if not nest.is_stationary(hold):
            return NoForm(
                Reason.BUFFERS, f"{operand.tensor} is brought to {memory} again although it has not"
                " changed; Timeloop would keep it",
            )  # fmt: skip
        if any(x.trip > 1 and operand.is_moved_by(x.dim) for x in nest.loops[hold.depth : cut]):
            return NoForm(
                Reason.BUFFERS, f"{memory} holds more of {operand.tensor} than its other tiles"
                " need; Timeloop cuts all at one place",
            )  # fmt: skip
    return None


def _caveats(nest: LoopNest) -> tuple[str, ...]:
    found = ["golden text only: not run by Timeloop", "sums take as many bits as the result"]
    if any(o.is_padded for o in nest.operands):
        found.append("padding: rims of tiles are moved that Tilewright does not move")
    if nest.engine.dataflow is not None:
        found.append("loads, skew and ports of the array take time in Tilewright and none here")
    return tuple(found)


def _cut(nest: LoopNest, used: Sequence[MemoryLevel]) -> dict[str, Factors]:
    """Loops in time outside of the tiles of each memory, outer to inner, by that memory's name; the
    instruction's own steps follow inside of the last."""
    found: dict[str, Factors] = {}
    start = 0
    for level in used:
        end = max(hold.depth for hold in nest.holds if hold.memory == level.name)
        found[level.name] = tuple(
            (x.dim, x.trip) for x in nest.loops[start:end] if not x.is_spatial and x.trip > 1
        )
        start = max(start, end)
    return found


def _dim(k: int) -> str:
    return chr(ord("A") + k)


def _space(k: int, nest: LoopNest) -> str:
    return "Outputs" if k == len(nest.operands) - 1 else f"Inputs{k}"


def _workload(nest: LoopNest, name: str) -> dict[str, Any]:
    coefficients: dict[str, int] = {}
    spaces = []
    for k, operand in enumerate(nest.operands):
        projection = []
        for terms in operand.index:
            factors: list[list[str]] = []
            for d, coefficient in terms:
                scale = f"Scale{coefficient}"
                if coefficient > 1:
                    coefficients[scale] = coefficient
                factors.append([_dim(d)] if coefficient == 1 else [_dim(d), scale])
            if factors:
                projection.append(factors)
        space: dict[str, Any] = {"name": _space(k, nest), "projection": projection}
        spaces.append(space | ({"read_write": True} if k == len(nest.operands) - 1 else {}))
    return {
        "problem": {
            "version": _VERSION,
            "shape": {
                "name": name,
                "dimensions": [_dim(k) for k in range(len(nest.dims))],
                "coefficients": [{"name": n, "default": c} for n, c in coefficients.items()],
                "data_spaces": spaces,
            },
            "instance": {_dim(k): dim.extent for k, dim in enumerate(nest.dims)},
        }
    }


def _arch(
    nest: LoopNest, unrolled: Unrolled, machine: Machine, used: Sequence[MemoryLevel]
) -> dict[str, Any]:
    bits = nest.operands[0].dtype.bits
    system = {"global_cycle_seconds": 1 / machine.clock_hz}
    nodes = [Tagged("Container", {"name": "system", "attributes": system}),
             _component(machine.home, "DRAM", machine.home.capacity_bytes, bits)]  # fmt: skip
    if any(loop.is_spatial for loop in nest.loops):
        cores = {"name": "core", "spatial": {"meshX": machine.num_cores}}
        nodes.append(Tagged("Container", cores))
    for level in used:
        size = level.usable_bytes * level.instances // machine.num_cores
        is_doubled = all(h.copies > 1 for h in nest.holds if h.memory == level.name)
        nodes.append(_component(level, "SRAM", size, bits, is_doubled=is_doubled))
    mesh = dict(zip(("meshX", "meshY"), reversed(unrolled.sizes), strict=False))
    nodes.append(Tagged("Container", {"name": "array", "spatial": mesh}))
    unit = {"name": nest.engine.name, "class": "intmac", "attributes": {"datawidth": bits}}
    return {"architecture": {"version": _VERSION, "nodes": [*nodes, Tagged("Component", unit)]}}


def _component(
    level: MemoryLevel, kind: str, size_bytes: int, bits: int, *, is_doubled: bool = False
) -> Tagged:
    """A memory of words as wide as an element; bandwidths are words per cycle."""
    attributes = {
        "width": bits,
        "datawidth": bits,
        "depth": size_bytes * 8 // bits,
        "read_bandwidth": level.read_bytes_per_cycle * 8 / bits,
        "write_bandwidth": level.write_bytes_per_cycle * 8 / bits,
        "multiple_buffering": 2 if is_doubled else 1,
    }
    if level.half_duplex:
        slower = min(level.read_bytes_per_cycle, level.write_bytes_per_cycle)
        attributes["shared_bandwidth"] = slower * 8 / bits
    return Tagged("Component", {"name": level.name, "class": kind, "attributes": attributes})


def _mapping(
    nest: LoopNest, unrolled: Unrolled, machine: Machine, used: Sequence[MemoryLevel]
) -> dict[str, Any]:
    spaces = [_space(k, nest) for k in range(len(nest.operands))]
    cut = _cut(nest, used)
    rows: list[dict[str, Any]] = [
        {"target": machine.home.name, "type": "dataspace", "keep": spaces, "bypass": []},
        _loops(nest, machine.home.name, cut[used[0].name]),
    ]
    cores = tuple((x.dim, x.trip) for x in nest.loops if x.is_spatial)
    if cores:
        merged = {d: prod(trip for other, trip in cores if other == d) for d, _ in cores}
        split = {"type": "spatial", "split": len(nest.dims), "no_multicast_no_reduction": spaces}
        rows.append(_loops(nest, "core", tuple(merged.items())) | split)
    inside = [*(cut[level.name] for level in used[1:]), unrolled.steps]
    for level, loops in zip(used, inside, strict=True):
        kept = {hold.operand for hold in nest.holds if hold.memory == level.name}
        rows.append({
            "target": level.name, "type": "dataspace",
            "keep": [s for k, s in enumerate(spaces) if k in kept],
            "bypass": [s for k, s in enumerate(spaces) if k not in kept],
        })  # fmt: skip
        rows.append(_loops(nest, level.name, loops))
    across = unrolled.spatial[-1]
    down = unrolled.spatial[0] if len(unrolled.spatial) > 1 else ()
    array = _loops(nest, "array", (*down, *across))
    rows.append(array | {"type": "spatial", "split": len(across)})
    return {"mapping": rows}


def _loops(nest: LoopNest, target: str, loops: Factors) -> dict[str, Any]:
    """A directive over all dimensions: those that do not loop have a factor of one, outermost."""
    trips = dict(loops)
    looped = [d for d, _ in reversed(loops)]
    order = [*looped, *(d for d in range(len(nest.dims)) if d not in trips)]
    return {
        "target": target,
        "type": "temporal",
        "factors": [f"{_dim(d)}={trips.get(d, 1)}" for d in range(len(nest.dims))],
        "permutation": [_dim(d) for d in order],
    }
