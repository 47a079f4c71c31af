"""The team of examples/ci in a temporary repository, and its gate as a command."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import onnx
from gate_repository import TeamRepository

REPO = Path(__file__).resolve().parent.parent
EXAMPLE = REPO / "examples" / "ci"
TODAY = "2026-06-01"


@dataclass(frozen=True)
class Ran:
    """What a gate printed, and what it cost."""

    code: int
    stdout: str
    stderr: str
    cpu_s: float
    """Of the command and of all that it started."""

    @property
    def first_line(self) -> str:
        return self.stdout.partition("\n")[0]


class Team(TeamRepository):
    """Its main branch is the example; work is done on a branch."""

    def __init__(self, root: Path, data: Path) -> None:
        super().__init__(root)
        shutil.copytree(EXAMPLE, root, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.pyc"))
        self.commit(message="the example")
        self.git("checkout", "-q", "-b", "work")
        self._data = data

    def gate(self, *words: str, day: str | None = TODAY) -> Ran:
        """Run the gate in a process of its own; waivers are judged on `day` unless words say."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("TILEWRIGHT_", "GIT_"))}
        env = {**kept, "PYTHONPATH": str(REPO), "TILEWRIGHT_DATA_DIR": str(self._data)}
        judges = day is not None and not {"--write-baseline", "--today"} & set(words)
        when = ["--today", str(day)] if judges else []
        before = os.times()
        done = subprocess.run(
            [sys.executable, "-P", "-m", "service.cli.main", "gate", *words, *when],
            cwd=self.root, env=env, capture_output=True, text=True, check=False,
        )  # fmt: skip
        after = os.times()
        spent = (after.children_user - before.children_user) + (
            after.children_system - before.children_system
        )
        return Ran(done.returncode, done.stdout, done.stderr, spent)

    def edit(self, name: str, old: str, new: str) -> None:
        """Replace a text once."""
        path = self.root / name
        text = path.read_text()
        assert text.count(old) == 1, (name, old)
        path.write_text(text.replace(old, new))

    def rename_nodes(self, name: str) -> None:
        """Give every node and every tensor of a model another name, inputs and outputs apart."""
        path = self.root / name
        model = onnx.load(path)
        graph = model.graph
        kept = {value.name for value in (*graph.input, *graph.output)}

        def renamed(tensor: str) -> str:
            return tensor if tensor in kept or not tensor else f"renamed_{tensor}"

        for tensor in graph.initializer:
            tensor.name = renamed(tensor.name)
        for number, node in enumerate(graph.node):
            node.name = f"node_{number}"
            node.input[:] = [renamed(each) for each in node.input]
            node.output[:] = [renamed(each) for each in node.output]
        onnx.checker.check_model(model)
        path.write_bytes(model.SerializeToString(deterministic=True))


def table(ran: Ran) -> list[dict[str, str]]:
    """The rows of what is not as it should be."""
    lines = [line for line in ran.stdout.splitlines()[2:] if not line.startswith("::")]
    if not lines:
        return []
    head, *rows = (re.split(r"\t", line) for line in lines)
    return [dict(zip(head, row, strict=True)) for row in rows]
