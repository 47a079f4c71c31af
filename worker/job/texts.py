"""What a developer sees of the value of a job's later stages (`--print-after`)."""

from __future__ import annotations

import zipfile

import orjson

from worker.job.job import Packaged
from worker.job.request import JobOutcome
from worker.job.simulation import Simulated
from worker.report.document import Verification


def simulated(found: Simulated) -> str:
    """Cycles, energy and what bounds every kernel, and the whole."""
    lines = [
        f"unit {sim.signature[:12]}: {sim.cycles} cycles, {sum(e.pj for e in sim.energy):.6g} pJ,"
        f" {sim.instructions} instructions, predicted {sim.predicted_cycles}"
        for sim in found.units
    ]
    whole = found.whole
    lines.append(f"whole: {whole.cycles} cycles, {whole.energy_pj:.6g} pJ")
    lines += [f"check {c.name}: {c.passed} {c.detail}".rstrip() for c in whole.checks]
    return "".join(f"{line}\n" for line in lines)


def packaged(found: Packaged) -> str:
    """The members of the bundle."""
    with zipfile.ZipFile(found.path) as archive:
        rows = [f"{row.file_size:>12} {row.filename}\n" for row in archive.infolist()]
    return f"sha256 {found.digest}\n" + "".join(rows)


def verified(found: Verification) -> str:
    """What was compared."""
    lines = [f"passed {found.passed}: {found.detail}"]
    lines += [
        f"{row.name}: error {row.error:.3g}, tolerance {row.tolerance:.3g}" for row in found.outputs
    ]
    return "".join(f"{line}\n" for line in lines)


def reported(found: JobOutcome) -> str:
    """The summary."""
    return orjson.dumps(dict(found.summary), option=orjson.OPT_INDENT_2).decode() + "\n"
