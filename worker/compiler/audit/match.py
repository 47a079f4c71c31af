"""One to one: every instruction of a leaf is one iteration of it, and every iteration is there.

Instructions that agree in core, opcode, buffers, addresses and bytes do the same thing; a multicast
does what loads of all its receivers do.  Among those that do the same
program order is taken for the order of the iterations.  Both are read in order, block by block, so
nothing but what stands elsewhere in the program than in the schedule has to be kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from worker.compiler.audit.wanted import FIELDS, Rows, Wanted, nothing
from worker.compiler.errors import VerifyError
from worker.compiler.isa.program import Opcode, UnitProgram
from worker.compiler.isa.receivers import Receivers
from worker.compiler.machine.links import num_ports_of
from worker.compiler.machine.machine import Machine, Managed
from worker.compiler.schedule.grid import Ints, instance_of

FARTHEST = 1 << 18
"""Iterations of a leaf that an instruction of a program with loops may stand away from its place in
their order: else all of a program would have to be kept to tell that one instruction is wrong."""


class _Queue:
    """Iterations of a leaf that have no instruction yet."""

    def __init__(self, source: Iterator[Wanted], rank: int) -> None:
        self.source = source
        self.waiting = nothing(rank)
        self.head = 0
        """Iterations in front of it are done."""

    def __len__(self) -> int:
        return len(self.waiting) - self.head

    def more(self) -> bool:
        """Get more of them, if there are."""
        following = next(self.source, None)
        if following is None:
            return False
        if len(self):
            rest = self.waiting.some(np.arange(self.head, len(self.waiting)))
            following = rest.then(following)
        self.waiting, self.head = following, 0
        return True


class Matcher:
    """Finds the iterations of a program's instructions; `sources`: of each leaf, by its path."""

    def __init__(
        self, unit: UnitProgram, machine: Machine, sources: Mapping[str, Iterator[Wanted]],
        rank: int,
    ) -> None:  # fmt: skip
        self.unit = unit
        self.machine = machine
        self.rank = rank
        self.most = FARTHEST if len(unit.loops.table) else None
        self.cores = np.array([s.core for s in unit.streams], dtype=np.int64)
        self.queues = {path: _Queue(source, rank) for path, source in sources.items()}
        self.levels = [level.name for level in machine.levels]
        self.width = machine.num_cores
        self.ports = np.full((2, len(unit.resources) + 1), -2, dtype=np.int64)
        """Per direction and resource: level * cores + instance, of several the first."""
        self.step = np.zeros(len(unit.resources) + 1, dtype=np.int64)
        """Per resource: instances between its ports."""
        self.receivers = Receivers(unit.resources, machine)
        for number, resource in enumerate(unit.resources):
            if resource.level in self.levels and resource.direction in ("read", "write"):
                side = int(resource.direction == "write")
                level = machine.level(resource.level)
                is_apart = num_ports_of(level, machine) == level.instances  # else by router of home
                at = self.levels.index(level.name) * self.width + resource.instance * is_apart
                self.ports[side, number] = at
                if resource.count > 1:
                    self.step[number] = resource.step
        caches = [m for m in machine.levels[1:] if m.managed is Managed.CACHE]
        self.cache = caches[0] if caches else None

    def rows(self, block: UnitProgram, first: int) -> Rows:
        """The accesses of the next instructions; `first`: number of the first one.

        Raises:
            VerifyError: one has other operands than any iteration that is left.
        """
        owner, rank = self.receivers.each(block.instructions)
        table = block.instructions.take(owner)
        columns = [self.cores[table["stream"]] if name == "core" else table[name]
                   for name in FIELDS]  # fmt: skip
        listed = np.stack([column.astype(np.int64) for column in columns])
        ports = table["resource"]
        is_shared = table["opcode"] == Opcode.MULTICAST
        listed[FIELDS.index("opcode"), is_shared] = int(Opcode.LOAD)
        listed[FIELDS.index("core")] += self.receivers.cores(table, rank)
        by_node = np.argsort(table["node"], kind="stable")
        ends = np.cumsum(np.bincount(table["node"], minlength=len(block.nodes)))
        counts = np.zeros(len(table), dtype=np.int64)
        found: list[tuple[Ints, Wanted, Ints]] = []
        for path, mine in zip(block.nodes, np.split(by_node, ends[:-1]), strict=True):
            if len(mine):
                numbers = first + owner[mine]
                number = int(numbers[0])
                if path not in self.queues:
                    raise _fail(f"instruction {number}", "carried-out", f"{path} is no leaf")
                waiting, which = self._where(path, numbers, listed[:, mine])
                cores = listed[FIELDS.index("core"), mine]
                self._check_ports(path, numbers, ports[mine], rank[mine], cores, waiting, which)
                counts[mine] = np.diff(waiting.rows.pointer)[which]
                found.append((mine, waiting, which))
        rows = Rows.empty(counts, self.rank)
        for mine, waiting, which in found:
            rows.put(mine, waiting.rows, which)
        if len(owner) == len(block.instructions):
            return rows
        behind = np.searchsorted(owner, np.arange(len(block.instructions)), side="right")
        return Rows(rows.pointer[np.concatenate([[0], behind])], rows.table)

    def finish(self) -> None:
        """Raise VerifyError where an iteration has no instruction."""
        for path, queue in self.queues.items():
            if len(queue) or (queue.more() and len(queue)) or self._has_more(queue):
                said = _said(queue.waiting.fields[:, queue.head])
                raise _fail(path, "carried-out", f"no instruction of {path} has {said}")

    @staticmethod
    def _has_more(queue: _Queue) -> bool:
        while not len(queue):
            if not queue.more():
                return False
        return True

    def _where(self, path: str, numbers: Ints, listed: Ints) -> tuple[Wanted, Ints]:
        """(iterations, which of them each instruction is); takes them from their queue."""
        queue = self.queues[path]
        count = listed.shape[1]
        while len(queue) < count and queue.more():
            pass
        ahead = slice(queue.head, queue.head + count)
        if np.array_equal(queue.waiting.fields[:, ahead], listed):
            which = np.arange(queue.head, queue.head + count)
            queue.head += count
            return queue.waiting, which
        reach = 2 * count
        while True:
            offered = queue.waiting.fields[:, queue.head : queue.head + reach]
            which, left = matched(listed, offered)
            if not left.size:
                break
            if reach < len(queue):
                reach *= 4
            elif (self.most is not None and len(queue) > self.most + count) or not queue.more():
                raise self._missing(path, int(numbers[left[0]]), listed[:, left[0]], which, queue)
        waiting, which = queue.waiting, which + queue.head
        is_left = np.ones(len(waiting), dtype=np.bool_)
        is_left[: queue.head] = False
        is_left[which] = False
        queue.waiting, queue.head = waiting.some(np.flatnonzero(is_left)), 0
        return waiting, which

    def _missing(
        self, path: str, number: int, fields: Ints, which: Ints, queue: _Queue
    ) -> VerifyError:
        """Say which instruction is too many."""
        unused = np.setdiff1d(np.arange(len(queue)), which)
        if not len(unused):
            return _fail(f"instruction {number}", "once", f"{path} is carried out once too often")
        other = _said(queue.waiting.fields[:, queue.head + unused[0]])
        return _fail(
            f"instruction {number}", "carried-out",
            f"no iteration of {path} that is left has {_said(fields)}; the next has {other}",
        )  # fmt: skip

    def _check_ports(
        self, path: str, numbers: Ints, resources: Ints, rank: Ints, cores: Ints, waiting: Wanted,
        which: Ints,
    ) -> None:  # fmt: skip
        """Raise VerifyError when a transfer passes by ports of other instances; what a cache holds
        needs that of the core's cache alone, for either direction, instead of home's."""
        for side, name in enumerate(("read", "write")):
            asked = waiting.ports[side, which]
            if np.all(asked < 0):
                continue
            used = self.ports[side][resources] + rank[:, None] * self.step[resources]
            uses = (used == asked[:, None]).any(axis=1) | (asked < 0)
            if not uses.all() and self.cache is not None:
                at = instance_of(self.cache.name, cores, self.machine)
                at = at + self.levels.index(self.cache.name) * self.width
                found = (self.ports[0][resources] == at[:, None]).any(axis=1)
                uses |= found & (asked // self.width == 0)
            if not uses.all():
                wrong = int(np.argmin(uses))
                level, instance = divmod(int(asked[wrong]), self.width)
                raise _fail(
                    f"instruction {int(numbers[wrong])}", "instance",
                    f"{path} does not {name} {self.levels[level]} {instance}",
                )  # fmt: skip


def matched(listed: Ints, offered: Ints) -> tuple[Ints, Ints]:
    """(the offered one of each that is listed, or -1; those without): first come, first served."""
    count = listed.shape[1]
    both = np.concatenate([listed, offered], axis=1)
    order = np.lexsort(both[::-1])
    table = both[:, order]
    is_new = np.ones(len(order), dtype=np.bool_)
    is_new[1:] = (table[:, 1:] != table[:, :-1]).any(axis=0)
    key = np.empty(len(order), dtype=np.int64)
    key[order] = np.cumsum(is_new) - 1
    # Rank of each among those of its side with the same key; equal (key, rank) are a pair.
    ranked = [_ranks(part) for part in (key[:count], key[count:])]
    radix = int(key.max(initial=0)) + 1
    mine, theirs = (rank * radix + k for rank, k in zip(ranked, (key[:count], key[count:]),
                                                        strict=True))  # fmt: skip
    order = np.argsort(theirs, kind="stable")
    at = np.searchsorted(theirs[order], mine)
    at = np.minimum(at, max(len(order) - 1, 0))
    if not len(order):
        return np.full(count, -1, dtype=np.int64), np.arange(count)
    which = np.where(theirs[order][at] == mine, order[at], -1)
    return which, np.flatnonzero(which < 0)


def _ranks(key: Ints) -> Ints:
    """How many equal ones stand in front of each."""
    order = np.argsort(key, kind="stable")
    sorted_key = key[order]
    begins = np.ones(len(key), dtype=np.bool_)
    begins[1:] = sorted_key[1:] != sorted_key[:-1]
    place = np.arange(len(key))
    rank = np.empty(len(key), dtype=np.int64)
    rank[order] = place - np.maximum.accumulate(np.where(begins, place, 0))
    return rank


def _said(fields: Ints) -> str:
    return ", ".join(
        f"{name} {Opcode(value).name if name == 'opcode' else value}"
        for name, value in zip(FIELDS, fields.tolist(), strict=True)
    )


def _fail(place: str, rule: str, message: str) -> VerifyError:
    return VerifyError("lower", place, rule, message)
