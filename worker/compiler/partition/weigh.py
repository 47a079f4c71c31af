"""Automatic mode: regions stay, shrink, join or go where the whole program is cheapest.

The measure is `Balance.total`.  Candidates for a region are: as it is, gone, and trimmed at its
borders by minimum cuts (`trim`): the head first, then the tail, the other way round, and the convex
hull of its share in one cut over all regions at once.  Exact: each cut, for work, transfers and
launches.  Greedy: the order in which regions are tried, and invocations of host parts, which every
trial counts but no cut sees.  A trial is accepted only when the total falls, so the result never
costs more than what came in.

Source: BYOC section 3.1.3 asks for user criteria only.  Deviates: simulated costs decide.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from worker.compiler.errors import InternalError
from worker.compiler.frontend.model import OnnxModel
from worker.compiler.machine.machine import Machine
from worker.compiler.partition.balance import ON_HOST, Balance, NodeCosts, balance_of
from worker.compiler.partition.flow import Flow, read_flow
from worker.compiler.partition.measure import Ruler, num_ops
from worker.compiler.partition.parts import Region, build_parts
from worker.compiler.partition.plan import HOST, Action, Part, Partitioning, RegionDecision
from worker.compiler.partition.quotient import reverse
from worker.compiler.partition.trim import Closure, Trimmer
from worker.compiler.rejection import ReasonCode

_ROUNDS = 3
_EFFORT = 3_000_000
"""Units and values looked at by all trials together: some seconds at most."""
_RULE = "weighed cost"


def weigh(
    model: OnnxModel,
    machine: Machine,
    parts: Partitioning,
    costs: NodeCosts,
    targets: Collection[str] | None = None,
) -> Partitioning:
    """Drop, trim and join the regions of `parts` where that lowers the program's cycles.

    `targets`: names of those whose regions may change, None for all.
    Only nodes on the accelerator move, and only to the host.  Values of unknown size count as 0
    bytes; the decisions of regions that they touch say so.

    Raises:
        InternalError: `costs` do not cover the model.
    Cost: a few minimum cuts and trials per region; a trial is linear in the model, and their number
        is bounded by a fixed effort.
    """
    flow = read_flow(model)
    if not len(costs.accelerator_cycles) == len(costs.host_cycles) == len(flow.names):
        raise InternalError(
            "TW-INT-001", "node costs do not cover the model", stage="partition",
            actual=len(costs.host_cycles), limit=len(flow.names),
        )  # fmt: skip
    if not any(targets is None or part.target in targets for part in parts.regions):
        return parts
    ruler = Ruler(flow, tuple(model.ir.graph))
    balance, unknown = balance_of(flow, machine, parts.parts, costs)
    may_change = [targets is None or part.target in targets for part in parts.regions]
    search = _Search(balance, machine, parts.regions, ruler, may_change)
    search.run()
    return _result(flow, parts, search, set(unknown), ruler)


class _Search:
    """The current side of every unit, and the trials that change it."""

    def __init__(
        self,
        balance: Balance,
        machine: Machine,
        regions: Sequence[Part],
        ruler: Ruler,
        may_change: Sequence[bool],
    ) -> None:
        self.balance = balance
        self.regions = regions
        self.open = [number for number, may in enumerate(may_change) if may]
        self.units: list[list[int]] = [[] for _ in regions]
        for unit, region in enumerate(balance.region_of):
            if region != ON_HOST:
                self.units[region].append(unit)
        self.side = list(balance.region_of)
        self.joined: dict[int, tuple[int, ...]] = {}
        """Regions that share an invocation, by the first of them."""
        self._copies = balance.copy_cycles(range(len(balance.values)), self.side)
        self.cycles = balance.run_cycles(self.side) + self._copies
        self._machine = machine
        self._ruler = ruler
        self._trimmer = Trimmer(balance)
        self._before = reverse(balance.successors)
        self._trials = max(64, _EFFORT // (len(balance.members) + len(balance.values)))

    def run(self) -> None:
        """Start from the best of: as it came, all trimmed by one cut, nothing; then improve region
        by region; then join."""
        free = [unit for region in self.open for unit in self.units[region]]
        at_once = set(self._trimmer.best(free, self.side, Closure.FREE))
        hulls = {
            region: self._trimmer.hull(
                [u for u in self.units[region] if u in at_once], self.units[region]
            )
            for region in self.open
        }
        base = list(self.side)
        for keep in (hulls, dict.fromkeys(self.open, ())):
            trial = list(base)
            for region, kept in keep.items():
                self._assign(trial, region, kept if self._is_allowed(region, kept) else ())
            self._accept(trial)
        for _ in range(_ROUNDS):
            before = self.cycles
            for region in self.open:
                for kept in self._candidates(region, hulls[region]):
                    trial = list(self.side)
                    self._assign(trial, region, kept)
                    self._accept(trial)
            if self.cycles == before:
                break
        self._join()

    def gain(self, region: int, kept: Sequence[int]) -> int | None:
        """Cycles that the program costs more when `region` keeps `kept` instead; None when the
        effort is spent."""
        if self._trials <= 0:
            return None
        trial = list(self.side)
        self._assign(trial, region, kept)
        self._trials -= 1
        return (
            self.balance.run_cycles(trial)
            + self._copies
            + self._copies_changed(trial)
            - (self.cycles)
        )

    def _candidates(self, region: int, hull: tuple[int, ...]) -> list[tuple[int, ...]]:
        units = self.units[region]
        found: dict[tuple[int, ...], None] = {tuple(units): None, (): None, hull: None}
        if self._trials > 0:
            for first, then in ((Closure.HEAD, Closure.TAIL), (Closure.TAIL, Closure.HEAD)):
                once = self._trimmer.best(units, self.side, first)
                found[once] = None
                trial = list(self.side)
                self._assign(trial, region, once)
                found[self._trimmer.best(once, trial, then)] = None
        return [kept for kept in found if self._is_allowed(region, kept)]

    def _is_allowed(self, region: int, kept: Sequence[int]) -> bool:
        """Whether what is left of a region can run and meets its target's least sizes."""
        if not kept or len(kept) == len(self.units[region]):
            return True
        alive = set(kept)
        needs = self.balance.needs
        if any(other not in alive for unit in kept for other in needs.get(unit, ())):
            return False
        rules = self._machine.target(self.regions[region].target).criteria
        nodes = [n for unit in kept for n in self.balance.members[unit]]
        return self._num_ops(kept) >= rules.min_ops and self._ruler.macs(nodes) >= rules.min_macs

    def _alive(self, region: int) -> list[int]:
        """Units on the accelerator under the number of `region`, joined regions included."""
        partners = self.joined.get(region, (region,))
        return [u for k in partners for u in self.units[k] if self.side[u] == region]

    def _num_ops(self, units: Sequence[int]) -> int:
        return sum(self.balance.is_operator[unit] for unit in units)

    def _assign(self, side: list[int], region: int, kept: Sequence[int]) -> None:
        for unit in self.units[region]:
            side[unit] = ON_HOST
        for unit in kept:
            side[unit] = region

    def _accept(self, trial: list[int]) -> bool:
        if self._trials <= 0 or trial == self.side:
            return False
        self._trials -= 1
        copies = self._copies + self._copies_changed(trial)
        cycles = self.balance.run_cycles(trial) + copies
        if cycles >= self.cycles:
            return False
        self.side, self.cycles, self._copies = trial, cycles, copies
        return True

    def _copies_changed(self, trial: list[int]) -> int:
        """Cycles of transfers that `trial` has more than the current sides."""
        moved = [unit for unit, region in enumerate(trial) if region != self.side[unit]]
        touched = dict.fromkeys(k for unit in moved for k in self.balance.values_of[unit])
        after = self.balance.copy_cycles(touched, trial)
        return after - self.balance.copy_cycles(touched, self.side)

    def _join(self) -> None:
        """Let regions of one target share an invocation where a launch per region is paid."""
        for position, first in enumerate(self.open):
            if not self.balance.launch_of.get(first):
                continue
            related: set[int] | None = None
            for second in self.open[position + 1 :]:
                if self._trials <= 0:
                    return
                if not self._may_join(first, second):
                    continue
                if related is None:
                    related = self._related(first)
                if second in related:
                    continue
                trial = [first if region == second else region for region in self.side]
                if self._accept(trial):
                    self.joined[first] = (*self.joined.get(first, (first,)), second)
                    related = None

    def _related(self, region: int) -> set[int]:
        """Regions on a path from or to `region`: joining one with it would make a cycle, or, for
        neighbours, undo a split."""
        self._trials -= 1
        members: dict[int, list[int]] = {}
        for unit, side in enumerate(self.side):
            members.setdefault(side, []).append(unit)
        found: set[int] = set()
        for edges in (self.balance.successors, self._before):
            seen = set(members.get(region, ()))
            stack = list(seen)
            entered = {region}
            while stack:
                for other in edges[stack.pop()]:
                    if other in seen:
                        continue
                    side = self.side[other]
                    fresh = [other]
                    if side != ON_HOST and side not in entered:
                        entered.add(side)
                        fresh = members[side]
                    seen.update(fresh)
                    stack += fresh
            found |= entered
        return found

    def _may_join(self, first: int, second: int) -> bool:
        """Same target, launched by region, both alive, and together within its limits."""
        target = self.regions[first].target
        if target != self.regions[second].target:
            return False
        units = [self._alive(first), self._alive(second)]
        if not all(units):
            return False
        rules = self._machine.target(target).criteria
        both = [*units[0], *units[1]]
        nodes = [n for unit in both for n in self.balance.members[unit]]
        return (
            (rules.max_ops is None or self._num_ops(both) <= rules.max_ops)
            and (rules.max_macs is None or self._ruler.macs(nodes) <= rules.max_macs)
            and (
                rules.max_weight_bytes is None
                or sum(self._ruler.weights(nodes).values()) <= rules.max_weight_bytes
            )
        )


def _result(
    flow: Flow, parts: Partitioning, search: _Search, unknown: set[str], ruler: Ruler
) -> Partitioning:
    """Regions, rows and decisions of the search's outcome."""
    balance = search.balance
    members: dict[int, list[int]] = {}
    for unit, region in enumerate(search.side):
        if region != ON_HOST:
            members.setdefault(region, []).extend(balance.members[unit])
    composites = [c for part in parts.regions for c in part.composites]
    kept = []
    for region in sorted(members):
        nodes = tuple(sorted(members[region]))
        present = set(nodes)
        inside = tuple(c for c in composites if present.issuperset(c.nodes))
        kept.append(Region(search.regions[region].target, nodes, inside))
    rows = list(parts.placement)
    weighed: dict[tuple[str, str], RegionDecision] = {}
    old = {(d.first_node, d.target): d for d in parts.decisions if d.action is not Action.DROPPED}
    for number in search.open:
        part = search.regions[number]
        left = [u for u in search.units[number] if search.side[u] != ON_HOST]
        decision = _decision(flow, search, number, left, unknown, ruler)
        key = decision.first_node, decision.target
        before = old.get(key)
        if before is not None and decision.action is Action.KEPT:
            merged = f"{before.sentence}; {decision.sentence}"
            if before.action is Action.SPLIT:
                decision = replace(decision, action=before.action, rule=before.rule)
            decision = replace(decision, sentence=merged)
        weighed[key] = decision
        gone = set(part.nodes) - {n for u in left for n in balance.members[u]}
        for node in sorted(gone):
            rows[node] = replace(
                rows[node], target=HOST, reason_code=ReasonCode.WEIGHED,
                reason=decision.sentence, composite="",
            )  # fmt: skip
    decisions = [
        d if d.action is Action.DROPPED else weighed.pop((d.first_node, d.target), d)
        for d in parts.decisions
    ]
    return Partitioning(build_parts(flow, kept), tuple(rows), (*decisions, *weighed.values()))


def _decision(
    flow: Flow,
    search: _Search,
    number: int,
    left: Sequence[int],
    unknown: set[str],
    ruler: Ruler,
) -> RegionDecision:
    """What became of one region: both sides' costs as it came in, and what decided."""
    part, units = search.regions[number], search.units[number]
    work, moved, launches, host = search.balance.region_costs(units)
    region = Region(part.target, part.nodes, part.composites)
    measured = ruler.measure(region)
    sums = (
        f"{work + moved + launches} cycles on {part.target} ({work} work, {moved} transfers,"
        f" {launches} launches), {host} on the host"
    )
    home = search.side[left[0]] if left else ON_HOST
    partners = [k for k in search.joined.get(home, ()) if k != number]
    if not left:
        action, otherwise = Action.DROPPED, search.gain(number, units)
        text = "the program is cheaper with it on the host"
    elif len(left) < len(units):
        action, otherwise = Action.TRIMMED, search.gain(number, units)
        text = (
            f"{len(units) - len(left)} of its {num_ops(region)} operators are cheaper on the host"
        )
    elif partners:
        action, otherwise = Action.JOINED, None
        names = ", ".join(flow.names[search.regions[k].nodes[0]] for k in partners)
        text = f"runs in one invocation with the region at {names}"
    else:
        action, otherwise = Action.KEPT, search.gain(number, ())
        text = "the program is cheaper with it on the accelerator"
    if otherwise is not None:
        text += f" by {otherwise} cycles"
    touched = sum(name in unknown for name in (*part.inputs, *part.outputs))
    if touched:
        text += f"; {touched} of its values have sizes known only at run time and count 0 bytes"
    row = ruler.decide(region, measured, action, _RULE, f"{sums}; {text}")
    return replace(
        row, accelerator_cycles=work, transfer_cycles=moved, launch_cycles=launches,
        host_cycles=host,
    )  # fmt: skip
