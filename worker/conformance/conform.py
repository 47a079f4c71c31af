"""Test a machine against its own document: the suite, run and reported."""

from __future__ import annotations

from pathlib import Path

from worker.compiler.machine.machine import Machine
from worker.conformance.cases import Selection, conformance_suite
from worker.conformance.report import Conformance
from worker.conformance.run import Progress, run_suite


def check_machine(
    machine: Machine,
    build_dir: Path,
    selection: Selection = Selection(),
    header: str | None = None,
    progress: Progress | None = None,
) -> Conformance:
    """Run the conformance suite.

    `header`: text of the vendor's tilewright_rt.h; absent: the portable reference.

    Raises:
        CompilerError: TW-VERIFY-002 without a C compiler.
    """
    suite = conformance_suite(machine, selection)
    rows, unjudged = run_suite(machine, suite, build_dir, header, progress)
    return Conformance(machine.name, rows, (*suite.untested, *unjudged))
