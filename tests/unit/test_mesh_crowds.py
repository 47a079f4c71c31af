"""Who share the busiest link of a mesh when the first so many nodes load or store."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from mesh_toys import xy

from worker.compiler.machine.mesh import Mesh, home_traffic


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
