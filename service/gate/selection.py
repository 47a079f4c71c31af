"""Which models are compiled for which chips: the entries of a gate file met with a tree's files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from typing import Any

from service.gate.file import ARRAYS, GateFile, HardwareEntry, ModelEntry
from service.gate.tree import Tree
from worker.compiler.errors import Finding

CODE = "TW-GATE-001"


@dataclass(frozen=True, slots=True)
class Pair:
    """A model and a chip."""

    model: str
    """What messages call it."""
    hardware: str
    path: str
    """The model's file."""
    spec: str | None
    """The chip's; None: `preset`."""
    preset: str | None
    options: dict[str, Any]
    """Compile's, without arrays."""
    calibration: str | None
    inputs: str | None
    pointer: str
    """Of the model's entry in the gate file."""

    @property
    def key(self) -> tuple[str, str]:
        """What makes it the same pair in two trees."""
        return self.model, self.hardware

    @property
    def label(self) -> str:
        """For messages."""
        return f"{self.model} on {self.hardware}"


@dataclass(frozen=True, slots=True)
class _Named:
    name: str
    path: str
    pointer: str


def select(gate: GateFile, tree: Tree) -> tuple[list[Pair], list[Finding]]:
    """Every pair, in the order of the gate file, and what is wrong with its entries here."""
    findings: list[Finding] = []
    models = list(_models(gate, tree, findings))
    chips = list(_chips(gate, tree, findings))
    for what, names in (("models", [m.name for m, _ in models]), ("chips", [c for c, *_ in chips])):
        for name in dict.fromkeys(n for n in names if names.count(n) > 1):
            message = f"two {what} are called {name}: give one of them a name"
            findings.append(
                Finding(CODE, message, f"/{'models' if what == 'models' else 'hardware'}")
            )
    pairs: list[Pair] = []
    for named, entry in models:
        for k, pattern in enumerate(entry.hardware):
            if not any(fnmatchcase(chip, pattern) for chip, *_ in chips):
                message = f"no chip is called {pattern!r}"
                findings.append(Finding(CODE, message, f"{named.pointer}/hardware/{k}"))
        for chip, path, chosen in chips:
            if any(fnmatchcase(chip, pattern) for pattern in entry.hardware):
                options = {**gate.options, **chosen.options, **entry.options}
                if entry.symbols:
                    options["symbols"] = {**options.get("symbols", {}), **entry.symbols}
                pairs.append(Pair(
                    named.name, chip, named.path, path, chosen.preset, options,
                    entry.calibration, entry.inputs, named.pointer,
                ))  # fmt: skip
    findings += _option_findings(pairs)
    return pairs, findings


def unmatched_selectors(gate: GateFile, pairs: list[Pair]) -> list[Finding]:
    """Rules whose `model` and `hardware` no pair has: they would never look at anything."""
    found: list[Finding] = []
    for kind, rules in (("budgets", gate.budgets), ("regressions", gate.regressions)):
        for k, rule in enumerate(rules):
            if not any(covers(rule.model, rule.hardware, pair) for pair in pairs):
                message = f"no pair is {rule.model} on {rule.hardware}: the rule would do nothing"
                found.append(Finding(CODE, message, f"/{kind}/{k}"))
    return found


def covers(model: str, hardware: str, pair: Pair) -> bool:
    """Whether two patterns cover a pair."""
    return fnmatchcase(pair.model, model) and fnmatchcase(pair.hardware, hardware)


def _models(
    gate: GateFile, tree: Tree, findings: list[Finding]
) -> Iterator[tuple[_Named, ModelEntry]]:
    for k, entry in enumerate(gate.models):
        at = f"/models/{k}"
        paths = tree.names(entry.path)
        if not paths:
            findings.append(Finding(CODE, f"no file is {entry.path}", f"{at}/path"))
        if entry.name is not None and len(paths) > 1:
            message = f"{len(paths)} files are {entry.path}: one name is not enough"
            findings.append(Finding(CODE, message, f"{at}/name"))
        for name in ARRAYS:
            arrays = getattr(entry, name)
            if arrays is not None and tree.file(arrays) is None:
                findings.append(Finding(CODE, f"no file is {arrays}", f"{at}/{name}"))
        for path in paths:
            yield _Named(entry.name or _stem(path), path, at), entry


def _chips(
    gate: GateFile, tree: Tree, findings: list[Finding]
) -> Iterator[tuple[str, str | None, HardwareEntry]]:
    for k, entry in enumerate(gate.hardware):
        at = f"/hardware/{k}"
        if entry.preset is not None:
            from worker.compiler.machine import preset_names

            if entry.preset not in preset_names():
                known = ", ".join(preset_names())
                findings.append(
                    Finding(CODE, f"there is no preset {entry.preset}", f"{at}/preset", None, known)
                )
            else:
                yield entry.name or entry.preset, None, entry
            continue
        assert entry.spec is not None
        paths = tree.names(entry.spec)
        if not paths:
            findings.append(Finding(CODE, f"no file is {entry.spec}", f"{at}/spec"))
        if entry.name is not None and len(paths) > 1:
            message = f"{len(paths)} files are {entry.spec}: one name is not enough"
            findings.append(Finding(CODE, message, f"{at}/name"))
        for path in paths:
            yield entry.name or _stem(path), path, entry


def _option_findings(pairs: list[Pair]) -> list[Finding]:
    """Options that are fine where they stand, but not together; each once."""
    from worker.compiler.errors import OptionError
    from worker.compiler.options import CompileOptions

    found: dict[tuple[str, str], Finding] = {}
    for pair in pairs:
        given = {**pair.options, **({"inputs": "0" * 64} if pair.inputs else {})}
        try:
            CompileOptions.from_json(given)
        except OptionError as error:
            at = f"{pair.pointer}/inputs" if pair.inputs else pair.pointer
            found.setdefault((at, error.message), Finding(CODE, error.message, at))
    return list(found.values())


def _stem(path: str) -> str:
    return PurePosixPath(path).stem
