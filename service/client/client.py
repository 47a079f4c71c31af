"""The client: one method for each thing the service can be asked."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self, cast

import httpx

from service.client.downloads import download
from service.client.errors import Json, ServerUnreachable, WaitTimeout
from service.client.events import Event, parse_events
from service.client.settings import key_of_environment
from service.client.transport import Transport, document
from service.client.uploads import (
    RESUMABLE_FROM_BYTES,
    Progress,
    upload_arrays,
    upload_resumable,
    upload_single,
)

TERMINAL_STATES = frozenset({"succeeded", "failed", "canceled", "timed_out", "expired"})
LONG_POLL_S = 30
"""How long one waiting request asks the server to hold it."""
ANSWER_S = 30.0
"""How long a server may take to answer beyond the time for which it was asked to hold."""
PATIENCE_S = 600.0
"""How long a server that answered before may be away while a job is waited for."""
RETRY_S = 2.0
"""Pause before it is asked again; each asking has retries of its own."""

RESUME_S = 0.5
"""Pause before a broken stream is asked for again."""
SWEEP_PAUSE_S = 0.5
"""Between two looks at a sweep."""

Document = dict[str, Json]


class Client:
    """Talks to one Tilewright server.

    Example:
        with Client("http://127.0.0.1:8080") as client:
            model = client.upload_model(Path("resnet50.onnx"))
            job = client.submit({"model": model["id"], "hardware": {"preset": "a100"}})
            client.wait(str(job["id"]))
    """

    def __init__(
        self, base_url: str, *, timeout_s: float = 60.0, http: httpx.Client | None = None,
        key: str | None = None,
    ) -> None:  # fmt: skip
        """`key`: an API key, for servers that ask for one; by default that of the environment.

        `http`: connections of one's own, which bring their own authorization.
        """
        if key is None and http is None:
            key = key_of_environment()
        self.transport = Transport(base_url, timeout_s=timeout_s, client=http, key=key)

    @property
    def base_url(self) -> str:
        return self.transport.base_url

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self.transport.close()

    # --- any resource ---------------------------------------------------------------------------

    def get(self, path: str, params: Mapping[str, str | int] | None = None) -> Document:
        """GET a JSON object."""
        return document(self.transport.request("GET", path, params=params))

    def post(self, path: str, body: Json = None, *, key: str | None = None) -> Document:
        """POST a JSON body.  A fresh Idempotency-Key makes the retries of this call safe."""
        headers = {"Idempotency-Key": key or uuid.uuid4().hex}
        return document(self.transport.request("POST", path, json=body, headers=headers))

    def put(self, path: str, body: Json) -> Document:
        """PUT a JSON body, which is there afterwards however often it was sent."""
        return document(self.transport.request("PUT", path, json=body))

    def delete(self, path: str) -> None:
        """DELETE a resource."""
        self.transport.request("DELETE", path)

    def raw(self, path: str) -> bytes:
        """GET a body that fits into memory."""
        return self.transport.request("GET", path).content

    def download(self, path: str, target: Path) -> str:
        """GET a file to `target`, digest checked; gives the sha256."""
        return download(self.transport, path, target)

    def pages(self, path: str, params: Mapping[str, str | int]) -> Iterator[Document]:
        """Go through the items of a list with cursors."""
        query = dict(params)
        while True:
            page = self.get(path, query)
            yield from cast("list[Document]", page.get("items") or [])
            cursor = page.get("next_cursor")
            if not isinstance(cursor, str):
                return
            query["cursor"] = cursor

    # --- models and hardware --------------------------------------------------------------------

    def upload_model(
        self, path: Path, *, name: str | None = None, progress: Progress | None = None
    ) -> Document:
        """Upload an .onnx file or a .zip bundle; large files go in resumable chunks."""
        send = upload_resumable if path.stat().st_size >= RESUMABLE_FROM_BYTES else upload_single
        return send(self.transport, path, name=name or path.stem, progress=progress)

    def upload_arrays(self, path: Path) -> Document:
        """Upload an .npz for calibration or as inputs; a job names it by its `sha256`."""
        return upload_arrays(self.transport, path, name=path.stem)

    def models(self) -> Iterator[Document]:
        """Go through all models, newest first."""
        return self.pages("/v1/models", {})

    def create_hardware(self, spec: Mapping[str, Json]) -> Document:
        """Register a hardware spec document."""
        return self.post("/v1/hardware", dict(spec))

    # --- jobs -----------------------------------------------------------------------------------

    def submit(self, request: Mapping[str, Json], *, key: str | None = None) -> Document:
        """Submit a job: `model`, `hardware`, `options`, `labels`, `name`, `timeout_s`."""
        return self.post("/v1/jobs", dict(request), key=key)

    def job(self, job_id: str) -> Document:
        """Get one job."""
        return self.get(f"/v1/jobs/{job_id}")

    def jobs(self, **filters: str | int) -> Iterator[Document]:
        """Go through jobs, newest first; filters: state, label, model, hardware, strategy, since,
        until, limit."""
        return self.pages("/v1/jobs", filters)

    def cancel(self, job_id: str) -> Document:
        """Ask for cancellation."""
        return self.post(f"/v1/jobs/{job_id}/cancel")

    def clone(self, job_id: str) -> Document:
        """Submit the same job again."""
        return self.post(f"/v1/jobs/{job_id}/clone")

    def events(self, job_id: str, last_event_id: str = "") -> Iterator[Event]:
        """Follow a job's events until it ends; a broken stream is resumed where it stopped.

        A server that answered before may be away for PATIENCE_S: the job outlives its restart.

        Raises:
            ServerUnreachable: it never answered, or not again in time.
        """
        return self._events(f"/v1/jobs/{job_id}", last_event_id)

    def sweep_events(self, sweep_id: str, last_event_id: str = "") -> Iterator[Event]:
        """Follow a sweep until it ends: `item` for each that changed, `progress`; as patient as
        `events`.

        Raises:
            ServerUnreachable: it never answered, or not again in time.
        """
        return self._events(f"/v1/sweeps/{sweep_id}", last_event_id)

    def _events(self, path: str, last_event_id: str) -> Iterator[Event]:
        answered: float | None = None
        while True:
            headers = {"Accept": "text/event-stream"}
            if last_event_id:
                headers["Last-Event-ID"] = last_event_id
            try:
                with self.transport.stream(f"{path}/events", headers=headers) as response:
                    answered = time.monotonic()
                    for event in parse_events(response.iter_lines()):
                        answered = time.monotonic()
                        if event.type == "end":
                            return
                        last_event_id = event.id or last_event_id
                        yield event
                if self.get(path)["state"] in TERMINAL_STATES:
                    return
            except ServerUnreachable:
                if answered is None or time.monotonic() - answered > PATIENCE_S:
                    raise
            time.sleep(RESUME_S)

    def wait(
        self,
        job_id: str,
        *,
        timeout_s: float | None = None,
        on_update: Callable[[Document], None] | None = None,
    ) -> Document:
        """Wait until the job ends and give its last document.

        A server that answered before may be away for PATIENCE_S: the job outlives its restart.

        Raises:
            WaitTimeout: `timeout_s` passed first; the job goes on.
            ServerUnreachable: it never answered, or not again in time.
        """
        return self._ended(f"/v1/jobs/{job_id}", job_id, timeout_s, on_update, pause_s=0.1)

    def _ended(
        self, path: str, job_id: str, timeout_s: float | None,
        on_update: Callable[[Document], None] | None, *, pause_s: float,
    ) -> Document:  # fmt: skip
        """Ask for a document until its state is a last one, with a pause between askings."""
        started = time.monotonic()
        etag = ""
        answered: float | None = None
        job: Document = {"id": job_id, "state": "queued"}
        while True:
            left = LONG_POLL_S if timeout_s is None else timeout_s - (time.monotonic() - started)
            hold = max(0, min(LONG_POLL_S, int(left))) if on_update is None else 1
            headers = {"Prefer": f"wait={hold}"}
            if etag and on_update is not None:
                headers["If-None-Match"] = etag  # else the server holds the answer until the end
            try:
                response = self.transport.request(
                    "GET", path, headers=headers, timeout_s=hold + ANSWER_S
                )
            except ServerUnreachable:
                now = time.monotonic()
                if answered is None or now - answered > PATIENCE_S:
                    raise
                if timeout_s is not None and now - started >= timeout_s:
                    raise WaitTimeout(job_id, timeout_s, str(job["state"])) from None
                time.sleep(RETRY_S)
                continue
            answered = time.monotonic()
            if response.status_code != 304:
                etag = response.headers.get("ETag", "")
                job = document(response)
                if on_update is not None:
                    on_update(job)
                if job["state"] in TERMINAL_STATES:
                    return job
            if timeout_s is not None and time.monotonic() - started >= timeout_s:
                raise WaitTimeout(job_id, timeout_s, str(job["state"]))
            time.sleep(pause_s)

    # --- sweeps ---------------------------------------------------------------------------------

    def submit_sweep(self, request: Mapping[str, Json], *, key: str | None = None) -> Document:
        """Submit a sweep: `models`, `hardware`, `base`, `vary`, `explore`, `options`, `label`,
        `priority`, `wall_limit_s`."""
        return self.post("/v1/sweeps", dict(request), key=key)

    def sweep(self, sweep_id: str) -> Document:
        """Get one sweep: progress, the best items so far, failures."""
        return self.get(f"/v1/sweeps/{sweep_id}")

    def sweeps(self, **filters: str | int) -> Iterator[Document]:
        """Go through sweeps, newest first; filters: state, label, limit."""
        return self.pages("/v1/sweeps", filters)

    def cancel_sweep(self, sweep_id: str) -> Document:
        """Ask for cancellation; results that are there stay."""
        return self.post(f"/v1/sweeps/{sweep_id}/cancel")

    def resume_sweep(self, sweep_id: str) -> Document:
        """Let a sweep that ended go on with the items that have no result."""
        return self.post(f"/v1/sweeps/{sweep_id}/resume")

    def sweep_results(self, sweep_id: str) -> Document:
        """All items, with figures of those that have succeeded so far."""
        return self.get(f"/v1/sweeps/{sweep_id}/results")

    def sweep_csv(self, sweep_id: str) -> str:
        """The same as a table."""
        return self.raw(f"/v1/sweeps/{sweep_id}/results.csv").decode()

    def wait_sweep(
        self,
        sweep_id: str,
        *,
        timeout_s: float | None = None,
        on_update: Callable[[Document], None] | None = None,
    ) -> Document:
        """Wait until the sweep ends and give its last document; as patient as `wait`.

        Raises:
            WaitTimeout: `timeout_s` passed first; the sweep goes on.
            ServerUnreachable: it never answered, or not again in time.
        """
        path = f"/v1/sweeps/{sweep_id}"
        return self._ended(path, sweep_id, timeout_s, on_update, pause_s=SWEEP_PAUSE_S)

    def what_if(
        self, model: str, hardware: Json, field: str, *,
        options: Mapping[str, Json] | None = None, timeout_s: float | None = None,
    ) -> Document:  # fmt: skip
        """Compare a model on a machine with the same where one field has another value.

        Args:
            model: id or digest of an uploaded model.
            hardware: the machine, as a job names it.
            field: the field and its one value, as `vary` of a sweep has it:
                `/levels/GBUF/capacity_bytes=x2`.

        Returns:
            The comparison.  Its sides are items 0 and 1 of a sweep, which stays.

        Raises:
            ApiError: a refusal; where an item has no result, that of the comparison.
            WaitTimeout: `timeout_s` passed first; the sweep goes on.
        """
        request: Document = {"models": [model], "hardware": [hardware], "base": hardware,
                             "vary": [field], "options": dict(options or {})}  # fmt: skip
        made = str(self.submit_sweep(request)["id"])
        self.wait_sweep(made, timeout_s=timeout_s)
        return self.compare(f"{made}:0", f"{made}:1")

    # --- webhooks -------------------------------------------------------------------------------

    def create_webhook(
        self, url: str, *, name: str = "", events: Sequence[str] = ()
    ) -> Document:  # fmt: skip
        """Subscribe to the ends of jobs; `secret` of the answer is told once.  No events: all."""
        body: dict[str, Json] = {"url": url, "name": name, "events": list(events)}
        return self.post("/v1/webhooks", body)

    def webhooks(self) -> list[Document]:
        """All of the project, the oldest first."""
        return cast("list[Document]", self.get("/v1/webhooks")["items"])

    def webhook(self, webhook_id: str) -> Document:
        """Get one."""
        return self.get(f"/v1/webhooks/{webhook_id}")

    def delete_webhook(self, webhook_id: str) -> None:
        """Delete one with its deliveries."""
        self.delete(f"/v1/webhooks/{webhook_id}")

    def rotate_webhook(self, webhook_id: str) -> Document:
        """Give it a new secret, told once; for a day both sign."""
        return self.post(f"/v1/webhooks/{webhook_id}/rotate")

    def enable_webhook(self, webhook_id: str) -> Document:
        """Send to it again after the server gave it up."""
        return self.post(f"/v1/webhooks/{webhook_id}/enable")

    def ping_webhook(self, webhook_id: str) -> Document:
        """Send a test message, once: its delivery, which `delivery` looks at again."""
        return self.post(f"/v1/webhooks/{webhook_id}/ping")

    def deliveries(self, webhook_id: str, **filters: str | int) -> Iterator[Document]:
        """Go through what was sent to it, newest first; filters: state, limit."""
        return self.pages(f"/v1/webhooks/{webhook_id}/deliveries", filters)

    def delivery(self, webhook_id: str, delivery_id: str) -> Document:
        """Get one message with every attempt to deliver it."""
        return self.get(f"/v1/webhooks/{webhook_id}/deliveries/{delivery_id}")

    def replay_delivery(self, webhook_id: str, delivery_id: str) -> Document:
        """Send a message that has ended once more."""
        return self.post(f"/v1/webhooks/{webhook_id}/deliveries/{delivery_id}/replay")

    # --- results --------------------------------------------------------------------------------

    def compare(self, base: str, head: str) -> Document:
        """Compare two jobs: ids, labels for the youngest job that succeeded under each, or items of
        sweeps as SWEEP:NUMBER."""
        return self.get("/v1/compare", {"base": base, "head": head})

    def artifacts(self, job_id: str) -> list[Document]:
        """List what the job has produced so far."""
        page = self.get(f"/v1/jobs/{job_id}/artifacts")
        return cast("list[Document]", page["items"])

    def fetch_artifacts(self, job_id: str, target: Path) -> dict[str, Path]:
        """Download every artifact of a job into a folder: artifact name -> path."""
        fetched: dict[str, Path] = {}
        for artifact in self.artifacts(job_id):
            # The server's file name is never trusted with a path.
            path = target / Path(str(artifact["file_name"])).name
            self.download(f"/v1/artifacts/{artifact['sha256']}", path)
            fetched[str(artifact["name"])] = path
        return fetched
