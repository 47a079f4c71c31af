"""Two JSON documents: which values differ, by JSON pointer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from service.compare.deltas import Change
from worker.compiler.errors import Detail


def changes(base: Detail, head: Detail, pointer: str = "") -> list[Change]:
    """Values that differ, in the order of the documents; what a side lacks is None there.

    Items of a list that all have a name of their own (`name`, or `pointer`) stand under it, as in
    `/levels/GBUF/capacity_bytes`; others under their number, where both lists are as long, else the
    list is one value.
    """
    if type(base) is type(head) and base == head:
        return []
    left, right = _children(base), _children(head)
    if left is None or right is None or not _are_alike(base, head, left.keys() == right.keys()):
        return [Change(pointer, base, head)] if base != head else []
    found: list[Change] = []
    for key in dict.fromkeys([*left, *right]):
        found += changes(left.get(key), right.get(key), f"{pointer}/{_escaped(key)}")
    return found


def _are_alike(base: object, head: object, has_same_keys: bool) -> bool:
    """Whether the items of one stand for the items of the other."""
    if _is_list(base) != _is_list(head):
        return False
    return (
        has_same_keys
        or not _is_list(base)
        or all(not side or _is_named(side) for side in (base, head))
    )


def _children(value: object) -> dict[str, Any] | None:
    """What a document holds, by key; None: it is a value."""
    if isinstance(value, Mapping):
        return dict(value)
    if not _is_list(value):
        return None
    assert isinstance(value, Sequence)
    key = _is_named(value)
    return {str(item[key]) if key else str(n): item for n, item in enumerate(value)}


def _is_list(value: object) -> bool:
    return isinstance(value, list | tuple)


def _is_named(value: object) -> str:
    """The key that tells items of a list apart; empty: there is none."""
    if not isinstance(value, list | tuple) or not value:
        return ""
    for key in ("name", "pointer"):
        names = [item.get(key) for item in value if isinstance(item, Mapping)]
        if len(names) == len(value) == len(set(map(str, names))) and all(
            isinstance(name, str) for name in names
        ):
            return key
    return ""


def _escaped(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")
