"""onnx_ir without sympy until a symbolic size is calculated with: a quarter of a compile's imports.

onnx_ir imports it for sizes that are expressions, keeps a few of its functions in a table, and asks
for the rest when such a size is made.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

_TABLE = frozenset({"Max", "Min", "Mod", "floor", "sqrt"})
"""What onnx_ir 1.1.0 keeps: it only calls them, so that functions that wait will do."""


class NeedsSympy(ImportError):
    """onnx_ir asks for something of sympy at once that no function can stand for."""


class _Later(ModuleType):
    """Stands for sympy: while onnx_ir is imported, functions of the table are ones that wait; after
    that everything is sympy's own."""

    is_importing = True

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if not self.is_importing:
            return getattr(importlib.import_module("sympy"), name)
        if name not in _TABLE:
            raise NeedsSympy(name)

        def function(*arguments: Any, **options: Any) -> Any:
            if self.is_importing:
                raise NeedsSympy(name)
            return getattr(importlib.import_module("sympy"), name)(*arguments, **options)

        return function


def import_onnx_ir() -> None:
    """Import onnx_ir, and sympy not yet; both, if that version of onnx_ir needs it at once."""
    if {"onnx_ir", "sympy"} & set(sys.modules):
        return
    sys.modules["sympy"] = later = _Later("sympy")
    try:
        importlib.import_module("onnx_ir")
    except NeedsSympy:
        for name in [name for name in sys.modules if name.split(".")[0] == "onnx_ir"]:
            del sys.modules[name]
    finally:
        later.is_importing = False
        del sys.modules["sympy"]
