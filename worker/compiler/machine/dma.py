"""Engines that move data: which one issues a transfer, and what it takes of its time."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from worker.compiler.machine.machine import Engine, EngineKind, Machine

Ints: TypeAlias = "npt.NDArray[Any]"


def dma_engine(machine: Machine, inner: str, *, outward: bool) -> Engine:
    """Engine that issues transfers of level `inner` in the given direction.

    Prefers the right direction at that level, then the right direction, then any DMA engine at that
    level, then any DMA engine, then (a machine without DMA) the first engine.
    """
    wanted = EngineKind.DMA_OUT if outward else EngineKind.DMA_IN
    other = EngineKind.DMA_IN if outward else EngineKind.DMA_OUT
    right, wrong = machine.engines_of(wanted), machine.engines_of(other)
    for group in (right, wrong):
        for engine in group:
            if engine.memory == inner:
                return engine
        if group:
            return group[0]
    return machine.engines[0]


def issuing(
    engine: Engine, num_bytes: Ints, way_cycles: Ints, port_cycles: Ints
) -> tuple[Ints, Ints]:
    """(cycles that transfers keep their engine at least, cycles that they are seen later).

    `way_cycles`: latency of the way; `port_cycles`: of the slowest port.  A transfer is set up,
    then its bytes pass, then they are on their way; while they pass, the engine sets up the next
    one, so it is kept as long as the longer of the two takes and the shorter one comes on top of
    the latency.  With no more than `outstanding_bytes` on a way of so many cycles, so many pass in
    that time (Little's law).
    """
    setup: Ints = np.array(engine.setup_cycles, dtype=np.int64)
    passing: Ints = np.array(0, dtype=np.int64)
    if engine.outstanding_bytes:
        passing = -(-(num_bytes * way_cycles) // engine.outstanding_bytes)
    return np.maximum(setup, passing), np.minimum(setup, np.maximum(passing, port_cycles))


def issuing_rate(engine: Engine, way_cycles: int) -> float:
    """Bytes per cycle that the engine keeps on a way at most."""
    if not engine.outstanding_bytes or not way_cycles:
        return float("inf")
    return engine.outstanding_bytes / way_cycles


def is_limited(engine: Engine) -> bool:
    """Whether transfers of this engine take more than their ports and their way."""
    return bool(engine.setup_cycles or engine.outstanding_bytes)
