"""Runs of a server's jobs, read through its API: of a bundle only the few members that are asked
for are sent."""

from __future__ import annotations

from typing import BinaryIO

from service.client.client import Client, Document
from service.client.errors import ApiError
from service.compare.jobs import SUCCEEDED, is_item, refuse_state, unknown_job
from service.compare.reading import ranged, read_run
from service.compare.run import Run

_NOT_FOUND = "TW-SVC-001"


def read_job(client: Client, text: str) -> Run:
    """Read a job by its id, or the youngest that succeeded under a label.

    Raises:
        InputError: as `find_job` and `read_run`.
        ApiError: whatever else the server says.
    """
    job_id = str(find_job(client, text)["id"])
    stored = {str(row["name"]): row for row in client.artifacts(job_id)}

    def artifact(name: str) -> bytes | None:
        row = stored.get(name)
        return None if row is None else client.raw(f"/v1/artifacts/{row['sha256']}")

    def bundle() -> BinaryIO | None:
        row = stored.get("bundle")
        if row is None:
            return None
        path = f"/v1/artifacts/{row['sha256']}"

        def fetch(start: int, length: int) -> bytes:
            headers = {"Range": f"bytes={start}-{start + length - 1}"}
            return client.transport.request("GET", path, headers=headers).content

        return ranged(int(str(row["size_bytes"])), fetch)

    return read_run(text, artifact, bundle)


def read_trace(client: Client, text: str) -> bytes:
    """The trace of such a job.

    Raises:
        InputError, ApiError: as `read_job`.
    """
    return client.raw(f"/v1/jobs/{find_job(client, text)['id']}/trace")


def _item_job(client: Client, text: str) -> str:
    """Id of the job of an item of a sweep; the text itself, which is none, where it has no job."""
    sweep_id, _, number = text.partition(":")
    rows = client.sweep_results(sweep_id)["items"]
    assert isinstance(rows, list)
    jobs = {str(row["number"]): row["job"] for row in rows if isinstance(row, dict)}
    return str(jobs.get(str(int(number))) or text)


def find_job(client: Client, text: str) -> Document:
    """A job that succeeded, by its id or as SWEEP:NUMBER, or the youngest under a label; an id
    wins.

    Raises:
        InputError: TW-CMP-002, the job did not succeed; TW-SVC-001, there is no such job.
        ApiError: whatever else the server says.
    """
    try:
        job = client.job(_item_job(client, text) if is_item(text) else text)
    except ApiError as refusal:
        if refusal.code != _NOT_FOUND:
            raise
        labelled = next(client.jobs(label=text, state=SUCCEEDED, limit=1), None)
        if labelled is None:
            raise unknown_job(text) from refusal
        return labelled
    refuse_state(text, str(job["state"]))
    return job
