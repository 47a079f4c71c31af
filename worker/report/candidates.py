"""Ways of choosing regions that were simulated (`partition.candidates`), and the host's victory."""

from __future__ import annotations

from collections.abc import Iterable

from worker.compiler.errors import Detail
from worker.compiler.judge.compiled import CompiledModel, Program
from worker.compiler.judge.figures import rank_by
from worker.compiler.options import CompileOptions
from worker.compiler.partition.plan import RegionRule
from worker.report.strategies import figures_of


def candidates_section(compiled: CompiledModel, options: CompileOptions) -> list[Detail]:
    """A row per way of choosing regions: the best program that it has; none where one was named.

    Figures are of whole simulated programs, null where a way has no program.
    """
    rules = [rule for rule in RegionRule if any(rule in p.rules for p in compiled.programs)]
    if len(rules) < 2:
        return []
    return [_row(rule, compiled, options) for rule in rules]


def host_verdict(compiled: CompiledModel, options: CompileOptions) -> str:
    """What a report begins with where regions were chosen by cost and the host won: the figures of
    the best program on the accelerator, and how to have it; empty elsewhere."""
    if not compiled.programs or compiled.is_offloading:
        return ""
    chosen, *others = compiled.programs
    if RegionRule.WEIGHED not in {rule for program in compiled.programs for rule in program.rules}:
        return ""
    rival = _best((program for program in others if program.regions), options)
    if rival is None or rival.figures is None or chosen.figures is None:
        return ""
    forced = RegionRule.CRITERIA
    if RegionRule.GREEDY in rival.rules or forced not in rival.rules:
        forced = RegionRule.GREEDY
    return (
        f"The host alone is best by {options.objective}: {chosen.figures.cycles} cycles against"
        f" {rival.figures.cycles} of the best program on the accelerator ({rival.name},"
        f" {rival.regions} regions, {rival.kernels} kernels); --partition {forced} forces the"
        " accelerator"
    )


def _best(programs: Iterable[Program], options: CompileOptions) -> Program | None:
    found = [(p, p.figures) for p in programs if p.figures is not None]
    best = min(found, key=lambda each: rank_by(options.objective, each[1]), default=None)
    return None if best is None else best[0]


def _row(rule: RegionRule, compiled: CompiledModel, options: CompileOptions) -> dict[str, Detail]:
    own = [program for program in compiled.programs if rule in program.rules]
    chosen = compiled.programs[0]
    best = chosen if rule in chosen.rules else _best(own, options) or own[0]
    return {
        "regions_by": str(rule),
        "chosen": best is chosen,
        **figures_of(best),
        "regions": best.regions,
        "kernels": best.kernels,
        "same_as": [str(other) for other in best.rules if other is not rule],
        "reason": best.reason,
    }
