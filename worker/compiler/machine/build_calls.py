"""The instructions of an engine of a checked hardware spec, and what is doubtful about them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from math import prod

from worker.compiler.machine.evidence import Guess
from worker.compiler.machine.intrinsic import CallSize, Intrinsic, LibraryCall, Question
from worker.compiler.machine.quantity import Quantity
from worker.compiler.machine.spec import EngineSpec, HardwareSpec, IntrinsicSpec


def has_patterns(spec: HardwareSpec) -> bool:
    """Whether some target has a pattern table: then rows of it say what instructions run."""
    own = () if spec.capabilities is None else (spec.capabilities,)
    return any(t.patterns for t in (*own, *(target.capabilities for target in spec.targets)))


def build_calls(
    engine: EngineSpec, place: Callable[[str], str], *, by_pattern: bool
) -> tuple[Intrinsic, ...]:
    """In the order of the spec; lint has shown that each says its cycles in one way.

    `place`: from a pointer into the engine to one into the user's document.
    """
    return tuple(
        Intrinsic(
            i.name, i.op, _sizes(i), by_pattern, _question(i, place(f"/intrinsics/{k}")),
            None if i.call is None else LibraryCall(i.call, place(f"/intrinsics/{k}/call")),
        )
        for k, i in enumerate(engine.intrinsics)
    )  # fmt: skip


def doubtful_calls(
    pointer: str, rates: Iterable[float], calls: tuple[Intrinsic, ...]
) -> Iterator[Guess]:
    """Instructions that do more per cycle than the fastest format of their engine (at `pointer`).

    They are taken at their word: an instruction may use what plain code of the engine cannot.  Of
    an oracle that has not been asked nothing is known.
    """
    best = max(rates, default=0.0)
    for k, call in enumerate(calls):
        peak = max((size.peak for size in call.sizes), default=0.0)
        if best and peak > best:
            note = f"more than the {best:g} of macs_per_cycle; the instruction's own cycles count"
            yield Guess(f"{pointer}/intrinsics/{k}", f"{peak:g} operations per cycle", note)


def flat_extents(op: str, extents: tuple[int, ...]) -> tuple[int, int, int]:
    """Extents of a call as rows, columns and depth; of element-wise work its points, 1 and 1."""
    match op, extents:
        case "matmul", (m, n, k):
            return m, n, k
        case "conv", (batch, channels, height, width, *taps):
            return batch * height * width, channels, prod(taps)
        case _:
            return prod(extents), 1, 1


def _question(spec: IntrinsicSpec, pointer: str) -> Question | None:
    if spec.oracle is None or spec.extents is None:
        return None
    extents = _flat(spec.op, spec.extents)
    granule = extents if spec.granule is None else _flat(spec.op, spec.granule)
    return Question(spec.oracle, extents, granule, f"{pointer}/oracle")


def _sizes(spec: IntrinsicSpec) -> tuple[CallSize, ...]:
    found = [_size(spec.op, row.extents, {"": row.cycles}) for row in spec.table or ()]
    if spec.extents is not None and spec.oracle is None:
        constant = {} if spec.cycles is None else {"": spec.cycles}
        formula = (spec.formula or {}).items()
        terms = constant | {"" if term == "1" else term: each for term, each in formula}
        found.append(_size(spec.op, spec.extents, terms))
    return tuple(found)


def _size(op: str, extents: list[Quantity], terms: dict[str, Quantity]) -> CallSize:
    return CallSize(
        _flat(op, extents),
        tuple(sorted((term, each.value) for term, each in terms.items())),
    )


def _flat(op: str, extents: list[Quantity]) -> tuple[int, int, int]:
    return flat_extents(op, tuple(int(extent.value) for extent in extents))
