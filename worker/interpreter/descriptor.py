"""The interpreter of streams, as it is registered."""

from __future__ import annotations

from worker.compiler.package.stream.version import STREAM_VERSION
from worker.compiler.vendors import STREAM, EngineDescriptor

DESCRIPTOR = EngineDescriptor(
    name="interpreter",
    version="1",
    help="executes streams instruction by instruction, slowly; bits as the compiled kernels",
    implementation="worker.interpreter.engine:opened",
    format=STREAM,
    format_versions=(STREAM_VERSION,),
)
