"""Which composites a hardware spec finds in a model, and why the near misses are none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import onnx_ir

from worker.compiler.errors import Detail, OptionError
from worker.compiler.frontend.bind import bind
from worker.compiler.frontend.limits import Limits
from worker.compiler.frontend.load import load_model
from worker.compiler.frontend.simplify import simplify
from worker.compiler.machine.machine import AcceleratorTarget, Machine
from worker.compiler.options import CompileOptions
from worker.compiler.partition.patterns.matching import Match, match_patterns, near_misses
from worker.job.hardware import resolve_machine


def match_report(
    model_path: Path,
    hardware: Mapping[str, Detail],
    options: CompileOptions,
    pattern: str | None = None,
) -> dict[str, Detail]:
    """Try the pattern tables of every target on a simplified model.

    Every target is tried on the whole model, so two of them may claim a node: a compile gives it
    to the one with the higher priority.  Whether the target takes the matched operators' types and
    shapes is the annotation's question (`preflight`).  `pattern` keeps one row of the tables in the
    answer; the others still take their nodes.

    Raises:
        SpecError, ModelError: the inputs are wrong.
        OptionError: TW-OPT-001, no target has a pattern of that name.
    """
    machine = resolve_machine(hardware)
    known = [rule.name for t in machine.targets for rule in t.capabilities.patterns]
    if pattern is not None and pattern not in known:
        raise OptionError(
            "TW-OPT-001", f"no target of {machine.name} has a pattern {pattern!r}",
            limit=", ".join(dict.fromkeys(known)) or "no patterns", actual=pattern,
        )  # fmt: skip
    model = simplify(bind(load_model(model_path, Limits(), model_path.stem), dict(options.symbols)))
    nodes = list(model.ir.graph)
    names = [node.name or "" for node in nodes]
    outputs = [value.name or "" for value in model.ir.graph.outputs]
    targets: list[Detail] = []
    for target in machine.targets:
        rules = target.capabilities.patterns
        matches = match_patterns(nodes, rules, outputs)
        misses = near_misses(nodes, rules, outputs, matches)
        found: list[Detail] = [
            _match_row(match, target, names)
            for match in matches
            if pattern in (None, match.rule.name)
        ]
        missed: list[Detail] = [
            {"target": target.name, "pattern": m.pattern, "root": m.root_node, "at": m.at_node,
             "reason": m.sentence}
            for m in misses
            if pattern in (None, m.pattern)
        ]  # fmt: skip
        targets.append(
            {"target": target.name, "patterns": len(rules), "matches": found,
             "near_misses": missed, **_use(matches, machine, target, nodes)}
        )  # fmt: skip
    return {"machine": machine.name, "model": model.name, "nodes": len(nodes), "targets": targets}


def _use(
    matches: Sequence[Match],
    machine: Machine,
    target: AcceleratorTarget,
    nodes: Sequence[onnx_ir.Node],
) -> dict[str, Detail]:
    """What of the target's tables the model uses, whatever rows are shown.

    `in_calls`: for each op type of a node that an instruction runs, how many nodes of it are in
    calls and how many the model has.
    """
    rules = target.capabilities.patterns
    used = {match.rule.name for match in matches}
    called = {match.rule.intrinsic for match in matches}
    engines = machine.restricted(target).engines if rules else ()
    inside = {k for match in matches if match.rule.intrinsic is not None for k in match.nodes}
    calls = Counter(nodes[k].op_type for k in sorted(inside))
    totals = Counter(node.op_type for node in nodes)
    return {
        "unused_patterns": [rule.name for rule in rules if rule.name not in used],
        "unused_instructions": [
            i.name for engine in engines for i in engine.intrinsics if i.name not in called
        ],
        "in_calls": {name: [calls[name], totals[name]] for name in sorted(calls)},
    }


def _match_row(match: Match, target: AcceleratorTarget, names: list[str]) -> dict[str, Detail]:
    members: list[Detail] = [names[k] for k in match.nodes]
    return {
        "target": target.name,
        "pattern": match.rule.name,
        "runs_as": match.rule.intrinsic or match.rule.name,
        "is_intrinsic": match.rule.intrinsic is not None,
        "root": names[match.root],
        "nodes": members,
        "bindings": dict(match.bindings),
    }
