"""Text that UTF-8 can carry: what comes in is refused otherwise, what lies in old rows is shown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from worker.compiler.errors import Detail


def is_carried(text: str) -> bool:
    """Say whether UTF-8 can carry the text: it holds no half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def uncarried(value: object, pointer: str = "") -> str | None:
    """JSON pointer of the first key or text that UTF-8 cannot carry, None when there is none.

    Cost: one look at every text; the depth is what the JSON parser let through.
    """
    if isinstance(value, str):
        return None if is_carried(value) else pointer
    if isinstance(value, Mapping):
        for key, held in value.items():
            if isinstance(key, str) and not is_carried(key):
                return pointer
            if (found := uncarried(held, f"{pointer}/{key}")) is not None:
                return found
    elif isinstance(value, list | tuple):
        for number, held in enumerate(value):
            if (found := uncarried(held, f"{pointer}/{number}")) is not None:
                return found
    return None


def carried(value: Any) -> Any:
    """A JSON value with every text as UTF-8 can carry it; half a surrogate pair becomes U+FFFD.

    For answers: an early release stored what clients sent, and one row must not spoil a page.
    """
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, Mapping):
        return {carried(key): carried(held) for key, held in value.items()}
    if isinstance(value, list | tuple):
        return [carried(held) for held in value]
    return value


def shown(document: Mapping[str, Detail]) -> dict[str, Any]:
    """A stored document for an answer; what is already good is only copied."""
    return dict(document) if uncarried(document) is None else carried(document)
