"""Who reads whom in nn_dataflow's networks: the layers are those of `nets`.

A layer that reads several maps has them one after the other along channels; so has a sum, though
the tool then counts for each node its part of the first of them, and a neighbour at either side.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks.rivals.nets import NETS, Net
from benchmarks.rivals.row_stationary import Layer


@dataclass(frozen=True, slots=True)
class Given:
    """A map that a network is given."""

    channels: int
    size: tuple[int, int]
    """Rows, columns."""


@dataclass(frozen=True, slots=True)
class Vertex:
    """A layer in its network."""

    layer: Layer
    reads: tuple[str, ...]
    """Names of layers before it, or of what is given; one after the other along channels."""


@dataclass(slots=True)
class Graph:
    """A network; vertices in an order in which every one follows what it reads."""

    given: dict[str, Given]
    vertices: dict[str, Vertex] = field(default_factory=dict)

    def add(self, name: str, layer: Layer, *reads: str) -> str:
        """Append a layer; its name.

        Raises:
            ValueError: its name is there already, or what it reads is not, or has other channels.
        """
        if name in self.vertices or name in self.given:
            raise ValueError(f"{name} is there already")
        missing = [one for one in reads if one not in self.vertices and one not in self.given]
        if missing or not reads:
            raise ValueError(f"{name} reads {missing or 'nothing'}, which is not there")
        wanted = layer.channels * (layer.inputs if layer.is_region else 1)
        if sum(map(self.channels, reads)) != wanted:
            raise ValueError(f"{name} reads {wanted} channels; {', '.join(reads)} have others")
        self.vertices[name] = Vertex(layer, reads)
        return name

    def channels(self, name: str) -> int:
        """Of a map."""
        if name in self.given:
            return self.given[name].channels
        return self.vertices[name].layer.filters


INPUT = "input"


def chain(layers: Sequence[tuple[str, Layer]], size: tuple[int, int]) -> Graph:
    """Named layers that each read what the one before makes, the first a map of `size`."""
    graph, last = Graph({INPUT: Given(layers[0][1].channels, size)}), INPUT
    for name, layer in layers:
        last = graph.add(name, layer, last)
    return graph


def _chain_of(net: str, side: int) -> Graph:
    return chain([(name, layer) for name, layer, _ in NETS[net]()], (side, side))


def _layers(net: Net) -> dict[str, Layer]:
    return {name: layer for name, layer, _ in net}


def alex_net() -> Graph:
    """Two halves, which read both at conv3 and fc1."""
    of, graph = _layers(NETS["alex_net"]()), Graph({INPUT: Given(3, (224, 224))})
    maps = {"a": INPUT, "b": INPUT}
    for name in [name for name in of if not name.startswith("fc")]:
        before = dict(maps)
        for half in maps:
            reads = tuple(before.values()) if name == "conv3" else (before[half],)
            maps[half] = graph.add(f"{name}_{half}", of[name], *reads)
    last = graph.add("fc1", of["fc1"], *maps.values())
    last = graph.add("fc2", of["fc2"], last)
    graph.add("fc3", of["fc3"], last)
    return graph


def googlenet() -> Graph:
    """Modules of four branches."""
    of, graph = _layers(NETS["googlenet"]()), Graph({INPUT: Given(3, (224, 224))})
    last: tuple[str, ...] = (INPUT,)
    for name in ("conv1", "pool1", "conv2_reduce", "conv2", "pool2"):
        last = (graph.add(name, of[name], *last),)
    after = {"3b": "pool3", "4e": "pool4", "5b": "pool5"}
    for module in ("3a", "3b", "4a", "4b", "4c", "4d", "4e", "5a", "5b"):
        branches: list[str] = []
        for path in (("1x1",), ("3x3_reduce", "3x3"), ("5x5_reduce", "5x5"), ("proj",)):
            reads = last
            for part in path:
                reads = (graph.add(f"{module}_{part}", of[f"{module}_{part}"], *reads),)
            branches += reads
        last = tuple(branches)
        if module in after:
            last = (graph.add(after[module], of[after[module]], *last),)
    graph.add("fc", of["fc"], *last)
    return graph


def resnet50() -> Graph:
    """Bottlenecks; in the first of each stage the way around has a convolution."""
    of, graph = _layers(NETS["resnet50"]()), Graph({INPUT: Given(3, (224, 224))})
    last = graph.add("pool1", of["pool1"], graph.add("conv1", of["conv1"], INPUT))
    for stage, count in ((2, 3), (3, 4), (4, 6), (5, 3)):
        for k in range(count):
            here = f"conv{stage}_{k}"
            name = f"conv{stage}_{'0_a' if k == 0 else 'a'}"
            inner = graph.add(f"{here}_a", of[name], last)
            for part in ("b", "c"):
                inner = graph.add(f"{here}_{part}", of[f"conv{stage}_{part}"], inner)
            around = last
            if k == 0:
                around = graph.add(f"conv{stage}_br", of[f"conv{stage}_br"], last)
            last = graph.add(f"{here}_res", of[f"conv{stage}_res"], around, inner)
    graph.add("fc", of["fc"], graph.add("pool5", of["pool5"], last))
    return graph


def lstm_gnmt() -> Graph:
    """Four cells above each other; of each the state and output of the step before are given."""
    of = _layers(NETS["lstm_gnmt"]())
    word = Given(1000, (1, 1))
    cells = range(4)
    graph = Graph({INPUT: word} | {f"{part}{k}": word for k in cells for part in "ch"})
    gate, both, last = of["gates"], of["products and sums"], INPUT
    for k in cells:
        gates = {part: graph.add(f"{part}_{k}", gate, f"h{k}", last)
                 for part in ("new", "input", "forget", "output")}  # fmt: skip
        kept = graph.add(f"kept_{k}", both, f"c{k}", gates["forget"])
        fresh = graph.add(f"fresh_{k}", both, gates["new"], gates["input"])
        state = graph.add(f"state_{k}", both, fresh, kept)
        last = graph.add(f"result_{k}", both, state, gates["output"])
    graph.add("Wd", of["Wd"], last)
    return graph


GRAPHS: Mapping[str, Callable[[], Graph]] = {
    "mlp_l": lambda: _chain_of("mlp_l", 1), "lstm_gnmt": lstm_gnmt, "alex_net": alex_net,
    "mobilenet": lambda: _chain_of("mobilenet", 224), "resnet50": resnet50,
    "googlenet": googlenet, "vgg_net": lambda: _chain_of("vgg_net", 224),
}  # fmt: skip
