"""Blockings of row-stationary nests, one by one: written from the formulas, without arrays.

Everything in words of one datum (filter, input, output) and loops (I, O, B); see
`benchmarks/rivals` for what it checks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from math import ceil, prod


@dataclass(frozen=True)
class Case:
    channels: int
    filters: int
    rows: int
    columns: int
    tall: int
    wide: int
    stride: int
    batch: int
    region: bool
    height: int
    width: int
    registers: int
    room: int


@dataclass(frozen=True)
class Pass:
    """Exact figures of one replicated pass."""

    loops: tuple[int, int, int]
    has: tuple[str, str, str]
    dram: tuple[Fraction, ...]
    gbuf: tuple[Fraction, ...]
    array: tuple[Fraction, ...]
    gbuf_room: tuple[int, ...]
    regf_room: tuple[int, ...]
    ops: Fraction


def up(a: int, b: int) -> int:
    return -(-a // b)


def passes(c: Case) -> Iterator[Pass]:
    fh, rh = (up(c.tall, c.height), 1) if c.tall > c.height else (1, c.height // c.tall)
    fw, rw = (up(c.rows, c.width), 1) if c.rows > c.width else (1, c.width // c.rows)
    x = min(rh, fw)
    fw, rh = up(fw, x), rh // x
    pes = up(c.tall, fh) * up(c.rows, fw)
    h = Fraction(c.rows, fw)
    hi, wi = c.tall + (h - 1) * c.stride, c.wide + (c.columns - 1) * c.stride
    hi_held = c.tall + (ceil(h) - 1) * c.stride
    ops = c.tall * c.wide * h * c.columns
    if c.region:
        ko = min(rh * rw, c.filters)
        lo = up(c.filters, ko)
        o = Fraction(c.filters, ko * lo)
        yield Pass(
            (1, lo, c.batch * fw), ("", "OB", "OB"),
            (Fraction(0), hi * wi * ko * o, h * c.columns * ko * o),
            (Fraction(0), hi * wi * ko * o, fh * h * c.columns * ko * o),
            (Fraction(0), wi * pes * ko * o, c.columns * pes * fh * ko * o),
            (0, hi_held * wi * ko, ceil(h) * c.columns * ko), (0, c.wide, 1), ops * ko * o,
        )  # fmt: skip
        return
    least = None
    for a in range(1, rh + 1):
        if rh % a:
            continue
        ci, ko = min(a, c.channels), min(rh // a * rw, c.filters)
        li, lo, lb = up(c.channels, ci), up(c.filters, ko), c.batch * fw
        if least is not None and li * lo * lb > least:
            continue
        least = li * lo * lb
        oi, oo = Fraction(c.channels, ci * li), Fraction(c.filters, ko * lo)
        yield Pass(
            (li, lo, lb), ("IO", "IB", "OB"),
            (c.tall * c.wide * ci * ko * oi * oo, hi * wi * ci * oi, h * c.columns * ko * oo),
            (c.tall * c.wide * ci * ko * oi * oo, fh * hi * wi * ci * oi,
             fh * h * c.columns * ko * oo),
            tuple(
                n * pes * fh * ci * ko * part
                for n, part in ((c.wide, oi * oo), (wi, oi), (c.columns, oo))
            ),
            (c.tall * c.wide * ci * ko, hi_held * wi * ci, ceil(h) * c.columns * ko),
            (c.wide, c.wide, 1), ops * ci * ko * oi * oo,
        )  # fmt: skip


def cuts(n: int) -> Iterator[tuple[int, int, int]]:
    for a in range(1, n + 1):
        for b in range(1, n + 1):
            if n % (a * b) == 0:
                yield a, b, n // (a * b)


def orders(factors: dict[str, int]) -> Iterator[str]:
    """Which loop is innermost among those that run; any, where none does."""
    running = [name for name, n in factors.items() if n > 1]
    yield from running or factors


def fetches(has: str, levels: list[tuple[dict[str, int], str]]) -> list[int]:
    """By level from outside, how often a datum is brought."""
    found = [1]
    for number, (factors, innermost) in enumerate(levels):
        if all(factors[x] == 1 for x in has):
            found.append(found[-1])
            continue
        times = 1
        for x in factors:
            if x not in has:
                times *= prod(outer[x] for outer, _ in levels[:number])
                times *= 1 if x == innermost else factors[x]
        found.append(times)
    return found[1:]


Way = tuple[Fraction, tuple[int, int, int], bool]
"""Energy, how often each datum comes from DRAM, and whether the buffer holds it."""


def ways(c: Case) -> Iterator[Way]:
    """All orders and cuts whose registers hold them."""
    for p in passes(c):
        total = prod(p.loops)
        named = dict(zip("IOB", p.loops, strict=True))
        counts = [prod(named[x] for x in has) for has in p.has]
        fixed = total * p.ops * (1 + (0 if c.region else 1) + 1 + 2)
        for of_i, of_o, of_b in product(*map(cuts, p.loops)):
            t = [dict(zip("IOB", f, strict=True)) for f in zip(of_i, of_o, of_b, strict=True)]
            if sum(
                room * prod(t[2][x] for x in has)
                for room, has in zip(p.regf_room, p.has, strict=True)
            ) > c.registers:  # fmt: skip
                continue
            for levels in product(*([(f, y) for y in orders(f)] for f in t[:2])):
                energy, stored, fars = fixed, 0, []
                for d, has in enumerate(p.has):
                    far, near = fetches(has, list(levels))
                    if d == 2:
                        far, near = 2 * far - 1, 2 * near - 1
                    energy += p.array[d] * counts[d] * near * 2
                    words = p.gbuf[d]
                    if far < near:
                        stored += p.gbuf_room[d] * prod(t[1][x] * t[2][x] for x in has)
                        energy += p.gbuf[d] * counts[d] * near * 6
                        words = p.dram[d]
                    energy += words * counts[d] * far * 200
                    fars.append(far)
                yield energy, (fars[0], fars[1], fars[2]), stored <= c.room


def best(c: Case) -> tuple[Fraction, int]:
    """(least energy, orders and cuts whose registers hold them)."""
    found = list(ways(c))
    return min(energy for energy, _, fits in found if fits), len(found)
