/* The custom operator `Region` of ONNX Runtime: a region of host.onnx, run by the runtime of
 * tilewright.h on the tensors where they lie.
 *
 * A kernel keeps the sessions that were used at the same time, so threads never wait for each other's
 * runs.  The operator's domain is made once in a process and kept: the runtime keeps pointers to it.
 */
#include "tw_library.h"
#include "tw_onnxruntime.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct tw_idle {
    tw_session *session;
    struct tw_idle *next;
} tw_idle;

typedef struct tw_kernel {
    const OrtApi *api;
    tw_model *model;
    int32_t region;
    pthread_mutex_t lock; /* of the list */
    tw_idle *idle;
} tw_kernel;

static OrtStatus *tw_status(const OrtApi *api, const tw_error *error)
{
    char text[sizeof error->message + sizeof error->pointer + 40];
    snprintf(text, sizeof text, "%s at %s: %s", error->id, error->pointer, error->message);
    return TW_ORT(api, CreateStatus)(TW_ORT_FAIL, text);
}

#define TW_TRY(CALL)                                                                              \
    do {                                                                                          \
        OrtStatus *tw_refusal = (CALL);                                                           \
        if (tw_refusal) return tw_refusal;                                                        \
    } while (0)

/* ---- the operator -------------------------------------------------------------------------- */

static const char *tw_op_name(const OrtCustomOp *op) { (void)op; return "Region"; }
static const char *tw_op_provider(const OrtCustomOp *op) { (void)op; return NULL; }
static int tw_op_any(const OrtCustomOp *op, size_t k) { (void)op; (void)k; return 0; }
static size_t tw_op_one(const OrtCustomOp *op) { (void)op; return 1; }
static int tw_op_variadic(const OrtCustomOp *op, size_t k)
{
    (void)op;
    (void)k;
    return TW_ORT_VARIADIC;
}
static int tw_op_none(const OrtCustomOp *op) { (void)op; return 0; }
static int tw_op_at_least(const OrtCustomOp *op) { (void)op; return 1; }

/* Check that a node of host.onnx is of the bundle that this library was made from. */
static OrtStatus *tw_check_node(const tw_kernel *kernel, const OrtKernelInfo *info, int64_t *region)
{
    tw_error error;
    char digest[65], pointer[60];
    size_t size = sizeof digest;
    TW_TRY(TW_ORT(kernel->api, KernelInfoGetAttribute_int64)(info, "region", region));
    TW_TRY(TW_ORT(kernel->api, KernelInfoGetAttribute_string)(info, "digest", digest, &size));
    snprintf(pointer, sizeof pointer, "/nodes/region%lld", (long long)*region);
    if (strcmp(digest, tw_model_digest(kernel->model)) != 0)
        tw_fail(&error, TW_ERROR_DIGEST, pointer,
                "the model's node is of bundle %.16s..., the library was made from %.16s...: use the"
                " library and the host.onnx of one `tilewright build`",
                digest, tw_model_digest(kernel->model));
    else if (*region < 0 || *region >= tw_num_regions(kernel->model))
        tw_fail(&error, TW_ERROR_VALUE, pointer, "the library has %d regions, numbered from 0",
                (int)tw_num_regions(kernel->model));
    else
        return NULL;
    return tw_status(kernel->api, &error);
}

static void tw_kernel_destroy(void *state)
{
    tw_kernel *kernel = state;
    if (!kernel) return;
    while (kernel->idle) {
        tw_idle *idle = kernel->idle;
        kernel->idle = idle->next;
        tw_session_free(idle->session);
        free(idle);
    }
    pthread_mutex_destroy(&kernel->lock);
    free(kernel);
}

static OrtStatus *tw_kernel_create(const OrtCustomOp *op, const OrtApi *api,
                                   const OrtKernelInfo *info, void **state);

/* Kernels are reused; each run has one for itself. */
static OrtStatus *tw_take(tw_kernel *kernel, tw_idle **taken)
{
    tw_error error;
    tw_idle *idle;
    pthread_mutex_lock(&kernel->lock);
    idle = kernel->idle;
    if (idle) kernel->idle = idle->next;
    pthread_mutex_unlock(&kernel->lock);
    *taken = idle;
    if (idle) return NULL;
    idle = calloc(1, sizeof *idle);
    if (!idle) {
        tw_fail(&error, TW_ERROR_MEMORY, "/session", "no memory for a session: free some");
        return tw_status(kernel->api, &error);
    }
    if (tw_session_create(kernel->model, kernel->region, &idle->session, &error) != TW_OK) {
        free(idle);
        return tw_status(kernel->api, &error);
    }
    *taken = idle;
    return NULL;
}

static void tw_put_back(tw_kernel *kernel, tw_idle *idle)
{
    pthread_mutex_lock(&kernel->lock);
    idle->next = kernel->idle;
    kernel->idle = idle;
    pthread_mutex_unlock(&kernel->lock);
}

/* Whether a tensor has the type and shape that the kernels were compiled for. */
static OrtStatus *tw_fits(const tw_kernel *kernel, const OrtValue *tensor, const tw_value *value,
                          int *fits)
{
    const OrtApi *api = kernel->api;
    OrtTensorTypeAndShapeInfo *info = NULL;
    OrtStatus *status;
    int64_t dims[64];
    size_t rank = 0;
    int type = 0;
    *fits = 0;
    TW_TRY(TW_ORT(api, GetTensorTypeAndShape)(tensor, &info));
    status = TW_ORT(api, GetTensorElementType)(info, &type);
    if (!status) status = TW_ORT(api, GetDimensionsCount)(info, &rank);
    if (!status && type == value->type && rank == (size_t)value->rank && rank <= 64) {
        status = TW_ORT(api, GetDimensions)(info, dims, rank);
        *fits = !status && (rank == 0 || memcmp(dims, value->shape, rank * sizeof *dims) == 0);
    }
    TW_ORT(api, ReleaseTensorTypeAndShapeInfo)(info);
    return status;
}

static OrtStatus *tw_bind_all(const tw_kernel *kernel, tw_session *session, OrtKernelContext *context)
{
    const OrtApi *api = kernel->api;
    const int32_t ins = tw_num_inputs(kernel->model, kernel->region);
    const int32_t outs = tw_num_outputs(kernel->model, kernel->region);
    size_t given = 0, taken = 0;
    tw_error error;
    tw_value value;
    void *data;
    TW_TRY(TW_ORT(api, KernelContext_GetInputCount)(context, &given));
    TW_TRY(TW_ORT(api, KernelContext_GetOutputCount)(context, &taken));
    if (given != (size_t)ins || taken != (size_t)outs) {
        tw_fail(&error, TW_ERROR_VALUE, "/nodes",
                "region %d has %d inputs and %d outputs, its node %zu and %zu: use the host.onnx that"
                " lies beside the library",
                (int)kernel->region, (int)ins, (int)outs, given, taken);
        return tw_status(api, &error);
    }
    for (int32_t k = 0; k < ins; ++k) {
        const OrtValue *tensor = NULL;
        int fits = 0;
        if (tw_input(kernel->model, kernel->region, k, &value, &error) != TW_OK)
            return tw_status(api, &error);
        TW_TRY(TW_ORT(api, KernelContext_GetInput)(context, (size_t)k, &tensor));
        if (tensor) TW_TRY(tw_fits(kernel, tensor, &value, &fits));
        if (!fits) {
            char pointer[160];
            snprintf(pointer, sizeof pointer, "/inputs/%.140s", value.name);
            tw_fail(&error, TW_ERROR_VALUE, pointer,
                    "region %d takes ONNX type %d of rank %d and the shape that it was compiled for:"
                    " give inputs of the shapes of `tilewright build --json`",
                    (int)kernel->region, (int)value.type, (int)value.rank);
            return tw_status(api, &error);
        }
        {
            union { const OrtValue *from; OrtValue *to; } read = {tensor};
            TW_TRY(TW_ORT(api, GetTensorMutableData)(read.to, &data));
        }
        if (tw_bind(session, value.name, data, value.bytes, &error) != TW_OK)
            return tw_status(api, &error);
    }
    for (int32_t k = 0; k < outs; ++k) {
        OrtValue *tensor = NULL;
        if (tw_output(kernel->model, kernel->region, k, &value, &error) != TW_OK)
            return tw_status(api, &error);
        TW_TRY(TW_ORT(api, KernelContext_GetOutput)(context, (size_t)k, value.shape,
                                                    (size_t)value.rank, &tensor));
        TW_TRY(TW_ORT(api, GetTensorMutableData)(tensor, &data));
        if (tw_bind(session, value.name, data, value.bytes, &error) != TW_OK)
            return tw_status(api, &error);
    }
    return NULL;
}

static OrtStatus *tw_kernel_compute(void *state, OrtKernelContext *context)
{
    tw_kernel *kernel = state;
    tw_idle *idle = NULL;
    tw_error error;
    OrtStatus *status;
    TW_TRY(tw_take(kernel, &idle));
    status = tw_bind_all(kernel, idle->session, context);
    if (!status && tw_run(idle->session, &error) != TW_OK) status = tw_status(kernel->api, &error);
    tw_put_back(kernel, idle);
    return status;
}

/* ---- registration --------------------------------------------------------------------------- */

static struct {
    OrtCustomOp op; /* first: the runtime hands back its address */
    tw_model *model;
    OrtCustomOpDomain *domain;
} tw_registered = {
    {TW_ORT_API_VERSION, NULL, tw_op_name, tw_op_provider, tw_op_any, tw_op_one, tw_op_any, tw_op_one,
     NULL, tw_kernel_destroy, tw_op_variadic, tw_op_variadic, tw_op_any, tw_op_none, tw_op_none,
     tw_op_at_least, tw_op_none, tw_kernel_create, tw_kernel_compute},
    NULL,
    NULL,
};
static pthread_mutex_t tw_registering = PTHREAD_MUTEX_INITIALIZER;

static OrtStatus *tw_kernel_create(const OrtCustomOp *op, const OrtApi *api,
                                   const OrtKernelInfo *info, void **state)
{
    tw_kernel *kernel = calloc(1, sizeof *kernel);
    OrtStatus *status;
    tw_error error;
    int64_t region = 0;
    (void)op;
    *state = NULL;
    if (!kernel) {
        tw_fail(&error, TW_ERROR_MEMORY, "/nodes", "no memory for a kernel: free some");
        return tw_status(api, &error);
    }
    pthread_mutex_init(&kernel->lock, NULL);
    kernel->api = api;
    kernel->model = tw_registered.model;
    status = tw_check_node(kernel, info, &region);
    if (status) {
        tw_kernel_destroy(kernel);
        return status;
    }
    kernel->region = (int32_t)region;
    *state = kernel;
    return NULL;
}

static OrtStatus *tw_make_domain(const OrtApi *api)
{
    tw_error error;
    OrtCustomOpDomain *domain = NULL;
    if (tw_registered.domain) return NULL;
    if (!tw_registered.model &&
        tw_open(TW_API_VERSION, NULL, &tw_registered.model, &error) != TW_OK)
        return tw_status(api, &error);
    TW_TRY(TW_ORT(api, CreateCustomOpDomain)("tilewright", &domain));
    TW_TRY(TW_ORT(api, CustomOpDomain_Add)(domain, &tw_registered.op));
    tw_registered.domain = domain;
    return NULL;
}

TW_PUBLIC OrtStatus *RegisterCustomOps(OrtSessionOptions *options, const OrtApiBase *base)
{
    const OrtApi *api = base->GetApi(TW_ORT_API_VERSION);
    OrtStatus *status;
    if (!api) {
        tw_error error;
        tw_fail(&error, TW_ERROR_ORT, "/onnxruntime/api",
                "the library needs API %d of ONNX Runtime, which 1.%d has; this is %s: install a newer"
                " one",
                TW_ORT_API_VERSION, TW_ORT_API_VERSION, base->GetVersionString());
        api = base->GetApi(1); /* every version has the first one's entries */
        return tw_status(api, &error);
    }
    pthread_mutex_lock(&tw_registering);
    status = tw_make_domain(api);
    pthread_mutex_unlock(&tw_registering);
    if (!status) status = TW_ORT(api, AddCustomOpDomain)(options, tw_registered.domain);
    return status;
}
