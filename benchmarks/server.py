"""Real servers for the benchmarks of the service: own processes, ports and data directories."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

STOP_S = 30
_CLEAR_PEAK = "5"


@dataclass(frozen=True, slots=True)
class Server:
    """One running `tilewright serve`."""

    url: str
    pid: int
    data_dir: Path

    @property
    def address(self) -> tuple[str, int]:
        parts = urlsplit(self.url)
        assert parts.hostname is not None and parts.port is not None
        return parts.hostname, parts.port

    def memory_mb(self, field: str) -> float:
        """A line of the process's status: VmRSS (now) or VmHWM (peak), in MB of 1e6 bytes."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith(f"{field}:"):
                return int(line.split()[1]) * 1024 / 1e6
        raise KeyError(field)

    def cpu_s(self) -> float:
        """CPU time of the process so far, in seconds."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def forget_peak(self) -> None:
        """Start a new VmHWM at the present VmRSS."""
        Path(f"/proc/{self.pid}/clear_refs").write_text(_CLEAR_PEAK)


def environment_of(settings: Mapping[str, str]) -> dict[str, str]:
    """Variables of a process of the service: `settings` are TILEWRIGHT_ ones without their prefix.

    Others of the caller are left out, so that a benchmark measures the defaults.
    """
    environment = {k: v for k, v in os.environ.items() if not k.startswith("TILEWRIGHT_")}
    environment |= {f"TILEWRIGHT_{k}": v for k, v in settings.items()}
    environment["PYTHONPATH"] = str(Path(__file__).resolve().parent.parent)
    return environment


@contextmanager
def running(
    data_dir: Path,
    settings: Mapping[str, str] | None = None,
    *,
    words: Sequence[str] = (),
    entry: Sequence[str] = ("service.cli.main",),
) -> Iterator[Server]:
    """Start `tilewright serve` on loopback and stop it at the end of the block.

    `settings` are those of `environment_of`, `words` further ones of the command, `entry` the
    module that runs it.
    """
    environment = environment_of(settings or {})
    command = [sys.executable, "-m", *entry, "serve", "--port", "0",
               "--data-dir", str(data_dir), *words]  # fmt: skip
    data_dir.mkdir(parents=True, exist_ok=True)
    with (
        (data_dir / "server.log").open("wb") as log,
        subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=log, text=True
        ) as process,
    ):
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line:
                tail = (data_dir / "server.log").read_text()[-2000:]
                raise RuntimeError(f"the server did not start: {tail}")
            yield Server(line.strip(), process.pid, data_dir)
        finally:
            process.terminate()
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
