"""onnx_ir without sympy until a symbolic size is calculated with: a quarter of a compile's imports.

onnx_ir imports sympy for its sizes that are expressions, keeps a few of its functions in a table,
and asks for the rest when such a size is made.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any


class _Later(ModuleType):
    """Stands for a module until something is asked of it; while that is being imported for, what is
    asked for is a function that waits as well."""

    is_importing = True

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if not self.is_importing:
            return getattr(_imported(self), name)

        def function(*arguments: Any, **options: Any) -> Any:
            return getattr(_imported(self), name)(*arguments, **options)

        return function


def _imported(later: ModuleType) -> ModuleType:
    return importlib.import_module(later.__name__)


def import_onnx_ir() -> None:
    """Import onnx_ir, and sympy not yet; both, if that version of onnx_ir needs it at once."""
    if {"onnx_ir", "sympy"} & set(sys.modules):
        return
    sys.modules["sympy"] = later = _Later("sympy")
    try:
        importlib.import_module("onnx_ir")
    except Exception:
        for name in [name for name in sys.modules if name.split(".")[0] == "onnx_ir"]:
            del sys.modules[name]
    finally:
        later.is_importing = False
        del sys.modules["sympy"]
