"""What each peer is given, to the letter: two kernels on a machine of one core."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from export_cases import conv_nest, matmul_nest, one_core, with_registers

from worker.compiler.export.export import WRITERS
from worker.compiler.export.peer import Peer

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
