/* What the compiler took for granted of the processor, in the order of tw_cpu_lacks. */
#ifndef TW_FEATURES_H
#define TW_FEATURES_H

enum {
    TW_FEATURES = 0
#ifdef __SSE4_2__
    | 1 << 0
#endif
#ifdef __POPCNT__
    | 1 << 1
#endif
#ifdef __AVX__
    | 1 << 2
#endif
#ifdef __FMA__
    | 1 << 3
#endif
#ifdef __BMI__
    | 1 << 4
#endif
#ifdef __BMI2__
    | 1 << 5
#endif
#ifdef __AVX2__
    | 1 << 6
#endif
#ifdef __AVX512F__
    | 1 << 7
#endif
#ifdef __AVX512CD__
    | 1 << 8
#endif
#ifdef __AVX512BW__
    | 1 << 9
#endif
#ifdef __AVX512DQ__
    | 1 << 10
#endif
#ifdef __AVX512VL__
    | 1 << 11
#endif
#ifdef __AVX512VBMI__
    | 1 << 12
#endif
#ifdef __AVX512IFMA__
    | 1 << 13
#endif
#ifdef __AVX512VNNI__
    | 1 << 14
#endif
#ifdef __AVX512VBMI2__
    | 1 << 15
#endif
#ifdef __AVX512BITALG__
    | 1 << 16
#endif
#ifdef __AVX512VPOPCNTDQ__
    | 1 << 17
#endif
#ifdef __GFNI__
    | 1 << 18
#endif
#ifdef __FMA4__
    | 1 << 19
#endif
#ifdef __XOP__
    | 1 << 20
#endif
};

#endif
