/* The entries of ONNX Runtime's C interface that the custom operator uses, declared here so that no
 * header of it is needed.  The interface is a table that only grows, and positions never change;
 * TW_ORT_API_VERSION is the least that has all of them, with errors from operators (its 1.16).
 */
#ifndef TW_ONNXRUNTIME_H
#define TW_ONNXRUNTIME_H

#include <stddef.h>
#include <stdint.h>

#define TW_ORT_API_VERSION 16
#define TW_ORT_FAIL 1
#define TW_ORT_VARIADIC 2

typedef struct OrtStatus OrtStatus;
typedef struct OrtSessionOptions OrtSessionOptions;
typedef struct OrtCustomOpDomain OrtCustomOpDomain;
typedef struct OrtKernelInfo OrtKernelInfo;
typedef struct OrtKernelContext OrtKernelContext;
typedef struct OrtValue OrtValue;
typedef struct OrtTensorTypeAndShapeInfo OrtTensorTypeAndShapeInfo;

typedef struct OrtApi {
    void (*entry[1])(void); /* as many as its version has */
} OrtApi;

typedef struct OrtApiBase {
    const OrtApi *(*GetApi)(uint32_t version);
    const char *(*GetVersionString)(void);
} OrtApiBase;

/* X(position, name, result, arguments) */
#define TW_ORT_ENTRIES(X)                                                                         \
    X(0, CreateStatus, OrtStatus *, (int code, const char *message))                              \
    X(26, CreateCustomOpDomain, OrtStatus *, (const char *domain, OrtCustomOpDomain **out))       \
    X(27, CustomOpDomain_Add, OrtStatus *, (OrtCustomOpDomain *domain, const void *op))           \
    X(28, AddCustomOpDomain, OrtStatus *, (OrtSessionOptions *options, OrtCustomOpDomain *domain)) \
    X(51, GetTensorMutableData, OrtStatus *, (OrtValue *value, void **out))                       \
    X(60, GetTensorElementType, OrtStatus *, (const OrtTensorTypeAndShapeInfo *info, int *out))   \
    X(61, GetDimensionsCount, OrtStatus *, (const OrtTensorTypeAndShapeInfo *info, size_t *out))  \
    X(62, GetDimensions, OrtStatus *,                                                             \
      (const OrtTensorTypeAndShapeInfo *info, int64_t *dims, size_t count))                       \
    X(65, GetTensorTypeAndShape, OrtStatus *,                                                     \
      (const OrtValue *value, OrtTensorTypeAndShapeInfo **out))                                   \
    X(86, KernelInfoGetAttribute_int64, OrtStatus *,                                              \
      (const OrtKernelInfo *info, const char *name, int64_t *out))                                \
    X(87, KernelInfoGetAttribute_string, OrtStatus *,                                             \
      (const OrtKernelInfo *info, const char *name, char *out, size_t *size))                     \
    X(88, KernelContext_GetInputCount, OrtStatus *, (const OrtKernelContext *c, size_t *out))     \
    X(89, KernelContext_GetOutputCount, OrtStatus *, (const OrtKernelContext *c, size_t *out))    \
    X(90, KernelContext_GetInput, OrtStatus *,                                                    \
      (const OrtKernelContext *c, size_t index, const OrtValue **out))                            \
    X(91, KernelContext_GetOutput, OrtStatus *,                                                   \
      (OrtKernelContext *c, size_t index, const int64_t *dims, size_t count, OrtValue **out))     \
    X(99, ReleaseTensorTypeAndShapeInfo, void, (OrtTensorTypeAndShapeInfo *info))

#define TW_ORT_DECLARE(POSITION, NAME, RESULT, ARGUMENTS) typedef RESULT(*tw_ort_##NAME) ARGUMENTS;
TW_ORT_ENTRIES(TW_ORT_DECLARE)
#define TW_ORT_POSITION(POSITION, NAME, RESULT, ARGUMENTS) TW_ORT_AT_##NAME = POSITION,
enum { TW_ORT_ENTRIES(TW_ORT_POSITION) TW_ORT_NONE };
#define TW_ORT(API, NAME) ((tw_ort_##NAME)(API)->entry[TW_ORT_AT_##NAME])

/* The operator as version 16 knows it. */
typedef struct OrtCustomOp {
    uint32_t version;
    void *(*CreateKernel)(const struct OrtCustomOp *, const OrtApi *, const OrtKernelInfo *);
    const char *(*GetName)(const struct OrtCustomOp *);
    const char *(*GetExecutionProviderType)(const struct OrtCustomOp *);
    int (*GetInputType)(const struct OrtCustomOp *, size_t);
    size_t (*GetInputTypeCount)(const struct OrtCustomOp *);
    int (*GetOutputType)(const struct OrtCustomOp *, size_t);
    size_t (*GetOutputTypeCount)(const struct OrtCustomOp *);
    void (*KernelCompute)(void *, OrtKernelContext *);
    void (*KernelDestroy)(void *);
    int (*GetInputCharacteristic)(const struct OrtCustomOp *, size_t);
    int (*GetOutputCharacteristic)(const struct OrtCustomOp *, size_t);
    int (*GetInputMemoryType)(const struct OrtCustomOp *, size_t);
    int (*GetVariadicInputMinArity)(const struct OrtCustomOp *);
    int (*GetVariadicInputHomogeneity)(const struct OrtCustomOp *);
    int (*GetVariadicOutputMinArity)(const struct OrtCustomOp *);
    int (*GetVariadicOutputHomogeneity)(const struct OrtCustomOp *);
    OrtStatus *(*CreateKernelV2)(const struct OrtCustomOp *, const OrtApi *, const OrtKernelInfo *,
                                 void **);
    OrtStatus *(*KernelComputeV2)(void *, OrtKernelContext *);
} OrtCustomOp;

#endif
