"""One to one: every instruction of a leaf is one iteration of it, and every iteration is there.

Instructions that agree in core, opcode, buffers, addresses and bytes do the same thing; among them
program order is taken for the order of the iterations.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from worker.compiler.audit.expected import Batch
from worker.compiler.errors import VerifyError
from worker.compiler.isa.program import Opcode, UnitProgram
from worker.compiler.machine.machine import Machine
from worker.compiler.schedule.grid import Ints

_FIELDS = ("core", "opcode", "src", "dst", "src_offset", "dst_offset", "bytes")


class Matcher:
    """Finds the instructions of batches in one program."""

    def __init__(self, unit: UnitProgram, machine: Machine) -> None:
        self.unit = unit
        self.machine = machine
        rows = unit.instructions
        cores = np.array([s.core for s in unit.streams], dtype=np.int64)
        self.columns = {
            name: cores[rows["stream"]] if name == "core" else rows[name].astype(np.int64)
            for name in _FIELDS
        }
        self.by_node = np.argsort(rows["node"], kind="stable")
        counts = np.bincount(rows["node"], minlength=len(unit.nodes))
        self.starts = np.concatenate([[0], np.cumsum(counts)])
        self.node_of = {path: k for k, path in enumerate(unit.nodes)}
        self.ports = _Ports(unit)

    def instructions(self, path: str, batches: Sequence[Batch]) -> list[Ints]:
        """[n] for each batch: the instruction of each iteration that is kept, in iteration order.

        Raises:
            VerifyError: an instruction is missing, there without need, or has other operands.
        """
        node = self.node_of.get(path)
        found = (
            np.zeros(0, dtype=np.int64)
            if node is None
            else self.by_node[self.starts[node] : self.starts[node + 1]]
        )
        kept = [np.flatnonzero(np.broadcast_to(b.keep, b.shape).ravel()) for b in batches]
        asked = _asked(batches, kept)
        listed = np.stack([self.columns[name][found] for name in _FIELDS])
        order, mine = _order(asked, kept), np.lexsort(listed[::-1])
        if listed.shape != asked.shape or not np.array_equal(listed[:, mine], asked[:, order]):
            raise self._difference(path, found, listed, asked)
        place = np.empty(len(found), dtype=np.int64)
        place[order] = found[mine]
        ends = np.cumsum([len(k) for k in kept])
        results = [place[end - len(k) : end] for k, end in zip(kept, ends.tolist(), strict=True)]
        for batch, keep, rows in zip(batches, kept, results, strict=True):
            self.ports.check(path, batch, keep, rows)
        return results

    def _difference(self, path: str, found: Ints, listed: Ints, asked: Ints) -> VerifyError:
        """Say which instruction is too many or too few."""
        there = {
            tuple(column): int(at) for column, at in zip(listed.T.tolist(), found, strict=True)
        }
        counts: dict[tuple[int, ...], int] = {}
        for column in map(tuple, asked.T.tolist()):
            counts[column] = counts.get(column, 0) + 1
        for column in map(tuple, listed.T.tolist()):
            counts[column] = counts.get(column, 0) - 1
        extra = sorted(there[c] for c, n in counts.items() if n < 0)
        missing = [c for c, n in counts.items() if n > 0]
        if extra and not missing:
            return _fail(f"instruction {extra[0]}", "once", f"{path} is carried out once too often")
        said = ", ".join(
            f"{name} {Opcode(value).name if name == 'opcode' else value}"
            for name, value in zip(_FIELDS, missing[0] if missing else (), strict=False)
        )
        where = f"instruction {extra[0]}" if extra else path
        return _fail(where, "carried-out", f"no instruction of {path} has {said}")


class _Ports:
    """Which instances a program's transfers read and write."""

    def __init__(self, unit: UnitProgram) -> None:
        self.unit = unit

    def check(self, path: str, batch: Batch, keep: Ints, rows: Ints) -> None:
        """Raise VerifyError when a transfer passes by ports of other instances."""
        for side, port in (("read", batch.src_port), ("write", batch.dst_port)):
            if port is None:
                continue
            level, instance = port
            asked = np.broadcast_to(instance, batch.shape).ravel()[keep]
            number = {
                r.instance: k
                for k, r in enumerate(self.unit.resources)
                if (r.level, r.direction) == (level, side)
            }
            table = np.full(int(asked.max(initial=0)) + 1, -2, dtype=np.int64)
            for at, k in number.items():
                if at < len(table):
                    table[at] = k
            uses = (self.unit.instructions["resource"][rows] == table[asked][:, None]).any(axis=1)
            if not uses.all():
                wrong = int(np.argmin(uses))
                raise _fail(
                    f"instruction {int(rows[wrong])}", "instance",
                    f"{path} does not {side} {level} {int(asked[wrong])}",
                )  # fmt: skip


def _asked(batches: Sequence[Batch], kept: Sequence[Ints]) -> Ints:
    """[fields, n] What all iterations ask for, batch after batch."""
    parts = []
    for batch, keep in zip(batches, kept, strict=True):
        values = (batch.core, np.array(int(batch.opcode)), np.array(batch.src),
                  np.array(batch.dst), batch.src_offset, batch.dst_offset,
                  batch.num_bytes)  # fmt: skip
        parts.append(np.stack([_flat(v, batch.shape)[keep] for v in values]))
    return np.concatenate(parts, axis=1) if parts else np.zeros((len(_FIELDS), 0), dtype=np.int64)


def _order(asked: Ints, kept: Sequence[Ints]) -> Ints:
    """By what is asked for, then by iteration, then by batch."""
    batch = np.repeat(np.arange(len(kept)), [len(k) for k in kept])
    iteration = np.concatenate([np.zeros(0, dtype=np.int64), *kept])
    return np.lexsort((batch, iteration, *asked[::-1]))


def _flat(values: Ints, shape: tuple[int, ...]) -> Ints:
    while values.ndim > len(shape):
        values = values[..., 0]
    flat: Ints = np.broadcast_to(values, shape).reshape(prod(shape))
    return flat


def _fail(place: str, rule: str, message: str) -> VerifyError:
    return VerifyError("lower", place, rule, message)
