"""The executor: walks a program's calls and hands each to the module that runs it.

One `ModelRunner` has a metadata module (constants and data entries), a host module (ONNX Runtime)
and shares the accelerator module (engines) with the programs nested in it.
Source: BYOC section 3.4; runtime.py makes runners from bundles.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np

from worker.compiler.control.flow import ControlFlow
from worker.compiler.isa.program import HostCall, OperandRole, UnitCall
from worker.compiler.package.accelerator_module import AcceleratorModule, programs_by_target
from worker.compiler.package.control import interpret
from worker.compiler.package.executable import Array, Constants, ExecutableModel
from worker.compiler.package.home_region import HomeRegion
from worker.compiler.package.host_module import HostModule
from worker.compiler.package.metadata_module import MetadataModule
from worker.compiler.package.model_inputs import check_inputs, stored
from worker.compiler.package.profile import (
    CallProfile,
    Clock,
    InvocationProfile,
    Tally,
    no_clock,
)

Observer: TypeAlias = "Callable[[int, UnitCall, Callable[[str], Array]], None]"
"""Called after each kernel call with its position, the call, and a reader of home tensors."""
Feeder: TypeAlias = "Callable[[HostCall, dict[str, Array]], dict[str, Array]]"
"""Called before each host part with the arrays it would get; gives those it does get."""


class RegionWatch(Protocol):
    """Sees a region that runs as kernels: what goes in, and what has come out."""

    def entered(self, read: Callable[[str], Array]) -> None:
        """Before its first kernel; `read` gives home tensors."""
        ...

    def left(self, read: Callable[[str], Array]) -> None:
        """After its last."""
        ...


class ModelRunner:
    """One model, loaded: data entries with weights, engines, sessions.  Not thread-safe."""

    def __init__(
        self,
        model: ExecutableModel,
        library: Path,
        host_models: Sequence[bytes],
        poison: bool = True,
        threads: int = 1,
        bodies: Sequence[ModelRunner] = (),
        engines: AcceleratorModule | None = None,
        clock: Clock | None = None,
    ) -> None:
        """`engines` are shared with other programs; None: the model's own.  Without a `clock`
        there are no profiles."""
        self.model = model
        self.metadata = MetadataModule(model)
        self._host = HostModule(host_models, threads)
        self._engines = engines or AcceleratorModule(
            library, model.levels, programs_by_target((model,)), poison
        )
        self._poison = poison
        self._launches: dict[int, Callable[[], object]] = {}
        self._flow_of = {control.host: control.flow for control in model.controls}
        self.bodies = tuple(bodies)
        self.regions: Mapping[int, HomeRegion] = {}
        """Regions that engines run in place of their kernels, by number."""
        self.watched: Mapping[int, RegionWatch] = {}
        """Regions of kernels that are watched, by number."""
        self.watch: Observer | None = None
        """Sees every kernel call of a run that was given no observer of its own."""
        self._is_timed = clock is not None
        self._now = clock or no_clock
        self._profile: InvocationProfile | None = None

    def load_constants(self, constants: Constants) -> None:
        """Copy weights to their addresses, one at a time."""
        self.metadata.load_constants(constants)

    @property
    def arena(self) -> memoryview:
        """The home memory, writable."""
        return self.metadata.arena

    def read(self, name: str) -> Array:
        """A copy of a home tensor as it is now."""
        return self.metadata.read(name)

    def profile(self) -> InvocationProfile | None:
        """What the last run spent its time on; None without a clock, or before the first run."""
        return self._profile

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
        began = self._now()
        observe = observe or self.watch
        check_inputs(self.model.inputs, inputs)
        tally = Tally(self._now)
        self.metadata.begin()
        if self._poison:
            before = self._now()
            self.metadata.poison()
            tally.checks_s += self._now() - before
        before = self._now()
        for port in self.model.inputs:
            self.metadata.write(port.name, stored(np.asarray(inputs[port.name])))
        tally.inputs_s = self._now() - before
        fresh = self.metadata.unwritten(inputs)
        region = -1
        calls = self.model.program.calls
        last_of = {c.region: k for k, c in enumerate(calls) if isinstance(c, UnitCall)}
        for position, call in enumerate(calls):
            if isinstance(call, HostCall):
                fresh.difference_update(call.outputs)
                self._run_host(position, call, feed, tally)
                continue
            is_first, region = call.region != region, call.region
            if region in self.regions:
                if is_first:
                    self._run_region(position, self.regions[region], fresh, tally)
                continue
            watch = self.watched.get(region)
            if watch is not None and is_first:
                watch.entered(self.read)
            self._run_unit(position, call, fresh, tally)
            if observe is not None:
                observe(position, call, self.read)
            if watch is not None and position == last_of[region]:
                watch.left(self.read)
        before = self._now()
        outputs = {port.name: self.metadata.read(port.name) for port in self.model.outputs}
        if self._is_timed:
            ended = self._now()
            self._profile = tally.finished(ended - began, ended - before)
        return outputs

    def _run_region(self, position: int, run: HomeRegion, fresh: set[str], tally: Tally) -> None:
        call = self.model.program.calls[position]
        assert isinstance(call, UnitCall)
        began = self._now()
        run.bind(self.model, self.metadata)
        ready = self._now()
        if self._poison:
            before = self._now()
            run.poison(self.metadata)
            tally.checks_s += self._now() - before
        bound = self._now()
        run.execute()
        done = self._now()
        fresh.difference_update(run.hand_over(self.metadata))
        moved = self._now() - done
        target, executed = self.model.target_of(call.region), run.executed
        tally.calls.append(
            CallProfile(
                position, "region", run.engine, target, ready - began, moved, done - bound,
                executed.cycles, executed.counters,
            )
        )  # fmt: skip

    def _run_unit(self, position: int, call: UnitCall, fresh: set[str], tally: Tally) -> None:
        program = self.model.program.units[call.unit]
        began = self._now()
        for operand, binding in zip(program.operands, call.bindings, strict=True):
            written = operand.role in (OperandRole.OUTPUT, OperandRole.SCRATCH)
            if written and binding.tensor in fresh:
                fresh.discard(binding.tensor)  # a later call may write another part of it
                if self._poison:
                    self.metadata.fill(binding.address, operand.size_bytes)
        checked = self._now()
        target = self.model.target_of(call.region)
        if not self._engines.is_initialised(target):
            tally.initialised.append(target)
        engine = self._engines.engine(target)
        ready = self._now()
        kernel = self.model.kernels[call.unit]
        if position not in self._launches:
            addresses = [self.metadata.home_address + b.address for b in call.bindings]
            self._launches[position] = engine.prepare(kernel, addresses)
        launch = self._launches[position]
        launched = self._now()
        launch()
        done = self._now()
        engine.check(kernel, program)
        tally.checks_s += checked - began
        tally.engine_s += ready - checked
        tally.calls.append(
            CallProfile(position, "kernel", kernel, target, launched - ready, 0.0, done - launched)
        )

    def _run_host(self, position: int, call: HostCall, feed: Feeder | None, tally: Tally) -> None:
        flow = self._flow_of.get(call.host)
        if flow is None and feed is None:
            began = self._now()
            bound = self._host.bind(call, self.metadata)
            if bound is not None:
                ready = self._now()
                self._host.run_bound(bound)
                done = self._now()
                for name in call.outputs:
                    self.metadata.mark_written(name)
                tally.calls.append(_host_profile(position, call, ready - began, 0.0, done - ready))
                return
        began = self._now()
        feeds = {name: self.metadata.read(name) for name in call.inputs}
        if feed is not None:
            feeds = feed(call, feeds)
        ready = self._now()
        results: Sequence[Any]
        if flow is not None:
            body = partial(self._run_body, call.host, flow, tally)
            made = interpret(flow, feeds, body)
            results = [made[name] for name in call.outputs]
        else:
            results = self._host.run(call.host, call.outputs, feeds)
        done = self._now()
        for name, value in zip(call.outputs, results, strict=True):
            # sequences (lists) and absent optionals pass between host parts as they are
            is_tensor = not isinstance(value, list) and value is not None
            self.metadata.write(name, np.asarray(value) if is_tensor else value)
        moved = (ready - began) + (self._now() - done)
        if flow is not None:
            tally.add_control(position, flow.node, done - ready, moved)
        else:
            tally.calls.append(_host_profile(position, call, 0.0, moved, done - ready))

    def _run_body(
        self, host: int, flow: ControlFlow, tally: Tally, index: int, feeds: Mapping[str, Array]
    ) -> Mapping[str, Array]:
        body = flow.bodies[index]
        if body.program is not None:
            runner = self.bodies[body.program]
            outputs = runner.run(feeds)
            profile = runner.profile()
            if profile is not None:
                tally.nested.append(profile)
            return outputs
        found = self._host.run(host, body.computes, feeds)
        return dict(zip(body.computes, map(np.asarray, found), strict=True))


def _host_profile(
    position: int, call: HostCall, launch_s: float, transfer_s: float, execute_s: float
) -> CallProfile:
    name = call.onnx_nodes[0] if call.onnx_nodes else ""
    return CallProfile(position, "host", name, "host", launch_s, transfer_s, execute_s)
