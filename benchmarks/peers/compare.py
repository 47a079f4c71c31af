"""A peer's figures of one layer beside Tilewright's, and what of the difference has a name.

Every cause is computed from the nest or the simulation, in the figure's own unit; what they do not
explain is printed as such.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from math import ceil, prod
from typing import Any

from benchmarks.cells import Row
from benchmarks.peers.layers import Compiled
from worker.compiler.export.documents import bits_per_cycle
from worker.compiler.export.nest import Hold, LoopNest
from worker.compiler.export.windows import Convolution, convolution

_OWN_MAPPING = "its own mapping"


@dataclass(frozen=True, slots=True)
class Figure:
    """One number of both."""

    name: str
    ours: float
    theirs: float
    causes: Mapping[str, float]
    """What each named cause adds to theirs."""
    apart: str = ""
    """Why the two are shown and not compared; empty: they are."""

    def row(self) -> Row:
        """As the ledger keeps it; ratios are theirs to ours."""
        left = self.theirs - self.ours - sum(self.causes.values())
        judged: Row = {"unexplained": round(left / self.ours, 3)}
        return {
            "figure": self.name,
            "ours": round(self.ours),
            "theirs": round(self.theirs),
            "ratio": round(self.theirs / self.ours, 3),
            "causes": {k: round(v / self.ours, 3) for k, v in self.causes.items()
                       if abs(v) >= self.ours / 1000},
            **({"apart": self.apart} if self.apart else judged),
        }  # fmt: skip


def zigzag_figures(layer: Compiled, nest: LoopNest, found: Mapping[str, Any]) -> tuple[Figure, ...]:
    """Cycles, and bytes in and out of every memory."""
    rims, gaps = _rims(layer, nest), _gaps(nest)
    traffic = {t.level: t for t in layer.simulation.traffic}
    figures = []
    for port, moved in sorted(found["bytes"].items()):
        level, _, way = port.partition(".")
        ours = traffic[level].read_bytes if way == "read" else traffic[level].write_bytes
        causes = {"rims of padding": rims[port], "gaps of a stride": -gaps.get(port, 0.0)}
        figures.append(Figure(f"bytes {port}", ours, moved, causes))
    return (_zigzag_cycles(layer, nest, found["cycles"], rims, gaps), *figures)


def _ports(nest: LoopNest, hold: Hold) -> tuple[str, str]:
    """Where a buffer's transfers leave, and where they arrive."""
    ends = (hold.source, hold.memory)
    if hold.operand == len(nest.operands) - 1:
        ends = ends[::-1]
    return f"{ends[0]}.read", f"{ends[1]}.write"


def _rims(layer: Compiled, nest: LoopNest) -> dict[str, float]:
    """Bytes of tiles outside of their tensors, by port: moved by who knows no padding."""
    counted: Counter[str] = Counter()
    for hold in nest.holds:
        size = nest.operands[hold.operand].dtype.size_bytes
        for port in _ports(nest, hold):
            counted[port] += nest.fills(hold) * hold.num_elems * size
    ours = {
        f"{t.level}.{way}": size
        for t in layer.simulation.traffic
        for way, size in (("read", t.read_bytes), ("write", t.write_bytes))
    }
    return {port: float(size - ours[port]) for port, size in counted.items()}


def _gaps(nest: LoopNest) -> dict[str, float]:
    """Bytes that tiles hold and nobody reads, by port: a stride wider than its window skips them.
    Tilewright moves the hull of a tile, ZigZag what is read."""
    found: Counter[str] = Counter()
    for hold in nest.holds:
        operand = nest.operands[hold.operand]
        tile = nest.tile_inside(hold.depth)
        read = prod(
            len({sum(at) for at in product(*(range(0, c * tile[d], c) for d, c in terms))})
            for terms in operand.index
        )
        for port in _ports(nest, hold):
            idle = (hold.num_elems - read) * operand.dtype.size_bytes
            found[port] += nest.fills(hold) * idle
    return {port: float(size) for port, size in found.items()}


def _zigzag_cycles(
    layer: Compiled,
    nest: LoopNest,
    theirs: float,
    rims: Mapping[str, float],
    gaps: Mapping[str, float],
) -> Figure:
    blamed = {c.cause: c.cycles for c in layer.simulation.causes}
    home = layer.machine.home
    # Bytes cost time as far as the port is what the run waits for: more of them all of theirs,
    # fewer (gaps) at most that, for something else may be waited for then.
    reading = blamed.get(f"port:{home.name}.read", 0)
    rate = home.read_bytes_per_cycle
    width = rate * 8 / bits_per_cycle(rate) - 1
    port = f"{home.name}.read"
    read = next(t.read_bytes for t in layer.simulation.traffic if t.level == home.name)
    first = [
        hold.num_elems * nest.operands[hold.operand].dtype.size_bytes / rate
        for hold in nest.holds
        if hold.source == home.name and hold.operand < len(nest.operands) - 1
    ]
    causes = {
        "start-up of the engine": -float(blamed.get(f"fill:{nest.engine.name}", 0)),
        "latencies": -float(blamed.get("latency", 0)),
        "first tiles side by side through one port": max(first) - sum(first),
        "width in whole bits": reading * width,
        "rims of padding": reading * rims[port] / read,
        "gaps of a stride (at most)": -reading * gaps.get(port, 0.0) / read,
        "loads, skew and ports of the array": min(0.0, _passes(nest) - _working(nest, blamed)),
    }
    return Figure("cycles", layer.simulation.cycles, theirs, causes)


def _working(nest: LoopNest, blamed: Mapping[str, int]) -> float:
    """Cycles in which the run waits for the engine and its ports."""
    return float(sum(blamed.get(f"{kind}:{nest.engine.name}", 0) for kind in ("engine", "feed")))


def accelforge_figures(
    layer: Compiled, nest: LoopNest, found: Mapping[str, Any]
) -> tuple[Figure, ...]:
    """Cycles, and bytes in and out of every memory but those that feed the array."""
    rims = _rims(layer, nest)
    traffic = {t.level: t for t in layer.simulation.traffic}
    figures = []
    for port, moved in sorted(found["bytes"].items()):
        level, _, way = port.partition(".")
        if level == nest.holds[-1].memory:
            continue  # its accesses are the array's as well
        ours = traffic[level].read_bytes if way == "read" else traffic[level].write_bytes
        figures.append(Figure(f"bytes {port}", ours, moved, {"rims of padding": rims[port]}))
    total = layer.simulation.cycles
    home = layer.machine.home
    moved = {"read": home.read_bytes_per_cycle, "write": home.write_bytes_per_cycle}
    ports = [
        (ours + rims[f"{home.name}.{way}"]) / moved[way]
        for way, ours in (
            ("read", traffic[home.name].read_bytes), ("write", traffic[home.name].write_bytes)
        )
    ]  # fmt: skip
    causes = {"nothing waits for anything": max(_passes(nest), home.port_cycles(*ports)) - total}
    return (Figure("cycles", total, found["cycles"], causes), *figures)


def scalesim_figures(
    layer: Compiled, nest: LoopNest, found: Mapping[str, Any]
) -> tuple[Figure, ...]:
    """Cycles of the array; cycles in all and DRAM bytes, which follow SCALE-Sim's own mapping."""
    rows, columns = nest.engine.array
    roles = convolution(nest)
    assert isinstance(roles, Convolution)
    assert nest.roles is not None
    depth = prod(nest.dims[d].extent for d in nest.roles.depth)
    filters = roles.extent(nest, roles.filters)
    folds = ceil(depth / rows) * ceil(filters / columns)
    streamed = prod(nest.dims[d].extent for d in nest.roles.rows)
    passes = _passes(nest)
    array = Figure(
        "array cycles", passes, found["compute_cycles"],
        {"weights and skew of every fold": folds * (2 * rows + columns - 2.0),
         "tiles that pad the array": folds * streamed - passes},
    )  # fmt: skip
    element = nest.operands[nest.roles.left].dtype.size_bytes
    home = next(t for t in layer.simulation.traffic if t.level == layer.machine.home.name)
    moved = [
        Figure(f"bytes {home.level}.{way}", ours, theirs * element, {}, _OWN_MAPPING)
        for way, ours, theirs in (
            ("read", home.read_bytes, found["elements"]["read"]),
            ("write", home.write_bytes, found["elements"]["write"]),
        )
    ]  # fmt: skip
    whole = Figure("cycles", layer.simulation.cycles, found["cycles"], {}, _OWN_MAPPING)
    return (array, whole, *moved)


def nn_dataflow_figures(
    layer: Compiled, nest: LoopNest, found: Mapping[str, Any]
) -> tuple[Figure, ...]:
    """Multiply-accumulates; cycles and DRAM bytes follow nn_dataflow's own mapping."""
    assert nest.roles is not None
    element = nest.operands[nest.roles.left].dtype.size_bytes
    home = next(t for t in layer.simulation.traffic if t.level == layer.machine.home.name)
    ours = home.read_bytes + home.write_bytes
    return (
        Figure("multiply-accumulates", layer.simulation.macs, found["macs"], {}),
        Figure("cycles", layer.simulation.cycles, found["cycles"], {}, _OWN_MAPPING),
        Figure(f"bytes {home.level}", ours, found["dram_words"] * element, {}, _OWN_MAPPING),
    )


def _passes(nest: LoopNest) -> float:
    """Cycles of one core's engine without start-up, as Tilewright's clock pads every tile to an
    array."""
    assert nest.roles is not None
    m, n, k, b = (
        prod(nest.tile[d] for d in dims)
        for dims in (nest.roles.rows, nest.roles.columns, nest.roles.depth, nest.roles.batch)
    )
    tiles = prod(loop.trip for loop in nest.loops if not loop.is_spatial)
    if not nest.engine.array:
        rate = nest.engine.macs_per_cycle[nest.operands[nest.roles.left].dtype]
        return tiles * ceil(b * m * n * k / rate)
    rows, columns = nest.engine.array
    return float(tiles * b * m * ceil(n / columns) * ceil(k / rows))
