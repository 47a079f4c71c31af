"""The vendor's tilewright_rt.h: the portable reference with a place for every chip instruction.

Declarations and fallback bodies are those of the compiler's own header, so a kit never lags behind
the kernels.  Each place is a macro: left undefined, the portable body runs.
"""

from __future__ import annotations

from worker.compiler.codegen.runtime_header import runtime_header
from worker.compiler.errors import InternalError

_SECTION = """\
/* ---- @NAME@: the instructions of the chip --------------------------------------------------
 *
 * Each macro below stands for one primitive.  Define it to put the chip's instruction there; what
 * is not defined runs the portable body, so the header works as it is.  Try one at a time:
 *
 *   tilewright backend test @NAME@.yaml --header tilewright_rt.h
 *
 * TW_VENDOR_ENTER(m, level, instance, address)
 *     Address of a buffer in the memory `level` of core group `instance`: the chip's address map.
 *
 * TW_VENDOR_DMA_3D(dst, src, n0, n1, n2, bytes, d0, d1, d2, s0, s1, s2)
 *     Copy n0 x n1 x n2 runs of `bytes` contiguous bytes; all strides in bytes: one descriptor of
 *     the transfer engine.  It may return before the copy is done only if the next use waits.
 *
 * TW_VENDOR_DMA_ELEMENTS(size, dst, src, n0, n1, n2, d0, d1, d2, s0, s1, s2)
 *     The same for single elements of `size` bytes (1, 2, 4, 8): a transposing transfer.
 *
 * TW_VENDOR_GEMM(type, ctype, mb, ldc, kb, a, b, c)
 *     c[i][j] += sum_k a[i][k] * b[k][j] on packed panels (see "matrix products" below): the matrix
 *     unit.  `type` is f32, f64, i32 or i64, `ctype` the C type of a, b and c.
 *
 * Scalar functions (tw_exp..., tw_sigmoid_f32, casts) have no macro: replace their bodies below
 * where the vector unit has an instruction of the same meaning.
 */
/* #define TW_VENDOR_ENTER(m, level, instance, address) @MACRO@_address(level, instance, address) */
/* #define TW_VENDOR_DMA_3D(dst, src, n0, n1, n2, bytes, d0, d1, d2, s0, s1, s2) @MACRO@_dma(...) */
/* #define TW_VENDOR_DMA_ELEMENTS(size, dst, src, n0, n1, n2, d0, d1, d2, s0, s1, s2) ... */
/* #define TW_VENDOR_GEMM(type, ctype, mb, ldc, kb, a, b, c) @MACRO@_mma_##type(...) */

"""
_BEFORE_SECTION = "/* ---- the machine ---"
_ENTER = """\
    base = m->arena[level] + instance * m->instance_stride_bytes[level] + address;
"""
_DMA_ARGUMENTS = "dst, src, n0, n1, n2, bytes, d0, d1, d2, s0, s1, s2"
_ELEMENTS = "#define TW_DMA_ELEMENTS(BYTES)"
_ELEMENTS_END = "TW_DMA_ELEMENTS(1)\n"
_GEMM = "#define TW_GEMM_BLOCK(S, T)"
_LAST = "#endif\n"


def vendor_header(name: str) -> str:
    """Text of the stub for a chip called `name`."""
    macro = name.replace("-", "_").lower()
    section = _SECTION.replace("@NAME@", name).replace("@MACRO@", macro)
    text = runtime_header()
    text = _replaced(text, _BEFORE_SECTION, section + _BEFORE_SECTION)
    text = _replaced(
        text,
        _ENTER,
        "#if defined(TW_VENDOR_ENTER)\n"
        "    base = (unsigned char *)TW_VENDOR_ENTER(m, level, instance, address);\n"
        f"#else\n{_ENTER}#endif\n",
    )
    text = _with_dma(text)
    text = _with_elements(text)
    return _with_gemm(text)


def _with_dma(text: str) -> str:
    """tw_dma_3d: the vendor's descriptor, or the portable loops."""
    start = text.index("TW_FN void tw_dma_3d(")
    head = text.index("{\n", start) + 2
    end = text.index("\n}\n", head) + 1
    body = text[head:end]
    if not body.startswith("    for "):
        raise _moved("tw_dma_3d")
    hook = (
        "#if defined(TW_VENDOR_DMA_3D)\n"
        f"    TW_VENDOR_DMA_3D({_DMA_ARGUMENTS});\n"
        f"#else\n{body}#endif\n"
    )
    return text[:head] + hook + text[end:]


def _with_elements(text: str) -> str:
    """tw_dma_elements_*: another macro in the place of the portable one."""
    parameters = _DMA_ARGUMENTS.replace(" bytes,", "")
    vendor = (
        "#if defined(TW_VENDOR_DMA_ELEMENTS)\n"
        "#define TW_DMA_ELEMENTS(BYTES) \\\n"
        "    static TW_UNUSED void tw_dma_elements_##BYTES( \\\n"
        "        unsigned char *dst, const unsigned char *src, int64_t n0, int64_t n1, \\\n"
        "        int64_t n2, int64_t d0, int64_t d1, int64_t d2, int64_t s0, int64_t s1, \\\n"
        "        int64_t s2) \\\n"
        "    { \\\n"
        f"        TW_VENDOR_DMA_ELEMENTS(BYTES, {parameters}); \\\n"
        "    }\n"
        "#else\n"
    )
    text = _replaced(text, _ELEMENTS, vendor + _ELEMENTS)
    return _replaced(text, "\n" + _ELEMENTS_END, "\n#endif\n" + _ELEMENTS_END)


def _with_gemm(text: str) -> str:
    """tw_gemm_*: the matrix unit, or the portable micro-kernels."""
    vendor = (
        "#if defined(TW_VENDOR_GEMM)\n"
        "#define TW_GEMM_BLOCK(S, T) \\\n"
        "    TW_ADD_TILE(S, T) \\\n"
        "    static TW_UNUSED void tw_gemm_##S(int64_t mb, int64_t ldc, int64_t kb, \\\n"
        "                                      const T *a, const T *b, T *c) \\\n"
        "    { \\\n"
        "        TW_VENDOR_GEMM(S, T, mb, ldc, kb, a, b, c); \\\n"
        "    }\n"
        "#else\n"
    )
    text = _replaced(text, _GEMM, vendor + _GEMM)
    if not text.endswith("\n" + _LAST):
        raise _moved("the end of the header")
    return text[: -len(_LAST)] + "#endif\n\n" + _LAST


def _replaced(text: str, old: str, new: str) -> str:
    """Replace the only occurrence."""
    if text.count(old) != 1:
        raise _moved(old.strip().splitlines()[0])
    return text.replace(old, new)


def _moved(what: str) -> InternalError:
    return InternalError("TW-INT-001", f"the runtime header has no single place of {what!r}")
