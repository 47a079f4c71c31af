"""The simulator as an engine: the system's compiler makes it when it is first opened."""

from __future__ import annotations

import ctypes
import os
import subprocess
import tempfile
from collections.abc import Sequence
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from worker.compiler.oracles import OracleCall
from worker.compiler.package.engines import Executed, Memory

_FLAGS = ("-std=c99", "-O2", "-fPIC", "-shared", "-ffp-contract=off")


class Simulator:
    """Loads images."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library

    def load(self, image: bytes) -> SimulatedRegion:
        """Raises: ValueError, the bytes are no sound image."""
        wrong = self._library.vnpu_check(image, ctypes.c_int64(len(image)))
        if wrong:
            where = {1: "header", 2: "sizes"}.get(wrong, f"instruction {wrong - 3}")
            raise ValueError(f"the image is damaged: {where}")
        return SimulatedRegion(self._library, image)


class SimulatedRegion:
    """One image."""

    def __init__(self, library: ctypes.CDLL, image: bytes) -> None:
        self._library = library
        self._image = image
        words = np.frombuffer(image, "<i4", 8)
        ports, constants, name_bytes = int(words[3]), int(words[4]), int(words[6])
        sizes = np.frombuffer(image, "<i4", 2 * ports, 32)[::2].tolist()
        names = image[len(image) - constants :][:name_bytes]
        self.ports: dict[str, int] = dict(zip(names.decode().split("\0"), sizes, strict=False))
        """Bytes of the tensors that go in and out, by name, in order."""
        self.expected_cycles = int(library.vnpu_cycles(image))
        if len(self.ports) != ports:
            raise ValueError("the image is damaged: names")
        self._places: list[np.ndarray[Any, Any]] = []
        self._cycles = 0

    def bind(self, memory: Memory) -> None:
        """Tensors stay where they are."""
        self._places = [np.frombuffer(memory[name], np.uint8) for name in self.ports]
        for name, place, size in zip(self.ports, self._places, self.ports.values(), strict=True):
            if place.size != size:
                raise ValueError(f"{name} has {place.size} bytes, the image wants {size}")

    def execute(self) -> None:
        addresses = (ctypes.c_void_p * len(self._places))(*(p.ctypes.data for p in self._places))
        self._cycles = int(self._library.vnpu_run(self._image, addresses))
        if self._cycles < 0:
            raise MemoryError("the simulator got no memory")

    def profile(self) -> Executed:
        return Executed(self._cycles)


def opened(folder: Path) -> Simulator:
    """The simulator, which may keep its library in the folder.

    Raises: as `_library`.
    """
    return Simulator(_library(folder))


def call_cycles(calls: Sequence[OracleCall]) -> list[int]:
    """What calls of the array take by the simulator.

    Raises: as `_library`.
    """
    with tempfile.TemporaryDirectory() as place:
        library = _library(Path(place))
        return [library.vnpu_call(*call.extents) for call in calls]


def _library(folder: Path) -> ctypes.CDLL:
    """Compile the simulator into the folder, or find it there.

    Raises: subprocess.CalledProcessError, FileNotFoundError: there is no C compiler that takes it.
    """
    source = files("vendor_npu").joinpath("npu.c").read_bytes()
    library = folder / f"vnpu-{sha256(source).hexdigest()[:16]}.so"
    if not library.exists():
        with tempfile.TemporaryDirectory(dir=folder) as place:
            text, made = Path(place) / "npu.c", Path(place) / "npu.so"
            text.write_bytes(source)
            subprocess.run(["cc", *_FLAGS, str(text), "-o", str(made), "-lm"], check=True)
            os.replace(made, library)
    found = ctypes.CDLL(str(library))
    for function in (found.vnpu_run, found.vnpu_cycles, found.vnpu_call):
        function.restype = ctypes.c_int64
    found.vnpu_call.argtypes = [ctypes.c_int64] * 3
    return found
