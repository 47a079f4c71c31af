"""Rules about single nodes: names, shapes, cores, lanes, queues."""

from __future__ import annotations

from math import prod
from typing import assert_never

from worker.compiler.errors import VerifyError
from worker.compiler.machine.machine import Engine, EngineKind, Machine
from worker.compiler.schedule.nodes import (
    Box,
    Compute,
    Loop,
    LoopKind,
    Move,
    Node,
    Pipe,
    Place,
    Queue,
    Schedule,
    Seq,
)


def refuse(path: str, rule: str, message: str) -> VerifyError:
    """The error of a broken rule."""
    return VerifyError("schedule", path, rule, message)


def check_structure(schedule: Schedule, machine: Machine) -> None:
    """Raise VerifyError for names, shape, cores, lanes and queues.  Cost: linear in the tree."""
    _Checker(schedule, machine).visit(schedule.root, "0", frozenset(), 0, 1)


class _Checker:
    def __init__(self, schedule: Schedule, machine: Machine) -> None:
        self.graph = schedule.graph
        self.machine = machine
        self.memories = {level.name for level in machine.levels}
        self.placeable = {level.name for level in machine.placeable}
        self.engines = {engine.name: engine for engine in machine.engines}
        self.ops = {op.name: op for op in schedule.graph.ops}
        self.seen: set[str] = set()

    def visit(self, node: Node, path: str, names: frozenset[str], core: int, lanes: int) -> None:
        """`core`: largest core id reached so far; `lanes`: product of the LANES trips around."""
        match node:
            case Loop(var, trip, kind, body, stride):
                self._new_var(path, var, trip)
                if kind is LoopKind.CORES:
                    if stride < 1:
                        raise refuse(path, "cores", f"core_stride is {stride}, must be >= 1")
                    core += (trip - 1) * stride
                    self._check_core(path, core)
                elif kind is LoopKind.LANES:
                    lanes *= trip
                self.visit(body, f"{path}.0", names | {var}, core, lanes)
            case Seq(parts):
                for i, part in enumerate(parts):
                    self.visit(part, f"{path}.{i}", names, core, lanes)
            case Place(tensor, memory, tile, copies, body):
                self._check_storage(path, tensor, memory, tile, copies, names)
                self.visit(body, f"{path}.0", names, core, lanes)
            case Move(tensor, src, dst, box):
                for memory in (src, dst):
                    if memory not in self.memories:
                        raise refuse(path, "names", f"unknown memory {memory!r}")
                self._check_box(path, tensor, box, names)
                if tensor in (*self.graph.inputs, *self.graph.constants) and (
                    dst == self.machine.home.name
                ):
                    raise refuse(path, "names", f"{tensor} is read-only at home")
            case Compute():
                self._check_compute(path, node, names, lanes)
            case Pipe():
                self._visit_pipe(node, path, names, core, lanes)
            case _:
                assert_never(node)

    def _visit_pipe(
        self, pipe: Pipe, path: str, names: frozenset[str], core: int, lanes: int
    ) -> None:
        self._new_var(path, pipe.var, pipe.trip)
        inner = names | {pipe.var}
        for k, queue in enumerate(pipe.queues):
            self._check_queue(f"{path}.q{k}", queue, len(pipe.stages), inner)
        for i, stage in enumerate(pipe.stages):
            if stage.core_offset < 0:
                raise refuse(f"{path}.{i}", "cores", f"core_offset is {stage.core_offset}")
            self._check_core(f"{path}.{i}", core + stage.core_offset)
            self.visit(stage.body, f"{path}.{i}", inner, core + stage.core_offset, lanes)

    def _check_queue(self, path: str, queue: Queue, num_stages: int, names: frozenset[str]) -> None:
        if queue.memory not in {level.name for level in self.machine.scratchpads}:
            raise refuse(path, "names", f"{queue.memory!r} is no scratchpad: a ring needs one")
        self._check_storage(path, queue.tensor, queue.memory, queue.tile, queue.depth, names)
        ends = (queue.producer, *queue.consumers)
        if not queue.consumers or any(not 0 <= s < num_stages for s in ends):
            raise refuse(path, "queues", f"stages {ends} of a pipe of {num_stages} stages")
        if any(consumer <= queue.producer for consumer in queue.consumers):
            # Stages run in tree order, so a queue backwards would be a cycle.
            raise refuse(path, "queues", f"stage {queue.producer} feeds itself or an earlier stage")

    def _new_var(self, path: str, var: str, trip: int) -> None:
        if var in self.seen:
            raise refuse(path, "names", f"loop variable {var!r} is used twice")
        self.seen.add(var)
        if trip < 1:
            raise refuse(path, "shape", f"trip count is {trip}")

    def _check_core(self, path: str, core: int) -> None:
        if core >= self.machine.num_cores:
            raise refuse(
                path, "cores", f"core {core} is reached, the machine has {self.machine.num_cores}"
            )

    def _check_storage(
        self, path: str, tensor: str, memory: str, tile: Box, copies: int, names: frozenset[str]
    ) -> None:
        if memory not in self.placeable or memory == self.machine.home.name:
            raise refuse(path, "names", f"{memory!r} is not a scratchpad below the home level")
        if copies < 1:
            raise refuse(path, "shape", f"{copies} copies")
        self._check_box(path, tensor, tile, names)

    def _check_box(self, path: str, tensor: str, box: Box, names: frozenset[str]) -> None:
        if tensor not in self.graph.tensors:
            raise refuse(path, "names", f"unknown tensor {tensor!r}")
        rank = len(self.graph.tensors[tensor].shape)
        if len(box) != rank:
            raise refuse(path, "shape", f"box of rank {len(box)} for {tensor} of rank {rank}")
        self._check_spans(path, box, names)

    def _check_spans(self, path: str, box: Box, names: frozenset[str]) -> None:
        for span in box:
            if span.extent < 1:
                raise refuse(path, "shape", f"extent {span.extent}")
            unknown = [v for v in span.start.variables() if v not in names]
            if unknown or span.start.has_lookup:
                raise refuse(path, "names", f"start {span.start} uses {unknown} from outside")

    def _check_compute(
        self, path: str, compute: Compute, names: frozenset[str], lanes: int
    ) -> None:
        op = self.ops.get(compute.op)
        if op is None:
            raise refuse(path, "names", f"{compute.op!r} is not an operator that can be computed")
        engine = self.engines.get(compute.engine)
        if engine is None or engine.kind in (EngineKind.DMA_IN, EngineKind.DMA_OUT):
            raise refuse(path, "names", f"{compute.engine!r} is not a compute engine")
        if len(compute.box) != len(op.domain):
            raise refuse(path, "shape", f"box of rank {len(compute.box)} for {len(op.domain)} axes")
        self._check_spans(path, compute.box, names)
        limit = lane_limit(engine)
        if lanes > limit:
            raise refuse(path, "lanes", f"{lanes} lanes on {engine.name}, which has {limit}")
        known = {i.name for i in engine.intrinsics}
        if compute.intrinsic is not None and compute.intrinsic not in known:
            raise refuse(path, "names", f"{engine.name} has no intrinsic {compute.intrinsic!r}")


def lane_limit(engine: Engine) -> int:
    """Positions side by side in an engine: its array, or one operation per cycle of its rate."""
    if engine.array:
        return prod(engine.array)
    return max(1, int(max(engine.macs_per_cycle.values(), default=1)))
