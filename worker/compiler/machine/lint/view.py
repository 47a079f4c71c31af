"""A tolerant reader of hardware documents, and what a rule of the lint finds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from math import isfinite
from typing import Any


@dataclass(frozen=True, slots=True)
class Defect:
    """One broken rule; `field` is the pointer pattern used to find the nearest preset value."""

    pointer: str
    message: str
    allowed: str
    actual: Any = None


class SpecReader:
    """Tolerant reader of a document."""

    def __init__(self, document: dict[str, Any]) -> None:
        self._document = document

    def number(self, pointer: str) -> float | None:
        raw = self.raw(pointer)
        if isinstance(raw, dict):
            raw = raw.get("value")
        if isinstance(raw, bool) or not isinstance(raw, int | float):
            return None
        try:
            return float(raw) if isfinite(raw) else None
        except OverflowError:  # an integer that no float holds
            return None

    def text(self, pointer: str) -> str | None:
        raw = self.raw(pointer)
        return raw if isinstance(raw, str) else None

    def choice(self, pointer: str) -> str | None:
        """A word that may carry its evidence."""
        raw = self.raw(pointer)
        return self.text(f"{pointer}/value") if isinstance(raw, dict) else self.text(pointer)

    def flag(self, pointer: str) -> bool:
        """Whether something that may carry its evidence is so."""
        raw = self.raw(pointer)
        return (raw.get("value") if isinstance(raw, dict) else raw) is True

    def items(self, pointer: str) -> Iterator[str]:
        """Give the pointers of a list's elements."""
        raw = self.raw(pointer)
        if isinstance(raw, list):
            for k in range(len(raw)):
                yield f"{pointer}/{k}"

    def keys(self, pointer: str) -> tuple[str, ...]:
        raw = self.raw(pointer)
        return tuple(str(key) for key in raw) if isinstance(raw, dict) else ()

    def raw(self, pointer: str) -> Any:
        value: Any = self._document
        for part in pointer.split("/")[1:]:
            if isinstance(value, dict):
                value = value.get(part)
            elif isinstance(value, list) and part.isdigit() and int(part) < len(value):
                value = value[int(part)]
            else:
                return None
        return value

    def names(self, pointer: str) -> dict[str, str]:
        """Map the names of a list's elements to their pointers; the first of a name wins."""
        found: dict[str, str] = {}
        for item in self.items(pointer):
            name = self.text(f"{item}/name")
            if name is not None:
                found.setdefault(name, item)
        return found

    def managed(self, level: str) -> str:
        return self.text(f"{level}/managed") or "scratchpad"


def one_of(name: str, names: list[str]) -> str:
    """A hint with the nearest of `names`; empty when none is near."""
    near = get_close_matches(name, names, n=1, cutoff=0.5)
    return f"; did you mean {near[0]}?" if near else ""
