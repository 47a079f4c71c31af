"""Which of the user's samples calibrate, and which are kept to score the result on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")

_EVERY = 4
"""One sample in so many is held out: enough to score on, and calibration keeps three quarters."""
_MOST = 16
"""Held out at most: scoring runs the user's model and the converted one on each."""


def split_samples(samples: Sequence[T]) -> tuple[tuple[T, ...], tuple[T, ...]]:
    """(calibrating, held out): every fourth is held out, at most 16, and of two or three the last.

    One sample calibrates and leaves none.  Samples of one source often stand side by side, so those
    held out are spread.
    """
    if len(samples) == 1:
        return tuple(samples), ()
    every = max(min(_EVERY, len(samples)), -(-len(samples) // _MOST))
    held = range(every - 1, len(samples), every)
    return (
        tuple(sample for k, sample in enumerate(samples) if k not in held),
        tuple(samples[k] for k in held),
    )
