"""The tight bound against every mapping of small operators, and how it grows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis_profiles import COSTLY
from kernel_toys import conv_graph, elementwise_graph, matmul_graph, tiled
from toy_schedules import machine, span

from worker.compiler.cost.floor import kernel_floor
from worker.compiler.cost.touched import by_steps, touched_elems
from worker.compiler.errors import VerifyError
from worker.compiler.ir.affine import Affine, var
from worker.compiler.ir.axis import Axis
from worker.compiler.ir.dtype import DType
from worker.compiler.ir.graph import Graph
from worker.compiler.ir.op import Access, Origin, TensorOp
from worker.compiler.ir.scalar import Apply, Fn, Read
from worker.compiler.lower.lower import lower_unit
from worker.compiler.machine.dataflow import Dataflow, Stationary
from worker.compiler.machine.machine import Engine, EngineKind, Machine
from worker.compiler.schedule.nodes import (
    Compute,
    Init,
    Loop,
    LoopKind,
    Move,
    Node,
    Place,
    Schedule,
    Seq,
)
from worker.compiler.schedule.verify import verify
from worker.simulator.run import simulate_unit

EXP = Apply(Fn.EXP, (Apply(Fn.ADD, (Read(0), Read(1))),))


def bound(graph: Graph, on: Machine) -> int:
    return sum(cycles for _, cycles in kernel_floor(graph, on))


def simulated(schedule: Schedule, on: Machine) -> int | None:
    """None: some tiles of a padded window have boxes that the verifier refuses."""
    try:
        verify(schedule, on)
    except VerifyError:
        return None
    return simulate_unit(lower_unit(schedule, on, "s"), on).cycles


@st.composite
def operators(draw: st.DrawFn) -> Graph:
    small = st.integers(1, 4)
    match draw(st.sampled_from(["matmul", "conv", "depthwise", "pointwise"])):
        case "matmul":
            return matmul_graph(draw(small), draw(small), draw(small))
        case "conv":
            kernel = draw(st.integers(1, 2))
            return conv_graph(
                draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(kernel, 3)),
                kernel, draw(st.integers(1, 2)), draw(st.integers(0, kernel - 1)),
            )  # fmt: skip
        case "depthwise":
            channels = draw(st.integers(1, 3))
            return conv_graph(channels, channels, 3, 3, 1, 1, groups=channels)
        case _:
            shape = (draw(small), draw(small))
            return elementwise_graph(EXP, (DType.F32, DType.F32), DType.F32, shape)


@st.composite
def dataflows(draw: st.DrawFn, is_flat: bool) -> Dataflow:
    is_systolic = is_flat and draw(st.booleans())
    return Dataflow(
        draw(st.sampled_from([k for k in Stationary if is_flat or k is not Stationary.ROW])),
        is_systolic=is_systolic, cell_bytes=draw(st.sampled_from([12, 64])),
        is_double_buffered=draw(st.booleans()), is_pipelined=is_systolic and draw(st.booleans()),
        load_bytes_per_cycle=draw(st.sampled_from([0.0, 2.0, 50.0])),
        accumulator_bytes=draw(st.sampled_from([0, 1 << 6])),
    )  # fmt: skip


@st.composite
def chips(draw: st.DrawFn) -> Machine:
    """The toy chip with other numbers, in its memories' widths, ports and latencies too."""
    on = machine(draw(st.integers(1, 3)), l1_bytes=1 << 16)
    arrays = [(2, 2), (4, 4), (4, 2), (3,), (2, 2, 2), ()]
    engines = []
    for engine in on.engines:
        if engine.kind is EngineKind.MATRIX:
            rates = {DType.F32: draw(st.sampled_from([1.0, 4.0, 10.0, 16.0]))}
            engine = replace(engine, macs_per_cycle=rates, array=draw(st.sampled_from(arrays)))
            if engine.array and draw(st.booleans()):
                engine = replace(engine, dataflow=draw(dataflows(len(engine.array) == 2)))
        elif engine.kind is EngineKind.VECTOR:
            rates = {DType.F32: draw(st.sampled_from([0.5, 1.0, 3.0, 8.0]))}
            engine = replace(engine, macs_per_cycle=rates,
                             special_ops_per_cycle=draw(st.sampled_from([0.5, 2.0])))  # fmt: skip
        elif engine.kind in (EngineKind.DMA_IN, EngineKind.DMA_OUT):
            engine = replace(engine, setup_cycles=draw(st.sampled_from([0, 1, 12])),
                             outstanding_bytes=draw(st.sampled_from([0, 3, 64])))  # fmt: skip
        if engine.kind is EngineKind.VECTOR or engine.dataflow is not None:
            ports = st.sampled_from([0.0, 1.0, 3.0, 16.0, 1000.0])
            engine = replace(
                engine, feed_bytes_per_cycle=draw(ports), drain_bytes_per_cycle=draw(ports)
            )
        engines.append(replace(engine, startup_cycles=draw(st.integers(0, 4))))
    widths = st.sampled_from([1.0, 5.0, 16.0, 1000.0])
    levels = tuple(
        replace(
            level, read_bytes_per_cycle=draw(widths), write_bytes_per_cycle=draw(widths),
            latency_cycles=draw(st.integers(0, 9)), half_duplex=draw(st.booleans()),
        )
        for level in on.levels
    )  # fmt: skip
    signal = draw(st.sampled_from([0, 0, 5]))
    return replace(on, engines=tuple(engines), levels=levels, engine_signal_cycles=signal)


def mappings(graph: Graph, on: Machine) -> Iterator[Schedule]:
    """Every tile, on one core and on all, on every engine that can; and lanes over each axis."""
    (op,) = graph.ops
    kinds = {EngineKind.MATRIX, EngineKind.VECTOR} if op.reduce else {EngineKind.VECTOR}
    engines = [e.name for e in on.engines if e.kind in kinds]
    sizes = [sorted({-(-a.extent // n) for n in range(1, a.extent + 1)}) for a in op.domain]
    for tile in product(*sizes):
        named = {a.name: size for a, size in zip(op.domain, tile, strict=True)}
        for engine in engines:
            yield tiled(graph, named, 1, engine)
            first = next((a for a in op.parallel_axes if named[a.name] < a.extent), None)
            if first is not None and -(-first.extent // named[first.name]) <= on.num_cores:
                yield tiled(graph, named, on.num_cores, engine)
    for axis in op.parallel_axes:
        for engine in engines:
            schedule = _laned(graph, axis, engine)
            if axis.extent <= _lanes(on.engine(engine)):
                yield schedule


def _lanes(engine: Engine) -> int:
    rate = int(max(engine.macs_per_cycle.values()))
    return int(np.prod(engine.array)) if engine.array else max(1, rate)


def _laned(graph: Graph, axis: Axis, engine: str) -> Schedule:
    """Everything in one tile, the points of one axis side by side in the engine."""
    (op,) = graph.ops
    box = tuple(span(var("lane"), 1) if a == axis else span(0, a.extent) for a in op.domain)
    whole = {t.name: tuple(span(0, size) for size in t.shape) for t in graph.tensors.values()}
    fills = (Move(a.tensor, "DDR", "L1", whole[a.tensor], a.fill) for a in op.reads)
    lanes = Loop("lane", axis.extent, LoopKind.LANES, Compute(op.name, box, engine))
    store = Move(op.write.tensor, "L1", "DDR", whole[op.write.tensor])
    body: Node = Seq((*fills, lanes, store))
    init = Init.IDENTITY if op.reduce else Init.UNDEFINED
    for access in (*op.reads, op.write):
        own = init if access is op.write else Init.UNDEFINED
        body = Place(access.tensor, "L1", whole[access.tensor], 1, body, None, own)
    return Schedule(graph, body, "lanes", 0)


@pytest.mark.no_cover
@given(operators(), chips())
@COSTLY
def test_no_mapping_of_an_operator_beats_the_bound(graph: Graph, on: Machine) -> None:
    found = [simulated(schedule, on) for schedule in mappings(graph, on)]
    legal = [cycles for cycles in found if cycles is not None]
    assert 2 * len(legal) > len(found)
    assert 0 < bound(graph, on) <= min(legal)


@given(operators(), chips(), st.integers(2, 4))
def test_more_of_anything_asks_for_no_more(graph: Graph, on: Machine, times: int) -> None:
    now = bound(graph, on)
    faster = [
        replace(on, num_cores=times * on.num_cores),
        _levels(on, read_bytes_per_cycle=times),
        _levels(on, write_bytes_per_cycle=times),
        replace(on, engines=tuple(replace(e, startup_cycles=0) for e in on.engines)),
        replace(on, levels=tuple(replace(m, latency_cycles=0) for m in on.levels)),
        replace(on, engines=tuple(
            replace(e, macs_per_cycle={d: times * r for d, r in e.macs_per_cycle.items()},
                    special_ops_per_cycle=times * e.special_ops_per_cycle)
            for e in on.engines)),
        replace(on, engines=tuple(
            replace(e, feed_bytes_per_cycle=times * e.feed_bytes_per_cycle,
                    drain_bytes_per_cycle=0.0) for e in on.engines)),
    ]  # fmt: skip
    assert all(bound(graph, other) <= now for other in faster)


def _levels(on: Machine, **times: int) -> Machine:
    return replace(on, levels=tuple(
        replace(m, **{name: getattr(m, name) * by for name, by in times.items()})
        for m in on.levels))  # fmt: skip


@given(st.lists(st.integers(1, 40), min_size=3, max_size=3), st.integers(0, 2), chips())
def test_a_larger_product_takes_no_less(size: list[int], axis: int, on: Machine) -> None:
    larger = [n + (k == axis) for k, n in enumerate(size)]
    assert bound(matmul_graph(*size), on) <= bound(matmul_graph(*larger), on)


def _index(a: int, b: int, c: int, offset: int, kind: str) -> Affine:
    line = var("p") * a + var("q") * b + var("r") * c + offset
    return {"line": line, "div": line.floordiv(2), "mod": line.mod(3)}[kind]


indices = st.builds(
    _index,
    st.integers(-3, 3), st.integers(-3, 3), st.integers(0, 2), st.integers(-3, 6),
    st.sampled_from(["line", "div", "mod"]),
)  # fmt: skip


@given(st.lists(indices, min_size=1, max_size=2), st.lists(st.integers(1, 5), min_size=3,
       max_size=3), st.integers(1, 12))  # fmt: skip
def test_elements_touched_are_those_of_enumeration(
    index: list[Affine], extents: list[int], size: int
) -> None:
    """Also through the count by steps, which never exceeds it."""
    axes = tuple(Axis(name, extent) for name, extent in zip("pqr", extents, strict=True))
    shape = (size,) * len(index)
    access = Access("x", tuple(index), 0)
    op = TensorOp("o", axes, (access,), Access("y", (var("p"),)), Read(0), None, Origin((), ""))
    points = [dict(zip("pqr", at, strict=True)) for at in np.ndindex(*extents)]
    found = {tuple(e.evaluate(point) for e in index) for point in points}
    inside = {at for at in found if all(0 <= value < size for value in at)}
    assert touched_elems(op, access, shape) == len(inside)
    assert by_steps(index, shape, dict(zip("pqr", extents, strict=True))) <= len(inside)
