"""`inherits: PRESET`: a user's document laid over a preset, element by element.

Mappings merge key by key; lists of named things (levels, engines, links, intrinsics, patterns,
operators by `name`, ops by `op_type`) merge by name; any other value replaces what was inherited,
and so does the `match` of a pattern: half of one pattern in another would match what nobody wrote.
An item with `remove: true` deletes the inherited one; `after: NAME` says where a new item goes
(default: last).
Each merged place remembers where in the user's document it came from, so that errors point there.

A field that was split is lifted: `launch_overhead_cycles` (0.1.0) gives both fields that took its
place, and with them every launch the cycles that it had.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from worker.compiler.errors import Finding, SpecError

_KEY_OF_LIST = {
    "levels": "name",
    "engines": "name",
    "links": "name",
    "intrinsics": "name",
    "patterns": "name",
    "operators": "name",
    "ops": "op_type",
}
_SPLIT = {"launch_overhead_cycles": ("launch_latency_cycles", "launch_gap_cycles")}
"""Fields of older documents, at the top and in targets, by what takes their place."""
_WHOLE = frozenset({"match"})
"""Mappings that replace what was inherited instead of merging with it."""


@dataclass(frozen=True, slots=True)
class Resolved:
    """A document without `inherits`, and the way back to what the user wrote."""

    document: dict[str, Any]
    origin: Mapping[str, str]
    """Pointer into `document` -> pointer into the user's document, where they differ."""
    inherited: frozenset[str] = frozenset()
    """Pointers of list items of `document` that the user did not touch."""
    own: Mapping[str, Any] | None = None
    """The user's document when it inherits."""
    base: str | None = None
    """Preset it inherits from."""

    def user_pointer(self, pointer: str) -> str:
        """Translate a pointer, by its longest known prefix; unchanged when inherited."""
        head = pointer
        while head:
            if head in self.origin:
                return self.origin[head] + pointer[len(head) :]
            head = head.rpartition("/")[0]
        return pointer

    def is_inherited(self, pointer: str) -> bool:
        """True when the user's document says nothing about the place `pointer`."""
        if self.own is None:
            return False
        head = pointer
        while head:
            if head in self.inherited:
                return True
            head = head.rpartition("/")[0]
        return _missing(self.own, self.user_pointer(pointer))


def _missing(document: object, pointer: str) -> bool:
    value: Any = document
    for part in pointer.split("/")[1:]:
        part = part.replace("~1", "/").replace("~0", "~")
        if isinstance(value, Mapping) and part in value:
            value = value[part]
        elif isinstance(value, list) and part.isdigit() and int(part) < len(value):
            value = value[int(part)]
        else:
            return True
    return False


def escape(key: object) -> str:
    """Give one JSON pointer segment (RFC 6901)."""
    return str(key).replace("~", "~0").replace("/", "~1")


def resolve(document: Mapping[str, Any], preset: Callable[[str], dict[str, Any]]) -> Resolved:
    """Follow `inherits` until a document without it is reached.

    `preset` gives the raw document of a shipped preset by name.

    Raises:
        SpecError: TW-SPEC-003 for an unknown preset, TW-SPEC-001 when `inherits` is not a name or
            an edit names nothing.
    """
    own = {str(key): value for key, value in document.items() if key != "inherits"}
    lifted, moved = _lifted(own)
    if "inherits" not in document:
        return Resolved(lifted, moved)
    base_name = document["inherits"]
    if not isinstance(base_name, str):
        raise _refuse("inherits must be the name of a preset", "/inherits", str(base_name))
    base = resolve(preset(base_name), preset).document
    origin: dict[str, str] = {}
    merged = _merge_mapping(base, lifted, "", "", origin)
    inherited = frozenset(place for place, mine in origin.items() if not mine)
    if "description" not in own:
        merged["description"] = f"Inherits {base_name}."
    moved.update((place, mine) for place, mine in origin.items() if mine)
    return Resolved(merged, moved, inherited, own, base_name)


def _lifted(own: dict[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """(the document in today's fields, where each lifted one stands in the user's)."""
    origin: dict[str, str] = {}
    found = _lifted_fields(own, "", origin)
    targets = found.get("targets")
    if isinstance(targets, list):
        found["targets"] = [
            _lifted_fields(target, f"/targets/{k}", origin) if isinstance(target, dict) else target
            for k, target in enumerate(targets)
        ]
    return found, origin


def _lifted_fields(fields: dict[str, Any], at: str, origin: dict[str, str]) -> dict[str, Any]:
    """
    Raises:
        SpecError: TW-SPEC-001, an old field stands beside a new one.
    """
    found = dict(fields)
    for old, new in _SPLIT.items():
        if old not in found:
            continue
        both = [name for name in new if name in found]
        if both:
            raise _refuse(
                f"{old} is what {' and '.join(new)} were before, and {both[0]} is given too: "
                f"leave {old} out", f"{at}/{old}", old, "absent",
            )  # fmt: skip
        value = found.pop(old)
        for name in new:
            found[name] = value
            origin[f"{at}/{name}"] = f"{at}/{old}"
    return found


def _merge_mapping(
    base: Mapping[str, Any], own: Mapping[str, Any], at: str, mine: str, origin: dict[str, str]
) -> dict[str, Any]:
    merged = dict(base)
    for key, value in own.items():
        merged[key] = _merge(
            base.get(key), value, str(key), f"{at}/{escape(key)}", f"{mine}/{escape(key)}", origin
        )
    return merged


def _merge(
    base: object, own: object, key: str, at: str, mine: str, origin: dict[str, str]
) -> object:
    if isinstance(base, dict) and isinstance(own, dict) and "value" not in own:
        if key in _WHOLE:
            return own
        if "value" in base:  # a tagged number under a plain mapping: the user's text wins whole
            return own
        return _merge_mapping(base, own, at, mine, origin)
    name_key = _KEY_OF_LIST.get(key)
    if name_key and isinstance(base, list) and isinstance(own, list):
        return _merge_named(base, own, name_key, at, mine, origin)
    return own


def _merge_named(
    base: list[Any], own: list[Any], name_key: str, at: str, mine: str, origin: dict[str, str]
) -> list[Any]:
    """Merge two lists of named mappings; `origin` learns where the user's items ended up."""
    items: list[tuple[Any, Any, str]] = [(b, None, "") for b in base]

    def position(name: object) -> int | None:
        for k, (b, o, _) in enumerate(items):
            item = o if b is None else b
            if isinstance(item, dict) and name is not None and item.get(name_key) == name:
                return k
        return None

    for k, item in enumerate(own):
        here = f"{mine}/{k}"
        if not isinstance(item, dict):
            items.append((None, item, here))
            continue
        edit = {key: value for key, value in item.items() if key not in ("remove", "after")}
        found = position(item.get(name_key))
        if item.get("remove") is True:
            if found is None:
                name = str(item.get(name_key))
                raise _refuse(f"nothing named {name!r} is inherited here", f"{here}/remove", name)
            del items[found]
        elif found is not None:
            items[found] = (items[found][0], edit, here)
        elif "after" in item:
            anchor = position(item["after"])
            if anchor is None:
                name = str(item["after"])
                raise _refuse(f"nothing named {name!r} stands here", f"{here}/after", name)
            items.insert(anchor + 1, (None, edit, here))
        else:
            items.append((None, edit, here))
    merged: list[Any] = []
    for k, (b, o, here) in enumerate(items):
        origin[f"{at}/{k}"] = here  # empty: inherited as it is
        if b is None:
            merged.append(o)
        elif o is None:
            merged.append(b)
        else:
            merged.append(_merge_mapping(b, o, f"{at}/{k}", here, origin))
    return merged


def _refuse(message: str, pointer: str, actual: str, allowed: str = "a preset's name") -> SpecError:
    finding = Finding("TW-SPEC-001", message, pointer, None, allowed, actual)
    return SpecError("TW-SPEC-001", message, pointer=pointer, actual=actual, findings=(finding,))
