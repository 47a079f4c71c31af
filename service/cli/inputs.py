"""What users type: hardware by name or file, options by flag."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from service.cli.failures import Failure
from worker.compiler.descriptors import AUTO

SPEC_SUFFIXES = frozenset({".yaml", ".yml", ".json"})


def hardware_argument(text: str) -> dict[str, Any]:
    """Read `--hardware`: a spec file, or the name of a preset.

    Raises:
        SpecError: the file cannot be parsed.
        Failure: it looks like a file, but there is none.
    """
    path = Path(text)
    if path.suffix.lower() in SPEC_SUFFIXES or path.is_file():
        from worker.compiler.machine import parse_document

        if not path.is_file():
            raise Failure("TW-CLI-001", f"{text}: there is no such spec file")
        return dict(parse_document(path.read_text(encoding="utf-8", errors="replace")))
    return {"preset": text}


def hardware_label(text: str) -> str:
    """Give a short name of the hardware for folder names."""
    return Path(text).stem


def model_argument(path: Path) -> Path:
    """Check that the model file exists before anything is started.

    Raises:
        Failure: it does not.
    """
    if not path.is_file():
        raise Failure("TW-CLI-001", f"{path}: there is no such model file")
    return path


def arrays_digest(path: Path, what: str) -> str:
    """Digest of a file of arrays: its identity in the job's options.

    Raises:
        Failure: there is no such file.
    """
    from service.client.uploads import file_sha256

    if not path.is_file():
        raise Failure("TW-CLI-001", f"{path}: there is no such {what}")
    return file_sha256(path)


def symbol_settings(pairs: list[str]) -> dict[str, int]:
    """Read the repeated `--set name=value`.

    Raises:
        Failure: a pair has another form.
    """
    symbols: dict[str, int] = {}
    for pair in pairs:
        name, sign, value = pair.partition("=")
        if not sign or not name.strip() or not value.strip().isdigit():
            raise Failure(
                "TW-OPT-001",
                f"--set {pair}: expected NAME=INTEGER",
                remedy="Write for example --set batch=8.",
            )
        symbols[name.strip()] = int(value)
    return symbols


def strategy_settings(
    strategy: str, variant: str | None, pairs: list[str]
) -> dict[str, dict[str, object]]:
    """Read the repeated `--strategy-option STRATEGY.NAME=VALUE`, and `--variant`.

    Values are JSON where they are JSON, else text; the parser of options judges them.

    Raises:
        Failure: a pair has another form, or `--variant` comes without the strategy it is short for.
    """
    found: dict[str, dict[str, object]] = {}
    if variant is not None:
        if strategy == AUTO:
            raise Failure(
                "TW-OPT-001",
                "--variant is an option of one strategy, and none is named",
                remedy="Write for example --strategy graphturbo --variant v1, or"
                " --strategy-option graphturbo.variant=v1.",
            )
        found[strategy] = {"variant": variant}
    for pair in pairs:
        place, sign, value = pair.partition("=")
        name, dot, key = place.partition(".")
        if not (sign and dot and name and key):
            raise Failure(
                "TW-OPT-001",
                f"--strategy-option {pair}: expected STRATEGY.NAME=VALUE",
                remedy="Write for example --strategy-option graphturbo.variant=v1.",
            )
        try:
            read: object = json.loads(value)
        except json.JSONDecodeError:
            read = value
        found.setdefault(name, {})[key] = read
    return found
