"""What a page shows of a hardware spec: figures that follow from it, and how well it is known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from service.pages.units import capacity, quantity

Document = Mapping[str, Any]
EVIDENCE: Mapping[str, str] = MappingProxyType(
    {
        "P": "printed in a paper",
        "S": "seen in a vendor document",
        "R": "read in a public repository",
        "K": "widely known",
        "D": "derived from tagged values",
        "G": "a guess",
        "": "without a tag",
    }
)
"""What the tags of numbers mean, the best evidence first (worker/compiler/machine/README.md)."""
_MOVERS = ("dma_in", "dma_out")


def plain(value: Any) -> Any:
    """A number without its tag and note."""
    return value.get("value") if isinstance(value, Mapping) and "value" in value else value


def number(document: Document, key: str) -> float | None:
    """A number of a document, with or without a tag."""
    value = plain(document.get(key))
    is_one = isinstance(value, int | float) and not isinstance(value, bool)
    return value if is_one else None


def rows(document: Document, key: str) -> list[Document]:
    """The objects of a list."""
    found = document.get(key)
    return [row for row in found if isinstance(row, Mapping)] if isinstance(found, list) else []


@dataclass(frozen=True, slots=True)
class Numbered:
    """A number of a spec, and what it rests on."""

    pointer: str
    value: Any
    tag: str
    note: str


def numbers(value: Any, pointer: str = "") -> Iterator[Numbered]:
    """Every number of a document, in its order."""
    if isinstance(value, Mapping) and "value" in value:
        tag, note = str(value.get("tag") or ""), str(value.get("note") or "")
        yield Numbered(pointer, value["value"], tag if tag in EVIDENCE else "", note)
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from numbers(inner, f"{pointer}/{key}")
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for k, inner in enumerate(value):
            yield from numbers(inner, f"{pointer}/{k}")
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield Numbered(pointer, value, "", "")


def fields_of(document: Document) -> list[tuple[str, Any]]:
    """(pointer, value) of the numbers that a sweep may vary; parts of lists by their names."""
    found = []
    for row in numbers(document):
        _, *steps = row.pointer.split("/")
        if len(steps) > 1 and steps[1].isdecimal():
            part = rows(document, steps[0])[int(steps[1])] if rows(document, steps[0]) else {}
            steps[1] = str(part.get("name", steps[1]))
        if row.pointer != "/schema_version" and isinstance(row.value, int | float):
            found.append(("/" + "/".join(steps), row.value))
    return found


def evidence(document: Document) -> list[tuple[str, str, int]]:
    """(tag, what it means, how many numbers have it), the best evidence first."""
    counted = Counter(
        found.tag for found in numbers(document) if found.pointer != "/schema_version"
    )
    return [(tag, text, counted[tag]) for tag, text in EVIDENCE.items() if counted[tag]]


def guesses(document: Document) -> list[Numbered]:
    """Numbers that rest on nothing."""
    return [found for found in numbers(document) if found.tag == "G"]


def peaks(document: Document) -> list[tuple[str, float]]:
    """(number format, multiply-accumulates per cycle of a core), by its matrix engines, else by
    all that have a rate; the fastest first."""
    engines = [e for e in rows(document, "engines") if e.get("kind") not in _MOVERS]
    matrix = [e for e in engines if e.get("kind") == "matrix"]
    total: dict[str, float] = {}
    for engine in matrix or engines:
        rates = engine.get("macs_per_cycle")
        for dtype, rate in rates.items() if isinstance(rates, Mapping) else ():
            found = plain(rate)
            if isinstance(found, int | float):
                total[str(dtype)] = total.get(str(dtype), 0) + found
    return sorted(total.items(), key=lambda row: (-row[1], row[0]))


def on_chip_bytes(document: Document) -> float:
    """Capacity of all memories but the first, all instances."""
    return sum(
        (number(level, "capacity_bytes") or 0) * (number(level, "instances") or 1)
        for level in rows(document, "levels")[1:]
    )


def facts(document: Document) -> list[tuple[str, str, str]]:
    """(name, value, how it comes about) of what an architect asks first."""
    clock, cores = number(document, "clock_hz"), number(document, "num_cores") or 1
    clusters = number(document, "num_clusters")
    levels = rows(document, "levels")
    home = levels[0] if levels else {}
    found = [
        ("Clock", quantity(clock, "Hz"), ""),
        ("Cores", f"{cores:,.0f}", f"in {clusters:,.0f} clusters" if clusters else ""),
    ]
    best = peaks(document)
    if best and clock:
        dtype, rate = best[0]
        each = f"{rate:,.4g} per cycle and core in {dtype}"
        found.append(("Peak", f"{quantity(rate * cores * clock)}MAC/s", each))
        fraction = number(home, "sustained_fraction")
        read = number(home, "read_bytes_per_cycle")
        if read:
            kept = read * clock * (1.0 if fraction is None else fraction)
            ridge = rate * cores * clock / kept
            found += [
                (str(home.get("name")), f"{quantity(read * clock)}B/s",
                 f"{quantity(kept)}B/s sustained" if fraction not in (None, 1) else "read"),
                ("Ridge", quantity(ridge, "MAC/B"), "above it, the peak is the roof"),
            ]  # fmt: skip
    found.append(("On chip", capacity(on_chip_bytes(document)), "all memories but the first"))
    launch = number(document, "launch_latency_cycles")
    if launch is not None and clock:
        found.append(("Launch", quantity(launch / clock, "s"), f"{launch:,.0f} cycles"))
    static, process = number(document, "static_power_w"), number(document, "process_nm")
    if static is not None:
        found.append(("Leakage", quantity(static, "W"), f"{process:g} nm" if process else ""))
    return found
