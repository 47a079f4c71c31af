"""`Machine`: a hardware spec that can be read, checked, described and changed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from copy import deepcopy
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from service.orders.order import hardware_document
from worker.compiler.errors import Detail, Finding, SpecError

if TYPE_CHECKING:
    from worker.compiler.machine import Machine as Built
    from worker.compiler.machine.machine import Engine

Source: TypeAlias = "str | os.PathLike[str] | Mapping[str, Any]"
_NAMES = ("name", "op_type")
"""Fields that items of a spec's lists are named by."""


class Machine:
    """A hardware spec, which never changes: `with_field` gives another one.

    A spec with defects can be read, linted and mended; compiling for it is what is refused.

    Example:
        >>> import tilewright as tw
        >>> chip = tw.Machine("kapla-edge").with_field("/clock_hz", 8e8)
        >>> chip.lint()
        ()
        >>> chip["/clock_hz"]
        800000000.0
    """

    def __init__(self, source: Source) -> None:
        """Read the name of a preset, a YAML or JSON file, or a document.

        Raises:
            SpecError: the text cannot be read, the document is nested too deeply, or the preset
                (of it, or that it inherits) is not known.
            InputError: TW-CLI-001, there is no such file.
        """
        from worker.compiler.machine import canonical_document, preset_document
        from worker.compiler.machine.parse import values_of

        given = source if isinstance(source, Mapping) else hardware_document(os.fspath(source))
        preset = given.get("preset")
        if set(given) == {"preset"} and isinstance(preset, str):
            given = preset_document(preset)
        for _ in values_of(given):
            pass  # copying goes down by recursion
        self._document = canonical_document(deepcopy(dict(given)))

    @staticmethod
    def presets() -> tuple[str, ...]:
        """Names of the presets that ship with Tilewright, sorted."""
        from worker.compiler.machine import preset_names

        return preset_names()

    @property
    def document(self) -> dict[str, Any]:
        """The spec as a document, with what it inherits written out; a copy."""
        return deepcopy(self._document)

    @property
    def name(self) -> str:
        """What the spec calls itself; no part of the digest."""
        return str(self._document.get("name", ""))

    @cached_property
    def digest(self) -> str:
        """Sha256 over all that a compile can depend on; equal for equal machines of other names.

        Raises:
            SpecError: the spec has defects.
        """
        from worker.compiler.machine import digest

        return digest(self._built)

    def lint(self) -> tuple[Finding, ...]:
        """Everything that is wrong with the spec, each with its JSON pointer; empty: nothing."""
        from worker.compiler.machine import lint_document

        return lint_document(self._document)

    def describe(self) -> str:
        """The machine in a few lines: clock, cores, memories, engines, links, host, guesses.

        Raises:
            SpecError: the spec has defects.
        """
        built = self._built
        rows = [
            f"{built.name}: {str(self._document.get('description') or '').strip()}",
            f"clock {built.clock_hz / 1e9:g} GHz, {built.num_cores} cores in"
            f" {built.num_clusters} clusters, {built.launch_latency_cycles} cycles a launch"
            f" ({built.launch_gap_cycles} behind a kernel),"
            f" {built.signal_cycles} a signal between cores",
        ]
        rows += [
            f"memory {m.name}: {m.instances} x {m.capacity_bytes} bytes,"
            f" {m.read_bytes_per_cycle:g} read and {m.write_bytes_per_cycle:g} written bytes a"
            f" cycle{', one at a time' if m.half_duplex else ''}"
            f"{', which engines share' if m.serves_engines else ''}, {m.managed}"
            for m in built.levels
        ]
        rows += [
            f"engine {e.name} ({e.kind}) on {e.memory}"
            + "".join(f", {rate:g} {dtype} a cycle" for dtype, rate in e.macs_per_cycle.items())
            + ("; output stage: " + ", ".join(e.output_stage) if e.output_stage else "")
            + _fed(e)
            for e in built.engines
        ]
        rows += [
            f"link {k.name} ({k.kind}): {k.src} to {k.dst}, {k.bytes_per_cycle:g} bytes a cycle"
            for k in built.links
        ]
        rows.append(f"host {built.host.name}: {built.host.flops_per_s / 1e9:g} Gflop/s")
        rows.append(f"{len(built.guesses)} numbers are guesses")
        return "\n".join(rows)

    def __getitem__(self, pointer: str) -> Any:
        """The value at a place of the document, as `with_field` names it; a copy."""
        value: Any = self._document
        for part in _parts(pointer):
            value = value[_key(value, part, pointer)]
        return deepcopy(value)

    def with_field(self, pointer: str, value: Detail, *, name: str | None = None) -> Machine:
        """The machine with one field replaced, and another name where one is given.

        Example:
            >>> import tilewright as tw
            >>> edge = tw.Machine("kapla-edge")
            >>> bigger = edge.with_field("/levels/GBUF/capacity_bytes", 131072, name="bigger")
            >>> bigger["/levels/GBUF/capacity_bytes"], bigger.digest == edge.digest
            (131072, False)

        Args:
            pointer: JSON pointer into `document`; items of lists by their name or number.
            value: the new value, plain or with its evidence: {"value": 8e8, "tag": "G"}.

        Raises:
            SpecError: TW-SPEC-001, there is no such place, with those that there are.
        """
        document = self.document
        parts = _parts(pointer)
        if not parts:
            raise SpecError("TW-SPEC-001", "the pointer names no field", pointer=pointer)
        place: Any = document
        for part in parts[:-1]:
            place = place[_key(place, part, pointer)]
        place[_key(place, parts[-1], pointer)] = value
        if name is not None:
            document["name"] = name
        return Machine(document)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the spec as YAML, for `--hardware` and the eye."""
        import yaml

        text = yaml.safe_dump(self._document, sort_keys=False, allow_unicode=True, width=100)
        Path(path).write_text(text, encoding="utf-8")

    @cached_property
    def _built(self) -> Built:
        from worker.compiler.machine import load_machine

        return load_machine(self._document)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Machine) and self._document == other._document

    __hash__ = None  # type: ignore[assignment]  # documents hold lists

    def __repr__(self) -> str:
        return f"<Machine: {self.name}>"

    def _repr_html_(self) -> str:
        """What a notebook shows: the description, or what is wrong with the spec."""
        from html import escape

        found = self.lint()
        text = "\n".join(f"{f.pointer}: {f.message}" for f in found) or self.describe()
        return f"<pre>{escape(text)}</pre>"


def _parts(pointer: str) -> list[str]:
    return [part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:]]


def _fed(engine: Engine) -> str:
    """How an engine is fed, as far as its spec says."""
    words: list[str] = []
    if engine.dataflow is not None:
        flow = engine.dataflow
        words.append(f"keeps {flow.stationary}s")
        words += ["systolic"] * flow.is_systolic
        words += ["double-buffered"] * flow.is_double_buffered
    ports = {"in": engine.feed_bytes_per_cycle, "out": engine.drain_bytes_per_cycle}
    words += [f"{rate:g} bytes a cycle {way}" for way, rate in ports.items() if rate]
    return "".join(f", {word}" for word in words)


def _key(place: object, part: str, pointer: str) -> Any:
    """The key or index of the part `part` of a pointer in `place`.

    Raises:
        SpecError: TW-SPEC-001, it has none.
    """
    if isinstance(place, Mapping):
        if part in place:
            return part
        known = [str(key) for key in place]
    elif isinstance(place, list):
        names = [next((str(item[n]) for n in _NAMES if n in item), "") if isinstance(item, dict)
                 else "" for item in place]  # fmt: skip
        if part in names:
            return names.index(part)
        if part.isdigit() and int(part) < len(place):
            return int(part)
        known = [name for name in names if name]
    else:
        known = []
    raise SpecError(
        "TW-SPEC-001",
        f"{pointer}: there is no {part!r}, only {', '.join(known) or 'a plain value'}",
        pointer=pointer,
        limit=list[Detail](known),
        actual=part,
    )
