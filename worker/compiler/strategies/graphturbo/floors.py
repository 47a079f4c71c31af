"""What a layer takes at least, whatever its tiles: plans that cannot win are not searched for.

Engines of a core work side by side and tiles pad no less than the whole, so the busiest engine's
work, shared out evenly, is a lower bound; so is what home must take where a layer writes there, and
what it must give: tiles of an operand together touch at least what the whole layer touches.
Source: our own.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import prod

from worker.compiler.cost.compute import keeps_sums, pace_of
from worker.compiler.ir.op import Access, Tensor, TensorOp
from worker.compiler.machine.machine import Engine, MemoryLevel
from worker.compiler.schedule.nodes import Box
from worker.compiler.strategies.graphturbo.section_context import SectionContext
from worker.compiler.tiling.nest.facts import Facts


def least_cycles(
    section: SectionContext, number: int, near: Collection[str], whole_chip: bool
) -> int:
    """No tiles of a layer are predicted to take fewer cycles with only `near` tensors in GB.

    Cost: linear in the layer's accesses.
    """
    layer, site = section.layers[number], section.site
    ops = [section.uses.op(name) for name in layer.ops]
    moved = moved_tensors(
        ops, section.uses.facts[number], layer.is_chain, section.uses.leaving(number)
    )
    fetched, stored = (names.difference(near) for names in moved)
    teams = 1 if whole_chip else site.spread.clusters
    port = port_cycles(
        ops, section.graph.tensors, section.domains(number), teams, fetched, stored,
        site.machine.home,
    )  # fmt: skip
    return int(max(port, engine_floor(section, number, whole_chip)))


def engine_floor(section: SectionContext, number: int, whole_chip: bool) -> float:
    """The same, as far as engines tell, and on the whole chip what is stored at home."""
    site = section.site
    cores = site.machine.num_cores if whole_chip else site.spread.cores
    return floor_cycles(
        [section.uses.op(name) for name in section.layers[number].ops],
        section.engines, section.graph.tensors, section.domains(number), cores,
        section.uses.leaving(number) if whole_chip else frozenset(), site.machine.home,
    )  # fmt: skip


def floor_cycles(
    ops: Sequence[TensorOp],
    engines: Mapping[str, Engine],
    tensors: Mapping[str, Tensor],
    domains: Mapping[str, Box] | None,
    cores: int,
    stored: frozenset[str],
    home: MemoryLevel,
) -> float:
    """Cycles that a layer of `ops` on `cores` cores takes at least.

    `domains`: the part of each operator's domain that is computed; None: all of it.  `stored`: what
    is written at home.
    """
    busy: dict[str, float] = {}
    size = 0
    for op in ops:
        engine, extents = engines[op.name], _extents(op, domains)
        pace = pace_of(op, engine, tensors, stays=keeps_sums(op, engine))
        one = pace.least(tuple(extents.values()))
        busy[engine.name] = busy.get(engine.name, 0.0) + one / cores
        if op.write.tensor in stored:
            used = {name for index in op.write.index for name in index.variables()}
            elems = prod(extents[axis.name] for axis in op.domain if axis.name in used)
            size += elems * tensors[op.write.tensor].dtype.size_bytes
    return max(size / home.write_bytes_per_cycle, *busy.values())


def moved_tensors(
    ops: Sequence[TensorOp], facts: Facts | None, is_chain: bool, leaving: Collection[str]
) -> tuple[frozenset[str], frozenset[str]]:
    """What a layer fetches and stores tile by tile, wherever that lives and whatever its tiles.

    `leaving`: what of its results others use.  What is looked up is read in place, and a layer that
    may run as a row chain or as a nest counts with what both move.
    """
    made = {op.write.tensor for op in ops}
    accesses = [access for op in ops for access in op.reads]
    looked_up = {a.tensor for a in accesses if any(e.has_lookup for e in a.index)}
    fetched = {a.tensor for a in accesses} - made - looked_up
    stored = made.intersection(leaving)
    if facts is not None:
        fetched &= {operand.tensor for operand in facts.fetched}
        stored &= set() if facts.stored is None else {facts.stored.tensor}
    elif not is_chain:
        return frozenset(), frozenset()
    return frozenset(fetched), frozenset(stored)


def port_cycles(
    ops: Sequence[TensorOp],
    tensors: Mapping[str, Tensor],
    domains: Mapping[str, Box] | None,
    teams: int,
    fetched: Collection[str],
    stored: Collection[str],
    home: MemoryLevel,
) -> float:
    """Cycles that home's port takes at least for a layer that `teams` teams run side by side.

    `domains`: as for `floor_cycles`.  `fetched` and `stored` are moved from and to home tile by
    tile, by every team what it reads and writes; other tensors do not count.
    """
    moved: tuple[dict[str, int], dict[str, int]] = ({}, {})
    for op in ops:
        extents = _extents(op, domains)
        for access, wanted, sizes in (
            *((access, fetched, moved[0]) for access in op.reads),
            (op.write, stored, moved[1]),
        ):
            name = access.tensor
            if name in wanted:
                size = _touched(op, access, tensors[name].shape, extents)
                sizes[name] = max(sizes.get(name, 0), size * tensors[name].dtype.size_bytes)
    reading, writing = (sum(sizes.values()) * teams for sizes in moved)
    return home.transfer_cycles(reading, writing)


def _extents(op: TensorOp, domains: Mapping[str, Box] | None) -> dict[str, int]:
    if domains is None:
        return {axis.name: axis.extent for axis in op.domain}
    spans = zip(op.domain, domains[op.name], strict=True)
    return {axis.name: min(span.extent, axis.extent) for axis, span in spans}


def _touched(op: TensorOp, access: Access, shape: Sequence[int], extents: Mapping[str, int]) -> int:
    """Elements inside the tensor that an access touches at least, wherever a part of the domain
    stands.

    Sums of variables take at least as many values as their steps add up to; what an access without
    cuts reaches beyond the ends may be all there, and an axis counts in one dimension only.
    """
    whole = {axis.name: axis.extent for axis in op.domain}
    used: set[str] = set()
    total = 1
    for expr, size in zip(access.index, shape, strict=True):
        if not expr.is_linear:
            continue
        names = expr.variables()
        travel = {name: expr.coeff(name) * (whole[name] - 1) for name in names}
        low = expr.const + sum(min(0, far) for far in travel.values())
        high = expr.const + sum(max(0, far) for far in travel.values())
        steps = sum(extents[name] - 1 for name in names if travel[name] and name not in used)
        total *= max(0, 1 + steps - max(0, -low) - max(0, high - size + 1))
        used.update(names)
    return total
