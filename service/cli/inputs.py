"""What users type as options, read."""

from __future__ import annotations

import json
from pathlib import Path

from service.cli.failures import Failure
from service.orders.order import variant_settings
from worker.compiler.descriptors import an_option


def hardware_label(text: str) -> str:
    """Give a short name of the hardware for folder names."""
    return Path(text).stem


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
        Failure: a pair has another form.
        OptionError: `--variant` comes without the strategy that it is short for.
    """
    found = variant_settings(strategy, variant)
    for pair in pairs:
        place, sign, value = pair.partition("=")
        name, dot, key = place.partition(".")
        if not (sign and dot and name and key):
            strategy, option, other = an_option()
            raise Failure(
                "TW-OPT-001",
                f"--strategy-option {pair}: expected STRATEGY.NAME=VALUE",
                remedy=f"Write for example --strategy-option {strategy}.{option}={other}.",
            )
        try:
            read: object = json.loads(value)
        except json.JSONDecodeError:
            read = value
        found.setdefault(name, {})[key] = read
    return found
