"""A loop nest told in directives: exactly, or not at all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from worker.compiler.errors import InputError
from worker.compiler.export.directives.notation import (
    Directives,
    Level,
    Sizes,
    Stack,
    Tensor,
    Update,
    print_directives,
)
from worker.compiler.export.directives.read import mapping_of
from worker.compiler.export.documents import Export, Exported, origin, plain_name
from worker.compiler.export.nest import Hold, LoopNest, NestLoop, NoForm, Operand, Reason, Refusal
from worker.compiler.machine.machine import Machine


def write_directives(nests: Sequence[LoopNest], machine: Machine) -> Export:
    """A text of directives for every nest, with what each line of a tensor amounts to."""
    files: list[tuple[str, str]] = []
    exported: list[Exported] = []
    refused: list[Refusal] = []
    for nest in nests:
        found = directives_of(nest, machine)
        if isinstance(found, NoForm):
            refused.append(found.of(nest))
            continue
        name = plain_name(nest.name)
        head = [f"# {origin(nest)}", *(f"# {_indexed(nest, operand)}" for operand in nest.operands)]
        text = "\n".join(head) + "\n" + print_directives(found, _amounts(nest))
        files.append((f"{name}.directives", text))
        exported.append(Exported(nest, name))
    return Export(tuple(sorted(files)), tuple(exported), tuple(refused))


def directives_of(nest: LoopNest, machine: Machine) -> Directives | NoForm:
    """The directives that say the nest, and nothing else: read, they give its loops and buffers.

    Cost: linear in loops and buffers.
    """
    loops = tuple(loop for loop in nest.loops if loop.trip > 1)
    depths = {hold: _depth(nest, hold) for hold in nest.holds}
    memories = sorted({hold.memory for hold in nest.holds}, key=machine.level_index)
    levels: list[Level] = []
    begin = 0
    for memory in memories:
        held = [hold for hold in nest.holds if hold.memory == memory]
        end = max(begin, *(depths[hold] for hold in held))
        tensors = tuple(_tensor(nest, hold) for hold in held)
        level = _level(nest, memory, tensors, loops, begin, end)
        if level is None:
            return NoForm(Reason.CORES, f"cores split what steps in time around {memory}")
        levels.append(level)
        begin = end
    box = tuple(
        Tensor(operand.tensor, _moved(nest, operand, nest.tile)) for operand in nest.operands
    )
    inner = _level(nest, nest.engine.name, box, loops, begin, len(loops))
    if inner is None or inner.stacks:
        return NoForm(Reason.CORES, "cores split what is inside of all buffers")
    axes = tuple((dim.name, dim.extent) for dim in nest.dims)
    found = Directives(nest.op, axes, (inner, *reversed(levels)))
    try:
        mapping = mapping_of(found, nest.dims, nest.operands, machine)
    except InputError as error:
        return NoForm(Reason.BUFFERS, error.findings[0].message)
    own = sorted(_told(replace(hold, depth=depths[hold])) for hold in nest.holds)
    read = sorted(map(_told, mapping.holds))
    if own != read:
        [other, *_] = [a for a, b in zip(own, read, strict=True) if a != b]
        return NoForm(
            Reason.BUFFERS, f"{nest.operands[other[0]].tensor} in {other[1]} is dropped before it"
            " changes, or kept longer than directives say",
        )  # fmt: skip
    if mapping.loops != loops:
        return NoForm(Reason.TILING, "its loops do not stand in the order of directives")
    return found


def _told(hold: Hold) -> tuple[int, str, tuple[object, ...]]:
    """What directives must say of a buffer, in an order."""
    rest = hold.source, hold.depth, hold.extents, hold.copies, str(hold.dtype), hold.is_read_back
    return hold.operand, hold.memory, rest


def _depth(nest: LoopNest, hold: Hold) -> int:
    return sum(loop.trip > 1 for loop in nest.loops[: hold.depth])


def _level(
    nest: LoopNest, name: str, tensors: tuple[Tensor, ...], loops: Sequence[NestLoop], begin: int,
    end: int,
) -> Level | None:  # fmt: skip
    """A level with its loops, which are `begin` to `end`: cores outside, time inside."""
    own = range(begin, end)
    first = next((k for k in own if not loops[k].is_spatial), end)
    if any(loops[k].is_spatial for k in range(first, end)):
        return None
    stacks = tuple(
        Stack(nest.dims[x.dim].name, _step(nest, loops, k), x.trip, x.stride)
        for k, x in reversed([(k, loops[k]) for k in range(begin, first)])
    )
    updates = tuple(
        Update(nest.dims[loops[k].dim].name, _step(nest, loops, k))
        for k in reversed(range(first, end))
    )
    return Level(name, tensors, stacks, updates)


def _step(nest: LoopNest, loops: Sequence[NestLoop], k: int) -> int:
    step = nest.tile[loops[k].dim]
    for loop in loops[k + 1 :]:
        step *= loop.trip if loop.dim == loops[k].dim else 1
    return step


def _tensor(nest: LoopNest, hold: Hold) -> Tensor:
    operand = nest.operands[hold.operand]
    sizes = _moved(nest, operand, nest.tile_inside(hold.depth))
    return Tensor(
        operand.tensor, sizes, hold.copies, None if hold.dtype is operand.dtype else hold.dtype
    )


def _moved(nest: LoopNest, operand: Operand, tile: Sequence[int]) -> Sizes:
    return tuple(
        (dim.name, min(size, dim.extent))
        for k, (dim, size) in enumerate(zip(nest.dims, tile, strict=True))
        if operand.is_moved_by(k)
    )


def _indexed(nest: LoopNest, operand: Operand) -> str:
    """A tensor with the axes that index it, as `x[n, 2*y + r - 3]`."""
    parts: list[str] = []
    for terms, offset in zip(operand.index, operand.offsets, strict=True):
        axes = [(f"{c}*" if c > 1 else "") + nest.dims[d].name for d, c in terms]
        text = " + ".join(axes) or "0"
        parts.append(text + (f" {'+-'[offset < 0]} {abs(offset)}" if offset else ""))
    return f"{operand.tensor}[{', '.join(parts)}]"


def _amounts(nest: LoopNest) -> Mapping[tuple[str, str], str]:
    """By level and tensor: what it amounts to, as the tree runs it.

    Source: KAPLA, section III-B: a size is the product of its axes, parallelism that of the stacks,
    what is fetched the size times the trips of all loops outside of the buffer.
    """
    found: dict[tuple[str, str], str] = {}
    most = "at most " if nest.ragged else ""
    for hold in nest.holds:
        operand = nest.operands[hold.operand]
        fills = nest.fills(hold)
        is_result = hold.operand == len(nest.operands) - 1
        way = "drained to" if is_result else "filled from"
        back = ", and read back" if hold.is_read_back else ""
        found[hold.memory, operand.tensor] = (
            f"{hold.num_elems:,} elements; {way} {hold.source} {most}{fills:,} times:"
            f" {most}{hold.num_elems * fills:,}{back}"
        )
    return found
