"""PostgreSQL's own programs, and how they are told where a database is."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from sqlalchemy.engine import make_url

from service.errors import Unavailable

_DEBIAN = Path("/usr/lib/postgresql")


def find_program(name: str) -> str | None:
    """A program on the path, or where Debian keeps the newest server's."""
    found = shutil.which(name)
    if found:
        return found
    kept = sorted(_DEBIAN.glob(f"*/bin/{name}"), key=lambda path: int(path.parts[-3]))
    return str(kept[-1]) if kept else None


def run_program(name: str, *words: str, url: str) -> None:
    """Run one on a database; the password of its URL travels in the environment.

    Raises:
        Unavailable: it is not installed, or failed; with its last line.
    """
    program = find_program(name)
    if program is None:
        raise Unavailable(
            f"{name} is not installed", remedy="Install PostgreSQL's client, as new as the server."
        )
    place = make_url(url).set(drivername="postgresql")
    environment = {**os.environ, "PGPASSWORD": str(place.password or "")}
    bare = place.set(password=None).render_as_string(hide_password=False)
    ran = subprocess.run(
        [program, *words, f"--dbname={bare}"],
        env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if ran.returncode != 0:
        last = (ran.stderr.strip().splitlines() or [f"exit status {ran.returncode}"])[-1]
        raise Unavailable(f"{name} failed: {last[:500]}")
