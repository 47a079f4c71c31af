"""What a target claims of one op type, as instances to ask for: corners, variants, outsiders.

In: a rule of the document and the operator's recipe.  Out: claims, light values that name an
instance without building it, in a fixed order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from types import MappingProxyType

import ml_dtypes
import numpy as np
import onnx_ir

from worker.compiler.ir.dtype import DType
from worker.compiler.machine.machine import OpSupport
from worker.compiler.machine.pattern import AttributeRule, AttributeValue
from worker.conformance.case import Expectation, Form
from worker.conformance.sample import OpRecipe, Request, Sample, shape_of_rank

AFFORDABLE: Mapping[str, int] = MappingProxyType(
    {
        "batch": 16, "depthwise": 1, "dilation_h": 16, "dilation_w": 16, "elements": 1 << 16,
        "group": 64, "height": 512, "in_channels": 4096, "kernel_h": 256, "kernel_size": 1024,
        "kernel_w": 256, "macs": 1 << 20, "out_channels": 4097, "pad_h": 32, "pad_w": 32,
        "rank": 12, "stride_h": 16, "stride_w": 16, "weight_elements": 1 << 16, "width": 512,
    }
)  # fmt: skip
"""Largest value of each quantity that a case tries: beyond it, a claim is tested up to here."""
_TOGETHER: Mapping[str, int] = MappingProxyType(
    {
        "batch": 2, "dilation_h": 2, "dilation_w": 2, "elements": 4096, "group": 4, "height": 32,
        "in_channels": 32, "kernel_h": 8, "kernel_size": 64, "kernel_w": 8, "macs": 4096,
        "out_channels": 64, "weight_elements": 4096, "width": 32,
    }
)  # fmt: skip
"""The same where all quantities are large at once."""
LEAST: Mapping[str, int] = MappingProxyType({"depthwise": 0, "pad_h": 0, "pad_w": 0})
"""Smallest value that exists; 1 for the others."""
NUMPY: Mapping[DType, np.dtype[np.generic]] = MappingProxyType(
    {
        DType.F32: np.dtype(np.float32), DType.F16: np.dtype(np.float16),
        DType.BF16: np.dtype(ml_dtypes.bfloat16), DType.F64: np.dtype(np.float64),
        DType.I8: np.dtype(np.int8), DType.U8: np.dtype(np.uint8),
        DType.I16: np.dtype(np.int16), DType.U16: np.dtype(np.uint16),
        DType.I32: np.dtype(np.int32), DType.U32: np.dtype(np.uint32),
        DType.I64: np.dtype(np.int64), DType.U64: np.dtype(np.uint64),
        DType.BOOL: np.dtype(np.bool_),
    }
)  # fmt: skip
"""Element types as arrays hold them, in the order in which the first one gets the full sweep."""
_FEW_SUMMANDS = frozenset({"Conv", "ConvTranspose"})
_NO_QUANTITIES: Mapping[str, int] = MappingProxyType({})
_NO_ATTRIBUTES: Mapping[str, AttributeValue] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Claim:
    """One instance to build."""

    op_type: str
    dtype: DType
    form: Form
    label: str
    expectation: Expectation = Expectation.PLACED
    quantities: Mapping[str, int] = field(default_factory=lambda: _NO_QUANTITIES)
    attributes: Mapping[str, AttributeValue] = field(default_factory=lambda: _NO_ATTRIBUTES)
    shape: tuple[int, ...] | None = None
    variant: str = ""
    aimed: tuple[tuple[str, int], ...] = ()
    """Quantities that the built instance must really have."""
    computed: int | None = None
    """Input position that must not be a constant."""
    reason_code: str = ""
    reason_word: str = ""

    def request(self) -> Request:
        """What the recipe is asked; the same numbers every time."""
        text = f"{self.op_type}/{self.dtype}/{self.form}/{self.label}"
        seed = int.from_bytes(sha256(text.encode()).digest()[:8], "little")
        dtype = DType.F32 if self.form is Form.QDQ else self.dtype
        quantities = self.quantities
        if self.form is Form.QDQ and self.dtype.size_bytes > 1 and self.op_type in _FEW_SUMMANDS:
            quantities = {"in_channels": 1, **quantities}  # sums of 16-bit numbers must fit i32
        return Request(
            NUMPY[dtype], np.random.default_rng(seed), self.shape, quantities,
            self.attributes, self.variant,
        )  # fmt: skip

    def sample(self, recipe: OpRecipe, fixed: tuple[int, ...]) -> Sample:
        """Operands, with the inputs that the target wants constant made so."""
        request = self.request()
        if self.form is Form.QDQ and not self.variant:
            request = replace(request, variant=recipe.integer_variant)
        made = recipe.build(request)
        constants = made.constants | {k for k in fixed if k < len(made.inputs)}
        if self.computed is not None:
            constants -= {self.computed}
        return replace(made, constants=constants)


@dataclass(frozen=True, slots=True)
class Base:
    """What every instance of an op keeps so as to stay inside the rules it is not about."""

    quantities: Mapping[str, int]
    attributes: Mapping[str, AttributeValue]


def base_of(support: OpSupport, plain: Mapping[str, int], values: Mapping[str, object]) -> Base:
    """`plain`: quantities of the recipe's own instance; `values`: its attributes by name."""
    quantities = {
        name: min(max(plain[name], low), high)
        for name, low, high in support.limits
        if name in plain and not low <= plain[name] <= high
    }
    attributes: dict[str, AttributeValue] = {}
    for rule in support.attributes:
        if rule.allowed and values.get(rule.name) not in rule.allowed:
            attributes[rule.name] = rule.allowed[0]
    return Base(quantities, attributes)


def corner_values(name: str, low: int, high: int) -> tuple[tuple[int, str], ...]:
    """(value, label) of one limit: its ends and a value between."""
    first = max(low, LEAST.get(name, 1))
    last = min(high, AFFORDABLE[name])
    if last < first:
        return ()
    clipped = f" (of {high})" if last < high else ""
    found = {first: "", (first + last) // 2: "", last: clipped}
    return tuple((value, f"{name}={value}{found[value]}") for value in sorted(found))


def limit_claims(support: OpSupport, base: Base, dtype: DType, form: Form) -> Iterator[Claim]:
    """Every limited quantity at its ends and between, one at a time, then all at their largest."""
    for name, low, high in support.limits:
        for value, label in corner_values(name, low, high):
            yield Claim(
                support.op_type, dtype, form, label,
                quantities={**base.quantities, name: value}, attributes=base.attributes,
                aimed=((name, value),),
            )  # fmt: skip
    if len(support.limits) > 1:
        most = {
            name: max(low, min(high, _TOGETHER.get(name, AFFORDABLE[name])))
            for name, low, high in support.limits
            if name not in ("macs", "weight_elements", "elements")
        }
        yield Claim(
            support.op_type, dtype, form, "all limits", quantities={**base.quantities, **most},
            attributes=base.attributes,
        )  # fmt: skip


def attribute_claims(support: OpSupport, base: Base, dtype: DType, form: Form) -> Iterator[Claim]:
    """Every allowed value of every attribute rule, and the ends of its bounds."""
    for rule in support.attributes:
        for value in rule_values(rule):
            yield Claim(
                support.op_type, dtype, form, f"{rule.name}={_text(value)}",
                quantities=base.quantities, attributes={**base.attributes, rule.name: value},
            )  # fmt: skip


def rule_values(rule: AttributeRule) -> tuple[AttributeValue, ...]:
    """Values an attribute rule allows that are worth a case."""
    ends = tuple(
        int(end) if float(end).is_integer() else end
        for end in (rule.minimum, rule.maximum)
        if end is not None
    )
    return tuple(dict.fromkeys((*rule.allowed, *ends)))


def outside_limits(
    support: OpSupport, base: Base, dtype: DType, form: Form
) -> Iterator[tuple[Claim | None, str]]:
    """(a claim just outside, what it is about) per end of a limit; None: there is no such value."""
    for name, low, high in support.limits:
        ends = [high + 1]
        if low - 1 >= LEAST.get(name, 1):
            ends.insert(0, low - 1)
        for value in ends:
            if value > AFFORDABLE[name]:
                yield None, f"{name}={value}"
                continue
            yield (
                Claim(
                    support.op_type, dtype, form, f"outside: {name}={value}", Expectation.REFUSED,
                    {**base.quantities, name: value}, base.attributes, aimed=((name, value),),
                    reason_code="CAPABILITY_ATTRIBUTE", reason_word=name,
                ),
                f"{name}={value}",
            )  # fmt: skip


def outside_attributes(
    support: OpSupport, base: Base, dtype: DType, form: Form
) -> Iterator[tuple[Claim | None, str]]:
    """The same for attribute rules: the integer next to what is allowed."""
    for rule in support.attributes:
        numbers = [v for v in rule_values(rule) if isinstance(v, int)]
        if not numbers:
            yield None, f"{rule.name} outside"
            continue
        value = max(numbers) + 1
        if rule.allowed == () and rule.maximum is None:
            value = min(numbers) - 1
        yield (
            Claim(
                support.op_type, dtype, form, f"outside: {rule.name}={value}",
                Expectation.REFUSED, base.quantities, {**base.attributes, rule.name: value},
                reason_code="CAPABILITY_ATTRIBUTE", reason_word=rule.name,
            ),
            f"{rule.name}={value}",
        )  # fmt: skip


def rank_claims(
    support: OpSupport, base: Base, dtype: DType, form: Form, ranks: tuple[int, ...]
) -> Iterator[Claim]:
    """Instances of several ranks of an operator that takes any shape."""
    if base.quantities.keys() & {"rank", "elements"}:
        return
    for rank in ranks:
        yield Claim(
            support.op_type, dtype, form, f"rank={rank}", quantities=base.quantities,
            attributes=base.attributes, shape=shape_of_rank(rank), aimed=(("rank", rank),),
        )  # fmt: skip


def variant_claims(
    support: OpSupport, recipe: OpRecipe, base: Base, dtype: DType, form: Form
) -> Iterator[Claim]:
    """Shapes of the operator that the document does not mention."""
    for variant in recipe.variants:
        if isinstance(variant, str):
            label, quantities, name = variant, base.quantities, variant
        else:
            label = ", ".join(f"{n}={v}" for n, v in variant.items())
            quantities, name = {**base.quantities, **variant}, ""
        yield Claim(
            support.op_type, dtype, form, label, Expectation.IF_CLAIMED, quantities,
            base.attributes, variant=name,
        )  # fmt: skip


def node_named(model: bytes, name: str) -> onnx_ir.Node:
    """A node of a serialised model, with shapes and constants."""
    import onnx

    found = onnx_ir.serde.deserialize_model(onnx.load_from_string(model))
    return next(node for node in found.graph if node.name == name)


def _text(value: AttributeValue) -> str:
    return "x".join(map(str, value)) if isinstance(value, tuple) else str(value)
