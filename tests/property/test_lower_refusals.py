"""Every rule of the program checker, and every way a stored program can be damaged."""

from __future__ import annotations

from dataclasses import replace

import lower_toys as toys
import pytest

from worker.compiler.errors import InputError, VerifyError
from worker.compiler.isa.binary import decode_program, encode_program
from worker.compiler.isa.program import Program, Resource, Stream, UnitProgram
from worker.compiler.isa.text import parse_program, print_program
from worker.compiler.isa.verify import verify_program
from worker.compiler.lower.lower import lower_unit
from worker.compiler.schedule.nodes import Compute, Move, Place, Schedule

MACHINE = toys.flat_machine()


def program() -> UnitProgram:
    return lower_unit(toys.naive_matmul(4, 4, 4, (2, 2, 2), 1), MACHINE, "s")


def test_buffer_rules() -> None:
    good = program()
    first, *rest = good.buffers
    for damaged, rule in (
        (replace(first, level="L9"), "level"),
        (replace(first, address=1 << 20), "arena"),
        (replace(first, address=2), "alignment"),
        (replace(first, extents=(100, 100)), "size"),
        (replace(first, copies=0), "copies"),
    ):
        with pytest.raises(VerifyError) as caught:
            verify_program(replace(good, buffers=(damaged, *rest)), MACHINE)
        assert (caught.value.rule, caught.value.path) == (rule, "buffer 0")


def test_table_rules() -> None:
    good = program()
    with pytest.raises(VerifyError) as caught:
        verify_program(replace(good, streams=(Stream(7, "mme"), *good.streams[1:])), MACHINE)
    assert caught.value.rule == "engine"
    for port, rule in ((Resource("L9", 0, "read", 1.0), "level"),
                       (Resource("L1", 0, "read", 0.0), "rate")):  # fmt: skip
        with pytest.raises(VerifyError) as caught:
            verify_program(replace(good, resources=(port, *good.resources[1:])), MACHINE)
        assert caught.value.rule == rule


def test_token_rules() -> None:
    good = program()
    with pytest.raises(VerifyError) as caught:
        verify_program(replace(good, wait_ptr=good.wait_ptr[:-1]), MACHINE)
    assert caught.value.rule == "pointers"
    with pytest.raises(VerifyError) as caught:
        verify_program(replace(good, num_tokens=1), MACHINE)
    assert caught.value.rule == "tokens"


def test_damaged_bytes_are_refused() -> None:
    data = encode_program(Program((program(),), (), 1, 1, 0))
    for damaged in (b"", b"TWPROG99" + data[8:], data[:12], data[:-8], data + bytes(8),
                    data[:16] + b"\xc1" + data[17:]):  # fmt: skip
        with pytest.raises(InputError) as caught:
            decode_program(damaged)
        assert caught.value.code == "TW-RUN-001"


def test_decoded_arrays_are_read_only() -> None:
    decoded = decode_program(encode_program(Program((program(),), (), 1, 1, 0)))
    assert not decoded.units[0].instructions.flags.writeable
    assert not program().instructions.flags.writeable


@pytest.mark.parametrize(
    ("line", "text"), [(1, "not a program"), (3, "operand tensor=1"), (4, "JUMP stream=0")]
)
def test_damaged_text_names_the_line(line: int, text: str) -> None:
    lines = print_program(program()).splitlines()
    lines[line - 1] = text
    with pytest.raises(VerifyError) as caught:
        parse_program("\n".join(lines))
    assert caught.value.path == f"line {line}"


def test_lowering_refuses_what_it_cannot_place() -> None:
    graph = toys.chain_graph(4, 4)
    box = toys.whole(4, 4)
    for root, rule in (
        (Place("t0", "DDR", box, 1, Compute("op0", box, "vec")), "memory"),
        (Move("t0", "DDR", "L1", box), "resident"),
        (Place("t0", "L1", box, 1, Move("t0", "L1", "L1", box)), "resident"),
    ):
        with pytest.raises(VerifyError) as caught:
            lower_unit(Schedule(graph, root, "hand", 0), MACHINE, "s")
        assert caught.value.rule == rule


def test_lowering_is_deterministic() -> None:
    first, second = (encode_program(Program((program(),), (), 1, 1, 0)) for _ in range(2))
    assert first == second
