"""Modules of others that run when something of them is used, not when they are imported.

`onnx_ir` imports sympy for arithmetic on symbolic dimensions, which few models need: half of what
it takes to import (0.15 to 0.25 s of CPU).  Nothing is replaced: the first attribute runs the real
module, and an error of its import comes up there.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import LazyLoader
from types import ModuleType

LAZY = ("sympy", "onnx_ir._symbolic_shapes")
"""The second looks into the first when it runs."""


class _Finder(MetaPathFinder):
    """Finds the modules of `LAZY` where they would be found anyway."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """What the import system asks first."""
        if name not in LAZY:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = LazyLoader(spec.loader)
        return spec


def import_lazily() -> None:
    """From now on, in this process.  For processes with one thread: a lazy module has no lock."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
