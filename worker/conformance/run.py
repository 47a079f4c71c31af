"""Run a suite: compile every case, build all kernels, run them, compare with the reference.

The reference is ONNX Runtime on the case's own model, without optimisations.  Where it has no
kernel for a type: its f32 twin (16-bit floats), else ONNX's reference evaluator.  A row says which.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeAlias

import numpy as np
import onnx

from worker.compiler.assembly.packing import kernel_texts, program_contents
from worker.compiler.cache import MemoryCache
from worker.compiler.errors import CompilerError, InternalError
from worker.compiler.frontend.limits import Limits
from worker.compiler.frontend.ops.call import DTYPES
from worker.compiler.judge.compiled import CompiledModel, Ports
from worker.compiler.machine.machine import Machine
from worker.compiler.options import CompileOptions, PartitionChoice, VerifyMode
from worker.compiler.package.build import build_library
from worker.compiler.package.runtime import load_program
from worker.compiler.package.verify_numerics import (
    OutputComparison,
    coarsest,
    compare_outputs,
    tolerance,
)
from worker.compiler.partition.plan import HOST, Placement
from worker.compiler.partition.vendor_rows import rows_of
from worker.compiler.pipeline import compile_model
from worker.compiler.rejection import ReasonCode
from worker.conformance.bits import watch_bits
from worker.conformance.case import Case, Expectation, Form, Suite, Untested
from worker.conformance.form import NoForm, run_onnx
from worker.conformance.sample import Array
from worker.interpreter.engine import opened
from worker.job.ports import open_ports
from worker.job.request import NoProgress
from worker.verification.drive import stored_bits

_KERNELS_PER_LIBRARY = 256
_OPTIONS = CompileOptions(partition=PartitionChoice.GREEDY, verify=VerifyMode.NONE)
"""Greedy: whether a region is worth it is not the question here."""
_NOT_CLAIMED = frozenset(
    {
        ReasonCode.CAPABILITY_OP, ReasonCode.CAPABILITY_DTYPE, ReasonCode.CAPABILITY_ATTRIBUTE,
        ReasonCode.CAPABILITY_RANK, ReasonCode.CONSTANT_INPUT,
    }
)  # fmt: skip
_FELL = "claimed but "
_PATTERNS = (Form.PATTERN, Form.PATTERN_QDQ)
_QUANTISED = (Form.QDQ, Form.PATTERN_QDQ)
_STEP_DTYPES = ("i16", "u16")
"""Quantised results of these types may differ by one step, as 8-bit ones may."""

Progress: TypeAlias = "Callable[[int, int], None]"
"""Told (cases done, cases in all)."""


@dataclass(frozen=True, slots=True)
class Row:
    """The outcome of one check."""

    target: str
    op_type: str
    dtype: str
    form: str
    case: str
    placed: str
    """`target`, `host`, or `gone` when simplification leaves nothing to place."""
    max_error: float | None
    """Of the worst output, in the measure of `tolerance`; None: nothing ran."""
    tolerance: float | None
    passed: bool
    reason: str
    """Empty when passed."""
    reference: str = ""
    """What the results were compared with."""
    bits: str = ""
    """`equal`: integers of the kernels are those of the instruction stream; `differ`; or nothing,
    where results are floats or no kernel ran."""


def run_suite(
    machine: Machine,
    suite: Suite,
    build_dir: Path,
    header: str | None = None,
    progress: Progress | None = None,
) -> tuple[tuple[Row, ...], tuple[Untested, ...]]:
    """(outcomes in the suite's order, broken claims last; cases that nothing can judge).

    `header`: text of a vendor's tilewright_rt.h, in place of the portable one.

    Raises:
        CompilerError: TW-VERIFY-002 without a C compiler.
    Cost: one compile per case, one C build per few hundred kernels.
    """
    rows: list[Row] = []
    batch: list[tuple[Case, CompiledModel]] = []
    outcomes: dict[int, Row | Untested | None] = {}
    waiting: list[int] = []
    kernels: dict[str, str] = {}
    target = ""
    compiler = _CaseCompiler(machine)

    def flush() -> None:
        found = _run_batch(batch, kernels, build_dir, header)
        outcomes.update(zip(waiting, found, strict=True))
        batch.clear()
        waiting.clear()
        kernels.clear()

    with TemporaryDirectory() as folder:
        for position, case in enumerate(suite.cases):
            if len(kernels) >= _KERNELS_PER_LIBRARY or case.target != target:
                flush()  # kernels of another target may share names
            target = case.target
            found = compiler.attempt(case, Path(folder))
            if isinstance(found, CompiledModel):
                batch.append((case, found))
                waiting.append(position)
                kernels.update(kernel_texts(found))
            else:
                outcomes[position] = found
            if progress is not None:
                progress(position + 1, len(suite.cases))
        flush()
    settled = [outcomes[k] for k in sorted(outcomes)]
    rows += [found for found in settled if isinstance(found, Row)]
    rows += [
        Row(b.target, b.op_type, b.dtype, "", b.label, HOST, None, None, False, b.reason)
        for b in suite.broken
    ]
    return tuple(rows), tuple(found for found in settled if isinstance(found, Untested))


class _CaseCompiler:
    """Compiles cases for one machine; each target is asked as if it were the only one."""

    def __init__(self, machine: Machine) -> None:
        self._count = 0
        self._cache = MemoryCache()
        self._machines = {t.name: replace(machine, targets=(t,)) for t in machine.targets}
        self._ports: dict[str, Ports] = {
            name: open_ports(alone, _OPTIONS, self._cache, NoProgress())
            for name, alone in self._machines.items()
        }

    def attempt(self, case: Case, folder: Path) -> CompiledModel | Row | None:
        """A compiled model to run; or a row that is settled; or None: not claimed after all."""
        # weights stay mapped until the kernels have run: each case has a file of its own
        path = folder / f"case{self._count}.onnx"
        self._count += 1
        path.write_bytes(case.model)
        try:
            compiled = compile_model(
                path, "case", self._machines[case.target], _OPTIONS, self._ports[case.target],
                Limits(),
            )  # fmt: skip
        except CompilerError as error:
            return _row(case, "host", f"does not compile: {error.code} {error.message}")
        judged = _judge(case, compiled)
        return compiled if judged is _RUN else judged


_RUN = Row("", "", "", "", "", "", None, None, True, "")
"""Marks a case that is placed as claimed and must run."""


def _judge(case: Case, compiled: CompiledModel) -> Row | None:
    """Where the case's nodes went, against what is expected."""
    row_of = {row.node: row for row in compiled.placement}
    rows = [row for name, row in row_of.items() if _is_of(name, case)]
    fallen = [row for row in rows if row.target == HOST]
    if case.expectation is Expectation.REFUSED:
        return _judge_refusal(case, rows, fallen)
    if fallen:
        first = fallen[0]
        if case.expectation is Expectation.IF_CLAIMED and first.reason_code in _NOT_CLAIMED:
            return None
        word = "not placed" if first.reason_code in _NOT_CLAIMED else _verdict(first.reason_code)
        return _row(case, "host", f"{_FELL}{word}: {first.reason_code}: {first.reason}")
    is_integer = not rows or rows[0].reason_code is ReasonCode.COMPOSITE
    if case.form is Form.QDQ and case.expectation is Expectation.PLACED and not is_integer:
        return _row(case, "target", f"{_FELL}it runs in float between conversions, not as integers")
    if case.form in _PATTERNS and not _is_one_composite(case, compiled):
        return _row(case, "target", f"{_FELL}its own instance is not taken as one composite")
    return _RUN


def _verdict(code: ReasonCode) -> str:
    return "it does not fit" if code is ReasonCode.DOES_NOT_FIT else "not expressible"


def _judge_refusal(
    case: Case, rows: Sequence[Placement], fallen: Sequence[Placement]
) -> Row | None:
    if not rows:  # simplification removed the operator: nothing is left to refuse
        return None
    if not fallen:
        return _row(case, "target", "outside the rule, yet it is placed on the target")
    first = fallen[0]
    if first.reason_code != case.reason_code or case.reason_word not in first.reason:
        return _row(
            case, "host",
            f"refused, but not because of {case.reason_word}: {first.reason_code}: {first.reason}",
        )  # fmt: skip
    return _row(case, "host", "")


def _is_one_composite(case: Case, compiled: CompiledModel) -> bool:
    """Whether a row of the table took the nodes together, be it a better one than the case's."""
    rows = {rule.name for t in compiled.machine.targets for rule in rows_of(t)}
    wanted = {k for k, n in enumerate(compiled.model.ir.graph) if _is_of(n.name or "", case)}
    composites = (c for part in compiled.partitioning.regions for c in part.composites)
    return any(wanted <= set(c.nodes) and c.name in rows for c in composites)


def _is_of(node: str, case: Case) -> bool:
    """Whether a node is one of the case's, or of the body of one."""
    if node in case.nodes:
        return True
    return case.form is Form.PATTERN and any(node.startswith(f"{name}/") for name in case.nodes)


def _row(case: Case, placed: str, reason: str) -> Row:
    return Row(
        case.target, case.op_type, case.dtype, str(case.form), case.label, placed, None, None,
        not reason, reason,
    )  # fmt: skip


def _run_batch(
    batch: Sequence[tuple[Case, CompiledModel]],
    kernels: Mapping[str, str],
    build_dir: Path,
    header: str | None,
) -> Iterator[Row | Untested]:
    """Build the batch's kernels into one library and run every case of it."""
    if not batch:
        return
    try:
        library = build_library(kernels, build_dir, header=header)
    except InternalError as error:
        for case, _ in batch:
            yield _row(case, "target", f"the kernels do not build: {error.message[:300]}")
        return
    for case, compiled in batch:
        yield _run(case, compiled, library)


def _run(case: Case, compiled: CompiledModel, library: Path) -> Row | Untested:
    row_of = {row.node: row for row in compiled.placement}
    placed = "target" if any(_is_of(name, case) for name in row_of) else "gone"
    runner = load_program(program_contents(compiled), library)
    is_compared = case.form in _QUANTISED and placed == "target"
    watches = watch_bits(runner, compiled, opened(library.parent)) if is_compared else ()
    try:
        outputs = runner.run(stored_bits(case.feeds))
    except CompilerError as error:
        return _row(case, placed, f"does not run: {error.message}")
    try:
        reference, source = _reference(case)
    except NoForm as error:
        claim = f"{case.dtype} {case.form} {case.label}"
        why = f"there is no reference to compare with: {error}"
        return Untested(case.target, case.op_type, claim, why)
    worst = _compare(case, compiled, outputs, reference)
    measured = worst.max_rel_err if _is_relative(worst) else worst.max_abs_err
    differ = next((watch.difference for watch in watches if watch.difference), "")
    bits = "" if not watches else "differ" if differ else "equal"
    return replace(
        _row(case, placed, worst.reason or differ), max_error=measured, tolerance=worst.tolerance,
        reference=source, bits=bits,
    )  # fmt: skip


def _is_relative(found: OutputComparison) -> bool:
    return "float" in found.dtype


def _compare(
    case: Case,
    compiled: CompiledModel,
    outputs: Mapping[str, Array],
    reference: Mapping[str, Array],
) -> OutputComparison:
    """The worst output."""
    used = [
        DTYPES[value.dtype]
        for node in compiled.model.ir.graph
        for value in (*node.inputs, *node.outputs)
        if value is not None and value.dtype in DTYPES
    ]
    dtypes = {
        v.name: DTYPES[v.dtype]
        for v in compiled.model.ir.graph.outputs
        if v.name is not None and v.dtype in DTYPES
    }
    bound = tolerance(coarsest(used), len(compiled.linked.program.calls))
    rows = [
        _one_step(case, row) for row in compare_outputs(outputs, reference, bound, dtypes).outputs
    ]
    return max(rows, key=lambda row: (not row.passed, row.max_rel_err))


def _one_step(case: Case, row: OutputComparison) -> OutputComparison:
    """Wide quantised results: a value on a rounding boundary may land one step apart too."""
    if case.form not in _QUANTISED or case.dtype not in _STEP_DTYPES or row.max_abs_err > 1:
        return row
    return replace(row, passed=True, tolerance=1.0, reason="")


def _reference(case: Case) -> tuple[Mapping[str, Array], str]:
    """(outputs, who computed them)."""
    try:
        return run_onnx(case.model, case.feeds), "ONNX Runtime"
    except NoForm as error:
        if case.twin:
            wide = {n: _widened(v) for n, v in case.feeds.items()}
            return run_onnx(case.twin, wide), "ONNX Runtime in f32"
        refused = error
    from onnx.reference import ReferenceEvaluator

    try:
        evaluator = ReferenceEvaluator(onnx.load_from_string(case.model))
        found = evaluator.run(None, dict(case.feeds))
    except (RuntimeError, TypeError, ValueError, NotImplementedError, IndexError) as error:
        raise NoForm(
            f"{refused}; ONNX's reference: {' '.join(str(error).split())[:200]}"
        ) from error
    names = [output.name for output in onnx.load_from_string(case.model).graph.output]
    results = dict(zip(names, map(np.asarray, found), strict=True))
    return results, "ONNX reference evaluator"


def _widened(array: Array) -> Array:
    narrow = array.dtype == np.float16 or str(array.dtype) == "bfloat16"
    return array.astype(np.float32) if narrow else array
