"""Run the compiled kernels and judge them.

`sample`: every unique kernel once, on the values it meets in a whole run's first call of it,
against the numpy oracle at sampled points (corners and a seeded draw), and then the model's outputs
against ONNX Runtime on the user's original file.  Kernels too deep for the oracle have their
outputs compared with the reference's values in whole; where those prove nothing, what they keep to
themselves.
`full`: all that, and everything that any call of a kernel hands over through home memory or keeps
to itself (`observing`); and every kernel's first call again, instruction by instruction, in other
orders that its program allows (`interleaving`).
`none`: nothing runs, and the report says so.
Kernels linked with a vendor's library also give the integers that their own code gives (`linked`).

What differs by more than a few roundings is judged by the reference's own error (`measured`); a
value that does not depend on the inputs proves nothing (`verdict`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from math import isfinite
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from worker.compiler.assembly.packing import kernel_texts, nested_models, program_contents
from worker.compiler.errors import CompilerError, Mismatch
from worker.compiler.frontend.work import static_shape
from worker.compiler.isa.program import HostCall, UnitCall
from worker.compiler.judge.compiled import CompiledModel
from worker.compiler.judge.units import Unit
from worker.compiler.options import CompileOptions, VerifyMode
from worker.compiler.package.build import build_library
from worker.compiler.package.executor import Feeder
from worker.compiler.package.kernel_library import KernelLibrary
from worker.compiler.package.runtime import ModelRunner, load_program
from worker.report.document import NOT_ASKED, Verification
from worker.report.node_names import node_span
from worker.report.verified_row import VerifiedRow
from worker.verification.budget import over_budget
from worker.verification.comparing import Comparer, changes
from worker.verification.engines import watch_engines
from worker.verification.given_inputs import other_inputs
from worker.verification.inputs import held_out, seeded_inputs
from worker.verification.interleaving import ORDERS, InterleavedKernels
from worker.verification.linked import OwnKernels
from worker.verification.measured import judged
from worker.verification.noise import conversion_noise
from worker.verification.observing import ObservedKernels, inner_names
from worker.verification.references import own_errors, reference_values
from worker.verification.sampling import check_unit
from worker.verification.scoring import Scoring
from worker.verification.selection import selection_inputs
from worker.verification.verdict import Found, Judged, verdict
from worker.verification.whole_outputs import Handover, handed_over, is_sampleable

Array = npt.NDArray[Any]
UnitObserver: TypeAlias = "Callable[[Sequence[Unit], int, UnitCall, Callable[[str], Array]], None]"
"""An observer of kernel calls that is also told the units the call numbers."""
_HOST_FAILED = "TW-RUN-003"
_NO_REFERENCE = frozenset({"TW-VERIFY-003", "TW-CAL-005"})
MAX_INNER_BYTES = 256 << 20
"""Of the inner tensors that are compared; as much again is the reference's."""


def verify_model(
    path: Path,
    compiled: CompiledModel,
    options: CompileOptions,
    build_dir: Path,
    given: Mapping[str, Array] | None = None,
    scoring: Scoring | None = None,
    bundle: Path | None = None,
    link: KernelLibrary | None = None,
) -> Verification:
    """Verify as `options.verify` says, on the inputs `given`, or on seeded ones.

    `scoring`: samples for the noise of a conversion; None: one from a seed.  `bundle`: what was
    written of the model, where targets name engines: its regions run on them as well.  `link`: the
    library whose functions kernels call.

    What cannot be verified is reported, not raised: what would take more than the budget, without a
    C compiler, where ONNX Runtime rejects the model or the inputs, or where its values do not fit
    in memory.

    Raises:
        MemoryFault: a kernel left its buffers.
        CompilerError: TW-PLUG-003, an engine failed.
        InputError: TW-LINK-005, the kernel library cannot be loaded.
    """
    mode = options.verify
    if mode is VerifyMode.NONE:
        return NOT_ASKED
    why = over_budget(compiled.source, path.stat().st_size)
    if why is not None:
        return _unverified(mode, why)
    try:
        library = build_library(kernel_texts(compiled), build_dir, link=link)
    except CompilerError as error:
        if error.code != "TW-VERIFY-002":
            raise
        return Verification(str(mode), "none", None, None, None, None, error.message)
    compiled.model.release_pages()
    inputs = seeded_inputs(compiled.model, options.seed) if given is None else given
    try:
        verifier = _Verifier(path, compiled, options, inputs, scoring, bundle, link)
        return verifier.run(library, build_dir)
    except CompilerError as error:
        if error.code not in _NO_REFERENCE:
            raise
        return _unverified(mode, error.message)
    except MemoryError as error:
        return _unverified(mode, f"what is compared does not fit in memory: {error}")


def _unverified(mode: VerifyMode, why: str) -> Verification:
    """Nothing was compared."""
    detail = f"not verified, because {why}"
    return Verification(str(mode), "none", None, None, None, None, detail)


class _Verifier:
    """One verification: what the reference gives, what the kernels give, and the rows of both."""

    def __init__(
        self,
        path: Path,
        compiled: CompiledModel,
        options: CompileOptions,
        inputs: Mapping[str, Array],
        scoring: Scoring | None,
        bundle: Path | None,
        link: KernelLibrary | None,
    ) -> None:
        self._bundle = bundle
        self._link = link
        self._engines: tuple[str, ...] = ()
        self._path = path
        self._compiled = compiled
        self._scoring = scoring
        self._inputs = inputs
        self._seed = options.seed
        self._is_full = options.verify is VerifyMode.FULL
        self._mode = str(options.verify)
        self._comparer = Comparer(compiled)
        self._found = Found()
        self._orders: InterleavedKernels | None = None
        self._own: OwnKernels | None = None
        self._deep = {
            unit.kernel_name
            for unit in compiled.units
            if self._is_full or not is_sampleable(unit.schedule.graph)
        }
        """Kernels that are compared by their values."""
        self._handovers = handed_over(compiled, self._deep, every_call=self._is_full)
        self._selecting = selection_inputs(compiled)
        self._ask_reference()

    def _ask_reference(self) -> None:
        """The reference's values, and how far each moves when the inputs are others."""
        candidates = inner_names(self._compiled, self._deep, self._is_full, MAX_INNER_BYTES)
        whole = [h.tensor for found in self._handovers.values() for h in found]
        inside = [name for names in candidates.values() for name in names.values()]
        names = tuple(dict.fromkeys((*self._selecting, *whole, *inside)))
        self._outputs, self._inner = reference_values(
            self._path, self._compiled, self._inputs, names
        )
        self._known = {**self._inner, **self._outputs}
        others = other_inputs(self._compiled.model, self._inputs, self._seed + 1)
        if others:
            try:
                outputs, inner = reference_values(self._path, self._compiled, others, names)
            except CompilerError as error:
                if error.code not in _NO_REFERENCE:
                    raise
            else:
                self._found.moves = changes(self._known, {**inner, **outputs})
        self._wanted = {
            position: kept
            for position, names_of in candidates.items()
            if (kept := {k: n for k, n in names_of.items() if self._is_known(position, k, n)})
        }

    def _is_known(self, position: int, local: str, name: str) -> bool:
        """Whether the reference has an inner tensor, in the same shape."""
        call = self._compiled.linked.program.calls[position]
        assert isinstance(call, UnitCall)
        shape = self._compiled.units[call.unit].schedule.graph.tensors[local].shape
        return name in self._known and np.shape(self._known[name]) == shape

    def run(self, library: Path, build_dir: Path) -> Verification:
        """Run the kernels and give the verdict.

        How far a value may be off is known when it has been judged.  So where what a kernel hands
        over turns out to move by less, everything runs once more, and its inner tensors are looked
        at as well.
        """
        wanted = self._wanted if self._is_full else self._chosen()
        found = self._judged(library, build_dir, wanted)
        if found.unproven and not self._is_full:
            more = self._chosen(found.unproven)
            if more != wanted:
                self._found = Found(moves=self._found.moves)
                found = self._judged(library, build_dir, more)
        forced = sum(name in self._inner for name in self._selecting)
        return self._verification(found, forced)

    def _judged(
        self, library: Path, build_dir: Path, wanted: Mapping[int, Mapping[str, str]]
    ) -> Judged:
        """Run the kernels, those in `wanted` in their observed forms too, and judge the values."""
        compiled = self._compiled
        observed = ObservedKernels(compiled, wanted, build_dir, self._link) if wanted else None
        try:
            runner = load_program(program_contents(compiled), library)
        except CompilerError as error:
            raise self._blamed(error) from error
        if self._is_full:
            self._orders = InterleavedKernels(compiled, library, build_dir, self._link)
        if self._link is not None:
            self._own = OwnKernels(compiled, library, build_dir)
        _watch(runner, compiled, partial(self._observe, observed, runner.metadata.home_address))
        if self._bundle is not None:
            folder, found = build_dir / "engines", self._found.of_engine
            self._engines = watch_engines(runner, self._bundle, folder, self._comparer.floor, found)
        selecting = {n: self._inner[n] for n in self._selecting if n in self._inner}
        feed = partial(self._feed, selecting) if self._selecting else None
        outputs = self._run_ours(runner, feed)
        del runner
        for compared, row in self._comparer.outputs(outputs, self._outputs):
            self._found.add(row, compared.name, compared.reason)
        rows = self._found.rows
        own = None
        if any(row.error > row.tolerance for row in rows if row.name in self._found.value_of):
            values = {
                n: self._known[n] for n in dict.fromkeys(self._found.value_of.values())
            }  # fmt: skip
            own = own_errors(
                self._path, compiled, self._inputs, values, self._seed,
                is_odd=any(not isfinite(row.error) for row in rows),
            )  # fmt: skip
            for k, row in enumerate(rows):
                value = self._found.value_of.get(row.name, "")
                if value in own.of and not row.is_open:
                    rows[k] = judged(
                        row, own.of[value], self._comparer.coarsest,
                        is_overflowing=value in own.overflowing,
                    )  # fmt: skip
        if self._orders is not None:
            self._found.orders = ORDERS
            self._found.interleaved = tuple(self._orders.done)
            self._found.not_interleaved = self._orders.left_out
        return verdict(self._found, tuple(self._outputs), own)

    def _run_ours(self, runner: ModelRunner, feed: Feeder | None) -> dict[str, Array]:
        try:
            return runner.run(stored_bits(self._inputs), feed=feed)
        except CompilerError as error:
            raise self._blamed(error) from error

    def _blamed(self, error: CompilerError) -> CompilerError:
        """The error of a host part as our bug, where ONNX Runtime has run the whole model.

        Not so where an output came out in another shape than the model says: what we compile keeps
        its word.
        """
        if error.code != _HOST_FAILED or not self._outputs:
            return error
        for value in self._compiled.source.ir.graph.outputs:
            shape = static_shape(value)
            made = self._outputs.get(value.name or "")
            if shape is not None and made is not None and np.shape(made) != shape:
                return error
        return CompilerError("TW-INT-005", error.message, node=error.place.node)

    def _chosen(self, unproven: Collection[str] = ()) -> dict[int, dict[str, str]]:
        """In `sample`: inner tensors of kernels whose handed-over values would prove nothing, and
        of those that are `unproven`."""
        floor = self._comparer.floor
        proven = {
            kernel
            for found in self._handovers.values()
            for h in found
            if h.tensor in self._known and self._found.moves.get(h.tensor, np.inf) > 2 * floor
            for kernel in h.kernels
            if kernel not in unproven
        }
        calls = self._compiled.linked.program.calls
        chosen: dict[int, dict[str, str]] = {}
        for position, names in self._wanted.items():
            call = calls[position]
            assert isinstance(call, UnitCall)
            if self._compiled.units[call.unit].kernel_name not in proven:
                chosen[position] = dict(names)
        return chosen

    def _observe(
        self,
        observed: ObservedKernels | None,
        base: int,
        units: Sequence[Unit],
        position: int,
        call: UnitCall,
        read: Callable[[str], Array],
    ) -> None:
        """Compare what a call has computed."""
        unit = units[call.unit]
        kernel = unit.kernel_name
        label = f"kernel {kernel} {node_span(call.onnx_nodes)}"
        if units is self._compiled.units:
            for handover in self._handovers.get(position, ()):
                self._compare_whole(handover, read(handover.tensor))
            if observed is not None:
                for inner in observed.values(position, call, base, read):
                    if inner is None:
                        different = VerifiedRow(f"{label}: its observed form", np.inf, np.inf, 0.0)
                        self._found.add(different, "", "it writes other outputs than the plain one")
                    elif inner.computed.any():
                        row = self._comparer.value(
                            f"{label}: {inner.tensor} (inside)", inner.tensor, inner.value,
                            self._known[inner.tensor], inner.computed,
                        )  # fmt: skip
                        self._found.add(row, inner.tensor, kernels=(kernel,), is_inner=True)
            if self._orders is not None:
                self._run_in_other_orders(self._orders, call, base, label)
            if self._own is not None and (apart := self._own.differs(call, base)) is not None:
                row = VerifiedRow(f"{label}: linked", apart, apart, 0.0)
                self._found.add(row, "", "its library gives other integers than its own code")
        if kernel in self._found.kernels:
            return
        self._found.kernels[kernel] = call.onnx_nodes
        if not is_sampleable(unit.schedule.graph):
            return
        names = {
            operand.tensor: binding.tensor
            for operand, binding in zip(unit.program.operands, call.bindings, strict=True)
        }
        arrays = {local: read(name) for local, name in names.items()}
        row = check_unit(unit, arrays, self._seed, call.onnx_nodes)
        if not row.is_open:
            self._found.sampled.add(kernel)
        self._found.add(row, "")

    def _run_in_other_orders(
        self, orders: InterleavedKernels, call: UnitCall, base: int, label: str
    ) -> None:
        found = orders.differs(call, base)
        if found is not None:
            why, apart = found
            self._found.add(VerifiedRow(f"{label}: in another order", apart, apart, 0.0), "", why)

    def _compare_whole(self, handover: Handover, value: Array) -> None:
        """A value that kernels hand over, where the reference has it in the same shape.

        The others have no reference: simplification renamed them, or a region's layout is another.
        """
        name = handover.tensor
        if name not in self._known or np.shape(self._known[name]) != value.shape:
            self._found.unknown += 1
            return
        label = f"kernel {handover.kernels[0]} {node_span(handover.onnx_nodes)}: {name}"
        row = self._comparer.value(label, name, value, self._known[name])
        self._found.add(row, name, kernels=handover.kernels)

    def _feed(
        self, forced: Mapping[str, Array], call: HostCall, feeds: dict[str, Array]
    ) -> dict[str, Array]:
        """Compare what enters a host part that selects, and let it see the reference's values."""
        known = {name: forced[name] for name in call.inputs if name in forced}
        place = f"before {call.op_types[0]}: "
        for compared, row in self._comparer.outputs(feeds, known, place):
            self._found.add(row, compared.name, compared.reason)
        return {**feeds, **known}

    def _verification(self, judged_as: Judged, num_forced: int) -> Verification:
        compiled = self._compiled
        rows = self._found.rows
        forced = f", {num_forced} values compared and fixed before selections" if num_forced else ""
        names = ", ".join(self._engines)
        engines = f", regions on engines ({names}) compared with the kernels" if names else ""
        linked = "" if self._link is None else f", kernels linked with {self._link.label}"
        if self._own is not None and self._own.done:
            linked += f", bits of {len(self._own.done)} equal to their own code's"
        rest = f"{forced}{engines}{linked}, seed {self._seed}"
        worst = max(rows, key=lambda row: (row.share, row.error))
        scoring = None
        if compiled.boundaries:
            scoring = self._scoring or Scoring(
                (held_out(compiled.model, self._seed),), "random inputs"
            )
        return Verification(
            self._mode,
            f"ONNX Runtime on the {'converted' if compiled.boundaries else 'original'} model,"
            " no optimisations, one thread",
            max(row.max_abs_err for row in rows),
            worst.error,
            worst.tolerance,
            judged_as.passed,
            judged_as.detail + (rest if judged_as.passed else ""),
            tuple(rows),
            () if scoring is None else conversion_noise(self._path, compiled, scoring.batches),
            judged_as.insensitive,
            worst.name,
            "" if scoring is None else scoring.words,
            scoring is None or not scoring.is_seen,
        )


def _watch(runner: ModelRunner, compiled: CompiledModel, observe: UnitObserver) -> None:
    """Show `observe` every kernel call of the model and of the programs nested in it."""
    runner.watch = partial(observe, compiled.units)
    for body, model in zip(runner.bodies, nested_models(compiled), strict=True):
        _watch(body, model, observe)


def stored_bits(inputs: Mapping[str, Array]) -> dict[str, Array]:
    """bfloat16 arrays as the uint16 bits kernels store."""
    return {
        name: value.view(np.uint16) if str(value.dtype) == "bfloat16" else value
        for name, value in inputs.items()
    }


def refuse_mismatch(verification: Verification) -> None:
    """Fail the job when kernels ran and were wrong (the report that shows it is written first)."""
    if verification.passed is False:
        raise Mismatch(
            f"the kernels' outputs differ from the reference: {verification.detail}",
            limit=verification.tolerance or 0.0,
            actual=verification.max_rel_err or 0.0,
        )
