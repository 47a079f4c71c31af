"""Who share the busiest link of a mesh: of nodes that load or store, and of trees from home."""

from __future__ import annotations

from collections import Counter
from math import ceil
from random import Random

import pytest
from mesh_toys import places, xy

from worker.compiler.machine.mesh import TREE_SIZES, Mesh, Numbering, home_traffic, tree_crowds


def test_work_of_few_nodes_comes_from_one_corner() -> None:
    """Nodes 0 to 7 stand in the first row before the corner at column 0, 8 to 15 before that at
    column 15; from row 8 on the lower corners are nearer."""
    corners = ((0, 0), (0, 15), (15, 0), (15, 15))
    crowds = home_traffic(Mesh(16, 16, corners), outward=False).crowds
    shared = {n: crowds[n] for n in (0, 1, 7, 8, 9, 16, 24, 32, 128, 256)}
    assert shared == {0: 0, 1: 1, 7: 7, 8: 8, 9: 8, 16: 8, 24: 16, 32: 16, 128: 64, 256: 64}


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("outward", [False, True], ids=["loads", "stores"])
def test_crowds_are_counted_link_by_link(seed: int, outward: bool) -> None:
    random = Random(seed)
    rows, columns = random.randint(1, 6), random.randint(1, 6)
    places = [(r, c) for r in range(rows) for c in range(columns)]
    ports = tuple(random.sample(places, random.randint(1, len(places))))
    found = home_traffic(Mesh(rows, columns, ports), outward=outward)
    taken: Counter[object] = Counter()
    assert found.crowds[0] == 0
    for number, at in enumerate(places):
        # The nearest port, the first of equals.
        port = min(ports, key=lambda p: (abs(p[0] - at[0]) + abs(p[1] - at[1]), ports.index(p)))
        ends = (at, port) if outward else (port, at)
        taken.update([("node", at), ("port", port), *xy(*ends)])
        assert found.crowds[number + 1] == max(taken.values())


@pytest.mark.parametrize("seed", range(20))
def test_trees_are_counted_by_what_is_behind_each_link(seed: int) -> None:
    """By hand: of so many trees each begins at the next port, and takes a link unless none of its
    receivers, drawn anew for each, is behind it."""
    random = Random(seed)
    rows, columns = random.randint(1, 5), random.randint(1, 5)
    spots = [(r, c) for r in range(rows) for c in range(columns)]
    ports = tuple(random.sample(spots, random.randint(1, min(4, len(spots)))))
    mesh = Mesh(rows, columns, ports, random.choice(list(Numbering)))
    most = len(spots)
    found = tree_crowds(mesh, most)
    assert len(found) == (most + 1) * TREE_SIZES
    for number in range(most + 1):
        for size in range(TREE_SIZES):
            taken: Counter[object] = Counter()
            for tree in range(number):
                port = ports[tree % len(ports)]
                behind: Counter[object] = Counter()
                for at in places(mesh)[:most]:
                    behind.update([("port", port), *xy(port, at)])
                for link, nodes in behind.items():
                    taken[link] += 1 - (1 - nodes / most) ** 2**size  # type: ignore[assignment]
            assert found[number * TREE_SIZES + size] == ceil(max(taken.values(), default=0) - 1e-9)


def test_trees_of_few_receivers_meet_at_home_and_large_ones_on_their_way() -> None:
    """From the four corners of 16 x 16: two of them share every column."""
    found = tree_crowds(Mesh(16, 16, ((0, 0), (0, 15), (15, 0), (15, 15)), Numbering.HOME), 256)
    few, many = found[32 * TREE_SIZES + 2], found[32 * TREE_SIZES + 8]
    assert (few, many) == (32 // 4, 32 // 2)
