"""Fields of a hardware document that are varied, and the documents that come of it.

    SRAM.capacity_bytes=64KiB,128KiB        values
    DRAM.read_bytes_per_cycle=x0.5,x1,x2    factors of what the document has
    SRAM.capacity_bytes=16KiB..1MiB         doubled from the first to the last
    num_cores+SRAM.instances=x1,x2          several fields in step

A field is a name of a level, engine or link and the way to a number in it, or a number at the top.
Or it is a JSON pointer, in which items of lists go by name or number: /levels/SRAM/capacity_bytes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from itertools import product
from typing import Any

from worker.compiler.errors import OptionError

Number = int | float
AT_TOP = ("clock_hz", "num_cores", "static_power_w", "signal_cycles", "engine_signal_cycles")
"""Numbers at the top that may be varied.  Launches and the host take the same on every chip."""
MOST_SPECS = 100_000
MOST_VALUES = 1_000
_PRICES = ("clock_hz", "static_power_w")
_NAMED = ("levels", "engines", "links")
_OPERATIONS = "op_energy_pj"
_UNITS = {
    "": 1, "k": 10**3, "M": 10**6, "G": 10**9, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30,
}  # fmt: skip
_VALUE = re.compile(r"(x?)(\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)(k|M|G|KiB|MiB|GiB)?")

Way = tuple[str | int, ...]
"""Keys and places from the document down to a number."""


@dataclass(frozen=True, slots=True)
class Field:
    """Numbers of the document that change together."""

    label: str
    ways: tuple[Way, ...]
    values: tuple[tuple[Number, ...], ...]
    """[choices, ways]"""

    @property
    def is_price(self) -> bool:
        """Whether it decides no tiling by cycles: an energy, leakage, or the clock."""
        return all("energy" in str(way[-1]) or way[-1] in _PRICES for way in self.ways)

    @property
    def names(self) -> tuple[str, ...]:
        """Every number's own name."""
        return tuple(self.label.split("+"))


def parse_field(text: str, document: Mapping[str, Any], *, is_simulated: bool = False) -> Field:
    """A field as users write it, of a document without `inherits` in which nothing is wrong.

    Where every chip `is_simulated` any number may be varied; an estimate does not read all of them.

    Raises:
        OptionError: TW-OPT-001, it is not written so, or the document has no such number.
    """
    label, equals, listed = text.partition("=")
    if not (label and equals and listed):
        raise _refused(text, "is no FIELD=VALUE,VALUE", "Write SRAM.capacity_bytes=64KiB,128KiB.")
    names = label.split("+")
    if len(set(names)) < len(names):
        raise _refused(text, "names a field twice", "Name every field once.")
    ways = tuple(_way(name, document, is_simulated) for name in names)
    bases = tuple(_number(document, way) for way in ways)
    values = tuple(dict.fromkeys(_values(text, listed, bases)))
    return Field(label, ways, values)


def choices(fields: Sequence[Field]) -> Iterator[tuple[int, ...]]:
    """Every choice of one value for each field; the last field's changes first.

    Raises:
        OptionError: TW-OPT-001, there are more than `MOST_SPECS`, or a number is varied twice.
    """
    ways = [way for field in fields for way in field.ways]
    if len(set(ways)) < len(ways):
        twice = next(n for f in fields for n, w in zip(f.names, f.ways, strict=True)
                     if ways.count(w) > 1)  # fmt: skip
        raise _refused(twice, "is varied twice", "Vary every field once.")
    number = math.prod(len(field.values) for field in fields)
    if number > MOST_SPECS:
        raise OptionError(
            "TW-OPT-001", f"{number} specs are more than {MOST_SPECS}", limit=MOST_SPECS,
            actual=number, remedy="Give fewer values.",
        )  # fmt: skip
    yield from product(*(range(len(field.values)) for field in fields))


def in_search_order(fields: Sequence[Field]) -> tuple[tuple[int, ...], ...]:
    """Every choice; chips that differ in energies or the clock alone come after each other, as
    their tiles are the same.

    Raises: as `choices`.
    """
    own = [k for k, field in enumerate(fields) if not field.is_price]
    return tuple(sorted(choices(fields), key=lambda c: ([c[k] for k in own], c)))


def values_of(fields: Sequence[Field], choice: Sequence[int]) -> list[Number]:
    """The chosen value of every number that is varied."""
    return [v for field, k in zip(fields, choice, strict=True) for v in field.values[k]]


def document_of(
    document: Mapping[str, Any], fields: Sequence[Field], choice: Sequence[int]
) -> dict[str, Any]:
    """The document with one value chosen for each field."""
    changed: dict[str, Any] = deepcopy(dict(document))
    for field, index in zip(fields, choice, strict=True):
        for way, value in zip(field.ways, field.values[index], strict=True):
            place: Any = changed
            for step in way[:-1]:
                place = place[step]
            new = {"value": value, "tag": "G", "note": "explored"}
            place[way[-1]] = new if isinstance(place[way[-1]], Mapping) else value
    return changed


def _way(name: str, document: Mapping[str, Any], is_simulated: bool) -> Way:
    if name.startswith("/"):
        return _pointed(name, document, is_simulated)
    head, *rest = name.split(".")
    if not rest:
        if head not in AT_TOP and not is_simulated:
            raise _refused(
                name, "is nothing to explore",
                f"At the top these may be varied: {', '.join(AT_TOP)}; else NAME.FIELD of a level,"
                " an engine or a link.",
            )  # fmt: skip
        if head not in document:
            raise _refused(name, "is not in the hardware document", "State it there first.")
        return (head,)
    for kind in _NAMED:
        for place, item in enumerate(document.get(kind) or ()):
            if isinstance(item, Mapping) and item.get("name") == head:
                return (kind, place, *_inside(name, rest, item, is_simulated))
    known = [item["name"] for kind in _NAMED for item in document.get(kind) or ()]
    raise _refused(name, f"names no part {head!r}", f"There are {', '.join(map(str, known))}.")


def _pointed(name: str, document: Mapping[str, Any], is_simulated: bool) -> Way:
    """The way of a JSON pointer."""
    kind, *rest = (step.replace("~1", "/").replace("~0", "~") for step in name[1:].split("/"))
    if not rest:
        return _way(kind, document, is_simulated)
    if kind in _NAMED:
        listed = document.get(kind) or ()
        names = [item.get("name") if isinstance(item, Mapping) else None for item in listed]
        if rest[0] in names:
            place = names.index(rest[0])
        elif rest[0].isdecimal() and int(rest[0]) < len(names):
            place = int(rest[0])
        else:
            known = ", ".join(map(str, names))
            raise _refused(name, f"names no part {rest[0]!r}", f"There are {known}.")
        if len(rest) > 1:
            return (kind, place, *_inside(name, rest[1:], listed[place], is_simulated))
        raise _refused(name, "is no number", "Vary a number.")
    if not is_simulated:
        raise _refused(
            name, "is nothing to explore", f"These are: /{', /'.join((*AT_TOP, *_NAMED))}."
        )  # fmt: skip
    return _inside(name, (kind, *rest), document, is_simulated)


def _inside(name: str, steps: Sequence[str], item: Mapping[str, Any], is_simulated: bool) -> Way:
    found: list[str | int] = []
    at: Any = item
    for step in steps:
        if isinstance(at, Mapping) and step in at:
            found.append(step)
        elif isinstance(at, list) and step.isdecimal() and int(step) < len(at):
            found.append(int(step))
        else:
            there = ", ".join(at) if isinstance(at, Mapping) else f"0 to {len(at) - 1}" if (
                isinstance(at, list)) else "nothing"  # fmt: skip
            raise _refused(name, f"has no {step!r}", f"There is {there}.")
        at = at[found[-1]]
    if is_simulated:
        return tuple(found)
    if _OPERATIONS in found:
        raise _refused(
            name, "changes nothing that is explored",
            "Energies of operations are the same for every schedule.",
        )  # fmt: skip
    if item.get("managed") == "register" and "energy" in str(found[-1]):
        raise _refused(
            name, "changes nothing that is explored",
            "Engines use registers alike in every schedule.",
        )  # fmt: skip
    return tuple(found)


def _number(document: Mapping[str, Any], way: Way) -> Number:
    at: Any = document
    for step in way:
        at = at[step]
    if isinstance(at, Mapping):
        at = at.get("value")
    if isinstance(at, bool) or not isinstance(at, int | float):
        name = ".".join(map(str, way))
        raise _refused(name, "is no number", "Vary a number.")
    return at


def _values(text: str, listed: str, bases: tuple[Number, ...]) -> Iterator[tuple[Number, ...]]:
    count = 0
    for part in listed.split(","):
        first, dots, last = part.partition("..")
        ends = [_value(text, end, bases) for end in ((first, last) if dots else (first,))]
        here = ends[0]
        while True:
            yield here
            count += 1
            if count > MOST_VALUES:
                raise _refused(text, f"has more than {MOST_VALUES} values", "Give fewer.")
            here = tuple(map(_whole, (2 * value for value in here)))
            if not dots or any(h > e for h, e in zip(here, ends[1], strict=True)):
                break


def _value(text: str, written: str, bases: tuple[Number, ...]) -> tuple[Number, ...]:
    found = _VALUE.fullmatch(written.strip())
    value = None if found is None else float(found[2]) * _UNITS[found[3] or ""]
    if found is None or not value or not math.isfinite(value):
        raise _refused(
            text, f"has {written!r}, which is no value", "Write 65536, 64KiB, 1.5e9 or x2."
        )
    return tuple(_whole(value * base) if found[1] else _whole(value) for base in bases)


def _whole(value: Number) -> Number:
    """Twelve digits: three quarters of 51.2 are 38.4."""
    value = float(f"{value:.12g}") if isinstance(value, float) else value
    return int(value) if float(value).is_integer() and abs(value) < 1 << 53 else value


def _refused(what: str, why: str, remedy: str) -> OptionError:
    return OptionError("TW-OPT-001", f"--vary {what}: {why}", actual=what, remedy=remedy)
