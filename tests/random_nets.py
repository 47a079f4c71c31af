"""Random small networks, and small clusters to run them on."""

from __future__ import annotations

from dataclasses import replace

from graphturbo_nets import Net, clustered
from hypothesis import strategies as st
from registers import with_registers

from worker.compiler.ir.graph import Graph
from worker.compiler.machine.dataflow import Dataflow, Stationary
from worker.compiler.machine.machine import EngineKind, Machine


@st.composite
def machines(draw: st.DrawFn) -> Machine:
    """Two clusters of two cores with little memory; sometimes one, or engines on the buffer."""
    on = clustered(
        clusters=draw(st.sampled_from([2, 2, 1])),
        gb_bytes=draw(st.sampled_from([1 << 10, 1 << 11, 1 << 13])),
        l1_bytes=draw(st.sampled_from([1 << 10, 1 << 11, 1 << 12])),
    )
    if draw(st.integers(0, 5)) == 0:
        engines = (replace(e, memory="GB") if e.name == "mme" else e for e in on.engines)
        on = replace(on, engines=tuple(engines))
    if draw(st.booleans()):
        on = fed(on, draw(st.sampled_from(list(Stationary))), draw(st.sampled_from([4.0, 64.0])),
                 draw(st.sampled_from([0, 128])))  # fmt: skip
    if draw(st.integers(0, 2)) == 0:
        on = with_registers(on, draw(st.sampled_from([16, 256, 1 << 12])))
    return on


def fed(on: Machine, kept: Stationary, port: float, accumulators: int) -> Machine:
    """The machine with a described array and ports of its engines."""
    flow = Dataflow(
        kept, is_double_buffered=bool(accumulators), is_pipelined=bool(accumulators),
        accumulator_bytes=0 if kept is Stationary.OUTPUT else accumulators, cell_bytes=64,
    )  # fmt: skip
    ports = {"feed_bytes_per_cycle": port, "drain_bytes_per_cycle": port / 2}
    engines = []
    for engine in on.engines:
        if engine.kind is EngineKind.MATRIX:
            engine = replace(engine, dataflow=flow)
        if engine.kind in (EngineKind.MATRIX, EngineKind.VECTOR):
            engine = replace(engine, **ports)
        engines.append(engine)
    return replace(on, engines=tuple(engines))


@st.composite
def images(draw: st.DrawFn) -> Graph:
    """Three to seven layers over images, every step on any earlier result of a fitting shape."""
    net = Net()
    size = draw(st.integers(4, 7))
    made = [net.given(draw(st.sampled_from([1, 1, 2, 4])), draw(st.integers(1, 3)), size, size)]
    for _ in range(draw(st.integers(3, 7))):
        made.append(_step(draw, net, made))
    return net.graph(*_results(draw, net, made))


def _step(draw: st.DrawFn, net: Net, made: list[str]) -> str:
    x = made[-1]
    kinds = ["conv3", "conv1", "relu", "add"]
    if net.shapes[x][2] >= 4:
        kinds += ["strided", "pool"]
    match draw(st.sampled_from(kinds)):
        case "conv3":
            return net.conv(x, draw(st.integers(1, 4)))
        case "conv1":
            return net.conv(x, draw(st.integers(1, 4)), 1)
        case "strided":
            return net.conv(x, draw(st.integers(1, 4)), 3, 2)
        case "pool":
            return net.pool(x)
        case "add":
            alike = [t for t in made if net.shapes[t] == net.shapes[x]]
            return net.add(x, draw(st.sampled_from(alike)))
        case _:
            return net.relu(x)


@st.composite
def rows(draw: st.DrawFn) -> Graph:
    """Matrix products, softmax over either dimension, residual additions."""
    net = Net()
    made = [net.given(draw(st.integers(1, 6)), draw(st.integers(2, 9)))]
    for _ in range(draw(st.integers(2, 4))):
        x = made[-1]
        match draw(st.sampled_from(["mm", "softmax", "relu", "add"])):
            case "mm":
                made.append(net.matmul(x, draw(st.integers(2, 9))))
            case "softmax":
                made.append(net.softmax(x, draw(st.integers(0, 1))))
            case "add":
                alike = [t for t in made if net.shapes[t] == net.shapes[x]]
                made.append(net.add(x, draw(st.sampled_from(alike))))
            case _:
                made.append(net.relu(x))
    return net.graph(*_results(draw, net, made))


def _results(draw: st.DrawFn, net: Net, made: list[str]) -> list[str]:
    """What nobody reads, and sometimes one tensor that others do."""
    read = {access.tensor for o in net.ops for access in o.reads}
    ends = [t for t in made[1:] if t not in read]
    inner = [t for t in made[1:] if t in read]
    is_more = draw(st.booleans())
    if inner and is_more:
        ends.append(draw(st.sampled_from(inner)))
    return ends
