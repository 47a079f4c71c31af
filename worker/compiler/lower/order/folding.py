"""Folding: the emitted window of a program becomes a program with loops (`isa.loops`).

Rows at one position, one a core, that differ by a step become a loop over cores (two where cores
are rows and columns).  The blocks of a
loop of the schedule that are alike, period after period, up to a step become a loop; the gap of the
window (`lower.window`) lies in one, whose step is the same on both sides of it.  What is not alike
(the first blocks, which wait for less; the last ones, which fetch nothing ahead) stays listed.
The expansion is the program as it would have been emitted in full: the same rows, in that order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from worker.compiler.ir.distinct import distinct
from worker.compiler.isa.loops import LOOP, STRIDE, Loops, frozen, nesting
from worker.compiler.isa.program import MAX_RESOURCES
from worker.compiler.lower.grid import Ints
from worker.compiler.lower.order.sync import Tokens
from worker.compiler.lower.rows.batch import Batch
from worker.compiler.lower.window import Window
from worker.compiler.schedule.walk import Leaf

_FIXED = (
    "opcode", "node", "op", "bytes", "macs", "cycles", "drawn", "returned", "inside",
    "starved", "latency", "src", "dst", "operand",
)  # fmt: skip
_STEPPING = "stream", "src_offset", "dst_offset", "iteration"
_PORTS = slice(len(_STEPPING), len(_STEPPING) + MAX_RESOURCES)
"""Columns of the ports, behind those."""
MOST_TOKENS = 64
"""Waits or signals of one instruction above which nothing is folded: columns of a table."""


class Unfoldable(Exception):
    """Some loops are not as regular as their window takes them for."""

    def __init__(self, paths: set[str]) -> None:
        super().__init__(", ".join(sorted(paths)))
        self.paths = paths


@dataclass(frozen=True, slots=True)
class _Straight:
    runs: Ints
    shape: bytes


@dataclass(frozen=True, slots=True)
class _Repeated:
    trip: int
    body: _Block
    step: Ints
    """[runs of the body, fields]"""

    @property
    def runs(self) -> Ints:
        return self.body.runs

    @property
    def shape(self) -> tuple[int, object, bytes]:
        return self.trip, self.body.shape, self.step.tobytes()


@dataclass(frozen=True, slots=True)
class _Block:
    nodes: tuple[_Node, ...]
    runs: Ints
    shape: tuple[object, ...]

    @staticmethod
    def of(nodes: Sequence[_Node]) -> _Block:
        listed = [node.runs for node in nodes]
        runs = np.concatenate(listed) if listed else np.zeros(0, dtype=np.int64)
        return _Block(tuple(nodes), runs, tuple(node.shape for node in nodes))


_Node: TypeAlias = "_Straight | _Repeated"
_Numbered: TypeAlias = "tuple[int, _Block]"


def fold(
    instructions: npt.NDArray[np.void],
    tokens: Tokens,
    batches: Sequence[Batch],
    places: Sequence[Ints],
    leaves: Sequence[Leaf],
    window: Window,
    periods: Mapping[str, int],
) -> tuple[npt.NDArray[np.void], Tokens, Loops]:
    """Fold an emitted window.

    `places`: of each batch's instructions in the program; `periods`: of each loop, in blocks.

    Raises:
        Unfoldable: loops with a gap that nothing bridges.
    Cost: numpy over rows and fields; Python over blocks and runs of cores.
    """
    fields, counts = _fields(instructions, tokens)
    position = np.zeros(len(instructions), dtype=np.int64)
    for batch, at in zip(batches, places, strict=True):
        position[at] = batch.position
    across = _across_cores(instructions, fields, counts, position)
    first = across.first
    chains = [[f.path for f in leaf.frames if f.is_repeating] for leaf in leaves]
    loops: dict[str, int] = {}
    depth = max((len(chain) for chain in chains), default=0)
    digit = np.zeros((len(instructions), depth), dtype=np.int64)
    for batch, at in zip(batches, places, strict=True):
        for k, blocks in enumerate(batch.digits):
            digit[at, k] = blocks
    around = np.full((len(chains), depth), -1, dtype=np.int64)
    for leaf, chain in enumerate(chains):
        around[leaf, : len(chain)] = [loops.setdefault(path, len(loops)) for path in chain]
    folder = _Folder(
        fields.of(first), across.kind, around[instructions["node"][first]], digit[first],
        tuple(loops), window, periods,
    )  # fmt: skip
    whole = folder.sequence(0, len(first), 0)
    if folder.broken:
        raise Unfoldable(folder.broken)
    return _written(whole, instructions, tokens, across)


_FEW = 32
"""One row in so many: a column of fewer takes less time to look up than to walk through.  Measured
on a program of 6.8 M instructions (models:7604 of `benchmarks.hostile`): 19.5 CPU s without, 21.5
with all columns of tokens looked up, 18.2 with these."""


@dataclass(frozen=True, slots=True)
class SparseColumn:
    """A column that is -1 but for some rows."""

    rows: Ints
    """Ascending."""
    values: npt.NDArray[np.int32]

    def of(self, rows: Ints) -> npt.NDArray[np.int32]:
        found = np.full(len(rows), -1, dtype=np.int32)
        if len(self.rows):
            at = np.minimum(np.searchsorted(self.rows, rows), len(self.rows) - 1)
            is_there = self.rows[at] == rows
            found[is_there] = self.values[at[is_there]]
        return found

    def whole(self, count: int) -> npt.NDArray[np.int32]:
        found = np.full(count, -1, dtype=np.int32)
        found[self.rows] = self.values
        return found

    def turns(self, rows: Ints) -> Ints:
        """Numbers of rows, ascending, from which on the step is another: `_stretches`."""
        if not len(rows):
            return np.zeros(0, dtype=np.int64)
        at = np.searchsorted(rows, self.rows)
        at = at[rows[np.minimum(at, len(rows) - 1)] == self.rows]
        near = distinct((at[:, None] + np.arange(3)).ravel())
        near = near[(near >= 2) & (near < len(rows))]
        here, before, first = (self.of(rows[near - k]) for k in range(3))
        is_turn = here - before != before - first
        return np.asarray(near[is_turn])


@dataclass(frozen=True, slots=True)
class _Fields:
    """What may step, a column each: nearly all of a large program's memory while it is folded, and
    most rows have few tokens."""

    columns: tuple[npt.NDArray[np.integer[Any]], ...]
    tokens: tuple[npt.NDArray[np.int32] | SparseColumn, ...]

    def of(self, rows: Ints) -> Ints:
        """[rows, columns]"""
        every = (*self.columns, *self.tokens)
        found = np.empty((len(rows), len(every)), dtype=np.int64)
        for k, column in enumerate(every):
            found[:, k] = column.of(rows) if isinstance(column, SparseColumn) else column[rows]
        return found


def _fields(instructions: npt.NDArray[np.void], tokens: Tokens) -> tuple[_Fields, Ints]:
    """(streams, offsets, iterations, ports, waits and signals; [rows, 2] waits and signals of each
    row)."""
    lists = ((tokens.wait_ptr, tokens.wait_token), (tokens.signal_ptr, tokens.signal_token))
    counts = np.stack([np.diff(pointer) for pointer, _ in lists], axis=1).astype(np.int64)
    most = counts.max(axis=0, initial=0).tolist()
    if max(most) > MOST_TOKENS:
        raise Unfoldable(set())
    columns = [instructions[name].copy() for name in _STEPPING]
    columns += [instructions["resource"][:, k].copy() for k in range(MAX_RESOURCES)]
    found: list[npt.NDArray[np.int32] | SparseColumn] = []
    for (pointer, token), width, own in zip(lists, most, counts.T, strict=True):
        has = np.flatnonzero(own)
        for k in range(width):
            has = has[own[has] > k]
            column = SparseColumn(has, token[pointer[has] + k].astype(np.int32))
            is_few = len(has) * _FEW <= len(instructions)
            found.append(column if is_few else column.whole(len(instructions)))
    return _Fields(tuple(columns), tuple(found)), counts


@dataclass(frozen=True, slots=True)
class _Across:
    """Rows at one position, gathered into runs over cores."""

    first: Ints
    """[runs] The row that each begins with."""
    kind: Ints
    """[runs] Equal for runs that differ only in where they begin."""
    loops: tuple[tuple[Ints, Ints], ...]
    """Innermost first: ([runs] iterations, [runs, fields] what one adds)."""


def _across_cores(
    instructions: npt.NDArray[np.void], fields: _Fields, counts: Ints, position: Ints
) -> _Across:
    """Stretches whose fields differ by a step, stretches of these, and so on."""
    same = position[1:] == position[:-1]
    for name in _FIXED:
        same &= instructions[name][1:] == instructions[name][:-1]
    same &= np.all(counts[1:] == counts[:-1], axis=1)
    for port in fields.columns[_PORTS]:
        same &= (port[1:] < 0) == (port[:-1] < 0)
    first: Ints = np.arange(len(instructions), dtype=np.int64)
    loops: list[tuple[Ints, Ints]] = []
    while True:
        begin, size = _stretches(same, fields, first)
        is_many = (size > 1)[:, None]
        behind = np.minimum(begin + 1, len(first) - 1)
        step = np.where(is_many, fields.of(first[behind]) - fields.of(first[begin]), 0)
        first, done = first[begin], len(begin) == len(first)
        if loops and done:
            break
        loops = [(own[begin], steps[begin]) for own, steps in loops] + [(size, step)]
        parts = [instructions[name][first][:, None].astype(np.int64) for name in _FIXED]
        parts += [counts[first], *(part for own, steps in loops for part in (own[:, None], steps))]
        kind = _numbered(np.concatenate(parts, axis=1))
        same = (position[first[1:]] == position[first[:-1]]) & (kind[1:] == kind[:-1])
    return _Across(first, kind, tuple(loops))


def _stretches(same: npt.NDArray[np.bool_], fields: _Fields, rows: Ints) -> tuple[Ints, Ints]:
    """(first, length) of stretches of neighbours that are the `same` and differ by one step.

    `rows`: of the fields, ascending.
    """
    count = len(rows)
    turns = np.zeros(count, dtype=np.bool_)
    for column in (*fields.columns, *fields.tokens):
        if isinstance(column, SparseColumn):
            turns[column.turns(rows)] = True
            continue
        moved = np.diff(column if len(rows) == len(column) else column[rows])
        turns[2:] |= moved[1:] != moved[:-1]
    turns[2:] &= same[1:] & same[:-1]
    begins = np.ones(count, dtype=np.bool_)
    begins[1:] = ~same
    start = np.maximum.accumulate(np.where(begins, np.arange(count), 0))
    at = -1
    for k in np.flatnonzero(turns).tolist():  # a step that changes starts another stretch
        if k >= max(int(start[k]), at) + 2:
            begins[k] = True
            at = k
    first = np.flatnonzero(begins)
    return first, np.diff(np.append(first, count))


def _numbered(kinds: Ints) -> Ints:
    """[runs] The same number for equal rows."""
    number: dict[bytes, int] = {}
    lines = np.ascontiguousarray(kinds)
    return np.array(
        [number.setdefault(line.tobytes(), len(number)) for line in lines], dtype=np.int64
    )


@dataclass(slots=True)
class _Folder:
    """Shapes: base [runs, fields], kind [runs], around and digit [runs, depth]."""

    base: Ints
    kind: Ints
    around: Ints
    digit: Ints
    paths: tuple[str, ...]
    window: Window
    periods: Mapping[str, int]
    broken: set[str] = field(default_factory=set)

    def sequence(self, begin: int, end: int, depth: int) -> _Block:
        """What stands inside one block of the loop at depth - 1."""
        if begin == end:
            return _Block.of(())
        if depth == self.around.shape[1]:
            return _Block.of((self._straight(begin, end),))
        loop = self.around[begin:end, depth]
        edges = [begin, *(begin + 1 + np.flatnonzero(np.diff(loop))).tolist(), end]
        nodes: list[_Node] = []
        for low, high in pairwise(edges):
            number = int(self.around[low, depth])
            if number < 0:
                nodes.append(self._straight(low, high))
            else:
                nodes += self._loop(low, high, depth, self.paths[number])
        return _Block.of(nodes)

    def _straight(self, begin: int, end: int) -> _Straight:
        return _Straight(np.arange(begin, end), self.kind[begin:end].tobytes())

    def _loop(self, begin: int, end: int, depth: int, path: str) -> list[_Node]:
        digit = self.digit[begin:end, depth]
        change = np.diff(digit)
        if np.any(change < 0):  # something stands between two parts of it
            self.broken |= {path} & set(self.window.gaps)
            return [self._straight(begin, end)]
        edges = [begin, *(begin + 1 + np.flatnonzero(change)).tolist(), end]
        blocks = [
            (int(self.digit[low, depth]), self.sequence(low, high, depth + 1))
            for low, high in pairwise(edges)
        ]
        gap, period = self.window.gaps.get(path), self.periods[path]
        if gap is None:
            return self._greedy(blocks, period)
        digits = [number for number, _ in blocks]
        if gap.first - 2 * period not in digits:
            if digits[-1] < gap.first or digits[0] >= gap.end:
                return self._greedy(blocks, period)
            self.broken.add(path)
            return []
        start = digits.index(gap.first - 2 * period)
        found = self._repeated(blocks, start, period)
        if found is None or digits[found[1] - 1] < gap.end:
            self.broken.add(path)
            return []
        while start >= period:
            earlier = self._repeated(blocks, start - period, period)
            if earlier is None or earlier[1] != found[1]:
                break
            start, found = start - period, earlier
        node, stop = found
        return [
            *self._greedy(blocks[:start], period), node, *self._greedy(blocks[stop:], period)
        ]  # fmt: skip

    def _greedy(self, blocks: Sequence[_Numbered], period: int) -> list[_Node]:
        nodes: list[_Node] = []
        at = 0
        while at < len(blocks):
            found = self._repeated(blocks, at, period)
            if found is None:
                nodes += blocks[at][1].nodes
                at += 1
            else:
                nodes.append(found[0])
                at = found[1]
        return nodes

    def _repeated(
        self, blocks: Sequence[_Numbered], start: int, period: int
    ) -> tuple[_Repeated, int] | None:
        """The loop that begins at a block, and the block behind it; None below three periods."""
        first = self._period(blocks, start, period)
        if first is None:
            return None
        digit, body = first
        before, trip, at = body, 1, start + period
        step: Ints | None = None
        while True:
            following = self._period(blocks, at, period)
            if following is None or following[1].shape != body.shape:
                break
            turns, rest = divmod(following[0] - digit, period)
            moved = self.base[following[1].runs] - self.base[before.runs]
            if rest or (step is None and turns != 1):
                break
            if step is not None and not np.array_equal(moved, step * turns):
                break
            step = moved if step is None else step
            digit, before = following
            trip += turns
            at += period
        if step is None or trip < 3:
            return None
        return _Repeated(trip, body, step), at

    @staticmethod
    def _period(blocks: Sequence[_Numbered], start: int, period: int) -> tuple[int, _Block] | None:
        """(number of the first block, what stands in all of one period)."""
        part = blocks[start : start + period]
        if len(part) < period or part[-1][0] - part[0][0] != period - 1:
            return None
        if period == 1:
            return part[0]
        return part[0][0], _Block.of([node for _, block in part for node in block.nodes])


@dataclass(slots=True)
class _Writer:
    sizes: tuple[Ints, ...]
    """[runs] Iterations of the loops over cores, innermost first."""
    runs: list[Ints] = field(default_factory=list)
    count: int = 0
    table: list[tuple[int, int, int]] = field(default_factory=list)
    steps: list[tuple[int, int, Ints]] = field(default_factory=list)
    """(depth, first row, [rows, fields])"""

    def write(self, block: _Block, depth: int) -> None:
        for node in block.nodes:
            first = self.count
            if isinstance(node, _Straight):
                self.runs.append(node.runs)
                self.count += len(node.runs)
                for row, run in enumerate(node.runs.tolist(), first):
                    trips = [int(size[run]) for size in reversed(self.sizes)]
                    self.table += [(row, row + 1, trip) for trip in trips if trip > 1]
                continue
            number = len(self.table)
            self.write(node.body, depth + 1)
            self.table.insert(number, (first, self.count, node.trip))
            self.steps.append((depth, first, node.step))


def _written(
    whole: _Block, instructions: npt.NDArray[np.void], tokens: Tokens, across: _Across
) -> tuple[npt.NDArray[np.void], Tokens, Loops]:
    writer = _Writer(tuple(size for size, _ in across.loops))
    writer.write(whole, 0)
    runs = np.concatenate(writer.runs) if writer.runs else np.zeros(0, dtype=np.int64)
    table = np.array(writer.table, dtype=LOOP)
    depth = max(nesting(table), default=-1) + 1
    steps = np.zeros((len(runs), depth, across.loops[0][1].shape[1]), dtype=np.int64)
    inside = np.zeros(len(runs), dtype=np.int64)
    for at, begin, step in writer.steps:
        own = slice(begin, begin + len(step))
        steps[own, at] = step
        inside[own] = np.maximum(inside[own], at + 1)
    for size, step in reversed(across.loops):
        many = np.flatnonzero(size[runs] > 1)
        steps[many, inside[many]] = step[runs[many]]
        inside[many] += 1
    rows = across.first[runs]
    stride = np.zeros(steps.shape[:2], dtype=STRIDE)
    for k, name in enumerate(_STEPPING):
        stride[name] = steps[..., k]
    stride["resource"] = steps[..., _PORTS]
    wait_ptr, wait_token, wait_stride = _lists(
        tokens.wait_ptr, tokens.wait_token, rows, steps[..., _PORTS.stop :]
    )
    widest = int(np.diff(tokens.wait_ptr).max(initial=0))
    signal_ptr, signal_token, signal_stride = _lists(
        tokens.signal_ptr, tokens.signal_token, rows, steps[..., _PORTS.stop + widest :]
    )
    return (
        instructions.take(rows),
        Tokens(wait_ptr, wait_token, signal_ptr, signal_token, tokens.num_tokens),
        frozen(Loops(table, stride, wait_stride, signal_stride)),
    )


def _lists(
    pointer: npt.NDArray[np.int32], token: npt.NDArray[np.int32], rows: Ints, steps: Ints
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """CSR lists of the rows that are kept, and the steps of their entries."""
    counts = np.diff(pointer)[rows]
    ends = np.concatenate(([0], np.cumsum(counts)))
    own = np.repeat(np.arange(len(rows)), counts)
    place = np.arange(ends[-1]) - ends[own]
    return (
        ends.astype(np.int32),
        token[pointer[rows][own] + place],
        np.asarray(steps[own, :, place], dtype=np.int32),
    )
