/* The invented NPU: functions and cycles.  C99, no library but the mathematics of IEEE floats.
 *
 * An image: header of 32 bytes, ports of 8, instructions of 64, constants.  All numbers are 32-bit
 * little endian.  Memory begins with the constants; addresses are bytes in it.  Tensors are NHWC,
 * one image.  Every address of an image is checked before anything runs: an image may be hostile.
 */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { IN = 1, OUT, CONV, POOL, ADD, MEAN, FLAT, MUL, TABLE };
enum { HEADER = 32, PORT = 8, STEP = 64, CORES = 4, ROWS = 16, COLUMNS = 32, DMA = 16, SETUP = 64, FILL = 8,
       CALL_ROWS = 64, CALL_DEPTH = 256, BACK = 2 };

typedef struct {
    int32_t op, src, src2, bias, factor, dst, h, w, c, oh, ow, k;
    uint8_t kh, kw, sh, sw, pt, pl, dh, dw;
    int8_t zin, zout, lo, hi;
    int32_t groups;
} step;

typedef struct { int32_t mantissa, shift; } factor_t;

/* n / 2^k, halves to even. */
static int64_t rounded(int64_t n, int k)
{
    if (k <= 0) return n;
    if (k > 62) return 0;
    int64_t q = n >> k, rest = n - (q << k), half = (int64_t)1 << (k - 1);
    return q + (rest > half || (rest == half && (q & 1)));
}

static int bits(int64_t n)
{
    int found = 0;
    while (n) { n >>= 1; found++; }
    return found;
}

/* acc * mantissa / 2^shift: 24 significant bits before and after the product, then a whole number. */
static int64_t requantised(int64_t acc, factor_t f)
{
    int64_t a = acc < 0 ? -acc : acc;
    int up = bits(a) - 24;
    if (up < 0) up = 0;
    int64_t p = rounded(a, up) * (f.mantissa & 0xFFFFFF); /* the unit has no more bits of it */
    int more = bits(p) - 24;
    if (more < 0) more = 0;
    p = rounded(p, more);
    int e = up + more - (f.shift < -99 ? -99 : f.shift > 199 ? 199 : f.shift);
    p = e > 8 ? (p ? 1 << 30 : 0) : e > 0 ? p << e : rounded(p, -e);
    return acc < 0 ? -p : p;
}

static int8_t clamped(int64_t v, const step *s)
{
    v += s->zout;
    return (int8_t)(v < s->lo ? s->lo : v > s->hi ? s->hi : v);
}

static int is_inside(int64_t at, int64_t size, int64_t all)
{
    return at >= 0 && size >= 0 && at <= all && size <= all - at;
}

static int32_t word(const uint8_t *at)
{
    return (int32_t)((uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24);
}

/* Bytes that a step reads at src and writes at dst. */
static int64_t in_bytes(const step *s) { return (int64_t)s->h * s->w * s->c; }
static int64_t out_bytes(const step *s) { return (int64_t)s->oh * s->ow * s->k; }

static int is_sound(const step *s, const uint8_t *ports, int32_t num_ports, int64_t memory)
{
    const int32_t dims[] = {s->h, s->w, s->c, s->oh, s->ow, s->k};
    for (int d = 0; d < 6; d++) { /* a row is as long as memory may be */
        int is_row = d % 3 == 2 && dims[d - 2] == 1 && dims[d - 1] == 1;
        if (dims[d] < 1 || dims[d] > 1 << (is_row ? 30 : 14)) return 0;
    }
    if (in_bytes(s) > memory || out_bytes(s) > memory) return 0;
    if (s->op == IN || s->op == OUT) {
        int32_t port = s->op == IN ? s->src : s->dst, at = s->op == IN ? s->dst : s->src;
        if (port < 0 || port >= num_ports || in_bytes(s) != out_bytes(s)) return 0;
        if (word(ports + PORT * port + 4) != (s->op == OUT)) return 0;
        return word(ports + PORT * port) == in_bytes(s) && is_inside(at, in_bytes(s), memory);
    }
    if (!is_inside(s->src, in_bytes(s), memory)) return 0;
    if (s->op == TABLE) /* into some of the channels of its target */
        return s->oh == s->h && s->ow == s->w && s->c <= s->k && is_inside(s->factor, 256, memory)
            && is_inside(s->dst, ((int64_t)s->h * s->w - 1) * s->k + s->c, memory);
    if (!is_inside(s->dst, out_bytes(s), memory)) return 0;
    if (s->op == FLAT) return in_bytes(s) == out_bytes(s);
    if (s->op == ADD || s->op == MUL)
        return in_bytes(s) == out_bytes(s) && is_inside(s->src2, in_bytes(s), memory)
            && s->factor % 4 == 0 && is_inside(s->factor, 16, memory);
    if (s->op == MEAN)
        return s->c == s->k && s->oh * s->ow == 1 && s->factor % 4 == 0 && is_inside(s->factor, 8, memory);
    if (!s->kh || !s->kw || !s->sh || !s->sw || !s->dh || !s->dw) return 0;
    if (s->op == POOL) return s->c == s->k;
    if (s->op != CONV || s->groups < 1 || s->c % s->groups || s->k % s->groups) return 0;
    return is_inside(s->src2, (int64_t)s->k * s->kh * s->kw * (s->c / s->groups), memory)
        && s->bias % 4 == 0 && is_inside(s->bias, 4 * (int64_t)s->k, memory)
        && s->factor % 4 == 0 && is_inside(s->factor, 8 * (int64_t)s->k, memory);
}

static void convolve(const step *s, uint8_t *m)
{
    const int8_t *x = (int8_t *)m + s->src, *w = (int8_t *)m + s->src2;
    int8_t *y = (int8_t *)m + s->dst;
    int cg = s->c / s->groups, kg = s->k / s->groups;
    for (int i = 0; i < s->oh; i++)
        for (int j = 0; j < s->ow; j++)
            for (int k = 0; k < s->k; k++) {
                int64_t acc = word(m + s->bias + 4 * k);
                for (int a = 0; a < s->kh; a++)
                    for (int b = 0; b < s->kw; b++) {
                        int r = i * s->sh - s->pt + a * s->dh, q = j * s->sw - s->pl + b * s->dw;
                        if (r < 0 || r >= s->h || q < 0 || q >= s->w) continue;
                        const int8_t *p = x + ((int64_t)r * s->w + q) * s->c + k / kg * cg;
                        const int8_t *v = w + (((int64_t)k * s->kh + a) * s->kw + b) * cg;
                        for (int c = 0; c < cg; c++) acc += (p[c] - s->zin) * v[c];
                    }
                factor_t f = {word(m + s->factor + 8 * k), word(m + s->factor + 8 * k + 4)};
                y[((int64_t)i * s->ow + j) * s->k + k] = clamped(requantised(acc, f), s);
            }
}

static void pool(const step *s, uint8_t *m)
{
    const int8_t *x = (int8_t *)m + s->src;
    int8_t *y = (int8_t *)m + s->dst;
    for (int i = 0; i < s->oh; i++)
        for (int j = 0; j < s->ow; j++)
            for (int k = 0; k < s->k; k++) {
                int most = -128;
                for (int a = 0; a < s->kh; a++)
                    for (int b = 0; b < s->kw; b++) {
                        int r = i * s->sh - s->pt + a * s->dh, q = j * s->sw - s->pl + b * s->dw;
                        if (r < 0 || r >= s->h || q < 0 || q >= s->w) continue;
                        int v = x[((int64_t)r * s->w + q) * s->c + k];
                        if (v > most) most = v;
                    }
                y[((int64_t)i * s->ow + j) * s->k + k] = (int8_t)most;
            }
}

/* The element-wise unit has floats: one rounding an operation, as IEEE 754 has it. */
static void pairwise(const step *s, uint8_t *m)
{
    const int8_t *a = (int8_t *)m + s->src, *b = (int8_t *)m + s->src2;
    int8_t *y = (int8_t *)m + s->dst;
    float scale[3];
    memcpy(scale, m + s->factor, sizeof scale);
    int other = (int8_t)m[s->factor + 12];
    for (int64_t n = 0; n < in_bytes(s); n++) {
        volatile float left = (float)(a[n] - s->zin) * scale[0];
        volatile float right = (float)(b[n] - other) * scale[1];
        volatile float both = s->op == ADD ? left + right : left * right;
        volatile float steps = both / scale[2];
        float whole = rintf(steps);
        y[n] = clamped(whole < -1000 ? -1000 : whole < 1000 ? (int64_t)whole : 1000, s);
    }
}

static void look_up(const step *s, uint8_t *m)
{
    for (int64_t n = 0; n < (int64_t)s->h * s->w; n++)
        for (int c = 0; c < s->c; c++) m[s->dst + n * s->k + c] = m[s->factor + m[s->src + n * s->c + c]];
}

static void mean(const step *s, uint8_t *m)
{
    const int8_t *x = (int8_t *)m + s->src;
    factor_t f = {word(m + s->factor), word(m + s->factor + 4)};
    for (int k = 0; k < s->k; k++) {
        int64_t acc = 0;
        for (int64_t n = 0; n < (int64_t)s->h * s->w; n++) acc += x[n * s->c + k] - s->zin;
        m[s->dst + k] = (uint8_t)clamped(requantised(acc, f), s);
    }
}

/* Channels to the front (or to the end), which is how the outside has tensors. */
static void turn(const int8_t *x, int8_t *y, const step *s, int is_in)
{
    int64_t area = (int64_t)s->h * s->w;
    for (int64_t n = 0; n < area; n++)
        for (int c = 0; c < s->c; c++)
            if (is_in) y[n * s->c + c] = x[c * area + n];
            else y[c * area + n] = x[n * s->c + c];
}

static int64_t above(int64_t n, int64_t d) { return (n + d - 1) / d; }

/* What a call of the array takes: rows pass one by one, depth in steps, and it fills once. */
int64_t vnpu_call(int64_t rows, int64_t columns, int64_t depth)
{
    return FILL + rows * above(columns, COLUMNS) * above(depth, ROWS);
}

/* A product of rows x columns x depth in calls. */
static int64_t product(int64_t rows, int64_t columns, int64_t depth)
{
    int64_t calls = above(rows, CALL_ROWS) * above(depth, CALL_DEPTH);
    return above(columns, COLUMNS) * (calls * FILL + rows * above(depth, ROWS));
}

/* One layer: a core has rows of the output and takes them in bands, for one slice of weights (COLUMNS
 * output channels, once for all cores) after the other.  Its queues (DMA in, array, vector unit, DMA
 * out) work in order; a buffer is free again two bands later, or two slices.  All share DRAM, which
 * moves DMA bytes a cycle, one transfer at a time: who is ready first, and of equals the lowest. */
typedef struct {
    int64_t load, again, array, vector, store; /* of a band; again: for every slice but the first */
    int64_t weights;                           /* of a slice */
    int32_t bands, slices;
} layer_t;

enum { BANDS = 64, LANES = 32, SRAM = 256 << 10, NONE = 0, BAND_IN, BAND_OUT, WEIGHTS };

static int64_t later(int64_t a, int64_t b) { return a > b ? a : b; }

static int64_t banded(const layer_t *l)
{
    int64_t port = 0, end = 0, arrived = 0, used[2] = {0};
    int64_t array[CORES] = {0}, vector[CORES] = {0};
    int64_t taken[CORES][2] = {{0}}, made[CORES][2] = {{0}}, sent[CORES][2] = {{0}};
    int32_t in[CORES] = {0}, out[CORES] = {0}, sliced = 0;
    for (;;) {
        int kind = NONE, who = 0, all = sliced < l->slices;
        int64_t at = INT64_MAX;
        for (int c = 0; c < CORES; c++) {
            int b = in[c] & 1;
            if (in[c] < sliced * l->bands && in[c] - out[c] < 2 && taken[c][b] < at)
                at = taken[c][b], kind = BAND_IN, who = c;
            if (out[c] < in[c] && made[c][out[c] & 1] < at)
                at = made[c][out[c] & 1], kind = BAND_OUT, who = c;
            all &= in[c] >= (sliced - 1) * l->bands;
        }
        if (all && used[sliced & 1] <= at) at = used[sliced & 1], kind = WEIGHTS;
        if (kind == NONE) return end;
        port = later(port, at);
        if (kind == WEIGHTS) {
            port += l->weights;
            arrived = port;
            sliced++;
        } else if (kind == BAND_IN) {
            int b = in[who] & 1, slice = in[who] / l->bands & 1;
            port += in[who] < l->bands ? l->load : l->again;
            array[who] = later(later(port, arrived), later(array[who], sent[who][b])) + l->array;
            vector[who] = later(array[who], vector[who]) + l->vector;
            taken[who][b] = array[who];
            made[who][b] = vector[who];
            used[slice] = later(used[slice], array[who]);
            in[who]++;
        } else {
            port += l->store;
            sent[who][out[who] & 1] = end = port;
            out[who]++;
        }
    }
}

/* The sequencer cuts a layer into as many bands as take the least time. */
static int64_t cycles(const step *s)
{
    if ((s->op == IN || s->op == OUT) && (s->c == 1 || s->h * s->w == 1))
        return 0; /* nothing is turned: DRAM is the host's, too, and it is used where it is */
    if (s->op == IN || s->op == OUT || s->op == FLAT)
        return SETUP + above(in_bytes(s) + out_bytes(s), DMA);
    int64_t share = above((int64_t)s->oh * s->ow, CORES), taps = (int64_t)s->kh * s->kw;
    int64_t least = INT64_MAX, columns = s->op == TABLE ? s->c : s->k;
    layer_t l = {0};
    l.slices = 1;
    if (s->op == CONV) {
        if (s->groups == 1 && columns > COLUMNS) columns = COLUMNS;
        l.slices = (int32_t)above(s->k, columns);
        l.weights = above(columns * (taps * (s->c / s->groups) + 12), DMA);
    }
    for (l.bands = 1; l.bands <= BANDS && l.bands <= share; l.bands *= 2) {
        int64_t rows = above(share, l.bands), inside = above(in_bytes(s), (int64_t)CORES * l.bands);
        if (s->op == ADD || s->op == MUL) inside *= 2;
        l.load = above(inside, DMA);
        l.again = l.bands * inside > SRAM / 2 ? l.load : 0; /* else a core keeps its share */
        l.store = above(rows * columns, DMA);
        l.vector = above(rows * columns, LANES);
        if (s->op == CONV && s->groups == s->c && s->c == s->k)
            l.vector += above(rows * columns * taps, LANES); /* no sums over channels for the array */
        else if (s->op == CONV)
            l.array = s->groups * product(rows, columns / s->groups, taps * s->c / s->groups);
        else if (s->op == POOL)
            l.vector = above(rows * columns * taps, LANES);
        else if (s->op == MEAN)
            l.vector = above(in_bytes(s), LANES * CORES);
        int64_t found = banded(&l);
        if (found < least) least = found;
    }
    return SETUP + least;
}

static const step *steps_of(const uint8_t *image, int32_t *num)
{
    *num = word(image + 8);
    return (const step *)(image + HEADER + (int64_t)PORT * word(image + 12));
}

/* 0, or the number of the check that fails: 1 header, 2 sizes, 3 + n instruction n. */
int vnpu_check(const uint8_t *image, int64_t size)
{
    if (size < HEADER || memcmp(image, "VNPU", 4) || word(image + 4) != 1) return 1;
    int64_t num = word(image + 8), ports = word(image + 12);
    int64_t constants = word(image + 16), memory = word(image + 20);
    if (num < 1 || num > 1 << 16 || ports < 1 || ports > 1 << 10) return 2;
    if (constants < 0 || memory < constants || memory > 1 << 30) return 2;
    if (HEADER + PORT * ports + STEP * num + constants != size) return 2;
    int32_t count;
    const step *s = steps_of(image, &count);
    for (int32_t n = 0; n < count; n++)
        if (!is_sound(s + n, image + HEADER, (int32_t)ports, memory)) return 3 + n;
    return 0;
}

/* What a run of a checked image will take. */
int64_t vnpu_cycles(const uint8_t *image)
{
    int32_t num;
    const step *s = steps_of(image, &num);
    int64_t total = 0;
    for (int32_t n = 0; n < num; n++) total += cycles(s + n);
    return total;
}

/* Runs a checked image on the tensors of its ports; gives cycles, or -1 without memory. */
int64_t vnpu_run(const uint8_t *image, int8_t *const *ports)
{
    int32_t num;
    const step *s = steps_of(image, &num);
    int64_t total = 0;
    uint8_t *m = calloc(1, (size_t)word(image + 20) + 8);
    if (!m) return -1;
    memcpy(m, s + num, (size_t)word(image + 16));
    for (int32_t n = 0; n < num; n++, s++) {
        switch (s->op) {
        case IN: turn(ports[s->src], (int8_t *)m + s->dst, s, 1); break;
        case OUT: turn((int8_t *)m + s->src, ports[s->dst], s, 0); break;
        case FLAT: turn((int8_t *)m + s->src, (int8_t *)m + s->dst, s, s->groups == BACK); break;
        case CONV: convolve(s, m); break;
        case POOL: pool(s, m); break;
        case ADD: case MUL: pairwise(s, m); break;
        case TABLE: look_up(s, m); break;
        case MEAN: mean(s, m); break;
        }
        total += cycles(s);
    }
    free(m);
    return total;
}
