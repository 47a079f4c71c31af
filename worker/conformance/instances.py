"""Instances of patterns: models made by walking a pattern from its root.

Every choice of a pattern (an optional node, an alternative, one of several op types, a path's
length) is a switch.  The first instance takes the first way everywhere; each further one turns one
switch.  An instance that the target's own matcher would not take is a defect of the pattern.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any

import numpy as np
import onnx
from onnx import helper

from worker.compiler.ir.dtype import DType
from worker.compiler.machine.machine import AcceleratorTarget
from worker.compiler.machine.pattern import (
    Alternatives,
    AnyValue,
    AttributeRule,
    AttributeValue,
    OpMatch,
    PathTo,
    Pattern,
    PatternRule,
    SameValue,
    ValueRule,
)
from worker.conformance.case import Broken, Case, Expectation, Form
from worker.conformance.claims import NUMPY, rule_values
from worker.conformance.form import NoForm, assemble, attributes_of, tensor
from worker.conformance.recipes import RECIPES
from worker.conformance.sample import OPSET, Array, Request, Sample

_MAX_INSTANCES = 48
_DATA_SHAPE = (2, 3, 4, 5)


@dataclass(frozen=True, slots=True)
class PatternChecks:
    """Cases of one pattern, and the ways through it that no model can take."""

    cases: tuple[Case, ...]
    broken: tuple[Broken, ...]


def pattern_cases(target: AcceleratorTarget, rule: PatternRule) -> PatternChecks:
    """One instance for every turn of every switch of the pattern."""
    dtype = next(d for d in NUMPY if d in target.capabilities.dtypes)
    cases: list[Case] = []
    broken: list[Broken] = []
    first = _Switches({})
    pending: list[Mapping[int, int]] = [{}]
    seen: set[bytes] = set()
    while pending and len(cases) + len(broken) < _MAX_INSTANCES:
        turned = pending.pop(0)
        switches = first if not turned else _Switches(turned)
        try:
            case = _instance(target, rule, dtype, switches)
        except NoForm as error:
            label = switches.label(turned)
            broken.append(Broken(target.name, rule.name, str(dtype), label, str(error)))
            case = None
        if not turned:
            pending += [
                {k: way} for k, ways in enumerate(switches.ways) for way in range(1, len(ways))
            ]
        if case is not None and case.model not in seen:
            seen.add(case.model)
            cases.append(replace(case, label=switches.label(turned)))
    return PatternChecks(tuple(cases), tuple(broken))


@dataclass(slots=True)
class _Switches:
    """Which way an instance takes at each choice, in the order they are met."""

    turned: Mapping[int, int]
    ways: list[tuple[str, ...]] = field(default_factory=list)

    def choose(self, ways: tuple[str, ...]) -> int:
        """Position of the way to take; remembers what there was to choose from."""
        way = self.turned.get(len(self.ways), 0)
        self.ways.append(ways)
        return min(way, len(ways) - 1)

    def label(self, turned: Mapping[int, int]) -> str:
        if not turned:
            return "as written"
        return ", ".join(self.ways[k][way] for k, way in turned.items() if k < len(self.ways))


@dataclass(frozen=True, slots=True)
class _Value:
    """A tensor of the model under construction."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]


def _instance(
    target: AcceleratorTarget, rule: PatternRule, dtype: DType, switches: _Switches
) -> Case:
    walk = _Walk(rule.name, dtype, switches)
    root = walk.value(rule.root, None, None)
    model = assemble(walk.nodes, walk.feeds, walk.tensors, [root.name], walk.opset)
    return Case(
        target.name, rule.name, str(dtype), "", Form.PATTERN, Expectation.PLACED, model,
        walk.feeds, tuple(node.name for node in walk.nodes),
    )  # fmt: skip


class _Walk:
    """Builds one model from a pattern, operands before operators."""

    def __init__(self, name: str, dtype: DType, switches: _Switches) -> None:
        self._dtype = dtype
        self._switches = switches
        seed = int.from_bytes(sha256(name.encode()).digest()[:8], "little")
        self._rng = np.random.default_rng(seed)
        self._bound: dict[str, _Value] = {}
        self.nodes: list[onnx.NodeProto] = []
        self.feeds: dict[str, Array] = {}
        self.tensors: list[onnx.TensorProto] = []
        self.opset = OPSET

    def value(
        self, pattern: Pattern, wanted: Array | None, shape: tuple[int, ...] | None
    ) -> _Value:
        """The value a pattern describes.  `wanted`: what an operator above would have there."""
        match pattern:
            case AnyValue(value=rule, bind=bind):
                return self._bind(bind, self._leaf(rule, wanted, shape))
            case SameValue(bind=bind):
                if bind not in self._bound:
                    raise NoForm(f"{bind!r} is bound after it is used")
                return self._bound[bind]
            case Alternatives(options=options):
                names = tuple(f"alternative {k + 1}" for k in range(len(options)))
                return self.value(options[self._switches.choose(names)], wanted, shape)
            case PathTo(op_types=names, end=end):
                ways = ("no step", *names) if names else ("no step",)
                way = self._switches.choose(ways)
                if way == 0:
                    return self.value(end, wanted, shape)
                step = OpMatch((names[way - 1],), (end,))
                return self._operator(step, wanted, shape, is_step=True)
            case OpMatch():
                return self._operator(pattern, wanted, shape)

    def _bind(self, bind: str | None, value: _Value) -> _Value:
        if bind is not None:
            self._bound[bind] = value
        return value

    def _leaf(self, rule: ValueRule, wanted: Array | None, shape: tuple[int, ...] | None) -> _Value:
        dtype = next((d for d in NUMPY if d in rule.dtypes), self._dtype)
        dims = wanted.shape if wanted is not None else (shape or _DATA_SHAPE)
        if rule.shape is not None:
            dims = tuple(
                (dims[k] if k < len(dims) else 2) if bounds is None
                else min(max(dims[k] if k < len(dims) else 2, bounds[0]), bounds[1])
                for k, bounds in enumerate(rule.shape)
            )  # fmt: skip
        elif rule.rank is not None and not rule.rank[0] <= len(dims) <= rule.rank[1]:
            rank = min(max(len(dims), rule.rank[0]), rule.rank[1])
            dims = _DATA_SHAPE[:rank] if rank <= 4 else (*(1,) * (rank - 4), *_DATA_SHAPE)
        own = wanted is not None and wanted.shape == dims
        if own and wanted is not None and (not rule.dtypes or wanted.dtype == NUMPY[dtype]):
            array = wanted
        else:
            array = Request(NUMPY[dtype], self._rng).values(dims)
        return self._operand(array, rule.constant is True)

    def _operand(self, array: Array, is_constant: bool) -> _Value:
        name = f"x{len(self.feeds) + len(self.tensors)}"
        if is_constant:
            self.tensors.append(tensor(array, name))
        else:
            self.feeds[name] = array
        return _Value(name, array.shape, array.dtype)

    def _operator(
        self,
        pattern: OpMatch,
        wanted: Array | None,
        shape: tuple[int, ...] | None,
        is_step: bool = False,
    ) -> _Value:
        """An operator and its operands; those of a path's step are constants beside its data."""
        if pattern.optional and self._switches.choose(("with", f"without {pattern.op_types[0]}")):
            inner = pattern.inputs[pattern.through] if pattern.inputs else AnyValue()
            return self._bind(pattern.bind, self.value(inner, wanted, shape))
        op_type = pattern.op_types[self._switches.choose(pattern.op_types)]
        recipe = RECIPES.get(op_type)
        if recipe is None:
            raise NoForm(f"{op_type} is not expressible")
        attributes = {rule.name: _allowed(rule) for rule in pattern.attributes if rule_values(rule)}
        made: dict[int, _Value] = {}
        for k in _deepest_first(pattern):
            guide = self._sample(op_type, attributes, _first_shape(made, shape))
            hint = guide.inputs[k] if k < len(guide.inputs) else None
            beside = next(iter(made.values())).shape if made else shape
            like = None if made and recipe.is_elementary and k < 2 else hint
            made[k] = self.value(pattern.inputs[k], like, beside)
        sample = self._sample(op_type, attributes, _first_shape(made, shape))
        names: list[str] = []
        for k in range(max(len(sample.inputs), len(pattern.inputs))):
            if k in made:
                names.append(made[k].name)
                continue
            array = sample.inputs[k]
            is_data = k == 0 or (recipe.is_elementary and k not in sample.constants)
            is_data = is_data and not is_step
            name = "" if array is None else self._operand(array, not is_data).name
            names.append(name)
        result = f"t{len(self.nodes)}"
        node = helper.make_node(
            op_type, names, [result, *(f"{result}_{k}" for k in range(1, sample.outputs))],
            name=f"{op_type}_{len(self.nodes)}", **attributes_of(sample),
        )  # fmt: skip
        self.nodes.append(node)
        self.opset = max(self.opset, sample.opset)
        return self._bind(pattern.bind, self._result(result))

    def _sample(
        self, op_type: str, attributes: Mapping[str, AttributeValue], shape: tuple[int, ...] | None
    ) -> Sample:
        request = Request(NUMPY[self._dtype], self._rng, shape, attributes=attributes)
        try:
            return RECIPES[op_type].build(request)
        except (ValueError, IndexError) as error:
            raise NoForm(f"{op_type} has no instance on a tensor of shape {shape}") from error

    def _result(self, name: str) -> _Value:
        """Type and shape of a result, as ONNX infers them from the model so far."""
        model = assemble(self.nodes, self.feeds, self.tensors, [name], self.opset)
        found = onnx.load_from_string(model).graph.output[0].type.tensor_type
        dims = tuple(d.dim_value for d in found.shape.dim)
        return _Value(name, dims, helper.tensor_dtype_to_np_dtype(found.elem_type))


def _deepest_first(pattern: OpMatch) -> list[int]:
    """Operands that are operators before leaves: they decide the shapes of the others."""
    ranked = sorted(
        range(len(pattern.inputs)),
        key=lambda k: (isinstance(pattern.inputs[k], AnyValue | SameValue), k),
    )
    bound = [k for k in ranked if not isinstance(pattern.inputs[k], SameValue)]
    return bound + [k for k in ranked if isinstance(pattern.inputs[k], SameValue)]


def _first_shape(
    made: Mapping[int, _Value], shape: tuple[int, ...] | None
) -> tuple[int, ...] | None:
    """Shape of the first operand, where it is known by now."""
    if 0 in made:
        return made[0].shape
    return next(iter(made.values())).shape if made else shape


def _allowed(rule: AttributeRule) -> AttributeValue:
    return rule_values(rule)[0]
