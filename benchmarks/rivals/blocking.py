"""Every blocking of a loop nest over DRAM, a buffer and registers: nothing is left out.

Each of the loops I, O, B is cut into three exact factors: outside of the buffer, between buffer and
registers, inside.  A datum is brought again for every iteration of a loop that it does not have,
but where that is the innermost one that runs: so of the orders of a level only which loop is
innermost matters.  What is brought to the buffer as often as to the registers passes it by.
Source: nn_dataflow 2.x, restated; see `row_stationary`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from operator import attrgetter

import numpy as np
import numpy.typing as npt

from benchmarks.rivals.row_stationary import Layer, Nest, Node, Words, nests
from worker.compiler.jit import compiled
from worker.compiler.tiling.factors import divisors

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


NOTHING: Words = (0.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Optimum:
    """The least energy of a layer; of several the first that is met."""

    energy: float
    cycles: float
    dram_words: float
    candidates: int
    """Blockings with orders that were looked at: those whose registers hold them."""
    fetches: Words
    """How often each datum comes from DRAM; results come and go."""


def optimum(
    layer: Layer, batch: int, node: Node, occupancy: float = 1.0, per_fetch: Words = NOTHING
) -> Optimum:
    """The best of all replications and blockings.

    `occupancy`: part of the operations that are not padding; `per_fetch`: energy of bringing a
    datum from DRAM once, besides its words.

    Raises:
        ValueError: no pass fits.
    """
    found = best_of_each(layer, batch, node, occupancy, per_fetch)
    best = min(found, key=attrgetter("energy"))
    if best.energy == inf:
        raise ValueError(f"no pass of {layer} fits")
    return replace(best, candidates=sum(one.candidates for one in found))


def best_of_each(
    layer: Layer, batch: int, node: Node, occupancy: float = 1.0, per_fetch: Words = NOTHING
) -> list[Optimum]:
    """The best blocking of each replication; of infinite energy where no pass fits."""
    return [
        _best(replace(nest, ops=nest.ops * occupancy), node, per_fetch)
        for nest in nests(layer, batch, node)
    ]


def _best(nest: Nest, node: Node, per_fetch: Words) -> Optimum:
    has = np.array(nest.has, np.int64)
    counts = np.where(has, nest.loops, 1).prod(axis=1)
    passes = float(np.prod(nest.loops))
    registers = nest.ops * np.array([1.0, 1.0, 2.0]) * np.array([any(h) for h in nest.has])
    fixed = passes * (nest.ops * node.op + registers.sum() * node.register)
    found = np.array([inf, 0.0, 0.0, 0.0, 0.0])
    cuts = [np.array(divisors(n), np.int64) for n in nest.loops]
    number = compiled(_every_blocking)(
        *cuts, has,
        np.array(nest.bus) * counts * node.bus, np.array(nest.buffer) * counts * node.buffer,
        np.array(nest.dram) * counts, np.array(nest.buffer) * counts,
        np.array(nest.register_room, np.float64), np.array(nest.buffer_room, np.float64),
        float(node.register_words), float(node.buffer_words), node.dram, fixed,
        np.array(per_fetch, np.float64), found,
    )  # fmt: skip
    energy, words, *fetches = found.tolist()
    return Optimum(energy, passes * nest.cycles, words, int(number), (*fetches,))


def _every_blocking(
    cuts_i: Ints, cuts_o: Ints, cuts_b: Ints, has: Ints, bus: Floats, buffer: Floats,
    dram: Floats, direct: Floats, register_room: Floats, buffer_room: Floats,
    register_words: float, buffer_words: float, per_dram: float, fixed: float,
    per_fetch: Floats, found: Floats,
) -> int:  # fmt: skip
    """Fill `found` (energy, DRAM words, fetches) with the best; give the number of candidates.

    `bus`, `buffer`: energies of bringing everything once; `dram`, `direct`: words of bringing it
    from DRAM to the buffer, and past it.
    """
    number = 0
    outer, middle, inner = np.ones(3, np.int64), np.ones(3, np.int64), np.ones(3, np.int64)
    first, second = np.ones((3, 3)), np.ones((3, 3))
    last_i, last_o, last_b = cuts_i[-1], cuts_o[-1], cuts_b[-1]
    for inner[0] in cuts_i:
        for inner[1] in cuts_o:
            for inner[2] in cuts_b:
                room = 0.0
                for d in range(3):
                    held = register_room[d]
                    for x in range(3):
                        if has[d, x]:
                            held *= inner[x]
                    room += held
                if room > register_words:
                    continue
                for middle[0] in cuts_i:
                    if last_i % (inner[0] * middle[0]):
                        continue
                    outer[0] = last_i // (inner[0] * middle[0])
                    for middle[1] in cuts_o:
                        if last_o % (inner[1] * middle[1]):
                            continue
                        outer[1] = last_o // (inner[1] * middle[1])
                        for middle[2] in cuts_b:
                            if last_b % (inner[2] * middle[2]):
                                continue
                            outer[2] = last_b // (inner[2] * middle[2])
                            outer_runs = outer[0] * outer[1] * outer[2] > 1
                            middle_runs = middle[0] * middle[1] * middle[2] > 1
                            # How often each datum comes, by which loop is innermost.
                            for d in range(3):
                                is_cut = stays = False
                                for x in range(3):
                                    if has[d, x]:
                                        is_cut = is_cut or outer[x] > 1
                                        stays = stays or middle[x] > 1
                                for y in range(3):
                                    times = 1.0
                                    if is_cut:
                                        for x in range(3):
                                            if not has[d, x] and x != y:
                                                times *= outer[x]
                                    first[d, y] = times
                                    times = 0.0
                                    if stays:
                                        times = 1.0
                                        for x in range(3):
                                            if not has[d, x]:
                                                times *= outer[x]
                                                if x != y:
                                                    times *= middle[x]
                                    second[d, y] = times
                            for y in range(3):
                                if outer_runs and outer[y] == 1:
                                    continue
                                for z in range(3):
                                    if middle_runs and middle[z] == 1:
                                        continue
                                    number += 1
                                    energy, words, stored = fixed, 0.0, 0.0
                                    for d in range(3):
                                        far = first[d, y]
                                        near = second[d, z] or far
                                        if d == 2:
                                            far, near = 2 * far - 1, 2 * near - 1
                                        energy += bus[d] * near + per_fetch[d] * far
                                        if far < near:
                                            held = buffer_room[d]
                                            for x in range(3):
                                                if has[d, x]:
                                                    held *= middle[x] * inner[x]
                                            stored += held
                                            energy += buffer[d] * near
                                            words += dram[d] * far
                                        else:
                                            words += direct[d] * far
                                    energy += words * per_dram
                                    if stored <= buffer_words and energy < found[0]:
                                        found[0], found[1] = energy, words
                                        found[2:] = first[:, y]
                                        found[4] = 2 * found[4] - 1
    return number
