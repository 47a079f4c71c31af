"""Options of strategies as `CompileOptions` holds them."""

from __future__ import annotations

from worker.compiler.strategies.graphturbo.descriptor import (
    DESCRIPTOR,
    GraphTurboOptions,
    Variant,
)


def of_variant(variant: Variant) -> tuple[tuple[str, GraphTurboOptions], ...]:
    """A variant of GraphTurbo; nothing for the default, which options leave out."""
    return () if variant is Variant.FULL else ((DESCRIPTOR.name, GraphTurboOptions(variant)),)
