"""Options as they lie in the database: with the version of their form, and one lift per version.

A queued, listed or cloned job may be older than the release that reads it.  `seal` writes the
present form; `lift` takes any older one through every step since, so the rest of the service knows
one form only.  A step moves or renames; it never decides.  What this release no longer accepts
stays as the user said it: the parser of options refuses it by name when the job runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from worker.compiler.errors import Detail

KEY = "options_version"
Document = dict[str, Detail]


def _name_the_version(document: Document) -> Document:
    """0 to 1: options of the first release said no version; nothing else differs."""
    return document


def _give_options_to_their_strategy(document: Document) -> Document:
    """1 to 2: GraphTurbo's variant is an option of its own (`full` was the default); and a job
    names the inputs of its verification, which were all seeded before."""
    variant = document.get("variant", "full")
    own: Document = {} if variant == "full" else {"graphturbo": {"variant": variant}}
    kept = {key: value for key, value in document.items() if key != "variant"}
    return {"inputs": "", "strategy_options": own, **kept}


def _cap_nothing(document: Document) -> Document:
    """2 to 3: programs may be capped; none was."""
    return {"max_power_w": None, "max_latency_ms": None, **document}


def _leave_nothing_out(document: Document) -> Document:
    """3 to 4: heuristics may be turned off; all were on."""
    return {"without": [], **document}


def _quantise_as_before(document: Document) -> Document:
    """4 to 5: quantisation has options; it had none."""
    return {"quantization": {}, **document}


STEPS: tuple[Callable[[Document], Document], ...] = (
    _name_the_version,
    _give_options_to_their_strategy,
    _cap_nothing,
    _leave_nothing_out,
    _quantise_as_before,
)
"""`STEPS[n]` lifts version n to n + 1.  A new form appends a step and changes no older one."""
VERSION = len(STEPS)


def seal(document: Mapping[str, Detail]) -> Document:
    """Give what is stored: the present form, with its version."""
    return {**document, KEY: VERSION}


def lift(stored: Mapping[str, Detail]) -> Document:
    """Give stored options in the present form.

    Options of a newer release (the database was shared or taken back) keep their version, an
    option that no parser knows: such a job is shown, and refused when it runs.
    """
    document = dict(stored)
    version = document.get(KEY, 0)
    if type(version) is not int or not 0 <= version <= VERSION:
        return document
    document.pop(KEY, None)
    for step in STEPS[version:]:
        document = step(document)
    return document
