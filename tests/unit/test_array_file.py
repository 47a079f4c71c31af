"""Files of arrays from anybody: read as numpy reads them, or refused before they are made."""

from __future__ import annotations

import pickle
import struct
import zipfile
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from worker.compiler.array_file import MAX_ARRAYS, read_arrays
from worker.compiler.errors import ModelError

CODE = "TW-CAL-001"


def npy(array: Any, **how: Any) -> bytes:
    stream = BytesIO()
    np.lib.format.write_array(stream, np.asarray(array), **how)
    return stream.getvalue()


def header(text: str, data: bytes = b"", version: int = 1) -> bytes:
    """A member with any header."""
    layout = "<H" if version == 1 else "<I"
    body = text.encode("latin1")
    return b"\x93NUMPY" + bytes((version, 0)) + struct.pack(layout, len(body)) + body + data


def claimed(shape: str, descr: str = "'<f4'") -> str:
    return f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}}}\n"


def archive(folder: Path, *members: tuple[str, bytes], how: int = zipfile.ZIP_DEFLATED) -> Path:
    path = folder / "in.npz"
    with zipfile.ZipFile(path, "w", how) as made:
        for name, data in members:
            made.writestr(name, data)
    return path


@pytest.mark.parametrize("write", [np.savez, np.savez_compressed])
def test_what_numpy_writes_is_read(write: Any, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    arrays = {
        "floats": rng.standard_normal((3, 4, 5)).astype(np.float32),
        "columns": np.asfortranarray(rng.standard_normal((3, 5))),
        "big endian": np.arange(6, dtype=">i8").reshape(2, 3),
        "scalar": np.float64(3.5),
        "nothing": np.empty((0, 3), np.int64),
        "text": np.array(["ä", "bc"]),
        "flags": np.array([True, False]),
        "wide": np.arange(1 << 19, dtype=np.int64),
    }
    path = tmp_path / "in.npz"
    write(path, **arrays)
    found = read_arrays(path, CODE, "the file")
    assert sorted(arrays) == list(found)
    for name, array in arrays.items():
        np.testing.assert_array_equal(found[name], array)
        assert (found[name].dtype, found[name].shape) == (array.dtype, np.shape(array))
    found["floats"][0, 0, 0] = 1.0  # as numpy's own: callers may write


SPOILED = {
    "pickle": pickle.dumps([1]),
    "objects": npy(np.array([{}], object), allow_pickle=True),
    "object fields": header(claimed("(1,)", "[('a', '|O')]"), b"x" * 8),
    "long header": header(" " * 20_000 + claimed("(1,)"), b"abcd"),
    "header of gigabytes": b"\x93NUMPY\x02\x00" + struct.pack("<I", 0xFFFFFFF0),
    "more than there is": header(claimed("(1099511627776,)"), b"abcd"),
    "overflowing": header(claimed("(9223372036854775807, 4)"), b"abcd"),
    "less than there is": header(claimed("(1,)"), b"abcdefgh"),
    "negative": header(claimed("(-1, -1)"), b"abcd"),
    "no size": header(claimed("(1099511627776,)", "'|V0'")),
    "nested": header("(" * 5000),
    "minus": header("-" * 9000 + "1"),
    "call": header("{'descr': exit(), 'fortran_order': False, 'shape': (1,)}", b"abcd"),
    "odd type": header(claimed("(1,)", "'<q99999'"), b"abcd"),
    "format 3": header(claimed("(1,)"), b"abcd").replace(b"NUMPY\x01", b"NUMPY\x03"),
    "empty": b"",
    "text": b"1,2,3\n",
}


@pytest.mark.parametrize("member", SPOILED.values(), ids=SPOILED)
def test_what_is_no_plain_array_is_refused(member: bytes, tmp_path: Path) -> None:
    good = npy(np.zeros(2, np.float32))
    path = archive(tmp_path, ("good.npy", good), ("x.npy", member))
    with pytest.raises(ModelError) as refusal:
        read_arrays(path, CODE, "the file")
    assert refusal.value.code == CODE


def test_a_bomb_is_refused_by_what_it_would_be(tmp_path: Path) -> None:
    path = archive(tmp_path, ("x.npy", header(claimed("(16000000,)"), bytes(64_000_000))))
    assert path.stat().st_size < 100_000
    with pytest.raises(ModelError, match="64000") as refusal:
        read_arrays(path, CODE, "the file", limit_bytes=1 << 20)
    assert refusal.value.limit == 1 << 20


def test_a_directory_that_lies_is_found_out(tmp_path: Path) -> None:
    path = archive(tmp_path, ("x.npy", npy(np.arange(1000.0))))
    whole = path.read_bytes()
    for change in (
        whole[: len(whole) // 2],
        whole[:200] + b"\x00" * 50 + whole[250:],
        # The size, in the archive's directory: one more than there is.
        whole.replace(struct.pack("<I", 8128), struct.pack("<I", 8129)),
    ):
        assert change != whole
        path.write_bytes(change)
        with pytest.raises(ModelError):
            read_arrays(path, CODE, "the file")


@pytest.mark.parametrize("how", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_other_compressions_are_refused(how: int, tmp_path: Path) -> None:
    path = archive(tmp_path, ("x.npy", npy(np.zeros(2))), how=how)
    with pytest.raises(ModelError, match="neither stored nor deflated"):
        read_arrays(path, CODE, "the file")


def test_names_and_their_number_are_limited(tmp_path: Path) -> None:
    data = npy(np.zeros(1, np.int8))
    with pytest.raises(ModelError, match="two arrays 'x'"):
        read_arrays(archive(tmp_path, ("x.npy", data), ("x", data)), CODE, "the file")
    with pytest.raises(ModelError, match="name is too long"):
        read_arrays(archive(tmp_path, ("x" * 1500, data)), CODE, "the file")
    crowd = [(f"{k}.npy", b"") for k in range(MAX_ARRAYS + 1)]
    with pytest.raises(ModelError, match="too many members"):
        read_arrays(archive(tmp_path, *crowd, how=zipfile.ZIP_STORED), CODE, "the file")
    with pytest.raises(ModelError, match="holds no array"):
        read_arrays(archive(tmp_path), CODE, "the file")
