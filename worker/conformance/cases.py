"""All checks of a machine: every rule of every target, turned into models.

Order: targets as in the document, op types as listed, element types from wide to narrow.  The same
machine gives the same models, bytes included.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from hashlib import sha256

import numpy as np
import onnx_ir

from worker.compiler.frontend.declared import declared_functions
from worker.compiler.frontend.express import rejection
from worker.compiler.frontend.ops.call import DTYPES
from worker.compiler.frontend.ops.qcluster_call import CORES
from worker.compiler.ir.dtype import DType
from worker.compiler.machine.machine import AcceleratorTarget, Machine, OpSupport
from worker.compiler.machine.operator import is_foreign
from worker.compiler.machine.pattern import AnyValue, OpMatch, PatternRule, ValueRule
from worker.compiler.machine.rule import Clause
from worker.compiler.partition.attributes import attribute_value
from worker.compiler.partition.conditions import Miss, Subject, clause_miss
from worker.compiler.partition.quantities import quantity
from worker.compiler.partition.rules import FREE_DTYPES
from worker.compiler.partition.vendor_rows import rows_of
from worker.conformance.case import Broken, Case, Expectation, Form, Suite, Untested
from worker.conformance.claims import (
    NUMPY,
    Base,
    Claim,
    attribute_claims,
    base_of,
    limit_claims,
    node_named,
    outside_attributes,
    outside_limits,
    rank_claims,
    variant_claims,
)
from worker.conformance.form import (
    NODE,
    REJECTED,
    NoForm,
    native_form,
    quantized_form,
)
from worker.conformance.instances import pattern_cases
from worker.conformance.recipes import RECIPES
from worker.conformance.sample import OPSET, Sample

_INTEGER_FORMS = (DType.I8, DType.U8, DType.I16, DType.U16)
_BARE_DTYPES = (DType.F16, DType.BF16)
_QUICK_ONE_IN = 12
_FIRST_QUANTIZED_OPSET = 10
_ODD_DTYPES = (DType.F32, DType.F16, DType.I8, DType.U8, DType.I16)
"""Types tried where an op is limited to others."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Which checks are wanted."""

    op_types: tuple[str, ...] = ()
    """Empty: all, patterns included."""
    is_quick: bool = False
    """The plain instance of every op, and a fixed sample of the others."""

    def wants(self, op_type: str) -> bool:
        return not self.op_types or op_type in self.op_types

    def takes(self, claim: Claim, is_first: bool) -> bool:
        if not self.is_quick or is_first:
            return True
        text = f"{claim.op_type}/{claim.dtype}/{claim.form}/{claim.label}"
        return int.from_bytes(sha256(text.encode()).digest()[:4], "little") % _QUICK_ONE_IN == 0


def conformance_suite(machine: Machine, selection: Selection = Selection()) -> Suite:
    """Every check of a machine.

    Cost: a model of a few nodes per check; quantised ones run once in ONNX Runtime for their scale.
    """
    builder = _Builder(machine, selection)
    for target in machine.targets:
        builder.target(target)
    return Suite(tuple(builder.cases), tuple(builder.broken), tuple(builder.untested))


class _Builder:
    """Grows one suite."""

    def __init__(self, machine: Machine, selection: Selection) -> None:
        self._machine = machine
        self._selection = selection
        self._functions = declared_functions(machine.operators)
        self.cases: list[Case] = []
        self.broken: list[Broken] = []
        self.untested: list[Untested] = []

    def target(self, target: AcceleratorTarget) -> None:
        for support in target.capabilities.ops:
            if self._selection.wants(support.op_type) and not is_foreign(support.op_type):
                self._op(target, support)
        for rule in rows_of(target):
            if self._selection.wants(rule.name):
                made = pattern_cases(target, self._instance_of(target, rule), self._functions)
                kept = made.cases[:1] if self._selection.is_quick else made.cases
                row = target.capabilities.support(rule.name)
                if row is not None and (row.limits or row.conditions):
                    # what suits the definition may lie outside what the row demands of sizes
                    kept = tuple(replace(c, expectation=Expectation.IF_CLAIMED) for c in kept)
                self.cases.extend(kept)
                self.broken.extend(made.broken)
                self.untested.extend(made.untested)

    def _instance_of(self, target: AcceleratorTarget, rule: PatternRule) -> PatternRule:
        """The row, with what a row of `ops` demands of attributes written into its pattern."""
        support = target.capabilities.support(rule.name)
        if support is None or not is_foreign(rule.name):
            return rule
        positions = range(max(support.constant_inputs, default=-1) + 1)
        inputs = tuple(AnyValue(ValueRule(constant=k in support.constant_inputs or None))
                       for k in positions)  # fmt: skip
        return replace(rule, root=OpMatch((rule.name,), inputs, support.attributes))

    def _op(self, target: AcceleratorTarget, support: OpSupport) -> None:
        op_type = support.op_type
        if op_type not in RECIPES:
            self._break(target, support, "", "claim", f"claimed but {_inexpressible(op_type)}")
            return
        offered = support.dtypes or target.capabilities.dtypes
        dtypes = [d for d in NUMPY if d in offered]
        native = [d for d in dtypes if _takes(op_type, d)]
        for dtype in dtypes:
            why = _why_not(op_type, dtype)
            if why.startswith(REJECTED):  # ONNX lists the type, and contradicts itself
                self._skip(target, support, f"{dtype} native", why)
        floats = any(d.is_float for d in offered)
        integer = [
            d
            for d in dtypes
            if d in _INTEGER_FORMS
            and (op_type in CORES or not (floats or d in native))
            and _takes(op_type, DType.F32)
            and has_quantized_form(op_type)
        ]
        if not native and not integer:
            names = " or ".join(offered)
            self._break(
                target, support, "", "claim", f"claimed, but ONNX has no {op_type} of {names}"
            )
            return
        for form, found in ((Form.NATIVE, native), (Form.QDQ, integer)):
            for k, dtype in enumerate(found):
                self._form(target, support, dtype, form, k == 0)

    def _form(
        self,
        target: AcceleratorTarget,
        support: OpSupport,
        dtype: DType,
        form: Form,
        is_first: bool,
    ) -> None:
        base = self._base(target, support, dtype, form)
        if base is None:
            return
        op_type, recipe = support.op_type, RECIPES[support.op_type]
        plain = Claim(
            op_type, dtype, form, "plain", quantities=base.quantities, attributes=base.attributes
        )
        claims = [plain]
        claims += limit_claims(support, base, dtype, form)
        claims += attribute_claims(support, base, dtype, form)
        if recipe.is_pointwise:
            most = target.capabilities.max_rank
            sweep = form is Form.NATIVE and is_first
            ranks = tuple(range(1, most + 1)) if sweep else tuple(dict.fromkeys((1, most)))
            claims += rank_claims(support, base, dtype, form, ranks)
        if is_first:
            claims += variant_claims(support, recipe, base, dtype, form)
            claims += self._outside(target, support, base, dtype, form)
        for claim in claims:
            if self._selection.takes(claim, is_first and claim is plain):
                self._build(target, support, claim)

    def _base(
        self, target: AcceleratorTarget, support: OpSupport, dtype: DType, form: Form
    ) -> Base | None:
        """What keeps instances inside the rules; None when nothing does."""
        op_type = support.op_type
        claim = Claim(op_type, dtype, form, "plain")
        try:
            sample = claim.sample(RECIPES[op_type], support.constant_inputs)
            node = node_named(native_form(op_type, sample).model, NODE)
        except NoForm as error:
            self._break(target, support, dtype, "plain", str(error))
            return None
        plain: dict[str, int] = {}
        for name, _, _ in support.limits:
            actual = quantity(node, name, OPSET)
            if actual is not None:
                plain[name] = actual
            elif form is Form.NATIVE:
                self._skip(target, support, name, f"{op_type} has no {name}")
        values = {rule.name: attribute_value(node, rule.name, OPSET) for rule in support.attributes}
        return base_of(support, plain, values)

    def _outside(
        self,
        target: AcceleratorTarget,
        support: OpSupport,
        base: Base,
        dtype: DType,
        form: Form,
    ) -> Iterator[Claim]:
        """Instances just outside each rule, which must stay on the host."""
        for claim, what in (
            *outside_limits(support, base, dtype, form),
            *outside_attributes(support, base, dtype, form),
        ):
            if claim is None:
                self._skip(target, support, what, "no affordable instance lies outside")
            else:
                yield claim
        plain = Claim(
            support.op_type, dtype, form, "", Expectation.REFUSED, base.quantities, base.attributes
        )
        for k in support.constant_inputs:
            yield replace(
                plain, label=f"outside: input {k} computed", computed=k,
                reason_code="CONSTANT_INPUT", reason_word=f"input {k}",
            )  # fmt: skip
        if form is Form.NATIVE and support.dtypes:
            other = self._other_dtype(target, support)
            if other is not None:
                yield replace(
                    plain, label=f"outside: {other}", dtype=other,
                    reason_code="CAPABILITY_DTYPE", reason_word=str(other),
                )  # fmt: skip
        most = target.capabilities.max_rank
        if RECIPES[support.op_type].is_pointwise and not base.quantities:
            rank = most + 1
            yield from (
                replace(
                    claim, label=f"outside: rank={rank}", expectation=Expectation.REFUSED,
                    reason_code="CAPABILITY_RANK", reason_word="rank",
                )
                for claim in rank_claims(support, base, dtype, form, (rank,))
            )  # fmt: skip

    def _other_dtype(self, target: AcceleratorTarget, support: OpSupport) -> DType | None:
        """A type that ONNX has for the operator and its rule does not."""
        converted = {d for c in target.conversions for d in c.sources}
        return next(
            (
                d
                for d in _ODD_DTYPES
                if d not in support.dtypes
                and d not in FREE_DTYPES
                and d not in converted
                and _takes(support.op_type, d)
            ),
            None,
        )

    def _build(self, target: AcceleratorTarget, support: OpSupport, claim: Claim) -> None:
        try:
            sample = claim.sample(RECIPES[claim.op_type], support.constant_inputs)
            missed = _missed(claim, sample)
            if missed:
                self._skip(target, support, claim.label, missed)
                return
            other = _broken_condition(support, claim, sample)
            if other is not None:
                claim = replace(
                    claim, label=f"outside: {claim.label}", expectation=Expectation.REFUSED,
                    reason_code=str(other.code), reason_word=other.pointer,
                )  # fmt: skip
            case = _case(target.name, claim, sample)
        except NoForm as error:
            if claim.expectation is Expectation.PLACED and not claim.aimed:
                self._break(target, support, claim.dtype, claim.label, str(error))
            else:
                self._skip(target, support, f"{claim.dtype} {claim.label}", str(error))
            return
        self.cases.append(case)

    def _break(
        self, target: AcceleratorTarget, support: OpSupport, dtype: str, label: str, why: str
    ) -> None:
        self.broken.append(Broken(target.name, support.op_type, dtype, label, why))

    def _skip(self, target: AcceleratorTarget, support: OpSupport, claim: str, why: str) -> None:
        self.untested.append(Untested(target.name, support.op_type, claim, why))


def _case(target: str, claim: Claim, sample: Sample) -> Case:
    if claim.form is Form.QDQ:
        built = quantized_form(claim.op_type, sample, NUMPY[claim.dtype])
        twin = b""
    else:
        built = native_form(claim.op_type, sample)
        twin = _twin(claim, sample)
    return Case(
        target, claim.op_type, str(claim.dtype), claim.label, claim.form, claim.expectation,
        built.model, built.feeds, (NODE,), claim.reason_code, claim.reason_word, twin,
    )  # fmt: skip


def _twin(claim: Claim, sample: Sample) -> bytes:
    """The same operator on the same numbers in f32, where the format is a narrow float."""
    if claim.dtype not in _BARE_DTYPES:
        return b""
    own = NUMPY[claim.dtype]
    wide = tuple(
        a.astype(np.float32) if a is not None and a.dtype == own else a for a in sample.inputs
    )
    try:
        return native_form(claim.op_type, replace(sample, inputs=wide)).model
    except NoForm:  # an operator of narrow floats only
        return b""


def _broken_condition(support: OpSupport, claim: Claim, sample: Sample) -> Miss | None:
    """What the row's conditions refuse of an instance that keeps its other rules."""
    if not support.conditions or claim.expectation is not Expectation.PLACED:
        return None
    node = node_named(native_form(claim.op_type, sample).model, NODE)
    floats = [element for element, dtype in DTYPES.items() if dtype.is_float]
    is_quantised = claim.form is Form.QDQ
    subject = Subject(node, OPSET, "", dict.fromkeys(floats, claim.dtype) if is_quantised else {})
    return clause_miss(subject, Clause(conditions=support.conditions))


def _missed(claim: Claim, sample: Sample) -> str:
    """Why the built instance is not the one aimed at, or an empty string."""
    if not claim.aimed:
        return ""
    node = node_named(native_form(claim.op_type, sample).model, NODE)
    for name, value in claim.aimed:
        actual = quantity(node, name, OPSET)
        if actual != value:
            return f"the instance has {name}={actual}"
    return ""


@cache
def has_quantized_form(op_type: str) -> bool:
    """Whether the operator exists in an opset that can quantise its operands."""
    plain = Claim(op_type, DType.F32, Form.NATIVE, "plain").request()
    return RECIPES[op_type].build(plain).opset >= _FIRST_QUANTIZED_OPSET


@cache
def _takes(op_type: str, dtype: DType) -> bool:
    """Whether ONNX has the operator for this type, and accepts its plain instance."""
    return not _why_not(op_type, dtype)


@cache
def _why_not(op_type: str, dtype: DType) -> str:
    """Why there is no plain instance of the operator in this type; empty where there is one."""
    request = Claim(op_type, dtype, Form.NATIVE, "plain").request()
    try:
        native_form(op_type, RECIPES[op_type].build(request))
    except NoForm as error:
        return str(error)
    return ""


def _inexpressible(op_type: str) -> str:
    """Why the algebra has no such operator."""
    found = rejection(onnx_ir.Node("", op_type, inputs=[], name=NODE), OPSET)
    assert found is not None, f"{op_type} can be expressed but has no recipe"
    return f"not expressible: {found.sentence}"
