"""The cheapest tensors to leave at home, given what each costs there and in a buffer.

Exact by dynamic programming while few sets of live tensors arise; otherwise beams guided by a price
of the buffer, then exchanges.  Everything is counted in integers, so the answer does not depend on
the machine.

Source: ours; GraphTurbo section 4.3 spills by longest liveness.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from worker.compiler.memory.liveness import LiveTensor, births, check_lives
from worker.compiler.memory.spill import SpillRule, choose_spills

SpillCost: TypeAlias = Callable[[LiveTensor, bool], int]
"""What a tensor costs when it is spilled (True) or stays."""

_WIDTH = 2048
"""Sets of live tensors in the buffer up to which the search is exact."""
_BEAM = 256
"""Those kept by its beams otherwise."""
_EFFORT = 200_000
"""Those looked at in all: a unit of many tensors has a narrower search."""
_PRICE_UNIT = 1024
_TRIALS = 20_000
"""Exchanges tried where that search was cut short."""


def cheapest_spills(
    lives: Sequence[LiveTensor], capacity_bytes: int, cost: SpillCost
) -> tuple[int, ...]:
    """Positions, ascending, of the tensors that leave a buffer of `capacity_bytes` at least cost.

    Never dearer than what the rules of `choose_spills` leave.

    Raises:
        InternalError: as `choose_spills`.
    Cost: some `_EFFORT` sets plus `_TRIALS` exchanges, each linear in a live range.
    """
    check_lives(lives)
    costs = [(cost(t, False), cost(t, True)) for t in lives]

    def total(spilled: frozenset[int]) -> int:
        return sum(options[k in spilled] for k, options in enumerate(costs))

    per_tensor = max(1, len(lives))
    exact = _sweep(lives, capacity_bytes, costs, min(_WIDTH, _EFFORT // per_tensor), None)
    if exact is not None:
        return tuple(sorted(exact))
    found = [
        frozenset(choose_spills(lives, capacity_bytes, rule))
        for rule in (SpillRule.LONGEST_LIVENESS, SpillRule.LARGEST)
    ]
    width = max(1, min(_BEAM, _EFFORT // (4 * per_tensor)))
    for price in _prices(lives, costs):
        beam = _sweep(lives, capacity_bytes, costs, width, price)
        found += [] if beam is None else [beam]
    return _exchange(lives, capacity_bytes, costs, min(found, key=total))


_Costs: TypeAlias = Sequence[tuple[int, int]]
"""By tensor: staying, spilled."""
_History: TypeAlias = "tuple[int, bool, _History] | None"
_Way: TypeAlias = tuple[int, int, int, _History]
"""The cheapest way to a set of live tensors in the buffer (as bits): cost, bytes, price of what is
held times its last task, how."""


def _prices(lives: Sequence[LiveTensor], costs: _Costs) -> list[int]:
    """What a byte of the buffer may be worth per task, in 1/`_PRICE_UNIT`.

    A full buffer is worth what the last tensor let in saves per byte and task.  Which one that is
    depends on how full it is: some places in the list of all savings are tried.
    """
    savings = sorted(
        (spilled - stays) * _PRICE_UNIT // (t.size_bytes * (t.last - t.first + 1))
        for t, (stays, spilled) in zip(lives, costs, strict=True)
        if t.size_bytes
    ) or [0]
    return [savings[len(savings) * n // 20] for n in (5, 8, 10)]


def _sweep(
    lives: Sequence[LiveTensor],
    capacity: int,
    costs: _Costs,
    width: int,
    price: int | None,
) -> frozenset[int] | None:
    """Cheapest spills by dynamic programming over tasks.

    A state is the set of live tensors in the buffer: what came before matters to the future through
    the bytes in use only, so the cheapest way into each state is enough.  Where more than `width`
    states arise, those stay whose cost, with the bytes they will hold at `price`, is lowest;
    without a price the answer is None.
    """
    spilled = {k for k, options in enumerate(costs) if options[1] < options[0]}
    live: list[int] = []
    states: dict[int, _Way] = {0: (0, 0, 0, None)}
    for task, born in births(lives):
        dead = [k for k in live if lives[k].last < task]
        if dead:
            live = [k for k in live if lives[k].last >= task]
            states = _without(states, [(1 << k, lives[k]) for k in dead], price or 0)
        for k in born:
            live.append(k)
            states = _with(states, k, lives[k], capacity, costs[k], price or 0)
            if len(states) > width:
                if price is None:
                    return None
                states = _most_promising(states, width, price, task)
    history = min(states.values(), key=lambda way: way[0])[3]
    while history is not None:
        k, is_spilled, history = history
        (spilled.add if is_spilled else spilled.discard)(k)
    return frozenset(spilled)


def _most_promising(states: dict[int, _Way], width: int, price: int, task: int) -> dict[int, _Way]:
    """`width` states of least cost and price of what is held from `task` on."""

    def promise(item: tuple[int, _Way]) -> tuple[int, int]:
        cost, size, held, _ = item[1]
        return (_PRICE_UNIT * cost + held - task * price * size, item[0])

    return dict(sorted(states.items(), key=promise)[:width])


def _without(
    states: dict[int, _Way], dead: Sequence[tuple[int, LiveTensor]], price: int
) -> dict[int, _Way]:
    """The states after tensors, each with its bit, are released."""
    best: dict[int, _Way] = {}
    for inside, (cost, size, held, history) in states.items():
        for bit, t in dead:
            if inside & bit:
                inside, size = inside ^ bit, size - t.size_bytes
                held -= price * t.size_bytes * t.last
        if inside not in best or cost < best[inside][0]:
            best[inside] = (cost, size, held, history)
    return best


def _with(
    states: dict[int, _Way],
    k: int,
    tensor: LiveTensor,
    capacity: int,
    options: tuple[int, int],
    price: int,
) -> dict[int, _Way]:
    """The states after tensor `k` is let in where it fits, or spilled; no two are equal."""
    grown: dict[int, _Way] = {}
    bit, more, later = 1 << k, tensor.size_bytes, price * tensor.size_bytes * tensor.last
    for inside, (cost, size, held, history) in states.items():
        if size + more <= capacity:
            step = (k, False, history)
            grown[inside | bit] = (cost + options[0], size + more, held + later, step)
        grown[inside] = (cost + options[1], size, held, (k, True, history))
    return grown


class _Usage:
    """Bytes in the buffer per task, for tensors that move one at a time."""

    def __init__(self, lives: Sequence[LiveTensor], capacity: int, spilled: frozenset[int]) -> None:
        self.lives = lives
        self.capacity = capacity
        self.spilled = set(spilled)
        self.used = [0] * (max((t.last for t in lives), default=0) + 1)
        for k in range(len(lives)):
            if k not in spilled:
                self._add(k, lives[k].size_bytes)

    def swap(self, k: int) -> None:
        """Spill what stays, or let in what is spilled."""
        is_spilled = k in self.spilled
        self._add(k, self.lives[k].size_bytes if is_spilled else -self.lives[k].size_bytes)
        (self.spilled.discard if is_spilled else self.spilled.add)(k)

    def fits(self, k: int) -> bool:
        """Whether the buffer holds everything that is in it while `k` is live."""
        tensor = self.lives[k]
        return not tensor.size_bytes or (
            max(self.used[tensor.first : tensor.last + 1]) <= self.capacity
        )

    def _add(self, k: int, size: int) -> None:
        for task in range(self.lives[k].first, self.lives[k].last + 1):
            self.used[task] += size


def _exchange(
    lives: Sequence[LiveTensor], capacity: int, costs: _Costs, spilled: frozenset[int]
) -> tuple[int, ...]:
    """Swap tensors where that is cheaper, alone or with one that overlaps, while that pays."""
    usage = _Usage(lives, capacity, spilled)
    trials = _TRIALS
    improved = True
    while improved:
        improved = False
        for k, options in enumerate(costs):
            gain = options[k in usage.spilled] - options[k not in usage.spilled]
            if gain <= 0 or trials <= 0:
                continue
            done, tried = _try_swap(usage, costs, k, gain)
            trials -= tried
            improved = improved or done
    return tuple(sorted(usage.spilled))


def _try_swap(usage: _Usage, costs: _Costs, k: int, gain: int) -> tuple[bool, int]:
    """Swap `k`, pushing at most one other out; whether it was done, and the trials."""
    trials = 1
    usage.swap(k)
    if k in usage.spilled or usage.fits(k):
        return True, trials
    for other, tensor in enumerate(usage.lives):
        overlaps = tensor.first <= usage.lives[k].last and usage.lives[k].first <= tensor.last
        if other == k or other in usage.spilled or not overlaps:
            continue
        if costs[other][1] - costs[other][0] >= gain:
            continue
        trials += 1
        usage.swap(other)
        if usage.fits(k):
            return True, trials
        usage.swap(other)
    usage.swap(k)
    return False, trials
