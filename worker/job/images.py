"""What serializers wrote of a model's regions, as rows of the report, and what they refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec

from worker.compiler.errors import CompilerError, Detail
from worker.compiler.judge.compiled import CompiledModel
from worker.compiler.package.region_members import ProgramRegions


@dataclass(frozen=True, slots=True)
class Written:
    """What the report says of images."""

    rows: tuple[dict[str, Detail], ...]
    """One for what each serializer wrote of each region."""
    refusals: tuple[str, ...]
    """Sentences: why regions kept the built-in formats, where their target has a serializer."""

    def told(self, compiled: CompiledModel) -> CompiledModel:
        """The model with a warning for each refusal."""
        more = tuple(("SERIALIZER_REFUSED", sentence) for sentence in self.refusals)
        return replace(compiled, warnings=(*compiled.warnings, *more))


def written(programs: Sequence[ProgramRegions], fail_on_fallback: bool) -> Written:
    """Rows and refusals of all programs.

    Raises:
        CompilerError: TW-PLUG-005, a region was refused, and nothing may fall back.
    """
    rows: list[dict[str, Detail]] = []
    refusals: list[str] = []
    for program in programs:
        for region in program.regions:
            for image in region.images:
                told: dict[str, Detail] = msgspec.to_builtins(image.row)
                rows.append(
                    {
                        "program": program.prefix,
                        "region": region.code.index,
                        "target": region.code.target,
                        **told,
                    }
                )
            no = region.refusal
            if no is None:
                continue
            if fail_on_fallback:
                raise CompilerError("TW-PLUG-005", no.sentence, node=no.node or None)
            refusals.append(no.sentence)
    return Written(tuple(rows), tuple(refusals))
