"""What was measured, as a page: figures beside what was asked for."""

from __future__ import annotations

import os
from typing import Any

from benchmarks.load.queue_model import bend, costs_of, efficiency, forecast
from benchmarks.load.sites import DATABASES
from benchmarks.load.streams import is_flat

Row = dict[str, Any]
MANY = (1, 2, 4, 8, 16, 32, 64)
READ_P95_MS = 25.0
SUBMITS_PER_S = 400.0
SHARE_AROUND = 0.10
TWO_WORKERS = 1.5
EFFICIENCY = 0.9
_HEAD = """# What a server carries

Printed by `python -m benchmarks.load`.  Real servers on loopback, with API keys, rates, quotas and
the audit log on; the clients, a process of their own, use the same processors.  SQLite: one
process, `tilewright serve`.  PostgreSQL: `tilewright serve --api-only` beside a PostgreSQL and a
Redis of its own, and workers with one slot each.  CPU time is what the kernel counted for the
processes; where others use the processors, too, it is higher than alone: they share caches.
"""


def _verdict(is_met: bool) -> str:
    return "met" if is_met else "MISSED"


def _conditions(row: Row) -> str:
    before = f", before which these had priority (nice {row['nice']})" if row["nice"] else ""
    return (
        f"Commit {row['commit']}, {row['when']}; {row['cores']} cores ({row['processor']}), Linux"
        f" {row['linux']}, Python {row['python']}; other programs used {row['others']:.2f} cores"
        f" meanwhile, load average at the start {row['load']:.1f}{before}."
    )


def _cpu(used: Row) -> str:
    parts = (f"{kind} {ms:.2f}" for kind, ms in used.items() if ms >= 0.005)
    return ", ".join(parts)


def reads_lines(rows: dict[str, Row]) -> list[str]:
    """The section on reads."""
    lines = [
        "## Reads", "",
        "`GET /v1/jobs/{id}` at 200 a second, at random moments (a Poisson process); latency"
        f" counts from when a request was due. Wanted: p95 <= {READ_P95_MS:g} ms.", "",
        "| database | request | a second | p50 ms | p95 ms | p99 ms | errors | CPU ms each | p95 |",
        "|---|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for name, row in rows.items():
        for what, shown in (("reads", "a job"), ("healthz", "`/healthz`")):
            one = row[what]
            verdict = _verdict(one["p95_ms"] <= READ_P95_MS and not one["errors"])
            lines.append(
                f"| {DATABASES[name]} | {shown} | {one['per_s']:.0f} | {one['p50_ms']:.1f} |"
                f" {one['p95_ms']:.1f} | {one['p99_ms']:.1f} | {one['errors']} |"
                f" {_cpu(one['cpu_ms'])} | {verdict if what == 'reads' else '-'} |"
            )
    lines.append("")
    for name, row in rows.items():
        lines.append(
            f"{DATABASES[name]}: {row['jobs']} jobs in the queue; with nobody asking the API's"
            f" process uses {row['idle_ms_per_s']:.1f} ms of CPU time a second. {_conditions(row)}"
        )
    return lines


def submits_lines(rows: dict[str, Row]) -> list[str]:
    """The section on submits."""
    lines = [
        "## Submits", "",
        "Paced: every client once a second. Saturated: every client at once again, so that p50 is"
        " clients / rate. Each job is committed with its item, event, idempotency key and row of"
        f" the audit log before the answer. Wanted: >= {SUBMITS_PER_S:g}/s saturated, the median of"
        " the rounds.", "",
        "| database | load | a second | p50 ms | p95 ms | errors | CPU ms each | rate |",
        "|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for name, row in rows.items():
        ordered = sorted(row["saturated"], key=lambda one: one["per_s"])
        middle = ordered[len(ordered) // 2]
        for what, one in [("paced", row["paced"]), *(("saturated", s) for s in row["saturated"])]:
            verdict = "-"
            if one is middle:
                verdict = f"median, {_verdict(one['per_s'] >= SUBMITS_PER_S)}"
            lines.append(
                f"| {DATABASES[name]} | {what} | {one['per_s']:.0f} | {one['p50_ms']:.1f} |"
                f" {one['p95_ms']:.1f} | {one['errors']} | {_cpu(one['cpu_ms'])} | {verdict} |"
            )
    lines.append("")
    for name, row in rows.items():
        whole = "all of them, once," if row["is_whole"] else "NOT all of them"
        lines.append(
            f"{DATABASES[name]}: {row['clients']} clients, {row['jobs']} jobs accepted, {whole}"
            f" with their rows of the audit log in the database afterwards. {_conditions(row)}"
        )
    lines += ["", "CPU ms of the API's process for each saturated submit, by part, from a run of"
              " its own that counts them:", "",
              f"| part | {' | '.join(DATABASES[name] for name in rows)} |",
              f"|---|{'---|' * len(rows)}"]  # fmt: skip
    order: Row = {}
    for row in rows.values():
        for part, spent in row["parts"]["parts_ms"].items():
            order[part] = max(order.get(part, 0.0), spent)
    for part in sorted(order, key=lambda name: -order[name]):
        cells = (row["parts"]["parts_ms"].get(part) for row in rows.values())
        shown = " | ".join("-" if cell is None else f"{cell:.3f}" for cell in cells)
        lines.append(f"| {part} | {shown} |")
    totals = " | ".join(f"{row['parts']['total_ms']:.2f}" for row in rows.values())
    return [*lines, f"| all, with the counting | {totals} |"]


def streams_lines(rows: dict[str, Row]) -> list[str]:
    """The section on streams, uploads and memory."""
    lines = [
        "## Streams, uploads, memory", "",
        "Each follower submits a job, reads its event stream to the end, asks for the job and its"
        " report, and goes on to the next. The jobs' processes do nothing but report stages: the"
        " API sees the same of them. Flat: the last figure is at most 5 % above the first.", "",
        "| database | streams at once | uploads at once | events | errors | jobs | RSS MB |"
        " PSS MB | streams then |",
        "|---|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for name, row in rows.items():
        lines += [
            f"| {DATABASES[name]} | {row['streams']} | {row['uploaders']} of {row['mib']} MiB |"
            f" {row['events']} | {row['errors']} | {mark['jobs']} | {mark['rss_mb']:.1f} |"
            f" {mark['pss_mb']:.1f} | {mark['streams']} |"
            for mark in row["memory"]
        ]
    lines.append("")
    for name, row in rows.items():
        lines.append(
            f"{DATABASES[name]}: {row['slope_mb_per_1000']:+.2f} MB of RSS for each 1000 jobs"
            f" (least squares): {'flat' if is_flat(row) else 'NOT flat'}; no error:"
            f" {_verdict(not row['errors'])}. {row['jobs']} jobs by {row['workers']} workers in"
            f" {row['seconds']:.0f} s; the API used {row['api_cpu_s']:.1f} CPU s."
            f" {_conditions(row)}"
        )
    return lines


def work_lines(rows: dict[str, Row]) -> list[str]:
    """The sections on workers: measured ones, and many."""
    lines = [
        "## Warm jobs and sweeps", "",
        "Small models whose every unit is in the cache, the shortest jobs there are; PostgreSQL and"
        f" Redis. Wanted: API, database and broker use <= {SHARE_AROUND:.0%} of all CPU seconds;"
        f" two workers do >= {TWO_WORKERS:g} times what one does, on the same cores as all else.",
        "",
        "| workers | what | jobs | a second | CPU s: workers | API | database | broker | share | |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for row in rows.values():
        for what in ("jobs", "sweeps"):
            one, used = row[what], row[what]["cpu_s"]
            lines.append(
                f"| {row['workers']} | {what} | {one['jobs']} | {one['per_s']:.2f} |"
                f" {used['workers']:.1f} | {used['api']:.2f} | {used['database']:.2f} |"
                f" {used['broker']:.2f} | {one['share_around']:.1%} |"
                f" {_verdict(one['share_around'] <= SHARE_AROUND)} |"
            )
    lines.append("")
    for what in ("jobs", "sweeps"):
        ratio = rows["2"][what]["per_s"] / rows["1"][what]["per_s"]
        lines.append(
            f"From one worker to two, {what}: {ratio:.2f} times ({_verdict(ratio >= TWO_WORKERS)})."
        )
    lines += [_conditions(row) for row in rows.values()]
    return [*lines, "", *_many(rows)]


def _many(rows: dict[str, Row]) -> list[str]:
    one = rows["1"]
    costs = costs_of(one, one["cores"])
    idle = one["idle"]
    lines = [
        "## Up to 64 workers, simulated", "",
        "`benchmarks/load/queue_model.py` plays claim, work, heartbeat, reconciler and database"
        " event by event with what one worker was measured to cost:", "",
        f"- a job: {1e3 * costs.worker_cpu_s:.0f} ms of CPU time of the worker and its processes,"
        f" {1e3 * costs.database_cpu_s:.1f} of the database in {costs.transactions} transactions,"
        f" {1e3 * costs.api_cpu_s:.1f} of the API, {1e3 * costs.broker_cpu_s:.2f} of the broker;"
        f" {costs.cycle_s:.2f} s from one claim to the next;",
        f"- a transaction that writes: {1e3 * costs.commit_s:.1f} ms; a reconciler's round:"
        f" {1e3 * costs.reconcile_cpu_s:.1f} ms of the database's CPU time;",
        f"- nothing to do, one worker: {_per_s(idle)} ms of CPU time a second, which is none of a"
        " job's;",
        f"- somebody waits for a job (`Client.wait`): {1e3 * costs.watch:.1f} ms a second, however"
        " many do; the request that is held is a job's.", "",
        "Held against what was measured, with workers on the same cores as all else (one worker is"
        " where its figures come from, so two are the test):", "",
        "| workers | measured a second | predicted | off by |",
        "|---|---|---|---|",
    ]  # fmt: skip
    for count in (1, 2):
        seen = rows[str(count)]["jobs"]["per_s"]
        told = forecast(costs, count, shared=True).per_s
        lines.append(f"| {count} | {seen:.2f} | {told:.2f} | {told / seen - 1:+.0%} |")
    found = efficiency(costs, MANY)
    lines += [
        "", "Every worker with a core of its own, which waits for nothing but the database, API,"
        f" database and broker on {costs.cores} cores:", "",
        "| workers | jobs a second | efficiency | the shared cores are used |  |",
        "|---|---|---|---|---|",
    ]  # fmt: skip
    for told_of, part in found:
        lines.append(
            f"| {told_of.workers} | {told_of.per_s:.1f} | {part:.2f} | {told_of.around_load:.0%} |"
            f" {_verdict(part >= EFFICIENCY)} |"
        )
    at = bend(costs)
    around = ", ".join(
        f"{name} {1e3 * spent:.1f}"
        for name, spent in sorted(
            (("database", costs.database_cpu_s), ("API", costs.api_cpu_s),
             ("broker", costs.broker_cpu_s)), key=lambda pair: -pair[1],
        )
    )  # fmt: skip
    return [
        *lines, "",
        f"It bends where API, database and broker have no time left on their {costs.cores} cores:"
        f" at {at:.0f} workers with jobs as short as these ({around} ms of CPU time for each job)."
        " Jobs that take ten times as long bend ten times as late, nearly.",
    ]  # fmt: skip


def _per_s(idle: Row) -> str:
    return ", ".join(
        f"{kind} {1e3 * used / idle['seconds']:.1f}" for kind, used in idle["cpu_s"].items()
    )


def help_lines(rows: dict[str, Row]) -> list[str]:
    """The section on a job that an idle worker helps."""
    off, on = rows["off"], rows["on"]
    same = off["digest"] == on["digest"]
    lines = [
        "## A long job, helped by an idle worker", "",
        f"A chain of {off['layers']} convolutions of different shapes, cold, alone on two workers"
        " of one slot each (decision 0098); PostgreSQL and Redis, on the same cores as both.", "",
        "| help | s in all | s to schedule | units it solved | units it found | CPU s of all |",
        "|---|---|---|---|---|---|",
    ]  # fmt: skip
    for name, row in rows.items():
        lines.append(
            f"| {name} | {row['seconds']:.1f} | {row['schedule_s']:.1f} | {row['solved']} |"
            f" {row['found']} | {row['cpu_s']:.1f} |"
        )
    lines += [
        "", f"With help scheduling takes {on['schedule_s'] / off['schedule_s']:.2f} of the time for"
        f" {on['cpu_s'] / off['cpu_s']:.2f} times the CPU seconds; the bundles are"
        f" {'the same' if same else 'NOT the same'}.",
    ]  # fmt: skip
    return lines + [_conditions(row) for row in rows.values()]


SECTIONS = {
    "reads": reads_lines, "submits": submits_lines, "streams": streams_lines, "work": work_lines,
    "help": help_lines,
}  # fmt: skip


def page(ledger: Row) -> str:
    """All sections that were measured."""
    lines = [_HEAD]
    for name, make in SECTIONS.items():
        if name in ledger:
            lines += [*make(ledger[name]), ""]
    return "\n".join(lines).rstrip() + "\n"


def missed(text: str) -> bool:
    """Whether something on the page is not as wanted."""
    return "MISSED" in text or "NOT " in text


def processor() -> str:
    """The processor's name as the kernel has it."""
    with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        names = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    return names[0] if names else os.uname().machine
