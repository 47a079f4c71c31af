"""Prometheus metrics from the database's totals.

Counters of one process would be wrong as soon as there are two; the tables know everything.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeHistogramMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from service.jobs import query
from service.store.records import Durations
from service.store.repos.recent import MOST_JOBS
from service.store.session import Database


class _Totals:
    """One scrape: reads the totals when the registry asks."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def collect(self) -> Iterable[Metric]:
        stats = query.queue_stats(self._database)
        jobs = GaugeMetricFamily("tilewright_jobs", "Jobs by state.", labels=["state"])
        for state, count in stats.jobs_by_state:
            jobs.add_metric([state], count)
        yield jobs
        items = GaugeMetricFamily("tilewright_work_items", "Work items by state.", labels=["state"])
        for state, count in stats.items_by_state:
            items.add_metric([state], count)
        yield items
        attempts = CounterMetricFamily(
            "tilewright_attempts", "Attempts at work items by outcome.", labels=["outcome"]
        )
        for outcome, count in stats.attempts_by_outcome:
            attempts.add_metric([outcome], count)
        yield attempts
        yield GaugeMetricFamily(
            "tilewright_queue_oldest_seconds",
            "Age of the longest-waiting ready item.",
            value=stats.oldest_ready_s,
        )
        yield GaugeMetricFamily(
            "tilewright_workers_alive", "Workers that beat recently.", value=stats.workers_alive
        )
        yield from self._durations()
        yield from self._cache()

    def _durations(self) -> Iterable[Metric]:
        waits = HistogramMetricFamily(
            "tilewright_job_wait_seconds", "From a job's submit to its first worker."
        )
        runs = HistogramMetricFamily(
            "tilewright_job_run_seconds", "From a job's first worker to its end, by last state.",
            labels=["state"],
        )  # fmt: skip
        wait, by_state = query.job_durations(self._database)
        waits.add_metric([], _buckets(wait), wait.total_s)
        for state, run in by_state:
            runs.add_metric([state], _buckets(run), run.total_s)
        yield from (waits, runs)
        # Of a window, so that a scrape stays cheap: not to be given to `rate`.
        stages = GaugeHistogramMetricFamily(
            "tilewright_stage_seconds",
            f"Time by stage, of the newest {MOST_JOBS} jobs that ended within the hour.",
            labels=["stage"],
        )
        for stage, took in query.recent_stages(self._database):
            stages.add_metric([stage], _buckets(took), took.total_s)
        yield stages

    def _cache(self) -> Iterable[Metric]:
        entries = GaugeMetricFamily("tilewright_cache_entries", "Cache entries.", labels=["kind"])
        size = GaugeMetricFamily("tilewright_cache_bytes", "Cached bytes.", labels=["kind"])
        hits = CounterMetricFamily("tilewright_cache_hits", "Cache hits.", labels=["kind"])
        for row in query.cache_stats(self._database):
            entries.add_metric([row.kind], row.entries)
            size.add_metric([row.kind], row.size_bytes)
            hits.add_metric([row.kind], row.hits)
        yield from (entries, size, hits)
        cached, total = query.recent_units(self._database)
        ratio = GaugeMetricFamily(
            "tilewright_cache_ratio",
            "Share of units that the cache had, of the jobs of tilewright_stage_seconds.",
        )
        if total:
            ratio.add_metric([], cached / total)
        yield ratio


def _buckets(found: Durations) -> list[tuple[str, float]]:
    return [("+Inf" if limit == inf else str(limit), count) for limit, count in found.counts]


def render_metrics(database: Database) -> tuple[bytes, str]:
    """Give the exposition text and its media type."""
    registry = CollectorRegistry()
    registry.register(_Totals(database))
    return generate_latest(registry), CONTENT_TYPE_LATEST
