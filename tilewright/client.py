"""`Client`: the same compile on a server."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Unpack

from service.client.client import Client as HttpClient
from service.client.client import Document
from service.client.errors import ApiError
from tilewright.compiling import finished, results_folder
from tilewright.options import Hardware, Model, Options, PathLike, order_of, settings_for
from tilewright.result import Result
from worker.sandbox.problems import error_of

_SERVICE_FAULTS = ("TW-SVC-", "TW-NET-")
"""Codes that are about the service; all others are about what was ordered."""


class Client(HttpClient):
    """Talks to one Tilewright server; as a context manager it closes its connections.

    Beside `compile` it has a method for whatever else a server can be asked: models, jobs, events,
    artifacts; these give the API's documents as dictionaries.

    Example:
        with tw.Client("http://127.0.0.1:8080") as client:
            result = client.compile("model.onnx", "a100", objective="energy")
    """

    def compile(
        self,
        model: Model,
        hardware: Hardware,
        *,
        output: PathLike | None = None,
        label: str | None = None,
        timeout_s: float | None = None,
        progress: Callable[[Document], None] | None = None,
        **options: Unpack[Options],
    ) -> Result:
        """Upload the model, have it compiled, and fetch the files.

        An interrupt leaves the job to the server: `jobs()` lists it, `result(id)` fetches it.

        Args:
            model, hardware, output, **options: as those of `tilewright.compile`.
            label: label of the job, to find it by.
            timeout_s: seconds to wait; the job goes on after them.
            progress: called with the job's document whenever it has changed.

        Raises:
            CompilerError: model, hardware or options are refused, or the job failed.
            ApiError: the server refuses for a reason of its own, or cannot be reached.
            WaitTimeout: `timeout_s` passed.
        """
        from service.orders.served import submit

        folder, temporary = results_folder(output)
        with TemporaryDirectory(prefix="tilewright-order-") as given:
            order = order_of(model, hardware, options, folder, Path(given), label)
            try:
                job_id = str(submit(self, order)["id"])
            except ApiError as refusal:
                if refusal.code.startswith(_SERVICE_FAULTS):
                    raise
                raise error_of(refusal.problem) from refusal
        job = self.wait(job_id, timeout_s=timeout_s, on_update=progress)
        self.fetch_artifacts(job_id, folder)
        return finished(job, folder, temporary, settings_for(None))

    def result(self, job_id: str, *, output: PathLike | None = None) -> Result:
        """Fetch the files of a job that has ended.

        Raises:
            CompilerError: the job failed; TW-SVC-007 or -008 where it was canceled or ran too long.
            ApiError: there is no such job, or the server cannot be reached.
        """
        folder, temporary = results_folder(output)
        job = self.wait(job_id)
        self.fetch_artifacts(job_id, folder)
        return finished(job, folder, temporary, settings_for(None))

    def __repr__(self) -> str:
        return f"<Client: {self.base_url}>"
