// A plain ONNX Runtime program: model, library, input and output as files.  Two sessions, two threads
// each; every one of the four results goes into the output file.
#include <onnxruntime_c_api.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <thread>
#include <vector>

static const OrtApi *api = OrtGetApiBase()->GetApi(16);

static void check(OrtStatus *status)
{
    if (!status) return;
    std::fprintf(stderr, "%s\n", api->GetErrorMessage(status));
    std::exit(1);
}

static std::vector<char> run(OrtSession *session, std::vector<char> input)
{
    OrtTypeInfo *type = nullptr;
    const OrtTensorTypeAndShapeInfo *tensor = nullptr;
    size_t rank = 0, count = 0;
    check(api->SessionGetInputTypeInfo(session, 0, &type));
    check(api->CastTypeInfoToTensorInfo(type, &tensor));
    check(api->GetDimensionsCount(tensor, &rank));
    std::vector<int64_t> shape(rank);
    check(api->GetDimensions(tensor, shape.data(), rank));
    api->ReleaseTypeInfo(type);
    OrtMemoryInfo *memory = nullptr;
    OrtValue *x = nullptr, *y = nullptr;
    check(api->CreateCpuMemoryInfo(OrtDeviceAllocator, OrtMemTypeDefault, &memory));
    check(api->CreateTensorWithDataAsOrtValue(memory, input.data(), input.size(), shape.data(), rank,
                                              ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, &x));
    const char *in = "x", *out = "y";
    check(api->Run(session, nullptr, &in, &x, 1, &out, 1, &y));
    OrtTensorTypeAndShapeInfo *info = nullptr;
    void *data = nullptr;
    check(api->GetTensorTypeAndShape(y, &info));
    check(api->GetTensorShapeElementCount(info, &count));
    check(api->GetTensorMutableData(y, &data));
    std::vector<char> found(static_cast<char *>(data), static_cast<char *>(data) + 4 * count);
    api->ReleaseTensorTypeAndShapeInfo(info);
    api->ReleaseValue(x);
    api->ReleaseValue(y);
    api->ReleaseMemoryInfo(memory);
    return found;
}

int main(int, char **argument)
{
    OrtEnv *env = nullptr;
    check(api->CreateEnv(ORT_LOGGING_LEVEL_ERROR, "plain", &env));
    OrtSessionOptions *options = nullptr;
    check(api->CreateSessionOptions(&options));
    check(api->RegisterCustomOpsLibrary_V2(options, argument[2])); // the line that registers it
    std::ifstream file(argument[3], std::ios::binary);
    std::vector<char> input{std::istreambuf_iterator<char>(file), {}};
    OrtSession *sessions[2] = {nullptr, nullptr};
    std::vector<char> outputs[4];
    for (auto &session : sessions) check(api->CreateSession(env, argument[1], options, &session));
    std::vector<std::thread> threads;
    for (int k = 0; k < 4; ++k)
        threads.emplace_back([&, k] {
            for (int round = 0; round < 10; ++round) outputs[k] = run(sessions[k / 2], input);
        });
    for (auto &thread : threads) thread.join();
    std::ofstream written(argument[4], std::ios::binary);
    for (const auto &output : outputs)
        written.write(output.data(), static_cast<std::streamsize>(output.size()));
    for (auto *session : sessions) api->ReleaseSession(session);
    api->ReleaseSessionOptions(options);
    api->ReleaseEnv(env);
    return 0;
}
