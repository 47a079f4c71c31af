"""AccelForge: a folder per kernel with `arch.yaml`, `workload.yaml` and `mapping.yaml`.

A mapping there is a tree of loops and storage nodes, in which every operand has its place, so the
nest is written down as it is: where a buffer lies between the loops is where its storage node lies,
also where a tile is brought in again although it has not changed, and cores share nothing.
Units: times in cycles, energies in picojoules, sizes and transfers in bits.
Source: the input specification of AccelForge 1.0, its component and mapping classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from worker.compiler.export.documents import Export, Exported, Tagged, origin, plain_name, yaml_text
from worker.compiler.export.nest import LoopNest, NoForm, Reason, Refusal, Terms
from worker.compiler.export.unroll import Unrolled, unroll
from worker.compiler.export.untimed import untimed
from worker.compiler.machine.machine import Machine, MemoryLevel

_SEPARATE_PORTS = "max(a.n_calls / a.throughput for a in actions)"
_SHARED_PORT = "sum(a.n_calls / a.throughput for a in actions)"


def write_accelforge(nests: Sequence[LoopNest], machine: Machine) -> Export:
    """The files of every nest that fills the array in whole factors."""
    files: list[tuple[str, str]] = []
    exported: list[Exported] = []
    refused: list[Refusal] = []
    for nest in nests:
        unrolled = unroll(nest)
        problem = unrolled if isinstance(unrolled, NoForm) else _problem(nest)
        if problem is not None:
            refused.append(problem.of(nest))
            continue
        assert isinstance(unrolled, Unrolled)
        name = plain_name(nest.name)
        note = origin(nest)
        files += [
            (f"{name}/arch.yaml", yaml_text(_arch(nest, unrolled, machine), note)),
            (f"{name}/workload.yaml", yaml_text(_workload(nest), note)),
            (f"{name}/mapping.yaml", yaml_text(_mapping(nest, unrolled, machine), note)),
        ]
        exported.append(Exported(nest, name, _caveats(nest) + untimed(nest, machine)))
    return Export(tuple(sorted(files)), tuple(exported), tuple(refused))


def _problem(nest: LoopNest) -> NoForm | None:
    if nest.ragged:
        return NoForm(Reason.RAGGED, f"tiles overhang {', '.join(nest.ragged)}")
    seen: set[tuple[int, str]] = set()
    for hold in nest.holds:
        tensor = nest.operands[hold.operand].tensor
        if (hold.operand, hold.memory) in seen:
            return NoForm(Reason.MEMORIES, f"{tensor} has two buffers in {hold.memory}")
        seen.add((hold.operand, hold.memory))
        if any(loop.is_spatial for loop in nest.loops[hold.depth :]):
            return NoForm(
                Reason.CORES, f"{hold.memory} holds {tensor} outside of a loop over cores"
            )
    return None


def _caveats(nest: LoopNest) -> tuple[str, ...]:
    found = [
        "feeds of the array are counted in accesses and energy, in time they are free",
        "all components overlap: first and last tiles take no time of their own",
        "sums take as many bits as the result",
    ]
    if any(o.is_padded for o in nest.operands):
        found.append("padding: rims of tiles are moved that Tilewright does not move")
    if nest.engine.dataflow is not None:
        found[0] = "loads, skew and ports of the array take time in Tilewright and none here"
    return tuple(found)


def _dim(k: int) -> str:
    return f"a{k}"


def _tensor(k: int, nest: LoopNest) -> str:
    """Names of peers' own making: those of tensors may be anything."""
    return "T_out" if k == len(nest.operands) - 1 else f"T{k}"


def _workload(nest: LoopNest) -> dict[str, Any]:
    bits = {_tensor(k, nest): o.dtype.bits for k, o in enumerate(nest.operands)}
    accesses = []
    for k, operand in enumerate(nest.operands):
        name = _tensor(k, nest)
        projection = {
            f"{name.upper()}_{d}": _expression(terms)
            for d, terms in enumerate(operand.index)
            if terms
        }
        access: dict[str, Any] = {"name": name, "projection": projection}
        accesses.append(access | ({"output": True} if name == "T_out" else {}))
    shape = {_dim(k): f"0 <= {_dim(k)} < {d.extent}" for k, d in enumerate(nest.dims)}
    return {
        "workload": {
            "iteration_space_shape": shape,
            "bits_per_value": bits,
            "einsums": [{"name": "Kernel", "tensor_accesses": accesses}],
        }
    }


def _expression(terms: Terms) -> str:
    return " + ".join(_dim(d) if c == 1 else f"{c} * {_dim(d)}" for d, c in terms)


def _arch(nest: LoopNest, unrolled: Unrolled, machine: Machine) -> dict[str, Any]:
    used = [
        level for level in machine.levels[1:] if any(h.memory == level.name for h in nest.holds)
    ]
    inner = nest.holds[-1].memory if not used else used[-1].name
    nodes = [_memory(machine.home, machine.home.capacity_bytes, "All", is_timed=True)]
    cores = prod(loop.trip for loop in nest.loops if loop.is_spatial)
    if cores > 1:
        nodes.append(_fanout("Cores", {"core": machine.num_cores}, "Nothing"))
    for level in used:
        held = sorted({_tensor(h.operand, nest) for h in nest.holds if h.memory == level.name})
        size = level.usable_bytes * level.instances // machine.num_cores
        nodes.append(_memory(level, size, " | ".join(held), is_timed=level.name != inner))
    sides = {f"side{k}": size for k, size in enumerate(unrolled.sizes)}
    nodes.append(_fanout("Array", sides, "All"))
    energies = nest.engine.op_energy_pj or {}
    energy = float(energies.get(nest.operands[0].dtype, 0.0))
    compute = {"name": "compute", "energy": energy, "throughput": 1}
    nodes.append(
        Tagged("Compute", {"name": nest.engine.name, "leak_power": 0, "area": 0,
                           "actions": [compute]})
    )  # fmt: skip
    return {"arch": {"nodes": nodes}}


def _memory(level: MemoryLevel, size_bytes: int, tensors: str, *, is_timed: bool) -> Tagged:
    rates = (
        ("read", level.read_energy_pj_per_byte, level.read_bytes_per_cycle),
        ("write", level.write_energy_pj_per_byte, level.write_bytes_per_cycle),
    )
    latency = _SHARED_PORT if level.half_duplex else _SEPARATE_PORTS
    return Tagged("Memory", {
        "name": level.name,
        "size": size_bytes * 8,
        "leak_power": 0,
        "area": 0,
        "total_latency": latency if is_timed else 0,
        "tensors": {"keep": tensors},
        "actions": [
            {"name": name, "energy": round(energy / 8, 9), "throughput": rate * 8,
             "bits_per_action": 1}
            for name, energy, rate in rates
        ],
    })  # fmt: skip


def _fanout(name: str, sides: dict[str, int], reused: str) -> Tagged:
    spatial = [{"name": side, "fanout": size, "may_reuse": reused} for side, size in sides.items()]
    return Tagged("Container", {"name": name, "spatial": spatial})


def _mapping(nest: LoopNest, unrolled: Unrolled, machine: Machine) -> dict[str, Any]:
    left = [dim.extent for dim in nest.dims]
    tensors = [_tensor(k, nest) for k in range(len(nest.operands))]
    nodes = [Tagged("Storage", {"tensors": [t], "component": machine.home.name}) for t in tensors]

    def loop(kind: str, dim: int, factor: int, **fields: Any) -> None:
        if factor == 1:
            return
        left[dim] //= factor
        nodes.append(Tagged(kind, {"rank_variable": _dim(dim), "tile_shape": left[dim], **fields}))

    order = [level.name for level in machine.levels]
    for depth in range(len(nest.loops) + 1):
        here = [hold for hold in nest.holds if hold.depth == depth]
        nodes += [
            Tagged("Storage", {"tensors": [tensors[hold.operand]], "component": hold.memory})
            for hold in sorted(here, key=lambda h: order.index(h.memory))
        ]
        if depth < len(nest.loops):
            step = nest.loops[depth]
            if step.is_spatial:
                loop("Spatial", step.dim, step.trip, name="core", component="Cores")
            else:
                loop("Temporal", step.dim, step.trip)
    for dim, factor in unrolled.steps:
        loop("Temporal", dim, factor)
    for k, side in enumerate(unrolled.spatial):
        for dim, factor in side:
            loop("Spatial", dim, factor, name=f"side{k}", component="Array")
    nodes.append(Tagged("Compute", {"einsum": "Kernel", "component": nest.engine.name}))
    return {"mapping": {"nodes": nodes}}
