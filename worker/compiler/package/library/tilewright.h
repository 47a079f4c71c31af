/* tilewright.h -- a compiled model as a shared library.
 *
 *     tw_model *model;                      tw_session *session;
 *     tw_open(TW_API_VERSION, NULL, &model, &error);
 *     tw_session_create(model, TW_WHOLE_MODEL, &session, &error);
 *     tw_bind(session, "image", image, sizeof image, &error);
 *     tw_bind(session, "probabilities", out, sizeof out, &error);
 *     tw_run(session, &error);
 *     tw_session_free(session);             tw_close(model);
 *
 * A model is read-only and may be used by any number of threads; a session by one at a time.  Nothing
 * else is shared: sessions of several threads run at once.  Weights stay where the library is mapped;
 * what is bound is read and written in place, where it lies.
 *
 * Every function that can fail gives TW_OK or the number of an error, TW-LIB-NNN, and fills `error`
 * (which may be NULL).  Values are ONNX tensors: row-major, little endian, types by ONNX's numbers
 * (TensorProto.DataType); integers and floats of 4 and 2 bits take a byte each, as INT8 or UINT8.
 */
#ifndef TILEWRIGHT_H
#define TILEWRIGHT_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TW_API_VERSION 1
#define TW_WHOLE_MODEL (-1)

typedef struct tw_model tw_model;
typedef struct tw_session tw_session;

enum tw_code {
    TW_OK = 0,
    TW_ERROR_API = 1,     /* the application was compiled against another header */
    TW_ERROR_CPU = 2,     /* the library was compiled for another processor */
    TW_ERROR_DIGEST = 3,  /* the library was made from another bundle */
    TW_ERROR_DAMAGED = 4, /* the weights are not those that it was made with */
    TW_ERROR_VALUE = 5,   /* a name, size, alignment or region that does not fit */
    TW_ERROR_HOST = 6,    /* the model has parts that only ONNX Runtime runs */
    TW_ERROR_FAULT = 7,   /* a kernel would have left its memory */
    TW_ERROR_MEMORY = 8,  /* the system has not enough */
    TW_ERROR_ORT = 9      /* the ONNX Runtime is too old */
};

typedef struct tw_error {
    int32_t code;
    char id[16];       /* "TW-LIB-005" */
    char pointer[160]; /* JSON pointer to what is wrong, such as /inputs/image/bytes */
    char message[480]; /* what was expected, what was found, what to do */
} tw_error;

typedef struct tw_value {
    const char *name;
    int32_t type;
    int32_t rank;
    const int64_t *shape;
    int64_t bytes;
    int32_t align; /* bytes to which its memory must be aligned */
} tw_value;

/* Check the library and open it.  `digest` is that of the bundle it has to come from, 64 hex digits
 * (`tilewright build --json` prints it, host.onnx has it), NULL for any.  Cost: one SHA-256 over the
 * weights.  Fails with TW_ERROR_API, _CPU, _DIGEST, _DAMAGED, _MEMORY. */
int tw_open(uint32_t api_version, const char *digest, tw_model **model, tw_error *error);
void tw_close(tw_model *model); /* after all of its sessions */

const char *tw_model_name(const tw_model *model);
const char *tw_model_digest(const tw_model *model);

/* Regions are the accelerator's parts of the model, numbered in the order of execution. */
int32_t tw_num_regions(const tw_model *model);

/* Inputs and outputs of a region, or of TW_WHOLE_MODEL; -1 where there is no such region. */
int32_t tw_num_inputs(const tw_model *model, int32_t region);
int32_t tw_num_outputs(const tw_model *model, int32_t region);
int tw_input(const tw_model *model, int32_t region, int32_t k, tw_value *value, tw_error *error);
int tw_output(const tw_model *model, int32_t region, int32_t k, tw_value *value, tw_error *error);

/* Memory to run one region, or the whole model where all of it is on the accelerator (else
 * TW_ERROR_HOST: run host.onnx in ONNX Runtime, or run region by region). */
int tw_session_create(const tw_model *model, int32_t region, tw_session **session, tw_error *error);
void tw_session_free(tw_session *session);

/* Give an input or output its memory: exactly `bytes` of the value, aligned, not overlapping with
 * others, until it is bound again or the session is freed.  No copy is made, save for an output that
 * is the same storage as an input, a weight or another output. */
int tw_bind(tw_session *session, const char *name, void *data, int64_t bytes, tw_error *error);

/* Run once, in this thread.  Everything must be bound. */
int tw_run(tw_session *session, tw_error *error);

#ifdef __cplusplus
}
#endif
#endif
