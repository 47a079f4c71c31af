"""All tilings of a layer into exact parts, as a mixed-integer program in logarithms.

Every prime factor of every axis goes to one slot: split over the units of a stage, looped over at a
stage, laid along the engine's array, or looped over within one instruction.  How often a slot has a
prime is an integer.  Logarithms of tiles, trips and parts are sums of these.  What is fetched of an
operand counts the loops of its own axes and those outside of its innermost own loop; whether an
axis is looped over is a binary.  Windows (stride * rows + kernel) are held from below by tangents,
which the objective presses on.  What buffers take together is a sum of exponentials: `Program.cut`
adds its tangent where a solution takes too much.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import exp, log, prod

from benchmarks.searches.linear import Linear, Rows, Values, summed, total, value
from benchmarks.searches.problem import Problem
from worker.compiler.cost.compute import contraction
from worker.compiler.cost.folds import granule
from worker.compiler.tiling.nest.enumeration import Axis, Numbers
from worker.compiler.tiling.nest.facts import Operand
from worker.compiler.tiling.nest.plan import placed_at

COMPUTE, TRAFFIC, FILLING = 10.0, 1.0, 1.0
"""Weights: of loops, of bytes, and of how full buffers are."""
SHARES = (0.02, 0.1, 0.3, 0.5, 0.7, 0.9, 0.98)
"""Of a window's first term, where its tangents touch."""
TIE = 0.01
"""What CoSA's objective counts beside the slowest's."""
CUTS = 40
"""Programs of one order that are solved at most, each with the cuts of those before."""


class Aim(StrEnum):
    """What a program makes small."""

    PRODUCT = "product"
    """CoSA's weighted sum of logarithms: loops that are left to one core, plus bytes of every
    operand through every stage, less how full buffers are."""
    SLOWEST = "slowest"
    """The slowest of computing and of moving each operand through each port of each stage, with
    rates, sharers and latencies; of equals, the least product."""


@dataclass(frozen=True, slots=True)
class _Window:
    """A dimension of an operand along which several axes move, at a stage."""

    stage: int
    terms: tuple[tuple[str, int], ...]
    """(axis, factor): as wide as their sum at most.  An axis without a name is 1 wide."""


@dataclass(frozen=True, slots=True)
class _Part:
    """What an operand takes of a stage's memory."""

    stage: int
    size: Linear
    constant: float
    """size + constant: the logarithm of the bytes of its copies, or more."""


@dataclass(frozen=True, slots=True)
class _Move:
    """An operand on its way to or from a stage."""

    size: Linear
    payload: float
    """size and this: the bytes of a tile."""
    times: Linear
    """Logarithm of how often a unit moves one."""


class Program:
    """All tilings into exact parts with one order of loops and one way to buffer."""

    def __init__(self, problem: Problem, order: tuple[str, ...], aim: Aim, *, double: bool) -> None:
        """`order`: output axes, outermost first; reductions stand inside."""
        self.problem, self.double = problem, double
        facts, stages = problem.facts, problem.stages
        self.is_slowest = aim is Aim.SLOWEST
        self.weight = TIE if self.is_slowest else 1.0
        self.axes = [n for n, e in facts.extents.items() if e > 1 and n not in facts.whole]
        self.order = [n for n in (*order, *facts.reduce_axes) if n in self.axes]
        self.rows = Rows()
        self._slots: dict[tuple[str, int, str], list[tuple[int, int]]] = {}
        """(variable, prime) of every kind of slot, stage and axis."""
        self._windows: dict[int, _Window] = {}
        """By the variable that is their logarithm."""
        self._parts: list[_Part] = []
        self._slowest = self.rows.variable(log(1e18))
        """The logarithm of all cycles."""
        array = self._array()
        for name in self.axes:
            self._cut_up(name, in_array=any(name in members for members, _ in array))
        for members, side in array:
            self.rows.at_most(summed(self._log("array", 0, n) for n in members), log(side))
        for k, stage in enumerate(stages):
            ways = summed(self._log("ways", k, n) for n in self.axes)
            self.rows.at_most(ways, log(stage.units))
            for operand in placed_at(facts, stage, is_last=k == len(stages) - 1):
                self._place(k, operand)
        steps = self._steps(len(stages))
        loops = summed([steps, *(self._log("inside", 0, n) for n in self.axes)])
        self.rows.charge(loops, COMPUTE * self.weight)
        if self.is_slowest:
            self.rows.charge({self._slowest: 1.0}, 1.0)
            pace, extents = problem.pricer.pace, tuple(a.extent for a in facts.op.domain)
            full = prod(extents) / prod(side for _, side in array)
            self._takes(loops, pace.least(extents) / full)
            self._takes(steps, pace.startup_cycles)

    def fitting(self) -> Numbers | None:
        """Ways and trips of the best solution whose buffers fit; None: none was found."""
        for _ in range(CUTS):
            values = self.rows.solved() if self.axes else None
            if values is None:
                return None
            if not self.cut(values):
                return self._numbers(values)
        return None

    def cut(self, values: Values) -> bool:
        """Forbid a solution whose buffers take too much, and whatever is beyond the tangent there;
        whether it does."""
        is_cut = False
        windows = {v: self._touched(v, window, values) for v, window in self._windows.items()}
        for k in range(len(self.problem.stages)):
            parts = [part for part in self._parts if part.stage == k]
            logs = [
                part.constant + sum(f * windows.get(v, values[v]) for v, f in part.size.items())
                for part in parts
            ]
            taken, room = sum(map(exp, logs)), self._room(k, len(parts))
            if taken > room * (1 + 1e-9):
                shares = [exp(one) / taken for one in logs]
                row = total(*((p.size, share) for p, share in zip(parts, shares, strict=True)))
                beside = sum(
                    share * (one - part.constant)
                    for part, one, share in zip(parts, logs, shares, strict=True)
                )
                self.rows.at_most(row, beside + log(room / taken))
                is_cut = True
        return is_cut

    def _numbers(self, values: Values) -> Numbers:
        def number(kind: str, k: int, name: str) -> int:
            found = 1
            for variable, prime in self._slots.get((kind, k, name), ()):
                found *= prime ** round(values[variable])
            return found

        def axis(name: str) -> Axis:
            stages = range(len(self.problem.stages))
            return tuple((number("ways", k, name), number("trips", k, name)) for k in stages)

        return {name: axis(name) for name in self.problem.facts.extents}

    def _array(self) -> list[tuple[list[str], int]]:
        """Axes that an array takes side by side, and how many: rows, columns and depth."""
        facts, engine = self.problem.facts, self.problem.engine
        roles = contraction(facts.op)
        if roles is None or not engine.array:
            return []
        names = [axis.name for axis in facts.op.domain]
        sides = granule(engine.array, engine.dataflow)
        groups = (roles.rows, roles.columns, roles.depth)
        return [
            ([names[i] for i in group if names[i] in self.axes], side)
            for group, side in zip(groups, sides, strict=True)
        ]

    def _cut_up(self, name: str, *, in_array: bool) -> None:
        """Every prime of an axis stands in one slot."""
        facts, stages = self.problem.facts, range(len(self.problem.stages))
        slots = [("trips", k) for k in stages]
        if name in facts.out_axes:
            slots += [("ways", k) for k in stages]
        if name not in facts.single:
            slots += [("inside", 0), *[("array", 0)] * in_array]
        for prime, times in primes(facts.extents[name]):
            row = {}
            for kind, k in slots:
                variable = self.rows.variable(times, is_integer=True)
                self._slots.setdefault((kind, k, name), []).append((variable, prime))
                row[variable] = 1.0
            self.rows.at_most(row, times)
            self.rows.at_most(dict.fromkeys(row, -1.0), -times)

    def _log(self, kind: str, k: int, name: str) -> Linear:
        """The logarithm of what an axis has in a slot."""
        return {v: log(prime) for v, prime in self._slots.get((kind, k, name), ())}

    def _log_tile(self, k: int, name: str) -> Linear:
        """Of its tile at a stage."""
        inner = range(k + 1, len(self.problem.stages))
        slots = [
            ("inside", 0),
            ("array", 0),
            *((kind, j) for j in inner for kind in ("ways", "trips")),
        ]
        return summed(self._log(kind, j, name) for kind, j in slots)

    def _room(self, k: int, operands: int) -> float:
        """Bytes for the copies of so many operands, whatever they are rounded up to."""
        stage = self.problem.stages[k]
        rim = (1 + self.double) * max(stage.level.align_bytes, 8) * operands
        return max(1.0, stage.capacity_bytes // stage.sharers - rim)

    def _place(self, k: int, operand: Operand) -> None:
        """What an operand takes of a stage's memory and moves through it."""
        facts, is_last = self.problem.facts, k == len(self.problem.stages) - 1
        size, constant = self._size(k, operand)
        constant += log(1 + self.double)
        if is_last and operand is facts.in_registers and facts.registers is not None:
            self.rows.at_most(size, log(facts.registers.usable_bytes) - constant)
        else:
            self._parts.append(_Part(k, size, constant))
            self.rows.at_most(size, log(self._room(k, 1)) - constant)
        own = [n for n in self.axes if n in operand.axes]
        filling = summed(self._log_tile(k, n) for n in own)
        self.rows.charge(filling, -FILLING * self.weight)
        times = summed([self._fetches(k, own), self._steps(k)])
        parts = summed(self._log("ways", j, n) for j in range(k + 1) for n in own)
        self.rows.charge(summed([size, times, parts]), TRAFFIC * self.weight)
        if self.is_slowest:
            payload = exp(constant) / (1 + self.double)
            self._move(k, operand, _Move(size, payload, times))

    def _steps(self, k: int) -> Linear:
        """Logarithm of how often a unit begins a stage, or with all of them, an instruction."""
        return summed(self._log("trips", j, n) for j in range(k) for n in self.axes)

    def _takes(self, row: Linear, factor: float) -> None:
        """All cycles are at least so many."""
        if factor > 0:
            self.rows.at_most(total((row, 1.0), ({self._slowest: 1.0}, -1.0)), -log(factor))

    def _move(self, k: int, operand: Operand, move: _Move) -> None:
        """What an operand takes of every port on its ways to a stage and from it."""
        port = self.problem.pricer.ports[k]
        ways = [(w.route, 1.0) for w in port.fills if w.operand.tensor == operand.tensor]
        if port.drain is not None and port.drain.operand.tensor == operand.tensor:
            ratio = port.drain.operand.dtype.size_bytes / operand.dtype.size_bytes
            ways.append((port.drain.route, ratio))
        outside = summed(self._log("ways", j, n) for j in range(k) for n in self.axes)
        everyone = summed([outside, *(self._log("ways", k, n) for n in self.axes)])
        bytes_moved = summed([move.size, move.times])
        for route, ratio in ways:
            payload = move.payload * ratio
            self._takes(move.times, route.latency_cycles / (1 + self.double))
            self._takes(bytes_moved, payload / route.issuing[0])
            for number, (rate, instances) in enumerate(route.ports):
                self._takes(bytes_moved, payload / rate)
                together = summed([bytes_moved, everyone])
                if route.reach > 1 and not number:
                    self._takes(together, payload / rate / instances / route.reach)
                    reads = self._reads(k, operand, route.reach)
                    together = summed([bytes_moved, outside, reads])
                self._takes(together, payload / rate / instances)

    def _reads(self, k: int, operand: Operand, reach: int) -> Linear:
        """Logarithm of how many reads serve all units of a stage: one for neighbours that need the
        same, which are those along the axes behind the operand's last."""
        own = [n for n in self.axes if n in operand.axes]
        if reach < self.problem.stages[k].units:
            axes = [n for n in self.problem.facts.out_axes if n in self.axes]
            while axes and axes[-1] not in own:
                axes.pop()
            own = axes
        return summed(self._log("ways", k, n) for n in own)

    def _size(self, k: int, operand: Operand) -> tuple[Linear, float]:
        """(size, constant): their sum is the logarithm of one copy's bytes, or more."""
        size: list[Linear] = []
        constant = log(operand.dtype.size_bytes)
        for terms, extra in zip(operand.linear, operand.extra, strict=True):
            assert terms is not None, "branch and bound knows the layer"
            moving = [(n, f) for n, f in terms if n in self.axes]
            if extra or not moving:
                moving.append(("", 1 + extra))
            if len(moving) == 1:
                [(name, factor)] = moving
                size.append(self._log_tile(k, name))
                constant += log(factor)
                continue
            window = _Window(k, tuple(moving))
            variable = self.rows.variable(log(sum(
                factor * self.problem.facts.extents.get(name, 1) for name, factor in moving
            )))  # fmt: skip
            self._windows[variable] = window
            size.append({variable: 1.0})
            for share in SHARES:
                rest = (1 - share) / (len(moving) - 1)
                self._tangent(variable, window, [share, *[rest] * (len(moving) - 1)])
        return summed(size), constant

    def _tangent(self, variable: int, window: _Window, shares: Sequence[float]) -> None:
        """log(sum of terms) is at least the sum of share * log(term / share)."""
        row: Linear = {variable: -1.0}
        limit = 0.0
        for (name, factor), share in zip(window.terms, shares, strict=True):
            row = total((row, 1.0), (self._log_tile(window.stage, name), share))
            limit -= share * log(factor / share)
        self.rows.at_most(row, limit)

    def _touched(self, variable: int, window: _Window, values: Values) -> float:
        """The window's logarithm at a solution, where it gets a tangent."""
        terms = [
            factor * exp(value(self._log_tile(window.stage, name), values))
            for name, factor in window.terms
        ]
        found = log(sum(terms))
        if values[variable] < found - 1e-9:
            self._tangent(variable, window, [term / sum(terms) for term in terms])
        return found

    def _fetches(self, k: int, own: Sequence[str]) -> Linear:
        """Logarithm of how often a stage fetches what has these axes, each time it is begun."""
        found: list[Linear] = []
        for place, name in enumerate(self.order):
            trips = self._log("trips", k, name)
            inside = [n for n in self.order[place + 1 :] if n in own]
            if name in own:
                found.append(trips)
            elif inside:
                most = log(self.problem.facts.extents[name])
                is_looped = self.rows.variable(1.0, is_integer=True)
                for other in inside:
                    for variable, _ in self._slots[("trips", k, other)]:
                        limit = self.rows.upper[variable]
                        self.rows.at_most({variable: 1.0, is_looped: -limit}, 0.0)
                times = self.rows.variable(most)
                self.rows.at_most(total((trips, 1.0), ({times: -1.0, is_looped: most}, 1.0)), most)
                found.append({times: 1.0})
        return summed(found)


def primes(number: int) -> list[tuple[int, int]]:
    """(prime, how often) of a number.  Cost: at most its root."""
    found: list[tuple[int, int]] = []
    prime = 2
    while number > 1:
        if prime * prime > number:
            prime = number
        times = 0
        while number % prime == 0:
            number //= prime
            times += 1
        if times:
            found.append((prime, times))
        prime += 1
    return found
