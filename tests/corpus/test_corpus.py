"""The intermediate forms as text: every graph of this folder, its schedules and their programs.

    NAME.graph                              the operators, with what to do with them (`#!` lines)
    NAME.STRATEGY.MACHINE.schedule          what the strategy makes of them: its first candidate
    NAME.STRATEGY.MACHINE.program           what that becomes for the machine, and its figures
    NAME.schedule, NAME.MACHINE.program     the same for a schedule written by hand

`pytest tests/corpus --update-golden` writes the expected files anew; read their diff.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from corpus_files import CORPUS, body, machine_named

from worker.compiler.audit.audit import audit
from worker.compiler.descriptors import strategies
from worker.compiler.ir.evaluate import evaluate
from worker.compiler.ir.graph import Graph
from worker.compiler.ir.parse import parse_graph
from worker.compiler.ir.text import print_graph
from worker.compiler.isa.text import parse_program, print_program
from worker.compiler.isa.verify import verify_program
from worker.compiler.lower.lower import lower_unit
from worker.compiler.machine.machine import Machine
from worker.compiler.schedule.interpret import interpret
from worker.compiler.schedule.nodes import Schedule
from worker.compiler.schedule.text import parse_schedule, print_schedule
from worker.compiler.schedule.verify import verify
from worker.compiler.strategies.base import Budget
from worker.simulator.run import simulate_unit


@dataclass(frozen=True)
class Run:
    """One `#!` line: `STRATEGY on MACHINE OPTION=VALUE ...`, or `lower on MACHINE`."""

    source: str
    strategy: str
    machine: str
    options: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        parts = [] if self.strategy == "lower" else [self.strategy, *self.options.values()]
        return ".".join((Path(self.source).stem, *parts, self.machine))


def runs() -> list[Run]:
    found = []
    for path in sorted((*CORPUS.glob("*.graph"), *CORPUS.glob("*.schedule"))):
        for line in path.read_text(encoding="utf-8").splitlines():
            if line.startswith("#! "):
                strategy, on, machine, *options = line.removeprefix("#! ").split()
                assert on == "on", line
                pairs = dict(option.split("=") for option in options)
                found.append(Run(path.name, strategy, machine, pairs))
    return found


def inputs_of(graph: Graph) -> dict[str, np.ndarray[Any, Any]]:
    """Small whole numbers: sums are exact in every order, and every one is a good index."""
    random = np.random.default_rng(5)
    found = {}
    for name in (*graph.inputs, *graph.constants):
        tensor = graph.tensors[name]
        least = 0 if "i64" in str(tensor.dtype) else -3
        found[name] = random.integers(least, 4, tensor.shape).astype(tensor.dtype.numpy)
    return found


def schedule_of(run: Run, machine: Machine) -> Schedule:
    text = body(CORPUS / run.source)
    if run.strategy == "lower":
        return parse_schedule(text)
    descriptor = strategies()[run.strategy]
    options = msgspec.convert(run.options, descriptor.options)
    candidates = descriptor.load().candidates(parse_graph(text), machine, options, Budget(1))
    first = next(iter(candidates))
    assert isinstance(first, Schedule), first
    return replace(first, notes=())  # what the strategy tells reports


def check(name: str, text: str, request: pytest.FixtureRequest) -> None:
    path = CORPUS / name
    if request.config.getoption("--update-golden"):
        path.write_text(text, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == text


@pytest.mark.parametrize("path", sorted(CORPUS.glob("*.graph")), ids=lambda path: path.stem)
def test_a_graph_is_printed_as_it_was_read(path: Path) -> None:
    assert print_graph(parse_graph(body(path))) == body(path)


@pytest.mark.parametrize("run", runs(), ids=lambda run: run.name)
def test_schedule_and_program(run: Run, request: pytest.FixtureRequest) -> None:
    machine = machine_named(run.machine)
    schedule = schedule_of(run, machine)
    verify(schedule, machine)
    if run.strategy != "lower":
        check(f"{run.name}.schedule", print_schedule(schedule), request)
    assert parse_schedule(print_schedule(schedule)) == schedule

    given = inputs_of(schedule.graph)
    meant, done = evaluate(schedule.graph, given), interpret(schedule, given, home="DDR")
    for output in schedule.graph.outputs:
        np.testing.assert_allclose(done[output], meant[output], rtol=1e-6)

    program = lower_unit(schedule, machine, Path(run.source).stem)
    verify_program(program, machine)
    audit(schedule, program, machine)
    text = print_program(program)
    found = simulate_unit(program, machine)
    moved = found.traffic[0]
    head = f"# {found.cycles} cycles; {moved.read_bytes} bytes in, {moved.write_bytes} out\n"
    check(f"{run.name}.program", head + text, request)
    assert print_program(parse_program(text)) == text


def test_every_expected_file_has_a_run() -> None:
    made = {f"{run.name}.program" for run in runs()}
    made |= {f"{run.name}.schedule" for run in runs() if run.strategy != "lower"}
    sources = {run.source for run in runs()}
    files = {
        path.name for path in CORPUS.iterdir() if path.suffix in (".graph", ".schedule", ".program")
    }
    assert files == made | sources
