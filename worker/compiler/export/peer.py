"""The cost models that kernels are exported to."""

from __future__ import annotations

from enum import StrEnum


class Peer(StrEnum):
    """Names for the command line; `docs/exports.md` has the versions."""

    ACCELFORGE = "accelforge"
    NN_DATAFLOW = "nn-dataflow"
    SCALESIM = "scalesim"
    TIMELOOP = "timeloop"
    ZIGZAG = "zigzag"
