"""Are integers of kernels the bits that their instruction stream means?

The reference of a case may round elsewhere and is met within a step; a vendor's own instructions
must not hide in that step.  The interpreter executes the region's stream, which says everything.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from worker.compiler.assembly.regions import packed_regions
from worker.compiler.judge.compiled import CompiledModel
from worker.compiler.package.executor import ModelRunner
from worker.compiler.package.region_code import EntryRole, RegionCode
from worker.compiler.package.stream.codec import encode_stream
from worker.conformance.sample import Array
from worker.interpreter.engine import InterpreterEngine
from worker.interpreter.run import Interpreter


def watch_bits(
    runner: ModelRunner, compiled: CompiledModel, engine: InterpreterEngine
) -> tuple[BitWatch, ...]:
    """Let every region of the next run be executed by its stream too, on what it was given.

    Raises:
        CompilerError: while it runs, a stream that cannot be executed.
    Cost: linear in the points of the operators.
    """
    codes = [region.code for region in packed_regions(compiled, "").regions]
    watches = {code.index: BitWatch(code, engine) for code in codes}
    runner.watched = watches
    return tuple(watches.values())


class BitWatch:
    """One region: its kernels' results against its stream's."""

    def __init__(self, code: RegionCode, engine: InterpreterEngine) -> None:
        self._interpreter = Interpreter(encode_stream(code), is_fused=engine.is_fused)
        roles = (EntryRole.INPUT, EntryRole.CONSTANT)
        self._names = [entry.name for entry in code.entries if entry.role in roles]
        self._given: dict[str, bytes] = {}
        self.difference = ""
        """How the last run's results differ; empty: not at all."""

    def entered(self, read: Callable[[str], Array]) -> None:
        """Keep copies of the inputs: kernels may reuse their storage."""
        self._given = {name: read(name).tobytes() for name in self._names}

    def left(self, read: Callable[[str], Array]) -> None:
        """Execute the stream, and compare."""
        self.difference = ""
        for name, content in self._interpreter.run(self._given).items():
            have = read(name)
            want = np.frombuffer(content, have.dtype).reshape(have.shape)
            wrong = int((have != want).sum())
            if wrong and not self.difference:
                self.difference = (
                    f"{wrong} of {have.size} elements of {name} are not those that the instruction"
                    " stream gives, bit for bit"
                )
