"""How floats become integers: the options of a quantisation, and what is wrong with some."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from worker.compiler.errors import Detail, Finding

POINTER = "/options/quantization"
MAX_NAMES, MAX_NAME_CHARS = 10_000, 1000
_LEAST_PERCENTILE = 50.0
_DECIBELS = (-100.0, 200.0)


class Ranges(StrEnum):
    """Which range of the values that calibration saw gets integers; what lies beyond saturates."""

    MINMAX = "minmax"
    """From the least to the largest."""
    PERCENTILE = "percentile"
    """Without the same share of values on each side."""
    ENTROPY = "entropy"
    """Where the histogram of the integers tells most about that of the values."""
    AUTO = "auto"
    """Of the others the one that keeps most of the outputs, measured on samples."""
    MSE = "mse"
    """Where the squared error is least on samples that the range was not taken from."""


class Correction(StrEnum):
    """What constants take upon themselves of the error of rounding."""

    BIAS = "bias"
    """Biases make up for the mean error of every channel."""
    EQUALISE = "equalise"
    """Channels between two products get sizes that one scale suits, where samples keep more so."""
    ROUNDING = "rounding"
    """Weights are rounded up or down so that the error of the result is least, not their own."""


class Quantization(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Options of the conversion to integers."""

    ranges: Ranges = Ranges.MINMAX
    percentile: float = 99.99
    """Per cent of the values that `ranges: percentile` keeps."""
    corrections: tuple[Correction, ...] = ()
    """Sorted."""
    keep_float: tuple[str, ...] = ()
    """Nodes that stay as they are, sorted."""
    min_sqnr: float | None = None
    """Signal to quantisation noise that every output must keep, in dB: as few operators as can be
    found stay float for it."""


_WITH_PERCENTILE = (Ranges.PERCENTILE, Ranges.AUTO)
DEFAULT = Quantization()
"""Least to largest, nothing corrected, nothing left out."""


def parse(raw: object) -> tuple[Quantization, list[Finding]]:
    """The options that a JSON object names, and what is wrong with it."""
    try:
        found = msgspec.convert(raw, Quantization)
    except msgspec.ValidationError as error:
        said, _, at = str(error).partition(" - at `$")
        place = at.rstrip("`").split("[")[0].replace(".", "/")
        return DEFAULT, [
            Finding("TW-OPT-001", f"quantization: {said}; it has {_listed()}", POINTER + place,
                    None, _listed(), ascii(raw)[:200])
        ]  # fmt: skip
    corrections = tuple(sorted(set(found.corrections)))
    names = tuple(sorted(set(found.keep_float)))
    found = msgspec.structs.replace(found, corrections=corrections, keep_float=names)
    return found, _refused(found)


def _refused(found: Quantization) -> list[Finding]:
    findings: list[Finding] = []

    def refuse(field: str, words: str, allowed: Detail, actual: Detail) -> None:
        findings.append(Finding("TW-OPT-001", words, f"{POINTER}/{field}", None, allowed, actual))

    low, high = _DECIBELS
    if not _LEAST_PERCENTILE < found.percentile <= 100.0:
        said = f"above {_LEAST_PERCENTILE:g}, at most 100"
        refuse("percentile", f"percentile must be {said}", said, ascii(found.percentile))
    elif found.ranges not in _WITH_PERCENTILE and found.percentile != DEFAULT.percentile:
        refuse("percentile", f"ranges {found.ranges} have no percentile",
               "with ranges percentile or auto", found.percentile)  # fmt: skip
    if found.min_sqnr is not None and not low <= found.min_sqnr <= high:
        said = f"{low:g} to {high:g} dB, or null"
        refuse("min_sqnr", f"min_sqnr must be {said}", said, ascii(found.min_sqnr))
    if len(found.keep_float) > MAX_NAMES or any(
        not 0 < len(name) <= MAX_NAME_CHARS for name in found.keep_float
    ):
        said = f"at most {MAX_NAMES} names of 1 to {MAX_NAME_CHARS} characters"
        refuse("keep_float", f"keep_float must be {said}", said, len(found.keep_float))
    return findings


def _listed() -> str:
    return (
        f"ranges: {', '.join(Ranges)}; percentile: above {_LEAST_PERCENTILE:g}, at most 100;"
        f" corrections: any of {', '.join(Correction)}; keep_float: names of nodes;"
        " min_sqnr: dB, or null"
    )


def to_json(chosen: Quantization) -> dict[str, Detail]:
    """The object that `parse` takes."""
    return {
        "ranges": str(chosen.ranges),
        "percentile": chosen.percentile,
        "corrections": [str(name) for name in chosen.corrections],
        "keep_float": list[Detail](chosen.keep_float),
        "min_sqnr": chosen.min_sqnr,
    }
