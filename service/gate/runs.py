"""A pair of model and chip -> what it compiles to: the documents of one run, or a refusal."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Protocol

from service.gate.file import ARRAYS
from service.gate.selection import Pair
from service.gate.tree import Tree, is_lfs_pointer
from service.orders.beside import external_files
from service.orders.order import Order, arrays_digest, hardware_document
from worker.compiler.error_catalog import Fault
from worker.compiler.errors import CompilerError, InputError

if TYPE_CHECKING:
    from service.compare import Run

Documents = Mapping[str, Any]
"""Parsed JSON by name: report, graph, schedule, and spec (hardware.json of the bundle)."""
ARTIFACTS = ("report", "graph", "schedule", "bundle")
"""What is read of a job."""
LFS = (
    "{path} is a pointer of Git LFS, its contents are not here: run `git lfs pull`"
    " (actions/checkout: lfs: true)"
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a pair gave: documents or a problem, never both."""

    documents: Documents | None = None
    problem: Mapping[str, Any] | None = None
    """The problem document of a refusal."""

    @property
    def report(self) -> Mapping[str, Any] | None:
        """report.json."""
        return None if self.documents is None else self.documents["report"]

    def run(self, name: str) -> Run:
        """For the comparison.

        Raises:
            InputError: TW-CMP-001, the documents are of a version that is not read.
        """
        from service.compare import Run

        assert self.documents is not None
        return Run.of(
            name, self.documents["report"], graph=self.documents.get("graph"),
            schedule=self.documents.get("schedule"), spec=self.documents.get("spec"),
        )  # fmt: skip


def refusal(problem: Mapping[str, Any]) -> Outcome:
    """The outcome of a job that failed by what was ordered.

    Raises:
        CompilerError: something else is at fault, so that the job says nothing of the model.
    """
    from worker.sandbox.problems import error_of

    if problem.get("fault") != Fault.USER:
        raise error_of(problem)
    return Outcome(problem=problem)


class Compiler(Protocol):
    """Compiles orders: here, or on a server."""

    def outcome(self, order: Order) -> Outcome:
        """The documents, or why there are none.

        Raises:
            CompilerError, ApiError: the machine or the server is at fault, not what was ordered.
        """
        ...


def outcome_of(pair: Pair, tree: Tree, compiler: Compiler, folder: Path) -> Outcome:
    """Compile a pair as the tree has it; results go below `folder` and may be removed.

    Raises: as `Compiler.outcome`.
    """
    try:
        order = order_of(pair, tree, folder)
    except CompilerError as error:
        return Outcome(problem=error.to_problem())
    return compiler.outcome(order)


def order_of(pair: Pair, tree: Tree, folder: Path, label: str | None = None) -> Order:
    """What `tilewright compile` would be asked for.

    Raises:
        InputError: TW-CLI-001, a file is not there, or only its pointer of Git LFS.
        SpecError: the spec cannot be parsed.
        OptionError: an option is refused.
    """
    from worker.compiler.options import CompileOptions

    model = present(tree, pair.path)
    beside = PurePosixPath(pair.path).parent
    for name in external_files(model):
        if tree.names((beside / name).as_posix()):
            present(tree, (beside / name).as_posix())
    arrays = {
        name: present(tree, path) for name in ARRAYS if (path := getattr(pair, name)) is not None
    }
    spec = present(tree, pair.spec) if pair.spec is not None else None
    digests = {name: arrays_digest(path, name) for name, path in arrays.items()}
    options = CompileOptions.from_json({**pair.options, **digests})
    return Order(
        model=model,
        hardware=hardware_document(str(spec) if spec is not None else str(pair.preset)),
        options=options.to_json(),
        output=folder,
        label=label,
        calibration=arrays.get("calibration"),
        inputs=arrays.get("inputs"),
    )


def present(tree: Tree, path: str) -> Path:
    """A file of the tree, with its contents.

    Raises:
        InputError: TW-CLI-001.
    """
    found = tree.file(path)
    if found is None:
        raise InputError("TW-CLI-001", f"{path}: there is no such file")
    if is_lfs_pointer(found):
        raise InputError("TW-CLI-001", LFS.format(path=path), remedy="Run `git lfs pull`.")
    return found


def documents_in(files: Mapping[str, str]) -> Documents:
    """Read what a compile left: artifacts by name.

    Raises:
        InputError: TW-RUN-001, TW-RUN-004, TW-CMP-001, they are not what a compile leaves.
    """
    from service.compare import read_run
    from service.compare.reading import FILES

    texts = {name: Path(files[name]).read_bytes() for name in FILES}
    with Path(files["bundle"]).open("rb") as bundle:
        run = read_run("the compile", texts.get, lambda: bundle)
    return {**{name: json.loads(text) for name, text in texts.items()}, "spec": run.spec}
