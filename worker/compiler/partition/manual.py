"""The manual of a machine's accelerators: what its spec allows, in words.

Every condition is worded by the functions that word refusals (rules.py, attributes.py), so that the
manual and a report never say different things.  Deterministic: the order is the spec's.
"""

from __future__ import annotations

from collections.abc import Sequence

from worker.compiler.errors import Detail
from worker.compiler.machine.machine import (
    AcceleratorTarget,
    Conversion,
    Criteria,
    LaunchUnit,
    Machine,
    OpSupport,
)
from worker.compiler.machine.pattern import (
    Alternatives,
    AnyValue,
    AttributeRule,
    OpMatch,
    PathTo,
    Pattern,
    SameValue,
    ValueRule,
)
from worker.compiler.partition.annotate import target_label
from worker.compiler.partition.attributes import allowed_text
from worker.compiler.partition.rules import FREE_DTYPES, dtypes_text, rank_text, support_texts


def manual_document(machine: Machine) -> dict[str, Detail]:
    """The manual as data: `machine` and, per target, everything `manual_markdown` prints."""
    return {"machine": machine.name, "targets": [_target(machine, t) for t in machine.targets]}


def manual_markdown(machine: Machine) -> str:
    """The manual as one Markdown text, a chapter per target, highest priority first."""
    lines = [f"# Operators that {machine.name} runs", ""]
    for target in machine.targets:
        lines += _chapter(machine, target)
    return "\n".join(lines).rstrip("\n") + "\n"


def pattern_text(pattern: Pattern) -> str:
    """The structure of a pattern in one line: `Relu(Conv(any, constant))`.

    `?` marks a node that may be absent, `|` alternatives, `*` any number of nodes, `=name` a
    bound value and `@name` the same value again.
    """
    match pattern:
        case AnyValue(value=rule, bind=bind):
            name = "constant" if rule.constant else "computed" if rule.constant is False else "any"
            return name + _conditions((), rule) + _bound(bind)
        case SameValue(bind=bind):
            return f"@{bind}"
        case Alternatives(options=options):
            return "(" + " | ".join(pattern_text(option) for option in options) + ")"
        case PathTo(op_types=names, end=end, max_nodes=most):
            return f"{'|'.join(names)}*{most}({pattern_text(end)})"
        case OpMatch():
            inputs = [pattern_text(item) for item in pattern.inputs]
            if pattern.commutative:
                inputs.append("in either order")
            text = "|".join(pattern.op_types) + ("?" if pattern.optional else "")
            text += _conditions(pattern.attributes, pattern.value)
            return text + (f"({', '.join(inputs)})" if inputs else "") + _bound(pattern.bind)


def _bound(bind: str | None) -> str:
    return f"={bind}" if bind else ""


def _conditions(attributes: Sequence[AttributeRule], rule: ValueRule) -> str:
    found = [f"{a.name} {allowed_text(a)}" for a in attributes]
    if rule.dtypes:
        found.append(dtypes_text(rule.dtypes))
    for name, bounds in (("rank", rule.rank), ("uses", rule.uses)):
        if bounds is not None:
            found.append(f"{name} {_bounds(bounds)}")
    if rule.shape is not None:
        dims = ("any" if d is None else _bounds(d) for d in rule.shape)
        found.append(f"shape [{', '.join(dims)}]")
    return f"[{'; '.join(found)}]" if found else ""


def _bounds(bounds: tuple[int, int]) -> str:
    low, high = bounds
    return f"{low} to {high}" if low < high else f"{low}"


def criteria_texts(criteria: Criteria) -> tuple[str, ...]:
    """The limits of a region in words, in the order of the spec."""
    found = [f"regions are formed in mode {criteria.mode}"]
    for actual, what in (
        (criteria.max_ops, "operators"),
        (criteria.max_macs, "MACs"),
        (criteria.max_weight_bytes, "bytes of weights"),
    ):
        if actual is not None:
            found.append(f"a region has at most {actual} {what}")
    if criteria.buffer_fit is not None:
        found.append(f"the tensors of every sequence of operators fit {criteria.buffer_fit}")
    if criteria.min_macs:
        found.append(f"a region with fewer than {criteria.min_macs} MACs goes to the host")
    if criteria.min_ops > 1:
        found.append(f"a region with fewer than {criteria.min_ops} operators goes to the host")
    if criteria.single_region:
        found.append("one region per model")
    return tuple(found)


def conversion_text(conversion: Conversion) -> str:
    """A conversion in words."""
    what = ", ".join(conversion.op_types) or "every operator"
    found = [f"{dtypes_text(conversion.sources)} to {conversion.dtype} for {what}"]
    found.append("without being asked" if conversion.automatic else "when asked for")
    if not conversion.dtype.is_float:
        found.append(f"weights with one scale per {_per(conversion)}")
        found.append(f"{'symmetric' if conversion.symmetric else 'asymmetric'} activations")
        if conversion.power_of_two:
            found.append("scales are powers of two")
    place = "accelerator" if conversion.on_accelerator else "host"
    found.append(f"numbers are converted on the {place}")
    if conversion.min_sqnr_db:
        found.append(f"outputs keep at least {conversion.min_sqnr_db:g} dB of SQNR")
    return "; ".join(found)


def _per(conversion: Conversion) -> str:
    return "output channel" if conversion.per_channel else "tensor"


def _op_dtypes(target: AcceleratorTarget, support: OpSupport) -> list[Detail]:
    return [str(d) for d in support.dtypes or target.capabilities.dtypes]


def _target(machine: Machine, target: AcceleratorTarget) -> Detail:
    offered = target.capabilities
    layout = target.layout
    return {
        "name": target.name,
        "label": target_label(machine, target),
        "priority": target.priority,
        "engines": list[Detail](target.engines),
        "launch_unit": str(target.launch_unit),
        "launch_latency_cycles": machine.launch_latency(target),
        "launch_gap_cycles": machine.launch_gap(target),
        "dtypes": [str(d) for d in offered.dtypes],
        "free_dtypes": [str(d) for d in _free(target)],
        "max_rank": offered.max_rank,
        "ops": [
            {
                "op_type": op.op_type,
                "dtypes": _op_dtypes(target, op),
                "conditions": list[Detail](support_texts(op)),
                "note": op.note,
            }
            for op in offered.ops
        ],
        "patterns": [
            {
                "name": rule.name,
                "priority": rule.priority,
                "structure": pattern_text(rule.root),
                "intrinsic": rule.intrinsic,
                "description": rule.description,
            }
            for rule in offered.patterns
        ],
        "criteria": list[Detail](criteria_texts(target.criteria)),
        "conversions": [conversion_text(c) for c in target.conversions],
        "layout": None
        if layout is None
        else {
            "activations": layout.activations,
            "weights": layout.weights,
            "op_types": list[Detail](layout.op_types),
        },
    }


def _free(target: AcceleratorTarget) -> list[str]:
    """Index and mask types beyond those the target declares."""
    return sorted(str(d) for d in FREE_DTYPES if d not in target.capabilities.dtypes)


def _chapter(machine: Machine, target: AcceleratorTarget) -> list[str]:
    offered = target.capabilities
    lines = [f"## {target_label(machine, target)}", ""]
    lines.append(f"- types: {', '.join(offered.dtypes)}")
    if _free(target):
        lines.append(f"- indices and masks may also be {', '.join(_free(target))}")
    lines.append(f"- rank of a tensor: {rank_text(offered)}")
    if len(machine.targets) > 1:
        lines.append(f"- priority: {target.priority}")
    if target.engines:
        lines.append(f"- engines: {', '.join(target.engines)}")
    unit = "region" if target.launch_unit is LaunchUnit.REGION else "kernel"
    latency, gap = machine.launch_latency(target), machine.launch_gap(target)
    behind = f", {gap} behind a kernel" if gap != latency else ""
    lines.append(f"- one launch per {unit}, {latency} cycles{behind}")
    lines += ["", "### Operators", "", "| operator | types | conditions | note |"]
    lines.append("|---|---|---|---|")
    for op in offered.ops:
        types = ", ".join(op.dtypes) or "all"
        row = (op.op_type, types, "; ".join(support_texts(op)), op.note)
        lines.append("| " + " | ".join(_cell(text) for text in row) + " |")
    if offered.patterns:
        lines += ["", "### Composites", "", "Highest priority first.", ""]
        for rule in offered.patterns:
            by = f", instruction {rule.intrinsic}" if rule.intrinsic else ""
            note = f": {rule.description}" if rule.description else ""
            lines.append(f"- {rule.name} (priority {rule.priority}{by}){note}")
            lines.append(f"  `{pattern_text(rule.root)}`")
    lines += ["", "### Regions", ""]
    lines += [f"- {text}" for text in criteria_texts(target.criteria)]
    if target.conversions:
        lines += ["", "### Conversions", ""]
        lines += [f"- {conversion_text(conversion)}" for conversion in target.conversions]
    if target.layout is not None:
        layout = target.layout
        names = ", ".join(layout.op_types)
        lines += ["", "### Layouts", ""]
        lines.append(f"- activations {layout.activations}, weights {layout.weights} for {names}")
    return [*lines, ""]


def _cell(text: str) -> str:
    """Table cells end at a bar, rows at a line break."""
    return " ".join(text.replace("|", "\\|").split())
