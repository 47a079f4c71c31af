"""What has to come before an instruction: by streams and tokens alone."""

from __future__ import annotations

from worker.compiler.errors import VerifyError
from worker.compiler.isa.program import UnitProgram


def predecessors(unit: UnitProgram) -> list[list[int]]:
    """By instruction: those that come right before it.  `unit` has no loops.

    Raises:
        VerifyError: it waits for a token that nothing has signalled.
    Cost: linear in instructions and signals, and in waits times streams.
    """
    found: list[list[int]] = []
    in_stream: dict[int, int] = {}
    signalled: dict[int, dict[int, int]] = {}
    streams = unit.instructions["stream"].tolist()
    waits, signals = unit.wait_ptr.tolist(), unit.signal_ptr.tolist()
    for i, stream in enumerate(streams):
        own = [in_stream[stream]] if stream in in_stream else []
        for token in unit.wait_token[waits[i] : waits[i + 1]].tolist():
            if token not in signalled:
                raise VerifyError(
                    "lower", f"instruction {i}", "backward", f"nothing has signalled token {token}"
                )
            own += signalled[token].values()  # the last of each stream: it follows the others
        found.append(list(dict.fromkeys(own)))
        in_stream[stream] = i
        for token in unit.signal_token[signals[i] : signals[i + 1]].tolist():
            signalled.setdefault(token, {})[stream] = i
    return found
