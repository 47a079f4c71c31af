"""Col2Im: overlapping blocks added up, by asking at every place which blocks reach it."""

from __future__ import annotations

from math import prod

from worker.compiler.frontend.ops.body import call as apply
from worker.compiler.frontend.ops.body import lit, select
from worker.compiler.frontend.ops.call import Call, Expression
from worker.compiler.frontend.ops.conv_transpose import Spread
from worker.compiler.frontend.ops.layout import reshape_to
from worker.compiler.frontend.ops.refusal import shape_mismatch, unsupported_attribute
from worker.compiler.frontend.ops.window import check_spatial, spatial_attribute
from worker.compiler.ir.dtype import DType
from worker.compiler.ir.op import Reduce
from worker.compiler.ir.scalar import Fn, Index, Scalar


def col2im(call: Call) -> None:
    """Col2Im: [batch, channel * block, column] to [batch, channel, place...]; sizes are known.

    A block's tap meets a place as a transposed convolution's does, with nothing to multiply by.
    """
    x = call.tensor(0)
    image, block = call.integers(1), call.integers(2)
    count = len(image)
    check_spatial("Col2Im", count + 2)
    strides = spatial_attribute(call, "strides", count, 1)
    dilations = spatial_attribute(call, "dilations", count, 1)
    pads = call.attrs.integers("pads") or (0,) * (2 * count)
    if len(pads) != 2 * count or min(pads) < 0:
        raise unsupported_attribute(f"pads {pads} of Col2Im over {count} dimensions")
    columns = tuple(
        (image[d] + pads[d] + pads[count + d] - dilations[d] * (block[d] - 1) - 1) // strides[d] + 1
        for d in range(count)
    )
    if (
        len(block) != count
        or len(x.shape) != 3
        or min(*image, *block, *columns) < 1
        or x.shape[1] % prod(block)
        or x.shape[2] != prod(columns)
    ):
        raise shape_mismatch(f"Col2Im of {x.shape} to {image} by blocks of {block}")
    batch, channels = x.shape[0], x.shape[1] // prod(block)
    if channels > 1 and count != 2:
        raise unsupported_attribute(
            f"Col2Im of {channels} channels over {count} dimensions: ONNX Runtime mixes up the"
            " channels, ONNX's reference does not"
        )
    blocks = call.temp("blocks", (batch, channels, *block, *columns), x.dtype)
    reshape_to(call, blocks, x)
    out = call.output(0, (batch, channels, *image), x.dtype)
    spreads = [Spread(block[d], strides[d], dilations[d], pads[d], image[d]) for d in range(count)]
    nest = call.nest()
    n, c, *o = nest.axes("i", out.shape)
    taps = nest.reduce_axes("k", [s.taps for s in spreads])
    places = [s.places(a, t) for s, a, t in zip(spreads, o, taps, strict=True)]
    # a column or a tap that is not there reads the fill, which adds nothing
    at = (n, c, *(tap for _, tap, _ in places), *(column for column, _, _ in places))
    body: Scalar = nest.read(blocks, at, lit(0, x.dtype).value)
    for _, _, remainder in places:
        if remainder is not None:
            meets = apply(Fn.EQ, Index(remainder), lit(0, DType.I64))
            body = select(meets, body, lit(0, x.dtype))
    together = Reduce.MAX if x.dtype is DType.BOOL else Reduce.ADD  # a sum of truths is any of them
    nest.write(out, (n, c, *o), body, together)


EXPRESSIONS: dict[str, Expression] = {"Col2Im": col2im}
