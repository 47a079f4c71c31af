"""Data directories of earlier releases are opened: nothing is lost, and nothing is misread.

`tests/releases/*.tar.xz` were made by `python -m benchmarks.release_data` at the commit in their
name.  Each is opened by a real server of this release.
"""

from __future__ import annotations

import json
import os
import sqlite3
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from service.cli.embedded import embedded_service
from service.client import Client
from service.store.stored_options import lift
from worker.compiler.errors import OptionError
from worker.compiler.options import CompileOptions
from worker.report.sections import page_blocks, stored_summaries, text_blocks

RELEASES = sorted((Path(__file__).parents[1] / "releases").glob("*.tar.xz"))
ENDED = {"succeeded", "failed", "canceled", "timed_out", "expired"}
TAKEN_UP = {"running": "succeeded", "canceling": "canceled"}
"""What becomes of a job that a killed process left in a state, where its options are still good."""


@dataclass(frozen=True)
class Release:
    """A server of this release on the data of another."""

    client: Client
    jobs: dict[str, dict[str, Any]]
    """As the old release left them, by label."""
    cached: frozenset[str]
    """Digests of the cache's entries before this release touched them."""


@pytest.fixture(scope="module", params=RELEASES, ids=lambda path: path.name.split(".")[0])
def release(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Release]:
    folder = tmp_path_factory.mktemp("release")
    with tarfile.open(request.param) as archive:
        safely: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        archive.extractall(folder, **safely)  # the filter is there from Python 3.11.4 on
    index = json.loads((folder / "index.json").read_text())
    with sqlite3.connect(folder / "data" / "tilewright.db") as database:
        digests = [row[0] for row in database.execute("SELECT digest FROM cache_entry")]
    with embedded_service(folder / "data") as url, Client(url) as client:
        yield Release(client, index["jobs"], frozenset(digests))


def _refusal(options: dict[str, Any]) -> OptionError | None:
    try:
        CompileOptions.from_json(lift(options))
    except OptionError as error:
        return error
    return None


def test_every_job_is_listed_and_shown(release: Release) -> None:
    assert len(RELEASES) >= 1
    listed = {str(job["id"]): job for job in release.client.jobs(limit=2)}
    for label, old in release.jobs.items():
        shown = release.client.job(old["id"])
        assert old["id"] in listed, label
        assert shown["label"] == listed[old["id"]]["label"]
        assert set(lift(old["options"])) <= set(shown["options"]), label
        if old["state"] in ENDED:
            assert shown["state"] == old["state"], label


def test_what_was_made_is_downloaded_and_whole(release: Release, tmp_path: Path) -> None:
    for label, old in release.jobs.items():
        if old["state"] != "succeeded":
            continue
        found = {a["name"]: a for a in release.client.artifacts(old["id"])}
        files = release.client.fetch_artifacts(old["id"], tmp_path / label)
        assert {"report", "bundle", "layers", "trace"} <= set(found), label
        for name, path in files.items():
            assert sha256(path.read_bytes()).hexdigest() == found[name]["sha256"], (label, name)
        for route in ("report", "run", "layers", "placement", "cache", "logs"):
            assert release.client.raw(f"/v1/jobs/{old['id']}/{route}"), (label, route)
        run = release.client.get(f"/v1/jobs/{old['id']}/run")
        rows = release.client.get(f"/v1/jobs/{old['id']}/layers")["items"]
        kernels = {row["signature"]: row["cache"] for row in rows if row["signature"]}
        assert run["cache"]["units"] == kernels, label
        assert set(kernels.values()) <= {"hit", "miss"}, label
        assert run["timings"]["schedule"] > 0, label


def test_what_strategies_said_is_shown(release: Release, tmp_path: Path) -> None:
    """Summaries that an older report has elsewhere, read as what the strategy registers now."""
    folder = tmp_path / "report"
    release.client.fetch_artifacts(release.jobs["graphturbo"]["id"], folder)
    (stored,) = stored_summaries(json.loads((folder / "report.json").read_bytes()))
    totals, units = text_blocks(stored) or ()
    assert totals.values["units"] == len(units.rows) > 0
    assert len(page_blocks(stored) or ()) >= 2


def test_a_job_that_waited_runs_or_ends_with_the_option_named(release: Release) -> None:
    """Whatever state the killed process left, each job ends, and none is an internal error."""
    for label, old in release.jobs.items():
        if old["state"] in ENDED:
            continue
        job = release.client.wait(old["id"])
        refusal = _refusal(old["options"])
        if refusal is None or old["state"] == "canceling":
            assert job["state"] == TAKEN_UP.get(old["state"], "succeeded"), (label, job["error"])
        else:
            assert (job["state"], job["error"]["code"]) == ("failed", refusal.code), label
            assert job["error"]["fault"] == "user"
            pointers = {finding["pointer"] for finding in job["error"]["errors"]}
            assert pointers == {finding.pointer for finding in refusal.findings}, label


def test_a_job_is_cloned_with_its_old_options(release: Release) -> None:
    for label in ("variant", "calibrated"):
        old = release.jobs[label]
        clone = release.client.clone(old["id"])
        ended = release.client.wait(str(clone["id"]))
        assert ended["state"] == "succeeded", (label, ended["error"])
        assert ended["cloned_from"] == old["id"]
        assert ended["options"] == CompileOptions.from_json(lift(old["options"])).to_json()


def test_old_entries_of_the_cache_are_pruned(release: Release) -> None:
    """After the jobs above: what they used of the old entries bears the very key of today."""
    for job in release.jobs.values():
        release.client.wait(job["id"])  # what runs on beside this test fills the cache again
    for digest in sorted(release.cached):
        assert release.client.get(f"/v1/cache/entries/{digest}")["fields"], digest
    dropped = int(str(release.client.post("/v1/cache/prune", {"unused_for_s": 0})["dropped"]))
    assert dropped >= len(release.cached) > 0
    assert release.client.get("/v1/cache/stats")["entries"] == 0
    ended = release.client.wait(str(release.client.clone(release.jobs["default"]["id"])["id"]))
    assert ended["state"] == "succeeded"
    assert ended["progress"]["units_solved"] > 0


@pytest.fixture(autouse=True)
def _no_other_data(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("TILEWRIGHT_")]:
        monkeypatch.delenv(name)
