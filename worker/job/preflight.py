"""Everything that would go wrong or fall back, in one pass and without a queue.

Unlike a compile it does not stop at the first problem: symbols, unsupported operators with their
reasons, operators that fit no memory (with the smallest change that would help), and guessed
hardware numbers come back together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

from worker.compiler.cache import NullCache
from worker.compiler.errors import CompilerError, Detail
from worker.compiler.frontend.bind import bind
from worker.compiler.frontend.declared import completed
from worker.compiler.frontend.limits import Limits
from worker.compiler.frontend.load import load_model
from worker.compiler.frontend.model import OnnxModel
from worker.compiler.frontend.model_summary import model_summary
from worker.compiler.frontend.simplify import simplify
from worker.compiler.judge.entrants import entrants
from worker.compiler.judge.figures import Figures
from worker.compiler.judge.pool import UnitPool
from worker.compiler.judge.solve import RegionSolver
from worker.compiler.machine.machine import Machine
from worker.compiler.options import CompileOptions, Objective
from worker.compiler.oracles import asked
from worker.compiler.partition.partition import partition
from worker.compiler.partition.plan import HOST, Partitioning
from worker.compiler.pipeline import convert_for
from worker.job.hardware import resolve_machine
from worker.job.ports import synthetic_samples
from worker.job.request import NoProgress
from worker.job.unlocking import unlock_rows
from worker.verification.budget import over_budget
from worker.verification.reference import reference_refusal

T = TypeVar("T")


def preflight(
    model_path: Path, hardware: Mapping[str, Detail], options: CompileOptions
) -> dict[str, Detail]:
    """Check a model against a machine.

    Returns `ok` (a compile would succeed with every operator on the accelerator), `compiles`,
    `problems`, `fallbacks`, `shortfalls`, `unlock` (which refusals cost most), `guesses`,
    `unverifiable` (why no reference can run the model; null: one can) and, when the model could be
    read, `model`.
    Never raises for what is wrong with the inputs: that is its result.
    """
    problems: list[Detail] = []
    document: dict[str, Detail] = {"model": None, "fallbacks": [], "shortfalls": [], "guesses": [],
                                   "unlock": [], "unverifiable": None}  # fmt: skip
    machine = _attempt(lambda: asked(resolve_machine(hardware), NullCache()), problems)
    with TemporaryDirectory() as folder:
        return _checked(model_path, Path(folder), machine, options, problems, document)


def _checked(
    model_path: Path,
    folder: Path,
    machine: Machine | None,
    options: CompileOptions,
    problems: list[Detail],
    document: dict[str, Detail],
) -> dict[str, Detail]:
    """The document with what is found, once the spec has been read."""
    path: Path | None = model_path
    if machine is not None and machine.operators:
        operators = machine.operators
        path = _attempt(lambda: completed(model_path, operators, folder, Limits()), problems)
    model = None
    if path is not None:
        source = path
        named = frozenset[str]() if machine is None else machine.foreign_names
        model = _attempt(lambda: _read(source, model_path.stem, named, options), problems)
    if model is not None:
        document["model"] = model_summary(model)
    if machine is not None:
        document["guesses"] = [
            {"pointer": g.pointer, "value": g.value, "note": g.note} for g in machine.guesses
        ]
    if machine is not None and model is not None:
        size = model_path.stat().st_size
        document.update(_examined(model, machine, options, problems, size) or {})
        why = over_budget(model, size)
        document["unverifiable"] = why or reference_refusal(path or model_path)
    document["problems"] = problems
    document["compiles"] = not problems
    document["ok"] = not (problems or document["fallbacks"] or document["shortfalls"])
    return document


def _examined(
    model: OnnxModel,
    machine: Machine,
    options: CompileOptions,
    problems: list[Detail],
    model_bytes: int,
) -> dict[str, Detail] | None:
    """Fallbacks, shortfalls and unlocks of a pair that could be read."""

    def converting() -> OnnxModel:
        return convert_for(
            model, machine, options, lambda m: synthetic_samples(m, options.seed, model_bytes)
        ).model

    converted = _attempt(converting, problems)
    if converted is None:
        return None
    parts = partition(converted, machine, {})
    fallbacks: list[Detail] = [
        {"node": p.node, "op_type": p.op_type, "reason_code": str(p.reason_code),
         "reason": p.reason}
        for p in parts.placement
        if p.target == HOST and not p.is_inserted
    ]  # fmt: skip
    return {
        "fallbacks": fallbacks,
        "shortfalls": _shortfalls(converted, parts, machine, options),
        "unlock": unlock_rows(model, machine, options),
    }


def _read(path: Path, name: str, whole: AbstractSet[str], options: CompileOptions) -> OnnxModel:
    loaded = load_model(path, Limits(), name, whole)
    return simplify(bind(loaded, dict(options.symbols)))


def _attempt(step: Callable[[], T], problems: list[Detail]) -> T | None:
    """Run one step; what it refuses becomes a problem document."""
    try:
        return step()
    except CompilerError as error:
        problems.append(error.to_problem())
        return None


def _shortfalls(
    model: OnnxModel, parts: Partitioning, machine: Machine, options: CompileOptions
) -> list[Detail]:
    """Operators whose smallest tile does not fit, in model order, each signature once.

    They are tried one by one: what does not fit alone fits no larger kernel, and what does not fit
    a larger kernel is no shortfall, since every strategy falls back to smaller ones.
    """
    _, single = entrants(options)
    pool = UnitPool(machine, options, NullCache(), (single,), single, lambda unit: Figures(0), "")
    solved = RegionSolver(model, pool).solve(
        parts, (single,), Objective.LATENCY, NoProgress(), is_coding=False
    )
    op_type_of = {row.node: row.op_type for row in parts.placement}
    once = {id(plan): (node, plan) for node, plan in reversed(solved.shortfalls)}
    return [
        {"node": node, "op_type": op_type_of.get(node, ""), "resource": plan.resource,
         "demand": plan.demand, "bound": plan.bound, "unit": plan.unit,
         "terms": [list(t) for t in plan.terms], "levers": list(plan.levers)}
        for node, plan in reversed(once.values())
    ]  # fmt: skip
