"""One C function per region: the calls of its kernels, in order, on data entries.

The function is what a vendor's runtime calls in place of the region; kernels and driver compile
against `tilewright_rt.h` alone.
Source: BYOC section 3.3, option 2 (standard C code).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from worker.compiler.codegen.ctext import Writer, comment
from worker.compiler.codegen.runtime_header import HEADER_NAME
from worker.compiler.errors import VerifyError

REGIONS_HEADER_NAME = "regions.h"
"""Stands in the folder above each region's own."""


@dataclass(frozen=True, slots=True)
class DriverCall:
    """One kernel call."""

    kernel: str
    entries: tuple[int, ...]
    """Entry ids, parallel to the kernel's operands."""
    onnx_nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Driver:
    """A region as its C function sees it."""

    function: str
    target: str
    entries: tuple[str, ...]
    """What stands in each data entry, in words; the position is the entry's id."""
    calls: tuple[DriverCall, ...]


def generate_region(driver: Driver) -> str:
    """C11 text of `int function(tw_machine *m, unsigned char *const *entry)`.

    `entry[k]` is the base of data entry k.  The function returns 0, or 1 as soon as a kernel has
    recorded a fault in `m`.  Same driver, same text.

    Raises:
        VerifyError: a call names an entry the region does not have.
    """
    writer = Writer()
    with writer.block(f"int {driver.function}(tw_machine *m, unsigned char *const *entry)"):
        writer.line("(void)entry;")
        writer.line("m->num_faults = 0;")
        for call in driver.calls:
            beyond = [k for k in call.entries if not 0 <= k < len(driver.entries)]
            if beyond:
                raise VerifyError(
                    "codegen", driver.function, "entries",
                    f"{call.kernel} names entry {beyond[0]} of {len(driver.entries)}",
                )  # fmt: skip
            writer.line(comment(", ".join(call.onnx_nodes)))
            with writer.block(""):
                operands = ", ".join(f"entry[{k}]" for k in call.entries)
                writer.line(f"unsigned char *const operand[] = {{{operands}}};")
                writer.line(f"{call.kernel}(m, operand);")
                writer.line("if (m->num_faults != 0) return 1;")
        writer.line("return 0;")
    kernels = dict.fromkeys(call.kernel for call in driver.calls)
    head = [
        comment(f"{driver.function}: {len(driver.calls)} kernel calls on {driver.target}"),
        f'#include "../{REGIONS_HEADER_NAME}"',
        "",
        *(comment(f"entry {k}: {words}") for k, words in enumerate(driver.entries)),
        "",
        *(f"void {name}(tw_machine *m, unsigned char *const *operand);" for name in kernels),
    ]
    return "\n".join([*head, "", writer.text()])


def generate_regions_header(drivers: Sequence[Driver], guard: str) -> str:
    """`regions.h`: prototypes of a program's regions and the sizes of their entry tables.

    `guard` is the macro that keeps the text from being read twice.
    """
    lines = [
        comment("The regions of one program; region.c describes the entries of each."),
        f"#ifndef {guard}",
        f"#define {guard}",
        "",
        f'#include "{HEADER_NAME}"',
    ]
    for driver in drivers:
        lines += [
            "",
            comment(f"{driver.target}, {len(driver.calls)} kernel calls"),
            f"#define {driver.function.upper()}_ENTRIES {len(driver.entries)}",
            f"int {driver.function}(tw_machine *m, unsigned char *const *entry);",
        ]
    return "\n".join([*lines, "", "#endif", ""])
