"""The home arena of a whole model: one address for every tensor that lives in level 0.

Weights come first, in order, and stay for ever.  Activations follow: each lives from the call that
defines it to the last call that uses it, and tensors that do not meet may share addresses.  A view
(reshape and the like) is the same memory as its source, so their lives are joined.  Graph inputs
live from the start, graph outputs to the end.
Source: best-fit placement over liveness, as for scratchpads (lower/allocate.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import lcm

from worker.compiler.errors import Infeasible, Shortfall
from worker.compiler.machine.machine import Machine
from worker.compiler.memory.allocate import Allocation, Request, align_up, allocate

_ELEMENT_ALIGN_BYTES = 64
"""Every tensor starts on a cache line: enough for any element type and for vector loads in C."""


@dataclass(frozen=True, slots=True)
class CallUse:
    """Tensors one call touches.  Scratch of a unit is read and written by its call alone."""

    reads: tuple[str, ...]
    writes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class HomeMap:
    """Where everything lives."""

    address_of: Mapping[str, int]
    """Every tensor, views included."""
    home_bytes: int
    weight_bytes: int
    """Weights occupy [0, weight_bytes)."""
    peak_activation_bytes: int
    """Most bytes of activations alive at once (a lower bound of the activations' region)."""


def plan_home(
    size_of: Mapping[str, int],
    weights: Sequence[str],
    inputs: Sequence[str],
    outputs: Sequence[str],
    calls: Sequence[CallUse],
    view_of: Mapping[str, str],
    machine: Machine,
) -> HomeMap:
    """Plan the home arena.

    `size_of` gives bytes of every tensor in the home level; `view_of` maps a view to the tensor it
    reinterprets (chains allowed; a view of a weight is that weight).  Host-boundary tensors are
    ordinary tensors read or written by host calls.
    Raises:
        Infeasible: the arena exceeds the usable bytes of the home level.
        KeyError: a call names a tensor without a size.
    Cost: O(n * d log d) for n tensors of which d are alive together.
    """
    root_of = _roots(size_of, view_of)
    align = lcm(machine.home.align_bytes, _ELEMENT_ALIGN_BYTES)
    address: dict[str, int] = {}
    end = 0
    for name in weights:
        if root_of[name] not in address:
            address[root_of[name]] = end
            end = align_up(end + size_of[root_of[name]], align)
    weight_bytes = end
    lives = _lives(root_of, weights, inputs, outputs, calls)
    names = list(lives)
    plan = _place([lives[n] for n in names], [size_of[n] for n in names], align)
    for name, offset in zip(names, plan.addresses, strict=True):
        address[name] = weight_bytes + offset
    home_bytes = weight_bytes + plan.peak_bytes
    peak = _peak([lives[n] for n in names], [align_up(size_of[n], align) for n in names])
    if home_bytes > machine.home.usable_bytes:
        raise _overflow(machine, home_bytes, weight_bytes, plan.peak_bytes, peak)
    return HomeMap(
        {name: address[root] for name, root in root_of.items() if root in address},
        home_bytes,
        weight_bytes,
        peak,
    )


def _roots(size_of: Mapping[str, int], view_of: Mapping[str, str]) -> dict[str, str]:
    """The tensor whose memory each tensor uses."""
    root_of: dict[str, str] = {}
    for name in (*size_of, *view_of):
        root = name
        while root in view_of:
            root = view_of[root]
        root_of[name] = root
    return root_of


def _lives(
    root_of: Mapping[str, str],
    weights: Sequence[str],
    inputs: Sequence[str],
    outputs: Sequence[str],
    calls: Sequence[CallUse],
) -> dict[str, tuple[int, int]]:
    """Inclusive (first call, last call) of every root that is no weight, by first appearance."""
    fixed = {root_of[name] for name in weights}
    lives: dict[str, tuple[int, int]] = {}

    def use(name: str, when: int) -> None:
        root = root_of[name]
        if root not in fixed:
            first, last = lives.get(root, (when, when))
            lives[root] = (min(first, when), max(last, when))

    for name in inputs:
        use(name, -1)
    for when, call in enumerate(calls):
        for name in (*call.reads, *call.writes):
            use(name, when)
    for name in outputs:
        use(name, len(calls))
    return lives


def _place(lives: Sequence[tuple[int, int]], sizes: Sequence[int], align: int) -> Allocation:
    order = sorted(range(len(lives)), key=lambda k: (lives[k][0], k))
    conflicts: list[set[int]] = [set() for _ in lives]
    alive: list[int] = []
    for k in order:
        alive = [c for c in alive if lives[c][1] >= lives[k][0]]
        for c in alive:
            conflicts[k].add(c)
            conflicts[c].add(k)
        alive.append(k)
    return allocate(
        [Request(size, align, frozenset(c)) for size, c in zip(sizes, conflicts, strict=True)]
    )


def _peak(lives: Sequence[tuple[int, int]], sizes: Sequence[int]) -> int:
    """Most bytes alive during one call."""
    change: dict[int, int] = {}
    for (first, last), size in zip(lives, sizes, strict=True):
        change[first] = change.get(first, 0) + size
        change[last + 1] = change.get(last + 1, 0) - size
    alive = peak = 0
    for when in sorted(change):
        alive += change[when]
        peak = max(peak, alive)
    return peak


def _overflow(
    machine: Machine, demand: int, weight_bytes: int, activation_bytes: int, peak: int
) -> Infeasible:
    home = machine.home
    return Infeasible(
        f"the model needs {demand} bytes in {home.name}, {home.usable_bytes} are usable",
        Shortfall(
            f"memory:{home.name}",
            demand,
            home.usable_bytes,
            "bytes",
            tuple(sorted(
                (("weights", weight_bytes), ("activations", activation_bytes)),
                key=lambda term: -term[1],
            )),
            (
                f"Raise the usable capacity of {home.name} to at least {demand} bytes.",
                f"Use a smaller batch: activations need {peak} bytes at once.",
            ),
        ),
        stage="lower",
    )  # fmt: skip
