/* Fuzz test of call sequences with valid, stale and invalid arguments: every call returns a code, and none crashes. */
#include "softgpu/driver/internal.h"
#include "softgpu_server.h"

/* The driver has no public header; these are the calls under test. */
CUresult cuInit(unsigned int);
CUresult cuCtxCreate_v2(CUcontext *, unsigned int, CUdevice);
CUresult cuCtxDestroy_v2(CUcontext);
CUresult cuCtxSetCurrent(CUcontext);
CUresult cuCtxSynchronize(void);
CUresult cuDevicePrimaryCtxRetain(CUcontext *, CUdevice);
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice);
CUresult cuDevicePrimaryCtxReset_v2(CUdevice);
CUresult cuModuleLoadData(CUmodule *, const void *);
CUresult cuModuleUnload(CUmodule);
CUresult cuModuleGetFunction(CUfunction *, CUmodule, const char *);
CUresult cuMemAlloc_v2(CUdeviceptr *, size_t);
CUresult cuMemAllocManaged(CUdeviceptr *, size_t, unsigned int);
CUresult cuMemHostAlloc(void **, size_t, unsigned int);
CUresult cuMemFreeHost(void *);
CUresult cuMemFree_v2(CUdeviceptr);
CUresult cuMemAllocAsync(CUdeviceptr *, size_t, CUstream);
CUresult cuMemFreeAsync(CUdeviceptr, CUstream);
CUresult cuMemcpyAsync(CUdeviceptr, CUdeviceptr, size_t, CUstream);
CUresult cuMemcpy(CUdeviceptr, CUdeviceptr, size_t);
CUresult cuMemcpy2D_v2(const CUDA_MEMCPY2D *);
CUresult cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D *, CUstream);
CUresult cuMemsetD8Async(CUdeviceptr, unsigned char, size_t, CUstream);
CUresult cuMemsetD2D32_v2(CUdeviceptr, size_t, unsigned int, size_t, size_t);
CUresult cuStreamCreateWithPriority(CUstream *, unsigned int, int);
CUresult cuStreamDestroy_v2(CUstream);
CUresult cuStreamSynchronize(CUstream);
CUresult cuStreamQuery(CUstream);
CUresult cuStreamWaitEvent(CUstream, CUevent, unsigned int);
CUresult cuEventCreate(CUevent *, unsigned int);
CUresult cuEventDestroy_v2(CUevent);
CUresult cuEventRecord(CUevent, CUstream);
CUresult cuEventQuery(CUevent);
CUresult cuEventSynchronize(CUevent);
CUresult cuEventElapsedTime(float *, CUevent, CUevent);
CUresult cuLaunchKernel(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream,
                        void **, void **);
CUresult cuLaunchHostFunc(CUstream, CUhostFn, void *);
CUresult cuPointerGetAttribute(void *, CUpointer_attribute, CUdeviceptr);
CUresult cuOccupancyMaxPotentialBlockSize(int *, int *, CUfunction, CUoccupancyB2DSize, size_t, int);
CUresult cuMemGetInfo_v2(size_t *, size_t *);

enum { SLOTS = 8, CALLS = 200000 };

static uint64_t state;
static CUcontext contexts[SLOTS];
static CUmodule modules[SLOTS];
static CUfunction functions[SLOTS];
static CUstream streams[SLOTS];
static CUevent events[SLOTS];
static CUdeviceptr pointers[SLOTS];
static uint64_t sizes[SLOTS];
static int host_function_count;

static uint64_t rng(uint64_t below)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state % below;
}

#define ANY(array) (array[rng(SLOTS)])

/* Returns usually the handle, valid or stale; sometimes an invalid value. */
static void *maybe_invalid(void *handle)
{
    static uintptr_t invalid[] = {0, 1, 2, 3, 8, 0x12340, UINTPTR_MAX, 0x1000};
    switch (rng(24)) {
    case 0:
        return (void *)invalid[rng(8)];
    case 1:
        return (char *)handle + rng(64);
    case 2:
        return ANY(contexts);
    default:
        return handle;
    }
}

static CUstream random_stream(void)
{
    static const uintptr_t defaults[] = {0, 1, 2};
    return rng(4) == 0 ? (CUstream)defaults[rng(3)] : maybe_invalid(ANY(streams));
}

static uint64_t random_size(void)
{
    static const uint64_t edges[] = {0, 1, 3, 64, 4096, 100000, UINT64_MAX, UINT64_C(1) << 63, UINT64_C(1) << 40};
    return edges[rng(9)];
}

/* Returns a device pointer or an invalid one; never the address of an object, because unified copies treat that as host
 * memory. */
static CUdeviceptr random_pointer(void)
{
    static const CUdeviceptr invalid[] = {0, 1, 0x12340, UINT64_MAX, 0x1000, UINT64_C(1) << 62};
    return rng(12) == 0 ? invalid[rng(6)] : ANY(pointers) + rng(3) * 16;
}

static void count_run(void *data)
{
    (void)data;
    __atomic_fetch_add(&host_function_count, 1, __ATOMIC_RELAXED);
}

static int result_counts[1000];

static void count_result(CUresult result)
{
    EXPECT(result < 1000);
    result_counts[result]++;
}

static void change_objects(void)
{
    static const char image[] =
        "softgpu-image 1\nkernel t\n block_ns 500\nkernel f\n builtin fill\nkernel p\n params 8 4 8\n"
        " duration_param 2\n jitter 10%\n";
    static const char *const names[] = {"t", "f", "p", "absent"};
    size_t i = rng(SLOTS);
    switch (rng(14)) {
    case 0:
        if (rng(20) == 0)
            count_result(cuCtxCreate_v2(&contexts[i], (unsigned)rng(10), (int)rng(2)));
        break;
    case 1:
        if (rng(12) == 0)
            count_result(cuCtxDestroy_v2(maybe_invalid(contexts[i])));
        break;
    case 2:
        count_result(cuCtxSetCurrent(maybe_invalid(contexts[i])));
        break;
    case 3:
        count_result(cuModuleLoadData(&modules[i], image));
        break;
    case 4:
        if (rng(4) == 0)
            count_result(cuModuleUnload(maybe_invalid(modules[i])));
        break;
    case 5:
        count_result(cuModuleGetFunction(&functions[i], maybe_invalid(ANY(modules)), names[rng(4)]));
        break;
    case 6:
        count_result(cuStreamCreateWithPriority(&streams[i], (unsigned)rng(3), (int)rng(20) - 10));
        break;
    case 7:
        count_result(cuStreamDestroy_v2(maybe_invalid(streams[i])));
        break;
    case 8:
        count_result(cuEventCreate(&events[i], (unsigned)rng(5)));
        break;
    case 9:
        count_result(cuEventDestroy_v2(maybe_invalid(events[i])));
        break;
    case 10:
        if (cuMemAlloc_v2(&pointers[i], sizes[i] = random_size()) != CUDA_SUCCESS)
            pointers[i] = 0;
        break;
    case 11:
        count_result(cuMemFree_v2(random_pointer()));
        break;
    case 12:
        count_result(cuMemAllocAsync(&pointers[i], 1 + rng(10000), random_stream()));
        break;
    default:
        count_result(cuMemFreeAsync(random_pointer(), random_stream()));
    }
}

static void submit_work(void)
{
    static char host[4096];
    unsigned grid = (unsigned)rng(50), block = (unsigned)rng(300);
    uint64_t pointer = random_pointer(), count = rng(5000);
    float value = 1;
    void *values[] = {&pointer, &value, &count};
    if (rng(10))
        count %= 200;
    CUDA_MEMCPY2D copy_2d = {.srcMemoryType = (int)rng(5),
                             .dstMemoryType = (int)rng(5),
                             .srcHost = host,
                             .dstHost = NULL,
                             .srcDevice = random_pointer(),
                             .dstDevice = random_pointer(),
                             .srcPitch = rng(200),
                             .dstPitch = rng(200),
                             .WidthInBytes = rng(100),
                             .Height = rng(20),
                             .srcY = rng(3),
                             .dstXInBytes = rng(3)};
    CUDA_MEMCPY3D copy_3d = {.srcMemoryType = 2, .dstMemoryType = 2, .srcDevice = random_pointer(),
                             .dstDevice = random_pointer(),
                           .srcPitch = rng(200), .srcHeight = random_size(), .dstPitch = rng(200), .dstHeight = rng(20),
                             .WidthInBytes = rng(100), .Height = rng(10), .Depth = rng(4), .srcZ = rng(2)};
    switch (rng(9)) {
    case 0:
    case 1:
        count_result(cuLaunchKernel(maybe_invalid(ANY(functions)), grid, 1, 1, block, 1, 1, (unsigned)rng(60000),
                                    random_stream(), rng(20) ? values : NULL, NULL));
        break;
    case 2:
        count_result(cuMemcpyAsync(random_pointer(), random_pointer(), rng(20000), random_stream()));
        break;
    case 3:
        count_result(cuMemsetD8Async(random_pointer(), (unsigned char)rng(256), random_size(), random_stream()));
        break;
    case 4:
        count_result(cuMemsetD2D32_v2(random_pointer(), rng(512), 7, rng(100), rng(30)));
        break;
    case 5:
        count_result(cuMemcpy2D_v2(&copy_2d));
        break;
    case 6:
        count_result(cuMemcpy3DAsync_v2(&copy_3d, random_stream()));
        break;
    case 7:
        count_result(cuLaunchHostFunc(random_stream(), rng(9) ? count_run : NULL, NULL));
        break;
    default:
        count_result(cuMemcpy(random_pointer(), random_pointer(), rng(9000)));
    }
}

static void query_randomly(void)
{
    float milliseconds;
    int a, b;
    char answer[64];
    size_t free_bytes, total_bytes;
    switch (rng(10)) {
    case 0:
        count_result(cuStreamSynchronize(random_stream()));
        break;
    case 1:
        count_result(cuStreamQuery(random_stream()));
        break;
    case 2:
        count_result(cuStreamWaitEvent(random_stream(), maybe_invalid(ANY(events)), (unsigned)rng(3)));
        break;
    case 3:
        count_result(cuEventRecord(maybe_invalid(ANY(events)), random_stream()));
        break;
    case 4:
        count_result(cuEventQuery(maybe_invalid(ANY(events))));
        break;
    case 5:
        count_result(cuEventSynchronize(maybe_invalid(ANY(events))));
        break;
    case 6:
        count_result(cuEventElapsedTime(&milliseconds, maybe_invalid(ANY(events)), maybe_invalid(ANY(events))));
        break;
    case 7:
        count_result(cuPointerGetAttribute(answer, (int)rng(25), random_pointer()));
        break;
    case 8:
        count_result(cuOccupancyMaxPotentialBlockSize(&a, &b, maybe_invalid(ANY(functions)), NULL, random_size(),
                                                      (int)rng(2000) - 10));
        break;
    default:
        count_result(cuMemGetInfo_v2(&free_bytes, &total_bytes));
        if (rng(20) == 0)
            count_result(cuCtxSynchronize());
    }
}

/* Makes calls in this process until there were `calls`, or until some time after a fault, because a failed process only
 * returns errors. Returns the number of calls. */
static int run_calls(int calls)
{
    int call_count = 0, calls_after_fault = 300;
    EXPECT_EQ(cuInit(0), CUDA_SUCCESS);
    for (int i = 0; i < SLOTS; i++)
        EXPECT_EQ(cuCtxCreate_v2(&contexts[i], 0, 0), CUDA_SUCCESS);
    for (; call_count < calls && calls_after_fault; call_count++) {
        calls_after_fault -= sg_connection_status(&sg_devices[0].connection) != CUDA_SUCCESS;
        switch (rng(3)) {
        case 0:
            change_objects();
            break;
        case 1:
            submit_work();
            break;
        default:
            query_randomly();
        }
    }
    /* Everything can be released in any state. */
    for (int i = 0; i < SLOTS; i++)
        cuCtxDestroy_v2(contexts[i]);
    cuDevicePrimaryCtxReset_v2(0);
    for (CUcontext context = sg_each(SG_CONTEXT, NULL); context; context = sg_each(SG_CONTEXT, NULL))
        EXPECT_EQ(cuCtxDestroy_v2(context), CUDA_SUCCESS);
    return call_count;
}

static void expect_all_memory_free(const char *path)
{
    struct test_client client = test_client_open(path);
    struct sg_request request = {.kind = SG_MEMORY_INFO};
    struct sg_reply reply;
    EXPECT(send(client.socket, &request, sizeof request, 0) == (ssize_t)sizeof request);
    EXPECT(recv(client.socket, &reply, sizeof reply, 0) == (ssize_t)sizeof reply);
    EXPECT_EQ(reply.a, reply.b);
    close(client.socket);
    munmap(client.ring, sizeof *client.ring);
}

/* Totals of all processes. */
struct totals {
    int result_counts[1000];
    int calls, host_function_count, processes;
};

int main(int argc, char **argv)
{
    struct test_server server;
    int calls = argc > 1 ? atoi(argv[1]) : CALLS;
    uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    struct totals *totals = mmap(NULL, sizeof *totals, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    test_server_start(&server, "v100");
    while (totals->calls < calls) {
        int status;
        pid_t child = fork();
        if (child == 0) {
            state = (seed + (uint64_t)totals->processes) * UINT64_C(0x9e3779b97f4a7c15) + 1;
            totals->processes++;
            totals->calls += run_calls(calls - totals->calls);
            expect_all_memory_free(server.path);
            for (int i = 0; i < 1000; i++)
                totals->result_counts[i] += result_counts[i];
            totals->host_function_count += host_function_count;
            exit(0); /* with a leak check by the sanitizer */
        }
        EXPECT(waitpid(child, &status, 0) == child);
        EXPECT_EQ(status, 0);
    }
    test_server_stop(&server);
    /* Enough calls must succeed for the test to be meaningful. */
    EXPECT(totals->result_counts[CUDA_SUCCESS] > calls / 4 && totals->host_function_count > calls / 200 &&
           totals->processes > 1);
    printf("%d calls of %d processes, %d successful calls, %d host functions\n", calls, totals->processes,
           totals->result_counts[CUDA_SUCCESS], totals->host_function_count);
    for (int i = 1; i < 1000; i++)
        if (totals->result_counts[i])
            printf("  %d calls returned %d\n", totals->result_counts[i], i);
    return 0;
}
