"""An embedded service in a process of its own, for as long as a block runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Empty, SimpleQueue

from service.cli.failures import Failure

START_LIMIT_S = 60.0
STOP_LIMIT_S = 15.0
_TAIL_CHARS = 2000


@contextmanager
def embedded_service(data_dir: Path, *, workers: int = 2) -> Iterator[str]:
    """Start `tilewright serve` on a free loopback port and give its URL; stop it afterwards.

    Raises:
        Failure: it did not start; the end of its log is in the message.
    """
    data_dir.mkdir(parents=True, exist_ok=True)
    log_path = data_dir / "embedded.log"
    command = [sys.executable, "-P", "-m", "service.cli.main", "serve", "--json"]
    command += ["--host", "127.0.0.1", "--port", "0", "--data-dir", str(data_dir)]
    command += ["--workers", str(workers)]
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
            # Ctrl-C is for us; we stop the server in order.
            start_new_session=True,
        )
        try:
            yield _url(process, log_path)
        finally:
            _stop(process)


def _url(process: subprocess.Popen[bytes], log_path: Path) -> str:
    """Read the announcement; a thread reads, so that a silent server cannot block us for ever."""
    answers: SimpleQueue[bytes] = SimpleQueue()
    stdout = process.stdout
    assert stdout is not None

    def read() -> None:
        text = b""
        for line in stdout:
            text += line
            if line.rstrip() == b"}":
                break
        answers.put(text)

    threading.Thread(target=read, daemon=True).start()
    try:
        text = answers.get(timeout=START_LIMIT_S)
        return str(json.loads(text)["url"])
    except (Empty, ValueError, KeyError) as error:
        tail = log_path.read_text(encoding="utf-8", errors="replace")[-_TAIL_CHARS:].strip()
        raise Failure(
            "TW-SVC-005",
            f"the embedded service did not start: {tail or 'it said nothing'}",
            remedy="Look at the message; another service may be using the data directory.",
        ) from error


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(timeout=STOP_LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdout is not None:
        process.stdout.close()
