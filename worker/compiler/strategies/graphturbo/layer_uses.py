"""What layers read, write and can only reach at home, whatever instances they are cut into."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from worker.compiler.ir.graph import Graph
from worker.compiler.ir.op import TensorOp
from worker.compiler.ir.region import Cuts
from worker.compiler.machine.machine import Engine, MemoryLevel
from worker.compiler.tiling.layer.layers import Layer
from worker.compiler.tiling.layer.plan_layer import layer_facts
from worker.compiler.tiling.nest.facts import Facts, facts_of

SMALL_CONSTANT_BYTES = 1 << 14
"""Constants of row chains up to this size live in GB."""


@dataclass(frozen=True)
class LayerUses:
    """Layers by number and the tensors they exchange."""

    graph: Graph
    layers: tuple[Layer, ...]
    engines: Mapping[str, Engine]
    """By operator."""
    buffer: MemoryLevel | None
    """The clusters' global buffer (GB)."""
    known: dict[tuple[str, ...], Facts | None]
    """What tiling knows of operators alone and of layers; filled on demand."""

    @cached_property
    def cuts(self) -> Cuts:
        """Operators by name, and what pieces of the graph exchange."""
        return Cuts.of(self.graph)

    @cached_property
    def facts(self) -> tuple[Facts | None, ...]:
        """What tiling knows of each layer; None for a row chain."""
        for layer in self.layers:
            if layer.ops not in self.known:
                self.known[layer.ops] = layer_facts(layer, self.cuts, self.engines)
        return tuple(self.known[layer.ops] for layer in self.layers)

    @cached_property
    def readers(self) -> dict[str, list[int]]:
        """Layers that read a tensor which they do not make, ascending; once per operator."""
        found: dict[str, list[int]] = {}
        for number, ops in enumerate(self._ops):
            made = {op.write.tensor for op in ops}
            for tensor in (t for op in ops for t in op.input_names() if t not in made):
                found.setdefault(tensor, []).append(number)
        return found

    @cached_property
    def writers(self) -> dict[str, list[int]]:
        """Layers that write a tensor, ascending; once per operator."""
        found: dict[str, list[int]] = {}
        for number, ops in enumerate(self._ops):
            for tensor in (op.write.tensor for op in ops):
                found.setdefault(tensor, []).append(number)
        return found

    @cached_property
    def at_home(self) -> tuple[frozenset[str], ...]:
        """Per layer, what it can only reach at home."""
        return tuple(map(self._only_at_home, range(len(self.layers))))

    @cached_property
    def constants(self) -> frozenset[str]:
        """Those that go from home to where they are used."""
        return frozenset(t for t in self.graph.constants if not self._is_chains(t))

    @cached_property
    def weights(self) -> tuple[int, ...]:
        """Bytes of `constants` of every layer."""
        used = (self.constants.intersection(self.touched(k)) for k in range(len(self.layers)))
        return tuple(sum(self.graph.tensors[t].size_bytes for t in names) for names in used)

    def touched(self, number: int) -> tuple[str, ...]:
        """What a layer reads or writes."""
        return tuple(t for op in self._ops[number] for t in (*op.input_names(), op.write.tensor))

    def written(self, number: int) -> tuple[str, ...]:
        """What a layer writes."""
        return tuple(op.write.tensor for op in self._ops[number])

    def leaving(self, number: int) -> frozenset[str]:
        """What others use of it."""
        return frozenset(t for t in self.written(number) if not self.stays_inside(t))

    def stays_inside(self, tensor: str) -> bool:
        """Only its own layer uses it."""
        return not self.readers.get(tensor) and tensor not in self.graph.outputs

    def is_exchanged(self, tensor: str) -> bool:
        """Layers exchange it, so that it may live in GB."""
        is_made = tensor in self.writers and not self.stays_inside(tensor)
        return tensor not in self.constants and (tensor in self.readers or is_made)

    def users(self, tensor: str) -> tuple[int, ...]:
        """Layers that write it, then layers that read it."""
        return (*self.writers.get(tensor, ()), *self.readers.get(tensor, ()))

    def op(self, name: str) -> TensorOp:
        """An operator by name."""
        return self.cuts.op(name)

    def adds_in_buffer(self, layer: Layer) -> bool:
        """Its one operator works on GB itself."""
        return len(layer.ops) == 1 and self._is_in_buffer(layer.ops[0])

    @cached_property
    def _ops(self) -> tuple[tuple[TensorOp, ...], ...]:
        """Of every layer."""
        return tuple(tuple(map(self.op, layer.ops)) for layer in self.layers)

    def _is_chains(self, constant: str) -> bool:
        """Whether it is small and only row chains read it, tile by tile: brought to GB, no tile has
        to wait for weights that were asked of home before."""
        readers = self.readers.get(constant, ())
        is_small = self.graph.tensors[constant].size_bytes <= SMALL_CONSTANT_BYTES
        return is_small and bool(readers) and all(self.layers[n].is_chain for n in readers)

    def _op_facts(self, op: TensorOp) -> Facts:
        found = self.known.get((op.name,))
        if found is None:
            found = self.known[(op.name,)] = facts_of(op, self.graph.tensors)
        return found

    def _only_at_home(self, number: int) -> frozenset[str]:
        far: set[str] = set()
        layer = self.layers[number]
        for op in self._ops[number]:
            own = self._op_facts(op)
            far.update(op.reads[k].tensor for k in own.at_home)
            if own.out is None:
                far.add(op.write.tensor)
            if self._is_in_buffer(op.name):
                far.update(operand.tensor for operand in own.reads if operand.is_padded)
            if not layer.is_chain and own.accumulates and self.adds_in_buffer(layer):
                dtype = self.graph.tensors[op.write.tensor].dtype
                if dtype.accumulator is not dtype:
                    far.add(op.write.tensor)
        return frozenset(far)

    def _is_in_buffer(self, name: str) -> bool:
        """Whether an operator's engine works on the global buffer itself."""
        return self.buffer is not None and self.engines[name].memory == self.buffer.name
