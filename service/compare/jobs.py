"""Which jobs can be compared, in the same words by the command line and the API."""

from __future__ import annotations

from worker.compiler.errors import InputError

SUCCEEDED = "succeeded"


def is_item(name: str) -> bool:
    """Whether a name is that of an item of a sweep: SWEEP:NUMBER."""
    sweep, colon, number = name.partition(":")
    return bool(colon) and sweep.startswith("swp_") and number.isdecimal()


def refuse_state(name: str, state: str) -> None:
    """Refuse a job that has no results to compare.

    Raises:
        InputError: TW-CMP-002, it did not succeed.
    """
    if state != SUCCEEDED:
        raise InputError("TW-CMP-002", f"{name}: the job is {state}, it has not succeeded",
                         limit=SUCCEEDED, actual=state)  # fmt: skip


def unknown_job(name: str) -> InputError:
    """The refusal of what is neither a job nor a label."""
    return InputError(
        "TW-SVC-001", f"{name}: no job has this id, and none that succeeded has this label",
        actual=name, remedy="Check the id or the label; `tilewright jobs ls` lists both. Items of a"
        " sweep are named SWEEP:NUMBER.",
    )  # fmt: skip
