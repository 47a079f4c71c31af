"""Ways to split a layer over the cores of a team, cheapest first, before any tile is chosen.

A split decides how much every core computes and which operands several cores need: those are read
once per core that needs them.  Tiles change neither, so splits can be ranked without them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import combinations
from math import prod

from worker.compiler.cost.compute import pace_of
from worker.compiler.machine.machine import Engine, Machine
from worker.compiler.tiling.factors import divisors
from worker.compiler.tiling.nest.facts import Facts, Operand
from worker.compiler.tiling.nest.plan import Team

MAX_AXES = 4
"""Largest output axes that are split."""


def ranked_splits(
    facts: Facts, engine: Engine, machine: Machine, team: Team
) -> tuple[Mapping[str, int], ...]:
    """Splits of output axes over at most `team.cores` cores, by rising lower bound of cycles.

    Cost: about fifty evaluations.
    """
    if facts.out is None:
        return ()
    found: list[tuple[float, int, Mapping[str, int]]] = []
    for number, ways in enumerate(_splits(facts, team.cores)):
        found.append((_cycles(facts, engine, machine, team, ways), number, ways))
    found.sort(key=lambda entry: entry[:2])
    return tuple(ways for _, _, ways in found)


def least_cycles(facts: Facts, engine: Engine, machine: Machine, team: Team) -> float:
    """What the best split needs at least if every operand is loaded once; 0 when there is none."""
    ways = ranked_splits(facts, engine, machine, team)
    return _cycles(facts, engine, machine, team, ways[0]) if ways else 0.0


def _splits(facts: Facts, cores: int) -> Iterator[Mapping[str, int]]:
    """All cores over one axis or two, where the axes have that many steps."""
    axes = [name for name in facts.out_axes if facts.extents[name] > 1 and name not in facts.whole]
    axes = sorted(axes, key=lambda n: (-facts.extents[n], n))[:MAX_AXES]
    axes = [name for name in facts.out_axes if name in axes]
    for name in axes:
        number = _fitting(facts, name, cores)
        if number > 1:
            yield {name: number}
    for first, second in combinations(axes, 2):
        for number in divisors(cores)[1:-1]:
            one, other = _fitting(facts, first, number), _fitting(facts, second, cores // number)
            if one == number and other == cores // number:
                yield {first: one, second: other}


def _fitting(facts: Facts, name: str, cores: int) -> int:
    """Cores along one axis: at most its steps, and a divisor where parts must be equal."""
    extent = facts.extents[name]
    limit = min(extent, cores)
    if name in facts.exact or name in facts.single:
        return max(d for d in divisors(extent) if d <= limit)
    return -(-extent // -(-extent // limit))


def _cycles(
    facts: Facts, engine: Engine, machine: Machine, team: Team, ways: Mapping[str, int]
) -> float:
    """The slowest of computing and of each memory's traffic, if every core reads its part once."""
    share = {n: -(-e // ways.get(n, 1)) for n, e in facts.extents.items()}
    cores = prod(ways.values())
    stays = facts.registers is not None
    pace = pace_of(facts.op, engine, facts.tensors, stays=stays, held=facts.held)
    busy = pace.startup_cycles + pace.least(tuple(share[a.name] for a in facts.op.domain))
    home = machine.home.name
    bytes_at: dict[str, float] = {}
    for operand in (*facts.fetched, *(() if facts.stored is None else (facts.stored,))):
        base = facts.base.get(operand.tensor, home)
        own = _bytes(facts, operand, share)
        # Each different part leaves home once if a shared buffer can pass it on.
        parts = prod(n for name, n in ways.items() if name in operand.axes)
        bytes_at[home] = bytes_at.get(home, 0.0) + (own * parts if base == home else 0)
        near = base if base != home else _shared(machine, engine)
        bytes_at[near] = bytes_at.get(near, 0.0) + own * cores
    slowest = float(busy)
    for name, size in bytes_at.items():
        level = machine.level(name)
        rate = level.read_bytes_per_cycle * team.instances(level)
        slowest = max(slowest, size * team.copies / rate)
    return slowest


def _shared(machine: Machine, engine: Engine) -> str:
    """The level above the engine's: what every core reads passes it, or its port."""
    return machine.levels[max(0, machine.level_index(engine.memory) - 1)].name


def _bytes(facts: Facts, operand: Operand, share: Mapping[str, int]) -> int:
    return prod(operand.widths(share, facts.extents)) * operand.dtype.size_bytes
