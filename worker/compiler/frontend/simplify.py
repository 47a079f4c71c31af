"""From a bound model to the form the rest of the compiler reads.

lift constants, compute outputs -> infer -> convert opset -> {fold and infer, expand functions,
tidy}* -> fold BN -> name, check
"""

from __future__ import annotations

from functools import partial

import onnx_ir
from onnx_ir.passes.common import LiftConstantsToInitializersPass, TopologicalSortPass

from worker.compiler.frontend.convert_opset import convert_opset
from worker.compiler.frontend.dynamic import refuse_unknown_shapes
from worker.compiler.frontend.evaluate_node import FoldBudget
from worker.compiler.frontend.expand import expand_functions
from worker.compiler.frontend.fold import fold_constants
from worker.compiler.frontend.fold_batchnorm import fold_batchnorm
from worker.compiler.frontend.limits import Limits
from worker.compiler.frontend.model import OnnxModel
from worker.compiler.frontend.outputs import compute_outputs
from worker.compiler.frontend.passes import run_pass
from worker.compiler.frontend.rules.check import Checker
from worker.compiler.frontend.shapes import infer_model, is_static
from worker.compiler.frontend.tidy import tidy

_MAX_SWEEPS = 8
"""One sweep settles straight-line graphs; each further one serves a level of control flow."""


def simplify(model: OnnxModel, *, is_certain: bool = True) -> OnnxModel:
    """Simplify a bound model.  Edits `model.ir`.

    `is_certain` is False for a body: it may never run, so what its shapes make illegal is not
    refused here.

    After it: opset TARGET_OPSET (or the model's own when newer); constants are initializers; shape
    arithmetic is folded; inference BatchNormalization is folded where it can be; nodes are sorted
    and uniquely named, the user's names kept; all shapes are static except those that data decides.

    Raises:
        ModelError: TW-MODEL-009 (no equivalent in the target opset), TW-MODEL-017, TW-MODEL-021
            (a node that its operator's definition forbids).

    Cost: linear in nodes per sweep; weights are not read.
    """
    graph = model.ir
    run_pass("names", graph, _name_nodes)
    run_pass("order", graph, TopologicalSortPass())
    run_pass("constants", graph, _lift)
    run_pass("computed outputs", graph, compute_outputs)
    if _open_values(graph):
        run_pass("shapes", graph, infer_model)
    checker = Checker(Limits(), is_certain=is_certain)
    checker.check_model(graph, graph.opset_imports.get("", model.opset))
    opset = run_pass("opset", graph, convert_opset)
    run_pass("names", graph, _name_nodes)
    budget = FoldBudget.of(graph.graph)
    folding = partial(fold_constants, opset=opset, checker=checker, budget=budget)
    before: tuple[int, int] | None = None
    for sweep in range(_MAX_SWEEPS):
        run_pass("folding", graph, folding)
        expanded = run_pass("functions", graph, partial(expand_functions, opset=opset))
        if expanded:
            run_pass("constants", graph, _lift)
        tidy(graph)
        now = (len(graph.graph), _open_values(graph))
        if not expanded and (now == before or (now[1] == 0 and sweep > 0)):
            break
        before = now
        if now[1]:
            run_pass("shapes", graph, infer_model)
    if run_pass("batch normalization", graph, fold_batchnorm):
        tidy(graph)
    run_pass("order", graph, TopologicalSortPass())
    run_pass("names", graph, _name_nodes)
    refuse_unknown_shapes(graph)
    return OnnxModel(graph, model.name, model.sha256, opset, model.mapped)


def _lift(model: onnx_ir.Model) -> None:
    LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)


def _open_values(model: onnx_ir.Model) -> int:
    """Values without a static shape or a type."""
    return sum(
        not is_static(value) or value.type is None
        for node in model.graph
        for value in node.outputs
        if value.name
    )


def _name_nodes(model: onnx_ir.Model) -> None:
    """Unique non-empty names: the user's where given and first, else OpType_position."""
    nodes = list(model.graph.all_nodes())
    used = {node.name for node in nodes if node.name}
    seen: set[str] = set()
    for index, node in enumerate(nodes):
        if node.name and node.name not in seen:
            seen.add(node.name)
            continue
        base = f"{node.name or node.op_type}_{index}"
        name, count = base, 0
        while name in used:
            count += 1
            name = f"{base}_{count}"
        node.name = name
        used.add(name)
        seen.add(name)
