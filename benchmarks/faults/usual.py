"""How jobs and sweeps end when nothing breaks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.faults.books import Books, Outcome, SweepOutcome
from benchmarks.faults.load import job_request, sweep_request
from benchmarks.faults.site import PLANS, Site
from benchmarks.faults.work import Work
from service.client import Client

_PATIENCE_S = 300.0


@dataclass(frozen=True, slots=True)
class Usual:
    """By the names of kinds."""

    jobs: Mapping[str, Outcome]
    sweeps: Mapping[str, SweepOutcome]
    jobs_of_sweeps: Mapping[str, Mapping[int, Outcome]]
    """By the numbers of items; those that never get a job are not there."""


def undisturbed(folder: Path, found: Work) -> Usual:
    """Run one of each kind on a service of its own that nobody disturbs."""
    with Site(PLANS["embedded"], folder, attempts=1) as site, Client(site.url) as client:
        jobs, sweeps = {}, {}
        for kind in found.jobs:
            model = client.upload_model(kind.model)
            jobs[kind.name] = str(client.submit(job_request(kind, model["id"]))["id"])
        for sweep in found.sweeps:
            models = [client.upload_model(path)["id"] for path in sweep.models]
            sweeps[sweep.name] = str(client.submit_sweep(sweep_request(sweep, models))["id"])
        for job in jobs.values():
            client.wait(job, timeout_s=_PATIENCE_S)
        for made in sweeps.values():
            client.wait_sweep(made, timeout_s=_PATIENCE_S)
        books = Books(site)
        outcomes, ended = books.outcomes(), books.sweeps()
        books.close()
    return Usual(
        {name: outcomes[job] for name, job in jobs.items()},
        {name: ended[made] for name, made in sweeps.items()},
        {
            name: {item.number: outcomes[item.job] for item in ended[made].items if item.job}
            for name, made in sweeps.items()
        },
    )
