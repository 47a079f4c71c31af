"""What a user may choose for one compilation, and which choices change results."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import TypeGuard

import msgspec

from worker.compiler import quantization
from worker.compiler.descriptors import AUTO, strategies
from worker.compiler.errors import Detail, Finding, OptionError
from worker.compiler.heuristics import Heuristic
from worker.compiler.quantization import Quantization

_INTEGERS = {
    "seed": (0, 2**63 - 1, "0..2^63-1"),
    "loop_trips": (1, 1_000_000, "1..1000000"),
}
_CAPS = ("max_power_w", "max_latency_ms")
_MAX_CAP = 1e12
_SHA256 = re.compile(r"[0-9a-f]{64}")
_DIGESTS = {"calibration": "uploaded arrays", "inputs": "uploaded arrays", "link": "a library"}
"""Options that name a file."""
MAX_SYMBOLS, MAX_SYMBOL_CHARS = 1000, 200
"""Models have a handful of symbolic dimensions; the options of a job are a row, not a store."""
_SYMBOLS = f"1..2^63-1, at most {MAX_SYMBOLS} names of 1 to {MAX_SYMBOL_CHARS} characters"


_MAX_STRATEGIES = 100
_OBJECT = f"an object of at most {_MAX_STRATEGIES} strategies"


class Objective(StrEnum):
    """What the judge minimises, over simulated figures."""

    LATENCY = "latency"
    ENERGY = "energy"
    EDP = "edp"
    """Energy-delay product."""
    OFFCHIP = "offchip"
    """Bytes across the ports of the home memory."""
    PEAK_MEMORY = "peak_memory"
    """Bytes of the planned arena in the home memory."""


class Effort(StrEnum):
    """How many candidates a strategy is asked for, by unit: work, never time."""

    FAST = "fast"
    """Its best guess."""
    NORMAL = "normal"
    """What its own model cannot tell apart."""
    THOROUGH = "thorough"
    """Also what its own model finds worse."""


class VerifyMode(StrEnum):
    NONE = "none"
    SAMPLE = "sample"
    FULL = "full"


class Precision(StrEnum):
    """Number format of the accelerator's regions."""

    NATIVE = "native"
    """The model's own; where the target lacks it, the target's automatic conversion."""
    F16 = "f16"
    BF16 = "bf16"
    I8 = "i8"
    U8 = "u8"


class PartitionChoice(StrEnum):
    """How regions are chosen."""

    SPEC = "spec"
    """As each target's own spec says."""
    GREEDY = "greedy"
    CRITERIA = "criteria"
    AUTO = "auto"


RESULT_OPTIONS = (
    "strategy",
    "strategy_options",
    "objective",
    "effort",
    "max_power_w",
    "max_latency_ms",
    "symbols",
    "precision",
    "partition",
    "calibration",
    "quantization",
    "loop_trips",
    "without",
)
"""Options that decide what is compiled; the others decide how the job runs."""


@dataclass(frozen=True, slots=True)
class CompileOptions:
    """Options of one job.  Frozen; `from_json` is the only parser, for CLI and API alike."""

    strategy: str = AUTO
    """A strategy by name, or AUTO: the best program that all of them give."""
    strategy_options: tuple[tuple[str, msgspec.Struct], ...] = ()
    """Options of strategies' own, sorted by strategy; where all are default, none."""
    objective: Objective = Objective.LATENCY
    effort: Effort = Effort.NORMAL
    max_power_w: float | None = None
    """Mean power of a run that the chosen program may take at most, in W."""
    max_latency_ms: float | None = None
    """Time that a run of the chosen program may take at most, in ms."""
    verify: VerifyMode = VerifyMode.SAMPLE
    symbols: tuple[tuple[str, int], ...] = ()
    """Values of symbolic dimensions, sorted by name (`--set batch=8`)."""
    fail_on_fallback: bool = False
    require_cache: bool = False
    no_cache: bool = False
    seed: int = 0
    """Seed of verification inputs, and of synthetic calibration."""
    precision: Precision = Precision.NATIVE
    partition: PartitionChoice = PartitionChoice.SPEC
    calibration: str = ""
    """Hex sha256 of the uploaded calibration arrays (.npz); empty: synthetic where needed."""
    quantization: Quantization = quantization.DEFAULT
    """How floats become integers, where the accelerator's regions compute in integers."""
    inputs: str = ""
    """Hex sha256 of the uploaded inputs of the verification (.npz); empty: seeded."""
    link: str = ""
    """Hex sha256 of the vendor's kernel library; empty: kernels run code of their own."""
    loop_trips: int = 1
    """Trips assumed in the simulation for loops whose count is known only at run time."""
    without: tuple[Heuristic, ...] = ()
    """Heuristics that are turned off, sorted: for finding out what they earn."""

    @staticmethod
    def from_json(document: object) -> CompileOptions:
        """Parse the `options` object of a job.

        Raises:
            OptionError: TW-OPT-001 with one finding per bad field (pointer, allowed, actual).
        """
        if not isinstance(document, dict):
            raise OptionError("TW-OPT-001", "options must be an object", pointer="/options")
        findings: list[Finding] = []
        values: dict[str, object] = {}
        enums = {
            "objective": Objective,
            "effort": Effort,
            "verify": VerifyMode,
            "precision": Precision,
            "partition": PartitionChoice,
        }
        known = {f.name for f in fields(CompileOptions)}
        for key in sorted(document, key=str):
            raw = document[key]
            pointer = f"/options/{key}"
            if key not in known:
                findings.append(
                    Finding(
                        "TW-OPT-001",
                        f"unknown option {key!r}",
                        pointer,
                        None,
                        list[Detail](sorted(known)),
                        str(key),
                    )
                )
            elif key in enums:
                allowed = [str(member) for member in enums[key]]
                if raw in allowed:
                    values[key] = enums[key](raw)
                else:
                    findings.append(
                        Finding(
                            "TW-OPT-001",
                            f"{key} must be one of {', '.join(allowed)}",
                            pointer,
                            None,
                            list[Detail](allowed),
                            _short(raw),
                        )
                    )
            elif key == "strategy":
                allowed = [AUTO, *strategies()]
                if raw in allowed:
                    values[key] = raw
                else:
                    findings.append(
                        Finding(
                            "TW-OPT-001",
                            f"strategy must be one of {', '.join(allowed)}",
                            pointer,
                            None,
                            list[Detail](allowed),
                            _short(raw),
                        )
                    )
            elif key == "strategy_options":
                chosen, refused = _strategy_options(raw)
                values[key] = chosen
                findings += refused
            elif key == "quantization":
                values[key], refused = quantization.parse(raw)
                findings += refused
            elif key == "symbols":
                if _are_symbols(raw):
                    values[key] = tuple(sorted(raw.items()))
                else:
                    findings.append(
                        Finding(
                            "TW-OPT-001",
                            f"symbols must map names to integers, {_SYMBOLS}",
                            pointer,
                            None,
                            _SYMBOLS,
                            _short(raw),
                        )
                    )
            elif key == "without":
                allowed = [str(member) for member in Heuristic]
                if isinstance(raw, list | tuple) and all(name in allowed for name in raw):
                    values[key] = tuple(sorted({Heuristic(name) for name in raw}))
                else:
                    findings.append(
                        Finding(
                            "TW-OPT-001",
                            f"without must be a list of {', '.join(allowed)}",
                            pointer,
                            None,
                            list[Detail](allowed),
                            _short(raw),
                        )
                    )
            elif key in _INTEGERS:
                low, high, allowed_text = _INTEGERS[key]
                if type(raw) is int and low <= raw <= high:
                    values[key] = raw
                else:
                    findings.append(
                        Finding(
                            "TW-OPT-001",
                            f"{key} must be an integer, {allowed_text}",
                            pointer,
                            None,
                            allowed_text,
                            _short(raw),
                        )
                    )
            elif key in _CAPS:
                if raw is None or (_is_number(raw) and 0 < raw <= _MAX_CAP):
                    values[key] = None if raw is None else float(raw)
                else:
                    allowed_text = f"a number above 0, at most {_MAX_CAP:g}, or null"
                    findings.append(
                        Finding(
                            "TW-OPT-001",
                            f"{key} must be {allowed_text}",
                            pointer,
                            None,
                            allowed_text,
                            _short(raw),
                        )
                    )
            elif key in _DIGESTS:
                if isinstance(raw, str) and (not raw or _SHA256.fullmatch(raw)):
                    values[key] = raw
                else:
                    findings.append(
                        Finding(
                            "TW-OPT-001",
                            f"{key} must be the sha256 of {_DIGESTS[key]}, or empty",
                            pointer,
                            None,
                            "64 hexadecimal digits, or empty",
                            _short(raw)[:80],
                        )
                    )
            elif type(raw) is bool:
                values[key] = raw
            else:
                findings.append(
                    Finding(
                        "TW-OPT-001",
                        f"{key} must be true or false",
                        pointer,
                        None,
                        "boolean",
                        _short(raw),
                    )
                )
        findings += _contradictions(values, set(document))
        if findings:
            raise OptionError(
                "TW-OPT-001",
                findings[0].message,
                pointer=findings[0].pointer,
                findings=tuple(findings),
            )
        return CompileOptions(**values)  # type: ignore[arg-type]  # checked field by field above

    def to_json(self) -> dict[str, Detail]:
        """Give the canonical JSON object; `from_json(to_json(o)) == o`."""
        document: dict[str, Detail] = {f.name: getattr(self, f.name) for f in fields(self)}
        document["symbols"] = dict(self.symbols)
        document["quantization"] = quantization.to_json(self.quantization)
        document["without"] = [str(name) for name in self.without]
        document["strategy_options"] = {
            name: msgspec.json.decode(msgspec.json.encode(chosen))  # lists, as a row holds them
            for name, chosen in self.strategy_options
        }
        return document


def require_unlinked(options: CompileOptions) -> None:
    """Check that a job over HTTP brings no kernel library: it would be native code of anybody's.

    Raises:
        OptionError: TW-LINK-008.
    """
    if options.link:
        raise OptionError(
            "TW-LINK-008", "kernel libraries are not taken over HTTP: they are native code",
            pointer="/options/link", limit="", actual=options.link,
        )  # fmt: skip


def _is_number(raw: object) -> TypeGuard[int | float]:
    """A JSON number; NaN compares false with every limit."""
    return isinstance(raw, int | float) and not isinstance(raw, bool)


def _are_symbols(raw: object) -> TypeGuard[dict[str, int]]:
    """Names a database and a report can carry, and values an ONNX dimension can have."""
    if not isinstance(raw, dict) or len(raw) > MAX_SYMBOLS:
        return False
    return all(
        isinstance(name, str)
        and 0 < len(name) <= MAX_SYMBOL_CHARS
        and not any("\ud800" <= character <= "\udfff" for character in name)
        and type(value) is int
        and 1 <= value < 2**63
        for name, value in raw.items()
    )


def _short(raw: object) -> str:
    """What was given, for a message: text that every terminal and answer can carry."""
    return ascii(raw)[:200]


def _contradictions(values: Mapping[str, object], given: Collection[str]) -> list[Finding]:
    """Options that are fine alone but not together; `given` has the refused ones as well."""
    found: list[Finding] = []
    if values.get("require_cache") and values.get("no_cache"):
        found.append(
            Finding(
                "TW-OPT-001",
                "require_cache and no_cache exclude each other",
                "/options/require_cache",
                None,
                "at most one of them",
                "both",
            )
        )
    if values.get("inputs") and values.get("verify") is VerifyMode.NONE:
        found.append(
            Finding(
                "TW-OPT-001",
                "inputs are those of the verification, and verify none has none",
                "/options/inputs",
                None,
                "empty, or verify sample or full",
                str(VerifyMode.NONE),
            )
        )
    strategy = values.get("strategy", AUTO)
    without = values.get("without", ())
    assert isinstance(without, tuple)
    if Heuristic.MIXTURES in without and strategy != AUTO and "strategy" in values:
        found.append(
            Finding(
                "TW-OPT-001",
                f"strategy {strategy} alone has no mixtures to leave out",
                "/options/without",
                None,
                AUTO,
                str(strategy),
            )
        )
    is_strategy_known = "strategy" in values or "strategy" not in given
    own = values.get("strategy_options", ())
    assert isinstance(own, tuple)
    for name, _ in own:
        if strategy not in (AUTO, name) and is_strategy_known:  # else it has its own finding
            found.append(
                Finding(
                    "TW-OPT-001",
                    f"options of strategy {name} do nothing with strategy {strategy}",
                    f"/options/strategy_options/{name}",
                    None,
                    [AUTO, name],
                    str(strategy),
                )
            )
    return found


def _listed(allowed: Mapping[str, str]) -> str:
    """Options and their values, for a message."""
    return "; ".join(f"{name}: {values}" for name, values in allowed.items()) or "none"


def _strategy_options(
    raw: object,
) -> tuple[tuple[tuple[str, msgspec.Struct], ...], list[Finding]]:
    """Options by strategy, as values of the strategies' own types, and what is wrong with some."""
    pointer = "/options/strategy_options"
    if not isinstance(raw, dict) or len(raw) > _MAX_STRATEGIES:
        said = "strategy_options must map names of strategies to their options"
        return (), [Finding("TW-OPT-001", said, pointer, None, _OBJECT, _short(raw))]
    found: list[tuple[str, msgspec.Struct]] = []
    findings: list[Finding] = []
    for name in sorted(raw, key=str):
        if name not in strategies():
            known = list(strategies())
            findings.append(
                Finding(
                    "TW-OPT-001",
                    f"there is no strategy {_short(name)}, only {', '.join(known)}",
                    f"{pointer}/{_short(name)}",
                    None,
                    list[Detail](known),
                    _short(name),
                )
            )
            continue
        kind = strategies()[name].options
        try:
            chosen = msgspec.convert(raw[name], kind)
        except msgspec.ValidationError as error:
            said, _, at = str(error).partition(" - at `$")
            place = at.rstrip("`").replace(".", "/").replace("[...]", "")
            allowed = strategies()[name].option_words
            findings.append(
                Finding(
                    "TW-OPT-001",
                    f"strategy {name}: {said}; its options: {_listed(allowed)}",
                    f"{pointer}/{name}{place}",
                    None,
                    dict[str, Detail](allowed),
                    _short(raw[name]),
                )
            )
            continue
        if chosen != kind():
            found.append((name, chosen))
    return tuple(found), findings
