"""A unit's plan written out as one schedule tree: one kernel for all of its layers.

Sections follow each other.  In a section clusters are a CORES loop; the instances of each part are
a TIME loop inside the instance of the part they feed (depth-first order as a loop nest), and the
layers of a part follow its inner loop.  A tensor in the global buffer gets its place right before
its first writer, and the place reaches to the end of the sequence (addresses are freed after the
last use, not at its end).
Source: GraphTurbo, section 4.2 (buffer stitching: layers exchange data in local memory and one
instance is one kernel) and Algorithm 3 (order of instances).
"""

from __future__ import annotations

from collections.abc import Sequence

from worker.compiler.ir.affine import Affine, var
from worker.compiler.ir.op import reads_of, writes_of
from worker.compiler.schedule.nodes import Box, Init, Loop, LoopKind, Move, Node, Place, Seq, Span
from worker.compiler.strategies.graphturbo.handover_emit import around_run, emit_run, fetched
from worker.compiler.strategies.graphturbo.section_plan import SectionPlan, instance_var


def emit_unit(sections: Sequence[SectionPlan]) -> Node:
    """The tree.  Variables of section s start with s and its number: s0cl the cluster, s0i1 the
    turn of part 1, s0l3.. those of layer 3."""
    nodes = [_Section(plan, f"s{k}").write() for k, plan in enumerate(sections)]
    return nodes[0] if len(nodes) == 1 else Seq(tuple(nodes))


class _Section:
    def __init__(self, plan: SectionPlan, prefix: str) -> None:
        self.plan = plan
        self.prefix = prefix
        self.number = self._numbers()
        by_name = {op.name: op for op in plan.graph.ops}
        self.part_of = {k: n for n, part in enumerate(plan.parts) for k in part.layers}
        opened: dict[str, int] = {}
        self.last_write: dict[str, int] = {}
        self.run_at = {run.run.first: run for run in plan.runs}
        opens, closes = _ends_of_runs(plan)
        buffered = frozenset(plan.buffered)
        for k, layer in enumerate(plan.layers):
            near = not plan.whole_chip[k]
            for name in layer.layer.ops:
                op = by_name[name]
                for tensor in (*reads_of(op), *writes_of(op)):
                    if tensor in buffered and (near or tensor not in plan.staged):
                        opened.setdefault(tensor, opens.get(k, k))
                for tensor in writes_of(op):
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

    def _numbers(self) -> dict[str, Affine]:
        """Number of the instance of every part, from the loops around it."""
        plan, found = self.plan, {}
        number = var(f"{self.prefix}cl") if plan.spread.clusters > 1 else Affine()
        for part in reversed(range(len(plan.parts))):
            trips = plan.parts[part].trips
            number = number * trips
            if trips > 1:
                number = number + var(f"{self.prefix}i{part}")
            found[instance_var(part)] = number
        return found

    def write(self) -> Node:
        plan = self.plan
        node = self._part(len(plan.parts) - 1)
        if plan.spread.clusters > 1:
            clusters, cores = plan.spread.clusters, plan.spread.cores
            node = Loop(f"{self.prefix}cl", clusters, LoopKind.CORES, node, cores)
        return node

    def _part(self, part: int) -> Node:
        """All instances of a part inside one instance of the next."""
        node: Node | None = None
        inside = {
            k for run in self.plan.runs for k in range(run.run.first + 1, run.run.last)
        }  # written by their run
        for k in reversed(self.plan.parts[part].layers):
            node = node if k in inside else self._from(k, node)
        assert node is not None
        if part > 0:
            inner = self._part(part - 1)
            node = Seq((inner, *(node.parts if isinstance(node, Seq) else (node,))))
        node = self._placed(self.around.get(part, []), node)
        trips = self.plan.parts[part].trips
        if trips > 1:
            node = Loop(f"{self.prefix}i{part}", trips, LoopKind.TIME, node)
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
        plan = self.plan
        for tensor in reversed(tensors):
            init = Init.IDENTITY if tensor in plan.summed else Init.UNDEFINED
            box = self._box(plan.box[tensor])
            node = Place(tensor, plan.buffer, box, 1, node, None, init)
        return node

    def _box(self, box: Box) -> Box:
        return tuple(Span(span.start.substitute(self.number), span.extent) for span in box)


def _ends_of_runs(plan: SectionPlan) -> tuple[dict[int, int], dict[int, int]]:
    """First and last layer of the run around each layer that is in one."""
    opens: dict[int, int] = {}
    closes: dict[int, int] = {}
    for run in plan.runs:
        for k in range(run.run.first, run.run.last):
            opens[k], closes[k] = run.run.first, run.run.last - 1
    return opens, closes
