"""What a verification would cost, counted on shapes before anything is allocated or run.

A small file can ask for a lot that is legal: a Loop of a million trips, a Range of 2**28.  Then the
compile stands and the report says why it was not verified.  The allowance grows with the file, so
that a model which brings its weights is not measured by what a file of a few hundred bytes may ask.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

import onnx_ir

from worker.compiler.frontend.edit import is_graph
from worker.compiler.frontend.model import OnnxModel
from worker.compiler.frontend.sizes import certain_trips
from worker.compiler.frontend.tensor_checks import bits_of
from worker.compiler.frontend.work import node_steps, static_shape

RUNS = 3
"""Of the model: the reference, the reference on other inputs, and the compiled one."""
HELD = 6
"""Times that the values alive at one moment are held, as measured: in the home memory and on the
levels of the machine, by the reference, as operands that the oracle reads in float64."""
NODE_STEPS = 1 << 13
"""What starting a node costs, in multiply-accumulates: some 10 us."""
TRIP_STEPS = 1 << 17
"""What an iteration costs beside its nodes: ONNX Runtime or a program is entered anew, 0.1 ms."""
MAX_STEPS = 1 << 35
"""Multiply-accumulates of all runs: about half a minute on one core."""
STEPS_PER_BYTE = 1 << 16
"""Allowed beside, by byte of the model: weights of 2 bytes are used 40 000 times a run; those of a
ResNet-50 with 64 samples are used 10 000 times."""
MAX_BYTES = 3 << 29
"""Of values held at one moment, weights not counted."""
BYTES_PER_BYTE = 64
"""Allowed beside, by byte of the model; that ResNet-50 takes 6."""
_STRING_BITS = 256
"""Of an element whose type says no width: a std::string without its text."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one verification."""

    steps: int
    """Multiply-accumulates, and elements made, of all runs."""
    num_bytes: int
    """Values held at one moment, weights not counted."""


def cost_of(model: OnnxModel) -> Cost:
    """Count a simplified model, with the trips that its loops are certain to take.

    Values of unknown shape, and loops that data may end, count as little as they can be.
    Cost: linear in nodes.
    """
    graph = model.ir.graph
    steps, alive = _graph_cost(graph)
    ends = sum(map(_num_bytes, (*graph.inputs, *graph.outputs)))
    return Cost(RUNS * steps, HELD * alive + RUNS * ends)


def over_budget(model: OnnxModel, file_bytes: int) -> str | None:
    """Why a verification would take too much, with count and limit; None: it may run."""
    cost = cost_of(model)
    limits = (
        (cost.steps, MAX_STEPS + STEPS_PER_BYTE * file_bytes, "steps"),
        (cost.num_bytes, MAX_BYTES + BYTES_PER_BYTE * file_bytes, "bytes of values at a time"),
    )
    for count, limit, unit in limits:
        if count > limit:
            return f"it would take {count} {unit}, more than {limit}"
    return None


def _graph_cost(graph: onnx_ir.Graph) -> tuple[int, int]:
    """(steps of one run, the most bytes of its values alive at a time)."""
    nodes = list(graph)
    last: dict[onnx_ir.Value, int] = {}
    for position, node in enumerate(nodes):
        for value in _reads(node):
            last[value] = position
    kept = set(graph.outputs)
    ending: dict[int, list[onnx_ir.Value]] = {}
    for value, position in last.items():
        if value not in kept and value.const_value is None:
            ending.setdefault(position, []).append(value)
    steps = 0
    alive = most = sum(map(_num_bytes, graph.inputs))
    for position, node in enumerate(nodes):
        own, inside = _node_cost(node)
        steps += own
        alive += sum(map(_num_bytes, node.outputs))
        most = max(most, alive + inside)
        alive -= sum(_num_bytes(v) for v in node.outputs if v not in last and v not in kept)
        alive -= sum(map(_num_bytes, ending.get(position, ())))
    return steps, most


def _node_cost(node: onnx_ir.Node) -> tuple[int, int]:
    """(steps, bytes of values within its bodies)."""
    made = sum(prod(static_shape(value) or (0,)) for value in node.outputs)
    steps = NODE_STEPS + max(node_steps(node), made)
    inside = 0
    bodies = [a.as_graph() for a in node.attributes.values() if is_graph(a)]
    trips = certain_trips(node, bodies[0]) if len(bodies) == 1 else 1
    for body in bodies:
        once, alive = _graph_cost(body)
        steps += trips * (once + TRIP_STEPS)
        inside = max(inside, alive)
    return steps, inside


def _reads(node: onnx_ir.Node) -> Iterable[onnx_ir.Value]:
    """Values that a node reads, those that its bodies capture too."""
    yield from (value for value in node.inputs if value is not None)
    for attribute in node.attributes.values():
        if is_graph(attribute):
            for inner in attribute.as_graph():
                yield from _reads(inner)


def _num_bytes(value: onnx_ir.Value) -> int:
    shape = static_shape(value)
    if shape is None or value.const_value is not None:
        return 0
    bits = bits_of(value.dtype) if value.dtype is not None else 0
    return -(-prod(shape) * (_STRING_BITS if bits is None else bits) // 8)
