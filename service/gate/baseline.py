"""What a tree is compared with: the same pairs as a commit, a file or a server has them.

Figures of two toolchains are never compared: a base of another one is computed anew where its
inputs are known.  What cannot be had is left out with the reason, and the gate is neutral there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from service.gate.file import GateFile
from service.gate.git import Commit, NoBaseline, Repository
from service.gate.reading import read_gate
from service.gate.runs import Outcome
from service.gate.selection import Pair, select
from service.gate.together import Together
from worker.compiler.errors import InputError

Key = tuple[str, str]
RULES = ("budgets", "regressions", "changes", "waivers", "baseline")
"""Fields of a gate file that decide what is allowed."""
Compile = Callable[[Pair, Commit], Outcome]
"""Compiles a pair as a commit has it."""


@dataclass(slots=True)
class Base:
    """What there is to compare with."""

    says: str
    """In words: `merge base with main`, for outputs."""
    outcomes: dict[Key, Outcome] = field(default_factory=dict)
    keys: list[Key] = field(default_factory=list)
    """Pairs that the base has, compiled or not."""
    reasons: dict[Key, str] = field(default_factory=dict)
    """Why a pair that the base may have had cannot be compared."""
    rules: tuple[str, ...] = ()
    """Fields of rules in which its gate file is another one than today's."""
    why_none: str | None = None
    """Why there is nothing to compare with at all."""


@dataclass(frozen=True, slots=True)
class AtCommit:
    """A commit with the gate file that it had."""

    tree: Commit
    gate: GateFile
    pairs: Mapping[Key, Pair]


def at_commit(
    repository: Repository, commit: str, gate: GateFile, name: str, store: Path
) -> AtCommit:
    """The pairs of a commit: by its own gate file, by today's where it has none that can be read.

    Raises:
        NoBaseline: git refuses.
    """
    tree = Commit(repository, commit, store)
    own = tree.file(name)
    then = gate
    if own is not None:
        try:
            then = read_gate(own.read_text(encoding="utf-8", errors="replace"), name)
        except InputError:
            then = gate  # what it said cannot be known; its files can
    pairs, _ = select(then, tree)
    return AtCommit(tree, then, {pair.key: pair for pair in pairs})


def compiled_base(
    says: str, gate: GateFile, then: AtCommit, wanted: Sequence[Pair], compile_pair: Compile,
    together: Together,
) -> Base:  # fmt: skip
    """Compile what a commit has of some pairs; `gate` is today's.

    Raises:
        NoBaseline: it has none at all, as where models are not in git.
    """
    if not then.pairs:
        raise NoBaseline(f"{says} has none of the models and specs: are they in git?")
    rules = tuple(name for name in RULES if getattr(gate, name) != getattr(then.gate, name))
    base = Base(says, keys=list(then.pairs), rules=rules)
    before = [then.pairs[pair.key] for pair in wanted if pair.key in then.pairs]
    calls = [partial(_if_there_is_one, partial(compile_pair, each, then.tree)) for each in before]
    for pair, found in zip(before, together(calls), strict=True):
        if isinstance(found, NoBaseline):
            base.reasons[pair.key] = str(found)
        else:
            base.outcomes[pair.key] = found
    return base


def _if_there_is_one(outcome: Callable[[], Outcome]) -> Outcome | NoBaseline:
    try:
        return outcome()
    except NoBaseline as error:
        return error


def is_same_toolchain(base: Mapping[str, Any], head: Mapping[str, Any]) -> bool:
    """Whether two toolchains, as reports tell them, give the same results.

    Strategies count where both sides ran them: which take part is an option.
    """
    ours, theirs = dict(base), dict(head)
    before, after = ours.pop("strategies", {}), theirs.pop("strategies", {})
    return ours == theirs and all(before[name] == after[name] for name in before if name in after)


def without_other_toolchains(
    base: Base, heads: Mapping[Key, Outcome], again: Callable[[Key], Outcome], together: Together
) -> None:
    """Compute anew what another toolchain made; `again` raises NoBaseline where that cannot be."""
    made: dict[Key, object] = {}
    for key, outcome in base.outcomes.items():
        report, head = outcome.report, heads[key].report if key in heads else None
        if report is None or head is None:
            continue
        if is_same_toolchain(report["toolchain"], head["toolchain"]):
            continue
        made[key] = report["toolchain"].get("version")
    calls = [partial(_if_there_is_one, partial(again, key)) for key in made]
    for (key, version), found in zip(made.items(), together(calls), strict=True):
        if isinstance(found, NoBaseline):
            del base.outcomes[key]
            base.reasons[key] = (
                f"the baseline was made by another toolchain (Tilewright {version}) and cannot be"
                f" computed anew: {found}"
            )
        else:
            base.outcomes[key] = found
