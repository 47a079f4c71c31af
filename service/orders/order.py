"""The order: one model on one machine, before it is known who compiles it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from worker.compiler.descriptors import AUTO, an_option
from worker.compiler.errors import InputError, OptionError
from worker.compiler.stages import UNWATCHED, Watch

SPEC_SUFFIXES = frozenset({".yaml", ".yml", ".json"})


@dataclass(frozen=True, slots=True)
class Order:
    """What the user asked for."""

    model: Path
    hardware: dict[str, Any]
    """A hardware spec document, or {"preset": NAME}."""
    options: dict[str, Any]
    """`CompileOptions.to_json()`."""
    output: Path
    """Folder for the results."""
    label: str | None = None
    """Of the server's job."""
    calibration: Path | None = None
    """The .npz whose digest `options` has."""
    inputs: Path | None = None
    """Of the verification, as `calibration`."""
    link: Path | None = None
    """The kernel library whose digest `options` has."""
    watch: Watch = UNWATCHED
    """What a developer looks at; local compiles only."""


def hardware_document(text: str) -> dict[str, Any]:
    """The document of a spec file, or of the preset of that name.

    Raises:
        SpecError: the file cannot be parsed.
        InputError: TW-CLI-001, it looks like a file, but there is none.
    """
    path = Path(text)
    if path.suffix.lower() in SPEC_SUFFIXES or path.is_file():
        from worker.compiler.machine import parse_document

        if not path.is_file():
            raise InputError("TW-CLI-001", f"{text}: there is no such spec file")
        return dict(parse_document(path.read_text(encoding="utf-8", errors="replace")))
    return {"preset": text}


def existing_model(path: Path) -> Path:
    """Check that the model file exists before anything is started.

    Raises:
        InputError: TW-CLI-001, it does not.
    """
    if not path.is_file():
        raise InputError("TW-CLI-001", f"{path}: there is no such model file")
    return path


def arrays_digest(path: Path, what: str) -> str:
    """Digest of a file that a job's options name: its identity there.

    Raises:
        InputError: TW-CLI-001, there is no such file.
    """
    from service.client.uploads import file_sha256

    if not path.is_file():
        raise InputError("TW-CLI-001", f"{path}: there is no such {what}")
    return file_sha256(path)


def variant_settings(strategy: str, variant: str | None) -> dict[str, dict[str, object]]:
    """`strategy_options` that `variant` alone is short for.

    Raises:
        OptionError: TW-OPT-001, it comes without the strategy whose option it is.
    """
    if variant is None:
        return {}
    if strategy == AUTO:
        name, _, value = an_option("variant")
        raise OptionError(
            "TW-OPT-001",
            "a variant is an option of one strategy, and none is named",
            pointer="/options/variant",
            remedy=f"Name the strategy, for example --strategy {name} --variant {value}; in Python"
            f' strategy="{name}", variant="{value}".',
        )
    return {strategy: {"variant": variant}}
