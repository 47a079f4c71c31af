"""Which operators of ONNX Runtime give different bits from run to run.

    python -m benchmarks.racing_operators --runs 50 --write

Every node test of ONNX runs as it is, and one per operator, text attribute and element type made
large enough (`--elements`) that ONNX Runtime shares it among threads: its inputs are repeated along
the first axis (all of them, those as long as the first, or the first alone: whatever runs), floats
are drawn.  Each
form runs `--runs` times on one thread and on two; bits are compared.  Operators that draw random
numbers are left out.  `--write` makes RACING_OPERATORS.md; `--op NAME` looks at one operator.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
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
_LIMIT_S = 1.0
"""Of one large form on one thread, all runs."""

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


def large_form(model: onnx.ModelProto, feeds: Feeds, elements: int, runs: int) -> Feeds | None:
    """Inputs of a large form that runs, and soon enough; None when there is none."""
    for k, small in enumerate(repeated(feeds, _PROBE)):
        try:
            loaded = session(model, 1)
            loaded.run(None, small)
            start = time.perf_counter()
            loaded.run(None, small)
            spent = time.perf_counter() - start
            growth = elements / _PROBE
            if spent * growth * runs > _LIMIT_S:
                continue
            large = list(repeated(feeds, elements))[k]
            start = time.perf_counter()
            loaded.run(None, large)
        except Exception:  # whatever ONNX Runtime says: this form is not for this operator
            continue
        if (time.perf_counter() - start) * runs <= _LIMIT_S:
            return large
    return None


def survey(runs: int, elements: int, only: str | None) -> Iterator[Outcome | str]:
    """Outcomes in order of cases; the name of a case that ONNX Runtime does not run."""
    seen: set[tuple[str, str, str]] = set()
    for name, model, feeds in cases():
        node = model.graph.node[0]
        if only is not None and node.op_type != only:
            continue
        words = ", ".join(
            f"{a.name}={a.s.decode()}"
            for a in node.attribute
            if a.type == onnx.AttributeProto.STRING
        )
        try:
            plain = tuple(num_results(model, feeds, threads, runs) for threads in THREADS)
        except Exception:  # no kernel for this type or opset
            yield name
            continue
        size = sum(a.size for a in feeds.values())
        yield Outcome(node.op_type, words, name, size, False, plain)
        kind = str(next(iter(feeds.values())).dtype) if feeds else ""
        key = (node.op_type, words, kind)
        if key in seen:
            continue
        bare = enlarged(model)
        large = large_form(bare, feeds, elements, runs)
        if large is None:
            continue
        seen.add(key)
        many = tuple(num_results(bare, large, threads, runs) for threads in THREADS)
        size = sum(a.size for a in large.values())
        yield Outcome(node.op_type, words, name, size, True, many)


def page(found: Sequence[Outcome], refused: int, runs: int) -> str:
    """The table, as Markdown."""
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
            f"Made by `python -m benchmarks.racing_operators --runs {runs} --write`, ONNX Runtime"
            f" {onnxruntime.__version__}, ONNX {onnx.__version__}, CPU. Results that differ in"
            f" {runs} runs of the same inputs; 1 is right.",
            "",
            "| operator | attributes | node test | elements | on 1 thread | on 2 threads |",
            "|---|---|---|---:|---:|---:|",
            *rows,
            "",
            f"{len(found) - len(large)} node tests as they are"
            f" ({refused} more have no kernel), {len(large)} large forms of"
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
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--elements", type=int, default=1 << 20)
    parser.add_argument("--op", default=None)
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args(argv)
    found: list[Outcome] = []
    refused = 0
    for each in survey(given.runs, given.elements, given.op):
        if isinstance(each, str):
            refused += 1
            continue
        found.append(each)
        if each.races:
            sys.stderr.write(f"{each}\n")
    text = page(found, refused, given.runs)
    sys.stdout.write(text)
    if given.write:
        PAGE.write_text(text, encoding="utf-8")
    return int(any(outcome.results[0] > 1 for outcome in found))


if __name__ == "__main__":
    raise SystemExit(main())
