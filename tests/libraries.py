"""Libraries built from the bundles of region_bundles.py, and their C interface through ctypes."""

from __future__ import annotations

import ctypes
import shutil
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from region_bundles import Array, bundled, made

from worker.compiler.package.library.build import BuiltLibrary, build_into
from worker.compiler.package.runtime import load_bundle, open_bundle
from worker.verification.inputs import seeded_inputs

API_VERSION = 1
WHOLE_MODEL = -1
_NUMPY = {1: "f4", 2: "u1", 3: "i1", 6: "i4", 7: "i8", 9: "?"}
"""ONNX's numbers of types."""


class Error(ctypes.Structure):
    """`tw_error`."""

    _fields_ = (
        ("code", ctypes.c_int32),
        ("id", ctypes.c_char * 16),
        ("pointer", ctypes.c_char * 160),
        ("message", ctypes.c_char * 480),
    )

    @property
    def said(self) -> tuple[str, str]:
        """(id, pointer)."""
        return self.id.decode(), self.pointer.decode()


class Value(ctypes.Structure):
    """`tw_value`."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("type", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("bytes", ctypes.c_int64),
        ("align", ctypes.c_int32),
    )


class Refused(Exception):
    """An error of the library."""

    def __init__(self, error: Error) -> None:
        super().__init__(error.message.decode())
        self.id, self.pointer = error.said


class Library:
    """A library, opened."""

    def __init__(self, path: Path, version: int = API_VERSION, digest: str | None = None) -> None:
        self.c = ctypes.CDLL(str(path))
        for name in ("tw_model_digest", "tw_model_name"):
            getattr(self.c, name).restype = ctypes.c_char_p
        self.model = ctypes.c_void_p()
        given = None if digest is None else digest.encode()
        self.call("tw_open", version, given, ctypes.byref(self.model))

    def call(self, function: str, *arguments: Any) -> None:
        """Call a function that ends with an error's address.

        Raises:
            Refused: it gave one, equal to the number that it returned.
        """
        error = Error()
        code = getattr(self.c, function)(*arguments, ctypes.byref(error))
        if code:
            assert error.code == code and error.id == f"TW-LIB-{code:03}".encode()
            raise Refused(error)

    def values(self, region: int, side: str) -> dict[str, Array]:
        """Arrays of the inputs' or outputs' types and shapes, by name."""
        count = getattr(self.c, f"tw_num_{side}s")(self.model, region)
        found = {}
        for k in range(count):
            value = Value()
            self.call(f"tw_{side}", self.model, region, k, ctypes.byref(value))
            array = np.zeros([value.shape[d] for d in range(value.rank)], _NUMPY[value.type])
            assert (array.nbytes, array.itemsize) == (value.bytes, value.align)
            found[value.name.decode()] = array
        return found

    def session(self, region: int = WHOLE_MODEL) -> ctypes.c_void_p:
        """A new session."""
        session = ctypes.c_void_p()
        self.call("tw_session_create", self.model, region, ctypes.byref(session))
        return session

    def bind(self, session: ctypes.c_void_p, name: str, array: Array) -> None:
        """Bind an array where it lies."""
        address = ctypes.c_void_p(array.ctypes.data)
        self.call("tw_bind", session, name.encode(), address, ctypes.c_int64(array.nbytes))

    def run(self, inputs: Mapping[str, Array], region: int = WHOLE_MODEL) -> dict[str, Array]:
        """One run in a session of its own."""
        session = self.session(region)
        outputs = self.values(region, "output")
        for name, array in {**inputs, **outputs}.items():
            self.bind(session, name, array)
        self.call("tw_run", session)
        self.c.tw_session_free(session)
        return outputs


@cache
def library(name: str, folder: Path) -> tuple[Path, BuiltLibrary]:
    """The folder of one of MODELS' libraries, built once."""
    out = folder / f"{name}-app"
    out.mkdir()
    with open_bundle(bundled(name, folder)) as bundle:
        return out, build_into(bundle, out, folder / "build")


@cache
def sources(name: str, folder: Path) -> Path:
    """The C sources of one of MODELS' libraries."""
    out = folder / f"{name}-sources"
    out.mkdir()
    with open_bundle(bundled(name, folder)) as bundle:
        build_into(bundle, out, folder / "build", sources_only=True)
    return out / "src"


def inputs_of(name: str, folder: Path, seed: int = 3) -> dict[str, Array]:
    """Inputs of one of MODELS."""
    return dict(seeded_inputs(made(name, folder).model, seed))


@cache
def expected(name: str, folder: Path, seed: int = 3) -> dict[str, Array]:
    """What `tilewright run` gives: the executor, over kernels that were built by themselves."""
    runner = load_bundle(bundled(name, folder), folder / "build").runner
    return runner.run(inputs_of(name, folder, seed))


def damaged_copy(path: Path, target: Path, at: int) -> Path:
    """A file with one bit turned."""
    shutil.copyfile(path, target)
    with target.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)
        file.seek(at)
        file.write(bytes([byte[0] ^ 1]))
    return target
