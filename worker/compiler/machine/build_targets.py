"""The accelerator targets of a checked hardware spec: op rules, patterns, criteria, conversions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from worker.compiler.ir.dtype import DType
from worker.compiler.machine.layout_policy import LayoutPolicy
from worker.compiler.machine.machine import (
    AcceleratorTarget,
    Capabilities,
    Conversion,
    Criteria,
    LaunchUnit,
    OpSupport,
    PartitionMode,
)
from worker.compiler.machine.pattern import (
    Alternatives,
    AnyValue,
    AttributeRule,
    OpMatch,
    PathTo,
    Pattern,
    PatternRule,
    SameValue,
    ValueRule,
)
from worker.compiler.machine.presets import op_groups
from worker.compiler.machine.quantity import Quantity
from worker.compiler.machine.rule import (
    BYTES_OF_LEVEL,
    AnyOf,
    Clause,
    Comparison,
    Condition,
    Factor,
    Relation,
    Term,
)
from worker.compiler.machine.spec import (
    AttributeSpec,
    CapabilitiesSpec,
    ClauseSpec,
    ConditionSpec,
    ConversionSpec,
    HardwareSpec,
    LimitSpec,
    NodeSpec,
    PartitionSpec,
    PatternSpec,
    TermSpec,
)

ONLY_TARGET = "accelerator"
"""Name of the target of a document that has `capabilities` instead of `targets`."""


@dataclass(frozen=True, slots=True)
class _Places:
    """What rows are told of the rest of the document."""

    bytes_of_level: Mapping[str, int]
    """What one instance holds beside its reserve."""
    user_pointer: Callable[[str], str]
    """From a place in the resolved document to the user's own."""


def build_targets(
    spec: HardwareSpec, levels: Mapping[str, int], user_pointer: Callable[[str], str]
) -> tuple[AcceleratorTarget, ...]:
    """Targets of a spec, highest priority first, ties in the order of the document.

    `levels`: usable bytes of one instance of each memory level; `user_pointer` translates places of
    the resolved document.
    """
    places = _Places(levels, user_pointer)
    if spec.capabilities is not None:
        at = "/capabilities"
        return (_target(ONLY_TARGET, 0, (), (None, None), spec.capabilities, at, places),)
    found = [
        _target(
            t.name, _int(t.priority, 0), tuple(t.engines),
            (_maybe(t.launch_latency_cycles), _maybe(t.launch_gap_cycles)), t.capabilities,
            f"/targets/{k}/capabilities", places,
        )
        for k, t in enumerate(spec.targets)
    ]  # fmt: skip
    return tuple(sorted(found, key=lambda target: -target.priority))


def _int(quantity: Quantity | None, default: int) -> int:
    return default if quantity is None else int(quantity.value)


def _maybe(quantity: Quantity | None) -> int | None:
    return None if quantity is None else int(quantity.value)


def _target(
    name: str,
    priority: int,
    engines: tuple[str, ...],
    launch: tuple[int | None, int | None],
    spec: CapabilitiesSpec,
    at: str,
    places: _Places,
) -> AcceleratorTarget:
    return AcceleratorTarget(
        name=name,
        capabilities=_capabilities(spec, at, places),
        priority=priority,
        engines=engines,
        criteria=_criteria(spec.partition),
        conversions=tuple(_conversion(c) for c in spec.conversions),
        layout=None
        if spec.layout is None
        else LayoutPolicy(
            spec.layout.activations, spec.layout.weights, tuple(spec.layout.op_types)
        ),
        launch_unit=LaunchUnit(spec.launch_unit),
        launch_latency_cycles=launch[0],
        launch_gap_cycles=launch[1],
        region_overhead_cycles=_int(spec.region_overhead_cycles, 0),
        serializer=spec.serializer or "",
        engine=spec.engine or "",
    )


def _capabilities(spec: CapabilitiesSpec, at: str, places: _Places) -> Capabilities:
    """Expand groups; an op listed on its own overrides the group's entry."""
    listed: dict[str, OpSupport] = {}
    for k, group in enumerate(spec.groups):
        pointer = places.user_pointer(f"{at}/groups/{k}")
        for op_type in op_groups()[group]:
            if op_type not in spec.exclude:
                listed[op_type] = OpSupport(op_type, (), pointer=pointer)
    for k, op in enumerate(spec.ops):
        clause = _clause(op, f"{at}/ops/{k}", places)
        listed[op.op_type] = OpSupport(
            op.op_type,
            tuple(DType(name) for name in op.dtypes),
            clause.limits,
            clause.attributes,
            clause.constant_inputs,
            op.note,
            clause.conditions,
            clause.pointer,
        )
    rules = _patterns(spec.patterns, at, places)
    return Capabilities(
        ops=tuple(listed[name] for name in sorted(listed)),
        dtypes=tuple(DType(name) for name in spec.dtypes),
        max_rank=int(spec.max_rank.value),
        patterns=tuple(sorted(rules, key=lambda rule: -rule.priority)),
        pointer=places.user_pointer(at),
    )


def _clause(spec: ClauseSpec, at: str, places: _Places) -> Clause:
    return Clause(
        tuple((name, *_bounds(b)) for name, b in sorted(spec.limits.items())),
        _attributes(spec.attributes),
        tuple(sorted(set(spec.constant_inputs))),
        tuple(
            _condition(condition, f"{at}/conditions/{k}", places)
            for k, condition in enumerate(spec.conditions)
        ),
        places.user_pointer(at),
    )


def _condition(spec: ConditionSpec, at: str, places: _Places) -> Condition:
    """Lint has shown that it has clauses, or a term with one relation."""
    pointer = places.user_pointer(at)
    if spec.any_of:
        clauses = (_clause(c, f"{at}/any_of/{k}", places) for k, c in enumerate(spec.any_of))
        return AnyOf(tuple(clauses), pointer)
    sides: dict[Relation, TermSpec | None] = {
        Relation.AT_MOST: spec.at_most,
        Relation.AT_LEAST: spec.at_least,
        Relation.EQUALS: spec.equals,
        Relation.MULTIPLE_OF: spec.multiple_of,
    }
    ((relation, right),) = ((r, side) for r, side in sides.items() if side is not None)
    assert spec.compare is not None
    return Comparison(_term(spec.compare, places), relation, _term(right, places), pointer)


def _term(spec: TermSpec, places: _Places) -> Term:
    items = spec if isinstance(spec, list) else [spec]
    return tuple(_factor(item, places) for item in items)


def _factor(item: float | str, places: _Places) -> Factor:
    if not isinstance(item, str):
        return Factor(f"{item:g}", float(item))
    level = places.bytes_of_level.get(item.removesuffix(BYTES_OF_LEVEL))
    is_level = item.endswith(BYTES_OF_LEVEL) and level is not None
    return Factor(item, float(level) if is_level and level is not None else None)


def _bounds(limit: LimitSpec) -> tuple[int, int]:
    return int(limit.min.value), int(limit.max.value)


def _attributes(specs: Mapping[str, AttributeSpec]) -> tuple[AttributeRule, ...]:
    return tuple(
        AttributeRule(
            name,
            tuple(tuple(v) if isinstance(v, list) else v for v in spec.allowed),
            spec.min,
            spec.max,
        )
        for name, spec in sorted(specs.items())
    )


def _patterns(specs: list[PatternSpec], at: str, places: _Places) -> tuple[PatternRule, ...]:
    by_name = {p.name: p.match for p in specs}
    return tuple(
        PatternRule(
            p.name,
            _node(p.match, by_name),
            _int(p.priority, 0),
            p.intrinsic,
            p.description,
            places.user_pointer(f"{at}/patterns/{k}"),
        )
        for k, p in enumerate(specs)
        if not p.fragment
    )


def _node(spec: NodeSpec, by_name: Mapping[str, NodeSpec]) -> Pattern:
    """One node of a pattern; lint has shown that `use` names exist and never form a cycle."""
    if spec.use is not None:
        return _node(by_name[spec.use], by_name)
    if spec.same_as is not None:
        return SameValue(spec.same_as)
    if spec.alternatives:
        return Alternatives(tuple(_node(option, by_name) for option in spec.alternatives))
    if spec.path:
        assert spec.to is not None
        return PathTo(tuple(spec.path), _node(spec.to, by_name), spec.max_nodes)
    rule = _value_rule(spec)
    if spec.op is None:
        return AnyValue(rule, spec.bind)
    return OpMatch(
        (spec.op,) if isinstance(spec.op, str) else tuple(spec.op),
        tuple(_node(item, by_name) for item in spec.inputs),
        _attributes(spec.attributes),
        spec.commutative,
        spec.optional,
        spec.through,
        rule,
        spec.bind,
    )


def _value_rule(spec: NodeSpec) -> ValueRule:
    shape = None
    if spec.shape is not None:
        shape = tuple(
            None if d is None else (d, d) if isinstance(d, int) else _bounds(d) for d in spec.shape
        )
    return ValueRule(
        spec.constant,
        tuple(DType(name) for name in spec.dtypes),
        None if spec.rank is None else _bounds(spec.rank),
        shape,
        None if spec.uses is None else _bounds(spec.uses),
    )


def _criteria(spec: PartitionSpec | None) -> Criteria:
    if spec is None:
        return Criteria()
    return Criteria(
        PartitionMode(spec.mode),
        _maybe(spec.max_ops),
        _maybe(spec.max_macs),
        _maybe(spec.max_weight_bytes),
        spec.buffer_fit,
        _int(spec.min_macs, 0),
        _int(spec.min_ops, 1),
        spec.single_region,
    )


def _conversion(spec: ConversionSpec) -> Conversion:
    return Conversion(
        DType(spec.dtype),
        tuple(DType(name) for name in spec.sources),
        spec.automatic,
        tuple(spec.op_types),
        spec.per_channel,
        spec.symmetric,
        spec.power_of_two,
        spec.on_accelerator,
        0.0 if spec.min_sqnr_db is None else spec.min_sqnr_db.value,
    )
