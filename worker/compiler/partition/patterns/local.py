"""What a place of a pattern asks of a value by itself, whatever the rest of the match does.

A place that does not fit at a value is in no match there.  The converse does not hold: bindings,
escaping values and other composites are seen by the whole match only (patterns_search.py).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import onnx_ir

from worker.compiler.machine.pattern import Alternatives, AnyValue, OpMatch, PathTo, SameValue
from worker.compiler.partition.patterns.steps import Step
from worker.compiler.partition.patterns.view import FREE, OUTSIDE, ModelIndex, Operands


class Local:
    """Judgements about places, kept: each place is judged once per value.

    Cost: places times the values they are asked about, however the pattern's choices nest.
    """

    def __init__(self, view: ModelIndex, dead: Collection[int] = ()) -> None:
        """`dead` nodes stand nowhere."""
        self._view = view
        self._dead = dead
        self._known: dict[tuple[int, int], bool] = {}

    def fits(self, step: Step, value: onnx_ir.Value, definer: int) -> bool:
        """Whether the place can stand at `value`, which node `definer` computes."""
        if step.is_free:
            return True
        if not step.is_open and (definer == OUTSIDE or self._view.types[definer] not in step.heads):
            return False
        key = (id(step), id(value))
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = self._judge(step, value, definer)
        return known

    def fits_inside(self, step: Step, value: onnx_ir.Value | None, definer: int) -> bool:
        """As `fits`, for a value that the match itself reads: its definer may not leave."""
        if value is None or not self.fits(step, value, definer):
            return False
        return step.is_open or not self._view.leaves(definer)

    def _judge(self, step: Step, value: onnx_ir.Value, definer: int) -> bool:
        match step.pattern:
            case OpMatch() as op:
                if self._present(op, step, value, definer):
                    return True
                if not op.optional:
                    return False
                return op.through >= len(step.children) or self.fits(
                    step.children[op.through], value, definer
                )
            case AnyValue(value=rule):
                return self._view.value_miss(value, rule) is None
            case SameValue():
                return True
            case Alternatives():
                return any(self.fits(child, value, definer) for child in step.children)
            case PathTo() as path:
                end = step.children[0]
                _, values = self.chain(path, value)
                return self.fits(end, value, definer) or any(
                    self.fits_inside(end, v, self._view.definer(v)) for v in values[1:]
                )

    def _present(self, op: OpMatch, step: Step, value: onnx_ir.Value, k: int) -> bool:
        if not self.stands(op, value, k):
            return False
        operands = self._view.operands[k]
        return any(
            all(
                self.fits_inside(child, operand, definer)
                for child, (operand, definer) in zip(children, operands, strict=False)
            )
            for children in orders(op, step, operands)
        )

    def reach(self, root: Step, value: onnx_ir.Value, definer: int) -> set[int]:
        """Every node that some way of `root` at `value` might take, and perhaps more."""
        found: set[int] = set()
        seen: set[tuple[int, int]] = set()
        waiting = [(root, value, definer)]
        while waiting:
            step, value, definer = waiting.pop()
            key = (id(step), id(value))
            if key in seen or not self.fits(step, value, definer):
                continue
            seen.add(key)
            match step.pattern:
                case OpMatch() as op:
                    if self._present(op, step, value, definer):
                        found.add(definer)
                        operands = self._view.operands[definer]
                        for children in orders(op, step, operands):
                            for child, (operand, k) in zip(children, operands, strict=False):
                                if operand is not None:
                                    waiting.append((child, operand, k))
                    if op.optional and op.through < len(step.children):
                        waiting.append((step.children[op.through], value, definer))
                case PathTo() as path:
                    chain, values = self.chain(path, value)
                    found.update(chain)
                    waiting += [(step.children[0], v, self._view.definer(v)) for v in values]
                case Alternatives():
                    waiting += [(child, value, definer) for child in step.children]
                case _:
                    pass
        return found

    def stands(self, op: OpMatch, value: onnx_ir.Value, k: int) -> bool:
        """Whether node `k`, which defines `value`, is as `op` says, inputs apart."""
        view = self._view
        if k == OUTSIDE or k in self._dead or view.types[k] not in op.op_types:
            return False
        if view.nodes[k].outputs[0] is not value or len(op.inputs) > len(view.operands[k]):
            return False
        if op.attributes and view.attribute_miss(k, op.attributes) is not None:
            return False
        return op.value == FREE or view.value_miss(value, op.value) is None

    def chain(self, path: PathTo, value: onnx_ir.Value) -> tuple[list[int], list[onnx_ir.Value]]:
        """Nodes a path can pass from `value` back, and the values in front of each and behind the
        last: nodes with a single data operand (others constant) whose values do not leave."""
        view = self._view
        chain: list[int] = []
        values = [value]
        while len(chain) < path.max_nodes:
            k = view.definer(value)
            if k == OUTSIDE or k in self._dead or view.types[k] not in path.op_types:
                break
            operand = data_operand(view.operands[k])
            if view.nodes[k].outputs[0] is not value or operand is None:
                break
            if chain and view.leaves(k):
                break
            chain.append(k)
            values.append(operand)
            value = operand
        return chain, values


def orders(op: OpMatch, step: Step, operands: Operands) -> Iterator[tuple[Step, ...]]:
    """The patterns of the inputs as given, and with the first two swapped where that is allowed."""
    yield step.children
    if op.commutative and len(step.children) > 1 and operands[0][0] is not operands[1][0]:
        first, second, *rest = step.children
        yield (second, first, *rest)


def data_operand(operands: Operands) -> onnx_ir.Value | None:
    """The only operand that is not a constant; None when there are none or several."""
    found: onnx_ir.Value | None = None
    for value, _ in operands:
        if value is None or value.const_value is not None or value is found:
            continue
        if found is not None:
            return None
        found = value
    return found
