"""Strided windows run backwards, without walking the zeros between.

Element h of an axis was read by output o through tap k where  h + before = o stride + k dilation.
For one phase, h = r + stride t, the taps that fit are every so-many-th one, and o = t + shift - j
reach for the j-th of them: a dense window over the outputs.  The phases are then interleaved.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from math import gcd

import onnx_ir

from worker.compiler.train.emit import Emitter, dims


@dataclass(frozen=True, slots=True)
class Axis:
    """A window along one axis of the forward pass."""

    extent: int
    """Of what the window slides over, without padding."""
    outputs: int
    kernel: int
    stride: int
    dilation: int
    before: int
    """Padding in front; behind it is what the outputs need."""


@dataclass(frozen=True, slots=True)
class Phase:
    """One phase of one axis: a dense window over the gradient."""

    taps: range
    """Of the forward window, nearest output first: the window's first tap is the last of them."""
    reach: int
    """Dilation of the window."""
    before: int
    """Zeros in front of the gradient; negative where its front is not read."""
    after: int
    length: int
    """Elements of this phase."""


def phases(axis: Axis) -> tuple[Phase, ...]:
    """The phases of an axis: `stride` of them, some without taps or without elements."""
    found = []
    for r in range(axis.stride):
        length = len(range(r, axis.extent, axis.stride))
        fits = [
            k for k in range(axis.kernel)
            if (r + axis.before - k * axis.dilation) % axis.stride == 0
        ]  # fmt: skip
        if not fits or not length:
            found.append(Phase(range(0), 1, 0, 0, length))
            continue
        apart = axis.stride // gcd(axis.stride, axis.dilation)
        taps = range(fits[0], fits[-1] + 1, apart)
        reach = apart * axis.dilation // axis.stride
        shift = (r + axis.before - fits[0] * axis.dilation) // axis.stride
        before = (len(taps) - 1) * reach - shift
        after = length + (len(taps) - 1) * reach - axis.outputs - before
        found.append(Phase(taps, reach, before, after, length))
    return tuple(found)


def run_backwards(
    emit: Emitter,
    axes: Sequence[Axis],
    shape: Sequence[int],
    like: onnx_ir.Value,
    dense: Callable[[Sequence[Phase]], onnx_ir.Value],
) -> onnx_ir.Value:
    """A tensor of `shape`, whose last axes are `axes`; `dense` makes one phase of each of them.

    Shapes: `dense` gives (..., length of each phase); phases without a tap are zeros.
    """
    lead = tuple(shape[: len(shape) - len(axes)])
    choices = [phases(axis) for axis in axes]
    most = [len(range(0, axis.extent, axis.stride)) for axis in axes]
    parts = []
    for chosen in product(*choices):
        lengths = [phase.length for phase in chosen]
        if all(lengths) and all(phase.taps for phase in chosen):
            made = dense(chosen)
            short = [m - n for m, n in zip(most, lengths, strict=True)]
            rank = len(lead)
            made = emit.pad(made, [0] * (rank + len(short)), [0] * rank + short)
        else:
            made = emit.expand(emit.real(0, like), (*lead, *most))
        parts.append(made)
    return _interleaved(emit, parts, axes, lead, most)


def _interleaved(
    emit: Emitter,
    parts: list[onnx_ir.Value],
    axes: Sequence[Axis],
    lead: tuple[int, ...],
    most: Sequence[int],
) -> onnx_ir.Value:
    """Parts of all combinations of phases, the last axis's fastest, woven into one tensor."""
    lengths = list(most)
    for d in reversed(range(len(axes))):
        stride, at = axes[d].stride, len(lead) + d
        if stride == 1:
            continue
        shape = [*lead, *lengths]
        stacked = [*shape[: at + 1], 1, *shape[at + 1 :]]
        woven = []
        for k in range(0, len(parts), stride):
            columns = [emit.reshape(part, stacked) for part in parts[k : k + stride]]
            joined = emit.op("Concat", *columns, axis=at + 1)
            woven.append(emit.reshape(joined, [*shape[:at], shape[at] * stride, *shape[at + 1 :]]))
        parts, lengths[d] = woven, lengths[d] * stride
    (made,) = parts
    whole = [*lead, *(axis.extent for axis in axes)]
    return emit.slice(made, [0] * len(whole), whole)


def spread(emit: Emitter, value: onnx_ir.Value, steps: Sequence[int]) -> onnx_ir.Value:
    """`value` with steps - 1 zeros between the elements of each axis."""
    for d, step in enumerate(steps):
        if step == 1:
            continue
        shape = dims(value)
        apart = emit.reshape(value, [*shape[: d + 1], 1, *shape[d + 1 :]])
        behind = [0] * len(shape) + [0]
        behind[d + 1] = step - 1
        filled = emit.pad(apart, [0] * len(behind), behind)
        wide = emit.reshape(filled, [*shape[:d], shape[d] * step, *shape[d + 1 :]])
        ends = [n - (step - 1) if k == d else n for k, n in enumerate(dims(wide))]
        value = emit.slice(wide, [0] * len(ends), ends)
    return value
