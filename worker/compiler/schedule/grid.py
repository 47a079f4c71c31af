"""Affine expressions evaluated over all iterations of some loops at once.

Each loop variable is one array dimension, present only where it occurs, so an expression in two
variables costs the product of two trip counts however many loops there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from worker.compiler.ir.affine import Affine, FloorDiv, Lookup, Mod, Var
from worker.compiler.ir.evaluate import affine_values
from worker.compiler.ir.op import Access
from worker.compiler.machine.machine import Machine
from worker.compiler.schedule.nodes import LoopKind, Span
from worker.compiler.schedule.walk import Frame, Scope

Ints: TypeAlias = "npt.NDArray[Any]"
Range: TypeAlias = "tuple[Ints, Ints]"
"""Inclusive bounds, element by element."""


def coordinates(frames: Iterable[Frame]) -> dict[str, Ints]:
    """One broadcastable array of values per loop variable."""
    kept = list(frames)
    coords: dict[str, Ints] = {}
    for k, frame in enumerate(kept):
        shape = [1] * len(kept)
        shape[k] = frame.trip
        coords[frame.var] = np.arange(frame.trip, dtype=np.int64).reshape(shape)
    return coords


def core_ids(base: int, frames: Iterable[Frame], coords: Mapping[str, Ints]) -> Ints:
    """Core of each iteration: base + sum of CORES variables times their strides."""
    core: Ints = np.array(base, dtype=np.int64)
    for frame in frames:
        if frame.kind is LoopKind.CORES:
            core = core + coords[frame.var] * frame.stride
    return core


def cores_of(scope: Scope) -> Ints:
    """Cores that enter a scope, ascending, each once."""
    loops = [f for f in scope.frames if f.kind is LoopKind.CORES]
    return np.unique(core_ids(scope.core_base, loops, coordinates(loops)))


def instance_of(level: str, core: Ints, machine: Machine) -> Ints:
    """Instance of a level that a core is attached to."""
    return np.asarray(core * machine.level(level).instances // machine.num_cores)


def span_range(span: Span, coords: Mapping[str, Ints]) -> Range:
    """Bounds of a span at every iteration."""
    low = affine_values(span.start, coords)
    return low, low + (span.extent - 1)


def expr_range(expr: Affine, box: Mapping[str, Range]) -> Range:
    """Bounds of an index expression over boxes of its axes; as `Affine.bounds`, vectorised."""
    low: Ints = np.asarray(expr.const, dtype=np.int64)
    high = low
    for atom, coeff in expr.terms:
        first, last = _atom_range(atom, box)
        low = low + coeff * (first if coeff > 0 else last)
        high = high + coeff * (last if coeff > 0 else first)
    return low, high


def _atom_range(atom: Var | FloorDiv | Mod | Lookup, box: Mapping[str, Range]) -> Range:
    match atom:
        case Var(name):
            return box[name]
        case FloorDiv(arg, divisor):
            low, high = expr_range(arg, box)
            return low // divisor, high // divisor
        case Mod(arg, divisor):
            low, high = expr_range(arg, box)
            same = low // divisor == high // divisor
            return np.where(same, low % divisor, 0), np.where(same, high % divisor, divisor - 1)
        case Lookup(slot):
            raise KeyError(f"lookup of slot {slot} has no static bounds")


def access_range(
    access: Access, box: Mapping[str, Range], shape: tuple[int, ...]
) -> tuple[Range, ...]:
    """Bounds of what an access touches, per tensor dimension; whole dimensions for lookups."""
    found: list[Range] = []
    for expr, extent in zip(access.index, shape, strict=True):
        if expr.has_lookup:
            found.append((np.asarray(0), np.asarray(extent - 1)))
        else:
            found.append(expr_range(expr, box))
    return tuple(found)
