"""Loads of the same bytes into several instances of a level, as one transfer (`isa.Opcode`).

Cores load the same where neither place, size nor slot differ between them in any iteration, and a
link on the way is declared multicast (`Routes.shared_path`).  Such a group of cores is one
instruction of its first core, if the cores and the ports that they take are evenly spaced; what is
left loads by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from worker.compiler.lower.emit.carry import End
from worker.compiler.lower.grid import Grid, Ints
from worker.compiler.lower.rows.storage import Touch
from worker.compiler.lower.transfers import Path, Routes
from worker.compiler.machine.machine import Machine
from worker.compiler.schedule.nodes import LoopKind


@dataclass(frozen=True, slots=True)
class Across:
    """The axes of a grid that are loops over cores, taken together as one."""

    trips: tuple[int, ...]

    @staticmethod
    def of(grid: Grid) -> Across | None:
        """None where there are none, or lanes inside."""
        trips = tuple(f.trip for f in grid.frames if f.kind is LoopKind.CORES)
        return Across(trips) if trips and not grid.num_lane_axes else None

    @property
    def count(self) -> int:
        """Iterations of all loops over cores."""
        return prod(self.trips)

    def varies(self, values: Ints) -> bool:
        """Whether the values may differ between cores."""
        return values.ndim > 0 and any(n > 1 for n in values.shape[-len(self.trips) :])

    def table(self, values: Ints) -> Ints:
        """[other iterations in which they differ, cores]"""
        if values.ndim == 0:
            return np.full((1, self.count), values)
        outer = values.shape[: -len(self.trips)]
        return np.broadcast_to(values, (*outer, *self.trips)).reshape(-1, self.count)

    def at(self, values: Ints, which: Ints) -> Ints:
        """Each core sees what `which` [cores] of them has; -1: -1."""
        outer = values.shape[: -len(self.trips)] if values.ndim else ()
        table = np.broadcast_to(values, (*outer, *self.trips)).reshape(*outer, self.count)
        found = np.where(which >= 0, table[..., which], -1)
        return found.reshape(*outer, *self.trips)


@dataclass(frozen=True, slots=True)
class Groups:
    """Which cores load together."""

    across: Across
    path: Path
    members: tuple[Ints, ...]
    """Of each group, its cores as numbers on `across`, ascending; two or more."""
    ports: tuple[Ints, ...]
    """[cores] Per port of the path, the resource that the first of each group takes."""

    @property
    def leads(self) -> npt.NDArray[np.bool_]:
        """Where a group's instruction stands: broadcasts to the grid."""
        found = np.zeros(self.across.count, dtype=np.bool_)
        found[[own[0] for own in self.members]] = True
        return found.reshape(self.across.trips)

    @property
    def loads_alone(self) -> npt.NDArray[np.bool_]:
        """Where a core is in no group: broadcasts to the grid."""
        found = np.ones(self.across.count, dtype=np.bool_)
        found[np.concatenate(self.members)] = False
        return found.reshape(self.across.trips)

    def touches(self, touch: Touch) -> list[Touch]:
        """What all members of each group touch, seen from its first one."""
        if not self.across.varies(touch.storage):
            return [touch]
        found = []
        for rank in range(max(map(len, self.members))):
            which: Ints = np.full(self.across.count, -1, dtype=np.int64)
            for own in self.members:
                which[own[0]] = own[rank] if rank < len(own) else -1
            found.append(replace(touch, storage=self.across.at(touch.storage, which)))
        return found


def groups_of(
    grid: Grid, routes: Routes, machine: Machine, core: Ints, src: End, dst: End,
    equal: Sequence[npt.NDArray[Any]],
) -> Groups | None:  # fmt: skip
    """The groups of a load from `src` to `dst`; None where there are none.

    `equal`: what else is the same for all cores of one.
    Cost: sorting what differs between cores.
    """
    across, path = Across.of(grid), routes.shared_path(src.level, dst.level)
    if across is None or path is None or not across.varies(dst.instance):
        return None
    instances = [across.table(values) for values in (core, src.instance, dst.instance)]
    if any(len(table) > 1 for table in instances):
        return None
    cores, sources, targets = (table[0] for table in instances)
    key: Ints = np.stack([cores // path.reach, sources])
    for values in (src.offset, dst.offset, *equal):
        if across.varies(values):
            _, kind = np.unique(across.table(values), axis=1, return_inverse=True)
            key = np.concatenate([key, kind.reshape(1, -1)])
    _, group = np.unique(key, axis=1, return_inverse=True)
    numbers = routes.resource_numbers(path, cores, sources, targets)
    per = machine.num_cores // machine.level(dst.level).instances
    members: list[Ints] = []
    begun: dict[int, int] = {}
    taken: list[Ints] = [np.full(across.count, -1, dtype=np.int64) for _ in numbers]
    for number in range(int(group.max()) + 1):
        own = np.flatnonzero(group.ravel() == number)
        own = own[np.argsort(cores[own], kind="stable")]
        if len(own) < 2 or not _is_even(cores[own], targets[own], per):
            continue
        tree = routes.tree(path, targets[own], begun) if path.mesh is not None else {}
        sets = [
            _evenly(tree.get(whose, port[own]))
            for port, (_, whose) in zip(numbers, path.ports, strict=True)
        ]
        if None in sets:
            continue
        members.append(own)
        for port, found in zip(taken, sets, strict=True):
            assert found is not None
            port[own[0]] = routes.several(*found)
    if not members:
        return None
    return Groups(across, path, tuple(members), tuple(port.reshape(across.trips) for port in taken))


def _is_even(cores: Ints, instances: Ints, per: int) -> bool:
    """Whether each core has an instance of its own, at one distance from the one before."""
    steps = np.diff(instances)
    return bool(
        steps[0] > 0 and np.all(steps == steps[0]) and np.all(np.diff(cores) == steps * per)
    )


def _evenly(ports: Ints) -> tuple[int, int, int] | None:
    """(first, how many, step) of some ports, each counted once; None: not at one distance."""
    distinct = np.unique(ports)
    steps = np.diff(distinct)
    if len(steps) == 0:
        return int(distinct[0]), 1, 1
    if np.any(steps != steps[0]):
        return None
    return int(distinct[0]), len(distinct), int(steps[0])
