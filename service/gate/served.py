"""Compiles of the gate on a server, and baselines among its jobs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from service.client import Client
from service.client.errors import ApiError
from service.gate.git import NoBaseline
from service.gate.runs import ARTIFACTS, Outcome, documents_in, refusal
from service.orders.order import Order

_MOST_LABEL = 100
"""Characters of a job's label."""


@dataclass(frozen=True, slots=True)
class Served:
    """A server."""

    client: Client

    def outcome(self, order: Order) -> Outcome:
        """Submit the order, wait, and fetch what is compared."""
        from service.orders.served import submit
        from worker.compiler.error_catalog import Fault

        try:
            job = submit(self.client, order)
        except ApiError as error:
            if error.problem.get("fault") != Fault.USER or error.code.startswith("TW-SVC-"):
                raise
            return Outcome(problem=error.problem)
        return self._ended(self.client.wait(str(job["id"])))

    def latest(self, label: str) -> Outcome:
        """The newest job of a label that succeeded.

        Raises:
            NoBaseline: there is none.
        """
        for job in self.client.jobs(label=label, state="succeeded", limit=1):
            return self._ended(job)
        raise NoBaseline(f"the server has no succeeded job with the label {label}")

    def again(self, label: str) -> Outcome:
        """The same job, compiled by the server's present toolchain.

        Raises:
            NoBaseline: there is no such job, or it fails now.
        """
        for job in self.client.jobs(label=label, state="succeeded", limit=1):
            clone = self.client.clone(str(job["id"]))
            outcome = self._ended(self.client.wait(str(clone["id"])))
            if outcome.problem is not None:
                raise NoBaseline(f"its job fails now: {outcome.problem.get('detail')}")
            return outcome
        raise NoBaseline(f"the server has no succeeded job with the label {label}")

    def _ended(self, job: Mapping[str, Any]) -> Outcome:
        """
        Raises:
            CompilerError: the job was canceled, ran out of time, or the service is at fault.
        """
        from worker.compiler.errors import CompilerError

        if job["state"] != "succeeded":
            if isinstance(job.get("error"), dict):
                return refusal(job["error"])
            raise CompilerError("TW-SVC-007", f"the job {job['id']} ended as {job['state']}")
        with TemporaryDirectory(prefix="tilewright-gate-") as folder:
            files: dict[str, str] = {}
            for artifact in self.client.artifacts(str(job["id"])):
                if artifact["name"] in ARTIFACTS:
                    # The server's file name is never trusted with a path.
                    target = Path(folder) / f"{len(files)}"
                    self.client.download(f"/v1/artifacts/{artifact['sha256']}", target)
                    files[str(artifact["name"])] = str(target)
            return Outcome(documents=documents_in(files))


def label_of(label: str, model: str, hardware: str) -> str:
    """Label of a pair's job: a server finds jobs by their whole label."""
    whole = f"{label}/{model}/{hardware}"
    if len(whole) <= _MOST_LABEL:
        return whole
    return f"{label[:30]}/{sha256(whole.encode()).hexdigest()}"


def commit_label(commit: str) -> str:
    """Label of jobs of a commit."""
    return f"gate:{commit[:12]}"
