"""Send regions that are not worth an invocation back to the host, by the target's criteria.

Neighbouring host operators are not merged into other regions afterwards: a dropped operator is host
work for good (BYOC section 3.1.3; the paper's example removes sub-graphs without MACs).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from worker.compiler.machine.machine import Criteria
from worker.compiler.partition.measure import Measured
from worker.compiler.partition.parts import Region
from worker.compiler.rejection import ReasonCode


@dataclass(frozen=True, slots=True)
class Dropped:
    """Why a region goes back: the rule's name, the reason of its operators, limit and actual."""

    rule: str
    reason_code: ReasonCode
    sentence: str


def dropped_regions(
    regions: Sequence[Region],
    measured: Sequence[Measured],
    criteria_of: Mapping[str, Criteria],
    names: Sequence[str],
) -> tuple[Dropped | None, ...]:
    """For every region (in execution order) why it goes back to the host; None: it stays.

    `measured` is parallel to `regions`; `criteria_of` lists the targets whose rules apply; `names`
    are node names by position.  Cost: linear.
    """
    found: list[Dropped | None] = []
    for region, size in zip(regions, measured, strict=True):
        rules = criteria_of.get(region.target)
        found.append(None if rules is None else _too_small(region, size, rules, names))
    for target, rules in criteria_of.items():
        kept = [k for k, r in enumerate(regions) if r.target == target and found[k] is None]
        if not rules.single_region or len(kept) < 2:
            continue
        best = max(kept, key=lambda k: (measured[k].macs, measured[k].num_ops, -k))
        first = names[regions[best].nodes[0]]
        for k in kept:
            if k != best:
                found[k] = Dropped(
                    "single_region",
                    ReasonCode.SINGLE_REGION,
                    f"{target} takes one region per model: the one at {first} has"
                    f" {measured[best].macs} MACs in {measured[best].num_ops} operators, this one"
                    f" (at {names[regions[k].nodes[0]]}) {measured[k].macs} in"
                    f" {measured[k].num_ops}",
                )
    return tuple(found)


def _too_small(
    region: Region, size: Measured, rules: Criteria, names: Sequence[str]
) -> Dropped | None:
    first = names[region.nodes[0]]
    for rule, actual, least, unit in (
        ("min_macs", size.macs, rules.min_macs, "MACs"),
        ("min_ops", size.num_ops, rules.min_ops, "operators"),
    ):
        if actual < least:
            return Dropped(
                rule,
                ReasonCode.CRITERION,
                f"its region (at {first}) has {actual} {unit}, {region.target} takes regions of"
                f" at least {least} ({rule})",
            )
    return None
