/* What the generated tables tw_tables.c say of one bundle. */
#ifndef TW_LIBRARY_H
#define TW_LIBRARY_H

#include "tilewright.h"
#include "tilewright_rt.h"

#if defined(__GNUC__)
#define TW_PUBLIC __attribute__((visibility("default")))
#else
#define TW_PUBLIC
#endif

typedef struct tw_tensor_row {
    int64_t address;  /* in the home arena of a session */
    int64_t constant; /* offset in the weights, -1 for what is none */
    int32_t root;     /* tensor whose storage it has */
} tw_tensor_row;

typedef struct tw_value_row {
    tw_value value;
    int32_t tensor;   /* -1: nothing reads it */
    int32_t is_direct; /* its tensor lives where it is bound */
} tw_value_row;

typedef struct tw_region_row {
    int (*run)(tw_machine *m, unsigned char *const *entry);
    int32_t num_entries;
    const int32_t *tensors; /* of the entries */
} tw_region_row;

typedef struct tw_part_row {
    const char *refusal; /* why it cannot run here, NULL where it can */
    int32_t first_region;
    int32_t num_regions;
    int32_t num_inputs;
    int32_t num_outputs;
    const tw_value_row *values; /* inputs, then outputs */
} tw_part_row;

typedef struct tw_tables {
    const char *model;
    const char *digest;
    int32_t num_tensors;
    int32_t num_regions;
    int32_t most_entries;
    int32_t num_levels;
    const tw_tensor_row *tensors;
    const tw_region_row *regions;
    const tw_part_row *parts; /* the model, then its regions */
    int64_t home_bytes;
    const int64_t *level_bytes; /* of the arena that stands for all instances */
    const int64_t *capacity_bytes;
    const int64_t *instances;
    const int64_t *instance_stride_bytes;
    const unsigned char *weights;
    int64_t weight_bytes;
    const char *weights_sha256; /* hex */
    uint32_t features;          /* of the processor, in the order of tw_cpu_lacks */
} tw_tables;

extern const tw_tables tw_library_tables;

int tw_fail(tw_error *error, int code, const char *pointer, const char *format, ...)
#if defined(__GNUC__)
    __attribute__((format(printf, 4, 5)))
#endif
    ;

/* The hex digest of `count` bytes. */
void tw_sha256(const unsigned char *bytes, int64_t count, char text[65]);

#endif
