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
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.rivals.row_stationary import Layer, Nest, Node, Words, nests
from worker.compiler.jit import compiled
from worker.compiler.tiling.factors import divisors

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


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


def optimum(layer: Layer, batch: int, node: Node, occupancy: float = 1.0) -> Optimum:
    """The best of all replications and blockings.

    `occupancy`: part of the operations that are not padding.

    Raises:
        ValueError: no pass fits.
    """
    found = best_of_each(layer, batch, node, occupancy)
    best = min(found, key=attrgetter("energy"))
    if best.energy == inf:
        raise ValueError(f"no pass of {layer} fits")
    return replace(best, candidates=sum(one.candidates for one in found))


def best_of_each(layer: Layer, batch: int, node: Node, occupancy: float = 1.0) -> list[Optimum]:
    """The best blocking of each replication; of infinite energy where no pass fits."""
    return [_best(nest, node) for nest in _nests(layer, batch, node, occupancy)]


def front(layer: Layer, batch: int, node: Node, occupancy: float = 1.0) -> Floats:
    """[ways, 4] Energy, and how often each datum comes from DRAM, of all that nothing is at least
    as good as in all four: the best is among them, whatever a fetch costs besides.

    None where no pass fits.
    """
    found = [_front(nest, node) for nest in _nests(layer, batch, node, occupancy)]
    return np.concatenate(found) if found else np.empty((0, 4))


def _nests(layer: Layer, batch: int, node: Node, occupancy: float) -> list[Nest]:
    return [replace(nest, ops=nest.ops * occupancy) for nest in nests(layer, batch, node)]


def _best(nest: Nest, node: Node) -> Optimum:
    found = np.array([inf, 0.0, 0.0, 0.0, 0.0])
    number, _ = compiled(_every_blocking)(*_figures(nest, node), found, np.empty((0, 4)))
    energy, words, *fetches = found.tolist()
    cycles = float(np.prod(nest.loops)) * nest.cycles
    return Optimum(energy, cycles, words, int(number), (*fetches,))


def _front(nest: Nest, node: Node) -> Floats:
    room = 64
    while True:
        kept = np.empty((room, 4))
        found = np.array([inf, 0.0, 0.0, 0.0, 0.0])
        _, size = compiled(_every_blocking)(*_figures(nest, node), found, kept)
        if size <= room:
            return kept[:size]
        room *= 4


def _figures(nest: Nest, node: Node) -> tuple[Any, ...]:
    """What `_every_blocking` is given of a nest, but for what it fills."""
    has = np.array(nest.has, np.int64)
    counts = np.where(has, nest.loops, 1).prod(axis=1)
    registers = nest.ops * np.array([1.0, 1.0, 2.0]) * np.array([any(h) for h in nest.has])
    passes = float(np.prod(nest.loops))
    fixed = passes * (nest.ops * node.op + registers.sum() * node.register)
    return (
        *(np.array(divisors(n), np.int64) for n in nest.loops), has,
        np.array(nest.bus) * counts * node.bus, np.array(nest.buffer) * counts * node.buffer,
        np.array(nest.dram) * counts, np.array(nest.buffer) * counts,
        np.array(nest.register_room, np.float64), np.array(nest.buffer_room, np.float64),
        float(node.register_words), float(node.buffer_words), node.dram, fixed,
    )  # fmt: skip


def _every_blocking(
    cuts_i: Ints, cuts_o: Ints, cuts_b: Ints, has: Ints, bus: Floats, buffer: Floats,
    dram: Floats, direct: Floats, register_room: Floats, buffer_room: Floats,
    register_words: float, buffer_words: float, per_dram: float, fixed: float,
    found: Floats, kept: Floats,
) -> tuple[int, int]:  # fmt: skip
    """Fill `found` (energy, DRAM words, fetches) with the best, and `kept`, if it has any room,
    with the front; give the number of candidates and the length of the front (more than there is
    room for: it is not whole).

    `bus`, `buffer`: energies of bringing everything once; `dram`, `direct`: words of bringing it
    from DRAM to the buffer, and past it.
    """
    number = size = 0
    outer, middle, inner = np.ones(3, np.int64), np.ones(3, np.int64), np.ones(3, np.int64)
    first, second, at = np.ones((3, 3)), np.ones((3, 3)), np.ones(4)
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
                                        energy += bus[d] * near
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
                                    if stored > buffer_words:
                                        continue
                                    if energy < found[0]:
                                        found[0], found[1] = energy, words
                                        found[2:] = first[:, y]
                                        found[4] = 2 * found[4] - 1
                                    if size > len(kept) or not len(kept):
                                        continue
                                    at[0], at[1] = energy, first[0, y]
                                    at[2], at[3] = first[1, y], 2 * first[2, y] - 1
                                    left, is_new = 0, True
                                    for k in range(size):
                                        if np.all(kept[k] <= at):
                                            is_new = False
                                            break
                                    if not is_new:
                                        continue
                                    for k in range(size):
                                        if not np.all(at <= kept[k]):
                                            kept[left] = kept[k]
                                            left += 1
                                    if left < len(kept):
                                        kept[left] = at
                                    size = left + 1
    return number, size
