/* Test of threads that share a context: each one finds its own results in its own streams. */
#include "softgpu/driver/internal.h"
#include "softgpu_server.h"

#include <pthread.h>

CUresult cuInit(unsigned int);
CUresult cuCtxSetCurrent(CUcontext);
CUresult cuCtxGetCurrent(CUcontext *);
CUresult cuModuleLoadData(CUmodule *, const void *);
CUresult cuModuleGetFunction(CUfunction *, CUmodule, const char *);
CUresult cuMemAlloc_v2(CUdeviceptr *, size_t);
CUresult cuMemFree_v2(CUdeviceptr);
CUresult cuMemHostAlloc(void **, size_t, unsigned int);
CUresult cuMemFreeHost(void *);
CUresult cuMemcpyDtoHAsync_v2(void *, CUdeviceptr, size_t, CUstream);
CUresult cuStreamCreate(CUstream *, unsigned int);
CUresult cuStreamSynchronize(CUstream);
CUresult cuStreamWaitEvent(CUstream, CUevent, unsigned int);
CUresult cuEventCreate(CUevent *, unsigned int);
CUresult cuEventRecord(CUevent, CUstream);
CUresult cuEventSynchronize(CUevent);
CUresult cuLaunchKernel(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream,
                        void **, void **);
CUresult cuLaunchHostFunc(CUstream, CUhostFn, void *);
CUresult cuMemGetInfo_v2(size_t *, size_t *);

enum { THREADS = 4, ROUNDS = 60, FLOATS = 256 };

static CUcontext context;
static CUfunction fill, spin;

struct check {
    const float *values;
    float expected;
    int has_run, is_correct;
};

static void verify(void *data)
{
    struct check *check = data;
    check->is_correct = check->values[0] == check->expected && check->values[FLOATS - 1] == check->expected;
    check->has_run = 1;
}

static void fill_and_copy(CUstream stream, CUdeviceptr pointer, float value, void *host)
{
    uint64_t count = FLOATS;
    void *params[] = {&pointer, &value, &count};
    EXPECT_EQ(cuLaunchKernel(fill, 1, 1, 1, 256, 1, 1, 0, stream, params, NULL), CUDA_SUCCESS);
    EXPECT_EQ(cuMemcpyDtoHAsync_v2(host, pointer, FLOATS * sizeof(float), stream), CUDA_SUCCESS);
}

static void *run_thread(void *argument)
{
    float number = (float)(intptr_t)argument * 1000;
    CUstream streams[2];
    CUevent event;
    CUdeviceptr pointer;
    void *host;
    EXPECT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
    EXPECT_EQ(cuStreamCreate(&streams[0], CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    EXPECT_EQ(cuStreamCreate(&streams[1], CU_STREAM_DEFAULT), CUDA_SUCCESS);
    EXPECT_EQ(cuEventCreate(&event, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuMemHostAlloc(&host, FLOATS * sizeof(float), 0), CUDA_SUCCESS);
    for (int round = 0; round < ROUNDS; round++) {
        float value = number + (float)round;
        struct check check = {host, value, 0, 0};
        uint64_t duration_ns = 20000;
        void *params[] = {&duration_ns};
        EXPECT_EQ(cuMemAlloc_v2(&pointer, FLOATS * sizeof(float)), CUDA_SUCCESS);
        EXPECT_EQ(cuLaunchKernel(spin, 8, 1, 1, 64, 1, 1, 0, streams[0], params, NULL), CUDA_SUCCESS);
        fill_and_copy(streams[0], pointer, value, host);
        EXPECT_EQ(cuLaunchHostFunc(streams[0], verify, &check), CUDA_SUCCESS);
        EXPECT_EQ(cuEventRecord(event, streams[0]), CUDA_SUCCESS);
        EXPECT_EQ(cuStreamWaitEvent(streams[1], event, 0), CUDA_SUCCESS);
        fill_and_copy(streams[1], pointer, -value, host);
        if (round % 2)
            EXPECT_EQ(cuEventSynchronize(event), CUDA_SUCCESS);
        EXPECT_EQ(cuStreamSynchronize(streams[1]), CUDA_SUCCESS);
        EXPECT(check.has_run && check.is_correct);
        EXPECT(((float *)host)[7] == -value);
        EXPECT_EQ(cuMemFree_v2(pointer), CUDA_SUCCESS);
    }
    EXPECT_EQ(cuMemFreeHost(host), CUDA_SUCCESS);
    return NULL;
}

static pthread_key_t late_key;
static int late_calls;

/* Runs after the driver's destructor, whose key is older: the thread has no context and can create a new one. */
static void call_after_driver_destructor(void *argument)
{
    CUcontext current = context;
    CUdeviceptr pointer;
    (void)argument;
    EXPECT_EQ(cuCtxGetCurrent(&current), CUDA_SUCCESS);
    EXPECT(current == NULL);
    EXPECT_EQ(cuMemAlloc_v2(&pointer, 16), CUDA_ERROR_INVALID_CONTEXT);
    EXPECT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
    EXPECT_EQ(cuMemAlloc_v2(&pointer, 16), CUDA_SUCCESS);
    EXPECT_EQ(cuMemFree_v2(pointer), CUDA_SUCCESS);
    late_calls++;
}

static void *exit_with_late_destructor(void *argument)
{
    EXPECT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
    EXPECT_EQ(pthread_setspecific(late_key, argument), 0);
    return NULL;
}

static void check_late_calls(void)
{
    pthread_t thread;
    EXPECT_EQ(pthread_key_create(&late_key, call_after_driver_destructor), 0);
    EXPECT_EQ(pthread_create(&thread, NULL, exit_with_late_destructor, &late_key), 0);
    pthread_join(thread, NULL);
    EXPECT_EQ(late_calls, 1);
}

int main(void)
{
    struct test_server server;
    pthread_t threads[THREADS];
    CUmodule module;
    size_t free_bytes, total_bytes;
    test_server_start(&server, "a100");
    EXPECT_EQ(cuInit(0), CUDA_SUCCESS);
    EXPECT_EQ(cuCtxCreate_v2(&context, 0, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuModuleLoadData(
                  &module, "softgpu-image 1\nkernel fill\n builtin fill\nkernel spin\n params 8\n duration_param 0\n"),
              CUDA_SUCCESS);
    EXPECT_EQ(cuModuleGetFunction(&fill, module, "fill"), CUDA_SUCCESS);
    EXPECT_EQ(cuModuleGetFunction(&spin, module, "spin"), CUDA_SUCCESS);
    for (intptr_t i = 0; i < THREADS; i++)
        EXPECT_EQ(pthread_create(&threads[i], NULL, run_thread, (void *)(i + 1)), 0);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    check_late_calls();
    EXPECT_EQ(cuMemGetInfo_v2(&free_bytes, &total_bytes), CUDA_SUCCESS);
    EXPECT_EQ(free_bytes, total_bytes);
    EXPECT_EQ(cuCtxDestroy_v2(context), CUDA_SUCCESS);
    test_server_stop(&server);
    return 0;
}
