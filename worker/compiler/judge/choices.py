"""Which candidate of a strategy is the best for a unit, kept between compiles.

Finding that out reads, checks and simulates every candidate, of which one by each measure is of
use: a compile whose units are known would spend most of its time on those that lost.  An entry
holds for what decides candidates and their figures; one that cannot be read, or names a candidate
that is not there, is a miss.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from worker.compiler.cache import CacheEvent, CacheKey, CacheKind
from worker.compiler.judge.figures import ADDITIVE, RANK_VERSION, Figures
from worker.compiler.judge.units import UnitSolver
from worker.compiler.options import Objective

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Best:
    """The best candidate by some measure."""

    number: int = 0
    figures: Figures | None = None
    """As simulated; None: no candidate fits, and the first says why."""
    instructions: int = 0
    """Of its program, executed."""


Choice = Mapping[Objective, Best]
"""By each additive measure."""


def recall(solver: UnitSolver, key: CacheKey, signature: str, label: str) -> Choice | None:
    """What was found earlier."""
    stored = solver.cache.get(key)
    if stored is None:
        return None
    try:
        found = msgspec.json.decode(stored, type=dict[Objective, Best])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:  # another job wrote it
        _LOG.warning("bad cache entry: %s %s: %s", key.kind, key.digest, error)
        return None
    limit = solver.entrant.budget.candidates
    if set(found) != set(ADDITIVE) or any(not 0 <= b.number < limit for b in found.values()):
        _LOG.warning("bad cache entry: %s %s", key.kind, key.digest)
        return None
    solver.events.append(CacheEvent(str(key.kind), key.digest, "hit", label, signature))
    return found


def remember(solver: UnitSolver, key: CacheKey, choice: Choice) -> None:
    """Keep what was found."""
    solver.cache.put(key, msgspec.json.encode(choice, order="sorted"))


def choice_key(solver: UnitSolver, signature: str, simulator: str) -> CacheKey:
    """Everything that decides a choice; `simulator` is the version of what gives figures."""
    more = (("rank_version", RANK_VERSION), ("simulator", simulator))
    return CacheKey(CacheKind.CHOICE, (*solver.lowered_fields(signature), *more))
