"""Pairs of a tree set against the base's: comparisons, and allowed regressions.

How two runs are compared is `service.compare`'s; here is what is allowed of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from service.gate.figures import (
    Report,
    caused_figure,
    energy_items,
    figure_of,
    has_cause,
    is_of_groups,
    row_figure,
    time_figure,
    whole_figure,
)
from service.gate.file import GateFile, Regression
from service.gate.levels import uncaused, unmatched
from service.gate.runs import Outcome
from service.gate.selection import Pair, covers
from service.gate.verdict import Check, Finding, Result
from service.gate.words import amount, change, percent, subject

if TYPE_CHECKING:
    from service.compare import Comparison, KernelDelta, LayerDelta, Run

Key = tuple[str, str]
HOST = "host"
_TIME = ("latency_ms", "latency_cycles", "throughput_per_s")


@dataclass(frozen=True, slots=True)
class Difference:
    """A pair that compiles in both trees."""

    base: Run
    head: Run
    comparison: Comparison

    @staticmethod
    def of(base: Outcome, head: Outcome) -> Difference:
        """Compare two outcomes that have documents.

        Raises:
            InputError: TW-CMP-001, documents are of a version that is not read.
        """
        from service.compare import compare

        before, after = base.run("base"), head.run("head")
        return Difference(before, after, compare(before, after))

    @property
    def cause(self) -> str:
        """The cause and the layer whose cycles changed most; empty where none did."""
        comparison = self.comparison
        if not comparison.causes or not comparison.causes[0].delta_cycles:
            return ""
        first = comparison.causes[0]
        said = f"{first.cause} {first.delta_cycles:+,} cycles"
        layers = [row for row in comparison.moved if row.nodes and row.delta_cycles]
        if layers:
            said += f"; {layers[0].nodes[0]} {layers[0].delta_cycles:+,}"
        return said

    @property
    def energy_cause(self) -> str:
        """What most of a change of the energy is, for messages; empty where nothing tells."""
        before, after = (energy_items(run.report) for run in (self.base, self.head))
        moved = {n: after.get(n, 0.0) - before.get(n, 0.0) for n in (*before, *after)}
        total = sum(moved.values())
        if not total:
            return ""
        most = max(moved, key=lambda name: moved[name] * (1 if total > 0 else -1))
        shown = change(before.get(most, 0.0), after.get(most, 0.0), "energy_mj")
        return f", most by {most} ({shown})"


@dataclass(frozen=True, slots=True)
class _Moved:
    """Two values of one thing."""

    nodes: tuple[str, ...]
    base: float
    head: float


def regression_findings(
    gate: GateFile, pairs: Sequence[Pair], differences: Mapping[Key, Difference]
) -> Iterator[Finding]:
    """A finding for every regression and pair (and layer) that it is about."""
    for k, rule in enumerate(gate.regressions):
        at = f"/regressions/{k}"
        about = [p for p in pairs if p.key in differences and covers(rule.model, rule.hardware, p)]
        found = False
        for pair in about:
            difference = differences[pair.key]
            for moved in _moved(difference, rule):
                found = True
                yield _allowed(rule, pair, difference, moved, at)
        if about and not found:
            yield unmatched(gate.changes.unmatched, at, rule)
        elif found and rule.cause is not None:
            runs = [run for pair in about for run in _runs(differences[pair.key])]
            if not any(has_cause(run.report, rule.cause) for run in runs):
                yield uncaused(gate.changes.unmatched, at, rule)


def _moved(difference: Difference, rule: Regression) -> Iterator[_Moved]:
    if rule.node is not None:
        yield from _moved_layers(difference, rule, rule.node)
        return
    values = [_whole(run.report, rule) for run in (difference.base, difference.head)]
    if values[0] is not None and values[1] is not None:
        yield _Moved((), values[0], values[1])


def _whole(report: Report, rule: Regression) -> float | None:
    if rule.cause is None:
        return whole_figure(report, rule.figure)
    return caused_figure(report, report["summary"].get("causes"), rule.figure, rule.cause)


def _moved_layers(difference: Difference, rule: Regression, node: str) -> Iterator[_Moved]:
    """Layers that both sides have; the head's name counts, or the base's."""
    comparison, (base, head) = difference.comparison, _runs(difference)
    found: list[tuple[tuple[str, ...], float | None, float | None]]
    if is_of_groups(rule.figure):
        found = [
            (row.nodes, _of_rows(base, row.base_rows, rule), _of_rows(head, row.head_rows, rule))
            for row in comparison.layers
            if not row.is_rest and _is_about(row, node)
        ]
    else:
        found = [
            (row.nodes, _of_kernels(base, row.base_kernels, rule),
             _of_kernels(head, row.head_kernels, rule))
            for row in comparison.kernels
            if _is_about(row, node)
        ]  # fmt: skip
    for nodes, before, after in found:
        if before is not None and after is not None:
            yield _Moved(nodes, before, after)


def _is_about(row: LayerDelta | KernelDelta, node: str) -> bool:
    """Whether both sides have the row, and a node of it is of the pattern."""
    sides = (row.base_nodes, row.head_nodes)
    return all(sides) and any(fnmatchcase(name, node) for names in sides for name in names)


def _runs(difference: Difference) -> tuple[Run, Run]:
    return difference.base, difference.head


def _of_rows(run: Run, places: Sequence[int], rule: Regression) -> float | None:
    """Time of rows, or of some of their causes."""
    rows = [run.rows[place] for place in places]
    if rule.cause is None:
        cycles = sum(row.cycles for row in rows)
    else:
        pattern = rule.cause
        cycles = sum(n for row in rows for cause, n in row.causes if fnmatchcase(cause, pattern))
    return time_figure(run.report, cycles, rule.figure)


def _of_kernels(run: Run, places: Sequence[int], rule: Regression) -> float | None:
    values = [row_figure(run.report, run.kernels[place].told, rule.figure) for place in places]
    return None if None in values else sum(value for value in values if value is not None)


def _allowed(
    rule: Regression, pair: Pair, difference: Difference, moved: _Moved, at: str
) -> Finding:
    figure = figure_of(rule.figure)
    assert figure is not None
    worse = moved.base - moved.head if figure.is_more_better else moved.head - moved.base
    room = max(
        abs(moved.base) * (rule.percent or 0.0) / 100.0 if rule.percent is not None else 0.0,
        rule.absolute or 0.0,
    )
    limit = moved.base - room if figure.is_more_better else moved.base + room
    what = subject(pair.label, moved.nodes, rule.cause)
    is_failed = worse > room
    said = _sentence(what, rule.figure, moved)
    if rule.figure == "energy_mj" and not moved.nodes:
        said += difference.energy_cause
    if is_failed:
        words = [f"{rule.percent:g} %"] if rule.percent is not None else []
        words += [amount(rule.absolute, rule.figure)] if rule.absolute is not None else []
        allowed = " or ".join(words)
        said = f"{said}; allowed: {allowed}"
        if rule.figure in _TIME and not moved.nodes and rule.cause is None:
            said = f"{pair.label} {difference.comparison.headline}; allowed: {allowed}"
    return Finding(
        Check.REGRESSION, Result.FAILED if is_failed else Result.PASSED, said, at, *pair.key,
        rule.figure, moved.nodes, rule.cause, moved.base, moved.head, limit,
    )  # fmt: skip


def _sentence(what: str, figure: str, moved: _Moved) -> str:
    if moved.base == moved.head:
        return f"{what}: {figure} is {amount(moved.head, figure)}, as in the base"
    shown = change(moved.base, moved.head, figure)
    if figure in ("latency_ms", "latency_cycles") and moved.base:
        share = abs(moved.head / moved.base - 1) * 100
        word = "slower" if moved.head > moved.base else "faster"
        return f"{what} {share:.3g} % {word} ({shown})"
    return f"{what}: {figure} {percent(moved.base, moved.head)} ({shown})"


def host_findings(
    pairs: Sequence[Pair], differences: Mapping[Key, Difference], result: Result
) -> Iterator[Finding]:
    """Nodes that the host runs and did not run before, those that the base has not got included."""
    for pair in pairs:
        difference = differences.get(pair.key)
        if difference is None:
            continue
        comparison = difference.comparison
        before = {row.head_node: row.base_target for row in comparison.placement}
        added = set(comparison.nodes.added)
        for placed in difference.head.placement:
            if placed.target != HOST:
                continue
            went = before.get(placed.node, HOST) != HOST
            if went or placed.node in added:
                was = "it did not before" if went else "the base has no such node"
                said = (
                    f"{pair.label}: {placed.node} runs on the host, {was}:"
                    f" {placed.reason_code} {placed.reason}"
                )
                yield Finding(
                    Check.HOST, result, said, "/changes/host", *pair.key, nodes=(placed.node,)
                )
