"""A real worker process for tests: `python service_worker_process.py JSON`.

JSON: {"settings": {...}, "pause": step or null, "marker": path}.  At the step named by `pause` it
writes the marker and sleeps, so that the test can kill it there.
"""

from __future__ import annotations

import faulthandler
import json
import signal
import sys
import threading
import time
from pathlib import Path

from service.bootstrap import open_services
from service.jobs.claim import Claim
from service.log import configure
from service.settings import Settings
from worker.runner.main import EmbeddedWorker, run_worker
from worker.runner.tasks import Step


def main() -> int:
    """Run until killed or terminated."""
    request = json.loads(sys.argv[1])
    settings = Settings(**request["settings"])
    faulthandler.register(signal.SIGUSR2, all_threads=True)
    configure("INFO", "console")

    def on_step(step: Step, held: Claim) -> None:
        if step == request["pause"]:
            Path(request["marker"]).write_text(held.item_id)
            time.sleep(600)

    if not settings.embedded:
        return run_worker(settings, on_step=on_step)
    done = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: done.set())
    services = open_services(settings)
    with EmbeddedWorker(services, on_step=on_step):
        Path(request["marker"]).with_suffix(".up").touch()
        done.wait()
    services.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
