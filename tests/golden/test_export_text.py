"""What each peer is given, to the letter: two kernels on a machine of one core."""

from __future__ import annotations

import re
from dataclasses import replace
from difflib import ndiff
from pathlib import Path

import pytest
from export_cases import conv_nest, matmul_nest, one_core, with_registers

from worker.compiler.export.export import WRITERS
from worker.compiler.export.peer import Peer
from worker.compiler.machine.machine import Managed

GOLDEN = Path(__file__).parent / "export"
CASES = {"matmul": matmul_nest, "conv": conv_nest}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("peer", Peer)
def test_files_of_a_kernel(peer: Peer, case: str, request: pytest.FixtureRequest) -> None:
    export = WRITERS[peer]((CASES[case](),), with_registers(one_core()))
    assert not export.refused
    text = "".join(f"==> {name}\n{content}" for name, content in export.files)
    file = GOLDEN / f"{peer}_{case}.txt"
    if request.config.getoption("--update-golden"):
        file.write_text(text)
    assert file.read_text() == text


def test_every_peer_has_a_writer() -> None:
    assert set(WRITERS) == set(Peer)


def test_a_half_duplex_memory_has_one_port_where_the_peer_knows_one() -> None:
    """Home and scratchpad read 16 bytes a cycle, and write 8, one at a time."""
    machine = with_registers(one_core())
    levels = tuple(
        replace(m, read_bytes_per_cycle=16.0, write_bytes_per_cycle=8.0, half_duplex=True)
        if m.managed is Managed.SCRATCHPAD
        else m
        for m in machine.levels
    )
    half, nest = replace(machine, levels=levels), matmul_nest()
    full = replace(machine, levels=tuple(replace(m, half_duplex=False) for m in levels))
    texts = {
        peer: ["\n".join(text for _, text in WRITERS[peer]((nest,), mach).files)
               for mach in (full, half)]
        for peer in Peer
    }  # fmt: skip
    changed = {peer: _changed(*pair) for peer, pair in texts.items()}
    without = [peer for peer in Peer if not any(changed[peer])]
    assert without == [Peer.DIRECTIVES, Peer.NN_DATAFLOW, Peer.SCALESIM]
    # Of home, and of the result's buffer towards home.
    shared = re.findall(r"type: read_write\s+bandwidth_min: 8\s+bandwidth_max: (\d+)\s+"
                        r"allocation: (.*)", texts[Peer.ZIGZAG][1])  # fmt: skip
    assert sorted(shared) == [
        ("64", "['I1, tl', 'I2, tl', 'O, tl', 'O, th', 'I1, fh', 'I2, fh', 'O, fh', 'O, fl']"),
        ("64", "['O, fh', 'O, th']"),
    ]
    assert "read_write" not in texts[Peer.ZIGZAG][0]
    _, come = changed[Peer.TIMELOOP]
    assert come == ["shared_bandwidth: 2.0"] * 2  # words of four bytes
    _, come = changed[Peer.ACCELFORGE]
    assert all("sum(a.n_calls / a.throughput" in line for line in come)


def _changed(before: str, after: str) -> tuple[list[str], list[str]]:
    """Lines that are gone, and that have come."""
    lines = [line for line in ndiff(before.splitlines(), after.splitlines()) if line[0] in "-+"]
    gone, come = ([row[2:].strip(" -") for row in lines if row[0] == sign] for sign in "-+")
    return gone, come
