"""What the search for tiles proved of a kernel, as a note of its schedule, and of which tilings."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Self

from worker.compiler.machine.machine import Machine
from worker.compiler.tiling.nest.facts import Facts
from worker.compiler.tiling.nest.plan import Stage, Team, stages_of

_NOTE = re.compile(
    r"best tiling ([\d.]+), another ([\d.]+|none), none below ([\d.]+) in (.+):"
    r" (\d+) boxes, (\d+) ruled out, (\d+) tilings"
)
_WORDS = re.compile(r"(\S+)( joined)?( summed in \S+)?( alone)?(?: in (\d+) strips)?( beside)?")


@dataclass(frozen=True, slots=True)
class Space:
    """One set of tilings that was searched: what is placed where, whatever the tiles."""

    memories: tuple[str, ...]
    """Scratchpads, outer to inner."""
    joins: bool
    """`plan.Team.joins`."""
    registers: str
    """Where sums stand; empty: in the innermost scratchpad."""
    alone: bool
    """`facts.Facts.is_alone`, and so on."""
    strips: int
    beside: bool

    @classmethod
    def of(cls, facts: Facts, stages: tuple[Stage, ...]) -> Self:
        """That of a layer on given stages."""
        return cls(
            tuple(stage.level.name for stage in stages), stages[-1].team.joins,
            "" if facts.registers is None else facts.registers.name,
            facts.is_alone, facts.max_strips, facts.is_overlapped,
        )  # fmt: skip

    def __str__(self) -> str:
        return (
            "/".join(self.memories)
            + " joined" * self.joins
            + f" summed in {self.registers}" * bool(self.registers)
            + " alone" * self.alone
            + f" in {self.strips} strips" * (self.strips > 1)
            + " beside" * self.beside
        )

    @classmethod
    def parsed(cls, text: str) -> Self:
        """What `str` says.

        Raises:
            ValueError: it is none.
        """
        found = _WORDS.fullmatch(text)
        if found is None:
            raise ValueError(f"{text!r} is no space of tilings")
        memories, joins, registers, alone, strips, beside = found.groups()
        return cls(
            tuple(memories.split("/")), bool(joins), (registers or "").rpartition(" ")[2],
            bool(alone), int(strips or 1), bool(beside),
        )  # fmt: skip

    def placed(self, facts: Facts, machine: Machine) -> tuple[Facts, tuple[Stage, ...]]:
        """A layer as it is in this space.

        Raises:
            KeyError: the machine has no such memory.
        """
        memories = tuple(machine.level(name) for name in self.memories)
        registers = machine.level(self.registers) if self.registers else None
        team = Team.everyone(machine, joins=self.joins)
        return replace(
            facts, registers=registers, is_alone=self.alone, max_strips=self.strips,
            is_overlapped=self.beside,
        ), stages_of(machine, memories, team)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Certificate:
    """Of all tilings of some spaces (`tiling/nest/branch_bound.py`).

    Units: predicted cycles without the launch, and a thousandth for every instruction that is
    executed: of equal tilings the one with the shorter program is the better (`search.score`).
    """

    best: float
    """Of what was found."""
    bound: float
    """No tiling has less."""
    second: float | None
    """Of the best of all other tilings that were priced, the runner-up; None: no other was."""
    spaces: tuple[Space, ...]
    boxes: int
    """Sets of tilings that were bounded."""
    cut: int
    """Of them, those that their bounds ruled out whole."""
    tilings: int
    """That were priced one by one."""

    @property
    def gap(self) -> float:
        """By how much the best could be better; 0 where it is proven to be the best."""
        return self.best / self.bound - 1 if self.bound > 0 else 0.0

    def is_ordered(self, slack: float) -> bool:
        """Whether its figures rise from the bound over the best to the runner-up."""
        second = self.best if self.second is None else self.second
        return self.bound - slack <= self.best <= second + slack

    def __str__(self) -> str:
        spaces = ", ".join(map(str, self.spaces))
        second = "none" if self.second is None else f"{self.second:.3f}"
        return (
            f"best tiling {self.best:.3f}, another {second}, none below {self.bound:.3f} in"
            f" {spaces}: {self.boxes} boxes, {self.cut} ruled out, {self.tilings} tilings"
        )

    @staticmethod
    def said(note: str) -> Certificate | None:
        """What a note says; None: something else.

        Raises:
            ValueError: it names a space that is none.
        """
        found = _NOTE.fullmatch(note)
        if found is None:
            return None
        spaces = tuple(Space.parsed(text) for text in found[4].split(", "))
        second = None if found[2] == "none" else float(found[2])
        boxes, cut, tilings = map(int, found.groups()[4:])
        return Certificate(float(found[1]), float(found[3]), second, spaces, boxes, cut, tilings)
