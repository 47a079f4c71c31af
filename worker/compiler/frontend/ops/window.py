"""Geometry of sliding windows: convolution and pooling share strides, dilations and padding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from worker.compiler.frontend.ops.call import Call
from worker.compiler.frontend.ops.refusal import Refusal, shape_mismatch, unsupported_attribute
from worker.compiler.ir.affine import Affine
from worker.compiler.rejection import ReasonCode

MAX_SPATIAL = 3
_AUTO_PADS = ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID")


@dataclass(frozen=True, slots=True)
class Window:
    """One spatial dimension: `kernel` taps, `dilation` apart, moving by `stride`."""

    size: int
    """Input extent."""
    kernel: int
    stride: int
    dilation: int
    pad_begin: int
    pad_end: int
    out: int
    """Output extent."""

    def position(self, out: Affine, tap: Affine) -> Affine:
        """Input position that tap `tap` of output `out` reads; outside [0, size) is padding."""
        return out * self.stride + tap * self.dilation - self.pad_begin

    @property
    def is_padded(self) -> bool:
        """Whether any window reaches outside the input."""
        last = (self.out - 1) * self.stride + (self.kernel - 1) * self.dilation - self.pad_begin
        return self.pad_begin > 0 or last >= self.size


def check_spatial(op_type: str, rank: int) -> None:
    """Refuse tensors without batch, channel and 1 to 3 spatial dimensions."""
    if not 3 <= rank <= 2 + MAX_SPATIAL:
        raise Refusal(
            ReasonCode.RANK_LIMIT,
            f"{op_type} over {rank - 2} spatial dimensions; 1 to {MAX_SPATIAL} are supported",
        )


def spatial_attribute(call: Call, name: str, count: int, default: int) -> tuple[int, ...]:
    """A positive integer per spatial dimension."""
    values = call.attrs.integers(name)
    if not values:
        return (default,) * count
    if len(values) != count or any(v < 1 for v in values):
        raise unsupported_attribute(f"attribute {name!r} is {values}; {count} values >= 1 needed")
    return values


def read_windows(
    call: Call, spatial: Sequence[int], kernel: Sequence[int], *, ceil_mode: bool = False
) -> tuple[Window, ...]:
    """Read strides, dilations, pads and auto_pad and resolve them for an input of `spatial`.

    Raises:
        Refusal: on wrong counts or windows larger than the padded input.
    """
    count = len(spatial)
    strides = spatial_attribute(call, "strides", count, 1)
    dilations = spatial_attribute(call, "dilations", count, 1)
    auto_pad = call.attrs.choice("auto_pad", "NOTSET", _AUTO_PADS)
    pads = call.attrs.integers("pads") or (0,) * (2 * count)
    if len(pads) != 2 * count:
        raise unsupported_attribute(f"attribute 'pads' has {len(pads)} values, not {2 * count}")
    if auto_pad != "NOTSET":
        pads = (0,) * (2 * count)
    return tuple(
        _window(
            spatial[d], kernel[d], strides[d], dilations[d],
            (pads[d], pads[count + d]), auto_pad, ceil_mode,
        )
        for d in range(count)
    )  # fmt: skip


def _window(
    size: int,
    kernel: int,
    stride: int,
    dilation: int,
    pads: tuple[int, int],
    auto_pad: str,
    ceil_mode: bool,
) -> Window:
    reach = (kernel - 1) * dilation + 1
    begin, end = pads
    if auto_pad.startswith("SAME"):
        out = -(-size // stride)
        total = (out - 1) * stride + reach - size
        if total < -1:
            # frameworks start at the first element, ONNX's formula skips some
            raise unsupported_attribute(
                f"auto_pad {auto_pad} with a window of {reach} and a stride of {stride} would"
                " crop; give pads instead"
            )
        total = max(total, 0)
        begin = total // 2 if auto_pad == "SAME_UPPER" else total - total // 2
        return Window(size, kernel, stride, dilation, begin, total - begin, out)
    if min(begin, end) < 0:
        raise unsupported_attribute(f"negative padding {pads}; crop with Slice instead")
    room = size + begin + end - reach
    if room < 0:
        raise shape_mismatch(
            f"a window of {reach} does not fit an input of {size} padded by {begin} + {end}"
        )
    out = room // stride + 1
    if ceil_mode:
        out = -(-room // stride) + 1
        if (out - 1) * stride >= size + begin:
            out -= 1  # a window must start inside the input or its leading padding
    return Window(size, kernel, stride, dilation, begin, end, out)
