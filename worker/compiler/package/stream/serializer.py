"""The region as the built-in stream: its code, packed."""

from __future__ import annotations

from worker.compiler.package.serializers import Region
from worker.compiler.package.stream.codec import encode_stream


def serialize(region: Region) -> bytes:
    """Bytes of the region's stream.  Cost: one copy of the programs."""
    return encode_stream(region.code)
