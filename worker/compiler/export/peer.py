"""The cost models that kernels are exported to."""

from __future__ import annotations

from enum import StrEnum


class Peer(StrEnum):
    """Names for the command line; `docs/exports.md` has the versions."""

    ACCELFORGE = "accelforge"
    DIRECTIVES = "directives"
    """KAPLA's, which `explain layer --directives` reads again."""
    NN_DATAFLOW = "nn-dataflow"
    SCALESIM = "scalesim"
    TIMELOOP = "timeloop"
    ZIGZAG = "zigzag"
