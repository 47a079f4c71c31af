"""Which operators of ONNX Runtime give different bits from run to run.

    python -m benchmarks.racing_operators results.jsonl --write

Every node test of ONNX runs as it is, and one per operator, text attribute and element type made
large enough (`--elements`) that ONNX Runtime shares it among threads: its inputs are repeated along
the first axis (all of them, those as long as the first, or the first alone: whatever runs), floats
are drawn.  Each form runs `--runs` times on one thread and on two; bits are compared.  Operators
that draw random numbers are left out, and so is a large form that needs more than `--limit-s` on
one thread, all runs.  A busy machine hides races: its threads seldom run at once.

Finished cases are kept in the results file: a run that was stopped goes on there.  `--write` makes
RACING_OPERATORS.md; `--op NAME` looks at one operator.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime

from benchmarks.onnx_coverage import node_cases

PAGE = Path(__file__).parent / "RACING_OPERATORS.md"
THREADS = (1, 2)
_RANDOM = frozenset(
    {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli",
     "Multinomial", "Dropout"}
)  # fmt: skip
_PROBE = 1 << 14
"""Elements of a first, small form: what grows too fast is not made large."""

Feeds = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Outcome:
    """One form of one case."""

    op_type: str
    attributes: str
    case: str
    elements: int
    """Of all inputs."""
    is_large: bool
    results: tuple[int, ...]
    """Different results, by `THREADS`."""

    @property
    def races(self) -> bool:
        return max(self.results) > 1


@dataclass(frozen=True, slots=True)
class Budget:
    """How much is run of each form."""

    runs: int
    elements: int
    """Of the largest input of a large form."""
    limit_s: float
    """Of one large form on one thread, all runs."""


@dataclass(frozen=True, slots=True)
class CaseResult:
    """What came of one node test."""

    case: str
    kind: str
    """Operator, text attributes and first element type; "" where ONNX Runtime has no kernel."""
    outcomes: tuple[Outcome, ...]
    """As it is, and large; none where ONNX Runtime has no kernel."""


def cases() -> Iterator[tuple[str, onnx.ModelProto, Feeds]]:
    """Single-node tests of ONNX with arrays as inputs, by name."""
    for case in node_cases():
        names = [value.name for value in case.model.graph.input]
        is_plain = all(isinstance(value, np.ndarray) for value in case.inputs)
        if is_plain and case.op_type not in _RANDOM:
            yield case.name, case.model, dict(zip(names, case.inputs, strict=False))


def enlarged(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model without declared sizes."""
    bare = onnx.ModelProto()
    bare.CopyFrom(model)
    for value in (*bare.graph.input, *bare.graph.output):
        if value.type.HasField("tensor_type"):
            value.type.tensor_type.ClearField("shape")
    return bare


def repeated(feeds: Feeds, elements: int) -> Iterator[Feeds]:
    """The inputs repeated along their first axes until the largest has `elements`."""
    arrays = list(feeds.values())
    largest = max((a.size for a in arrays), default=0)
    if not largest or arrays[0].ndim == 0:
        return
    times = -(-elements // largest)
    length = arrays[0].shape[0]
    for is_taken in (
        lambda k, a: a.ndim > 0,
        lambda k, a: a.ndim > 0 and a.shape[0] == length,
        lambda k, a: k == 0,
    ):
        rng = np.random.default_rng(0)
        yield {
            name: _drawn(rng, np.concatenate([a] * times)) if is_taken(k, a) else a
            for k, (name, a) in enumerate(feeds.items())
        }


def _drawn(rng: np.random.Generator, array: Any) -> Any:
    """Other floats in every repetition: of equal ones it does not show which was lost."""
    if array.dtype.kind != "f":
        return array
    return rng.standard_normal(array.shape, np.float32).astype(array.dtype)


def session(model: onnx.ModelProto, threads: int) -> onnxruntime.InferenceSession:
    """ONNX Runtime without optimisations."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def num_results(model: onnx.ModelProto, feeds: Feeds, threads: int, runs: int) -> int:
    """How many different results `runs` runs give."""
    loaded = session(model, threads)
    found = set()
    for _ in range(runs):
        found.add(tuple(_bits(value) for value in loaded.run(None, feeds)))
    return len(found)


def _bits(value: Any) -> bytes:
    if isinstance(value, list):
        return b"|".join(_bits(each) for each in value)
    array = np.asarray(value)
    return repr(array.tolist()).encode() if array.dtype.kind == "O" else array.tobytes()


def large_form(model: onnx.ModelProto, feeds: Feeds, budget: Budget) -> Feeds | None:
    """Inputs of a large form that runs, and soon enough; None when there is none."""
    elements, runs = budget.elements, budget.runs
    for k, small in enumerate(repeated(feeds, _PROBE)):
        try:
            loaded = session(model, 1)
            loaded.run(None, small)
            start = time.perf_counter()
            loaded.run(None, small)
            spent = time.perf_counter() - start
            growth = elements / _PROBE
            if spent * growth * runs > budget.limit_s:
                continue
            large = list(repeated(feeds, elements))[k]
            start = time.perf_counter()
            loaded.run(None, large)
        except Exception:  # whatever ONNX Runtime says: this form is not for this operator
            continue
        if (time.perf_counter() - start) * runs <= budget.limit_s:
            return large
    return None


def survey(budget: Budget, only: str | None, results: Path) -> Iterator[CaseResult]:
    """Results of all cases in order, those in the file `results` from there; adds the others."""
    done = {result.case: result for result in load_results(results)}
    enlarged_kinds = {r.kind for r in done.values() if any(o.is_large for o in r.outcomes)}
    with results.open("a", encoding="utf-8") as file:
        for name, model, feeds in cases():
            if only is not None and model.graph.node[0].op_type != only:
                continue
            if name not in done:
                result = run_case(name, model, feeds, budget, enlarged_kinds)
                if any(o.is_large for o in result.outcomes):
                    enlarged_kinds.add(result.kind)
                done[name] = result
                file.write(json.dumps(asdict(result)) + "\n")
                file.flush()
            yield done[name]


def load_results(path: Path) -> Iterator[CaseResult]:
    """Finished cases of a results file; none without one."""
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        row = json.loads(line)
        outcomes = tuple(Outcome(**o | {"results": tuple(o["results"])}) for o in row["outcomes"])
        yield CaseResult(row["case"], row["kind"], outcomes)


def run_case(
    name: str, model: onnx.ModelProto, feeds: Feeds, budget: Budget, enlarged_kinds: set[str]
) -> CaseResult:
    """One case as it is, and large unless a case of its kind already was."""
    node = model.graph.node[0]
    words = ", ".join(
        f"{a.name}={a.s.decode()}" for a in node.attribute if a.type == onnx.AttributeProto.STRING
    )
    try:
        plain = tuple(num_results(model, feeds, threads, budget.runs) for threads in THREADS)
    except Exception:  # no kernel for this type or opset
        return CaseResult(name, "", ())
    size = sum(a.size for a in feeds.values())
    outcome = Outcome(node.op_type, words, name, size, False, plain)
    dtype = str(next(iter(feeds.values())).dtype) if feeds else ""
    kind = f"{node.op_type} {words} {dtype}"
    if kind in enlarged_kinds:
        return CaseResult(name, kind, (outcome,))
    bare = enlarged(model)
    large = large_form(bare, feeds, budget)
    if large is None:
        return CaseResult(name, kind, (outcome,))
    many = tuple(num_results(bare, large, threads, budget.runs) for threads in THREADS)
    size = sum(a.size for a in large.values())
    return CaseResult(name, kind, (outcome, Outcome(node.op_type, words, name, size, True, many)))


def page(found: Sequence[Outcome], refused: int, budget: Budget) -> str:
    """The table, as Markdown."""
    runs = budget.runs
    large = [o for o in found if o.is_large]
    never = sorted({o.op_type for o in found} - {o.op_type for o in large})
    racing = [o for o in found if o.races]
    rows = [
        f"| {o.op_type} | {o.attributes} | {o.case} | {o.elements} | {o.results[0]} |"
        f" {o.results[1]} |"
        for o in racing
    ]
    return "\n".join(
        [
            "# Operators of ONNX Runtime that race",
            "",
            f"Made by `python -m benchmarks.racing_operators results.jsonl --write`, ONNX Runtime"
            f" {onnxruntime.__version__}, ONNX {onnx.__version__}, CPU. Different results of"
            f" {runs} runs on the same inputs; 1 is right.",
            "",
            "| operator | attributes | node test | elements | on 1 thread | on 2 threads |",
            "|---|---|---|---:|---:|---:|",
            *rows,
            "",
            f"{len(found) - len(large)} node tests as they are"
            f" ({refused} more have no kernel), {len(large)} large forms ({budget.elements}"
            f" elements or more, at most {budget.limit_s:g} s on one thread) of"
            f" {len({o.op_type for o in large})} operators;"
            f" {len([o for o in found if o.results[0] > 1])} differ on one thread.",
            "",
            "The reference, calibration and host parts run on one thread, so none of these reaches"
            " a verdict or a result.",
            "",
            f"No large form of: {', '.join(never) or 'none'}.",
            "",
        ]
    )


def main(argv: list[str] | None = None) -> int:
    """Run the survey; 1 when something differs on one thread."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.racing_operators")
    parser.add_argument("results", type=Path)
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--elements", type=int, default=1 << 20)
    parser.add_argument("--limit-s", type=float, default=1.0)
    parser.add_argument("--op", default=None)
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args(argv)
    budget = Budget(given.runs, given.elements, given.limit_s)
    found: list[Outcome] = []
    refused = 0
    for result in survey(budget, given.op, given.results):
        refused += not result.outcomes
        found += result.outcomes
        for outcome in result.outcomes:
            if outcome.races:
                sys.stderr.write(f"{outcome}\n")
    text = page(found, refused, budget)
    sys.stdout.write(text)
    if given.write:
        PAGE.write_text(text, encoding="utf-8")
    return int(any(outcome.results[0] > 1 for outcome in found))


if __name__ == "__main__":
    raise SystemExit(main())
