"""Windows of Conv and pools in numbers: kernel, strides, dilations and the padding in front."""

from __future__ import annotations

from worker.compiler.train.emit import dims
from worker.compiler.train.rules.phases import Axis
from worker.compiler.train.rules.site import NoRule, Site


def window_axes(site: Site, kernel: tuple[int, ...]) -> tuple[Axis, ...]:
    """The spatial axes of a node whose first input and output are (N, C, ...).

    Raises:
        NoRule: an automatic padding that is unknown.
    """
    count = len(kernel)
    strides = site.integers("strides") or (1,) * count
    dilations = site.integers("dilations") or (1,) * count
    extents, outputs = site.shape()[2:], dims(site.y)[2:]
    auto = site.text("auto_pad", "NOTSET")
    if auto == "VALID":
        before: tuple[int, ...] = (0,) * count
    elif auto in ("SAME_UPPER", "SAME_LOWER"):
        before = tuple(
            (max((o - 1) * s + (k - 1) * d + 1 - n, 0) + (auto == "SAME_LOWER")) // 2
            for n, o, k, s, d in zip(extents, outputs, kernel, strides, dilations, strict=True)
        )
    elif auto == "NOTSET":
        before = (site.integers("pads") or (0,) * 2 * count)[:count]
    else:
        raise NoRule(f"auto_pad {auto!r} is unknown")
    return tuple(map(Axis, extents, outputs, kernel, strides, dilations, before))
