"""The same machine with twice as much of one thing: what an architect would ask for next."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TypeVar

from worker.compiler.machine.machine import Engine, Machine, MemoryLevel

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Changed:
    """A machine that differs in one resource."""

    resource: str
    """As the spec has it, with the field: `SMEM.capacity_bytes`."""
    change: str
    machine: Machine


def doubled(machine: Machine) -> Iterator[Changed]:
    """Every rate and size twice, every wait half; what is zero or not given is left out.

    Rates: of the ports of every level, of links, of engines, of their feeds (drains and loads with
    them).  Sizes: of every level but home, and the number of cores (with what each core has for
    itself).  Waits: latencies, set-ups, starts, signals; not launches, which no kernel's own cycles
    have.
    """
    for k, level in enumerate(machine.levels):
        for name, how, changed in _levels(level, is_home=k == 0):
            times = changed.capacity_bytes // level.capacity_bytes
            engines = tuple(_spread(engine, level.name, times) for engine in machine.engines)
            levels = _at(machine.levels, k, changed)
            yield Changed(
                f"{level.name}.{name}", how, replace(machine, levels=levels, engines=engines)
            )
    for k, engine in enumerate(machine.engines):
        for name, how, other in _engines(engine):
            engines = _at(machine.engines, k, other)
            yield Changed(f"{engine.name}.{name}", how, replace(machine, engines=engines))
    for k, link in enumerate(machine.links):
        wider = replace(link, bytes_per_cycle=2 * link.bytes_per_cycle)
        yield Changed(
            f"{link.name}.bytes_per_cycle", "x 2",
            replace(machine, links=_at(machine.links, k, wider)),
        )  # fmt: skip
    own = tuple(
        replace(m, instances=2 * m.instances) if m.instances == machine.num_cores and k else m
        for k, m in enumerate(machine.levels)
    )
    more = replace(machine, num_cores=2 * machine.num_cores, levels=own)
    yield Changed("num_cores", "x 2", more)
    for name in ("engine_signal_cycles", "signal_cycles"):
        if value := getattr(machine, name):
            yield Changed(name, "/ 2", replace(machine, **{name: value // 2}))


def _at(items: tuple[T, ...], k: int, item: T) -> tuple[T, ...]:
    return (*items[:k], item, *items[k + 1 :])


def _spread(engine: Engine, level: str, times: int) -> Engine:
    """An engine whose cells have a level among them that became so many times as large."""
    flow = engine.dataflow
    if flow is None or flow.registers != level:
        return engine
    return replace(engine, dataflow=replace(flow, cell_bytes=times * flow.cell_bytes))


def _levels(level: MemoryLevel, *, is_home: bool) -> Iterator[tuple[str, str, MemoryLevel]]:
    yield (
        "bytes_per_cycle",
        "x 2",
        replace(
            level,
            read_bytes_per_cycle=2 * level.read_bytes_per_cycle,
            write_bytes_per_cycle=2 * level.write_bytes_per_cycle,
        ),
    )
    if not is_home:
        yield "capacity_bytes", "x 2", replace(level, capacity_bytes=2 * level.capacity_bytes)
    if level.latency_cycles:
        yield "latency_cycles", "/ 2", replace(level, latency_cycles=level.latency_cycles // 2)


def _engines(engine: Engine) -> Iterator[tuple[str, str, Engine]]:
    if engine.macs_per_cycle:
        rates = {dtype: 2 * rate for dtype, rate in engine.macs_per_cycle.items()}
        stage = {
            operation: {dtype: 2 * rate for dtype, rate in each.items()}
            for operation, each in engine.output_stage.items()
        }
        yield "macs_per_cycle", "x 2", replace(
            engine, macs_per_cycle=rates, output_stage=stage,
            special_ops_per_cycle=2 * engine.special_ops_per_cycle,
        )  # fmt: skip
    flow = engine.dataflow
    loads = flow.load_bytes_per_cycle if flow is not None else 0
    if engine.feed_bytes_per_cycle or engine.drain_bytes_per_cycle or loads:
        yield (
            "feed_bytes_per_cycle",
            "x 2",
            replace(
                engine,
                feed_bytes_per_cycle=2 * engine.feed_bytes_per_cycle,
                drain_bytes_per_cycle=2 * engine.drain_bytes_per_cycle,
                dataflow=None if flow is None else replace(flow, load_bytes_per_cycle=2 * loads),
            ),
        )
    for name in ("startup_cycles", "setup_cycles"):
        if value := getattr(engine, name):
            yield name, "/ 2", replace(engine, **{name: value // 2})
    if engine.outstanding_bytes:
        more = replace(engine, outstanding_bytes=2 * engine.outstanding_bytes)
        yield "outstanding_bytes", "x 2", more
