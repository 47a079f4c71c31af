"""Text that UTF-8 can carry: what comes in is refused otherwise, what lies in old rows is shown.

And text of one line, for terminals and logs.
"""

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


def uncarried(value: object) -> str | None:
    """JSON pointer of a key or text that UTF-8 cannot carry, None when there is none.

    Cost: one look at every text.  A list of what is left, no recursion: the JSON parser lets
    documents through that are as deep as the interpreter's own limit.
    """
    left: list[tuple[str, object]] = [("", value)]
    while left:
        pointer, held = left.pop()
        if isinstance(held, str):
            if not is_carried(held):
                return pointer
        elif isinstance(held, Mapping):
            for key, inner in held.items():
                if isinstance(key, str) and not is_carried(key):
                    return pointer
                left.append((f"{pointer}/{key}", inner))
        elif isinstance(held, list | tuple):
            left += [(f"{pointer}/{number}", inner) for number, inner in enumerate(held)]
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


def one_line(text: str) -> str:
    """Escape what would move a terminal's cursor: names come from untrusted models."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
