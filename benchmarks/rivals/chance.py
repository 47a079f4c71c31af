"""Random search in the space of `blocking`: each candidate of each level is looked at by chance.

As Timeloop's random search is used in KAPLA's evaluation: of every replication a cut inside, then
one between buffer and registers, then a pair of orders are each kept with probability `p`; what is
kept is counted, and the best of it taken.
Source: KAPLA, section V (baseline R).  The paper does not say which levels; these are ours.
Replications are few, and none would often be left.
"""

from __future__ import annotations

from itertools import permutations, product
from math import inf
from random import Random

from benchmarks.rivals.greedy import Blocking, Trips, energy_of
from benchmarks.rivals.row_stationary import Layer, Nest, Node, nests
from worker.compiler.tiling.factors import divisors

ORDERS = tuple(order for order in permutations(range(3)) if order[0] < order[1])
"""One for each innermost loop: of the others none matters."""


def chance(
    layer: Layer, batch: int, node: Node, p: float, seed: int
) -> tuple[Blocking | None, int]:
    """The best that is looked at and fits, and how many were looked at."""
    dice, number = Random(seed), 0
    best, least = None, inf
    for nest in nests(layer, batch, node):
        for blocking in _kept(nest, node, p, dice):
            number += 1
            energy = energy_of(blocking, node)
            if energy < least:
                best, least = blocking, energy
    return best, number


def _kept(nest: Nest, node: Node, p: float, dice: Random) -> list[Blocking]:
    found: list[Blocking] = []
    for inner in _parts(nest.loops):
        if dice.random() >= p or not _holds(nest, node, inner):
            continue
        left = _over(nest.loops, inner)
        for middle in _parts(left):
            if dice.random() >= p:
                continue
            outer = _over(left, middle)
            found += [
                Blocking(nest, (outer, middle, inner), orders)
                for orders in product(ORDERS, repeat=2)
                if dice.random() < p
            ]
    return found


def _holds(nest: Nest, node: Node, inner: Trips) -> bool:
    whole = (1, 1, 1)
    return energy_of(Blocking(nest, (whole, whole, inner), (ORDERS[0],) * 2), node) < inf


def _parts(whole: Trips) -> list[Trips]:
    i, o, b = (divisors(n) for n in whole)
    return [(x, y, z) for x in i for y in o for z in b]


def _over(whole: Trips, part: Trips) -> Trips:
    return whole[0] // part[0], whole[1] // part[1], whole[2] // part[2]
