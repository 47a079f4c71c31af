"""Rules of what slides a window: convolutions and pools."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from worker.compiler.frontend.rules.kinds import alike, at_least, length, one_of, rank_at_least
from worker.compiler.frontend.rules.site import Problem, Rule, Site


def spatial(site: Site) -> int | None:
    """Dimensions a window slides along: all but batch and channels."""
    rank = site.rank(0)
    return None if rank is None else rank - 2


def _twice_spatial(site: Site) -> int | None:
    count = spatial(site)
    return None if count is None else 2 * count


_SHAPE: tuple[Rule, ...] = (
    rank_at_least(0, 3),
    one_of("auto_pad", "NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"),
    at_least("kernel_shape", 1),
    at_least("strides", 1),
    at_least("dilations", 1),
    length("kernel_shape", spatial, "spatial dimensions"),
    length("strides", spatial, "spatial dimensions"),
    length("dilations", spatial, "spatial dimensions"),
    length("pads", _twice_spatial, "spatial dimensions, two each"),
)


def _differ(dims: tuple[int | None, ...], kernel: tuple[int, ...]) -> bool:
    return any(d is not None and d != k for d, k in zip(dims, kernel, strict=True))


def _kernel_of(weight: int) -> Rule:
    """The kernel's attribute and the weight say the same."""

    def check(site: Site) -> Iterator[Problem]:
        dims, kernel = site.dims(weight), site.attr("kernel_shape")
        rank = site.rank(0)
        if dims is None:
            return
        if rank is not None and len(dims) != rank:
            yield Problem(f"the weight has {len(dims)} dimensions, the input {rank}", rank,
                          len(dims))  # fmt: skip
        elif kernel is not None and len(kernel) == len(dims) - 2 and _differ(dims[2:], kernel):
            yield Problem(
                f"'kernel_shape' is {list(kernel)}, the weight's window {list(dims[2:])}",
                list(dims[2:]), list(kernel),
            )  # fmt: skip

    return check


def _channels(weight: int, bias: int | None, *, transposed: bool = False) -> Rule:
    """Channels of input, weight and bias, and the groups they are cut into, agree."""

    def check(site: Site) -> Iterator[Problem]:
        group = site.attr("group") or 0
        if group < 1:
            yield Problem(f"'group' is {group}", "at least 1", group)
            return
        dims, kernel = site.dims(0), site.dims(weight)
        channels = dims[1] if dims is not None and len(dims) > 1 else None
        if channels is not None and channels % group:
            yield Problem(
                f"'group' {group} does not divide {channels} input channels",
                f"a divisor of {channels}", group,
            )  # fmt: skip
            return
        if kernel is None or len(kernel) < 2:
            return
        first, second = kernel[0], kernel[1]
        taken = first if transposed else None if second is None else second * group
        made = (None if second is None else second * group) if transposed else first
        if channels is not None and taken is not None and taken != channels:
            yield Problem(
                f"the weight is for {taken} input channels in {group} groups, the input has"
                f" {channels}", channels, taken,
            )  # fmt: skip
        if first is not None and first % group:
            yield Problem(
                f"'group' {group} does not divide the weight's {first} filters",
                f"a divisor of {first}", group,
            )  # fmt: skip
        given = None if bias is None else site.dims(bias)
        if given is not None and made is not None and given not in ((made,), (None,)):
            yield Problem(f"the bias has shape {list(given)} for {made} channels", [made],
                          list(given))  # fmt: skip

    return check


def _pads_not_negative(site: Site) -> Iterator[Problem]:
    for value in site.attr("pads") or ():
        if value < 0:
            yield Problem(f"'pads' has {value}", "at least 0", value)
            return


def _kernel(site: Site, weight: int | None) -> tuple[int, ...] | None:
    kernel: tuple[int, ...] | None = site.attr("kernel_shape")
    if kernel is None and weight is not None:
        dims = site.shape(weight)
        kernel = None if dims is None else dims[2:]
    return kernel


def _window_fits(weight: int | None) -> Rule:
    """The window, dilated, is no longer than the input with its pads."""

    def check(site: Site) -> Iterator[Problem]:
        dims, kernel = site.shape(0), _kernel(site, weight)
        if dims is None or kernel is None or site.attr("auto_pad") in ("SAME_UPPER", "SAME_LOWER"):
            return
        count = len(dims) - 2
        pads = site.attr("pads") if site.attr("auto_pad") == "NOTSET" else None
        pads = pads or (0,) * (2 * count)
        dilations = site.attr("dilations") or (1,) * count
        if not len(kernel) == len(dilations) == count or len(pads) != 2 * count:
            return
        for k in range(count):
            padded = dims[2 + k] + pads[k] + pads[count + k]
            window = (kernel[k] - 1) * dilations[k] + 1
            if window > padded:
                yield Problem(
                    f"the window spans {window} of {padded} places along spatial dimension {k}",
                    f"at most {padded}", window,
                )  # fmt: skip
                return

    return check


def _pads_below_kernel(site: Site) -> Iterator[Problem]:
    """A window that lies in the padding alone has nothing to pool."""
    kernel, pads = site.attr("kernel_shape"), site.attr("pads")
    if kernel is None or pads is None or len(pads) != 2 * len(kernel):
        return
    dilations = site.attr("dilations") or (1,) * len(kernel)
    if len(dilations) != len(kernel):
        return
    for k, pad in enumerate(pads):
        window = (kernel[k % len(kernel)] - 1) * dilations[k % len(kernel)] + 1
        if pad >= window:
            yield Problem(
                f"'pads' has {pad}, the window spans {window}", f"at most {window - 1}", pad
            )
            return


def _output_padding(site: Site) -> Iterator[Problem]:
    """Each entry is smaller than the stride or the dilation, so that it names one input length."""
    given = site.attr("output_padding")
    if given is None:
        return
    strides = site.attr("strides") or (1,) * len(given)
    dilations = site.attr("dilations") or (1,) * len(given)
    if not len(strides) == len(dilations) == len(given):
        return
    for value, stride, dilation in zip(given, strides, dilations, strict=True):
        if value >= max(stride, dilation):
            most = max(stride, dilation) - 1
            yield Problem(f"'output_padding' has {value}", f"at most {most}", value)
            return


def _asked_shape(site: Site) -> Iterator[Problem]:
    """The result asked for ends within a stride of the last window."""
    asked, dims, kernel = site.attr("output_shape"), site.shape(0), _kernel(site, 1)
    if asked is None or dims is None or kernel is None:
        return
    count = len(dims) - 2
    strides = site.attr("strides") or (1,) * count
    dilations = site.attr("dilations") or (1,) * count
    extra = site.attr("output_padding") or (0,) * count
    if not len(asked) == len(kernel) == len(strides) == len(dilations) == len(extra) == count:
        return
    for k in range(count):
        span = (kernel[k] - 1) * dilations[k] + 1
        # Less than a stride beyond the last window still names this input length.
        most = strides[k] * dims[2 + k] - 1 + extra[k] + span
        if asked[k] > most:
            yield Problem(f"'output_shape' asks for {asked[k]}, the windows reach {most}",
                          f"at most {most}", asked[k])  # fmt: skip
            return


def convolution(weight: int = 1, bias: int | None = 2) -> tuple[Rule, ...]:
    """Rules of a convolution."""
    return (
        *_SHAPE, _kernel_of(weight), _channels(weight, bias), _pads_not_negative,
        _window_fits(weight),
    )  # fmt: skip


TRANSPOSED: tuple[Rule, ...] = (
    *_SHAPE,
    _kernel_of(1),
    _channels(1, 2, transposed=True),
    _pads_not_negative,
    at_least("output_padding", 0),
    length("output_padding", spatial, "spatial dimensions"),
    length("output_shape", spatial, "spatial dimensions"),
    at_least("output_shape", 1),
    _output_padding,
    _asked_shape,
)
POOL: tuple[Rule, ...] = (
    *_SHAPE,
    one_of("storage_order", 0, 1),
    at_least("p", 1),
    _pads_not_negative,
    _pads_below_kernel,
    _window_fits(None),
)


def _places(site: Site) -> Iterator[Problem]:
    """Where the values go: one place each, inside the result."""
    values, places = site.dims(0), site.dims(1)
    if values is None or places is None:
        return
    if not alike(values, places):
        yield Problem(f"the places have shape {list(places)}", list(values), list(places))
        return
    array, target, shape = site.const(1), site.ints("output_shape"), site.shape(0)
    if site.value("output_shape") is None and shape is not None:
        target = _unpooled(site, shape)
    elif target is not None and shape is not None:
        least = _unpooled(site, shape)
        if len(target) != len(shape) or target[:2] != shape[:2]:
            yield Problem(f"'output_shape' is {list(target)} for an input of {list(shape)}",
                          list(shape[:2]), list(target[:2]))  # fmt: skip
            return
        if least is not None and any(a < b for a, b in zip(target, least, strict=True)):
            yield Problem(f"'output_shape' is {list(target)}, the windows need {list(least)}",
                          list(least), list(target))  # fmt: skip
            return
    if array is None or not array.size or not target:
        return
    most = prod(target)
    for value in (int(array.min()), int(array.max())):
        if not 0 <= value < most:
            yield Problem(f"a place is {value}", f"0 to {most - 1}", value)
            return


def _unpooled(site: Site, shape: tuple[int, ...]) -> tuple[int, ...] | None:
    count = len(shape) - 2
    kernel = site.attr("kernel_shape")
    strides = site.attr("strides") or (1,) * count
    pads = site.attr("pads") or (0,) * (2 * count)
    if not len(kernel) == len(strides) == count or len(pads) != 2 * count:
        return None
    made = (
        (shape[2 + k] - 1) * strides[k] + kernel[k] - pads[k] - pads[count + k]
        for k in range(count)
    )
    return (*shape[:2], *made)


UNPOOL: tuple[Rule, ...] = (*_SHAPE, _pads_not_negative, _places)


def _offsets(site: Site) -> Iterator[Problem]:
    """Offset and mask have a place for each window position, kernel place and offset group."""
    x, kernel = site.shape(0), _kernel(site, 1)
    groups = site.attr("offset_group") or 0
    if groups < 1:
        yield Problem(f"'offset_group' is {groups}", "at least 1", groups)
        return
    if x is None or kernel is None or len(x) != 2 + len(kernel):
        return
    if x[1] % groups:
        yield Problem(f"'offset_group' {groups} does not divide {x[1]} input channels",
                      f"a divisor of {x[1]}", groups)  # fmt: skip
        return
    count = len(kernel)
    strides = site.attr("strides") or (1,) * count
    dilations = site.attr("dilations") or (1,) * count
    pads = site.attr("pads") or (0,) * (2 * count)
    if not len(strides) == len(dilations) == count or len(pads) != 2 * count or 0 in strides:
        return
    spans = [(kernel[k] - 1) * dilations[k] + 1 for k in range(count)]
    made = tuple(
        (x[2 + k] + pads[k] + pads[count + k] - spans[k]) // strides[k] + 1 for k in range(count)
    )
    for name, each in (("offset", count), ("mask", 1)):
        dims, want = site.dims(name), (x[0], groups * prod(kernel) * each, *made)
        if dims is not None and not alike(dims, want):
            yield Problem(f"{name!r} has shape {list(dims)}", list(want), list(dims))
            return


DEFORMED: tuple[Rule, ...] = (*convolution(1, 3), _offsets)


def _blocks_of(site: Site) -> Iterator[Problem]:
    """Columns of an image: one for each place of the window, whose elements divide the rows."""
    dims, image, block = site.dims(0), site.ints("image_shape"), site.ints("block_shape")
    if dims is None or image is None or block is None:
        return
    count = len(image)
    strides = site.attr("strides") or (1,) * count
    dilations = site.attr("dilations") or (1,) * count
    pads = site.attr("pads") or (0,) * (2 * count)
    lengths = (len(block), len(strides), len(dilations))
    if lengths != (count, count, count) or len(pads) != 2 * count or len(dims) != 3:
        yield Problem(
            f"lists for {count} dimensions have {lengths} and {len(pads)} entries, the input"
            f" {len(dims)} dimensions", [count, count, count, 2 * count, 3],
            [*lengths, len(pads), len(dims)],
        )  # fmt: skip
        return
    places = 1
    for k in range(count):
        span = (block[k] - 1) * dilations[k] + 1
        room = image[k] + pads[k] + pads[count + k] - span
        if room < 0:
            yield Problem(f"the block spans {span} of {room + span} places",
                          f"at most {room + span}", span)  # fmt: skip
            return
        places *= room // strides[k] + 1
    if dims[2] is not None and dims[2] != places:
        yield Problem(f"the input has {dims[2]} columns, the block {places} places", places,
                      dims[2])  # fmt: skip
    elif dims[1] is not None and dims[1] % max(prod(block), 1):
        yield Problem(f"the block's {prod(block)} elements do not divide {dims[1]} rows",
                      f"a multiple of {prod(block)}", dims[1])  # fmt: skip


COLUMNS: tuple[Rule, ...] = (
    at_least("strides", 1), at_least("dilations", 1), at_least("image_shape", 1),
    at_least("block_shape", 1), _pads_not_negative, _blocks_of,
)  # fmt: skip
