"""DFT and STFT: products with constant matrices of cosines and sines."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from worker.compiler.frontend.ops.body import mul
from worker.compiler.frontend.ops.call import Call, Expression
from worker.compiler.frontend.ops.elementwise import require_float
from worker.compiler.frontend.ops.reduce import normal_axis
from worker.compiler.frontend.ops.refusal import Refusal, shape_mismatch, unsupported_attribute
from worker.compiler.ir.affine import Affine
from worker.compiler.ir.op import Reduce, Tensor
from worker.compiler.rejection import ReasonCode

MAX_ENTRIES = 1 << 24
"""Of a matrix of cosines and sines: 64 MB in f32."""


def _matrix(
    call: Call, used: int, length: int, parts: tuple[int, int], *, inverse: bool, results: int
) -> Tensor:
    """[result, element, part in, part out]: what an element's part adds to a result's part.

    `used` elements of a period of `length`; parts are real and imaginary, or real only.  The
    inverse is from half a spectrum, whose other half is its mirror image.
    """
    shape = (results, used, *parts)
    if results * used * parts[0] * parts[1] > MAX_ENTRIES:
        raise Refusal(
            ReasonCode.SIZE_LIMIT,
            f"{call.node.op_type} of length {length} needs a matrix of {results} x {used}",
        )
    dtype = call.dtype(0)

    def values() -> npt.NDArray[Any]:
        # the product is reduced modulo the length as integers: no precision is lost in the angle
        turns = np.outer(np.arange(results), np.arange(used)) % length
        angle = 2 * np.pi * turns / length
        real, imaginary = np.cos(angle), np.sin(angle) * (1 if inverse else -1)
        if inverse:
            real, imaginary = real / length, imaginary / length
            n = np.arange(used)
            twice = np.where((n == 0) | (2 * n == length), 1, 2)
            real, imaginary = real * twice, imaginary * twice
        # (re + i im) * (c + i s) = (re c - im s) + i (re s + im c)
        full = np.stack([np.stack([real, imaginary], -1), np.stack([-imaginary, real], -1)], -2)
        return full[..., : parts[0], : parts[1]]

    return call.constant("waves", shape, dtype, values)


def dft(call: Call) -> None:
    """DFT along one axis to all of the spectrum or half of it, and from half of it back."""
    require_float(call)
    x = call.tensor(0)
    inverse = call.attrs.integer("inverse", 0) != 0
    one_sided = call.attrs.integer("onesided", 0) != 0
    if call.opset >= 20:
        given = call.integers(2)[0] if call.has_input(2) else -2
    else:
        given = call.attrs.integer("axis", 1)
    axis = normal_axis(given, len(x.shape))
    if axis == len(x.shape) - 1 or x.shape[-1] not in (1, 2):
        raise shape_mismatch(f"DFT of {x.shape} along axis {axis}")
    extent, parts_in = x.shape[axis], x.shape[-1]
    whole = 2 * (extent - 1) if inverse else extent
    length = call.integers(1)[0] if call.has_input(1) else whole
    if length < 1 or (one_sided and parts_in != (2 if inverse else 1)):
        raise shape_mismatch(f"DFT of {x.shape} to length {length}")
    half = length // 2 + 1
    if inverse and not one_sided:
        raise unsupported_attribute(
            "an inverse DFT to complex numbers: what should cancel leaves more than ONNX allows"
        )
    results = half if one_sided and not inverse else length
    used = min(extent, half if inverse else length)
    parts = (parts_in, 1 if inverse else 2)
    shape = (*(results if d == axis else n for d, n in enumerate(x.shape[:-1])), parts[1])
    out = call.output(0, shape, x.dtype)
    waves = _matrix(call, used, length, parts, inverse=inverse, results=results)
    nest = call.nest()
    index = nest.axes("i", shape)
    n, part = nest.reduce_axes("k", (used, parts_in))
    at = [n if d == axis else e for d, e in enumerate(index[:-1])]
    value = nest.read(x, (*at, part))
    body = mul(value, nest.read(waves, (index[axis], n, part, index[-1])))
    nest.write(out, index, body, Reduce.ADD)


def stft(call: Call) -> None:
    """STFT: windows of a signal, each transformed."""
    require_float(call)
    x = call.tensor(0)
    one_sided = call.attrs.integer("onesided", 1) != 0
    if len(x.shape) not in (2, 3) or (len(x.shape) == 3 and x.shape[2] not in (1, 2)):
        raise shape_mismatch(f"STFT of {x.shape}")
    parts_in = x.shape[2] if len(x.shape) == 3 else 1
    step = call.integers(1)[0]
    if call.has_input(3):
        length = call.integers(3)[0]
    elif call.has_input(2):
        length = call.shape(2)[0]
    else:
        raise shape_mismatch("STFT has neither a window nor a frame length")
    if step < 1 or not 1 <= length <= x.shape[1] or (one_sided and parts_in != 1):
        raise shape_mismatch(f"STFT of {x.shape} in frames of {length} every {step}")
    if call.has_input(2) and call.shape(2) != (length,):
        raise shape_mismatch(f"STFT in frames of {length} with a window of {call.shape(2)}")
    frames = (x.shape[1] - length) // step + 1
    results = length // 2 + 1 if one_sided else length
    out = call.output(0, (x.shape[0], frames, results, 2), x.dtype)
    waves = _matrix(call, length, length, (parts_in, 2), inverse=False, results=results)
    nest = call.nest()
    b, f, k, c = nest.axes("i", out.shape)
    n, part = nest.reduce_axes("k", (length, parts_in))
    at: list[Affine] = [b, f * step + n]
    value = nest.read(x, [*at, part] if len(x.shape) == 3 else at)
    if call.has_input(2):
        value = mul(value, nest.read(call.tensor(2), (n,)))
    nest.write(out, (b, f, k, c), mul(value, nest.read(waves, (k, n, part, c))), Reduce.ADD)


EXPRESSIONS: dict[str, Expression] = {"DFT": dft, "STFT": stft}
