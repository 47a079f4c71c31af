"""The layout notation: what parses, where elements go, and what packing does."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from worker.compiler.ir.affine import var
from worker.compiler.layout.notation import Layout, parse_layout


@pytest.mark.parametrize(
    "text",
    ["NCHW", "NHWC", "NCHW16c", "NWC", "NCW", "NDHWC", "OIHW", "HWIO", "OHWI", "OIHW16i16o",
     "OIHW4i16o4i", "CHWN", "NHWC4c"],
)  # fmt: skip
def test_text_round_trips(text: str) -> None:
    assert str(parse_layout(text)) == text


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "needs N and C"),
        ("NCHw", "'w' is neither a capital letter nor a block"),
        ("NCHW16", "'16' is neither"),
        ("NCHW 16c", "' 16c' is neither"),
        ("NCHWC", "C occurs more than once"),
        ("NHW16c", "block 16c has no capital C"),
        ("NCHW1c", "a block of 1 is no block"),
        ("NCHW0c", "a block of 0 is no block"),
        ("NCIO", "needs N and C (activations) or O and I (weights)"),
        ("HW", "needs N and C"),
        ("NCH", "1 spatial dimensions are called W, not H"),
        ("NCDW", "2 spatial dimensions are called HW, not DW"),
        ("NCXW", "nothing else"),
    ],
)
def test_refusals_say_why(text: str, part: str) -> None:
    with pytest.raises(ValueError, match=r"^layout ") as caught:
        parse_layout(text)
    assert part in str(caught.value)


def test_shapes() -> None:
    assert parse_layout("NHWC").shape((2, 3, 5, 7)) == (2, 5, 7, 3)
    assert parse_layout("NCHW16c").shape((2, 32, 5, 7)) == (2, 2, 5, 7, 16)
    assert parse_layout("OIHW16i16o").shape((64, 32, 3, 3)) == (4, 2, 3, 3, 16, 16)
    assert parse_layout("OIHW16i16o").shape((64, 3, 3, 3)) == (4, 1, 3, 3, 16, 16)
    with pytest.raises(ValueError, match="has 4 dimensions, not 3"):
        parse_layout("NHWC").shape((2, 3, 5))


def element_by_element(layout: Layout, array: np.ndarray) -> np.ndarray:
    """Packing by the definition: digits of every coordinate, counted from the innermost block."""
    packed = np.zeros(layout.shape(array.shape), array.dtype)
    for place in itertools.product(*map(range, array.shape)):
        left = dict(zip(layout.logical, place, strict=True))
        at = [0] * len(layout.dims)
        for k in reversed(range(len(layout.dims))):
            dim = layout.dims[k]
            if dim.block:
                left[dim.letter], at[k] = divmod(left[dim.letter], dim.block)
        for k, dim in enumerate(layout.dims):
            if not dim.block:
                at[k] = left[dim.letter]
        packed[tuple(at)] = array[place]
    return packed


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("NHWC", (2, 3, 4, 5)), ("NCHW4c", (2, 8, 3, 2)), ("NCHW4c", (1, 6, 3, 2)),
        ("OIHW4i2o", (6, 8, 2, 3)), ("OIHW4i2o", (5, 3, 2, 3)), ("OIHW2i4o2i", (8, 8, 2, 1)),
        ("HWIO", (4, 3, 2, 5)), ("NWC", (2, 3, 7)), ("NDHWC", (1, 3, 2, 4, 5)),
        ("NHWC2c", (1, 4, 3, 3)), ("NCHW2n2c", (4, 4, 2, 2)),
    ],
)  # fmt: skip
def test_pack_and_index_agree_with_the_definition(text: str, shape: tuple[int, ...]) -> None:
    layout = parse_layout(text)
    array = np.arange(1, 1 + np.prod(shape), dtype=np.int32).reshape(shape)
    packed = layout.pack(array)
    assert packed.flags["C_CONTIGUOUS"]
    np.testing.assert_array_equal(packed, element_by_element(layout, array))
    index = layout.index([var(f"i{d}") for d in range(len(shape))])
    for place in itertools.product(*map(range, shape)):
        point = {f"i{d}": p for d, p in enumerate(place)}
        assert packed[tuple(e.evaluate(point) for e in index)] == array[place]


def test_other_ranks_keep_the_order() -> None:
    layout = parse_layout("NHWC")
    assert str(layout.for_rank(3)) == "NWC"
    assert str(layout.for_rank(5)) == "NDHWC"
    assert str(parse_layout("NWC").for_rank(4)) == "NHWC"
    assert str(parse_layout("NCHW16c").for_rank(3)) == "NCW16c"
    assert str(parse_layout("HWIO").for_rank(3)) == "WIO"
    assert str(parse_layout("NCHW2h").for_rank(3)) == "NCW"
    with pytest.raises(ValueError, match="no form of rank 6"):
        layout.for_rank(6)


def test_transposed_weights_keep_their_letters() -> None:
    layout = parse_layout("OHWI").reordered("IOHW")
    array = np.arange(2 * 3 * 4 * 5).reshape(2, 3, 4, 5)
    np.testing.assert_array_equal(layout.pack(array), array.transpose(1, 2, 3, 0))
    with pytest.raises(ValueError, match="does not name the dimensions"):
        layout.reordered("IOWD")
