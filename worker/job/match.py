"""Which composites a hardware spec finds in a model, and why the near misses are none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import onnx_ir

from worker.compiler.errors import Detail, OptionError
from worker.compiler.frontend.bind import bind
from worker.compiler.frontend.calls import call_of
from worker.compiler.frontend.declared import completed
from worker.compiler.frontend.limits import Limits
from worker.compiler.frontend.load import load_model
from worker.compiler.frontend.ops.qcluster_call import CONTRACTIONS
from worker.compiler.frontend.simplify import simplify
from worker.compiler.machine.machine import AcceleratorTarget, Machine
from worker.compiler.options import CompileOptions
from worker.compiler.partition.annotate import Annotation, annotate
from worker.compiler.partition.missed import missed_rows
from worker.compiler.partition.patterns.matching import Match, NearMiss
from worker.compiler.partition.plan import HOST
from worker.compiler.partition.vendor_calls import CONVERTING
from worker.compiler.partition.vendor_rows import rows_of
from worker.compiler.pipeline import convert_for
from worker.job.hardware import resolve_machine
from worker.job.ports import synthetic_samples


def match_report(
    model_path: Path,
    hardware: Mapping[str, Detail],
    options: CompileOptions,
    pattern: str | None = None,
) -> dict[str, Detail]:
    """The composites of every target, as a compile with these options annotates them.

    The model is converted as `options.precision` asks, with made-up calibration samples.  `pattern`
    keeps one row of the tables in the answer; the others still take their nodes.

    Raises:
        SpecError, ModelError: the inputs are wrong.
        OptionError: TW-OPT-001, no target has a pattern of that name; TW-OPT-003, no target has the
            precision.
    """
    machine = resolve_machine(hardware)
    known = [rule.name for t in machine.targets for rule in rows_of(t)]
    if pattern is not None and pattern not in known:
        raise OptionError(
            "TW-OPT-001", f"no target of {machine.name} has a pattern {pattern!r}",
            limit=", ".join(dict.fromkeys(known)) or "no patterns", actual=pattern,
        )  # fmt: skip
    with TemporaryDirectory() as folder:
        path = completed(model_path, machine.operators, Path(folder), Limits())
        loaded = load_model(path, Limits(), model_path.stem, machine.foreign_names)
    read = simplify(bind(loaded, dict(options.symbols)))
    num_bytes = model_path.stat().st_size
    model = convert_for(
        read, machine, options, lambda m: synthetic_samples(m, options.seed, num_bytes)
    ).model
    annotation = annotate(model, machine, {})
    nodes = list(model.ir.graph)
    outputs = [value.name or "" for value in model.ir.graph.outputs]
    targets: list[Detail] = []
    for target in machine.targets:
        pointer_of = {rule.name: rule.pointer for rule in rows_of(target)}
        matches = [match for name, match in annotation.matches if name == target.name]
        misses = missed_rows(nodes, outputs, target, annotation, machine.operators)
        found: list[Detail] = [
            _match_row(match, target, nodes)
            for match in matches
            if pattern in (None, match.rule.name)
        ]
        missed: list[Detail] = [
            {"target": target.name, "pattern": m.pattern, "root": m.root_node, "at": m.at_node,
             "reason": f"{m.sentence} [row {pointer_of[m.pattern]}]"}
            for m in misses
            if pattern in (None, m.pattern)
        ]  # fmt: skip
        targets.append(
            {"target": target.name, "patterns": len(target.capabilities.patterns),
             "matches": found, "near_misses": missed,
             **_use(matches, machine, target, nodes),
             "outside_calls": _outside(matches, misses, target, annotation, nodes)}
        )  # fmt: skip
    called = {call.op for call in map(call_of, nodes) if call is not None}
    return {
        "machine": machine.name, "model": model.name, "nodes": len(nodes), "targets": targets,
        "unused_operators": [o.name for o in machine.operators if o.name not in called],
    }  # fmt: skip


def _called(matches: Sequence[Match]) -> set[int]:
    """Positions of the nodes that instructions run."""
    return {k for match in matches if match.rule.intrinsic is not None for k in match.nodes}


def _use(
    matches: Sequence[Match],
    machine: Machine,
    target: AcceleratorTarget,
    nodes: Sequence[onnx_ir.Node],
) -> dict[str, Detail]:
    """What of the target's tables the model uses, whatever rows are shown.

    `in_calls`: for each op type of a node that an instruction runs, how many nodes of it are in
    calls and how many the model has; conversions between number formats apart.
    """
    rules = rows_of(target)
    used = {match.rule.name for match in matches}
    called = {match.rule.intrinsic for match in matches}
    engines = machine.restricted(target).engines if rules else ()
    calls = Counter(nodes[k].op_type for k in sorted(_called(matches)))
    totals = Counter(node.op_type for node in nodes)
    return {
        "unused_patterns": [rule.name for rule in rules if rule.name not in used],
        "unused_instructions": [
            i.name for engine in engines for i in engine.intrinsics if i.name not in called
        ],
        "in_calls": {
            name: [calls[name], totals[name]] for name in sorted(calls) if name not in CONVERTING
        },
    }


def _outside(
    matches: Sequence[Match],
    misses: Sequence[NearMiss],
    target: AcceleratorTarget,
    annotation: Annotation,
    nodes: Sequence[onnx_ir.Node],
) -> list[Detail]:
    """Products that no instruction runs, in model order, where the table names instructions."""
    if all(rule.intrinsic is None for rule in rows_of(target)):
        return []
    inside = _called(matches)
    pointer_of = {rule.name: rule.pointer for rule in rows_of(target)}
    reason_at: dict[str, str] = {}
    for miss in misses:
        sentence = f"{miss.sentence} [row {pointer_of[miss.pattern]}]"
        reason_at.setdefault(miss.at_node, sentence)
        reason_at.setdefault(miss.root_node, sentence)
    beside = {k: composite.nodes for _, composite in annotation.composites
              for k in composite.nodes}  # fmt: skip
    rows: list[Detail] = []
    for k, node in enumerate(nodes):
        if node.op_type not in CONTRACTIONS or k in inside:
            continue
        row = annotation.placement[k]
        names = [row.node, *(nodes[j].name or "" for j in beside.get(k, ()))]
        known = next((reason_at[name] for name in names if name in reason_at), None)
        reason = row.reason if row.target == HOST else known
        rows.append(
            {"target": target.name, "node": row.node, "op_type": node.op_type,
             "reason": reason or "no row with an instruction is about such an operator"}
        )  # fmt: skip
    return rows


def _match_row(
    match: Match, target: AcceleratorTarget, nodes: Sequence[onnx_ir.Node]
) -> dict[str, Detail]:
    """Of a quantised operator the nodes of its float form."""
    members = [nodes[k].name or "" for k in match.nodes if nodes[k].op_type not in CONVERTING]
    return {
        "target": target.name,
        "pattern": match.rule.name,
        "runs_as": match.rule.intrinsic or match.rule.name,
        "is_intrinsic": match.rule.intrinsic is not None,
        "root": members[-1],
        "nodes": list[Detail](members),
        "bindings": dict(match.bindings),
    }
