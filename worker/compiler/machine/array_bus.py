"""What moves inside an array of multiply-accumulates, between its edge and its cells.

All that the array draws and returns crosses its edge once, however many cells of a row or column
hear it.  Then, for every multiply-accumulate, a cell takes what streams from the line, or from the
cell beside it: the factor that is not kept, and the sum of the cells before it; where sums are
kept, both factors.  What is kept is in its cell when it has crossed the edge, as the source of the
energies counts it (nn_dataflow: an access for each word that arrives at a PE).  Where cells keep
rows, operands come once for many multiply-accumulates (`cost/row_stationary.py`).
"""

from __future__ import annotations

from worker.compiler.ir.dtype import DType
from worker.compiler.machine.dataflow import Stationary
from worker.compiler.machine.machine import Engine


def taken_per_mac(engine: Engine, dtype: DType) -> int:
    """Bytes that a cell takes for each multiply-accumulate; 0: nobody says how it is fed, or cells
    keep rows.

    `dtype`: of the factors; sums pass as wide as they are summed up.
    """
    if engine.dataflow is None or engine.dataflow.stationary is Stationary.ROW:
        return 0
    if engine.dataflow.stationary is Stationary.OUTPUT:
        return 2 * dtype.size_bytes
    return dtype.size_bytes + dtype.accumulator.size_bytes
