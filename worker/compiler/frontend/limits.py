"""How much of a hostile file the front end is willing to look at."""

from __future__ import annotations

from dataclasses import dataclass

PROTOBUF_LIMIT_BYTES = (1 << 31) - 1
"""Protocol buffers cannot be larger; bigger models keep their weights in external data."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on one uploaded model.  A model beyond one of them is refused, never cut."""

    max_bytes: int = 16 << 30
    """Of the file, and of everything a zip bundle unpacks to."""
    max_entries: int = 1000
    """Members of a zip bundle."""
    max_ratio: int = 200
    """Unpacked over packed size of a zip member."""
    max_nodes: int = 200_000
    """Nodes of all graphs together."""
    max_depth: int = 12
    """Graphs inside graphs (If, Loop, Scan)."""
    max_calls: int = 100
    """Functions called inside functions."""
    max_trips: int = 1 << 20
    """Iterations that a loop, those around it counted in, is certain to take."""
    max_steps: int = 1 << 52
    """Multiply-accumulates of one node."""
    max_dim: int = (1 << 31) - 1
    """What a place in a dimension, and a length, has 31 bits for (`audit.numbered`)."""
    max_elements: int = 1 << 36
    """Of one tensor."""
    max_findings: int = 100
    """Problems listed in one answer."""
