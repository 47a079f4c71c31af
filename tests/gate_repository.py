"""A git repository in a temporary folder, as a team's would be."""

from __future__ import annotations

import subprocess
from pathlib import Path

IDENTITY = ("-c", "user.name=Ada", "-c", "user.email=ada@example.org", "-c", "commit.gpgsign=false")


class TeamRepository:
    """Files are written, committed and branched; nothing outside the folder is touched."""

    def __init__(self, root: Path, branch: str = "main") -> None:
        self.root = root
        root.mkdir(parents=True, exist_ok=True)
        self.git("init", "-q", "-b", branch)

    def git(self, *words: str) -> str:
        """What git prints."""
        done = subprocess.run(
            ["git", *IDENTITY, *words], cwd=self.root, check=True, capture_output=True, text=True
        )
        return done.stdout.strip()

    def write(self, files: dict[str, str]) -> None:
        """Write texts."""
        for name, text in files.items():
            path = self.root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    def commit(self, files: dict[str, str] | None = None, message: str = "change") -> str:
        """Write texts and commit everything; gives the commit."""
        self.write(files or {})
        self.git("add", "-A")
        self.git("commit", "-q", "--allow-empty", "-m", message)
        return self.git("rev-parse", "HEAD")
