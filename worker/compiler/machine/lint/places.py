"""Pattern tables of a document as the lint reads them: places by pointer, fragments followed.

Tolerant like `SpecReader`: what is missing or of the wrong type is not there; the schema reports
it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from worker.compiler.machine.lint.view import SpecReader

MAX_PLACES = 128
"""Places of a pattern with its fragments written out: they may use each other twice and again."""
MAX_DEPTH = 32
"""Places inside one another: the matcher goes down one level of calls for each."""


class PatternPlace:
    """One place of a pattern, as written."""

    def __init__(self, view: SpecReader, pointer: str) -> None:
        self._view = view
        self.pointer = pointer

    def raw(self, key: str) -> Any:
        """The value of a field, None when it is not given."""
        return self._view.raw(f"{self.pointer}/{key}")

    def text(self, key: str) -> str | None:
        """The value of a field when it is text."""
        return self._view.text(f"{self.pointer}/{key}")

    def fields(self) -> tuple[str, ...]:
        """Names of the fields as written."""
        return self._view.keys(self.pointer)

    def is_set(self, key: str) -> bool:
        """Whether a field says something: false, empty and null do not."""
        value = self.raw(key)
        return value is not None and value is not False and value not in ([], {})

    def forms(self) -> tuple[str, ...]:
        """Which of the six forms the place has; a plain word is a wildcard."""
        whole = self._view.raw(self.pointer)
        if not isinstance(whole, dict):
            return ("any",)  # a word, or something the schema refuses
        forms = ("op", "any", "alternatives", "same_as", "path", "use")
        return tuple(form for form in forms if self.is_set(form))

    def op_types(self) -> Iterator[tuple[str, str]]:
        """Pointers and names of the op types written here."""
        for key in ("op", "path"):
            one = self.text(key)
            if one is not None:
                yield f"{self.pointer}/{key}", one
            for item in self._view.items(f"{self.pointer}/{key}"):
                name = self._view.text(item)
                if name is not None:
                    yield item, name

    def children(self, key: str) -> tuple[PatternPlace, ...]:
        """Places of a list field."""
        items = self._view.items(f"{self.pointer}/{key}")
        return tuple(PatternPlace(self._view, item) for item in items)

    def parts(self) -> tuple[PatternPlace, ...]:
        """Places directly below, fragments not followed."""
        end = (PatternPlace(self._view, f"{self.pointer}/to"),) if self.is_set("to") else ()
        return (*self.children("inputs"), *self.children("alternatives"), *end)

    def walk(self) -> Iterator[PatternPlace]:
        """This place and all below, fragments not followed."""
        yield self
        for part in self.parts():
            yield from part.walk()


class Table:
    """The pattern table of one target."""

    def __init__(self, view: SpecReader, owner: str) -> None:
        """`owner` points at the mapping that has `capabilities`: the document or a target."""
        self._view = view
        self._owner = owner
        self.pointer = f"{owner}/capabilities/patterns"
        self.rows = dict.fromkeys(
            row
            for row in view.items(self.pointer)
            if isinstance(view.raw(f"{row}/match"), dict | str)
        )
        self.row_of = view.names(self.pointer)
        """Pattern name -> pointer of its row; the first of a name wins."""
        self.target = view.text(f"{owner}/name") if owner else None
        self._uses = {row: tuple(self._targets(row)) for row in self.rows}
        """Row -> (pointer of a `use`, row it puts in), unknown names left out."""
        self._depths: dict[str, int] = {}
        self._sizes = self._written_out()
        self._bound: dict[str, dict[str, str]] = {}
        self._cycles: dict[str, tuple[str, tuple[str, ...]] | None] = {}

    def may_use(self, engine: str | None) -> bool:
        """Whether an engine is the target's: of all, unless it lists its own."""
        listed = [self._view.text(p) for p in self._view.items(f"{self._owner}/engines")]
        return not self._owner or not listed or engine in listed

    def match(self, row: str) -> PatternPlace:
        """The root place of a row."""
        return PatternPlace(self._view, f"{row}/match")

    def used(self, place: PatternPlace) -> str | None:
        """Row of the pattern that a place puts in."""
        target = self.row_of.get(place.text("use") or "")
        return target if target in self.rows else None

    def _targets(self, row: str) -> Iterator[tuple[str, str]]:
        for place in self.match(row).walk():
            target = self.used(place)
            if target is not None:
                yield f"{place.pointer}/use", target

    def cycle(self, row: str) -> tuple[str, tuple[str, ...]] | None:
        """When the pattern of `row` leads back to itself: pointer of the first `use` and the names
        on the way, the first repeated at the end.  Cost: linear in the table."""
        if row not in self._cycles:
            self._cycles[row] = self._find_cycle(row)
        return self._cycles[row]

    def _find_cycle(self, row: str) -> tuple[str, tuple[str, ...]] | None:
        own = self._view.text(f"{row}/name")
        if own is None or self.row_of.get(own) != row:
            return None
        waiting: deque[tuple[str, tuple[str, ...], str]] = deque(
            (target, (own,), at) for at, target in self._uses[row]
        )
        seen: set[str] = set()
        while waiting:
            here, names, first = waiting.popleft()
            path = (*names, self._view.text(f"{here}/name") or "")
            if here == row:
                return first, path
            if here not in seen:
                seen.add(here)
                waiting.extend((target, path, first) for _, target in self._uses[here])
        return None

    def ends(self, row: str) -> bool:
        """Whether the pattern can be written out: no fragment below it leads back to itself."""
        return row in self._sizes

    def is_sound(self, row: str) -> bool:
        """Whether it can be written out and is small enough to be judged as a whole."""
        return self.ends(row) and self.size(row) <= MAX_PLACES and self.depth(row) <= MAX_DEPTH

    def depth(self, row: str) -> int:
        """Places inside one another with fragments written out; 0 when they never end."""
        return self._depths.get(row, 0)

    def _depth(self, place: PatternPlace) -> int:
        target = self.used(place)
        if target is not None:
            return self._depths[target]
        return 1 + max((self._depth(part) for part in place.parts()), default=0)

    def size(self, row: str) -> int:
        """Places with fragments written out; 0 when they never end."""
        return self._sizes.get(row, 0)

    def _written_out(self) -> dict[str, int]:
        """Sizes of all rows that can be written out, from those without fragments upwards.

        Cost: linear in the table.
        """
        users: dict[str, list[str]] = {row: [] for row in self.rows}
        open_uses = {row: len(self._uses[row]) for row in self.rows}
        for row in self.rows:
            for _, target in self._uses[row]:
                users[target].append(row)
        sizes: dict[str, int] = {}
        ready = deque(row for row in self.rows if not open_uses[row])
        while ready:
            row = ready.popleft()
            own = sum(1 for _ in self.match(row).walk()) - len(self._uses[row])
            sizes[row] = own + sum(sizes[target] for _, target in self._uses[row])
            self._depths[row] = self._depth(self.match(row))
            for user in users[row]:
                open_uses[user] -= 1
                if not open_uses[user]:
                    ready.append(user)
        return sizes

    def roots(self, row: str) -> Iterator[tuple[str, PatternPlace]]:
        """Places that may be the last node, each with the pointer to blame in this row."""
        yield from self._roots(self.match(row), None)

    def _roots(self, place: PatternPlace, blame: str | None) -> Iterator[tuple[str, PatternPlace]]:
        target = self.used(place)
        if target is not None:
            yield from self._roots(self.match(target), blame or f"{place.pointer}/use")
        elif "alternatives" in place.forms():
            for option in place.children("alternatives"):
                yield from self._roots(option, blame)
        elif "path" in place.forms():
            yield from self._roots(PatternPlace(self._view, f"{place.pointer}/to"), blame)
        else:
            yield blame or place.pointer, place

    def asked(self, row: str) -> Iterator[tuple[str, str]]:
        """(pointer to blame in this row, name) of every `same_as`, fragments followed."""
        for place in self.match(row).walk():
            name = place.text("same_as")
            if name is not None:
                yield f"{place.pointer}/same_as", name
            target = self.used(place)
            if target is not None:
                for _, inner in self.asked(target):
                    yield f"{place.pointer}/use", inner

    def bound(self, row: str) -> dict[str, str]:
        """Names bound in the pattern -> pointer of the first binding, fragments followed."""
        if row not in self._bound:
            self._bound[row] = self._names(self.match(row), [])
        return self._bound[row]

    def bound_twice(self, row: str) -> list[tuple[str, str, str]]:
        """(pointer, name, pointer of the first) of names bound twice on one way through."""
        found: list[tuple[str, str, str]] = []
        self._names(self.match(row), found)
        return found

    def _names(self, place: PatternPlace, twice: list[tuple[str, str, str]]) -> dict[str, str]:
        names: dict[str, str] = {}
        own = place.text("bind")
        if own is not None:
            names[own] = f"{place.pointer}/bind"
        target = self.used(place)
        if target is not None:
            return dict.fromkeys(self.bound(target), f"{place.pointer}/use")
        exclusive = "alternatives" in place.forms()
        for part in place.parts():
            for name, pointer in self._names(part, twice).items():
                if name not in names:
                    names[name] = pointer
                elif not exclusive:
                    twice.append((pointer, name, names[name]))
        return names


@lru_cache(maxsize=4)
def pattern_tables(view: SpecReader) -> tuple[Table, ...]:
    """The tables of a document: of its only accelerator and of every target.

    Kept per view: every rule asks for them.
    """
    return tuple(Table(view, owner) for owner in ("", *view.items("/targets")))


def number_pairs(view: SpecReader, place: PatternPlace) -> Iterator[str]:
    """Pointers of the {min, max} pairs of a place; attributes have their own lint."""
    for key in ("rank", "uses"):
        yield f"{place.pointer}/{key}"
    yield from view.items(f"{place.pointer}/shape")
