"""Cut regions that break a limit of their target, between sequences.

A sequence is a maximal chain of operators (a composite is one) in which each hands its result to
one operator of the region, which reads from no other operator of the region.  Whole sequences are
packed greedily in topological order; the pieces are intervals of that order, so the pieces of one
region depend on each other in one direction only, and no path leaves a convex region and comes
back: the graph of all regions stays acyclic.

Source: BYOC section 3.1.3, Fig. 3 (d).  Deviates: a sequence that alone breaks a limit is cut
between operators; an operator that alone breaks a limit goes to the host.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from worker.compiler.machine.machine import Criteria, Machine
from worker.compiler.partition.flow import Flow
from worker.compiler.partition.measure import Ruler, shared_nodes
from worker.compiler.partition.parts import Region
from worker.compiler.partition.quotient import contract, reverse, topological, units_of


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a split region, and why it ends where it does."""

    region: Region
    fits: bool
    """False: one operator that breaks the limit by itself."""
    rule: str = ""
    """Criterion that cut the region; empty: it was not cut."""
    sentence: str = ""


@dataclass(frozen=True, slots=True)
class _Limit:
    rule: str
    bound: int
    unit: str
    uncounted: frozenset[int]
    """Nodes that composites share: no operators of their own."""


class _Load:
    """What a growing set of units amounts to, per rule."""

    def __init__(self, ruler: Ruler, limits: Sequence[_Limit]) -> None:
        self._ruler = ruler
        self._limits = limits
        self._seen: dict[str, dict[str, int]] = {}
        self.units: list[tuple[int, ...]] = []
        self.amount = dict.fromkeys((limit.rule for limit in limits), 0)

    def broken_by(self, units: Sequence[tuple[int, ...]]) -> tuple[str, str] | None:
        """(rule, actual against limit in words) of the first limit that adding `units` breaks."""
        for limit in self._limits:
            actual = self.amount[limit.rule] + self._added(limit, units)
            if actual > limit.bound:
                return limit.rule, f"{actual} {limit.unit} ({limit.rule} is {limit.bound})"
        return None

    def add(self, units: Sequence[tuple[int, ...]]) -> None:
        for limit in self._limits:
            self.amount[limit.rule] += self._added(limit, units)
        for rule, seen in self._seen.items():
            seen.update(self._tensors(rule, units))
        self.units += units

    def _added(self, limit: _Limit, units: Sequence[tuple[int, ...]]) -> int:
        rule = limit.rule
        if rule == "max_ops":
            return sum(unit[0] not in limit.uncounted for unit in units)
        if rule == "max_macs":
            return sum(self._ruler.macs(unit) for unit in units)
        seen = self._seen.setdefault(rule, {})
        return sum(b for name, b in self._tensors(rule, units).items() if name not in seen)

    def _tensors(self, rule: str, units: Sequence[tuple[int, ...]]) -> dict[str, int]:
        nodes = [node for unit in units for node in unit]
        return self._ruler.weights(nodes) if rule == "max_weight_bytes" else (
            self._ruler.tensors(nodes)
        )  # fmt: skip


def split_region(region: Region, criteria: Criteria, machine: Machine, flow: Flow,
                 ruler: Ruler) -> tuple[Piece, ...]:  # fmt: skip
    """Pieces in execution order; one piece when nothing breaks a limit.

    Cost: near-linear in the region's operands, times the number of limits.
    """
    shared = shared_nodes(region.composites)
    limits = [
        _Limit(rule, bound, unit, shared)
        for rule, bound, unit in (
            ("max_ops", criteria.max_ops, "operators"),
            ("max_macs", criteria.max_macs, "MACs"),
            ("max_weight_bytes", criteria.max_weight_bytes, "bytes of weights"),
        )
        if bound is not None
    ]
    per_sequence: list[_Limit] = []
    if criteria.buffer_fit is not None:
        usable = machine.level(criteria.buffer_fit).usable_bytes
        per_sequence = [
            _Limit("buffer_fit", usable, f"bytes together in {criteria.buffer_fit}", shared)
        ]
    if not limits and not per_sequence:
        return (Piece(region, True),)
    rows = sequences(region, flow)
    whole = [unit for row in rows for unit in row]
    broken = _Load(ruler, limits).broken_by(whole) or next(
        (b for row in rows if (b := _Load(ruler, per_sequence).broken_by(row))), None
    )
    if broken is None:
        return (Piece(region, True),)
    every = [*limits, *per_sequence]
    packed = _pack(rows, limits, every, ruler)
    rule, excess = broken
    return tuple(
        Piece(
            _piece(region, units),
            len(units) > 1 or _Load(ruler, every).broken_by(units) is None,
            rule,
            _sentence(number, len(packed), excess, how, flow.names[region.nodes[0]]),
        )
        for number, (units, how) in enumerate(packed, 1)
    )


def sequences(region: Region, flow: Flow) -> list[list[tuple[int, ...]]]:
    """The region's sequences in topological order, each a list of units (tuples of positions)."""
    position = {node: k for k, node in enumerate(region.nodes)}
    inner = [
        [position[after] for after in flow.successors[node] if after in position]
        for node in region.nodes
    ]
    glued = [[position[node] for node in c.nodes] for c in region.composites]
    unit_of, members = units_of(len(inner), glued)
    after = contract(inner, unit_of, len(members))
    before = reverse(after)
    head = list(range(len(members)))
    order = topological(after, lambda unit: (unit,))
    for unit in order:
        if len(before[unit]) == 1 and len(after[before[unit][0]]) == 1:
            head[unit] = head[before[unit][0]]
    rows: dict[int, list[tuple[int, ...]]] = {}
    for unit in order:
        rows.setdefault(head[unit], []).append(tuple(region.nodes[k] for k in members[unit]))
    number = {unit: k for k, unit in enumerate(rows)}
    row_after = contract(after, [number[h] for h in head], len(rows))
    listed = list(rows.values())
    return [listed[row] for row in topological(row_after, lambda row: (listed[row][0][0],))]


def _pack(
    rows: Sequence[Sequence[tuple[int, ...]]],
    limits: Sequence[_Limit],
    every: Sequence[_Limit],
    ruler: Ruler,
) -> list[tuple[list[tuple[int, ...]], str]]:
    """Units of every piece, and how its sequences were cut (empty: they are whole).

    `limits` hold for a piece, `every` for a sequence.
    """
    pieces: list[tuple[list[tuple[int, ...]], str]] = []
    load = _Load(ruler, limits)
    for row in rows:
        alone = _Load(ruler, every).broken_by(row)
        if load.units and (alone or load.broken_by(row)):
            pieces.append((load.units, ""))
            load = _Load(ruler, limits)
        if alone is None:
            load.add(row)
            continue
        how = f"one sequence alone has {alone[1]}, so it is cut between operators"
        part = _Load(ruler, every)
        for unit in row:
            if part.units and part.broken_by([unit]):
                pieces.append((part.units, how))
                part = _Load(ruler, every)
            part.add([unit])
        pieces.append((part.units, how))
    if load.units:
        pieces.append((load.units, ""))
    return pieces


def _piece(region: Region, units: Sequence[tuple[int, ...]]) -> Region:
    nodes = tuple(sorted(node for unit in units for node in unit))
    inside = set(nodes)
    kept = tuple(c for c in region.composites if inside.issuperset(c.nodes))
    return Region(region.target, nodes, kept)


def _sentence(number: int, count: int, excess: str, how: str, first: str) -> str:
    whole = how or "sequences are kept whole"
    return f"piece {number} of {count} of the region at {first}, which has {excess}; {whole}"
