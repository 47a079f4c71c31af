"""`compare`: two runs to one comparison."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from service.compare.cover import Cover, paired
from service.compare.deltas import (
    CauseDelta,
    Change,
    Comparison,
    FigureDelta,
    KernelDelta,
    LayerDelta,
    NodeCounts,
    PlacementDelta,
    Reason,
    ReasonKind,
    RowKind,
    Side,
    Verdict,
)
from service.compare.headline import headline
from service.compare.matching import Matching, match_nodes
from service.compare.reasons import chosen, reasons_of
from service.compare.run import Kernel, Row, Run
from worker.compiler.errors import Detail, InputError

_FIRST = ("latency_s", "latency_cycles", "energy_pj", "edp", "offchip_bytes")
_KERNEL_FIELDS = ("tile", "cores", "peak_buffer_bytes", "macs", "overhead_cycles")
_BYTES = "bytes_"


@dataclass(frozen=True, slots=True)
class _Numbers:
    """A number for every node; partners have one."""

    of: tuple[Mapping[str, int], Mapping[str, int]]
    """By the names of each side."""
    shared: Cover
    """Those of partners."""


def compare(base: Run, head: Run) -> Comparison:
    """Set two runs against each other.

    Raises:
        InputError: TW-CMP-001, documents are nested too deeply.

    Cost: about linear in nodes and rows.
    """
    try:
        return _compared(base, head)
    except RecursionError as error:
        raise InputError(
            "TW-CMP-001", f"{base.name}, {head.name}: a document is nested too deeply"
        ) from error


def _compared(base: Run, head: Run) -> Comparison:
    matching = match_nodes(base.graph, head.graph)
    numbers = _numbers(base, head, matching)
    figures = _figures(base, head)
    layers = _layers(base, head, numbers)
    kernels = _kernels(base, head, numbers)
    causes = tuple(_largest_first(_causes(base.rows, head.rows)))
    placement = _placement(base, head, matching)
    reasons = reasons_of(base, head, matching, causes, kernels, placement)
    verdict = _verdict(base, head, figures, layers, kernels, placement, reasons)
    sides = _side(base), _side(head)
    counts = _counts(base, head, matching)
    text = headline(verdict, sides, figures, layers, causes, reasons)
    return Comparison(
        *sides, verdict, text, figures, causes, layers, kernels, placement, reasons, counts
    )


def _verdict(
    base: Run, head: Run, figures: Sequence[FigureDelta], layers: Sequence[LayerDelta],
    kernels: Sequence[KernelDelta], placement: Sequence[PlacementDelta], reasons: Sequence[Reason],
) -> Verdict:  # fmt: skip
    """By the time it takes; cycles decide where clocks leave no difference."""
    if head.latency_s != base.latency_s:
        return Verdict.FASTER if head.latency_s < base.latency_s else Verdict.SLOWER
    is_same = (
        base.cycles == head.cycles
        and all(row.base == row.head for row in figures)
        and all(row.kind is RowKind.SAME for row in layers)
        and all(row.kind is RowKind.SAME for row in kernels)
        and not placement
        and not any(row.kind is ReasonKind.VERIFICATION for row in reasons)
    )
    return Verdict.SAME if is_same else Verdict.EQUAL_LATENCY


def _side(run: Run) -> Side:
    winner = chosen(run.report)
    return Side(
        run.name, str(run.report["model"].get("name")), str(run.report["hardware"].get("name")),
        None if winner is None else str(winner.get("name")), run.cycles, run.latency_s, run.missing,
    )  # fmt: skip


def _numbers(base: Run, head: Run, matching: Matching) -> _Numbers:
    """Number the nodes of both sides."""
    of_base = {node.name: k for k, node in enumerate(base.graph.nodes)}
    partners = {other: k for k, other in matching.head_of_base.items()}
    count = len(base.graph.nodes)
    of_head = {node.name: partners.get(k, count + k) for k, node in enumerate(head.graph.nodes)}
    return _Numbers((of_base, of_head), frozenset(of_base.values()) & frozenset(of_head.values()))


def _figures(base: Run, head: Run) -> tuple[FigureDelta, ...]:
    sides = [_flat(run.summary) for run in (base, head)]
    for side, run in zip(sides, (base, head), strict=True):
        winner = chosen(run.report)
        moved = None if winner is None else winner.get("offchip_bytes")
        if isinstance(moved, int):
            side["offchip_bytes"] = moved
    names = dict.fromkeys([*_FIRST, *sides[0], *sides[1]])
    return tuple(
        FigureDelta(name, sides[0].get(name), sides[1].get(name))
        for name in names
        if name in sides[0] or name in sides[1]
    )


def _flat(document: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """Numbers by dotted names; lists, texts and what is null are left out."""
    found: dict[str, float] = {}
    for key, held in document.items():
        if isinstance(held, Mapping):
            found |= _flat(held, f"{prefix}{key}.")
        elif isinstance(held, int | float) and not isinstance(held, bool):
            found[prefix + key] = held
    return found


def _causes(base: Iterable[Row], head: Iterable[Row]) -> list[CauseDelta]:
    """Causes of some rows, in the order of their names."""
    sides = []
    for rows in (base, head):
        total: Counter[str] = Counter()
        for row in rows:
            for cause, cycles in row.causes:
                total[cause] += cycles
        sides.append(total)
    return [CauseDelta(name, sides[0][name], sides[1][name])
            for name in sorted({*sides[0], *sides[1]})]  # fmt: skip


def _largest_first(causes: Iterable[CauseDelta]) -> list[CauseDelta]:
    """The largest change first; of equal ones the largest cause."""
    return sorted(causes, key=lambda row: (-abs(row.delta_cycles), -row.base_cycles, row.cause))


Places = tuple[tuple[int, ...], tuple[int, ...]]


def _pairs(
    base: Sequence[Row | Kernel], head: Sequence[Row | Kernel],
    numbers: _Numbers, takes: Callable[[Row | Kernel], bool],
) -> list[Places]:  # fmt: skip
    """Pairs of those that are taken, by their places."""
    places: list[list[int]] = []
    covers: list[list[Cover]] = []
    for side, rows in enumerate((base, head)):
        places.append([k for k, row in enumerate(rows) if takes(row)])
        covers.append([frozenset(numbers.of[side][n] for n in rows[k].nodes) for k in places[-1]])
    return [
        (tuple(places[0][k] for k in left), tuple(places[1][k] for k in right))
        for left, right in paired(*covers)
    ]


def _kind(
    pair: Places, base: Sequence[Row | Kernel], head: Sequence[Row | Kernel],
    numbers: _Numbers, *, is_equal: bool,
) -> RowKind:  # fmt: skip
    if not pair[0]:
        return RowKind.ADDED
    if not pair[1]:
        return RowKind.REMOVED
    # What was added or removed is no other way to cut.
    covers = [
        [{numbers.of[side][name] for name in rows[k].nodes} & numbers.shared for k in pair[side]]
        for side, rows in enumerate((base, head))
    ]
    if covers[0] != covers[1]:
        return RowKind.REGROUPED
    return RowKind.SAME if is_equal else RowKind.CHANGED


def _layers(base: Run, head: Run, numbers: _Numbers) -> tuple[LayerDelta, ...]:
    """Groups of nodes, then what fused kernels have beside them, in the order of the head."""
    found: list[LayerDelta] = []
    for is_rest in (False, True):

        def takes(row: Row | Kernel, asked: bool = is_rest) -> bool:
            return isinstance(row, Row) and row.is_rest is asked

        for pair in _pairs(base.rows, head.rows, numbers, takes):
            left = [base.rows[k] for k in pair[0]]
            right = [head.rows[k] for k in pair[1]]
            causes = [row for row in _causes(left, right) if row.delta_cycles]
            is_equal = not causes and _macs(left) == _macs(right) and (
                [row.placement for row in left] == [row.placement for row in right]
            )  # fmt: skip
            first = (right or left)[0]
            found.append(
                LayerDelta(
                    _kind(pair, base.rows, head.rows, numbers, is_equal=is_equal), is_rest,
                    first.op_type, _nodes(left), _nodes(right), *pair, _kernel_numbers(left),
                    _kernel_numbers(right), sum(row.cycles for row in left),
                    sum(row.cycles for row in right), _macs(left), _macs(right),
                    tuple(_largest_first(causes)),
                )
            )  # fmt: skip
    return tuple(found)


def _nodes(rows: Sequence[Row | Kernel]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for row in rows for name in row.nodes))


def _kernel_numbers(rows: Sequence[Row]) -> tuple[int, ...]:
    return tuple(dict.fromkeys(row.kernel for row in rows if row.kernel >= 0))


def _macs(rows: Sequence[Row]) -> int | None:
    known = [row.macs for row in rows if row.macs is not None]
    return sum(known) if known else None


def _kernels(base: Run, head: Run, numbers: _Numbers) -> tuple[KernelDelta, ...]:
    found: list[KernelDelta] = []
    for pair in _pairs(base.kernels, head.kernels, numbers, lambda row: True):
        left = [base.kernels[k] for k in pair[0]]
        right = [head.kernels[k] for k in pair[1]]
        changed = _kernel_changes(left, right) if left and right else ()
        cycles = [sum(row.cycles for row in rows) for rows in (left, right)]
        energy = [sum(row.energy_pj for row in rows) for rows in (left, right)]
        is_equal = not changed and cycles[0] == cycles[1] and energy[0] == energy[1]
        found.append(
            KernelDelta(
                _kind(pair, base.kernels, head.kernels, numbers, is_equal=is_equal),
                (right or left)[0].op_type, _nodes(left), _nodes(right), *pair,
                cycles[0], cycles[1], energy[0], energy[1], changed,
            )
        )  # fmt: skip
    return tuple(found)


def _kernel_changes(base: Sequence[Kernel], head: Sequence[Kernel]) -> tuple[Change, ...]:
    """What differs of what the report, and the schedules, tell of kernels; what one side cannot
    tell is left out."""
    columns = dict.fromkeys(
        name for row in (*base, *head) for name in row.told if name.startswith(_BYTES)
    )
    asked: list[tuple[str, Callable[[Kernel], Detail]]] = [
        ("placement", lambda row: row.placement),
        ("strategy", lambda row: row.strategy),
        ("schedule", lambda row: row.schedule),
        *((name, _column(name)) for name in (*_KERNEL_FIELDS, *columns)),
    ]
    found: list[Change] = []
    for what, ask in asked:
        left, right = [ask(row) for row in base], [ask(row) for row in head]
        is_known = not all(held is None for held in left) and not all(h is None for h in right)
        if left != right and (is_known or what not in ("strategy", "schedule")):
            found.append(Change(what, _one(left), _one(right)))
    return tuple(found)


def _column(name: str) -> Callable[[Kernel], Detail]:
    return lambda row: row.told.get(name)


def _one(values: list[Detail]) -> Detail:
    return values[0] if len(values) == 1 else values


def _placement(base: Run, head: Run, matching: Matching) -> tuple[PlacementDelta, ...]:
    of_head = {row.node: row for row in head.placement}
    of_base = {row.node: row for row in base.placement}
    found: list[PlacementDelta] = []
    for k, other in sorted(matching.head_of_base.items()):
        names = base.graph.nodes[k].name, head.graph.nodes[other].name
        left, right = of_base.get(names[0]), of_head.get(names[1])
        if left is None or right is None:
            continue
        if (left.target, left.reason_code) != (right.target, right.reason_code):
            found.append(
                PlacementDelta(*names, left.target, right.target, left.reason_code,
                               right.reason_code, left.reason, right.reason)
            )  # fmt: skip
    return tuple(found)


def _counts(base: Run, head: Run, matching: Matching) -> NodeCounts:
    by = Counter(str(how) for how in matching.how.values())
    taken = set(matching.head_of_base.values())
    return NodeCounts(
        dict(sorted(by.items())),
        sum(base.graph.nodes[k].name != head.graph.nodes[other].name
            for k, other in matching.head_of_base.items()),
        tuple(node.name for k, node in enumerate(head.graph.nodes) if k not in taken),
        tuple(n.name for k, n in enumerate(base.graph.nodes) if k not in matching.head_of_base),
    )  # fmt: skip
