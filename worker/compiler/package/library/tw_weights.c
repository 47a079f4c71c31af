/* The weights, byte for byte, in the mapped file: tw_weights.bin beside this one. */
__asm__(".section .rodata\n"
        ".balign 64\n"
        ".globl tw_weights\n"
        ".hidden tw_weights\n"
        "tw_weights:\n"
        ".incbin \"tw_weights.bin\"\n"
        ".byte 0\n"
        ".previous\n");
typedef int tw_weights_are_assembled;
