"""The serializer of binary streams, as it is registered."""

from __future__ import annotations

from worker.compiler.package.stream.version import STREAM_VERSION
from worker.compiler.vendors import STREAM, SerializerDescriptor

DESCRIPTOR = SerializerDescriptor(
    name=STREAM,
    version="1",
    help="instructions with all that it takes to execute them (FORMATS.md, 3)",
    implementation="worker.compiler.package.stream.serializer:serialize",
    format=STREAM,
    format_version=STREAM_VERSION,
)
