/* tilewright_rt.h -- the portable reference of the intrinsics that generated kernels call.
 *
 * A kernel is `void NAME(tw_machine *m, unsigned char *const *operand)`; operand[k] is the base of
 * its k-th whole tensor in the home memory.  Everything else a kernel touches comes from here:
 *
 *   tw_enter      a buffer of the schedule: arena of (level, instance) plus its planned address
 *   tw_dma_*      a strided transfer between two memories
 *   tw_table_i32  element offsets of a flattened group of axes
 *   tw_gemm_*     a matrix product on packed panels
 *   tw_<fn>_<type> scalar functions with the exact meaning of the operator algebra
 *
 * A vendor replaces this file: tw_enter by the address map of the chip, tw_dma_* by its transfer
 * engine, tw_gemm_* by its matrix unit.  The kernels stay as they are.
 *
 * This version runs on any CPU with a C11 compiler.  The cores of the machine run one after the
 * other.  Scratchpads are arenas of the machine's sizes, and a buffer is poisoned when it comes to
 * life, so that reading what was never moved or computed gives NaN (floats) or garbage (integers)
 * instead of a right answer by luck.  A violation is recorded once and ends the kernel.
 */
#ifndef TILEWRIGHT_RT_H
#define TILEWRIGHT_RT_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define TW_ABI 1
#define TW_MAX_LEVELS 16
/* Working store of one matrix product: packed panels, the product tile, offset tables. */
#define TW_SCRATCH_BYTES (4 << 20)

#if defined(__GNUC__)
#define TW_UNUSED __attribute__((unused))
#else
#define TW_UNUSED
#endif
#define TW_FN static inline TW_UNUSED

/* ---- the machine ------------------------------------------------------------------------- */

enum tw_fault_kind {
    TW_FAULT_ARENA = 1,    /* a buffer does not fit its arena: low..high against limit bytes */
    TW_FAULT_BUFFER = 2,   /* a box leaves its buffer: elements low..high of a dimension of limit */
    TW_FAULT_INSTANCE = 3, /* a core asks for an instance that the level does not have */
    TW_FAULT_INDEX = 4     /* a data-dependent index leaves its tensor */
};

typedef struct tw_machine {
    int32_t abi;
    int32_t num_levels;
    int32_t poison;    /* not 0: poison buffers when they come to life */
    int32_t num_faults; /* the fields below describe the first */
    int32_t fault_kind;
    int32_t fault_buffer; /* index into the program's buffers, -1 - k for operand k */
    const char *fault_path; /* path of the node in the schedule tree */
    int64_t fault_low;
    int64_t fault_high;
    int64_t fault_limit;
    unsigned char *scratch; /* TW_SCRATCH_BYTES, aligned to 64 */
    unsigned char *arena[TW_MAX_LEVELS];
    int64_t capacity_bytes[TW_MAX_LEVELS]; /* of one instance */
    int64_t instances[TW_MAX_LEVELS];
    /* Distance of instances.  The emulator sets 0 where instances never hold live data at the
     * same time (cores run in turn), which keeps the emulated scratchpad in the CPU's cache. */
    int64_t instance_stride_bytes[TW_MAX_LEVELS];
} tw_machine;

TW_FN void tw_fault(tw_machine *m, int32_t kind, const char *path, int32_t buffer, int64_t low,
                    int64_t high, int64_t limit)
{
    if (m->num_faults == 0) {
        m->fault_kind = kind;
        m->fault_path = path;
        m->fault_buffer = buffer;
        m->fault_low = low;
        m->fault_high = high;
        m->fault_limit = limit;
    }
    m->num_faults += 1;
}

TW_FN int64_t tw_min_index(int64_t a, int64_t b) { return a < b ? a : b; }
TW_FN int64_t tw_max_index(int64_t a, int64_t b) { return a > b ? a : b; }
TW_FN int64_t tw_floordiv(int64_t a, int64_t d) { return a >= 0 ? a / d : -((d - 1 - a) / d); }
TW_FN int64_t tw_mod(int64_t a, int64_t d) { return a - d * tw_floordiv(a, d); }

/* Bring one slot of a buffer to life; NULL after a violation.  `poison` is the byte to fill with. */
TW_FN unsigned char *tw_enter(tw_machine *m, const char *path, int32_t buffer, int32_t level,
                              int64_t instance, int64_t address, int64_t bytes, int poison)
{
    unsigned char *base;
    if (level >= m->num_levels || instance < 0 || instance >= m->instances[level]) {
        tw_fault(m, TW_FAULT_INSTANCE, path, buffer, instance, instance,
                 level < m->num_levels ? m->instances[level] : 0);
        return NULL;
    }
    if (address < 0 || address + bytes > m->capacity_bytes[level]) {
        tw_fault(m, TW_FAULT_ARENA, path, buffer, address, address + bytes - 1,
                 m->capacity_bytes[level]);
        return NULL;
    }
    base = m->arena[level] + instance * m->instance_stride_bytes[level] + address;
    if (m->poison) memset(base, poison, (size_t)bytes);
    return base;
}

/* True (and recorded) when elements low..high leave a buffer dimension of `extent` elements. */
TW_FN int tw_outside(tw_machine *m, const char *path, int32_t buffer, int64_t low, int64_t high,
                     int64_t extent)
{
    if (low >= 0 && high < extent) return 0;
    tw_fault(m, TW_FAULT_BUFFER, path, buffer, low, high, extent);
    return 1;
}

/* ---- transfers --------------------------------------------------------------------------- */

/* Copy n0 x n1 x n2 runs of `bytes` contiguous bytes; strides in bytes. */
TW_FN void tw_dma_3d(unsigned char *dst, const unsigned char *src, int64_t n0, int64_t n1,
                     int64_t n2, int64_t bytes, int64_t d0, int64_t d1, int64_t d2, int64_t s0,
                     int64_t s1, int64_t s2)
{
    for (int64_t i = 0; i < n0; ++i)
        for (int64_t j = 0; j < n1; ++j)
            for (int64_t k = 0; k < n2; ++k)
                memcpy(dst + i * d0 + j * d1 + k * d2, src + i * s0 + j * s1 + k * s2,
                       (size_t)bytes);
}

/* The same for single elements of a fixed size (a transposing or gathering transfer). */
#define TW_DMA_ELEMENTS(BYTES)                                                                  \
    static TW_UNUSED void tw_dma_elements_##BYTES(                                              \
        unsigned char *dst, const unsigned char *src, int64_t n0, int64_t n1, int64_t n2,       \
        int64_t d0, int64_t d1, int64_t d2, int64_t s0, int64_t s1, int64_t s2)                 \
    {                                                                                           \
        for (int64_t i = 0; i < n0; ++i)                                                        \
            for (int64_t j = 0; j < n1; ++j) {                                                  \
                unsigned char *to = dst + i * d0 + j * d1;                                      \
                const unsigned char *from = src + i * s0 + j * s1;                              \
                for (int64_t k = 0; k < n2; ++k)                                                \
                    memcpy(to + k * d2, from + k * s2, BYTES);                                  \
            }                                                                                   \
    }
TW_DMA_ELEMENTS(1)
TW_DMA_ELEMENTS(2)
TW_DMA_ELEMENTS(4)
TW_DMA_ELEMENTS(8)

/* ---- 16-bit floats ------------------------------------------------------------------------ */

TW_FN float tw_f32_of_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

TW_FN uint32_t tw_bits_of_f32(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

TW_FN float tw_f32_of_bf16(uint16_t bits) { return tw_f32_of_bits((uint32_t)bits << 16); }

TW_FN uint16_t tw_bf16_of_f32(float value)
{
    uint32_t raw = tw_bits_of_f32(value);
    uint32_t rounded = (raw + 0x7FFFu + ((raw >> 16) & 1u)) >> 16;
    return (uint16_t)(value != value ? 0x7FC0u : rounded);
}

#if defined(__FLT16_MANT_DIG__)
__extension__ typedef _Float16 tw_half;

TW_FN float tw_f32_of_f16(uint16_t bits)
{
    tw_half value;
    memcpy(&value, &bits, sizeof value);
    return (float)value;
}

TW_FN uint16_t tw_f16_of_f32(float value)
{
    tw_half half = (tw_half)value;
    uint16_t bits;
    memcpy(&bits, &half, sizeof bits);
    return bits;
}

TW_FN uint16_t tw_f16_of_f64(double value)
{
    tw_half half = (tw_half)value;
    uint16_t bits;
    memcpy(&bits, &half, sizeof bits);
    return bits;
}
#else
TW_FN float tw_f32_of_f16(uint16_t bits)
{
    uint32_t sign = (uint32_t)(bits & 0x8000u) << 16;
    uint32_t exponent = (bits >> 10) & 31u, fraction = bits & 0x3FFu;
    if (exponent == 31u) return tw_f32_of_bits(sign | 0x7F800000u | (fraction << 13));
    if (exponent != 0u) return tw_f32_of_bits(sign | ((exponent + 112u) << 23) | (fraction << 13));
    return (sign ? -1.0f : 1.0f) * (float)fraction * 5.9604644775390625e-8f;
}

TW_FN uint16_t tw_f16_of_f64(double value)
{
    uint16_t sign = (uint16_t)(signbit(value) ? 0x8000u : 0u);
    double magnitude = fabs(value);
    int exponent;
    double scaled;
    if (value != value) return 0x7E00u;
    if (magnitude >= 65520.0) return (uint16_t)(sign | 0x7C00u);
    if (magnitude < 6.103515625e-5) return (uint16_t)(sign | (uint16_t)rint(magnitude * 16777216.0));
    (void)frexp(magnitude, &exponent);
    scaled = rint(ldexp(magnitude, 11 - exponent)); /* 1024..2048 */
    return (uint16_t)(sign | (uint16_t)((uint32_t)(exponent + 13) * 1024u + (uint32_t)scaled));
}

TW_FN uint16_t tw_f16_of_f32(float value) { return tw_f16_of_f64((double)value); }
#endif

TW_FN float tw_round_f16(float value) { return tw_f32_of_f16(tw_f16_of_f32(value)); }
TW_FN float tw_round_f16_f64(double value) { return tw_f32_of_f16(tw_f16_of_f64(value)); }
TW_FN float tw_round_bf16(float value) { return tw_f32_of_bf16(tw_bf16_of_f32(value)); }

/* ---- floats of 8 and 4 bits ----------------------------------------------------------------- */

/* A sign, an exponent of E bits over a fraction of F bits; codes without sign below FINITE are
 * numbers.  BEYOND is the code of what is too large (the largest number where there is no other),
 * NAN_CODE of what is not a number; SIGNED_ZERO is 0 where the code of -0 is not a number. */
TW_FN float tw_f32_of_narrow(uint32_t code, int bias, int fraction_bits, uint32_t sign,
                             uint32_t finite, uint32_t infinity, int signed_zero)
{
    uint32_t place = code & (sign - 1u);
    uint32_t exponent = place >> fraction_bits, fraction = place & ((1u << fraction_bits) - 1u);
    uint32_t scale = (exponent ? exponent : 1u) - (uint32_t)bias - (uint32_t)fraction_bits + 127u;
    float size;
    if (place >= finite || (!signed_zero && code == sign))
        size = place == infinity && infinity ? INFINITY : NAN;
    else
        size = (float)(exponent ? fraction | (1u << fraction_bits) : fraction) *
               tw_f32_of_bits(scale << 23);
    return (code & sign) ? -size : size;
}

TW_FN uint8_t tw_narrow_of_f32(float value, int bias, int fraction_bits, uint32_t sign,
                               uint32_t finite, uint32_t beyond, uint32_t nan_code,
                               int signed_zero)
{
    uint32_t bits = tw_bits_of_f32(value), code;
    int exponent = (int)((bits >> 23) & 255u) - 127;
    if (value != value) return (uint8_t)nan_code;
    if (exponent > 64) {
        code = beyond;
    } else {
        /* the results around |value| are a power of two apart: count such steps, ties to even */
        int least = 1 - bias, step = (exponent < least ? least : exponent) - fraction_bits;
        float scaled = fabsf(value) * tw_f32_of_bits((uint32_t)(127 - step) << 23);
        uint32_t steps = (uint32_t)rintf(scaled);
        code = steps + ((uint32_t)(step + fraction_bits - least) << fraction_bits);
        if (code >= finite) code = beyond;
    }
    if ((bits >> 31) && (code || signed_zero)) code |= sign;
    return (uint8_t)code;
}

#define TW_NARROW(S, BIAS, F, SIGN, FINITE, INFINITE, BEYOND, NAN_CODE, SIGNED_ZERO)            \
    TW_FN float tw_f32_of_##S(uint8_t code)                                                     \
    {                                                                                           \
        return tw_f32_of_narrow(code & (2u * SIGN - 1u), BIAS, F, SIGN, FINITE, INFINITE,       \
                                SIGNED_ZERO);                                                   \
    }                                                                                           \
    TW_FN uint8_t tw_##S##_of_f32(float value)                                                  \
    {                                                                                           \
        return tw_narrow_of_f32(value, BIAS, F, SIGN, FINITE, BEYOND, NAN_CODE, SIGNED_ZERO);   \
    }
TW_NARROW(f8e4m3fn, 7, 3, 0x80u, 0x7Fu, 0u, 0x7Fu, 0x7Fu, 1)
TW_NARROW(f8e4m3fnuz, 8, 3, 0x80u, 0x80u, 0u, 0x80u, 0x80u, 0)
TW_NARROW(f8e5m2, 15, 2, 0x80u, 0x7Cu, 0x7Cu, 0x7Cu, 0x7Eu, 1)
TW_NARROW(f8e5m2fnuz, 16, 2, 0x80u, 0x80u, 0u, 0x80u, 0x80u, 0)
TW_NARROW(f4e2m1, 1, 1, 8u, 8u, 0u, 7u, 0u, 1)

/* ---- scalar functions --------------------------------------------------------------------- */

/* max and min are NaN when either argument is. */
#define TW_FLOAT_FUNCTIONS(S, T, X)                                                             \
    TW_FN T tw_max_##S(T a, T b) { return (a > b || a != a) ? a : b; }                          \
    TW_FN T tw_min_##S(T a, T b) { return (a < b || a != a) ? a : b; }                          \
    TW_FN T tw_abs_##S(T a) { return fabs##X(a); }                                              \
    TW_FN T tw_sign_##S(T a) { return a > 0 ? (T)1 : a < 0 ? (T)-1 : a == 0 ? (T)0 : a; }       \
    TW_FN T tw_rsqrt_##S(T a) { return (T)1 / sqrt##X(a); }                                     \
    TW_FN T tw_sigmoid_##S(T a)                                                                 \
    {                                                                                           \
        T small = exp##X(-fabs##X(a));                                                          \
        return (a >= 0 ? (T)1 : small) / ((T)1 + small) + (a != a ? a : (T)0);                  \
    }                                                                                           \
    TW_FN T tw_floormod_##S(T a, T b)                                                           \
    {                                                                                           \
        T r = fmod##X(a, b);                                                                    \
        if (r != 0) return ((b < 0) != (r < 0)) ? r + b : r;                                    \
        return b == 0 ? r : copysign##X((T)0, b);                                               \
    }
TW_FLOAT_FUNCTIONS(f32, float, f)
TW_FLOAT_FUNCTIONS(f64, double, )

/* Integers wrap; dividing by zero gives 0; shifts by the width or more push every bit out. */
#define TW_INT_FUNCTIONS(S, T, U, BITS)                                                         \
    TW_FN T tw_add_##S(T a, T b) { return (T)((U)a + (U)b); }                                   \
    TW_FN T tw_sub_##S(T a, T b) { return (T)((U)a - (U)b); }                                   \
    TW_FN T tw_mul_##S(T a, T b) { return (T)((uint64_t)a * (uint64_t)b); }                     \
    TW_FN T tw_neg_##S(T a) { return (T)((U)0 - (U)a); }                                        \
    TW_FN T tw_max_##S(T a, T b) { return a > b ? a : b; }                                      \
    TW_FN T tw_min_##S(T a, T b) { return a < b ? a : b; }                                      \
    TW_FN T tw_abs_##S(T a) { return a > 0 ? a : tw_neg_##S(a); }                               \
    TW_FN T tw_sign_##S(T a) { return (T)((a > 0) - !(a >= 1 || a == 0)); }                     \
    TW_FN T tw_div_##S(T a, T b)                                                                \
    {                                                                                           \
        if (b == 0) return 0;                                                                   \
        return b == (T)-1 && (T)-1 < (T)1 ? tw_neg_##S(a) : (T)(a / b);                         \
    }                                                                                           \
    TW_FN T tw_fmod_##S(T a, T b)                                                               \
    {                                                                                           \
        if (b == 0 || (b == (T)-1 && (T)-1 < (T)1)) return 0;                                   \
        return (T)(a % b);                                                                      \
    }                                                                                           \
    TW_FN T tw_floormod_##S(T a, T b)                                                           \
    {                                                                                           \
        T r = tw_fmod_##S(a, b);                                                                \
        return r != 0 && ((r >= 1) != (b >= 1)) ? (T)(r + b) : r;                               \
    }                                                                                           \
    TW_FN T tw_pow_##S(T a, T b)                                                                \
    {                                                                                           \
        T result = 1;                                                                           \
        if (!(b >= 1 || b == 0)) {                                                              \
            if (a == 1) return 1;                                                               \
            return a == (T)-1 ? ((b & 1) ? (T)-1 : (T)1) : (T)0;                                \
        }                                                                                       \
        for (; b >= 1; b = (T)(b / 2)) {                                                        \
            if (b % 2 == 1) result = tw_mul_##S(result, a);                                     \
            a = tw_mul_##S(a, a);                                                               \
        }                                                                                       \
        return result;                                                                          \
    }                                                                                           \
    TW_FN T tw_reciprocal_##S(T a) { return tw_div_##S(1, a); }                                 \
    TW_FN T tw_shl_##S(T a, T b)                                                                \
    {                                                                                           \
        return (uint64_t)b < BITS ? (T)((uint64_t)a << b) : (T)0;                               \
    }                                                                                           \
    TW_FN T tw_shr_##S(T a, T b)                                                                \
    {                                                                                           \
        if ((uint64_t)b < BITS) return (T)(a >> b);                                             \
        return a >= 1 || a == 0 ? (T)0 : (T)-1;                                                 \
    }
TW_INT_FUNCTIONS(i64, int64_t, uint64_t, 64)
TW_INT_FUNCTIONS(i32, int32_t, uint32_t, 32)
TW_INT_FUNCTIONS(i16, int16_t, uint16_t, 16)
TW_INT_FUNCTIONS(i8, int8_t, uint8_t, 8)
TW_INT_FUNCTIONS(u64, uint64_t, uint64_t, 64)
TW_INT_FUNCTIONS(u32, uint32_t, uint32_t, 32)
TW_INT_FUNCTIONS(u16, uint16_t, uint16_t, 16)
TW_INT_FUNCTIONS(u8, uint8_t, uint8_t, 8)

/* Float to integer: towards zero, saturating, NaN gives 0. */
#define TW_CASTS(S, T, LOW, HIGH)                                                               \
    TW_FN T tw_##S##_of_f64(double a)                                                           \
    {                                                                                           \
        return a != a ? (T)0 : a <= (double)LOW ? (T)LOW : a >= (double)HIGH ? (T)HIGH : (T)a;  \
    }                                                                                           \
    TW_FN T tw_##S##_of_f32(float a) { return tw_##S##_of_f64((double)a); }
TW_CASTS(i64, int64_t, INT64_MIN, INT64_MAX)
TW_CASTS(i32, int32_t, INT32_MIN, INT32_MAX)
TW_CASTS(i16, int16_t, INT16_MIN, INT16_MAX)
TW_CASTS(i8, int8_t, INT8_MIN, INT8_MAX)
TW_CASTS(u64, uint64_t, 0, UINT64_MAX)
TW_CASTS(u32, uint32_t, 0, UINT32_MAX)
TW_CASTS(u16, uint16_t, 0, UINT16_MAX)
TW_CASTS(u8, uint8_t, 0, UINT8_MAX)

/* Integers of 4 and 2 bits live in a byte: the low bits count, wrapping or (from floats)
 * saturating. */
#define TW_NARROW_INT(S, T, BITS, HIGH)                                                         \
    TW_FN T tw_wrap_##S(uint64_t a)                                                             \
    {                                                                                           \
        int low = (int)(a & ((1u << BITS) - 1u));                                               \
        return (T)(low > HIGH ? low - (1 << BITS) : low);                                       \
    }
TW_NARROW_INT(i4, int8_t, 4, 7)
TW_NARROW_INT(u4, uint8_t, 4, 15)
TW_NARROW_INT(i2, int8_t, 2, 1)
TW_NARROW_INT(u2, uint8_t, 2, 3)
TW_CASTS(i4, int8_t, -8, 7)
TW_CASTS(u4, uint8_t, 0, 15)
TW_CASTS(i2, int8_t, -2, 1)
TW_CASTS(u2, uint8_t, 0, 3)

/* ---- kernel libraries ------------------------------------------------------------------------ */

/* Where an instruction of the spec names a `call`, kernels that are compiled with TW_LINKED call
 * `void CALL_A_B_C(const tw_product *)` of a vendor's library, A, B and C being the types of the
 * elements (i8, u8, i16, u16, i32, f16, bf16, f32, f64):
 *
 *     c[i][j] += sum over p of (a[i][p] - a_zero) * (b[p][j] - b_zero)
 *
 * for rows x columns results and `depth` products each.  Rows of a, b and c begin `*_stride`
 * elements apart.  Sums of integers wrap, zero points are 0 for floats.  The function must write
 * nothing but those elements of c.  A library says what it is by TW_LIBRARY("name", "version"). */
#define TW_LIBRARY_ABI 1

typedef struct tw_product {
    int64_t rows, columns, depth;
    const void *a;
    const void *b;
    void *c;
    int64_t a_stride, b_stride, c_stride;
    int32_t a_zero, b_zero;
} tw_product;

/* Read from the file, before anything of it runs. */
typedef struct tw_library_info {
    int32_t abi;        /* TW_LIBRARY_ABI */
    int32_t call_bytes; /* of a tw_product */
    char name[48];
    char version[24];
} tw_library_info;

#if defined(__GNUC__)
#define TW_EXPORT __attribute__((visibility("default")))
#else
#define TW_EXPORT
#endif
#define TW_LIBRARY(NAME, VERSION)                                                               \
    TW_EXPORT const tw_library_info tw_library = {TW_LIBRARY_ABI, (int32_t)sizeof(tw_product),  \
                                                  NAME, VERSION}

/* ---- matrix products ------------------------------------------------------------------------ */

/* table[i] = sum over axes of stride * coordinate, for flat positions first .. first+count-1 of a
 * row-major group of axes (last axis fastest). */
TW_FN void tw_table_i32(int32_t *table, int64_t first, int64_t count, int rank,
                        const int64_t *extent, const int64_t *stride)
{
    int64_t at[16] = {0}, offset = 0, rest = first;
    for (int d = rank - 1; d >= 0; --d) {
        at[d] = rest % extent[d];
        rest /= extent[d];
        offset += at[d] * stride[d];
    }
    for (int64_t i = 0; i < count; ++i) {
        table[i] = (int32_t)offset;
        for (int d = rank - 1; d >= 0; --d) {
            offset += stride[d];
            if (++at[d] < extent[d]) break;
            offset -= at[d] * stride[d];
            at[d] = 0;
        }
    }
}

/* True when table[0..count-1] rises by exactly `step`. */
TW_FN int tw_is_run(const int32_t *table, int64_t count, int32_t step)
{
    int32_t wrong = 0;
    for (int64_t i = 1; i < count; ++i) wrong |= table[i] - table[i - 1] - step;
    return wrong == 0;
}

/* Block sizes of a product: how much the kernels pack at once. */
#define TW_BLOCK_M 192
#define TW_BLOCK_N 256
#define TW_BLOCK_K 256
/* Entries of one offset table: the largest block. */
#define TW_TABLE 256

#if defined(__GNUC__) && defined(__AVX512F__)
#define TW_VECTOR_BYTES 64
#define TW_MR 12
#elif defined(__GNUC__) && defined(__AVX__)
#define TW_VECTOR_BYTES 32
#define TW_MR 6
#elif defined(__GNUC__)
#define TW_VECTOR_BYTES 16
#define TW_MR 4
#else
#define TW_VECTOR_BYTES 4
#define TW_MR 4
#endif
/* Rows of the narrow kernel that finishes a block of few rows. */
#define TW_FEW 4
/* Columns of a panel; two vectors of 4-byte elements, four of 8-byte ones. */
#define TW_NR (TW_VECTOR_BYTES / 2)

/* Integer products are instantiated on unsigned types, which wrap.
 *
 * c[i][j] += sum_k a[i][k] * b[k][j] for a block: `a` in panels of TW_MR rows ([panel][k][row]), `b`
 * in panels of TW_NR columns ([panel][k][column]), both padded with zeros; `c` row-major with
 * `ldc` columns, padded to whole panels. */
#if defined(__GNUC__)
#if defined(__FMA__) && !defined(__clang__) && defined(__AVX512F__)
#define TW_FMA_f32(a, b, c)                                                                     \
    __builtin_ia32_vfmaddps512_mask((a), (b), (c), (unsigned short)0xFFFF, 4)
#define TW_FMA_f64(a, b, c)                                                                     \
    __builtin_ia32_vfmaddpd512_mask((a), (b), (c), (unsigned char)0xFF, 4)
#elif defined(__FMA__) && !defined(__clang__)
#define TW_FMA_f32(a, b, c) __builtin_ia32_vfmaddps256((a), (b), (c))
#define TW_FMA_f64(a, b, c) __builtin_ia32_vfmaddpd256((a), (b), (c))
#else
#define TW_FMA_f32(a, b, c) ((a) * (b) + (c))
#define TW_FMA_f64(a, b, c) ((a) * (b) + (c))
#endif
#define TW_FMA_i32(a, b, c) ((a) * (b) + (c))
#define TW_FMA_i64(a, b, c) ((a) * (b) + (c))
#define TW_MICRO(S, T, NAME, ROWS)                                                              \
    static TW_UNUSED void tw_micro_##S##_##NAME(                                                \
        int64_t kb, const T *restrict a, const T *restrict b, T *restrict c, int64_t ldc)       \
    {                                                                                           \
        const tw_vec_##S zero = {0};                                                            \
        for (int w = 0; w < TW_WIDTH_##S; w += 2) {                                             \
            tw_vec_##S acc[ROWS][2];                                                            \
            for (int i = 0; i < ROWS; ++i) acc[i][0] = acc[i][1] = zero;                        \
            for (int64_t k = 0; k < kb; ++k) {                                                  \
                tw_vec_##S b0, b1;                                                              \
                memcpy(&b0, b + k * TW_NR + w * TW_LANES_##S, sizeof b0);                       \
                memcpy(&b1, b + k * TW_NR + (w + 1) * TW_LANES_##S, sizeof b1);                 \
                _Pragma("GCC unroll 16") for (int i = 0; i < ROWS; ++i)                         \
                {                                                                               \
                    tw_vec_##S x = a[k * TW_MR + i] - zero;                                     \
                    acc[i][0] = TW_FMA_##S(x, b0, acc[i][0]);                                   \
                    acc[i][1] = TW_FMA_##S(x, b1, acc[i][1]);                                   \
                }                                                                               \
            }                                                                                   \
            for (int i = 0; i < ROWS; ++i)                                                      \
                for (int v = 0; v < 2; ++v) {                                                   \
                    T *p = c + i * ldc + (w + v) * TW_LANES_##S;                                \
                    tw_vec_##S old;                                                             \
                    memcpy(&old, p, sizeof old);                                                \
                    old += acc[i][v];                                                           \
                    memcpy(p, &old, sizeof old);                                                \
                }                                                                               \
        }                                                                                       \
    }
#define TW_GEMM(S, T)                                                                           \
    typedef T tw_vec_##S __attribute__((vector_size(TW_VECTOR_BYTES)));                         \
    enum { TW_LANES_##S = TW_VECTOR_BYTES / (int)sizeof(T),                                     \
           TW_WIDTH_##S = TW_NR / TW_LANES_##S };                                               \
    TW_MICRO(S, T, full, TW_MR)                                                                 \
    TW_MICRO(S, T, few, TW_FEW)
#else
#define TW_MICRO(S, T, NAME, ROWS)                                                              \
    static TW_UNUSED void tw_micro_##S##_##NAME(                                                \
        int64_t kb, const T *restrict a, const T *restrict b, T *restrict c, int64_t ldc)       \
    {                                                                                           \
        for (int64_t k = 0; k < kb; ++k)                                                        \
            for (int i = 0; i < ROWS; ++i)                                                      \
                for (int j = 0; j < TW_NR; ++j)                                                 \
                    c[i * ldc + j] += a[k * TW_MR + i] * b[k * TW_NR + j];                      \
    }
#define TW_GEMM(S, T)                                                                           \
    TW_MICRO(S, T, full, TW_MR)                                                                 \
    TW_MICRO(S, T, few, TW_FEW)
#endif

/* The table of an operand that does not depend on a group of axes. */
static const int32_t tw_no_offset[TW_TABLE] TW_UNUSED = {0};

/* Packing of plain operands: elements of SRC, widened by LOAD, at from[row[i] + depth[k]] (or
 * column[j]) into panels of T.  `along` says that `from` runs along the depth: then short pieces of
 * each column are read in turn instead of one cache line per element. */
#define TW_PACK(S, T, D, SRC, LOAD)                                                             \
    static TW_UNUSED void tw_pack_rows_##S##_##D(                                               \
        T *restrict to, const SRC *restrict from, const int32_t *restrict row,                  \
        const int32_t *restrict depth, int64_t mb, int64_t padded, int64_t kb)                  \
    {                                                                                           \
        for (int64_t i = 0; i < padded; ++i) {                                                  \
            T *restrict const p = to + (i - i % TW_MR) * kb + i % TW_MR;                        \
            const SRC *restrict const q = from + (i < mb ? row[i] : 0);                         \
            if (i < mb)                                                                         \
                for (int64_t k = 0; k < kb; ++k) p[k * TW_MR] = (T)LOAD(q[depth[k]]);           \
            else                                                                                \
                for (int64_t k = 0; k < kb; ++k) p[k * TW_MR] = 0;                              \
        }                                                                                       \
    }                                                                                           \
    static TW_UNUSED void tw_pack_columns_##S##_##D(                                            \
        T *restrict to, const SRC *restrict from, const int32_t *restrict column,               \
        const int32_t *restrict depth, int64_t nb, int64_t ldc, int64_t kb, int along)          \
    {                                                                                           \
        for (int64_t j = 0; j < ldc; j += TW_NR, to += TW_NR * kb) {                            \
            const int64_t wide = tw_min_index(nb - j, TW_NR);                                   \
            if (wide < TW_NR) memset(to, 0, (size_t)(kb * TW_NR) * sizeof(T));                  \
            if (wide == TW_NR && tw_is_run(column + j, TW_NR, 1)) {                             \
                for (int64_t k = 0; k < kb; ++k) {                                              \
                    const SRC *restrict const q = from + column[j] + depth[k];                  \
                    for (int64_t c = 0; c < TW_NR; ++c) to[k * TW_NR + c] = (T)LOAD(q[c]);      \
                }                                                                               \
            } else if (along) {                                                                 \
                for (int64_t first = 0; first < kb; first += 16) {                              \
                    const int64_t last = tw_min_index(first + 16, kb);                          \
                    for (int64_t c = 0; c < wide; ++c) {                                        \
                        const SRC *restrict const q = from + column[j + c];                     \
                        for (int64_t k = first; k < last; ++k)                                  \
                            to[k * TW_NR + c] = (T)LOAD(q[depth[k]]);                           \
                    }                                                                           \
                }                                                                               \
            } else {                                                                            \
                for (int64_t k = 0; k < kb; ++k) {                                              \
                    const SRC *restrict const q = from + depth[k];                              \
                    for (int64_t c = 0; c < wide; ++c)                                          \
                        to[k * TW_NR + c] = (T)LOAD(q[column[j + c]]);                          \
                }                                                                               \
            }                                                                                   \
        }                                                                                       \
    }
#define TW_PLAIN(x) (x)

/* out[row[i] + column[j]] += c[i][j] */
#define TW_ADD_TILE(S, T)                                                                       \
    static TW_UNUSED void tw_add_tile_##S(T *restrict out, const T *restrict c,                 \
                                          const int32_t *restrict row,                          \
                                          const int32_t *restrict column, int64_t mb,           \
                                          int64_t nb, int64_t ldc)                              \
    {                                                                                           \
        const int run = tw_is_run(column, nb, 1);                                               \
        for (int64_t i = 0; i < mb; ++i, c += ldc) {                                            \
            T *restrict const p = out + row[i];                                                 \
            if (run) {                                                                          \
                T *restrict const q = p + column[0];                                            \
                for (int64_t j = 0; j < nb; ++j) q[j] += c[j];                                  \
            } else {                                                                            \
                for (int64_t j = 0; j < nb; ++j) p[column[j]] += c[j];                          \
            }                                                                                   \
        }                                                                                       \
    }

#define TW_GEMM_BLOCK(S, T)                                                                     \
    TW_GEMM(S, T)                                                                               \
    TW_ADD_TILE(S, T)                                                                           \
    static TW_UNUSED void tw_gemm_##S(int64_t mb, int64_t ldc, int64_t kb, const T *a,          \
                                      const T *b, T *c)                                         \
    {                                                                                           \
        for (int64_t j = 0; j < ldc; j += TW_NR)                                                \
            for (int64_t i = 0; i < mb; i += TW_MR)                                             \
                if (mb - i > TW_FEW)                                                            \
                    tw_micro_##S##_full(kb, a + i * kb, b + j * kb, c + i * ldc + j, ldc);      \
                else                                                                            \
                    tw_micro_##S##_few(kb, a + i * kb, b + j * kb, c + i * ldc + j, ldc);       \
    }

#endif
