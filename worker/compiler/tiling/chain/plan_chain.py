"""Row chains: consecutive operators without a contraction, fused row by row in the local buffer.

Softmax, normalisations, pooling with what is pointwise around it, residual sums, transposes: each
core takes a share of the rows and walks over it in tiles; whatever the operators of the chain hand
to each other stays in the core's local buffer.  This module finds the chains and plans one:
`row_chain_cut` says what a tile needs, `row_chain_search` chooses which axes are rows, rows per
tile and how many cores, `row_chain_emit` writes the tree.
Source: paper sections 4.1 and 4.2.  Deviation: the paper picks tiles by schedule templates per
operator kind; here they follow from the access maps, and the cheapest prediction wins.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from worker.compiler.cost.compute import contraction, engines_of, pick_engine
from worker.compiler.cost.fit import missing_engine, not_fusible
from worker.compiler.errors import Shortfall
from worker.compiler.ir.graph import Graph
from worker.compiler.ir.op import TensorOp
from worker.compiler.ir.reductions import is_second_stage
from worker.compiler.ir.region import is_convex, predecessors
from worker.compiler.machine.machine import Engine, Machine
from worker.compiler.schedule.nodes import Box
from worker.compiler.schedule.walk import reach_memory
from worker.compiler.tiling.chain.cut import Cut, chainable, cut_rows
from worker.compiler.tiling.chain.facts import Chain, chain_of
from worker.compiler.tiling.chain.plan import (
    ChainPlan,
    Split,
    footprint_bytes,
    is_allowed,
)
from worker.compiler.tiling.chain.search import Search, row_axes, rows_of_size

MAX_GAP = 8
"""Operators looked at beyond the last one that extended a chain."""


def row_chains(
    graph: Graph, ops: Sequence[TensorOp], machine: Machine
) -> tuple[tuple[TensorOp, ...], ...]:
    """Cut `ops` (in graph order) into runs that share a cut along rows, each as long as possible.

    Every operator is in one run, and runs follow each other in order.  A run of several operators
    is connected, convex in the graph, and fits the local buffer in its smallest tiles.
    Contractions, recurrences and operators that leave holes in their results stay alone; what is
    alone may still have no plan.  Cost: cuts for each operator x the length of its run.
    """
    direct = predecessors(graph.ops)
    position = {op.name: k for k, op in enumerate(graph.ops)}
    fits = [_eligible(op, graph, machine) for op in ops]
    found: list[tuple[TensorOp, ...]] = []
    first = 0
    while first < len(ops):
        best = end = first + 1
        while end < len(ops) and all(fits[first : end + 1]) and end - best < MAX_GAP:
            if is_second_stage(ops[end], graph):
                break
            end += 1
            run = tuple(ops[first:end])
            bits = sum(1 << position[op.name] for op in run)
            if _connected(run) and is_convex(direct, bits) and _fuses(graph, run, machine):
                best = end
        found.append(tuple(ops[first:best]))
        first = best
    return tuple(found)


def _eligible(op: TensorOp, graph: Graph, machine: Machine) -> bool:
    return (
        contraction(op) is None
        and chainable(op)
        and pick_engine(op, machine, graph.tensors) is not None
    )


def _connected(run: tuple[TensorOp, ...]) -> bool:
    """True when results join all operators of a run, whatever the direction."""
    parts = [{op.write.tensor, *op.input_names()} for op in run]
    made = {op.write.tensor for op in run}
    reached = parts[0] & made
    waiting = parts[1:]
    while waiting:
        near = [part for part in waiting if part & reached]
        if not near:
            return False
        for part in near:
            reached |= part & made
        waiting = [part for part in waiting if not part & reached]
    return True


def _fuses(graph: Graph, run: tuple[TensorOp, ...], machine: Machine) -> bool:
    chain = chain_of(graph, run, None)
    engines = _engines(chain, machine)
    if isinstance(engines, Shortfall) or not _closed(graph, chain):
        return False
    level = machine.level(reach_memory(engines[run[0].name].name, machine))
    axes = row_axes(chain)
    # Larger tiles recompute less of a halo.
    halves = tuple(
        (rows_of_size(chain, r.axis, -(-r.count * r.tile // n)),) for r in axes for n in (2, 8)
    )
    for rows in (*((row,) for row in axes), axes[:2], axes, *halves):
        cut = cut_rows(chain, rows) if rows else None
        if cut is None or not is_allowed(chain, cut, tuple(Split(1, r.count) for r in rows)):
            continue
        if footprint_bytes(chain, cut, {}, level, {}) <= level.usable_bytes:
            return True
    return False


def _engines(chain: Chain, machine: Machine) -> Mapping[str, Engine] | Shortfall:
    """An engine per operator, all at one memory."""
    found = engines_of(chain.ops, chain.tensors, machine)
    if isinstance(found, str):
        unable = next(op for op in chain.ops if op.name == found)
        return missing_engine(unable, chain.tensors, machine)
    if len({reach_memory(engine.name, machine) for engine in found.values()}) > 1:
        return not_fusible(tuple(found))
    return found


def _closed(graph: Graph, chain: Chain) -> bool:
    """No operator outside writes a part of a result that the chain itself reads."""
    inside = {op.name for op in chain.ops}
    read = {name for op in chain.ops for name in op.input_names()}
    others = {op.write.tensor for op in graph.ops if op.name not in inside}
    return not (chain.made & read & others)


def plan_chain(
    graph: Graph,
    ops: Sequence[TensorOp],
    domains: Mapping[str, Box] | None,
    location_of: Mapping[str, str],
    machine: Machine,
    *,
    num_cores: int,
    budget_bytes: int,
    num_groups: int = 1,
) -> ChainPlan | Shortfall:
    """The cheapest way to run `ops` as one chain on `num_cores` cores.

    `domains` gives per operator the slice to compute, with starts over enclosing loops (None: all).
    `location_of` gives per outside operand or result the level it is in: home, a shared buffer, or
    the local buffer itself (then the caller's Place holds it, and `num_cores` must be the number of
    cores inside that Place: 1).  `num_groups` groups of `num_cores` cores work at the same time and
    share the levels above.  `budget_bytes` is what one core has for the Places of the chain.

    Returns a Shortfall when no common cut exists, engines do not share a memory, or nothing fits.
    Cost: tiles (about 100) x operators, and splits (about 20) per tile.
    """
    chain = chain_of(graph, ops, domains)
    engines = _engines(chain, machine)
    if isinstance(engines, Shortfall):
        return engines
    names = tuple(op.name for op in chain.ops)
    if not all(chainable(op) for op in chain.ops) or not _closed(graph, chain):
        return not_fusible(names)
    memory = reach_memory(engines[names[0]].name, machine)
    search = Search(
        chain, engines, machine.level(memory), location_of, machine, num_cores, num_groups
    )
    best, smallest = search.run(budget_bytes)
    if best is not None:
        return best
    if smallest is None:
        return not_fusible(names)
    return _too_large(smallest, search, budget_bytes)


def _too_large(cut: Cut, search: Search, budget_bytes: int) -> Shortfall:
    terms = [
        (held.tensor, search.held_bytes(held, 1))
        for held in (*cut.fetched, *cut.made)
        if search.is_placed(held)
    ]
    terms.sort(key=lambda term: (-term[1], term[0]))
    level = search.level
    return Shortfall(
        f"memory:{level.name}", sum(size for _, size in terms), budget_bytes, "bytes",
        tuple(terms),
        (f"give the chain more of {level.name}", f"cut {terms[0][0]}, the largest buffer, finer",
         "run the operators one by one"),
    )  # fmt: skip
