"""`compare`: two results, set against each other."""

from __future__ import annotations

from pathlib import Path

from service.compare import Comparison, read_path
from service.compare import compare as compare_runs
from tilewright.options import PathLike
from tilewright.result import Result


def compare(base: Result | PathLike, head: Result | PathLike) -> Comparison:
    """Say what differs between two compiled models, where, and by which cause.

    Example:
        >>> import tilewright as tw
        >>> tw.compare("out", tw.load("out")).is_same
        True

    Args:
        base, head: a result, a folder that `output=` or `tilewright compile -o` wrote, a bundle,
            or a report.json.

    Returns:
        A comparison with its `verdict`, a `headline`, `figures`, `causes`, `layers`, `reasons`,
        and `as_json()`, which is what `tilewright diff --json` prints.

    Raises:
        InputError: TW-CLI-001, there is nothing of the kind; TW-RUN-001, -004 or TW-CMP-001, it
            cannot be read.
    """
    runs = [
        read_path(side.folder if isinstance(side, Result) else Path(side)) for side in (base, head)
    ]
    return compare_runs(runs[0], runs[1])
