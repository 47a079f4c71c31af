"""Comparing runs: documents in, one typed comparison out.

    base = read_path(Path("before"))            # a folder of `compile -o`, a bundle, a report.json
    head = Run.of("after", report, graph=..., schedule=..., spec=...)     # or from documents
    found = compare(base, head)
    found.verdict, found.headline               # Verdict.SLOWER, one sentence with figures
    found.figure("energy_pj").ratio             # head over base; of every number of the summary
    found.causes, found.layers                  # each sums to found.delta_cycles, exactly
    found.moved                                 # layers that differ, the largest change first
    found.reasons                               # spec fields, model, toolchain, options; decisions
    found.is_same, found.as_json()

Nodes are matched by the user's names, then by what they are, then by what stands around them
(`matching`); rows of the report are set against each other where they cover the same nodes
(`cover`).  What depends on the run (run.json, cache, timings, names) is no difference.

Pure: no numpy, no compiler, no service; the command line, the API and the Python module use it.
What cannot be told for want of a document is a sentence in `Side.missing`, never a guess.
"""

from service.compare.compare import compare
from service.compare.deltas import (
    CauseDelta,
    Change,
    Comparison,
    FigureDelta,
    KernelDelta,
    LayerDelta,
    NodeCounts,
    PlacementDelta,
    Reason,
    ReasonKind,
    RowKind,
    Side,
    Verdict,
)
from service.compare.reading import read_path, read_run
from service.compare.run import Run

__all__ = [
    "CauseDelta",
    "Change",
    "Comparison",
    "FigureDelta",
    "KernelDelta",
    "LayerDelta",
    "NodeCounts",
    "PlacementDelta",
    "Reason",
    "ReasonKind",
    "RowKind",
    "Run",
    "Side",
    "Verdict",
    "compare",
    "read_path",
    "read_run",
]
