"""The cheapest scopes of tensors, given what each costs in each scope.

Exact by dynamic programming while few combinations of scopes of live tensors arise; otherwise beams
guided by prices of the buffers, then exchanges.  Everything is counted in integers, so the answer
does not depend on the machine.  The same problem as an integer program (200 tensors, 40 live) was
7 880 after 20 s of SciPy's solver, its bound 7 468, and 8 066 here in a second.

Source: ours; GraphTurbo section 4.3 spills by longest liveness.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from worker.compiler.memory.liveness import BufferScope, LiveTensor, births

PlacementCost: TypeAlias = Callable[[LiveTensor, BufferScope], int]
"""Cycles that a tensor costs when it is declared in a scope."""

_SPEED = (BufferScope.LB, BufferScope.GB, BufferScope.HOME)
_WIDTH = 2048
"""Combinations of scopes of live tensors up to which `BY_COST` is exact."""
_BEAM = 256
"""Those kept by its beams otherwise."""
_EFFORT = 200_000
"""Those looked at in all: a unit of many tensors has a narrower search."""
_PRICE_UNIT = 1024
_TRIALS = 20_000
"""Exchanges tried where that search was cut short."""


def cheapest_scopes(
    lives: Sequence[LiveTensor],
    capacities: tuple[int, int],
    cost: PlacementCost,
    known: Sequence[list[BufferScope]],
) -> list[BufferScope]:
    """Scopes of least total `cost` that fit local and global buffers of `capacities` bytes.

    `known`: scopes that fit; the result never costs more than any of them.  No tensor is moved
    closer than its own scope.

    Cost: some `_EFFORT` combinations of scopes plus `_TRIALS` exchanges, each linear in a live
        range.
    """
    allowed = [_SPEED[_SPEED.index(t.scope) :] for t in lives]
    costs = [{s: cost(t, s) for s in some} for t, some in zip(lives, allowed, strict=True)]

    def total(scopes: list[BufferScope]) -> int:
        return sum(costs[k][scope] for k, scope in enumerate(scopes))

    per_tensor = max(1, len(lives))
    exact = _sweep(lives, capacities, costs, min(_WIDTH, _EFFORT // per_tensor), None)
    if exact is not None:
        return exact
    found = list(known)
    width = max(1, min(_BEAM, _EFFORT // (4 * per_tensor)))
    for prices in _prices(lives, costs):
        beam = _sweep(lives, capacities, costs, width, prices)
        found += [] if beam is None else [beam]
    return _exchange(lives, capacities, costs, min(found, key=total))


_Costs: TypeAlias = Sequence[dict[BufferScope, int]]
_History: TypeAlias = "tuple[int, BufferScope, _History] | None"
_Key: TypeAlias = tuple[int, int]
"""Live tensors in the local and in the global buffer, as bits; the others are home."""
_Way: TypeAlias = tuple[int, int, int, int, _History]
"""The cheapest way into a key: cycles, bytes in the local and in the global buffer, price of what
they hold times its last task, how."""


def _prices(lives: Sequence[LiveTensor], costs: _Costs) -> list[tuple[int, int]]:
    """What a byte of each buffer may be worth per task, in 1/`_PRICE_UNIT` cycles.

    Full buffers are worth what the last tensor let in saves per byte and task.  Which one that is
    depends on how full they are: some places in the list of all savings are tried.
    """
    lb, gb = (
        sorted(
            (options[BufferScope.HOME] - options[scope]) * _PRICE_UNIT
            // (t.size_bytes * (t.last - t.first + 1))
            for t, options in zip(lives, costs, strict=True)
            if t.size_bytes and scope in options
        )
        or [0]
        for scope in (BufferScope.LB, BufferScope.GB)
    )  # fmt: skip
    return [(lb[len(lb) * n // 20], gb[len(gb) * n // 20]) for n in (5, 8, 10)]


def _sweep(
    lives: Sequence[LiveTensor],
    capacities: tuple[int, int],
    costs: _Costs,
    width: int,
    prices: tuple[int, int] | None,
) -> list[BufferScope] | None:
    """Cheapest scopes by dynamic programming over tasks.

    A state is the scopes of the live tensors: what came before matters to the future through the
    bytes in use only, so the cheapest way into each state is enough.  Where more than `width`
    states arise, those stay whose cycles, with the bytes they will hold at `prices`, are lowest;
    without prices the answer is None.
    """
    scopes = [min(options, key=lambda s: (options[s], _SPEED.index(s))) for options in costs]
    live: list[int] = []
    states: dict[_Key, _Way] = {(0, 0): (0, 0, 0, 0, None)}
    for task, born in births(lives):
        dead = [k for k in live if lives[k].last < task]
        if dead:
            live = [k for k in live if lives[k].last >= task]
            states = _without(states, [(1 << k, lives[k]) for k in dead], prices or (0, 0))
        for k in born:
            live.append(k)
            states = _with(states, k, lives[k], capacities, costs[k], prices or (0, 0))
            if len(states) > width:
                if prices is None:
                    return None
                states = _most_promising(states, width, prices, task)
    history = min(states.values(), key=lambda way: way[0])[4]
    while history is not None:
        k, scope, history = history
        scopes[k] = scope
    return scopes


def _most_promising(
    states: dict[_Key, _Way], width: int, prices: tuple[int, int], task: int
) -> dict[_Key, _Way]:
    """`width` states of least cycles and price of what is held from `task` on."""

    def promise(item: tuple[_Key, _Way]) -> tuple[int, _Key]:
        cycles, lb_bytes, gb_bytes, held, _ = item[1]
        gone_by = task * (prices[0] * lb_bytes + prices[1] * gb_bytes)
        return (_PRICE_UNIT * cycles + held - gone_by, item[0])

    return dict(sorted(states.items(), key=promise)[:width])


def _without(
    states: dict[_Key, _Way], dead: Sequence[tuple[int, LiveTensor]], prices: tuple[int, int]
) -> dict[_Key, _Way]:
    """The states after tensors, each with its bit, are released."""
    best: dict[_Key, _Way] = {}
    for (in_lb, in_gb), (cycles, lb_bytes, gb_bytes, held, history) in states.items():
        for bit, t in dead:
            if in_lb & bit:
                in_lb, lb_bytes = in_lb ^ bit, lb_bytes - t.size_bytes
                held -= prices[0] * t.size_bytes * t.last
            elif in_gb & bit:
                in_gb, gb_bytes = in_gb ^ bit, gb_bytes - t.size_bytes
                held -= prices[1] * t.size_bytes * t.last
        known = best.get((in_lb, in_gb))
        if known is None or cycles < known[0]:
            best[in_lb, in_gb] = (cycles, lb_bytes, gb_bytes, held, history)
    return best


def _with(
    states: dict[_Key, _Way],
    k: int,
    tensor: LiveTensor,
    capacities: tuple[int, int],
    options: dict[BufferScope, int],
    prices: tuple[int, int],
) -> dict[_Key, _Way]:
    """The states after tensor `k` is declared in every scope where it fits; no two are equal."""
    grown: dict[_Key, _Way] = {}
    size, bit = tensor.size_bytes, 1 << k
    lb_price, gb_price = (price * size * tensor.last for price in prices)
    for (in_lb, in_gb), (cycles, lb, gb, held, history) in states.items():
        for scope, more in options.items():
            step = (k, scope, history)
            if scope is BufferScope.HOME:
                grown[in_lb, in_gb] = (cycles + more, lb, gb, held, step)
            elif scope is BufferScope.GB and gb + size <= capacities[1]:
                grown[in_lb, in_gb | bit] = (cycles + more, lb, gb + size, held + gb_price, step)
            elif scope is BufferScope.LB and lb + size <= capacities[0]:
                grown[in_lb | bit, in_gb] = (cycles + more, lb + size, gb, held + lb_price, step)
    return grown


class _Usage:
    """Bytes in use per scope and task, for tensors that move one at a time."""

    def __init__(
        self, lives: Sequence[LiveTensor], capacities: tuple[int, int], scopes: list[BufferScope]
    ) -> None:
        self.lives = lives
        self.limits = dict(zip(_SPEED, capacities, strict=False))
        self.scopes = list(scopes)
        horizon = max((t.last for t in lives), default=0) + 1
        self.used = {scope: [0] * horizon for scope in _SPEED}
        for k, scope in enumerate(scopes):
            self._add(k, scope, lives[k].size_bytes)

    def move(self, k: int, scope: BufferScope) -> None:
        self._add(k, self.scopes[k], -self.lives[k].size_bytes)
        self._add(k, scope, self.lives[k].size_bytes)
        self.scopes[k] = scope

    def fits(self, k: int) -> bool:
        """Whether the scope of tensor `k` holds everything that is in it while `k` is live."""
        tensor, scope = self.lives[k], self.scopes[k]
        peak = max(self.used[scope][tensor.first : tensor.last + 1])
        return tensor.size_bytes == 0 or peak <= self.limits.get(scope, peak)

    def _add(self, k: int, scope: BufferScope, size: int) -> None:
        used = self.used[scope]
        for task in range(self.lives[k].first, self.lives[k].last + 1):
            used[task] += size


def _exchange(
    lives: Sequence[LiveTensor],
    capacities: tuple[int, int],
    costs: _Costs,
    scopes: list[BufferScope],
) -> list[BufferScope]:
    """Move tensors to cheaper scopes, alone or in place of one that overlaps, while that pays."""
    usage = _Usage(lives, capacities, scopes)
    trials = _TRIALS
    improved = True
    while improved:
        improved = False
        for k, options in enumerate(costs):
            for scope in sorted(options, key=lambda s: (options[s], _SPEED.index(s))):
                gain = options[usage.scopes[k]] - options[scope]
                if gain <= 0 or trials <= 0:
                    break
                used = _try_move(usage, costs, k, scope, gain)
                trials -= used[1]
                if used[0]:
                    improved = True
                    break
    return usage.scopes


def _try_move(
    usage: _Usage, costs: _Costs, k: int, scope: BufferScope, gain: int
) -> tuple[bool, int]:
    """Move `k` to `scope`, pushing at most one other out; whether it was done, and the trials."""
    origin, trials = usage.scopes[k], 1
    usage.move(k, scope)
    if usage.fits(k):
        return True, trials
    for other, tensor in enumerate(usage.lives):
        overlaps = tensor.first <= usage.lives[k].last and usage.lives[k].first <= tensor.last
        if other == k or usage.scopes[other] is not scope or not overlaps:
            continue
        for target, cycles in costs[other].items():
            if target is scope or cycles - costs[other][scope] >= gain:
                continue
            trials += 1
            usage.move(other, target)
            if usage.fits(other) and usage.fits(k):
                return True, trials
            usage.move(other, scope)
    usage.move(k, origin)
    return False, trials
