"""Kinds of rules; a table of rules per operator is written with them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from worker.compiler.errors import Detail
from worker.compiler.frontend.rules.site import Problem, Rule, Site


def since(version: int, rule: Rule) -> Rule:
    """The rule, from that version of the operator on."""
    return lambda site: rule(site) if site.version >= version else iter(())


def until(version: int, rule: Rule) -> Rule:
    """The rule, up to that version of the operator."""
    return lambda site: rule(site) if site.version <= version else iter(())


def one_of(name: str, *allowed: str | int) -> Rule:
    """The attribute has one of the values that the definition lists."""

    def check(site: Site) -> Iterator[Problem]:
        value = site.attr(name)
        if value is not None and value not in allowed:
            yield Problem(f"attribute {name!r} is {value!r}", list(allowed), value)

    return check


def at_least(name: str, low: int) -> Rule:
    """Every number of the attribute or constant is at least `low`."""

    def check(site: Site) -> Iterator[Problem]:
        for value in site.ints(name) or ():
            if value < low:
                yield Problem(f"{name!r} is {value}", f"at least {low}", value)
                return

    return check


def axis(name: str = "axis", of: int = 0, *, more: int = 0, low: int | None = None) -> Rule:
    """A dimension of input `of`, negative ones counted from the end.

    `more` dimensions come on top (1: the place behind the last may be named too); `low` replaces
    the lowest value.
    """

    def check(site: Site) -> Iterator[Problem]:
        rank, values = site.rank(of), site.ints(name)
        if rank is None or not values:
            return
        first = -rank - more if low is None else low
        if not first <= values[0] < rank + more:
            yield Problem(
                f"{name!r} is {values[0]}, its input has {rank} dimensions",
                f"{first} to {rank + more - 1}",
                values[0],
            )

    return check


def axes(
    name: str = "axes", of: int = 0, *, grows: bool = False, may_be_scalar: bool = True
) -> Rule:
    """Dimensions of input `of` (of the result where it `grows` by them), none named twice."""

    def check(site: Site) -> Iterator[Problem]:
        values, rank = site.ints(name), site.rank(of)
        if values is None:
            return
        given = site.rank(name)
        if given is not None and given != 1 and not (given == 0 and may_be_scalar):
            yield Problem(f"{name!r} has {given} dimensions", "a list", given)
        if rank is None:
            if len(set(values)) != len(values):
                yield Problem(f"{name!r} names a dimension twice", "each once", list(values))
            return
        total = rank + len(values) if grows else rank
        outside = [v for v in values if not -total <= v < total]
        if outside:
            yield Problem(
                f"{name!r} has {outside[0]}, there are {total} dimensions",
                f"{-total} to {total - 1}",
                outside[0],
            )
        elif len({v % total for v in values}) != len(values):
            yield Problem(f"{name!r} names a dimension twice", "each once", list(values))

    return check


def length(name: str, count: Callable[[Site], int | None], what: str) -> Rule:
    """The list has as many entries as `count` says."""

    def check(site: Site) -> Iterator[Problem]:
        values, want = site.ints(name), count(site)
        if values is not None and want is not None and len(values) != want:
            yield Problem(
                f"{name!r} has {len(values)} entries for {want} {what}", want, len(values)
            )

    return check


def rank_is(index: int | str, *allowed: int) -> Rule:
    """Input `index` has one of these ranks."""

    def check(site: Site) -> Iterator[Problem]:
        rank = site.rank(index)
        if rank is not None and rank not in allowed:
            yield Problem(f"{_named(site, index)} has {rank} dimensions", list(allowed), rank)

    return check


def rank_at_least(index: int | str, low: int) -> Rule:
    """Input `index` has that many dimensions or more."""

    def check(site: Site) -> Iterator[Problem]:
        rank = site.rank(index)
        if rank is not None and rank < low:
            yield Problem(f"{_named(site, index)} has {rank} dimensions", f"at least {low}", rank)

    return check


def single(*names: str) -> Rule:
    """Each named input is a scalar, or a list of one."""

    def check(site: Site) -> Iterator[Problem]:
        for name in names:
            shape = site.shape(name)
            if shape is not None and shape not in ((), (1,)):
                yield Problem(f"{name!r} has shape {list(shape)}", "one element", list(shape))

    return check


def same_dim(index: int | str, dim: int, other: int | str, other_dim: int) -> Rule:
    """Two dimensions of two inputs are equal."""

    def check(site: Site) -> Iterator[Problem]:
        left, right = site.dims(index), site.dims(other)
        if left is None or right is None:
            return
        if not (-len(left) <= dim < len(left) and -len(right) <= other_dim < len(right)):
            return
        a, b = left[dim], right[other_dim]
        if a is not None and b is not None and a != b:
            yield Problem(
                f"{_named(site, other)} has {b} along dimension {other_dim},"
                f" {_named(site, index)} has {a} along {dim}",
                a,
                b,
            )

    return check


def in_range(
    index: int | str, bound: Callable[[Site], int | None], *, low: int | None = None
) -> Rule:
    """Every value of a constant is in [-bound, bound), or [low, bound)."""

    def check(site: Site) -> Iterator[Problem]:
        array, high = site.const(index), bound(site)
        if array is None or high is None or not array.size or array.dtype.kind not in "iu":
            return
        first = -high if low is None else low
        for value in (int(array.min()), int(array.max())):
            if not first <= value < high:
                yield Problem(
                    f"{_named(site, index)} has the index {value}", f"{first} to {high - 1}", value
                )
                return

    return check


def positive(*names: str) -> Rule:
    """Every value of the named constants is a finite number above zero."""
    return _finite(names, above_zero=True)


def finite(*names: str) -> Rule:
    """Every value of the named constants is a finite number."""
    return _finite(names, above_zero=False)


def _finite(names: tuple[str, ...], *, above_zero: bool) -> Rule:
    def check(site: Site) -> Iterator[Problem]:
        for name in names:
            array = site.const(name)
            if array is None or not array.size:
                continue
            values = array.astype(np.float64).reshape(-1)
            bad = values[~(np.isfinite(values) & ((values > 0) | (not above_zero)))]
            if bad.size:
                wanted = "a finite number above 0" if above_zero else "a finite number"
                yield Problem(f"{name!r} has the value {bad[0]:g}", wanted, f"{bad[0]:g}")

    return check


def dims_are(name: int | str, want: Callable[[Site], Sequence[int | None] | None]) -> Rule:
    """An input has the shape that follows from the others; None in it is any length."""

    def check(site: Site) -> Iterator[Problem]:
        dims, wanted = site.dims(name), want(site)
        if dims is None or wanted is None:
            return
        if not alike(dims, wanted):
            said = ["any" if d is None else d for d in wanted]
            yield Problem(f"{_named(site, name)} has shape {list(dims)}", list[Detail](said),
                          list[Detail](dims))  # fmt: skip

    return check


def broadcasts_to(index: int, target: int = 0) -> Rule:
    """One input broadcasts to another, which does not grow."""

    def check(site: Site) -> Iterator[Problem]:
        dims, onto = site.dims(index), site.dims(target)
        if dims is None or onto is None:
            return
        fits = len(dims) <= len(onto) and all(
            None in (a, b) or a in (1, b)
            for a, b in zip(reversed(dims), reversed(onto), strict=False)
        )
        if not fits:
            yield Problem(f"{_named(site, index)} has shape {list(dims)}", list[Detail](onto),
                          list[Detail](dims))  # fmt: skip

    return check


def alike(a: Sequence[int | None], b: Sequence[int | None]) -> bool:
    """Whether two shapes are the same as far as they are known."""
    return len(a) == len(b) and all(None in (x, y) or x == y for x, y in zip(a, b, strict=True))


def _named(site: Site, index: int | str) -> str:
    if isinstance(index, str):
        return repr(index)
    value = site.value(index)
    return f"input {index}" if value is None else f"input {value.name!r}"


def dim_of(index: int | str, dim: int) -> Callable[[Site], int | None]:
    """A dimension of an input."""

    def read(site: Site) -> int | None:
        dims = site.dims(index)
        return dims[dim] if dims is not None and -len(dims) <= dim < len(dims) else None

    return read


def dim_at_axis(of: int = 0, name: str = "axis") -> Callable[[Site], int | None]:
    """The dimension of an input along the node's axis."""

    def read(site: Site) -> int | None:
        values = site.ints(name)
        return dim_of(of, values[0])(site) if values else None

    return read
