"""Jobs under faults: workers, API, broker, database, store and disk killed, hung or full.

    python -m benchmarks.faults                        # 1000 jobs each on embedded and scaled
    python -m benchmarks.faults --plan scaled --jobs 100 --seed 7
    python -m benchmarks.faults --plan rabbitmq --jobs 100

Real servers, all of its own, and real compiles of small models.  `embedded` is one process with
SQLite and files; `scaled` an API and four workers on a PostgreSQL, a Redis and an S3 behind a
proxy; `rabbitmq` the same on a PostgreSQL, a RabbitMQ and files.  About a third of the jobs are
items of sweeps; users cancel jobs and sweeps, resume some sweeps, and upload files in chunks.

Faults come at random by the seed until everything was submitted and most of it has ended.  Then all
is mended, and: what was accepted has ended, once, as an undisturbed run of the same ends, with the
same bytes; nothing is leased, running, or left on disk; all content is there; a webhook, whose
receiver is rude, was told of each end.  Exit status 1 on a breach.
"""

from __future__ import annotations

import argparse
import math
import shutil
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from sqlalchemy.exc import DBAPIError

from benchmarks.faults.audit import Told, audit
from benchmarks.faults.books import Books
from benchmarks.faults.chaos import Chaos
from benchmarks.faults.left import a_day_later, after_the_end, settled
from benchmarks.faults.load import Accepted, Answer, Load
from benchmarks.faults.printed import Result, table
from benchmarks.faults.site import PLANS, CannotRun, Plan, Site, orphans, own_folder
from benchmarks.faults.subscriber import Subscriber
from benchmarks.faults.sweep_audit import audit_sweeps
from benchmarks.faults.usual import Usual, undisturbed
from benchmarks.faults.work import Work, planned, work
from worker.sandbox.compiled_loops import ensure_compiled_loops

ATTEMPTS = 50
"""Of each job.  By default three crashes end one; here the campaign is what crashes them."""
_PER_JOB_S = 12.0
_LEAST_S = 300.0
_SAY_S = 15.0


def campaign(
    plan: Plan, folder: Path, found: Work, usual: Usual, asked: argparse.Namespace
) -> Result:
    """Run one plan; `asked` are the command's arguments."""
    result = Result(plan)
    tasks = planned(found, asked.jobs, asked.seed)
    began = time.monotonic()
    give_up = began + _LEAST_S + asked.jobs * _PER_JOB_S
    subscriber = Subscriber(asked.seed)
    try:
        with Site(plan, folder, attempts=ATTEMPTS) as site:
            subscriber.subscribe(site.url)
            result.disk = site.disk.words
            load = Load(site.url, tasks, asked.seed)
            books = Books(site)
            until = time.monotonic() + asked.minutes * 60
            users = threading.Thread(target=load.run, args=(give_up, until))
            with Chaos(site, asked.seed) as chaos:
                users.start()
                _until(books, load.has_few, give_up, chaos)
                users.join()
            result.faults = chaos.struck
            result.breaches += [f"the campaign broke: {text}" for text in chaos.broken]
            site.calm()
            subscriber.is_rude = False
            _until(books, lambda left: left == 0, give_up)
            result.breaches += [f"{one} has not ended" for one in books.open_ones()]
            result.breaches += load.refused
            told = Told(load.jobs, load.sweeps, load.models)
            resumed = {sweep.id for sweep in load.sweeps if sweep.is_resumed}
            result.breaches += subscriber.audit(books, resumed)
            result.breaches += audit(site, books, told, usual)
            result.breaches += audit_sweeps(books, told, usual)
            result.breaches += settled(site, books)
            _count(result, books, told, chaos.spans)
            books.close()
            result.told = subscriber.taken.total()
            result.tried_again, result.ended_alone = load.tried_again, site.ended_alone
            result.breaches += after_the_end(site, site.stop_children())
            aged = a_day_later(site)
            result.aged = aged.mended
            result.breaches += aged.breaches
            if result.breaches:
                _keep_logs(site)
    except CannotRun as error:
        result.reason = str(error)
    finally:
        subscriber.close()
    result.seconds = time.monotonic() - began
    return result


def _until(
    books: Books, is_enough: Callable[[int], bool], give_up: float, chaos: Chaos | None = None
) -> None:
    """Wait until few enough of jobs, sweeps and their items are left."""
    said = time.monotonic()
    ended = left = -1
    while time.monotonic() < give_up:
        try:
            ended, left = len(books.ended_jobs()), len(books.open_ones())
        except DBAPIError as error:  # it may be what is broken now
            sys.stderr.write(f"  {type(error.orig).__name__}\n")
        else:
            if is_enough(left):
                return
        if chaos is not None:
            chaos.ended = max(chaos.ended, ended)
        if time.monotonic() - said > _SAY_S:
            said = time.monotonic()
            sys.stderr.write(f"  {ended} jobs have ended, {left} are open\n")
        time.sleep(0.5)


def _count(result: Result, books: Books, told: Told, spans: Sequence[tuple[float, float]]) -> None:
    outcomes, sweeps = books.outcomes(), books.sweeps()
    result.jobs, result.uploads = len(outcomes), len(told.models)
    result.states = Counter(outcome.state for outcome in outcomes.values())
    items = [item for sweep in sweeps.values() for item in sweep.items]
    result.items, result.jobless = len(items), sum(item.job is None for item in items)
    result.sweeps = Counter(
        f"{_fate(one)} and {sweeps[one.id].state}" for one in told.sweeps if one.id in sweeps
    )
    query = "SELECT outcome, count(*) FROM attempt GROUP BY outcome"
    result.attempts = Counter({str(name): count for name, count in books.rows(query)})
    query = "SELECT started, finished FROM job WHERE started IS NOT NULL"
    result.met = sum(
        any(began < end and start < finished for start, end in spans)
        for began, finished in books.rows(query)
    )
    query = "SELECT item_id FROM attempt GROUP BY item_id HAVING count(*) > 1"
    result.again = len(books.rows(query))


def _fate(sweep: Accepted) -> str:
    if sweep.is_resumed:
        return "resumed"
    return "cut" if sweep.cancel is Answer.YES else "left alone"


def _keep_logs(site: Site) -> None:
    kept = Path("faults_logs") / site.plan.name
    shutil.rmtree(kept, ignore_errors=True)
    kept.mkdir(parents=True)
    for log in site.folder.glob("*.log"):
        shutil.copy(log, kept)


def main(argv: list[str] | None = None) -> int:
    """Run the plans that were asked for; 1 on a breach, or when none of them can run here."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.faults", description=(__doc__ or "").split("\n", 1)[0]
    )
    parser.add_argument("--plan", nargs="+", choices=sorted(PLANS), default=["embedded", "scaled"])
    parser.add_argument(
        "--jobs", type=int, default=1000, help="of each plan, items of sweeps among them"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--minutes", type=float, default=math.inf, help="of each plan, until nothing new is begun"
    )
    args = parser.parse_args(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that what was started ends
    ensure_compiled_loops()
    folder = own_folder()
    try:
        with orphans():
            found = work(folder)
            usual = undisturbed(folder / "undisturbed", found)
            results = [
                campaign(PLANS[name], folder / name, found, usual, args) for name in args.plan
            ]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    sys.stdout.write(table(results))
    ran = [one for one in results if not one.reason]
    return int(not ran or any(one.breaches for one in ran))


if __name__ == "__main__":
    raise SystemExit(main())
