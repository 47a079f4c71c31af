"""Rules for the value of a job's later stages (`--verify-each`)."""

from __future__ import annotations

import orjson

from worker.compiler.errors import PassContractError
from worker.compiler.package.archive import file_digest, open_archive
from worker.compiler.package.bundle import check_digests, read_manifest
from worker.job.job import Job, Packaged
from worker.job.request import JobOutcome
from worker.job.simulation import Simulated, refuse_violations


def simulated(job: Job, found: Simulated) -> None:
    """No invariant of the simulation is violated."""
    del job
    refuse_violations(found.units, found.whole)


def packaged(job: Job, found: Packaged) -> None:
    """The file is what it is said to be, and so is every member."""
    del job
    if file_digest(found.path) != found.digest:
        raise PassContractError("package", f"{found.path.name} has not the digest that was given")
    with open_archive(found.path) as archive:
        check_digests(archive, read_manifest(archive))


def reported(job: Job, found: JobOutcome) -> None:
    """Every artifact is there; the report has the summary that the job ends with."""
    for _, file_name in found.artifacts:
        if not (job.writer.out_dir / file_name).is_file():
            raise PassContractError("report", f"{file_name} was announced and is not there")
    report = orjson.loads((job.writer.out_dir / "report.json").read_bytes())
    if report["summary"] != dict(found.summary):
        raise PassContractError("report", "report.json has another summary than the job")
