"""The file of published figures: reading it, and refusing what is wrong with it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

import msgspec

from worker.compiler.cache import NullCache
from worker.compiler.errors import InputError, SpecError
from worker.compiler.machine import load_machine, parse_document
from worker.compiler.machine.machine import Machine
from worker.compiler.oracles import asked
from worker.validation.figures import Network, Published, Row, Unit

_CODE = "TW-VALID-001"
DRIFT = 1.1
"""How far a ratio may be from a stated miss, as a factor either way."""


def shipped() -> Published:
    """The figures that come with Tilewright."""
    path = resources.files("worker.validation") / "published.yaml"
    return read_figures(path.read_text(encoding="utf-8"))


def read_figures(text: str) -> Published:
    """Figures of a YAML or JSON document.

    Raises:
        InputError: TW-VALID-001; the JSON pointer names the field, limit and actual say what was
            expected where that is a set of names.
        SpecError: the text is no document (TW-SPEC-004), or a row's machine is wrong.
    """
    try:
        found = msgspec.convert(parse_document(text), Published)
    except msgspec.ValidationError as error:
        message, _, path = str(error).partition(" - at `")
        raise _refusal(message, _pointer(path.rstrip("`"))) from None
    for number, row in enumerate(found.rows):
        _check(row, f"/rows/{number}", [earlier.id for earlier in found.rows[:number]])
    _check_band(found.mean.band, found.mean.miss, "/mean")
    return found


def chosen(rows: Sequence[Row], names: Sequence[str]) -> tuple[Row, ...]:
    """The rows of these names, in the order of the file; all for none.

    Raises:
        InputError: TW-VALID-002, there is no row of a name.
    """
    known = [row.id for row in rows]
    for name in names:
        if name not in known:
            raise InputError(
                "TW-VALID-002", f"there is no published figure {name!r}",
                limit=list(known), actual=name,
            )  # fmt: skip
    return tuple(row for row in rows if not names or row.id in names)


def hardware_of(row: Row) -> dict[str, Any]:
    """The row's machine as a job names it."""
    return {"preset": row.machine} if isinstance(row.machine, str) else dict(row.machine)


def machine_of(hardware: Mapping[str, Any]) -> Machine:
    """The machine of `hardware_of`.

    Raises:
        SpecError: there is no such preset, or the spec is wrong.
    """
    preset = hardware.get("preset")
    document = hardware if preset is None else {"name": preset, "inherits": preset}
    return asked(load_machine(document), NullCache())


def _check(row: Row, at: str, earlier: Sequence[str]) -> None:
    """What types do not say."""
    if row.id in earlier:
        raise _refusal(f"{row.id} is there twice", f"{at}/id", actual=row.id)
    _check_band(row.band, row.miss, at)
    if len(set(row.causes)) < len(row.causes):
        raise _refusal("a cause is there twice", f"{at}/causes", actual=list(map(str, row.causes)))
    is_network = isinstance(row.work, Network)
    allowed = {Unit.MS, Unit.CYCLES, Unit.FPS} if is_network else set(Unit) - {Unit.FPS}
    if row.unit not in allowed:
        names = sorted(map(str, allowed))
        raise _refusal(
            f"{'a network' if is_network else 'an operator'} is not measured in {row.unit}",
            f"{at}/unit", limit=[*names], actual=str(row.unit),
        )  # fmt: skip
    try:
        machine_of(hardware_of(row))
    except SpecError as error:
        place = "" if isinstance(row.machine, str) else error.place.pointer or ""
        raise SpecError(
            error.code, f"row {row.id}: {error.message}", pointer=f"{at}/machine{place}",
            limit=error.limit, actual=error.actual, findings=error.findings,
        ) from error  # fmt: skip


def _check_band(band: tuple[float, float], miss: float | None, at: str) -> None:
    low, high = band
    if low >= high:
        raise _refusal("a band goes from low to high", f"{at}/band", actual=[low, high])
    if miss is not None and low <= miss <= high:
        raise _refusal(
            "what is within the band is no miss", f"{at}/miss", limit=[low, high], actual=miss
        )


def _refusal(
    message: str, pointer: str, *, limit: list[float] | list[str] | None = None,
    actual: list[float] | list[str] | str | float | None = None,
) -> InputError:  # fmt: skip
    return InputError(
        _CODE, message, pointer=pointer, limit=None if limit is None else [*limit],
        actual=[*actual] if isinstance(actual, list) else actual,
    )  # fmt: skip


def _pointer(path: str) -> str:
    """`$.rows[2].band` as a JSON pointer."""
    return "".join(f"/{part}" for part in re.findall(r"[^.\[\]$]+", path))
