"""Run the compiled kernels and judge them.

`full`: the whole model on seeded inputs against ONNX Runtime on the user's original file.
`sample`: every unique kernel once, on the values it meets in a whole run's first call of it,
against the numpy oracle at sampled points (corners and a seeded draw), and then the outputs too.
Kernels too deep for the oracle have their outputs compared with the reference's values in whole.
`none`: nothing runs, and the report says so.

A value that is farther from the reference than its tolerance is judged again by the model's own
conditioning (`conditioning`): what one rounding of the inputs does to the reference.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from worker.compiler.errors import CompilerError, Mismatch
from worker.compiler.frontend.ops.call import DTYPES
from worker.compiler.isa.program import HostCall, UnitCall
from worker.compiler.options import CompileOptions, VerifyMode
from worker.compiler.package.build import build_library
from worker.compiler.package.runtime import ModelRunner, load_program
from worker.compiler.package.verify_numerics import Comparison, coarsest, compare_outputs
from worker.compiler.pipeline import CompiledModel
from worker.compiler.units import Unit
from worker.packing import kernel_texts, nested_models, program_contents, programs
from worker.report.document import Verification
from worker.report.node_names import node_span
from worker.verification.conditioning import eased_tolerances
from worker.verification.inputs import seeded_inputs
from worker.verification.noise import conversion_noise, converted_reference
from worker.verification.reference import reference_outputs
from worker.verification.sampling import check_unit
from worker.verification.selection import selection_inputs
from worker.verification.whole_outputs import NOTHING, Deep, deep_outputs, is_sampleable

Array = npt.NDArray[Any]
Row: TypeAlias = tuple[str, float, float, float]
"""(what was judged, max abs error, error over scale, tolerance)."""
EASED = "the reference moves as much when its inputs move by one rounding"
UnitObserver: TypeAlias = "Callable[[Sequence[Unit], int, UnitCall, Callable[[str], Array]], None]"
"""An observer of kernel calls that is also told the units the call numbers."""


def verify_model(
    path: Path, compiled: CompiledModel, options: CompileOptions, build_dir: Path
) -> Verification:
    """Verify as `options.verify` says.  A missing C compiler is reported, not raised.

    Raises:
        CompilerError: TW-VERIFY-003 when ONNX Runtime rejects the original model.
        MemoryFault: a kernel left its buffers.
    """
    mode = options.verify
    if mode is VerifyMode.NONE:
        return Verification("none", "none", None, None, None, None, "not asked for")
    try:
        library = build_library(kernel_texts(compiled), build_dir)
    except CompilerError as error:
        if error.code != "TW-VERIFY-002":
            raise
        return Verification(str(mode), "none", None, None, None, None, error.message)
    runner = load_program(program_contents(compiled), library)
    compiled.model.release_pages()
    inputs = seeded_inputs(compiled.model, options.seed)
    rows: list[Row] = []
    value_of: dict[str, str] = {}
    """By a row's label: the value of the model it judges."""
    seen: set[str] = set()
    whole: dict[str, tuple[Deep, Array]] = {}
    """By model tensor: what deep kernels of the model wrote."""
    deep = deep_outputs(compiled) if mode is VerifyMode.SAMPLE else NOTHING
    deep_kernels: set[str] = set()

    def observe(
        units: Sequence[Unit], position: int, call: UnitCall, read: Callable[[str], Array]
    ) -> None:
        unit = units[call.unit]
        if units is compiled.units:
            whole.update((d.tensor, (d, read(d.tensor))) for d in deep.get(position, ()))
        if unit.kernel_name in seen:
            return
        seen.add(unit.kernel_name)
        if not is_sampleable(unit.schedule.graph):
            deep_kernels.add(unit.kernel_name)
            return
        names = {
            operand.tensor: binding.tensor
            for operand, binding in zip(unit.program.operands, call.bindings, strict=True)
        }
        arrays = {local: read(name) for local, name in names.items()}
        rows.append(check_unit(unit, arrays, options.seed, call.onnx_nodes))

    if mode is VerifyMode.SAMPLE:
        _watch(runner, compiled, observe)
    inner_names = tuple(d.tensor for found in deep.values() for d in found)
    selecting = selection_inputs(compiled)
    if selecting:
        reference, inner = _reference(
            path, compiled, inputs, tuple(dict.fromkeys((*selecting, *inner_names)))
        )
        forced = {name: inner[name] for name in selecting if name in inner}

        def feed(call: HostCall, feeds: dict[str, Array]) -> dict[str, Array]:
            known = {name: forced[name] for name in call.inputs if name in forced}
            before = _compare(compiled, feeds, known)
            for o in before.outputs:
                label = f"before {call.op_types[0]}: {o.name}"
                value_of[label] = o.name
                rows.append((label, o.max_abs_err, o.max_rel_err, o.tolerance))
            return {**feeds, **known}

        outputs = runner.run(_storage(inputs), feed=feed)
    else:
        outputs = runner.run(_storage(inputs))
        del runner  # the home arena goes before the reference loads its own copy of the weights
        reference, inner = _reference(path, compiled, inputs, inner_names)
        forced = {}
    inside = _compare_whole(compiled, whole, {**reference, **inner})
    alone = deep_kernels - {kernel for name in inside for kernel in whole[name][0].kernels}
    rows += inside.values()
    value_of.update((row[0], name) for name, row in inside.items())
    comparison = _compare(compiled, outputs, reference)
    value_of.update((o.name, o.name) for o in comparison.outputs)
    rows += [(o.name, o.max_abs_err, o.max_rel_err, o.tolerance) for o in comparison.outputs]
    eased: set[str] = set()
    if any(row[2] > row[3] for row in rows if row[0] in value_of):
        names = tuple(dict.fromkeys((*selecting, *inner_names)))
        rows, eased = _eased(
            rows, value_of, {**inner, **reference}, inputs, options.seed,
            lambda moved: _reference(path, compiled, moved, names),
        )  # fmt: skip
    failed = [row for row in rows if row[2] > row[3]]
    unlike = [o for o in comparison.outputs if not o.passed and o.name not in eased]
    passed = not unlike and not failed
    reasons = [o.reason for o in unlike]
    note = (
        f", {len(inside)} values of {len(deep_kernels) - len(alone)} deep kernels compared in whole"
        f" ({len(whole) - len(inside)} values without a reference), {len(alone)} deep kernels"
        " judged by the outputs alone"
    )
    detail = (
        f"{len(comparison.outputs)} outputs, {len(seen) - len(deep_kernels)} kernels sampled"
        f"{note if deep_kernels else ''}, {len(forced)} values compared and fixed before"
        f" selections, seed {options.seed}"
        f"{f', {len(eased)} tolerances eased: {EASED}' if eased else ''}"
        if passed
        else "; ".join([*reasons, *(f"{r[0]}: {r[2]:.3g} > {r[3]:.3g}" for r in failed)][:4])
    )
    return Verification(
        str(mode),
        f"ONNX Runtime on the {'converted' if compiled.boundaries else 'original'} model,"
        " no optimisations",
        max(row[1] for row in rows),
        max(row[2] for row in rows),
        max((row[3] for row in rows if row[0] in reference), default=None),
        passed,
        detail,
        tuple(rows),
        conversion_noise(path, compiled, inputs) if compiled.boundaries else (),
    )


def _reference(
    path: Path, compiled: CompiledModel, inputs: Mapping[str, Array], extra: Sequence[str]
) -> tuple[dict[str, Array], dict[str, Array]]:
    """What the kernels must compute: the user's file, or the converted model where numbers change
    their format (its noise against the user's file is reported apart)."""
    if compiled.boundaries:
        return converted_reference(compiled, inputs, extra)
    return reference_outputs(path, inputs, extra)


def _eased(
    rows: Sequence[Row],
    value_of: Mapping[str, str],
    reference: Mapping[str, Array],
    inputs: Mapping[str, Array],
    seed: int,
    run: Callable[[Mapping[str, Array]], tuple[dict[str, Array], dict[str, Array]]],
) -> tuple[list[Row], set[str]]:
    """The rows with tolerances that suit an ill-conditioned model; labels that pass by it only."""
    tolerances = {value_of[row[0]]: row[3] for row in rows if row[0] in value_of}

    def values(moved: Mapping[str, Array]) -> dict[str, Array]:
        outputs, inner = run(moved)
        return {**inner, **outputs}

    bounds = eased_tolerances(values, inputs, reference, tolerances, seed)
    found = [
        (label, worst, error, max(bound, bounds.get(value_of.get(label, ""), 0.0)))
        for label, worst, error, bound in rows
    ]
    pairs = zip(rows, found, strict=True)
    return found, {new[0] for old, new in pairs if old[3] < old[2] <= new[3]}


def _watch(runner: ModelRunner, compiled: CompiledModel, observe: UnitObserver) -> None:
    """Show `observe` every kernel call of the model and of the programs nested in it."""
    runner.watch = partial(observe, compiled.units)
    for body, model in zip(runner.bodies, nested_models(compiled), strict=True):
        _watch(body, model, observe)


def _storage(inputs: Mapping[str, Array]) -> dict[str, Array]:
    """bfloat16 arrays as the uint16 bits kernels store."""
    return {
        name: value.view(np.uint16) if str(value.dtype) == "bfloat16" else value
        for name, value in inputs.items()
    }


def _compare(
    compiled: CompiledModel, outputs: Mapping[str, Array], reference: Mapping[str, Array]
) -> Comparison:
    used = [
        DTYPES[value.dtype]
        for program in programs(compiled)
        for node in program.model.ir.graph
        for value in node.outputs
        if value.dtype in DTYPES
    ]
    dtypes = {name: tensor.dtype for name, tensor in compiled.linked.tensors.items()}
    dtypes |= {
        v.name: DTYPES[v.dtype]
        for v in compiled.model.ir.graph.outputs
        if v.name is not None and v.dtype in DTYPES
    }
    depth = _depth(compiled)
    return compare_outputs(outputs, reference, coarsest(used), depth, dtypes)


def _compare_whole(
    compiled: CompiledModel, found: Mapping[str, tuple[Deep, Array]], known: Mapping[str, Array]
) -> dict[str, tuple[str, float, float, float]]:
    """Rows of the values that the reference has in the same shape, by name.

    The others have no reference: simplification renamed them, or a region's layout is another.
    8-bit values are judged as floats are: a value on a rounding boundary may land one step apart,
    and what later layers make of that is more than the step an output may be off.
    """
    usable = {
        name: value
        for name, (_, value) in found.items()
        if name in known and np.shape(known[name]) == value.shape
    }
    want = {name: known[name] for name in usable}
    for name, value in usable.items():
        if value.dtype.itemsize == 1 and value.dtype.kind in "iu":
            usable[name] = value.astype(np.float32)
            want[name] = want[name].astype(np.float32)
    rows: dict[str, tuple[str, float, float, float]] = {}
    for compared in _compare(compiled, usable, want).outputs:
        deep = found[compared.name][0]
        label = f"kernel {deep.kernels[0]} {node_span(deep.onnx_nodes)}: {compared.name}"
        is_exact = usable[compared.name].dtype.kind in "iub"
        error = compared.max_abs_err if is_exact else compared.max_rel_err
        rows[compared.name] = (label, compared.max_abs_err, error, compared.tolerance)
    return rows


def _depth(compiled: CompiledModel) -> int:
    """ONNX nodes, whichever side runs them and in however many kernels: the bound of a model must
    depend neither on its placement nor on the strategy, which compose operators as they like.
    Nodes of nested programs count once per known iteration."""
    depth = len(compiled.model.ir.graph)
    for control in compiled.controls:
        if control.flow is not None:
            body = max((_depth(b) for b in control.bodies if b is not None), default=0)
            depth += body * max(control.flow.trips or 1, 1)
    return depth


def refuse_mismatch(verification: Verification) -> None:
    """Fail the job when kernels ran and were wrong (the report that shows it is written first)."""
    if verification.passed is False:
        raise Mismatch(
            f"the kernels' outputs differ from the reference: {verification.detail}",
            limit=verification.tolerance or 0.0,
            actual=verification.max_rel_err or 0.0,
        )
