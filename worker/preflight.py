"""Everything that would go wrong or fall back, in one pass and without a queue.

Unlike a compile it does not stop at the first problem: symbols, unsupported operators with their
reasons, operators that fit no memory (with the smallest change that would help), and guessed
hardware numbers come back together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from worker.compiler.cache import NullCache
from worker.compiler.errors import CompilerError, Detail, Shortfall
from worker.compiler.frontend.bind import bind
from worker.compiler.frontend.express import express_region
from worker.compiler.frontend.limits import Limits
from worker.compiler.frontend.load import load_model
from worker.compiler.frontend.model import OnnxModel
from worker.compiler.frontend.model_summary import model_summary
from worker.compiler.frontend.simplify import simplify
from worker.compiler.ir.op import TensorOp
from worker.compiler.ir.region import Cuts, is_view
from worker.compiler.ir.signature import canonicalize
from worker.compiler.machine.machine import Machine
from worker.compiler.options import CompileOptions
from worker.compiler.partition.partition import partition
from worker.compiler.partition.plan import HOST, Partitioning
from worker.compiler.strategies.registry import strategy_for
from worker.compiler.units import UnitSolver
from worker.hardware import resolve_machine

T = TypeVar("T")


def preflight(
    model_path: Path, hardware: Mapping[str, Detail], options: CompileOptions
) -> dict[str, Detail]:
    """Check a model against a machine.

    Returns `ok` (a compile would succeed with every operator on the accelerator), `compiles`,
    `problems`, `fallbacks`, `shortfalls`, `guesses` and, when the model could be read, `model`.
    Never raises for what is wrong with the inputs: that is its result.
    """
    problems: list[Detail] = []
    document: dict[str, Detail] = {"model": None, "fallbacks": [], "shortfalls": [], "guesses": []}
    machine = _attempt(lambda: resolve_machine(hardware), problems)
    model = _attempt(lambda: _read(model_path, options), problems)
    if model is not None:
        document["model"] = model_summary(model)
    if machine is not None:
        document["guesses"] = [
            {"pointer": g.pointer, "value": g.value, "note": g.note} for g in machine.guesses
        ]
    if machine is not None and model is not None:
        parts = partition(model, machine, {})
        document["fallbacks"] = [
            {"node": p.node, "op_type": p.op_type, "reason_code": str(p.reason_code),
             "reason": p.reason}
            for p in parts.placement
            if p.target == HOST
        ]  # fmt: skip
        document["shortfalls"] = _shortfalls(model, parts, machine, options)
    document["problems"] = problems
    document["compiles"] = not problems
    document["ok"] = not (problems or document["fallbacks"] or document["shortfalls"])
    return document


def _read(path: Path, options: CompileOptions) -> OnnxModel:
    loaded = load_model(path, Limits(), path.stem)
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
    """Operators whose smallest tile does not fit, each signature once."""
    nodes = list(model.ir.graph)
    solver = UnitSolver.create(machine, strategy_for(options.strategy), options, NullCache())
    found: list[Detail] = []
    seen: set[str] = set()
    for part in parts.parts:
        if part.is_host:
            continue
        graph = express_region([nodes[k] for k in part.nodes], part.outputs, model.opset).graph
        cuts = Cuts.of(graph)
        for op in graph.ops:
            if is_view(op, graph.tensors) or not isinstance(op, TensorOp):
                continue
            canonical = canonicalize(cuts.piece([op.name]))
            if canonical.signature in seen:
                continue
            seen.add(canonical.signature)
            plan = solver.plan(canonical.graph)
            if isinstance(plan, Shortfall):
                found.append(
                    {"node": op.origin.nodes[0], "op_type": op.origin.op_type,
                     "resource": plan.resource, "demand": plan.demand, "bound": plan.bound,
                     "unit": plan.unit, "terms": [list(t) for t in plan.terms],
                     "levers": list(plan.levers)}
                )  # fmt: skip
    return found
