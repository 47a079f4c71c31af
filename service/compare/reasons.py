"""What differs in what went into two runs, and in what was decided: each with what it touches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any

from service.compare.colours import signature_of
from service.compare.deltas import (
    CauseDelta,
    Change,
    KernelDelta,
    PlacementDelta,
    Reason,
    ReasonKind,
    RowKind,
)
from service.compare.documents import changes
from service.compare.matching import Matching
from service.compare.model_graph import Depth, ModelGraph, Node
from service.compare.run import Run
from service.compare.words import count, span, value
from worker.compiler.errors import Detail
from worker.compiler.options import RESULT_OPTIONS, CompileOptions

_EVIDENCE = ("guesses", "energy_ranges")
"""What a spec says of its own numbers."""
_SHOWN_FIELDS = ("strategy", "placement", "tile", "cores", "peak_buffer_bytes", "schedule")


def reasons_of(
    base: Run, head: Run, matching: Matching, causes: Sequence[CauseDelta],
    kernels: Sequence[KernelDelta], placement: Sequence[PlacementDelta],
) -> tuple[Reason, ...]:  # fmt: skip
    """Everything that differs: what went in first, then what was decided."""
    return (
        *_spec(base, head, causes),
        *_model(base.graph, head.graph, matching),
        *_documents(ReasonKind.TOOLCHAIN, base.report["toolchain"], head.report["toolchain"]),
        *_documents(ReasonKind.OPTION, *map(_deciding, (base.report, head.report))),
        *_strategy(base.report, head.report),
        *(reason for delta in kernels for reason in _kernel(delta)),
        *_placement(placement),
        *_verification(base.report, head.report),
    )


def _spec(base: Run, head: Run, causes: Sequence[CauseDelta]) -> Iterator[Reason]:
    """Fields of the machine; its name is none."""
    digests = [str(run.report["hardware"].get("digest")) for run in (base, head)]
    if digests[0] == digests[1]:
        return
    if base.spec is None or head.spec is None:
        yield Reason(
            ReasonKind.SPEC, "", digests[0], digests[1],
            "the machines differ; which fields do is in the bundles, of which one is not here",
        )  # fmt: skip
        return
    left, right = (
        {key: held for key, held in spec.items() if key != "name"}
        for spec in (base.spec, head.spec)
    )
    found = changes(left, right)
    said = [row for row in found if row.what.split("/")[1] in _EVIDENCE]
    for row in found:
        if row in said:
            continue
        yield Reason(
            ReasonKind.SPEC, row.what, row.base, row.head,
            f"the spec's {row.what}: {value(row.base)} -> {value(row.head)}",
            cycles=_cycles_of(row.what, causes),
        )  # fmt: skip
    # What a number is known by changes with the number.
    told = {row.what for row in found}
    for row in said:
        steps = row.what.split("/")
        field = steps[2].replace("~1", "/").replace("~0", "~") if len(steps) > 2 else ""
        if steps[-1] != "value" and not any(_is_about(field, other) for other in told):
            yield Reason(
                ReasonKind.SPEC, row.what, row.base, row.head,
                f"what the spec says of its own numbers, {row.what}: {value(row.base)} ->"
                f" {value(row.head)}",
            )  # fmt: skip


def _is_about(field: str, pointer: str) -> bool:
    """Whether a pointer by numbers (/levels/1/x) may be one by names (/levels/GBUF/x)."""
    left, right = field.split("/"), pointer.split("/")
    return len(left) == len(right) and all(
        a == b or a.isdecimal() for a, b in zip(left, right, strict=True)
    )


def _cycles_of(pointer: str, causes: Sequence[CauseDelta]) -> int | None:
    """By how much the causes changed that name the part of the machine a field belongs to."""
    steps = pointer.split("/")
    if len(steps) < 4 or steps[1] not in ("levels", "engines", "links"):
        return None
    name = steps[2]
    touched = [row for row in causes if _names(row.cause, name)]
    return sum(row.delta_cycles for row in touched) if touched else None


def _names(cause: str, part: str) -> bool:
    """Whether a cause such as `port:DRAM.read` names a part of the machine."""
    _, _, rest = cause.partition(":")
    return rest == part or (rest.startswith(part) and rest[len(part)] == ".")


def _model(base: ModelGraph, head: ModelGraph, matching: Matching) -> Iterator[Reason]:
    removed = [k for k in range(len(base.nodes)) if k not in matching.head_of_base]
    taken = set(matching.head_of_base.values())
    added = [k for k in range(len(head.nodes)) if k not in taken]
    for nodes, word in (([base.nodes[k] for k in removed], "removed"),
                        ([head.nodes[k] for k in added], "added")):  # fmt: skip
        if nodes:
            names = tuple(node.name for node in nodes)
            told: list[Detail] = [f"{node.op_type} {node.name}".strip() for node in nodes]
            yield Reason(
                ReasonKind.MODEL, word, None if word == "added" else told,
                told if word == "added" else None,
                f"{word}: {span([str(text) for text in told])}", names,
            )  # fmt: skip
    by_what: dict[str, list[tuple[Change, str]]] = {}
    for k, other in sorted(matching.head_of_base.items()):
        for change in _node_changes(base, base.nodes[k], head, head.nodes[other]):
            by_what.setdefault(change.what, []).append((change, head.nodes[other].name))
    for what, rows in by_what.items():
        yield _changed(what, rows)


def _changed(what: str, rows: Sequence[tuple[Change, str]]) -> Reason:
    """One reason for everything of a kind."""
    first = rows[0][0]
    is_one = all(row.base == first.base and row.head == first.head for row, _ in rows)
    names = tuple(name for _, name in rows)
    shown = f": {value(first.base)} -> {value(first.head)}" if is_one and what != "weights" else ""
    return Reason(
        ReasonKind.MODEL, what, first.base if is_one else [row.base for row, _ in rows],
        first.head if is_one else [row.head for row, _ in rows],
        f"{what} of {span(names)}{shown}", names,
    )  # fmt: skip


def _node_changes(base: ModelGraph, left: Node, head: ModelGraph, right: Node) -> list[Change]:
    """What differs between a node and its partner, as far as both are known."""
    if left.op_type != right.op_type:
        return [Change("operator", left.op_type, right.op_type)]
    depth = min(base.depth, head.depth)
    if depth < Depth.WHOLE or left.attributes is None or right.attributes is None:
        return []
    if signature_of(base, left, depth, has_weights=True) == signature_of(
        head, right, depth, has_weights=True
    ):
        return []
    mine, theirs = dict(left.attributes), dict(right.attributes)
    found = [
        Change(f"attribute {name}", mine.get(name), theirs.get(name))
        for name in dict.fromkeys([*mine, *theirs])
        if mine.get(name) != theirs.get(name)
    ]
    for kind, ours, others in (("input", left.inputs, right.inputs),
                               ("output", left.outputs, right.outputs)):  # fmt: skip
        if len(ours) != len(others):
            found.append(Change(f"number of {kind}s", len(ours), len(others)))
        for place, (a, b) in enumerate(zip(ours, others, strict=False)):
            found += _tensor_changes(f"{kind} {place}", base, a, head, b)
    return found


def _tensor_changes(
    what: str, base: ModelGraph, left: str, head: ModelGraph, right: str
) -> Iterator[Change]:
    a, b = base.tensors.get(left), head.tensors.get(right)
    if a is None or b is None:
        if (left == "") != (right == ""):
            yield Change(what, left != "", right != "")
        return
    if a.dtype != b.dtype:
        yield Change(f"type of {what}", a.dtype, b.dtype)
    if a.shape != b.shape:
        yield Change(f"shape of {what}", _listed(a.shape), _listed(b.shape))
    elif a.sha256 != b.sha256:
        yield Change("weights", a.sha256, b.sha256)


def _listed(shape: Sequence[int | str | None] | None) -> Detail:
    return None if shape is None else list(shape)


def _deciding(report: Mapping[str, Any]) -> dict[str, Any]:
    """Options without those that decide no result: how the cache is used, what is verified."""
    idle = {field.name for field in fields(CompileOptions)}.difference(RESULT_OPTIONS)
    return {name: held for name, held in report["options"].items() if name not in idle}


def _documents(kind: ReasonKind, base: Detail, head: Detail) -> Iterator[Reason]:
    for row in changes(base, head):
        yield Reason(
            kind, row.what, row.base, row.head,
            f"{kind} {row.what}: {value(row.base)} -> {value(row.head)}",
        )  # fmt: skip


def _strategy(base: Mapping[str, Any], head: Mapping[str, Any]) -> Iterator[Reason]:
    """Another program won; why the base's lost is what the head says of it."""
    winners = chosen(base), chosen(head)
    if winners[0] is None or winners[1] is None:
        return
    names = str(winners[0].get("name")), str(winners[1].get("name"))
    if names[0] == names[1]:
        return
    loser = _of_name(head, names[0])
    why = "it has no program there" if loser is None else str(loser.get("reason"))
    yield Reason(
        ReasonKind.STRATEGY, "chosen", names[0], names[1],
        f"{names[1]} won ({winners[1].get('reason')}), no longer {names[0]}: {why}",
    )  # fmt: skip


def chosen(report: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The program that won, as the report's `strategies` tell it."""
    return next((row for row in _programs(report) if row.get("chosen") is True), None)


def _of_name(report: Mapping[str, Any], name: str) -> Mapping[str, Any] | None:
    return next((row for row in _programs(report) if row.get("name") == name), None)


def _programs(report: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    rows = report.get("strategies")
    return [r for r in rows if isinstance(r, Mapping)] if isinstance(rows, list) else []


def _kernel(delta: KernelDelta) -> Iterator[Reason]:
    """What was decided otherwise about kernels of the same nodes."""
    if delta.kind in (RowKind.ADDED, RowKind.REMOVED):
        return
    if delta.kind is RowKind.REGROUPED:
        numbers = len(delta.base_kernels), len(delta.head_kernels)
        yield Reason(
            ReasonKind.GROUPING, span(delta.nodes), numbers[0], numbers[1],
            f"{span(delta.nodes)}: {count(numbers[0], 'kernel')} in base,"
            f" {count(numbers[1], 'kernel')} in head, cut otherwise", delta.nodes,
            delta.delta_cycles,
        )  # fmt: skip
        return
    shown = [row for row in delta.changes if row.what in _SHOWN_FIELDS]
    if any(row.what in ("strategy", "tile", "cores", "schedule") for row in shown):
        parts = [
            "other loops" if row.what == "schedule" else
            f"{row.what} {value(row.base)} -> {value(row.head)}"
            for row in shown if row.what != "placement"
        ]  # fmt: skip
        base: dict[str, Detail] = {row.what: row.base for row in shown}
        head: dict[str, Detail] = {row.what: row.head for row in shown}
        yield Reason(
            ReasonKind.SCHEDULE, span(delta.nodes), base, head,
            f"{span(delta.nodes)}: {', '.join(parts)}", delta.nodes, delta.delta_cycles,
        )  # fmt: skip


def _placement(rows: Sequence[PlacementDelta]) -> Iterator[Reason]:
    """Nodes that moved, together where they did for the same reason."""
    by_reason: dict[tuple[str, str, str, str], list[PlacementDelta]] = {}
    for row in rows:
        key = (row.base_target, row.base_reason_code, row.head_target, row.head_reason_code)
        by_reason.setdefault(key, []).append(row)
    for (left, was, right, code), moved in by_reason.items():
        names = tuple(row.head_node for row in moved)
        where = f"{left} ({was})", f"{right} ({code})"
        yield Reason(
            ReasonKind.PLACEMENT, span(names), where[0], where[1],
            f"{span(names)}: {where[0]} -> {where[1]}, {moved[0].head_reason}", names,
        )  # fmt: skip


def _verification(base: Mapping[str, Any], head: Mapping[str, Any]) -> Iterator[Reason]:
    """Another outcome; that one was not asked for is none."""
    told: list[tuple[str, Callable[[Mapping[str, Any]], Detail]]] = [
        ("verification passed", _passed), ("violated invariants", _violated)
    ]  # fmt: skip
    for what, ask in told:
        left, right = ask(base), ask(head)
        if left is not None and right is not None and left != right:
            yield Reason(
                ReasonKind.VERIFICATION, what, left, right,
                f"{what}: {value(left)} -> {value(right)}",
            )  # fmt: skip


def _passed(report: Mapping[str, Any]) -> bool | None:
    verification = report.get("verification")
    passed = verification.get("passed") if isinstance(verification, Mapping) else None
    return passed if isinstance(passed, bool) else None


def _violated(report: Mapping[str, Any]) -> Detail:
    rows = report.get("sanity")
    checks = [row for row in rows if isinstance(row, Mapping)] if isinstance(rows, list) else []
    return [str(row.get("name")) for row in checks if row.get("passed") is not True]
