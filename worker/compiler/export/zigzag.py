"""ZigZag: a folder per kernel with `workload.yaml`, `hardware.yaml` and `mapping.yaml`.

ZigZag's mapping file fixes the order of the loops; which of them run inside which memory it works
out from sizes, filling each memory from the inside while a tile fits.  So that it must find the
nest that runs, every buffer becomes a memory of its own, exactly as large as the tile it holds: the
scratchpad in the parts that this kernel gives its operands.  Loops that do not move an operand
stay inside by themselves.
Source: the input formats of ZigZag 3 (`zigzag-dse` 3.9), its accelerator, workload and mapping
validators.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from worker.compiler.export.documents import (
    Export,
    Exported,
    bits_per_cycle,
    origin,
    plain_name,
    read_pj,
    write_pj,
    yaml_text,
)
from worker.compiler.export.nest import Hold, LoopNest, NoForm, Reason, Refusal
from worker.compiler.export.unroll import Unrolled, unroll
from worker.compiler.export.untimed import untimed
from worker.compiler.machine.machine import Machine, MemoryLevel

_MEMORY_OPERANDS = ("I1", "I2", "O")
_LAYER_OPERANDS = ("I", "W", "O")
_MOST_ARRAY_DIMS = 4
"""That a mapping file can name."""


def write_zigzag(nests: Sequence[LoopNest], machine: Machine) -> Export:
    """The files of every nest that ZigZag can price as it runs."""
    files: list[tuple[str, str]] = []
    exported: list[Exported] = []
    refused: list[Refusal] = []
    for nest in nests:
        unrolled = unroll(nest)
        problem = unrolled if isinstance(unrolled, NoForm) else _problem(nest, unrolled)
        if problem is not None:
            refused.append(problem.of(nest))
            continue
        assert isinstance(unrolled, Unrolled)
        name = plain_name(nest.name)
        note = origin(nest)
        files += [
            (f"{name}/workload.yaml", yaml_text([_workload(nest, name)], note)),
            (f"{name}/hardware.yaml", yaml_text(_hardware(nest, unrolled, machine), note)),
            (f"{name}/mapping.yaml", yaml_text(_mapping(nest, unrolled), note)),
        ]
        exported.append(Exported(nest, name, _caveats(nest) + untimed(nest, machine)))
    return Export(tuple(sorted(files)), tuple(exported), tuple(refused))


def _problem(nest: LoopNest, unrolled: Unrolled) -> NoForm | None:
    if nest.roles is None or len(nest.operands) != 3:
        return NoForm(
            Reason.OPERATOR, f"{nest.op} is no product of two tensors that is summed:"
            " a ZigZag layer has two inputs and multiplies them",
        )  # fmt: skip
    for operand in nest.operands:
        if any(len(terms) > 2 for terms in operand.index):
            return NoForm(
                Reason.INDEX, f"{operand.tensor} is indexed by the sum of more than two dimensions"
            )
    if nest.ragged:
        return NoForm(
            Reason.RAGGED, f"tiles overhang {', '.join(nest.ragged)}; ZigZag's loops divide"
        )
    cores = [loop for loop in nest.loops if loop.is_spatial]
    if len(unrolled.sizes) + bool(cores) > _MOST_ARRAY_DIMS:
        return NoForm(Reason.CORES, "array and cores have more than four dimensions together")
    for operand in nest.operands:
        shared = [nest.dims[x.dim].name for x in cores if not operand.is_moved_by(x.dim)]
        if shared:
            return NoForm(
                Reason.CORES, f"cores along {', '.join(shared)} each move a copy of"
                f" {operand.tensor} of their own; ZigZag would move one for all of them",
            )  # fmt: skip
    for at, hold in enumerate(nest.holds):
        tensor = nest.operands[hold.operand].tensor
        if any(x.operand == hold.operand and x.memory == hold.memory for x in nest.holds[:at]):
            return NoForm(Reason.MEMORIES, f"{tensor} has two buffers in {hold.memory}")
        if not nest.is_stationary(hold):
            return NoForm(
                Reason.BUFFERS, f"{tensor} is brought to {hold.memory} again although it has not"
                " changed; ZigZag would keep it",
            )  # fmt: skip
        outside = nest.loops[: hold.depth]
        if any(x.is_spatial for x in nest.loops[hold.depth :]) or _time_around(outside):
            return NoForm(
                Reason.CORES, f"{hold.memory} lies outside of a loop over cores, or a loop in time"
                " outside of it; ZigZag's memories are inside of all cores, or outside",
            )  # fmt: skip
    return None


def _time_around(loops: Sequence[Any]) -> bool:
    """Whether a loop over cores follows a loop in time."""
    return any(b.is_spatial and not a.is_spatial and a.trip > 1
               for k, a in enumerate(loops) for b in loops[k + 1 :])  # fmt: skip


def _caveats(nest: LoopNest) -> tuple[str, ...]:
    found = ["feeds of the array are counted at the innermost memories, in time they are free"]
    if any(o.is_padded for o in nest.operands):
        found.append("padding: ZigZag moves rims of tiles that Tilewright does not move")
    single = [nest.operands[h.operand].tensor for h in nest.holds
              if h.copies > 1 and not _size_bits(nest, h)[1]]  # fmt: skip
    if single:
        found.append(f"{', '.join(single)}: two copies in Tilewright, one in ZigZag")
    if nest.engine.dataflow is not None:
        found[0] = "loads, skew and ports of the array take time in Tilewright and none here"
    return tuple(found)


def _ordered(nest: LoopNest) -> tuple[int, int, int]:
    """Positions of I, W and O among the operands."""
    assert nest.roles is not None
    return nest.roles.left, nest.roles.right, len(nest.operands) - 1


def _dim(k: int) -> str:
    return f"A{k}"


def _workload(nest: LoopNest, name: str) -> dict[str, Any]:
    sizes = {_dim(k): dim.extent for k, dim in enumerate(nest.dims)}
    relations: list[str] = []
    terms: dict[str, str] = {}
    for letter, at in zip(_LAYER_OPERANDS, _ordered(nest), strict=True):
        text = ""
        for index in nest.operands[at].index:
            match index:
                case ():
                    continue
                case ((k, 1),):
                    text += f"[{_dim(k).lower()}]"
                case _:
                    pair = f"P{len(relations)}"
                    (a, b), (c, d) = (index * 2)[:2] if len(index) == 2 else (index[0], (None, 1))
                    second = _dim(c) if c is not None else f"U{len(relations)}"
                    if c is None:
                        sizes[second] = 1  # a stride without a window over it
                    relations.append(f"{pair}={b}*{_dim(a)}+{d}*{second}".lower())
                    text += f"[{pair.lower()}]"
        terms[letter] = f"{letter}{text}"
    bits = {
        letter: nest.operands[at].dtype.bits
        for letter, at in zip(_LAYER_OPERANDS, _ordered(nest), strict=True)
    }
    return {
        "id": 0,
        "name": name,
        "operator_type": "Conv" if relations else "Gemm",
        "equation": f"{terms['O']}+={terms['W']}*{terms['I']}",
        "dimension_relations": relations,
        "loop_dims": list(sizes),
        "loop_sizes": list(sizes.values()),
        "operand_precision": {
            "W": bits["W"],
            "I": bits["I"],
            "O": nest.holds_of(len(nest.operands) - 1)[-1].dtype.bits,
            "O_final": bits["O"],
        },
        "operand_source": {"I": 0, "W": 0},
    }


def _mapping(nest: LoopNest, unrolled: Unrolled) -> list[Any]:
    spatial = {
        f"D{k + 1}": [f"{_dim(d)}, {factor}" for d, factor in factors]
        for k, factors in enumerate(unrolled.spatial)
        if factors
    }
    cores = [f"{_dim(x.dim)}, {x.trip}" for x in nest.loops if x.is_spatial and x.trip > 1]
    if cores:
        spatial[f"D{len(unrolled.sizes) + 1}"] = cores
    times = [(x.dim, x.trip) for x in nest.loops if not x.is_spatial and x.trip > 1]
    inner_first = [[_dim(d), trip] for d, trip in reversed([*times, *unrolled.steps])]
    return [
        {
            "name": "default",
            "spatial_mapping": spatial,
            "temporal_ordering": inner_first,
            "memory_operand_links": {"O": "O", "W": "I2", "I": "I1"},
        }
    ]


def _hardware(nest: LoopNest, unrolled: Unrolled, machine: Machine) -> dict[str, Any]:
    dims = [f"D{k + 1}" for k in range(len(unrolled.sizes))]
    sizes = list(unrolled.sizes)
    inside = list(dims)
    if any(x.is_spatial for x in nest.loops):
        dims.append(f"D{len(dims) + 1}")
        sizes.append(machine.num_cores)
    memories: dict[str, Any] = {}
    for name, at in zip(_MEMORY_OPERANDS, _ordered(nest), strict=True):
        for position, hold in enumerate(reversed(nest.holds_of(at))):
            level = machine.level(hold.memory)
            memories[f"{hold.memory}_{name}"] = _buffer(
                nest, hold, name, level, inside, _fed(nest, unrolled, at) if position == 0 else 0
            )
    memories[machine.home.name] = _home(machine.home, dims)
    energies = nest.engine.op_energy_pj or {}
    return {
        "name": plain_name(machine.name),
        "memories": memories,
        "operational_array": {
            "unit_energy": float(energies.get(nest.operands[nest.roles.left].dtype, 0.0))
            if nest.roles
            else 0.0,
            "unit_area": 0.0,
            "dimensions": dims,
            "sizes": sizes,
        },
    }


def _fed(nest: LoopNest, unrolled: Unrolled, operand: int) -> int:
    """Elements that the array takes from, or gives to, an operand's buffer in one cycle."""
    moved = nest.operands[operand]
    return prod(f for side in unrolled.spatial for d, f in side if moved.is_moved_by(d))


def _buffer(
    nest: LoopNest, hold: Hold, operand: str, level: MemoryLevel, served: list[str], fed: int
) -> dict[str, Any]:
    """A part of a scratchpad.  The port to the array never makes it wait, as in Tilewright's clock;
    ports between memories are the level's, of which one for both directions has the slower rate."""
    into = bits_per_cycle(level.write_bytes_per_cycle)
    out = bits_per_cycle(level.read_bytes_per_cycle)
    feed, drain = (fed * hold.dtype.bits, fed * hold.dtype.bits) if fed else (out, into)
    ports = [_port("r_port_1", "read", feed, [f"{operand}, tl"]),
             _port("w_port_1", "write", into, [f"{operand}, fh"])]  # fmt: skip
    if operand == "O" and level.half_duplex:
        ports[1:] = [_port("rw_port_1", "read_write", min(into, out), ["O, fh", "O, th"]),
                     _port("w_port_2", "write", drain, ["O, fl"])]  # fmt: skip
    elif operand == "O":
        ports += [_port("r_port_2", "read", out, ["O, th"]),
                  _port("w_port_2", "write", drain, ["O, fl"])]  # fmt: skip
    size, is_doubled = _size_bits(nest, hold)
    return {
        "size": size,
        "r_cost": read_pj(level, out if operand == "O" else feed),
        "w_cost": write_pj(level, into),
        "area": 0.0,
        "latency": 1,
        "operands": [operand],
        "ports": ports,
        "served_dimensions": served,
        "force_double_buffering": is_doubled,
    }


def _size_bits(nest: LoopNest, hold: Hold) -> tuple[int, bool]:
    """Size that makes ZigZag's allocation end at this buffer's loops, and whether it holds two
    tiles.  Two copies of half a tensor would be filled with the whole of it instead: then one."""
    operand = nest.operands[hold.operand]
    elems = prod(operand.widths(nest.tile_inside(hold.depth)))
    whole = prod(operand.widths(nest.tile_inside(0)))
    bits = hold.dtype.bits
    if hold.operand == len(nest.operands) - 1 and not _sums_outside(nest, hold):
        bits = operand.dtype.bits
    is_doubled = hold.copies > 1 and hold.depth > 0 and whole > 2 * elems
    return elems * bits * (2 if is_doubled else 1), is_doubled


def _sums_outside(nest: LoopNest, hold: Hold) -> bool:
    """Whether ZigZag has sums left to do when it fills this buffer of the result: it counts the
    width of partial sums then, else that of the finished result."""
    inner = [h for h in nest.holds_of(hold.operand) if h.depth > hold.depth]
    if inner:
        return any(nest.dims[x.dim].is_reduced for x in nest.loops[: inner[-1].depth])
    unrolled = unroll(nest)
    steps = () if isinstance(unrolled, NoForm) else unrolled.steps
    return any(
        nest.dims[d].is_reduced for d in (*(x.dim for x in nest.loops), *(d for d, _ in steps))
    )


def _home(level: MemoryLevel, served: list[str]) -> dict[str, Any]:
    read, write = (
        bits_per_cycle(level.read_bytes_per_cycle), bits_per_cycle(level.write_bytes_per_cycle)
    )  # fmt: skip
    leaving, coming = ["I1, tl", "I2, tl", "O, tl", "O, th"], ["I1, fh", "I2, fh", "O, fh", "O, fl"]
    if level.half_duplex:
        ports = [_port("rw_port_1", "read_write", min(read, write), [*leaving, *coming])]
    else:
        ports = [
            _port("r_port_1", "read", read, leaving),
            _port("w_port_1", "write", write, coming),
        ]
    return {
        "size": level.capacity_bytes * 8,
        "r_cost": read_pj(level, read),
        "w_cost": write_pj(level, write),
        "area": 0.0,
        "latency": 1,
        "operands": list(_MEMORY_OPERANDS),
        "ports": ports,
        "served_dimensions": served,
    }


def _port(name: str, kind: str, bits: int, allocation: list[str]) -> dict[str, Any]:
    """Transfers are counted in bytes, not in words as wide as the port."""
    return {
        "name": name,
        "type": kind,
        "bandwidth_min": min(8, bits),
        "bandwidth_max": bits,
        "allocation": allocation,
    }
