"""Instances of patterns: models made by walking a pattern from its root, in every number format.

Every choice of a pattern (an optional node, an alternative, one of several op types, a path's
length) is a switch.  The first instance takes the first way everywhere; each further one turns one
switch.  An instance that the target's own matcher would not take is a defect of the pattern.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from worker.compiler.frontend.ops.qcluster_call import ACTIVATIONS, CORES
from worker.compiler.ir.dtype import DType
from worker.compiler.machine.machine import AcceleratorTarget
from worker.compiler.machine.operator import is_foreign, split_foreign
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
from worker.conformance.case import Broken, Case, Expectation, Form, Untested
from worker.conformance.claims import NUMPY, rule_values
from worker.conformance.foreign import NoSample, foreign_recipe
from worker.conformance.form import (
    ACTIVATION,
    NO_FUNCTIONS,
    NODE,
    Functions,
    NoForm,
    Tail,
    assemble,
    attributes_of,
    quantized_form,
    run_onnx,
    tensor,
)
from worker.conformance.recipes import RECIPES
from worker.conformance.sample import OPSET, Array, OpRecipe, Request, Sample

_MAX_INSTANCES = 48
_INTEGERS = (DType.I8, DType.U8, DType.I16, DType.U16)
_DATA_SHAPE = (2, 3, 4, 5)


@dataclass(frozen=True, slots=True)
class PatternChecks:
    """Cases of one pattern, and the ways through it that no model can take."""

    cases: tuple[Case, ...]
    broken: tuple[Broken, ...]
    untested: tuple[Untested, ...] = ()


def pattern_cases(
    target: AcceleratorTarget, rule: PatternRule, functions: Functions = NO_FUNCTIONS
) -> PatternChecks:
    """Instances in every float and in the quantised form of every integer that the target has.

    `functions`: definitions of operators of foreign domains, by name.

    One for every turn of every switch of the pattern in the first format, and in the others as the
    pattern is written.  A target of other integers only has plain operators of the first.
    """
    offered = [d for d in NUMPY if d in target.capabilities.dtypes]
    forms = [(d, Form.PATTERN) for d in offered if d.is_float]
    forms += [(d, Form.PATTERN_QDQ) for d in offered if d in _INTEGERS]
    cases: list[Case] = []
    broken: list[Broken] = []
    untested: list[Untested] = []
    for number, (dtype, form) in enumerate(forms or [(offered[0], Form.PATTERN)]):
        made = _cases_of(target, rule, dtype, form, functions, is_first=number == 0)
        cases += made.cases
        broken += made.broken
        untested += made.untested
    return PatternChecks(tuple(cases), tuple(broken), tuple(untested))


def _cases_of(
    target: AcceleratorTarget,
    rule: PatternRule,
    dtype: DType,
    form: Form,
    functions: Functions,
    *,
    is_first: bool,
) -> PatternChecks:
    cases: list[Case] = []
    untested: list[Untested] = []
    broken: list[Broken] = []
    first = _Switches({})
    pending: list[Mapping[int, int]] = [{}]
    seen: set[bytes] = set()
    while pending and len(cases) + len(broken) < _MAX_INSTANCES:
        turned = pending.pop(0)
        switches = first if not turned else _Switches(turned)
        try:
            case = _instance(target, rule, dtype, form, switches, functions)
        except (_Several, NoSample) as error:
            claim = f"{dtype} {form} {switches.label(turned)}"
            untested.append(Untested(target.name, rule.name, claim, str(error)))
            case = None
        except NoForm as error:
            label = switches.label(turned)
            broken.append(Broken(target.name, rule.name, str(dtype), label, str(error)))
            case = None
        if not turned and is_first:
            pending += [
                {k: way} for k, ways in enumerate(switches.ways) for way in range(1, len(ways))
            ]
        if case is not None and case.model not in seen:
            seen.add(case.model)
            cases.append(replace(case, label=switches.label(turned)))
    return PatternChecks(tuple(cases), tuple(broken), tuple(untested))


class _Several(NoForm):
    """In quantised form the instance is no single integer operator."""


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
    target: AcceleratorTarget,
    rule: PatternRule,
    dtype: DType,
    form: Form,
    switches: _Switches,
    functions: Functions,
) -> Case:
    if form is Form.PATTERN_QDQ:
        return _quantised(target, rule, dtype, switches, functions)
    walk = _Walk(rule.name, dtype, switches, functions)
    root = walk.value(rule.root, None, None)
    model = walk.model([root.name])
    twin = b""
    if dtype in (DType.F16, DType.BF16):
        wide = _Walk(rule.name, DType.F32, _Switches(switches.turned), functions, NUMPY[dtype])
        result = wide.value(rule.root, None, None)
        twin = wide.model([result.name])
    return Case(
        target.name, rule.name, str(dtype), "", form, Expectation.PLACED, model,
        walk.feeds, tuple(node.name for node in walk.nodes), twin=twin,
    )  # fmt: skip


def _quantised(
    target: AcceleratorTarget,
    rule: PatternRule,
    dtype: DType,
    switches: _Switches,
    functions: Functions,
) -> Case:
    """The instance as one integer operator: a core and at most an activation.

    Its operators must be offered in the type by rows of their own, which a pattern is not about.
    """
    walk = _Walk(rule.name, DType.F32, switches, functions)
    root = walk.value(rule.root, None, None)
    if any(node.domain for node in walk.nodes):
        raise _Several("a quantised call is judged by the operators of its definition")
    core, *others = walk.nodes
    follows = [node for node in others if list(node.input[:1]) == [core.output[0]]]
    if core.op_type not in CORES or len(others) > 1 or follows != others or any(
        node.op_type not in ACTIVATIONS for node in others
    ):  # fmt: skip
        names = ", ".join(node.op_type for node in walk.nodes)
        raise _Several(f"{names} between integers are several operators, no composite")
    constants = {t.name: numpy_helper.to_array(t) for t in walk.tensors}
    arrays = {**constants, **walk.feeds}
    sample = Sample(
        tuple(arrays.get(name) for name in core.input),
        {a.name: helper.get_attribute_value(a) for a in core.attribute},
        frozenset(k for k, name in enumerate(core.input) if name in constants),
        len(core.output), walk.opset,
    )  # fmt: skip
    tail = None
    if others:
        result = run_onnx(walk.model([root.name]), walk.feeds)[root.name]
        own = tuple(t for t in walk.tensors if t.name in list(others[0].input))
        tail = Tail(others[0], own, result)
    built = quantized_form(core.op_type, sample, NUMPY[dtype], tail)
    nodes = (NODE, ACTIVATION) if others else (NODE,)
    return Case(
        target.name, rule.name, str(dtype), "", Form.PATTERN_QDQ, Expectation.IF_CLAIMED,
        built.model, built.feeds, nodes,
    )  # fmt: skip


class _Walk:
    """Builds one model from a pattern, operands before operators."""

    def __init__(
        self,
        name: str,
        dtype: DType,
        switches: _Switches,
        functions: Functions,
        rounded: np.dtype[Any] | None = None,
    ) -> None:
        """`rounded`: floats are those of this narrower type."""
        self._functions = functions
        self._dtype = dtype
        self._rounded = rounded
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
        if self._rounded is not None and array.dtype.kind == "f":
            array = array.astype(self._rounded).astype(array.dtype)
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
        recipe = self._recipe(op_type)
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
        domain, short = split_foreign(op_type) or ("", op_type)
        node = helper.make_node(
            short, names, [result, *(f"{result}_{k}" for k in range(1, sample.outputs))],
            name=f"{short}_{len(self.nodes)}", domain=domain or None, **attributes_of(sample),
        )  # fmt: skip
        self.nodes.append(node)
        self.opset = max(self.opset, sample.opset) if len(self.nodes) > 1 else sample.opset
        return self._bind(pattern.bind, self._result(result))

    def _sample(
        self, op_type: str, attributes: Mapping[str, AttributeValue], shape: tuple[int, ...] | None
    ) -> Sample:
        request = Request(NUMPY[self._dtype], self._rng, shape, attributes=attributes)
        try:
            return self._recipe(op_type).build(request)
        except NoSample:
            raise
        except (ValueError, IndexError) as error:
            raise NoForm(f"{op_type} has no instance on a tensor of shape {shape}") from error

    def _recipe(self, op_type: str) -> OpRecipe:
        recipe = foreign_recipe(op_type, self._functions) or RECIPES.get(op_type)
        if recipe is None and is_foreign(op_type):
            raise NoSample(f"the document has no definition of {op_type}: models bring it")
        if recipe is None:
            raise NoForm(f"{op_type} is not expressible")
        return recipe

    def model(self, outputs: Sequence[str]) -> bytes:
        """The model so far."""
        try:
            return assemble(
                self.nodes, self.feeds, self.tensors, outputs, self.opset, functions=self._functions
            )
        except NoForm as error:
            if not any(node.domain for node in self.nodes):
                raise
            # a definition need not be of every type that the target has
            raise NoSample(f"the definition is not of {self._dtype}: {error}") from error

    def _result(self, name: str) -> _Value:
        """Type and shape of a result, as ONNX infers them from the model so far."""
        found = onnx.load_from_string(self.model([name])).graph.output[0].type.tensor_type
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
