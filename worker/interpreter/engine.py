"""The interpreter as an engine: streams loaded, bound to memory, executed, counted."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from worker.compiler.errors import CompilerError
from worker.compiler.package.build import find_compiler, has_fused_products
from worker.compiler.package.engines import Executed, Memory
from worker.interpreter.run import Interpreter


@dataclass(frozen=True, slots=True)
class InterpreterEngine:
    """Loads streams."""

    seed: int
    """Of the order in which streams that may go on do."""
    is_fused: bool
    """Products of floats and their sums are rounded once."""

    def load(self, image: bytes) -> InterpretedRegion:
        """Raises: as `Interpreter`."""
        return InterpretedRegion(Interpreter(image, seed=self.seed, is_fused=self.is_fused))


class InterpretedRegion:
    """One region's stream."""

    def __init__(self, interpreter: Interpreter) -> None:
        self._interpreter = interpreter
        self._memory: Memory = {}

    def bind(self, memory: Memory) -> None:
        """Copies in and out: the interpreter has a home memory of its own, to catch what leaves
        it."""
        self._memory = memory

    def execute(self) -> None:
        """Raises: as `Interpreter.run`."""
        outputs = self._interpreter.run_on(lambda name: bytes(self._memory[name]))
        for name, value in outputs.items():
            self._memory[name][:] = value

    def profile(self) -> Executed:
        """Multiply-accumulates, and bytes through all ports; it has no clock."""
        counts = self._interpreter.counts
        return Executed(
            None,
            {
                "macs": sum(count.macs for count in counts),
                "port_bytes": sum(sum(count.port_bytes) for count in counts),
            },
        )


def opened(folder: Path, seed: int = 0) -> InterpreterEngine:
    """The engine; it rounds as kernels that are built here do, so that both give the same bits."""
    del folder
    try:
        is_fused = has_fused_products(find_compiler())
    except CompilerError:
        is_fused = True
    return InterpreterEngine(seed, is_fused)
