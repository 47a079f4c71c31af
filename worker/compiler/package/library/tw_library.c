/* The runtime of a compiled model: tilewright.h over the tables and the regions' functions.
 *
 * A session has the memories of the machine, one home arena for what passes between kernels, and a
 * pointer for every storage.  Values that are bound replace the planned address of their storage.
 */
#include "tw_library.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

struct tw_model {
    const tw_tables *tables;
};

struct tw_session {
    const tw_tables *tables;
    const tw_part_row *part;
    tw_machine machine;
    unsigned char **storage; /* by root tensor */
    unsigned char **bound;   /* by value */
    unsigned char **entry;
    void *blocks[TW_MAX_LEVELS + 5]; /* everything that was allocated */
    int32_t num_blocks;
};

int tw_fail(tw_error *error, int code, const char *pointer, const char *format, ...)
{
    if (error) {
        va_list words;
        error->code = code;
        snprintf(error->id, sizeof error->id, "TW-LIB-%03d", code);
        snprintf(error->pointer, sizeof error->pointer, "%s", pointer);
        va_start(words, format);
        vsnprintf(error->message, sizeof error->message, format, words);
        va_end(words);
    }
    return code;
}

/* ---- the model ---------------------------------------------------------------------------- */

/* The first feature of `wanted` that this processor has not, NULL where it has all. */
static const char *tw_cpu_lacks(uint32_t wanted)
{
#if defined(__x86_64__) && defined(__GNUC__)
    __builtin_cpu_init();
#define TW_NEED(BIT, NAME)                                                                      \
    if ((wanted & (1u << BIT)) && !__builtin_cpu_supports(NAME)) return NAME;
    TW_NEED(0, "sse4.2")
    TW_NEED(1, "popcnt")
    TW_NEED(2, "avx")
    TW_NEED(3, "fma")
    TW_NEED(4, "bmi")
    TW_NEED(5, "bmi2")
    TW_NEED(6, "avx2")
    TW_NEED(7, "avx512f")
    TW_NEED(8, "avx512cd")
    TW_NEED(9, "avx512bw")
    TW_NEED(10, "avx512dq")
    TW_NEED(11, "avx512vl")
    TW_NEED(12, "avx512vbmi")
    TW_NEED(13, "avx512ifma")
    TW_NEED(14, "avx512vnni")
    TW_NEED(15, "avx512vbmi2")
    TW_NEED(16, "avx512bitalg")
    TW_NEED(17, "avx512vpopcntdq")
    TW_NEED(18, "gfni")
    TW_NEED(19, "fma4")
    TW_NEED(20, "xop")
#undef TW_NEED
#else
    (void)wanted;
#endif
    return NULL;
}

TW_PUBLIC int tw_open(uint32_t api_version, const char *digest, tw_model **model, tw_error *error)
{
    const tw_tables *tables = &tw_library_tables;
    const char *lacks;
    char sum[65];
    *model = NULL;
    if (api_version != TW_API_VERSION)
        return tw_fail(error, TW_ERROR_API, "/library/api",
                       "the library has API %d, the application was compiled against %u: compile it"
                       " with the tilewright.h that lies beside the library",
                       TW_API_VERSION, (unsigned)api_version);
    lacks = tw_cpu_lacks(tables->features);
    if (lacks)
        return tw_fail(error, TW_ERROR_CPU, "/library/cpu",
                       "the library was compiled for a processor with %s, this one has it not: run"
                       " `tilewright build` on this machine",
                       lacks);
    if (digest && strcmp(digest, tables->digest) != 0)
        return tw_fail(error, TW_ERROR_DIGEST, "/library/digest",
                       "the library was made from bundle %.16s..., not %.16s...: run `tilewright"
                       " build` on that one",
                       tables->digest, digest);
    tw_sha256(tables->weights, tables->weight_bytes, sum);
    if (strcmp(sum, tables->weights_sha256) != 0)
        return tw_fail(error, TW_ERROR_DAMAGED, "/library/weights",
                       "the weights have SHA-256 %.16s..., not %.16s...: the file was damaged, run"
                       " `tilewright build` again",
                       sum, tables->weights_sha256);
    *model = malloc(sizeof **model);
    if (!*model)
        return tw_fail(error, TW_ERROR_MEMORY, "/library", "no memory for a model: free some");
    (*model)->tables = tables;
    return TW_OK;
}

TW_PUBLIC void tw_close(tw_model *model) { free(model); }
TW_PUBLIC const char *tw_model_name(const tw_model *model) { return model->tables->model; }
TW_PUBLIC const char *tw_model_digest(const tw_model *model) { return model->tables->digest; }
TW_PUBLIC int32_t tw_num_regions(const tw_model *model) { return model->tables->num_regions; }

static const tw_part_row *tw_part(const tw_tables *tables, int32_t region)
{
    if (region < TW_WHOLE_MODEL || region >= tables->num_regions) return NULL;
    return tables->parts + 1 + region;
}

static int tw_no_region(const tw_tables *tables, int32_t region, tw_error *error)
{
    char pointer[40];
    snprintf(pointer, sizeof pointer, "/regions/%d", (int)region);
    return tw_fail(error, TW_ERROR_VALUE, pointer,
                   "there is no region %d: the model has %d, numbered from 0", (int)region,
                   (int)tables->num_regions);
}

TW_PUBLIC int32_t tw_num_inputs(const tw_model *model, int32_t region)
{
    const tw_part_row *part = tw_part(model->tables, region);
    return part ? part->num_inputs : -1;
}

TW_PUBLIC int32_t tw_num_outputs(const tw_model *model, int32_t region)
{
    const tw_part_row *part = tw_part(model->tables, region);
    return part ? part->num_outputs : -1;
}

static int tw_value_at(const tw_model *model, int32_t region, int is_output, int32_t k,
                       tw_value *value, tw_error *error)
{
    const tw_part_row *part = tw_part(model->tables, region);
    int32_t count;
    char pointer[40];
    if (!part) return tw_no_region(model->tables, region, error);
    count = is_output ? part->num_outputs : part->num_inputs;
    if (k < 0 || k >= count) {
        snprintf(pointer, sizeof pointer, "/%s/%d", is_output ? "outputs" : "inputs", (int)k);
        return tw_fail(error, TW_ERROR_VALUE, pointer, "there are %d, numbered from 0", (int)count);
    }
    *value = part->values[k + (is_output ? part->num_inputs : 0)].value;
    return TW_OK;
}

TW_PUBLIC int tw_input(const tw_model *model, int32_t region, int32_t k, tw_value *value,
                       tw_error *error)
{
    return tw_value_at(model, region, 0, k, value, error);
}

TW_PUBLIC int tw_output(const tw_model *model, int32_t region, int32_t k, tw_value *value,
                        tw_error *error)
{
    return tw_value_at(model, region, 1, k, value, error);
}

/* ---- sessions ----------------------------------------------------------------------------- */

/* Zeroed memory on a cache line; the system commits its pages as they are touched. */
static void *tw_block(tw_session *s, int64_t bytes)
{
    unsigned char *found = calloc(1, (size_t)(bytes > 0 ? bytes : 1) + 63);
    if (!found) return NULL;
    s->blocks[s->num_blocks++] = found;
    return found + (64 - (uintptr_t)found % 64) % 64;
}

static unsigned char *tw_at(const tw_session *s, int32_t tensor)
{
    const tw_tensor_row *row = s->tables->tensors + tensor;
    if (row->constant >= 0) {
        /* Kernels take all operands alike and write none of these. */
        union { const unsigned char *from; unsigned char *to; } weights = {s->tables->weights};
        return weights.to + row->constant;
    }
    return s->storage[row->root];
}

TW_PUBLIC void tw_session_free(tw_session *s)
{
    if (!s) return;
    while (s->num_blocks) free(s->blocks[--s->num_blocks]);
    free(s);
}

static int tw_allocate(tw_session *s)
{
    const tw_tables *t = s->tables;
    const int64_t width = (int64_t)sizeof(void *);
    unsigned char *home = tw_block(s, t->home_bytes);
    s->storage = tw_block(s, t->num_tensors * width);
    s->bound = tw_block(s, (s->part->num_inputs + s->part->num_outputs) * width);
    s->entry = tw_block(s, t->most_entries * width);
    s->machine.scratch = tw_block(s, TW_SCRATCH_BYTES);
    if (!home || !s->storage || !s->bound || !s->entry || !s->machine.scratch) return 0;
    for (int32_t k = 0; k < t->num_levels; ++k) {
        s->machine.arena[k] = tw_block(s, t->level_bytes[k]);
        if (!s->machine.arena[k]) return 0;
        s->machine.capacity_bytes[k] = t->capacity_bytes[k];
        s->machine.instances[k] = t->instances[k];
        s->machine.instance_stride_bytes[k] = t->instance_stride_bytes[k];
    }
    s->machine.abi = TW_ABI;
    s->machine.num_levels = t->num_levels;
    for (int32_t k = 0; k < t->num_tensors; ++k)
        if (t->tensors[k].root == k)
            s->storage[k] = t->tensors[k].constant < 0 ? home + t->tensors[k].address : tw_at(s, k);
    return 1;
}

TW_PUBLIC int tw_session_create(const tw_model *model, int32_t region, tw_session **session,
                                tw_error *error)
{
    const tw_part_row *part = tw_part(model->tables, region);
    tw_session *s;
    *session = NULL;
    if (!part) return tw_no_region(model->tables, region, error);
    if (part->refusal) return tw_fail(error, TW_ERROR_HOST, "/regions", "%s", part->refusal);
    s = calloc(1, sizeof *s);
    if (s) {
        s->tables = model->tables;
        s->part = part;
    }
    if (!s || !tw_allocate(s)) {
        tw_session_free(s);
        return tw_fail(error, TW_ERROR_MEMORY, "/session", "no memory for a session: free some");
    }
    *session = s;
    return TW_OK;
}

static void tw_point(char pointer[160], const tw_part_row *part, int32_t k, const char *what)
{
    const char *side = k < part->num_inputs ? "inputs" : "outputs";
    snprintf(pointer, 160, "/%s/%.120s%s", side, part->values[k].value.name, what);
}

TW_PUBLIC int tw_bind(tw_session *s, const char *name, void *data, int64_t bytes, tw_error *error)
{
    const int32_t count = s->part->num_inputs + s->part->num_outputs;
    char pointer[160];
    int32_t k = 0;
    while (k < count && strcmp(s->part->values[k].value.name, name) != 0) ++k;
    if (k == count) {
        snprintf(pointer, sizeof pointer, "/%.150s", name);
        return tw_fail(error, TW_ERROR_VALUE, pointer,
                       "no input or output has this name: tw_input and tw_output give them");
    }
    /* An output may be an input, too: both are bound then. */
    for (; k < count; ++k) {
        const tw_value_row *row = s->part->values + k;
        if (strcmp(row->value.name, name) != 0) continue;
        if (bytes != row->value.bytes) {
            tw_point(pointer, s->part, k, "/bytes");
            return tw_fail(error, TW_ERROR_VALUE, pointer, "it has %lld bytes, %lld were given",
                           (long long)row->value.bytes, (long long)bytes);
        }
        if (bytes && (!data || (uintptr_t)data % (uintptr_t)row->value.align)) {
            tw_point(pointer, s->part, k, "/data");
            return tw_fail(error, TW_ERROR_VALUE, pointer,
                           "its memory must be aligned to %d bytes, address %p is not",
                           (int)row->value.align, data);
        }
        s->bound[k] = bytes ? data : (unsigned char *)s->machine.scratch;
        if (row->is_direct) s->storage[s->tables->tensors[row->tensor].root] = s->bound[k];
    }
    return TW_OK;
}

static int tw_faulted(const tw_session *s, int32_t region, tw_error *error)
{
    const tw_machine *m = &s->machine;
    char pointer[40];
    snprintf(pointer, sizeof pointer, "/regions/%d", (int)region);
    return tw_fail(error, TW_ERROR_FAULT, pointer,
                   "a kernel stopped at %s (kind %d, buffer %d: %lld..%lld of %lld): an index in the"
                   " inputs leaves its tensor, or the library is damaged",
                   m->fault_path, (int)m->fault_kind, (int)m->fault_buffer, (long long)m->fault_low,
                   (long long)m->fault_high, (long long)m->fault_limit);
}

TW_PUBLIC int tw_run(tw_session *s, tw_error *error)
{
    const tw_part_row *part = s->part;
    const int32_t count = part->num_inputs + part->num_outputs;
    char pointer[160];
    for (int32_t k = 0; k < count; ++k)
        if (!s->bound[k]) {
            tw_point(pointer, part, k, "/data");
            return tw_fail(error, TW_ERROR_VALUE, pointer, "it has no memory yet: call tw_bind");
        }
    for (int32_t r = part->first_region; r < part->first_region + part->num_regions; ++r) {
        const tw_region_row *region = s->tables->regions + r;
        for (int32_t k = 0; k < region->num_entries; ++k)
            s->entry[k] = tw_at(s, region->tensors[k]);
        if (region->run(&s->machine, s->entry) != 0) return tw_faulted(s, r, error);
    }
    for (int32_t k = part->num_inputs; k < count; ++k) {
        const tw_value_row *row = part->values + k;
        if (!row->is_direct && row->value.bytes)
            memmove(s->bound[k], tw_at(s, row->tensor), (size_t)row->value.bytes);
    }
    return TW_OK;
}
