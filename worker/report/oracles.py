"""What oracles have answered, as rows of a report."""

from __future__ import annotations

from hashlib import sha256

from worker.compiler.errors import Detail
from worker.compiler.machine.machine import Machine


def oracle_rows(machine: Machine) -> list[Detail]:
    """A row for every instruction and format that an oracle prices: how many sizes it was asked
    for, the cycles of the whole call and of the least size, and a digest of all answers."""
    rows: list[Detail] = []
    for engine in machine.engines:
        for intrinsic in engine.intrinsics:
            for size in intrinsic.sizes:
                if intrinsic.question is None or size.answers is None:
                    continue
                cycles = size.answers.at_steps
                rows.append(
                    {
                        "engine": engine.name,
                        "intrinsic": intrinsic.name,
                        "oracle": intrinsic.question.oracle,
                        "dtype": str(size.answers.dtype),
                        "sizes": len(cycles),
                        "whole_cycles": cycles[-1],
                        "least_cycles": min(cycles),
                        "sha256": sha256(" ".join(map(str, cycles)).encode()).hexdigest(),
                    }
                )
    return rows
