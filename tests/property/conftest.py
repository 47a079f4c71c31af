"""Property tests are not counted as coverage, which makes those of compiled loops half as fast."""

from __future__ import annotations

from collections.abc import Iterator

import coverage
import pytest


@pytest.fixture(autouse=True)
def uncounted() -> Iterator[None]:
    """What many random cases run is not traced: cases of other tests must reach every line."""
    measuring = coverage.Coverage.current()
    if measuring is None:
        yield
        return
    measuring.stop()
    try:
        yield
    finally:
        measuring.start()
