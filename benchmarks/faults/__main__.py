"""Jobs under faults: workers, API, broker, database, store and disk killed, hung or full.

    python -m benchmarks.faults                        # 1000 jobs each on embedded and scaled
    python -m benchmarks.faults --plan scaled --jobs 100 --seed 7
    python -m benchmarks.faults --plan rabbitmq

Real servers and real compiles of small models.  `embedded` is one process with SQLite and files;
`scaled` an API and four workers on a PostgreSQL, a Redis and an S3 (behind a proxy) of its own;
`rabbitmq` uses this machine's, which is not touched.  Faults come at random by the seed until every
job was submitted and most have ended.  Then all is mended, and: every job that was accepted has
ended, once, as an undisturbed run of the same ends, with the same bytes; nothing is leased,
running, or left on disk; all content is there; a webhook, whose receiver is rude, was told of each
end.  Exit status 1 on a breach.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from sqlalchemy.exc import DBAPIError

from benchmarks.faults.audit import Books, Outcome, after_the_end, audit
from benchmarks.faults.chaos import Chaos
from benchmarks.faults.load import Accepted, Kind, Load, kinds
from benchmarks.faults.site import PLANS, CannotRun, Plan, Site, own_folder
from benchmarks.faults.subscriber import Subscriber
from service.client import Client
from worker.sandbox.compiled_loops import ensure_compiled_loops

ATTEMPTS = 50
"""Of each job.  By default three crashes end one; here the campaign is what crashes them."""
_PER_JOB_S = 12.0
_LEAST_S = 300.0
_SAY_S = 15.0
_STRUCK_UNTIL = 0.9
"""The part of all jobs that has ended when the last fault strikes."""


@dataclass(slots=True)
class Result:
    """What came of one plan."""

    plan: Plan
    disk: str = ""
    accepted: int = 0
    seconds: float = 0.0
    states: Counter[str] = field(default_factory=Counter)
    attempts: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    tried_again: Counter[str] = field(default_factory=Counter)
    ended_alone: Counter[str] = field(default_factory=Counter)
    told: int = 0
    """Messages that a webhook got."""
    breaches: list[str] = field(default_factory=list)
    reason: str = ""
    """Why it did not run."""


def undisturbed(folder: Path, found: list[Kind]) -> dict[str, Outcome]:
    """How a job of each kind ends when nothing breaks."""
    with Site(PLANS["embedded"], folder, attempts=1) as site, Client(site.url) as client:
        ids = {}
        for kind in found:
            model = client.upload_model(kind.model)
            options = dict(kind.options)
            request = {"model": model["id"], "hardware": kind.hardware, "options": options}
            ids[kind.name] = str(client.submit(request)["id"])
        for job in ids.values():
            client.wait(job, timeout_s=300)
        books = Books(site)
        outcomes = books.outcomes()
        books.close()
        return {name: outcomes[job] for name, job in ids.items()}


def campaign(
    plan: Plan,
    folder: Path,
    found: list[Kind],
    usual: dict[str, Outcome],
    asked: argparse.Namespace,
) -> Result:
    """Run one plan; `asked` are the command's arguments."""
    jobs, seed = asked.jobs, asked.seed
    result = Result(plan)
    began = time.monotonic()
    give_up = began + _LEAST_S + jobs * _PER_JOB_S
    subscriber = Subscriber(seed)
    try:
        with Site(plan, folder, attempts=ATTEMPTS) as site:
            subscriber.subscribe(site.url)
            result.disk = site.disk.words
            load = Load(site.url, found, jobs, seed)
            books = Books(site)
            users = threading.Thread(target=load.run, args=(give_up,))
            with Chaos(site, seed) as chaos:
                users.start()
                _until_ended(books, int(_STRUCK_UNTIL * jobs), give_up, chaos)
                users.join()
            result.faults = chaos.struck
            result.breaches += [f"the campaign broke: {text}" for text in chaos.broken]
            site.calm()
            subscriber.is_rude = False
            _until_ended(books, jobs - load.given_up, give_up)
            result.breaches += [f"{job} has not ended" for job in books.open_jobs()]
            result.breaches += load.refused
            result.breaches += audit(site, books, load.accepted, usual)
            result.breaches += subscriber.audit(books)
            result.told = subscriber.taken.total()
            _count(result, books, load.accepted)
            books.close()
            result.tried_again, result.ended_alone = load.tried_again, site.ended_alone
            result.breaches += after_the_end(site, site.stop_children())
            if result.breaches:
                _keep_logs(site)
    except CannotRun as error:
        result.reason = str(error)
    finally:
        subscriber.close()
    result.seconds = time.monotonic() - began
    return result


def _until_ended(books: Books, count: int, give_up: float, chaos: Chaos | None = None) -> None:
    """Wait until so many jobs have ended."""
    said = time.monotonic()
    while time.monotonic() < give_up:
        try:
            ended = len(books.ended_jobs())
        except DBAPIError as error:  # it may be what is broken now
            ended = -1
            sys.stderr.write(f"  {type(error.orig).__name__}\n")
        if ended >= count:
            return
        if chaos is not None:
            chaos.ended = max(chaos.ended, ended)
        if time.monotonic() - said > _SAY_S:
            said = time.monotonic()
            sys.stderr.write(f"  {ended} of {count} jobs have ended\n")
        time.sleep(0.5)


def _count(result: Result, books: Books, accepted: list[Accepted]) -> None:
    result.accepted = len(accepted)
    result.states = Counter(outcome.state for outcome in books.outcomes().values())
    query = "SELECT outcome, count(*) FROM attempt GROUP BY outcome"
    result.attempts = Counter({str(name): count for name, count in books.rows(query)})


def _keep_logs(site: Site) -> None:
    kept = Path("faults_logs") / site.plan.name
    shutil.rmtree(kept, ignore_errors=True)
    kept.mkdir(parents=True)
    for log in site.folder.glob("*.log"):
        shutil.copy(log, kept)


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items())) or "none"


def table(results: list[Result]) -> str:
    """What was run, and what came of it."""
    lines = []
    for one in results:
        if one.reason:
            lines.append(f"{one.plan.name}: not run: {one.reason}")
            continue
        verdict = f"{len(one.breaches)} BREACHES" if one.breaches else "no breach"
        lines += [
            f"{one.plan.name}: {one.plan.database}, {one.plan.broker}, {one.plan.store}: {verdict}",
            f"  jobs accepted  {one.accepted}, in {one.seconds:.0f} s",
            f"  ended          {_listed(one.states)}",
            f"  attempts       {_listed(one.attempts)}",
            f"  faults         {one.faults.total()}: {_listed(one.faults)}",
            f"  webhook        {one.told} messages",
            f"  full disk      {one.disk}",
            f"  asked again    {_listed(one.tried_again)}",
            f"  ended alone    {_listed(one.ended_alone)}",
            *(f"  BREACH         {text}" for text in one.breaches[:40]),
        ]
    return "\n".join(lines) + "\n"


def main(argv: list[str] | None = None) -> int:
    """Run the plans that were asked for; 1 on a breach, or when none of them can run here."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.faults", description=(__doc__ or "").split("\n", 1)[0]
    )
    parser.add_argument("--plan", nargs="+", choices=sorted(PLANS), default=["embedded", "scaled"])
    parser.add_argument("--jobs", type=int, default=1000, help="of each plan")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that what was started ends
    ensure_compiled_loops()
    folder = own_folder()
    try:
        found = kinds(folder)
        usual = undisturbed(folder / "undisturbed", found)
        results = [campaign(PLANS[name], folder / name, found, usual, args) for name in args.plan]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    sys.stdout.write(table(results))
    ran = [one for one in results if not one.reason]
    return int(not ran or any(one.breaches for one in ran))


if __name__ == "__main__":
    raise SystemExit(main())
