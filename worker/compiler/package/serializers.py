"""Serializers: what writes a region as bytes for a loader, behind entry points.

The built-in stream is one of them; a vendor's package brings others, and a target of a hardware
document names the one that its regions are written by.
Source: BYOC section 3.3, option 3 (a custom representation, with its own serialiser).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from typing import Protocol

from worker.compiler.errors import CompilerError
from worker.compiler.faults import Fault, attempt
from worker.compiler.package.executable import Array
from worker.compiler.package.manifest import ImageRow, region_folder
from worker.compiler.package.region_code import RegionCode
from worker.compiler.package.region_graph import RegionGraph, StoredTensor
from worker.compiler.plugins import named
from worker.compiler.vendors import STREAM, SerializerDescriptor, serializers

_MOST_BYTES = 1 << 30
"""Of one region: members of a bundle are read whole up to here."""


@dataclass(frozen=True, slots=True)
class Region:
    """What a serializer is given: one region, whole."""

    graph: RegionGraph
    """Its ONNX operators with attributes, types, shapes and quantisation: FORMATS.md, 1."""
    code: RegionCode
    """The same as it was scheduled: kernels, their programs, tensors in the home memory."""
    value: Callable[[StoredTensor], Array]
    """A constant of the graph, in the type that it is stored in."""


class Serializer(Protocol):
    """Gives the bytes of a region; the same region gives the same bytes.

    Raises:
        Unserializable: the format has no way to say this region.
    """

    def __call__(self, region: Region) -> bytes: ...


class Unserializable(Exception):
    """A format cannot say a region: it keeps the built-in formats, and the report says why."""

    def __init__(self, reason: str, node: str = "") -> None:
        """`node`: the user's node that is in the way."""
        super().__init__(reason)
        self.reason = reason
        self.node = node


@dataclass(frozen=True, slots=True)
class Image:
    """A region as one serializer wrote it."""

    row: ImageRow
    content: bytes


@dataclass(frozen=True, slots=True)
class Refusal:
    """A region that its target's serializer cannot write."""

    region: int
    target: str
    serializer: str
    node: str
    reason: str

    @property
    def sentence(self) -> str:
        at = f" (node {self.node})" if self.node else ""
        return (
            f"region {self.region} of target {self.target} keeps the built-in formats:"
            f" {self.serializer} cannot write it{at}: {self.reason}"
        )


def images_of(
    region: Region, prefix: str, serializer: str
) -> tuple[tuple[Image, ...], Refusal | None]:
    """The region's stream, and what its target's own `serializer` (or none: "") writes.

    Raises:
        CompilerError: TW-PLUG-002, a serializer failed, timed out, or gave no bytes.
    """
    stream = _image(serializers()[STREAM], region, prefix)
    assert isinstance(stream, Image)  # a stream can say every region
    if serializer in ("", STREAM):
        return (stream,), None
    own = _image(serializers()[serializer], region, prefix)
    return ((stream,), own) if isinstance(own, Refusal) else ((stream, own), None)


def _image(one: SerializerDescriptor, region: Region, prefix: str) -> Image | Refusal:
    def write() -> bytes | Refusal:
        serializer: Serializer = named(one.implementation)
        try:
            return serializer(region)
        except Unserializable as no:
            code = region.code
            return Refusal(code.index, code.target, one.name, no.node, no.reason)

    found = attempt(one.name, one.version, "serialize", write)
    if isinstance(found, Fault):
        raise _failed(one, region, found.reason)
    if isinstance(found, Refusal):
        return found
    if not isinstance(found, bytes) or not found:
        what = "nothing" if found in (b"", None) else f"a {type(found).__name__}"
        raise _failed(one, region, f"it gave {what}, and no bytes")
    if len(found) > _MOST_BYTES:
        raise _failed(one, region, f"it gave {len(found)} bytes, of at most {_MOST_BYTES}")
    return Image(
        ImageRow(
            one.name, one.version, one.distribution, one.format, one.format_version,
            f"{region_folder(prefix, region.code.index)}{one.name}.bin",
            sha256(found).hexdigest(), len(found),
        ),
        found,
    )  # fmt: skip


def _failed(one: SerializerDescriptor, region: Region, reason: str) -> CompilerError:
    return CompilerError(
        "TW-PLUG-002",
        f"serializer {one.name} {one.version} of {one.distribution or 'Tilewright'} failed on"
        f" region {region.code.index} of target {region.code.target}: {reason}",
    )
