"""When a message that was not taken is tried again.  Pure."""

from __future__ import annotations

from hashlib import sha256

FACTOR = 4.0
LONGEST_S = 6 * 3600.0
JITTER = 0.25
"""Pauses are up to so much shorter or longer, so that what failed together does not return so."""


def pause_s(delivery_id: str, tries: int, first_s: float) -> float:
    """How long to wait after `tries` attempts; the same for the same message, always.

    Units: seconds.
    """
    # The power is bounded before it is taken: a message may have thousands of tries.
    longest = min(LONGEST_S, first_s * FACTOR ** min(tries - 1, 32))
    digest = sha256(f"{delivery_id} {tries}".encode()).digest()
    share = int.from_bytes(digest[:8]) / 2**64
    return longest * (1.0 - JITTER + 2.0 * JITTER * share)
