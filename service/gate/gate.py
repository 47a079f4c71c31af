"""The gate from end to end: read, select, compile, find a base, compare, judge."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import date
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from service.gate.baseline import (
    AtCommit,
    Base,
    Key,
    at_commit,
    compiled_base,
    without_other_toolchains,
)
from service.gate.baseline_file import read_baseline
from service.gate.file import BaselineFile, GateFile, MergeBase, ServerRuns
from service.gate.git import Commit, NoBaseline, Repository, open_repository
from service.gate.judging import judge
from service.gate.reading import read_gate, refused
from service.gate.runs import Compiler, Outcome, order_of
from service.gate.selection import Pair, select, unmatched_selectors
from service.gate.served import Served, commit_label, label_of
from service.gate.together import Threads, Together
from service.gate.tree import Folder, Tree
from service.gate.verdict import Verdict
from worker.compiler.errors import CompilerError, InputError

ABSENT = "TW-CLI-001"
"""A file is not there: of a base, this says nothing about the model."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a gate is run with."""

    file: Path
    today: date
    """The day that waivers are judged on."""
    revision: str | None = None
    """A commit to compare with, instead of where HEAD and the baseline's branch parted."""
    label: str | None = None
    """Of the jobs on a server; None: of the commit, where the tree is one."""


class Gate:
    """One run of a gate.  `head` compiles the tree, `verdict` also the base, and judges."""

    def __init__(
        self, asked: Asked, compiler: Compiler, tell: Callable[[str], None],
        server: Served | None = None, together: Together | None = None,
    ) -> None:  # fmt: skip
        """Read and check the gate file.

        Args:
            tell: is told what is compiled, a line at a time.
            together: compiles several pairs at once; None, one after the other.
            server: where baselines of the source `server` are looked for.

        Raises:
            InputError: TW-CLI-001, there is no such file; TW-GATE-001, it is refused.
        """
        if not asked.file.is_file():
            raise InputError(
                "TW-CLI-001", f"{asked.file}: there is no such gate file",
                remedy="`tilewright gate init` writes one.",
            )  # fmt: skip
        self._asked = asked
        self._compiler = compiler
        self._server = server
        self._tell = tell
        self._together = together or Threads(1)
        self._reading = threading.Lock()
        """Files of a commit are written where they are read."""
        self._name = asked.file.name
        self.text = asked.file.read_text(encoding="utf-8", errors="replace")
        self.gate: GateFile = read_gate(self.text, str(asked.file))
        self.tree = Folder(asked.file.parent)
        self.pairs, findings = select(self.gate, self.tree)
        findings += [] if findings else unmatched_selectors(self.gate, self.pairs)
        if findings:
            raise refused(findings, str(asked.file), self.text)
        self._repository: Repository | None = None
        self._why_no_repository = ""
        try:
            self._repository = open_repository(asked.file.parent)
        except NoBaseline as error:
            self._why_no_repository = str(error)

    @property
    def shown_file(self) -> str:
        """The gate file as hosts of repositories name it: relative to the repository."""
        return f"{self._repository.prefix}{self._name}" if self._repository else self._name

    def head(self) -> dict[Key, Outcome]:
        """Compile every pair of the tree.

        Raises:
            CompilerError, ApiError: a compile says nothing of what was ordered.
        """
        label = self._asked.label or self._own_label()

        def outcome(pair: Pair) -> Outcome:
            own = None if label is None else label_of(label, *pair.key)
            self._tell(f"{pair.label}")
            try:
                return self._compiled(pair, self.tree, own)
            except InputError as error:
                return Outcome(problem=error.to_problem())

        found = self._together([partial(outcome, pair) for pair in self.pairs])
        return {pair.key: each for pair, each in zip(self.pairs, found, strict=True)}

    def verdict(self, heads: dict[Key, Outcome]) -> Verdict:
        """Find the base and judge."""
        with TemporaryDirectory(prefix="tilewright-base-") as folder:
            base = self._base(heads, Path(folder))
        return judge(
            self.gate, self.text, self.shown_file, self.pairs, heads, base, self._asked.today,
            self.tree, self._repository.prefix if self._repository else "",
        )  # fmt: skip

    @property
    def has_revision(self) -> bool:
        """Whether another commit to compare with would change anything."""
        source = self.gate.baseline
        if isinstance(source, ServerRuns):
            return source.branch is not None
        return source is not None

    def baseline_path(self) -> Path:
        """Where `--write-baseline` writes.

        Raises:
            InputError: TW-GATE-002, the baseline of the gate file is no file.
        """
        source = self.gate.baseline
        if not isinstance(source, BaselineFile):
            raise InputError(
                "TW-GATE-002", "the gate file's baseline is no file",
                remedy="Write `baseline: {source: file, path: tilewright-baseline.json}`.",
            )  # fmt: skip
        return self._asked.file.parent / source.path

    def _own_label(self) -> str | None:
        """The label of this tree's commit; None where it is none, or there is no server to tell."""
        if self._repository is None or self._server is None:
            return None
        try:
            prefix = self._repository.prefix
            if self._repository.ask("status", "--porcelain", "--", prefix or "."):
                return None
        except NoBaseline:
            return None
        commit = self._repository.commit("HEAD")
        return None if commit is None else commit_label(commit)

    def _compiled(self, pair: Pair, tree: Tree, label: str | None = None) -> Outcome:
        """
        Raises:
            InputError: what is ordered cannot be read.
        """
        with TemporaryDirectory(prefix="tilewright-gate-") as folder:
            with self._reading:
                order = order_of(pair, tree, Path(folder))
            return self._compiler.outcome(replace(order, label=label))

    def _compiled_base(self, pair: Pair, tree: Commit) -> Outcome:
        """
        Raises:
            NoBaseline: a file cannot be had, or the compile says nothing.
        """
        self._tell(f"{pair.label} (base)")
        try:
            return self._compiled(pair, tree)
        except InputError as error:
            if error.code == ABSENT:
                raise NoBaseline(str(error)) from error
            return Outcome(problem=error.to_problem())
        except CompilerError as error:
            raise NoBaseline(f"the base could not be compiled: {error.code} {error}") from error

    def _base(self, heads: dict[Key, Outcome], folder: Path) -> Base:
        source = self.gate.baseline
        if source is None:
            return Base("nothing")
        try:
            match source:
                case MergeBase():
                    return self._merge_base(source, folder)
                case BaselineFile():
                    return self._from_file(source, heads, folder)
                case ServerRuns():
                    return self._from_server(source, heads)
        except NoBaseline as error:
            return Base("nothing", why_none=str(error))

    def _git(self) -> Repository:
        if self._repository is None:
            raise NoBaseline(self._why_no_repository)
        return self._repository

    def _parted(self, branch: str) -> str:
        """The commit to compare with."""
        if self._asked.revision is None:
            return self._git().parted(branch)
        commit = self._git().commit(self._asked.revision)
        if commit is None:
            raise NoBaseline(f"there is no commit {self._asked.revision}")
        return commit

    def _merge_base(self, source: MergeBase, folder: Path) -> Base:
        commit = self._parted(source.branch)
        then = at_commit(self._git(), commit, self.gate, self._name, folder)
        says = self._asked.revision or f"merge base with {source.branch}"
        return compiled_base(says, self.gate, then, self.pairs, self._compiled_base, self._together)

    def _from_file(self, source: BaselineFile, heads: dict[Key, Outcome], folder: Path) -> Base:
        if source.branch is None and self._asked.revision is None:
            path, says = self.tree.file(source.path), source.path
        else:
            branch = source.branch or ""
            commit = self._parted(branch)
            path = Commit(self._git(), commit, folder / "file").file(source.path)
            says = f"{source.path} at {self._asked.revision or f'merge base with {branch}'}"
        if path is None:
            raise NoBaseline(f"there is no {says}: `tilewright gate --write-baseline` writes it")
        outcomes = read_baseline(path, source.path)
        base = Base(says, outcomes=outcomes, keys=list(outcomes))
        known: list[AtCommit] = []

        def again(key: Key) -> Outcome:
            with self._reading:
                if not known:
                    commit = self._commit_of(source.path, path)
                    known.append(at_commit(self._git(), commit, self.gate, self._name, folder))
            pair = known[0].pairs.get(key)
            if pair is None:
                raise NoBaseline("the commit that wrote the file has not got the pair")
            outcome = self._compiled_base(pair, known[0].tree)
            return _checked(outcome, base.outcomes[key])

        without_other_toolchains(base, heads, again, self._together)
        return base

    def _commit_of(self, path: str, file: Path) -> str:
        """The commit that the contents of a baseline file came with.

        Raises:
            NoBaseline: they are not committed.
        """
        repository = self._git()
        source = self.gate.baseline
        branch = source.branch if isinstance(source, BaselineFile) else None
        tip = "HEAD"
        if branch is not None or self._asked.revision is not None:
            tip = self._parted(branch or "")
        commit = repository.last_change(path, tip)
        if commit is None:
            raise NoBaseline(f"{path} is not committed")
        with TemporaryDirectory(prefix="tilewright-base-") as folder:
            committed = Commit(repository, commit, Path(folder)).file(path)
            if committed is None or committed.read_bytes() != file.read_bytes():
                raise NoBaseline(f"{path} has changes that are not committed")
        return commit

    def _from_server(self, source: ServerRuns, heads: dict[Key, Outcome]) -> Base:
        server = self._server
        if server is None:
            raise NoBaseline("it is a server's, and none is given (--server URL)")
        if source.label is not None:
            label = source.label
        else:
            assert source.branch is not None
            label = commit_label(self._parted(source.branch))
        base = Base(f"jobs {label} of the server")
        for pair in self.pairs:
            try:
                base.outcomes[pair.key] = server.latest(label_of(label, *pair.key))
                base.keys.append(pair.key)
            except NoBaseline as error:
                base.reasons[pair.key] = str(error)
        without_other_toolchains(
            base, heads, lambda key: server.again(label_of(label, *key)), self._together
        )
        return base


def _checked(again: Outcome, before: Outcome) -> Outcome:
    """A base computed anew, if it is of the same model.

    Raises:
        NoBaseline: it fails now, or the model of that commit is another one.
    """
    report, stored = again.report, before.report
    if report is None or stored is None:
        assert again.problem is not None
        raise NoBaseline(f"it fails now: {again.problem.get('detail')}")
    if report["model"]["sha256"] != stored["model"]["sha256"]:
        raise NoBaseline("the commit that wrote the file has another model")
    return again
