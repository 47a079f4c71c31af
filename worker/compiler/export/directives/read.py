"""What directives say: loops, and the buffers between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from worker.compiler.export.directives.notation import Directives, Level, Tensor, refuse
from worker.compiler.export.nest import Dim, Hold, NestLoop, Operand
from worker.compiler.machine.machine import Engine, Machine


@dataclass(frozen=True, slots=True)
class Mapping:
    """A layer's loops and buffers."""

    engine: Engine
    tile: tuple[int, ...]
    """Box of one instruction, per dimension."""
    loops: tuple[NestLoop, ...]
    """Outer to inner."""
    steps: tuple[int, ...]
    """By how many steps of its dimension each goes on."""
    holds: tuple[Hold, ...]
    """As levels and lines have them, outer level first."""


def mapping_of(
    directives: Directives, dims: Sequence[Dim], operands: Sequence[Operand], machine: Machine
) -> Mapping:
    """The loops and buffers that directives say, of an operator's dimensions and operands.

    A buffer stands inside the innermost loop around its level that moves its tensor, and inside of
    the stacks.

    Raises:
        InputError: TW-DIRECTIVE-001: they are about another operator, name what is not there, or
            their sizes and steps do not fit each other.
    """
    return _Reader(directives, dims, operands, machine).mapping()


class _Reader:
    def __init__(
        self, directives: Directives, dims: Sequence[Dim], operands: Sequence[Operand],
        machine: Machine,
    ) -> None:  # fmt: skip
        self.directives, self.dims, self.operands = directives, dims, operands
        self.machine = machine
        self.position = {dim.name: k for k, dim in enumerate(dims)}
        self.slot = {operand.tensor: k for k, operand in enumerate(operands)}

    def mapping(self) -> Mapping:
        own = tuple((dim.name, dim.extent) for dim in self.dims)
        if self.directives.axes != own:
            told = ", ".join(f"{name}={extent}" for name, extent in own)
            refuse(None, f"layer {self.directives.op}", f"the operator's axes are {told}")
        if not self.directives.levels:
            refuse(None, f"layer {self.directives.op}", "no engine is named")
        inner, *memories = self.directives.levels
        engine = next((x for x in self.machine.engines if x.name == inner.name), None)
        if engine is None:
            names = ", ".join(x.name for x in self.machine.engines)
            refuse(None, f"at {inner.name}", f"the innermost level is an engine: {names}")
        if inner.stacks:
            refuse(None, f"at {inner.name}", "nothing stacks inside of an engine's instruction")
        self._order(memories)
        for level in self.directives.levels:
            held = [tensor.name for tensor in level.tensors]
            if len(set(held)) < len(held):
                refuse(None, f"at {level.name}", "a tensor stands in it twice")
        tile = self._box(inner)
        walks = self._walks(tile)
        holds = self._holds(memories, tile, walks)
        loops = tuple(walk.loop for walk in walks)
        return Mapping(engine, tile, loops, tuple(walk.step for walk in walks), holds)

    def _order(self, memories: Sequence[Level]) -> None:
        names = [level.name for level in self.machine.levels[1:]]
        before = len(names)
        for level in memories:
            if level.name not in names or names.index(level.name) >= before:
                refuse(
                    None, f"at {level.name}",
                    f"memories follow from the inside out: {', '.join(reversed(names))}",
                )  # fmt: skip
            before = names.index(level.name)

    def _box(self, inner: Level) -> tuple[int, ...]:
        tile: dict[int, int] = {}
        for tensor in inner.tensors:
            if tensor.copies > 1 or tensor.dtype is not None:
                refuse(
                    None, f"at {inner.name}: tensor {tensor.name}",
                    "copies and formats are of buffers in memories, not of an instruction's box",
                )  # fmt: skip
            for k, size in self._sizes(tensor):
                if tile.setdefault(k, size) != size:
                    refuse(
                        None, f"tensor {tensor.name}",
                        f"{self.dims[k].name}={size} here, {tile[k]} in another tensor of the same"
                        " instruction",
                    )  # fmt: skip
        missing = [dim.name for k, dim in enumerate(self.dims) if k not in tile]
        if missing:
            refuse(None, f"at {inner.name}", f"no tensor says how much of {', '.join(missing)}")
        return tuple(tile[k] for k in range(len(self.dims)))

    def _sizes(self, tensor: Tensor) -> list[tuple[int, int]]:
        if tensor.name not in self.slot:
            refuse(
                None, f"tensor {tensor.name}", f"the operator's tensors are {', '.join(self.slot)}"
            )
        operand = self.operands[self.slot[tensor.name]]
        moved = [dim.name for k, dim in enumerate(self.dims) if operand.is_moved_by(k)]
        if [name for name, _ in tensor.sizes] != moved:
            refuse(None, f"tensor {tensor.name}", f"its axes are {', '.join(moved) or 'none'}")
        return [(self.position[name], size) for name, size in tensor.sizes]

    def _walks(self, tile: tuple[int, ...]) -> tuple[_Walk, ...]:
        """All loops, outer to inner: level by level, cores outside of time."""
        told: list[tuple[int, str, int, int | None, int]] = []
        for number, level in reversed([*enumerate(self.directives.levels)]):
            told += [(number, s.axis, s.shift, s.repl, s.every) for s in reversed(level.stacks)]
            told += [(number, u.axis, u.step, None, 0) for u in reversed(level.updates)]
        for number, axis, step, repl, _ in told:
            line = f"at {self.directives.levels[number].name}: {axis}+={step}"
            if axis not in self.position:
                refuse(None, line, f"the operator's axes are {', '.join(self.position)}")
            if repl is not None and repl > 1 and self.dims[self.position[axis]].is_reduced:
                refuse(None, line, f"cores would each have a part of every sum over {axis}")
        trips = self._trips(tile, told)
        return tuple(
            _Walk(number, NestLoop(self.position[axis], trip, repl is not None, every), step)
            for (number, axis, step, repl, every), trip in zip(told, trips, strict=True)
            if trip > 1
        )

    def _trips(
        self, tile: tuple[int, ...], told: Sequence[tuple[int, str, int, int | None, int]]
    ) -> list[int]:
        """Trips of all loops: over each axis they go on in a chain, each by all that the one with
        the next smaller step covers."""
        trips = [1] * len(told)
        for k, dim in enumerate(self.dims):
            covered = tile[k]
            own = [n for n, (_, axis, *_) in enumerate(told) if axis == dim.name]
            # Of equal steps one has a single trip; the inner ones come first.
            own.sort(key=lambda n: (told[n][2], -n))
            for place, n in enumerate(own):
                number, axis, step, repl, _ = told[n]
                line = f"at {self.directives.levels[number].name}: {axis}+={step}"
                end = told[own[place + 1]][2] if place + 1 < len(own) else dim.extent
                trips[n] = -(-end // step) if repl is None else repl
                if step != covered:
                    refuse(None, line, f"{covered} steps of {axis} are covered before it goes on")
                is_outermost = place + 1 == len(own)
                if not is_outermost and step * trips[n] != end:
                    refuse(None, line, f"{trips[n]} times that is not {end}")
                covered = step * trips[n]
            if covered < dim.extent:
                refuse(
                    None, f"layer {self.directives.op}",
                    f"{covered} of {dim.extent} steps of {dim.name} are covered",
                )  # fmt: skip
        return trips

    def _holds(
        self, memories: Sequence[Level], tile: tuple[int, ...], walks: Sequence[_Walk]
    ) -> tuple[Hold, ...]:
        found: list[Hold] = []
        result = len(self.operands) - 1
        for number, level in reversed([*enumerate(memories, 1)]):
            outside = [k for k, walk in enumerate(walks) if walk.level >= number]
            front = max((k + 1 for k in outside if walks[k].loop.is_spatial), default=0)
            for tensor in level.tensors:
                sizes = self._sizes(tensor)
                slot = self.slot[tensor.name]
                operand = self.operands[slot]
                wide = operand.dtype.accumulator if slot == result else operand.dtype
                if tensor.dtype not in {None, operand.dtype, wide}:
                    refuse(
                        None, f"at {level.name}: tensor {tensor.name}",
                        f"it is stored as {' or '.join(sorted({operand.dtype, wide}))}",
                    )  # fmt: skip
                moving = [k + 1 for k in outside if operand.is_moved_by(walks[k].loop.dim)]
                depth = max(front, *moving) if moving else front
                inside = self._inside(tensor, tile, walks, depth)
                for k, size in sizes:
                    if size != min(inside[k], self.dims[k].extent):
                        refuse(
                            None, f"at {level.name}: tensor {tensor.name}",
                            f"{self.dims[k].name}={size}, where {inside[k]} run inside of it",
                        )  # fmt: skip
                outer = [hold for hold in found if hold.operand == slot]
                begin = outer[-1].depth if outer else 0
                sums = any(self.dims[w.loop.dim].is_reduced for w in walks[begin:depth])
                if slot == result and sums and not outer:
                    refuse(
                        None, f"at {level.name}: tensor {tensor.name}",
                        "sums would leave it before they are done, for home",
                    )  # fmt: skip
                before = any(hold.is_read_back for hold in outer)
                widths = operand.widths(inside)
                whole = operand.widths([dim.extent for dim in self.dims])
                found.append(
                    Hold(
                        slot, level.name, outer[-1].memory if outer else self.machine.home.name,
                        depth, tuple(min(a, b) for a, b in zip(widths, whole, strict=True)),
                        tensor.copies, tensor.dtype or operand.dtype,
                        slot == result and (sums or before),
                    )
                )  # fmt: skip
        return tuple(found)

    def _inside(
        self, tensor: Tensor, tile: tuple[int, ...], walks: Sequence[_Walk], depth: int
    ) -> list[int]:
        """Steps of each dimension that run inside a buffer."""
        inside = list(tile)
        for walk in walks[depth:]:
            inside[walk.loop.dim] = max(inside[walk.loop.dim], walk.step * walk.loop.trip)
        operand = self.operands[self.slot[tensor.name]]
        for walk in walks[:depth]:
            if operand.is_moved_by(walk.loop.dim) and walk.step < inside[walk.loop.dim]:
                name = self.dims[walk.loop.dim].name
                refuse(
                    None, f"tensor {tensor.name}",
                    f"a buffer would have parts of {name} that do not lie side by side",
                )  # fmt: skip
        return inside


@dataclass(frozen=True, slots=True)
class _Walk:
    """A loop, where it is told."""

    level: int
    """Number from the inside out, 0: the engine."""
    loop: NestLoop
    step: int
