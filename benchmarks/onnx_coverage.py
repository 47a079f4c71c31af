"""Check every family of operators against ONNX's own backend node tests.

`python -m benchmarks.onnx_coverage` runs all single-node cases through express and the slow
oracle, compares with the expected outputs, and rewrites the coverage page.  `--check` only says
whether the page is up to date; `--op NAME` prints the cases of one operator.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir

from worker.compiler.errors import ModelError
from worker.compiler.frontend.dynamic import SHAPE_INPUTS
from worker.compiler.frontend.express import Expressed, express_region, rejection
from worker.compiler.frontend.model import OnnxModel
from worker.compiler.frontend.ops.call import storage
from worker.compiler.frontend.simplify import simplify
from worker.compiler.ir.bits import load
from worker.compiler.ir.evaluate import evaluate
from worker.compiler.rejection import ReasonCode, Rejection

PAGE = Path(__file__).resolve().parent.parent / "worker/compiler/frontend/COVERAGE.md"
_SAMPLE_EVERY = 12
_TWO_ULPS = {"bfloat16": 2**-6, "float16": 2**-9}
"""Where a formula of many steps rounds after each, the order of the steps is worth two units in the
last place.  The suite's own runner has this rule for bfloat16."""


class Verdict(StrEnum):
    PASS = "pass"
    REFUSED = "refused"
    WRONG = "wrong"


@dataclass(frozen=True, slots=True)
class Case:
    """One backend test: a single-node model and its data."""

    name: str
    op_type: str
    model: onnx.ModelProto
    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]
    rtol: float
    atol: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """What happened to one case."""

    case: str
    op_type: str
    verdict: Verdict
    code: str = ""
    sentence: str = ""
    error: str = ""


@cache
def node_cases() -> tuple[Case, ...]:
    """All single-node cases, by name.  Cost: seconds (onnx computes the data)."""
    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loaded = load_model_tests(kind="node")
    cases = []
    for test in sorted(loaded, key=lambda t: t.name):
        if test.model is None or len(test.model.graph.node) != 1 or not test.data_sets:
            continue
        node = test.model.graph.node[0]
        if node.domain not in ("", "ai.onnx"):
            continue
        inputs, outputs = (tuple(map(_array, arrays)) for arrays in test.data_sets[0])
        cases.append(
            Case(test.name, node.op_type, test.model, inputs, outputs, test.rtol, test.atol)
        )
    return tuple(cases)


def _array(value: object) -> object:
    """Unpack tensors; sequences and optionals stay as they are (their cases are refused)."""
    return onnx.numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value


@dataclass(frozen=True, slots=True)
class Prepared:
    """What is expressed of a case: its node, or the operators that ONNX defines it by."""

    nodes: tuple[ir.Node, ...]
    opset: int
    why: Rejection | None
    """Why it is refused, if it is."""


def prepare(case: Case) -> Prepared:
    """The nodes to express, and why the case is refused, if it is.

    Parameters that ONNX passes as inputs (axes, shapes) become constants when the operator cannot
    be expressed without knowing them, as they are in real models.  An operator without an
    expression goes through the front end's passes, which expand functions.
    """
    opset = next(o.version for o in case.model.opset_import if o.domain in ("", "ai.onnx"))
    first = _single(_node(case), opset)
    if first.why is None:
        return first
    if first.why.code is ReasonCode.DATA_DEPENDENT:
        second = _single(frozen_node(case.model, case.inputs), opset)
        if second.why is None:
            return second
        first = second if second.why.code is not ReasonCode.DATA_DEPENDENT else first
    for frozen in _parameter_sets(case):
        found = _simplified(case, frozen)
        if found is not None and found.why is None:
            return found
    return first


def _single(node: ir.Node, opset: int) -> Prepared:
    return Prepared((node,), opset, rejection(node, opset))


def _parameter_sets(case: Case) -> tuple[tuple[int, ...], ...]:
    """Positions of the inputs that may be taken for constants, fewest first."""
    known = tuple(k for k, a in enumerate(case.inputs) if isinstance(a, np.ndarray | np.generic))
    shapes = tuple(k for k in SHAPE_INPUTS.get(case.op_type, ()) if k in known)
    return tuple(dict.fromkeys(((), shapes, tuple(k for k in known if k > 0))))


def _simplified(case: Case, frozen: tuple[int, ...]) -> Prepared | None:
    """The case after the front end's passes; None where they refuse it."""
    parsed = ir.serde.deserialize_model(case.model)
    for k in reversed(frozen):
        value = parsed.graph.inputs.pop(k)
        value.const_value = ir.tensor(np.asarray(case.inputs[k]), name=value.name)
        parsed.graph.register_initializer(value)
    try:
        model = simplify(OnnxModel(parsed, case.name, "", 0))
    except ModelError:
        return None
    nodes = tuple(model.ir.graph)
    reasons = (rejection(node, model.opset) for node in nodes)
    return Prepared(nodes, model.opset, next((why for why in reasons if why is not None), None))


def run_case(case: Case) -> Outcome:
    """Express and evaluate one case."""
    prepared = prepare(case)
    return _compare(case, prepared) if prepared.why is None else _refused(case, prepared.why)


def _node(case: Case) -> ir.Node:
    (node,) = ir.serde.deserialize_model(case.model).graph
    return node


def frozen_node(model: onnx.ModelProto, inputs: tuple[Any, ...]) -> ir.Node:
    """The only node of `model`, every input but the first a constant with the value given."""
    parsed = ir.serde.deserialize_model(model)
    for value, array in zip(parsed.graph.inputs[1:], inputs[1:], strict=False):
        if isinstance(array, np.ndarray | np.generic):
            value.const_value = ir.tensor(np.asarray(array), name=value.name)
    (node,) = parsed.graph
    return node


def _refused(case: Case, why: Rejection) -> Outcome:
    return Outcome(case.name, case.op_type, Verdict.REFUSED, why.code, why.sentence)


def _compare(case: Case, prepared: Prepared) -> Outcome:
    names = [value.name for value in case.model.graph.output if value.name]
    expressed = express_region(prepared.nodes, names, prepared.opset)
    graph = expressed.graph
    results = evaluate(graph, feeds_of(case, expressed))
    for value, expected in zip(case.model.graph.output, case.outputs, strict=True):
        got = load(results[value.name], graph.tensors[value.name].dtype)
        error = difference(np.asarray(expected), got, case.rtol, case.atol)
        if error:
            return Outcome(case.name, case.op_type, Verdict.WRONG, error=f"{value.name}: {error}")
    return Outcome(case.name, case.op_type, Verdict.PASS)


def feeds_of(case: Case, expressed: Expressed) -> dict[str, npt.NDArray[Any]]:
    """Graph inputs from the case's data, and the constants."""
    given = dict(zip((i.name for i in case.model.graph.input), case.inputs, strict=True))
    tensors = expressed.graph.tensors
    feeds = {
        name: storage(np.asarray(given[name]), tensors[name].dtype)
        for name in expressed.graph.inputs
    }
    return feeds | {name: thunk() for name, thunk in expressed.constants.items()}


def difference(expected: npt.NDArray[Any], got: npt.NDArray[Any], rtol: float, atol: float) -> str:
    """How two arrays differ, or an empty string."""
    if expected.shape != got.shape:
        return f"shape {got.shape}, expected {expected.shape}"
    if expected.dtype.kind in "iub":
        wrong = int(np.count_nonzero(expected != got))
        return f"{wrong} of {expected.size} elements differ" if wrong else ""
    rtol = max(rtol, _TWO_ULPS.get(expected.dtype.name, 0.0))
    left, right = expected.astype(np.float64), got.astype(np.float64)
    if np.allclose(left, right, rtol=rtol, atol=atol, equal_nan=True):
        return ""
    with np.errstate(invalid="ignore"):
        return f"largest difference {np.nanmax(np.abs(left - right)):.3g}"


def sample(cases: Iterable[Case]) -> tuple[Case, ...]:
    """A cheap subset: the smallest case of every operator and every dozenth of the others."""
    first: dict[str, Case] = {}
    rest: list[Case] = []
    for case in sorted(cases, key=_weight):
        if case.op_type in first:
            rest.append(case)
        else:
            first[case.op_type] = case
    return (*first.values(), *rest[: len(rest) // 2 : _SAMPLE_EVERY])


def _weight(case: Case) -> tuple[int, str]:
    arrays = (a for a in (*case.inputs, *case.outputs) if isinstance(a, np.ndarray))
    return sum(a.size for a in arrays), case.name


def render(outcomes: Iterable[Outcome]) -> str:
    """The coverage page."""
    rows: dict[str, Counter[Verdict]] = {}
    reasons: dict[str, dict[str, str]] = {}
    for outcome in outcomes:
        rows.setdefault(outcome.op_type, Counter())[outcome.verdict] += 1
        if outcome.verdict is Verdict.REFUSED:
            reasons.setdefault(outcome.op_type, {}).setdefault(outcome.code, outcome.sentence)
    total: Counter[Verdict] = Counter()
    for counter in rows.values():
        total.update(counter)
    lines = [
        "# Operator coverage",
        "",
        "Generated by `python -m benchmarks.onnx_coverage`; do not edit.",
        "",
        f"Every single-node test of ONNX's backend suite ({onnx.__version__}) goes through the"
        " front end. A case passes when the operator algebra, evaluated by the reference"
        " interpreter, gives the expected outputs: within the test's own tolerance, or within two"
        " units in the last place of a 16-bit float. An operator that ONNX defines by others is"
        " expanded first, and parameters that decide shapes are constants. A refused case is"
        " a host operator with the reason shown; a wrong one would be a bug.",
        "",
        f"**{total[Verdict.PASS]} pass, {total[Verdict.REFUSED]} refused,"
        f" {total[Verdict.WRONG]} wrong.**"
        f" {sum(1 for c in rows.values() if c[Verdict.PASS])} of {len(rows)} operators have"
        " passing cases.",
        "",
        "| operator | pass | refused | wrong | reasons for refusals (one example per code) |",
        "|---|---|---|---|---|",
    ]
    for op_type in sorted(rows):
        counter = rows[op_type]
        why = "; ".join(
            f"{code}: {sentence}" for code, sentence in sorted(reasons.get(op_type, {}).items())
        )
        lines.append(
            f"| {op_type} | {counter[Verdict.PASS]} | {counter[Verdict.REFUSED]} |"
            f" {counter[Verdict.WRONG]} | {why.replace('|', '/')} |"
        )
    return "\n".join(lines) + "\n"


def main(argv: list[str] | None = None) -> int:
    """Run the command; exit 1 when a case is wrong or, with --check, the page is stale."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.onnx_coverage")
    parser.add_argument("--check", action="store_true", help="do not write, compare")
    parser.add_argument("--op", help="print the cases of one operator only")
    args = parser.parse_args(argv)
    cases = node_cases()
    if args.op:
        cases = tuple(c for c in cases if c.op_type == args.op)
    outcomes = tuple(run_case(case) for case in cases)
    for outcome in outcomes:
        if args.op or outcome.verdict is Verdict.WRONG:
            detail = outcome.error or f"{outcome.code} {outcome.sentence}"
            sys.stdout.write(f"{outcome.verdict:8} {outcome.case} {detail}\n")
    counts = Counter(o.verdict for o in outcomes)
    sys.stdout.write(", ".join(f"{counts[v]} {v}" for v in Verdict) + "\n")
    if args.op:
        return 0
    page = render(outcomes)
    if args.check:
        stale = not PAGE.is_file() or PAGE.read_text() != page
        sys.stdout.write("the page is stale\n" if stale else "the page is up to date\n")
        return int(stale or counts[Verdict.WRONG] > 0)
    PAGE.write_text(page)
    return int(counts[Verdict.WRONG] > 0)


if __name__ == "__main__":
    sys.exit(main())
