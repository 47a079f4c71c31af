"""An export says what takes time in Tilewright and none in the peer."""

from __future__ import annotations

from dataclasses import replace

import pytest
from export_cases import matmul_nest, one_core, two_cores, with_registers

from worker.compiler.export.export import WRITERS
from worker.compiler.export.peer import Peer
from worker.compiler.export.untimed import untimed
from worker.compiler.machine.machine import EngineKind, Machine, MemoryLevel


def limited(on: Machine, **limits: int) -> Machine:
    engines = tuple(
        replace(e, **limits) if e.kind is EngineKind.DMA_IN else e  # type: ignore[arg-type]
        for e in on.engines
    )
    return replace(on, engines=engines)


def bursting(on: Machine) -> tuple[MemoryLevel, ...]:
    return (replace(on.home, burst_bytes=64), *on.levels[1:])


SLOW = {
    "transfers": (limited(one_core(), setup_cycles=3), limited(one_core(), outstanding_bytes=8)),
    "bursts": (replace(one_core(), levels=bursting(one_core())),),
    "signals": (replace(one_core(), engine_signal_cycles=2), replace(two_cores(), signal_cycles=2)),
}


def test_nothing_is_said_of_what_takes_no_time() -> None:
    nest = matmul_nest()
    quick = replace(nest, engine=replace(nest.engine, startup_cycles=0))
    assert untimed(quick, one_core()) == untimed(quick, replace(one_core(), signal_cycles=9)) == ()
    slow = replace(nest, engine=replace(nest.engine, startup_cycles=7))
    assert [text.split()[0] for text in untimed(slow, one_core())] == ["start-up"]


@pytest.mark.parametrize("peer", sorted({*Peer} - {Peer.DIRECTIVES}))  # they time nothing
@pytest.mark.parametrize("what", SLOW)
def test_every_export_says_it(peer: Peer, what: str) -> None:
    for on in SLOW[what]:
        (done,) = WRITERS[peer]((matmul_nest(),), with_registers(on)).exported
        assert sum(text.startswith(what) for text in done.caveats) == 1
