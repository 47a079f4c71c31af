"""A unit's plan written out as one schedule tree: one kernel for all of its layers.

Sections follow each other.  In a section clusters are a CORES loop; the instances of each part are
a TIME loop inside the instance of the part they feed, and the layers of a part follow its inner
loop; or instances are written out one after the other, in whatever order.  A tensor in the global
buffer gets its place right before its first writer, and the place reaches to the end of the
sequence (addresses are freed after the last use, not at its end).
Source: GraphTurbo, section 4.2 (buffer stitching: layers exchange data in local memory and one
instance is one kernel) and Algorithm 3 (order of instances).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from worker.compiler.ir.affine import Affine, var
from worker.compiler.schedule.nodes import Box, Init, Loop, LoopKind, Move, Node, Place, Seq, Span
from worker.compiler.strategies.graphturbo.handover_emit import around_run, emit_run, fetched
from worker.compiler.strategies.graphturbo.section_plan import SectionPlan
from worker.compiler.strategies.graphturbo.site import instance_var
from worker.compiler.strategies.graphturbo.stays import Stay, stays_of


def emit_unit(sections: Sequence[SectionPlan]) -> Node:
    """The tree.  Variables of section s start with s and its number: s0cl the cluster, s0i1 the
    turn of part 1, s0l3.. those of layer 3; where instances run in an order, s0p2l3..
    those of layer 3 in the instance at position 2."""
    nodes = [
        (_Ordered if plan.order else _Section)(plan, f"s{k}").write()
        for k, plan in enumerate(sections)
    ]
    return nodes[0] if len(nodes) == 1 else Seq(tuple(nodes))


class _Section:
    def __init__(self, plan: SectionPlan, prefix: str) -> None:
        self.plan = plan
        self.prefix = prefix
        self.cluster = f"{prefix}cl"
        self.number = self._numbers()
        by_name = {op.name: op for op in plan.graph.ops}
        self.part_of = {k: n for n, part in enumerate(plan.parts) for k in part.layers}
        opened: dict[str, int] = {}
        self.last_write: dict[str, int] = {}
        self.run_at = {run.run.first: run for run in plan.runs}
        opens, closes = _ends_of_runs(plan)
        buffered = frozenset(plan.buffered)
        self.parts_of: dict[str, set[int]] = {}
        """Parts that use a tensor in the buffer."""
        for k, layer in enumerate(plan.layers):
            near = not plan.whole_chip[k]
            for name in layer.layer.ops:
                op = by_name[name]
                for tensor in (*op.input_names(), op.write.tensor):
                    if tensor in buffered and (near or tensor not in plan.staged):
                        self.parts_of.setdefault(tensor, set()).add(self.part_of[k])
                        opened.setdefault(tensor, opens.get(k, k))
                tensor = op.write.tensor
                self.last_write[tensor] = closes.get(k, k)
        # What the chip made at home is brought in when the last of it is there.
        for tensor in plan.staged:
            opened[tensor] = max(opened[tensor], self.last_write.get(tensor, -1) + 1)
        self.around: dict[int, list[str]] = {}
        """Tensors that live around the inner instances of a part."""
        self.first: dict[int, list[str]] = {}
        """Tensors that need a place in the buffer from this layer on."""
        for tensor in plan.buffered:
            home = plan.place[tensor]
            if self.part_of[opened[tensor]] < home:
                self.around.setdefault(home, []).append(tensor)
            else:
                self.first.setdefault(opened[tensor], []).append(tensor)
        self.stored: dict[int, list[str]] = {}
        """Tensors that go home, their share complete in the buffer after this layer."""
        for tensor in plan.buffered:
            if tensor in plan.kept:
                self.stored.setdefault(self.last_write[tensor], []).append(tensor)

    def _cluster(self) -> Affine:
        """Number of the cluster."""
        return var(self.cluster) if self.plan.spread.clusters > 1 else Affine()

    def _numbers(self) -> dict[str, Affine]:
        """Number of the instance of every part, from the loops around it."""
        plan, found = self.plan, {}
        number = self._cluster()
        for part in reversed(range(len(plan.parts))):
            trips = plan.parts[part].trips
            number = number * trips
            if trips > 1:
                number = number + var(f"{self.prefix}i{part}")
            found[instance_var(part)] = number
        return found

    def write(self) -> Node:
        """The section, on all of its clusters."""
        plan = self.plan
        node = self._body()
        if plan.spread.clusters > 1:
            clusters, cores = plan.spread.clusters, plan.spread.cores
            node = Loop(self.cluster, clusters, LoopKind.CORES, node, cores)
        return node

    def _body(self) -> Node:
        """What one cluster runs."""
        return self._part(len(self.plan.parts) - 1)

    def _part(self, part: int) -> Node:
        """All instances of a part inside one instance of the next."""
        node = self._instance(part)
        if part > 0:
            inner = self._part(part - 1)
            node = Seq((inner, *(node.parts if isinstance(node, Seq) else (node,))))
        node = self._placed(self.around.get(part, []), node)
        trips = self.plan.parts[part].trips
        if trips > 1:
            node = Loop(f"{self.prefix}i{part}", trips, LoopKind.TIME, node)
        return node

    def _instance(self, part: int) -> Node:
        """The layers of one instance of a part."""
        node: Node | None = None
        inside = {
            k for run in self.plan.runs for k in range(run.run.first + 1, run.run.last)
        }  # written by their run
        for k in reversed(self.plan.parts[part].layers):
            node = node if k in inside else self._from(k, node)
        assert node is not None
        return node

    def _from(self, k: int, rest: Node | None) -> Node:
        """Layer k and everything after it in its part."""
        plan = self.plan
        places = self.first.get(k, [])
        parts: list[Node] = [
            Move(tensor, plan.home, plan.buffer, self._box(plan.box[tensor]))
            for tensor in places
            if tensor in plan.staged
        ]
        last = k
        if k in self.run_at:
            run, last = self.run_at[k], self.run_at[k].run.last - 1
            parts.extend(fetched(run, plan))
            parts.append(emit_run(run, plan, self.number, self.prefix))
        else:
            parts.append(plan.layers[k].tree(plan.home, self.number, f"{self.prefix}l{k}"))
        for tensor in self.stored.get(last, []):
            box = plan.share.get(tensor, plan.box[tensor])
            parts.append(Move(tensor, plan.buffer, plan.home, self._box(box)))
        if isinstance(rest, Seq):
            parts.extend(rest.parts)
        elif rest is not None:
            parts.append(rest)
        node = Seq(tuple(parts)) if len(parts) > 1 else parts[0]
        if k in self.run_at:
            node = around_run(self.run_at[k], plan, node)
        return self._placed(places, node)

    def _placed(self, tensors: Sequence[str], node: Node) -> Node:
        for tensor in reversed(tensors):
            node = self._place(tensor, self._box(self.plan.box[tensor]), node)
        return node

    def _place(self, tensor: str, box: Box, node: Node) -> Node:
        init = Init.IDENTITY if tensor in self.plan.summed else Init.UNDEFINED
        return Place(tensor, self.plan.buffer, box, 1, node, None, init)

    def _box(self, box: Box) -> Box:
        return tuple(Span(span.start.substitute(self.number), span.extent) for span in box)


class _Ordered(_Section):
    """Instances written out one after the other.

    What several parts use has its place from the first instance that does; the place's body is all
    that follows, in which a later place of the same tensor takes over.
    """

    def _body(self) -> Node:
        plan, prefix = self.plan, self.prefix
        factors = [prod(p.trips for p in plan.parts[n:]) for n in range(len(plan.parts))]
        opened: dict[int, list[tuple[str, Stay]]] = {}
        for tensor in (t for names in self.around.values() for t in names):
            for stay in stays_of(plan.order, factors, self.parts_of[tensor]):
                opened.setdefault(stay.opened, []).append((tensor, stay))
        node: Node | None = None
        for position in reversed(range(len(plan.order))):
            part, number = plan.order[position].group, plan.order[position].number
            self.prefix = f"{prefix}p{position}"
            self.number = {
                instance_var(n): self._cluster() * factors[n] + number * factors[n] // factors[part]
                for n in range(part, len(plan.parts))
            }
            tree = self._instance(part)
            rest = () if node is None else node.parts if isinstance(node, Seq) else (node,)
            node = Seq((*(tree.parts if isinstance(tree, Seq) else (tree,)), *rest))
            for tensor, stay in reversed(opened.get(position, [])):
                node = self._place(tensor, self._slices(tensor, stay, factors), node)
        assert node is not None
        return node

    def _slices(self, tensor: str, stay: Stay, factors: Sequence[int]) -> Box:
        """Consecutive slices of a tensor."""
        home = self.plan.place[tensor]
        first = {instance_var(home): self._cluster() * factors[home] + stay.first}
        return tuple(
            Span(span.start.substitute(first), span.extent * stay.count)
            if span.start.variables()
            else span
            for span in self.plan.box[tensor]
        )


def _ends_of_runs(plan: SectionPlan) -> tuple[dict[int, int], dict[int, int]]:
    """First and last layer of the run around each layer that is in one."""
    opens: dict[int, int] = {}
    closes: dict[int, int] = {}
    for run in plan.runs:
        for k in range(run.run.first, run.run.last):
            opens[k], closes[k] = run.run.first, run.run.last - 1
    return opens, closes
