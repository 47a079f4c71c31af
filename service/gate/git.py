"""What the gate asks of git: where two branches parted, and files as they were at a commit.

Read only: nothing is checked out and no ref is moved.  What is not there raises `NoBaseline` with
the reason that users are told.
"""

from __future__ import annotations

import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from service.gate.tree import matches

_LIMIT_S = 120.0
"""One question to git; a fetch of a large file by a filter is the longest."""
REMOTE = "origin"


class NoBaseline(Exception):
    """Why there is nothing to compare with."""


@dataclass(frozen=True, slots=True)
class Repository:
    """A git repository, and the folder of it that a gate file is in."""

    top: Path
    prefix: str
    """The folder, relative to `top`, with a `/` at its end; empty: `top` itself."""

    def ask(self, *words: str) -> bytes:
        """What git prints.

        Raises:
            NoBaseline: it refuses, with what it says.
        """
        return _git(self.top, *words)

    def commit(self, revision: str) -> str | None:
        """The commit of a branch, tag or hash; None: there is none."""
        try:
            said = self.ask("rev-parse", "--verify", "--quiet", "--end-of-options",
                            f"{revision}^{{commit}}")  # fmt: skip
        except NoBaseline:
            return None
        return said.decode().strip()

    def parted(self, branch: str) -> str:
        """The commit that HEAD and a branch have in common: of `origin`'s branch where it is known.

        Raises:
            NoBaseline: there is no such branch, no commit, or not enough history.
        """
        tip = self.commit(f"refs/remotes/{REMOTE}/{branch}") or self.commit(branch)
        if tip is None:
            raise NoBaseline(f"there is no branch {branch}: fetch it, or mend baseline.branch")
        try:
            return self.ask("merge-base", "HEAD", tip).decode().strip()
        except NoBaseline as error:
            if self.ask("rev-parse", "--is-shallow-repository").strip() == b"true":
                raise NoBaseline(
                    f"the clone is shallow and does not reach where HEAD and {branch} parted:"
                    " fetch the whole history (fetch-depth: 0)"
                ) from error
            raise NoBaseline(f"HEAD and {branch} have no commit in common") from error

    def last_change(self, path: str, commit: str) -> str | None:
        """The last commit up to `commit` that changed a file of the gate's folder."""
        said = self.ask("log", "-1", "--format=%H", commit, "--", self.prefix + path)
        return said.decode().strip() or None


def open_repository(folder: Path) -> Repository:
    """The repository that a folder is in.

    Raises:
        NoBaseline: it is in none, or git is not installed.
    """
    try:
        said = _git(folder, "rev-parse", "--show-toplevel", "--show-prefix").decode()
    except NoBaseline as error:
        why = str(error)
        if "installed" in why:
            raise
        raise NoBaseline(f"the gate file is in no git repository ({why})") from error
    top, _, prefix = said.partition("\n")
    return Repository(Path(top), prefix.strip())


@dataclass(frozen=True, slots=True)
class Commit:
    """The gate's folder as it was at a commit; files are written to `store` when asked for."""

    repository: Repository
    commit: str
    store: Path
    known: list[str] = field(default_factory=list)
    """Paths, once they were asked for."""

    def names(self, pattern: str) -> list[str]:
        if not self.known:
            prefix = self.repository.prefix
            words = ["ls-tree", "-r", "-z", "--name-only", "--full-tree", self.commit]
            said = self.repository.ask(*words, *(["--", prefix] if prefix else []))
            paths = said.decode("utf-8", "surrogateescape").split("\0")
            self.known.extend(sorted(p.removeprefix(prefix) for p in paths if p))
        return [path for path in self.known if matches(path, pattern)]

    def file(self, path: str) -> Path | None:
        target = self.store / path
        if target.is_file():
            return target
        if not self.names(path):
            return None
        place = f"{self.commit}:{self.repository.prefix}{path}"
        # With filters: what a checkout gives, so that Git LFS brings its contents where it is here.
        contents = self.repository.ask("cat-file", "--filters", place)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(contents)
        return target


def _git(folder: Path, *words: str) -> bytes:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *words], capture_output=True, check=False, timeout=_LIMIT_S
        )
    except FileNotFoundError as error:
        raise NoBaseline("git is not installed") from error
    except subprocess.TimeoutExpired as error:
        raise NoBaseline(f"git {words[0]} took more than {_LIMIT_S:g} s") from error
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise NoBaseline(f"git {words[0]}: {said[-1] if said else 'refused'}")
    return done.stdout
