"""Kernel libraries of a vendor's, as the system's compiler makes them: good ones and rude ones."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

from worker.compiler.codegen.runtime_header import HEADER_NAME, runtime_header
from worker.compiler.package.build import find_compiler

_SOURCE = """
#include "tilewright_rt.h"

TW_LIBRARY("vendor_mm", VERSION);

TW_EXPORT int64_t vendor_calls = 0, vendor_points = 0, vendor_most[3] = {0, 0, 0};

#define PRODUCT(A, TA, B, TB, C, TC)                                                             \\
    TW_EXPORT void vendor_mm_##A##_##B##_##C(const tw_product *p);                               \\
    void vendor_mm_##A##_##B##_##C(const tw_product *p)                                          \\
    {                                                                                            \\
        const int64_t size[3] = {p->rows, p->columns, p->depth};                                 \\
        for (int d = 0; d < 3; ++d)                                                              \\
            if (size[d] > vendor_most[d]) vendor_most[d] = size[d];                              \\
        vendor_calls += 1;                                                                       \\
        vendor_points += p->rows * p->columns * p->depth;                                        \\
        BEFORE;                                                                                  \\
        for (int64_t i = 0; i < p->rows; ++i)                                                    \\
            for (int64_t j = 0; j < p->columns; ++j) {                                           \\
                TC sum = 0;                                                                      \\
                for (int64_t k = 0; k < p->depth; ++k)                                           \\
                    sum += ((TC)((const TA *)p->a)[i * p->a_stride + k] - (TC)p->a_zero) *       \\
                           ((TC)((const TB *)p->b)[k * p->b_stride + j] - (TC)p->b_zero);        \\
                ((TC *)p->c)[i * p->c_stride + j] += sum OFF;                                    \\
            }                                                                                    \\
    }
PRODUCTS
"""
INTEGERS = "PRODUCT(i8, int8_t, i8, int8_t, i32, int32_t)"
FLOATS = "PRODUCT(f32, float, f32, float, f32, float)"
SYMBOL = "vendor_mm"


def vendor_library(
    folder: Path,
    name: str = "libvendor.so",
    *,
    version: str = "1.0",
    products: str = INTEGERS,
    off: str = "",
    before: str = "",
    abi: int | None = None,
    flags: tuple[str, ...] = ("-shared",),
) -> Path:
    """Build one.  `off` is added to every sum, `before` is what a call does first."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / HEADER_NAME).write_text(runtime_header())
    text = _SOURCE.replace("PRODUCTS", products).replace("OFF", off).replace("BEFORE", before)
    if abi is not None:
        text = text.replace('TW_LIBRARY("vendor_mm", VERSION);', _other(abi))
    source = folder / f"{name}.c"
    source.write_text(text)
    target = folder / name
    subprocess.run(
        [str(find_compiler()), "-std=c11", "-O1", "-fPIC", *flags, f'-DVERSION="{version}"',
         f"-I{folder}", str(source), "-o", str(target), "-lm"],
        check=True, capture_output=True,
    )  # fmt: skip
    return target


def _other(abi: int) -> str:
    return (
        "TW_EXPORT const tw_library_info tw_library ="
        f' {{{abi}, (int32_t)sizeof(tw_product), "vendor_mm", VERSION}};'
    )


def counted(build_dir: Path, what: str = "vendor_points") -> int:
    """A counter of the one library that kernels of `build_dir` were linked with."""
    (copy,) = build_dir.glob("link-*/*")
    return ctypes.c_int64.in_dll(ctypes.CDLL(str(copy)), what).value


def most(build_dir: Path) -> tuple[int, ...]:
    """The most rows, columns and depth that a call had."""
    (copy,) = build_dir.glob("link-*/*")
    return tuple((ctypes.c_int64 * 3).in_dll(ctypes.CDLL(str(copy)), "vendor_most"))
