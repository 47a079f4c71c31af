"""What engines take of the ports of their memory where transfers pass there, too."""

from __future__ import annotations

from typing import NamedTuple

from worker.compiler.machine.engine_ports import shared_memory, taken_cycles
from worker.compiler.machine.machine import Engine, Machine, MemoryLevel
from worker.compiler.tiling.nest.plan import Team
from worker.compiler.tiling.nest.route import port_number


class SharedMemory(NamedTuple):
    """The memory of an engine that shares its ports with transfers."""

    level: MemoryLevel
    ports: tuple[int, int]
    """Numbers of its read and its write port."""
    copies: int
    """Teams at work."""
    instances: int
    """That they are attached to."""

    @staticmethod
    def of(engine: Engine, machine: Machine, team: Team) -> SharedMemory | None:
        """None: the engine has ports of its own."""
        level = shared_memory(engine, machine)
        if level is None:
            return None
        read, write = (port_number(level, machine, writes=way) for way in (False, True))
        return SharedMemory(level, (read, write), team.copies, team.instances(level))

    def taken(self, moved: tuple[int, int]) -> tuple[int, int, int]:
        """Cycles of the read and of the write port that one instruction takes which draws and
        returns so many bytes, and those that it takes itself at least."""
        each = taken_cycles(self.level, *moved)
        return *each, int(self.level.port_cycles(*each))
