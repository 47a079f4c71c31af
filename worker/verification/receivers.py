"""A program in which every receiver of a multicast has a transfer of its own."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from worker.compiler.isa.program import Opcode, UnitProgram
from worker.compiler.isa.receivers import Receivers
from worker.compiler.machine.machine import Machine

Ints = npt.NDArray[np.int64]


def receiver_by_receiver(unit: UnitProgram, machine: Machine) -> tuple[UnitProgram, Ints]:
    """(the program, its multicasts as a LOAD for each receiver; core that each row serves).

    `unit` has no loops.  Each of these waits for all that the multicast does, and signals the same:
    a value that one of them brings is there no earlier than the last of them has run.
    """
    core_of = np.array([stream.core for stream in unit.streams], dtype=np.int64)
    rows, receivers = unit.instructions, Receivers(unit.resources, machine)
    owner, rank = receivers.each(rows)
    table = rows.take(owner)
    cores = core_of[table["stream"]] + receivers.cores(table, rank)
    if len(owner) == len(rows):
        return unit, cores
    table["opcode"][table["opcode"] == Opcode.MULTICAST] = int(Opcode.LOAD)
    waits, signals = (
        _repeated(pointer, token, owner)
        for pointer, token in (
            (unit.wait_ptr, unit.wait_token), (unit.signal_ptr, unit.signal_token),
        )
    )  # fmt: skip
    made = replace(
        unit, instructions=table, wait_ptr=waits[0], wait_token=waits[1], signal_ptr=signals[0],
        signal_token=signals[1],
    )  # fmt: skip
    return made, cores


def _repeated(
    pointer: npt.NDArray[np.int32], token: npt.NDArray[np.int32], owner: npt.NDArray[np.intp]
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """Lists of rows, each once for every row that is made of it."""
    sizes = np.diff(pointer)[owner]
    ends = np.concatenate([[0], np.cumsum(sizes)])
    within = np.arange(ends[-1]) - np.repeat(ends[:-1], sizes)
    return ends.astype(np.int32), token[np.repeat(pointer[:-1][owner], sizes) + within]
