"""The layouts that a target computes in."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LayoutPolicy:
    """Layouts the target computes in, in letters: NCHW, NHWC, NCHW16c; OIHW, HWIO, OIHW16i16o."""

    activations: str
    weights: str
    op_types: tuple[str, ...]
    """Op types that want them; the others follow."""
