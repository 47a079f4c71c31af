"""The accelerator sub-modules: one engine per target, initialised on first use and kept.

Source: BYOC section 3.4, figure 6c: the engine is initialised once, later invocations find it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from worker.compiler.isa.program import UnitCall, UnitProgram
from worker.compiler.package.emulator import Emulator, LevelSpec
from worker.compiler.package.executable import ExecutableModel


class AcceleratorModule:
    """Engines of all targets; a model and its nested programs share them.  Not thread-safe."""

    def __init__(
        self,
        library: Path,
        levels: Sequence[LevelSpec],
        programs: Mapping[str, Sequence[UnitProgram]],
        poison: bool,
    ) -> None:
        """`programs` are all that each target will run: they decide the size of its memories."""
        self._library = library
        self._levels = tuple(levels)
        self._programs = programs
        self._poison = poison
        self._engines: dict[str, Emulator] = {}

    def is_initialised(self, target: str) -> bool:
        """Whether the target's engine exists."""
        return target in self._engines

    def engine(self, target: str) -> Emulator:
        """The target's engine.

        Raises:
            InputError: TW-RUN-001, the kernels were built against another runtime header.
        Cost: the first call loads the library and maps the memories; later ones look it up.
        """
        if target not in self._engines:
            programs = self._programs.get(target, ())
            self._engines[target] = Emulator(self._library, self._levels, programs, self._poison)
        return self._engines[target]


def programs_by_target(models: Iterable[ExecutableModel]) -> dict[str, list[UnitProgram]]:
    """The units that each target runs, over all programs of a bundle."""
    found: dict[str, list[UnitProgram]] = {}
    for model in models:
        used = {
            (model.target_of(call.region), call.unit): None
            for call in model.program.calls
            if isinstance(call, UnitCall)
        }
        for target, unit in used:
            found.setdefault(target, []).append(model.program.units[unit])
    return found
