"""Sortable random ids: a prefix and a ULID (48 bits of milliseconds, 80 random bits)."""

from __future__ import annotations

import secrets
import time

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"


def new_id(prefix: str) -> str:
    """Give `prefix_` and 26 Crockford base-32 characters.

    The time part only makes ids sort well in an index; no decision ever reads it.
    """
    value = (time.time_ns() // 1_000_000 << 80) | secrets.randbits(80)
    return prefix + "_" + "".join(_ALPHABET[(value >> shift) & 31] for shift in range(125, -1, -5))
