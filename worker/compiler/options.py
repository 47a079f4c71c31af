"""What a user may choose for one compilation, and which choices change results."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from enum import StrEnum

from worker.compiler.errors import Detail, Finding, OptionError


class StrategyName(StrEnum):
    AUTO = "auto"
    NAIVE = "naive"


class Objective(StrEnum):
    LATENCY = "latency"
    ENERGY = "energy"
    EDP = "edp"


class Effort(StrEnum):
    EXPRESS = "express"
    NORMAL = "normal"
    EXTENDED = "extended"


class VerifyMode(StrEnum):
    NONE = "none"
    SAMPLE = "sample"
    FULL = "full"


@dataclass(frozen=True, slots=True)
class CompileOptions:
    """Options of one job.  Frozen; `from_json` is the only parser, for CLI and API alike."""

    strategy: StrategyName = StrategyName.AUTO
    objective: Objective = Objective.LATENCY
    effort: Effort = Effort.NORMAL
    verify: VerifyMode = VerifyMode.SAMPLE
    symbols: tuple[tuple[str, int], ...] = ()
    """Values of symbolic dimensions, sorted by name (`--set batch=8`)."""
    fail_on_fallback: bool = False
    require_cache: bool = False
    no_cache: bool = False
    seed: int = 0
    """Seed of verification inputs."""

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
            "strategy": StrategyName,
            "objective": Objective,
            "effort": Effort,
            "verify": VerifyMode,
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
                            str(raw),
                        )
                    )
            elif key == "symbols":
                if isinstance(raw, dict) and all(
                    isinstance(k, str) and type(v) is int and v >= 1 for k, v in raw.items()
                ):
                    values[key] = tuple(sorted(raw.items()))
                else:
                    findings.append(
                        Finding(
                            "TW-OPT-001",
                            "symbols must map names to integers >= 1",
                            pointer,
                            None,
                            "object of integers >= 1",
                            str(raw),
                        )
                    )
            elif key == "seed":
                if type(raw) is int and 0 <= raw < 2**63:
                    values[key] = raw
                else:
                    findings.append(
                        Finding(
                            "TW-OPT-001",
                            "seed must be an integer from 0 to 2^63-1",
                            pointer,
                            None,
                            "0..2^63-1",
                            str(raw),
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
                        str(raw),
                    )
                )
        if values.get("require_cache") and values.get("no_cache"):
            findings.append(
                Finding(
                    "TW-OPT-001",
                    "require_cache and no_cache exclude each other",
                    "/options/require_cache",
                    None,
                    "at most one of them",
                    "both",
                )
            )
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
        document: dict[str, Detail] = {}
        for key, value in asdict(self).items():
            document[key] = dict(value) if key == "symbols" else value
        return document
