"""Running compiled models: kernels through ctypes, host parts in ONNX Runtime, in call order.

`ModelRunner` runs a model from its pieces (verification uses it without writing a bundle);
`run_bundle` loads a bundle, checks every digest and runs it once.
Source: 4-papers.md, BYOC: the executor that walks the call list and hands each part to its engine.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from worker.compiler.control.flow import ControlFlow
from worker.compiler.errors import Finding, InputError
from worker.compiler.ir.dtype import DType
from worker.compiler.isa.program import HostCall, OperandRole, UnitCall
from worker.compiler.package.archive import damaged, open_archive, open_member, read_member
from worker.compiler.package.build import build_library
from worker.compiler.package.bundle import DOCUMENT_LIMIT_BYTES, check_digests, read_manifest
from worker.compiler.package.control import interpret
from worker.compiler.package.emulator import Arena, Emulator
from worker.compiler.package.executable import (
    Array,
    Constants,
    ExecutableModel,
    HomeTensor,
    Port,
    ProgramContents,
)
from worker.compiler.package.manifest import (
    PROGRAM_NAME,
    GraphDocument,
    body_prefix,
    decode,
    executable_of,
    graph_name,
    host_name,
    kernel_file,
    num_programs,
)
from worker.compiler.package.weights import WEIGHTS_NAME, read_weights, stored_bytes

Observer: TypeAlias = "Callable[[int, UnitCall, Callable[[str], Array]], None]"
"""Called after each kernel call with its position, the call, and a reader of home tensors."""
Feeder: TypeAlias = "Callable[[HostCall, dict[str, Array]], dict[str, Array]]"
"""Called before each host part with the arrays it would get; gives those it does get."""


class ModelRunner:
    """One model, loaded: home arena with weights, kernels, host sessions.  Not thread-safe."""

    def __init__(
        self,
        model: ExecutableModel,
        library: Path,
        host_models: Sequence[bytes],
        poison: bool = True,
        threads: int = 1,
        bodies: Sequence[ModelRunner] = (),
    ) -> None:
        self.model = model
        self._tensors = {t.name: t for t in model.tensors}
        self._home = Arena(model.program.home_bytes)
        self._emulator = Emulator(library, model.levels, model.program.units, poison)
        self._poison = poison
        self._sessions: list[Any] = [
            _session(data, threads) if data else None for data in host_models
        ]
        self._flow_of = {control.host: control.flow for control in model.controls}
        self.bodies = tuple(bodies)
        self.watch: Observer | None = None
        """Sees every kernel call of a run that was given no observer of its own."""

    def load_constants(self, constants: Constants) -> None:
        """Copy weights to their addresses, one at a time."""
        for name in self.model.constants:
            tensor = self._tensors[name]
            self._bytes(tensor)[:] = stored_bytes(tensor, constants[name]())

    @property
    def arena(self) -> memoryview:
        """The home memory, writable."""
        return self._home.buffer()

    def run(
        self,
        inputs: Mapping[str, Array],
        observe: Observer | None = None,
        feed: Feeder | None = None,
    ) -> dict[str, Array]:
        """Run the model once; outputs by name, in storage types (bf16 as uint16 bits).

        `observe` sees every kernel call, `feed` may replace what a host part is given.

        Raises:
            InputError: TW-RUN-002 with one finding per wrong input.
            MemoryFault: a kernel left its buffers.
        """
        observe = observe or self.watch
        check_inputs(self.model.inputs, inputs)
        values: dict[str, Array] = {}
        if self._poison:
            for start, end in self._between_weights():
                self._fill(start, end - start)
        for port in self.model.inputs:
            self._define(port.name, np.asarray(inputs[port.name]), values)
        fresh = set(self._tensors) - set(self.model.constants) - {p.name for p in self.model.inputs}
        for position, call in enumerate(self.model.program.calls):
            if isinstance(call, HostCall):
                fresh.difference_update(call.outputs)
                self._run_host(call, values, feed)
                continue
            self._run_unit(call, fresh)
            if observe is not None:
                observe(position, call, self.read)
        return {port.name: self._value(port.name, values) for port in self.model.outputs}

    def read(self, name: str) -> Array:
        """A copy of a home tensor as it is now."""
        tensor = self._tensors[name]
        flat = np.frombuffer(self._bytes(tensor), DType(tensor.dtype).numpy)
        return flat.reshape(tensor.shape).copy()

    def _bytes(self, tensor: HomeTensor) -> memoryview:
        return self._home.buffer()[tensor.address : tensor.address + tensor.size_bytes]

    def _define(self, name: str, value: Array, values: dict[str, Array]) -> None:
        values[name] = value
        tensor = self._tensors.get(name)
        if tensor is not None:
            self._bytes(tensor)[:] = stored_bytes(tensor, value)

    def _value(self, name: str, values: Mapping[str, Array]) -> Array:
        if name in values:
            return values[name]
        if name not in self._tensors:
            raise damaged(f"nothing produces {name}")
        return self.read(name)

    def _run_unit(self, call: UnitCall, fresh: set[str]) -> None:
        program = self.model.program.units[call.unit]
        for operand, binding in zip(program.operands, call.bindings, strict=True):
            written = operand.role in (OperandRole.OUTPUT, OperandRole.SCRATCH)
            if written and binding.tensor in fresh:
                fresh.discard(binding.tensor)  # a later call may write another part of it
                if self._poison:
                    self._fill(binding.address, operand.size_bytes)
        addresses = [self._home.address + b.address for b in call.bindings]
        self._emulator.call(self.model.kernels[call.unit], program, addresses)

    def _fill(self, address: int, size_bytes: int) -> None:
        np.frombuffer(self._home.buffer(), np.uint8, size_bytes, address)[:] = 0xFF

    def _between_weights(self) -> list[tuple[int, int]]:
        """Address ranges of the home memory that hold no weights."""
        held = sorted(
            (t.address, t.address + t.size_bytes)
            for t in (self._tensors[name] for name in self.model.constants)
        )
        free: list[tuple[int, int]] = []
        top = 0
        for start, end in (*held, (self.model.program.home_bytes,) * 2):
            if start > top:
                free.append((top, start))
            top = max(top, end)
        return free

    def _run_host(self, call: HostCall, values: dict[str, Array], feed: Feeder | None) -> None:
        feeds = {name: self._value(name, values) for name in call.inputs}
        if feed is not None:
            feeds = feed(call, feeds)
        flow = self._flow_of.get(call.host)
        if flow is not None:
            made = interpret(flow, feeds, partial(self._run_body, call.host, flow))
            results: Sequence[Any] = [made[name] for name in call.outputs]
        else:
            results = self._sessions[call.host].run(list(call.outputs), feeds)
        for name, value in zip(call.outputs, results, strict=True):
            # sequences (lists) and absent optionals pass between host parts as they are
            is_tensor = not isinstance(value, list) and value is not None
            self._define(name, np.asarray(value) if is_tensor else value, values)

    def _run_body(
        self, host: int, flow: ControlFlow, index: int, feeds: Mapping[str, Array]
    ) -> Mapping[str, Array]:
        body = flow.bodies[index]
        if body.program is not None:
            return self.bodies[body.program].run(feeds)
        found = self._sessions[host].run(list(body.computes), dict(feeds))
        return dict(zip(body.computes, map(np.asarray, found), strict=True))


def _session(model: bytes, threads: int) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def check_inputs(ports: Sequence[Port], inputs: Mapping[str, Array]) -> None:
    """Compare given arrays with the model's inputs.

    Raises:
        InputError: TW-RUN-002 with one finding per missing, unknown or ill-typed array.
    """
    findings: list[Finding] = []
    expected = {port.name: port for port in ports}
    findings.extend(
        Finding("TW-RUN-002", f"the model has no input {name!r}", allowed=list(expected))
        for name in sorted(set(inputs) - set(expected))
    )
    for port in ports:
        want = f"{port.dtype}{_dims(port)}"
        if port.name not in inputs:
            findings.append(Finding("TW-RUN-002", f"input {port.name!r} is missing", allowed=want))
            continue
        value = np.asarray(inputs[port.name])
        have = f"{value.dtype}{list(value.shape)}"
        if not _agrees(value.shape, port.shape) or not _fits(value, port.dtype):
            findings.append(
                Finding("TW-RUN-002", f"input {port.name!r} must be {want}, got {have}",
                        allowed=want, actual=have)
            )  # fmt: skip
    if findings:
        raise InputError(
            "TW-RUN-002",
            findings[0].message,
            limit=findings[0].allowed,
            actual=findings[0].actual,
            findings=tuple(findings),
        )


def _dims(port: Port) -> str:
    if port.shape is None:
        return " of any shape"
    return f"[{', '.join('?' if d < 0 else str(d) for d in port.shape)}]"


def _agrees(shape: tuple[int, ...], want: tuple[int, ...] | None) -> bool:
    return want is None or (
        len(shape) == len(want) and all(d in (s, -1) for s, d in zip(shape, want, strict=True))
    )


def _fits(value: Array, dtype: str) -> bool:
    if dtype in DType.__members__.values():
        kind = DType(dtype)
        if kind is DType.BF16:
            return value.dtype == np.uint16 or str(value.dtype) == "bfloat16"
        return value.dtype == kind.numpy
    return str(value.dtype) == dtype or (dtype == "string" and value.dtype.kind in "OSU")


def load_program(
    contents: ProgramContents, library: Path, poison: bool = True, threads: int = 1
) -> ModelRunner:
    """A runner with its weights loaded; all nested programs share the library's kernels."""
    bodies = [load_program(body, library, poison, threads) for body in contents.bodies]
    runner = ModelRunner(contents.model, library, contents.host_models, poison, threads, bodies)
    runner.load_constants(contents.constants)
    return runner


def load_bundle(
    path: Path, build_dir: Path, compiler: Path | None = None, poison: bool = True
) -> ModelRunner:
    """Check a bundle, build its kernels and load its weights.

    The kernels are compiled against the bundle's own runtime header.

    Raises:
        InputError: TW-RUN-001 when the bundle is damaged or of another format.
        CompilerError: TW-VERIFY-002 without a C compiler.
    """
    with open_archive(path) as archive:
        manifest = read_manifest(archive)
        check_digests(archive, manifest)

        def text(name: str) -> bytes:
            return read_member(archive, name, DOCUMENT_LIMIT_BYTES)

        stored = _read_program(text, "")
        names = dict.fromkeys(n for program in stored.everything() for n in program.model.kernels)
        kernels = {name: text(kernel_file(name)).decode() for name in names}
        header = text("kernels/tilewright_rt.h").decode()
        library = build_library(kernels, build_dir, compiler, header)
        return _load_stored(archive, stored, library, poison)


@dataclass(frozen=True, slots=True)
class _Stored:
    """One program of a bundle, read but for its weights."""

    prefix: str
    model: ExecutableModel
    host_models: tuple[bytes, ...]
    bodies: tuple[_Stored, ...]

    def everything(self) -> Iterator[_Stored]:
        yield self
        for body in self.bodies:
            yield from body.everything()


def _read_program(text: Callable[[str], bytes], prefix: str) -> _Stored:
    from worker.compiler.isa.binary import decode_program

    name = graph_name(prefix)
    document = decode(text(name), GraphDocument, name)
    model = executable_of(document, decode_program(text(prefix + PROGRAM_NAME)))
    hosts = 1 + max((c.host for c in model.program.calls if isinstance(c, HostCall)), default=-1)
    without = {c.host for c in model.controls if not c.needs_model}
    models = tuple(b"" if k in without else text(prefix + host_name(k)) for k in range(hosts))
    bodies = tuple(_read_program(text, body_prefix(prefix, k)) for k in range(num_programs(model)))
    return _Stored(prefix, model, models, bodies)


def _load_stored(
    archive: zipfile.ZipFile, stored: _Stored, library: Path, poison: bool
) -> ModelRunner:
    bodies = [_load_stored(archive, body, library, poison) for body in stored.bodies]
    runner = ModelRunner(stored.model, library, stored.host_models, poison, bodies=bodies)
    by_name = {t.name: t for t in stored.model.tensors}
    with open_member(archive, stored.prefix + WEIGHTS_NAME) as source:
        read_weights(source, [by_name[n] for n in stored.model.constants], runner.arena)
    return runner


def run_bundle(
    bundle: Path, inputs: Mapping[str, Array], build_dir: Path, compiler: Path | None = None
) -> dict[str, Array]:
    """Run a bundle once on named inputs; outputs by name.

    Raises:
        InputError: TW-RUN-001 (damaged bundle), TW-RUN-002 (wrong inputs).
        CompilerError: TW-VERIFY-002 without a C compiler.
    """
    return load_bundle(bundle, build_dir, compiler).run(inputs)
