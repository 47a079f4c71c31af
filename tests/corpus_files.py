"""Reading the files of `tests/corpus`."""

from __future__ import annotations

from pathlib import Path

import msgspec

from worker.compiler.machine.machine import Machine
from worker.job.hardware import resolve_machine

CORPUS = Path(__file__).parent / "corpus"


def body(path: Path) -> str:
    """The file without its comments."""
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith("#"))


def machine_named(name: str) -> Machine:
    """One of the corpus' own machines."""
    text = (CORPUS / "machines" / f"{name}.yaml").read_text(encoding="utf-8")
    return resolve_machine(msgspec.yaml.decode(text))
