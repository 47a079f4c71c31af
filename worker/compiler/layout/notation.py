"""Layout strings, under the room's own name.

They are defined in `ir`, below `machine`, so that reading a hardware spec can check them too.
"""

from __future__ import annotations

from worker.compiler.ir.layout import Layout, parse_layout

__all__ = ["Layout", "parse_layout"]
