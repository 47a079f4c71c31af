/* SHA-256 (FIPS 180-4). */
#include "tw_library.h"

static const uint32_t K[64] = {
    0x428a2f98u, 0x71374491u, 0xb5c0fbcfu, 0xe9b5dba5u, 0x3956c25bu, 0x59f111f1u, 0x923f82a4u,
    0xab1c5ed5u, 0xd807aa98u, 0x12835b01u, 0x243185beu, 0x550c7dc3u, 0x72be5d74u, 0x80deb1feu,
    0x9bdc06a7u, 0xc19bf174u, 0xe49b69c1u, 0xefbe4786u, 0x0fc19dc6u, 0x240ca1ccu, 0x2de92c6fu,
    0x4a7484aau, 0x5cb0a9dcu, 0x76f988dau, 0x983e5152u, 0xa831c66du, 0xb00327c8u, 0xbf597fc7u,
    0xc6e00bf3u, 0xd5a79147u, 0x06ca6351u, 0x14292967u, 0x27b70a85u, 0x2e1b2138u, 0x4d2c6dfcu,
    0x53380d13u, 0x650a7354u, 0x766a0abbu, 0x81c2c92eu, 0x92722c85u, 0xa2bfe8a1u, 0xa81a664bu,
    0xc24b8b70u, 0xc76c51a3u, 0xd192e819u, 0xd6990624u, 0xf40e3585u, 0x106aa070u, 0x19a4c116u,
    0x1e376c08u, 0x2748774cu, 0x34b0bcb5u, 0x391c0cb3u, 0x4ed8aa4au, 0x5b9cca4fu, 0x682e6ff3u,
    0x748f82eeu, 0x78a5636fu, 0x84c87814u, 0x8cc70208u, 0x90befffau, 0xa4506cebu, 0xbef9a3f7u,
    0xc67178f2u};

static uint32_t turned(uint32_t x, int n) { return (x >> n) | (x << (32 - n)); }

static void block(uint32_t state[8], const unsigned char *at)
{
    uint32_t w[64], v[8];
    for (int i = 0; i < 16; ++i)
        w[i] = (uint32_t)at[4 * i] << 24 | (uint32_t)at[4 * i + 1] << 16 |
               (uint32_t)at[4 * i + 2] << 8 | (uint32_t)at[4 * i + 3];
    for (int i = 16; i < 64; ++i) {
        uint32_t a = w[i - 15], b = w[i - 2];
        w[i] = w[i - 16] + (turned(a, 7) ^ turned(a, 18) ^ a >> 3) + w[i - 7] +
               (turned(b, 17) ^ turned(b, 19) ^ b >> 10);
    }
    memcpy(v, state, sizeof v);
    for (int i = 0; i < 64; ++i) {
        uint32_t one = v[7] + (turned(v[4], 6) ^ turned(v[4], 11) ^ turned(v[4], 25)) +
                       ((v[4] & v[5]) ^ (~v[4] & v[6])) + K[i] + w[i];
        uint32_t two = (turned(v[0], 2) ^ turned(v[0], 13) ^ turned(v[0], 22)) +
                       ((v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]));
        memmove(v + 1, v, 7 * sizeof *v);
        v[4] += one;
        v[0] = one + two;
    }
    for (int i = 0; i < 8; ++i) state[i] += v[i];
}

void tw_sha256(const unsigned char *bytes, int64_t count, char text[65])
{
    uint32_t state[8] = {0x6a09e667u, 0xbb67ae85u, 0x3c6ef372u, 0xa54ff53au,
                         0x510e527fu, 0x9b05688cu, 0x1f83d9abu, 0x5be0cd19u};
    unsigned char last[128] = {0};
    int64_t whole = count / 64 * 64;
    size_t rest = (size_t)(count - whole), end = rest < 56 ? 64 : 128;
    for (int64_t at = 0; at < whole; at += 64) block(state, bytes + at);
    if (rest) memcpy(last, bytes + whole, rest);
    last[rest] = 0x80;
    for (int i = 0; i < 8; ++i)
        last[end - 1 - (size_t)i] = (unsigned char)((uint64_t)count * 8 >> 8 * i);
    for (size_t at = 0; at < end; at += 64) block(state, last + at);
    for (int i = 0; i < 32; ++i) {
        unsigned byte = state[i / 4] >> (24 - i % 4 * 8) & 0xff;
        text[2 * i] = "0123456789abcdef"[byte >> 4];
        text[2 * i + 1] = "0123456789abcdef"[byte & 15];
    }
    text[64] = 0;
}
