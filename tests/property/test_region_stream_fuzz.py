"""Hostile streams: whatever the bytes say, the reader refuses them or reads them whole."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import mkdtemp

from hypothesis import given
from hypothesis import strategies as st
from region_bundles import bundled, members
from sealed_streams import sealed

from worker.compiler.errors import InputError
from worker.compiler.package.stream.codec import decode_stream, encode_stream
from worker.compiler.package.stream.text import print_region


@cache
def whole() -> bytes:
    return members(bundled("view", Path(mkdtemp())))["regions/0/stream.bin"]


def read(data: bytes) -> None:
    """Refused with its code, or read so far that text and bytes can be made of it."""
    try:
        code = decode_stream(data)
    except InputError as error:
        assert error.code == "TW-RUN-001"
        return
    assert print_region(code, 4).startswith("tilewright region 2\n")
    assert decode_stream(encode_stream(code)).calls == code.calls


places = st.integers(0, 5999)
edits = st.lists(
    st.tuples(places, st.sampled_from([0, 1, 2, 0x7F, 0x80, 0xC1, 0xFF]) | st.integers(0, 255)),
    min_size=1,
    max_size=6,
)


@given(edits)
def test_changed_bytes_behind_a_right_checksum(changes: list[tuple[int, int]]) -> None:
    data = bytearray(whole())
    for place, value in changes:
        data[24 + place % (len(data) - 24)] = value
    read(sealed(bytes(data)))


@given(places, st.binary(max_size=40), places)
def test_parts_cut_out_and_put_in(start: int, piece: bytes, length: int) -> None:
    data = bytearray(whole())
    begin = 48 + start % (len(data) - 48)
    data[begin : begin + length % 64] = piece
    read(sealed(bytes(data)))


@given(st.binary(max_size=200))
def test_arbitrary_bytes(data: bytes) -> None:
    read(data)
    read(b"TWSTREAM" + data)
    if len(data) >= 48:
        read(sealed(b"TWSTREAM\x02\0\0\0" + data))
