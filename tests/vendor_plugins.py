"""Serializers, engines and oracles as a vendor's package brings them, good ones and rude ones."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from worker.compiler.oracles import OracleCall
from worker.compiler.package.engines import Engine, LoadedRegion, Memory
from worker.compiler.package.serializers import Region, Unserializable
from worker.compiler.package.stream.codec import encode_stream
from worker.compiler.vendors import EngineDescriptor, OracleDescriptor, SerializerDescriptor
from worker.interpreter.engine import InterpretedRegion, opened

MARK = b"WRAPPED!"


def wraps(region: Region) -> bytes:
    """A format of its own: the stream behind a mark, every byte turned over."""
    return MARK + bytes(255 - byte for byte in encode_stream(region.code))


def raises(region: Region) -> bytes:
    raise ValueError(f"no idea what {region.graph.nodes[0].op_type} is")


def hangs(region: Region) -> bytes:
    while True:
        hash(region.code.index)


def exits(region: Region) -> bytes:
    raise SystemExit(region.code.index)


def gives_a_number(region: Region) -> bytes:
    return region.code.index  # type: ignore[return-value]  # what a rude one does


def gives_nothing(region: Region) -> bytes:
    del region
    return b""


def gives_garbage(region: Region) -> bytes:
    del region
    return b"garbage"


def refuses(region: Region) -> bytes:
    node = region.graph.nodes[0]
    raise Unserializable(f"there is no instruction for {node.op_type}", node.name)


class Unwrapping:
    """Turns bytes back over, and lets the interpreter execute them."""

    def __init__(self, folder: Path) -> None:
        self._inner = opened(folder)

    def load(self, image: bytes) -> InterpretedRegion:
        if image[: len(MARK)] != MARK:
            raise ValueError("these bytes are no wrapped stream")
        return self._inner.load(bytes(255 - byte for byte in image[len(MARK) :]))


class Wrong(Unwrapping):
    """Has one bit of every output wrong."""

    def load(self, image: bytes) -> InterpretedRegion:
        return _WrongRegion(super().load(image))  # type: ignore[return-value]  # of its shape


class _WrongRegion:
    def __init__(self, inner: LoadedRegion) -> None:
        self._inner = inner
        self._memory: Memory = {}
        self.profile = inner.profile

    def bind(self, memory: Memory) -> None:
        self._memory = memory
        self._inner.bind(memory)

    def execute(self) -> None:
        self._inner.execute()
        for place in self._memory.values():
            if not place.readonly:
                place[0] ^= 1


class Leaving(Unwrapping):
    """Ends its process where it should load."""

    def load(self, image: bytes) -> InterpretedRegion:
        raise SystemExit(f"{len(image)} bytes are enough")


class Idle(Unwrapping):
    """Writes no output at all."""

    def load(self, image: bytes) -> InterpretedRegion:
        region = super().load(image)
        region.execute = lambda: None  # type: ignore[method-assign]  # what a rude one does
        return region


def counts(calls: Sequence[OracleCall]) -> list[int]:
    """A cycle for every 2048 points."""
    return [1 + c.extents[0] * c.extents[1] * c.extents[2] // 2048 for c in calls]


def guesses(calls: Sequence[OracleCall]) -> list[float]:
    return [0.5 for _ in calls]


def stalls(folder: Path) -> Engine:
    raise RuntimeError(f"no driver for {folder.name}")


def _serializer(name: str) -> SerializerDescriptor:
    return SerializerDescriptor(name, "3", "", f"vendor_plugins:{name}", "wrapped", 1)


def _engine(name: str, made_by: str, kind: str = "wrapped") -> EngineDescriptor:
    return EngineDescriptor(name, "4", "", f"vendor_plugins:{made_by}", kind, (1,))


SERIALIZERS = {
    name: _serializer(name)
    for name in (
        "wraps", "raises", "hangs", "exits", "gives_a_number", "gives_nothing", "gives_garbage",
        "refuses",
    )
}  # fmt: skip
ENGINES = {
    "unwraps": _engine("unwraps", "Unwrapping"),
    "wrong": _engine("wrong", "Wrong"),
    "idle": _engine("idle", "Idle"),
    "leaves": _engine("leaves", "Leaving"),
    "stalls": _engine("stalls", "stalls"),
    "foreign": _engine("foreign", "Unwrapping", "foreign"),
}
ORACLES = {
    name: OracleDescriptor(name, "5", "", f"vendor_plugins:{name}")
    for name in ("counts", "guesses")
}
