"""Capacity: whether buffers fit a level, and what to say when they do not."""

from __future__ import annotations

from worker.compiler.errors import Shortfall
from worker.compiler.machine.machine import MemoryLevel


def shortfall_of(
    level: MemoryLevel, terms: tuple[tuple[str, int], ...], sharers: int = 1
) -> Shortfall | None:
    """None when the buffers in `terms` fit one of `sharers` equal parts of `level`.

    Units: bytes.  `terms` name buffers (largest first); the Shortfall repeats them.
    """
    demand = sum(size for _, size in terms)
    bound = level.usable_bytes // max(1, sharers)
    if demand <= bound:
        return None
    name, size = terms[0]
    reserved = f" ({level.reserve_fraction:.0%} is reserved)" if level.reserve_fraction else ""
    levers = [
        f"raise the capacity of {level.name} so that {demand} bytes are usable by each of its"
        f" {max(1, sharers)} users{reserved}",
        f"shrink {name}, the largest buffer ({size} bytes)",
    ]
    if level.align_bytes > 1:
        levers.append(f"lower align_bytes of {level.name} (now {level.align_bytes})")
    return Shortfall(f"memory:{level.name}", demand, bound, "bytes", terms, tuple(levers))


def missing_engine(name: str) -> Shortfall:
    """The machine has no compute engine at all for an operator."""
    return Shortfall(
        "engine", 1, 0, "compute engines", ((name, 1),),
        ("add a VECTOR or SCALAR engine to the hardware spec", f"run {name} on the host"),
    )  # fmt: skip


def not_fusible(names: tuple[str, ...]) -> Shortfall:
    """Operators that do not make one kernel: no loop nest serves all of them."""
    return Shortfall(
        "group", len(names), 1, "operators", tuple((name, 1) for name in names),
        ("run the operators one by one",),
    )  # fmt: skip
