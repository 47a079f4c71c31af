"""Tilewright in Python: `import tilewright as tw`.

    result = tw.compile("model.onnx", "a100", objective="energy")
    result.summary["latency_s"], result.layers, result.run({"x": x})["y"]

    tw.load("model.twb").build("app").session().run(None, {"x": x})    # in ONNX Runtime, in place

`compile` does what `tilewright compile` does, on the same data directory with the same cache: the
model is read and compiled in a child process in the sandbox, never in yours.  `Client(url)` has
the same `compile` on a server.  `compare` says what differs between two results.  `Machine` reads,
checks and changes hardware specs.  What is refused raises a `CompilerError` with a stable `code`;
what goes wrong with a server, `ApiError`.

Importing this costs nothing: each name is loaded when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from service.client.errors import ApiError, ServerUnreachable, WaitTimeout
    from service.compare.deltas import Comparison
    from tilewright.application import Application
    from tilewright.client import Client
    from tilewright.comparing import compare
    from tilewright.compiling import compile  # noqa: A004 - users write tw.compile
    from tilewright.machine import Machine
    from tilewright.options import Options
    from tilewright.result import Layer, Result, load
    from worker.compiler.errors import (
        CompilerError,
        Finding,
        Infeasible,
        InputError,
        InternalError,
        ModelError,
        OptionError,
        Shortfall,
        SimulationError,
        SpecError,
    )

__all__ = [
    "ApiError",
    "Application",
    "Client",
    "Comparison",
    "CompilerError",
    "Finding",
    "Infeasible",
    "InputError",
    "InternalError",
    "Layer",
    "Machine",
    "ModelError",
    "OptionError",
    "Options",
    "Result",
    "ServerUnreachable",
    "Shortfall",
    "SimulationError",
    "SpecError",
    "WaitTimeout",
    "compare",
    "compile",
    "load",
]

_ROOMS = {
    "service.compare.deltas": ("Comparison",),
    "service.client.errors": ("ApiError", "ServerUnreachable", "WaitTimeout"),
    "tilewright.application": ("Application",),
    "tilewright.client": ("Client",),
    "tilewright.comparing": ("compare",),
    "tilewright.compiling": ("compile",),
    "tilewright.machine": ("Machine",),
    "tilewright.options": ("Options",),
    "tilewright.result": ("Layer", "Result", "load"),
}
_ERRORS = "worker.compiler.errors"
"""Where every other name of `__all__` is."""


def __getattr__(name: str) -> object:
    """Load a public name from its room."""
    if name == "__version__":
        from importlib.metadata import version

        return version("tilewright")
    if name not in __all__:
        raise AttributeError(f"module 'tilewright' has no attribute {name!r}")
    room = next((room for room, names in _ROOMS.items() if name in names), _ERRORS)
    found: object = getattr(import_module(room), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
