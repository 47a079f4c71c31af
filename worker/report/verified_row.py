"""One line of the report's verification table."""

from __future__ import annotations

from typing import NamedTuple


class VerifiedRow(NamedTuple):
    """What was compared, how far apart it is, and what is allowed."""

    name: str
    """An output, or a kernel and what it wrote."""
    max_abs_err: float
    error: float
    """max |error| / max |reference| of floats, max |error| of integers."""
    tolerance: float
    """Bound of `error`."""
    own_error: float | None = None
    """The reference's own measured error, in the measure of `error`; None: it was not needed."""
    reason: str = ""
    """Why a row above its tolerance is no verdict; empty: it is."""

    @property
    def share(self) -> float:
        """Of its tolerance; 0 where nothing differs."""
        if self.error == 0:
            return 0.0
        return self.error / self.tolerance if self.tolerance else float("inf")

    @property
    def is_wrong(self) -> bool:
        """Whether the kernels are at fault."""
        return self.error > self.tolerance and not self.reason

    @property
    def is_open(self) -> bool:
        """Whether the comparison proves nothing either way."""
        return self.error > self.tolerance and bool(self.reason)
