/* Fuzz of call sequences: random calls with good, stale and nonsense arguments; each answer is a code, none a crash. */
#include "softgpu/face.h"
#include "softgpu_server.h"

/* The face has no header of its own; these are the forms under test. */
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

enum { PLACES = 8, CALLS = 200000 };

static uint64_t state;
static CUcontext contexts[PLACES];
static CUmodule modules[PLACES];
static CUfunction functions[PLACES];
static CUstream streams[PLACES];
static CUevent events[PLACES];
static CUdeviceptr pointers[PLACES];
static uint64_t sizes[PLACES];
static int host_ran;

static uint64_t dice(uint64_t below)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state % below;
}

#define ANY(array) (array[dice(PLACES)])

/* Mostly one of ours, alive or not; now and then something that never was one. */
static void *bogus(void *handle)
{
    static uintptr_t nonsense[] = {0, 1, 2, 3, 8, 0x12340, UINTPTR_MAX, 0x1000};
    switch (dice(24)) {
    case 0:
        return (void *)nonsense[dice(8)];
    case 1:
        return (char *)handle + dice(64);
    case 2:
        return ANY(contexts);
    default:
        return handle;
    }
}

static CUstream a_stream(void)
{
    static const uintptr_t defaults[] = {0, 1, 2};
    return dice(4) == 0 ? (CUstream)defaults[dice(3)] : bogus(ANY(streams));
}

static uint64_t a_size(void)
{
    static const uint64_t sizes_[] = {0, 1, 3, 64, 4096, 100000, UINT64_MAX, UINT64_C(1) << 63, UINT64_C(1) << 40};
    return sizes_[dice(9)];
}

/* Never the address of an object: to the unified copies that is host memory like any other. */
static CUdeviceptr a_pointer(void)
{
    static const CUdeviceptr nonsense[] = {0, 1, 0x12340, UINT64_MAX, 0x1000, UINT64_C(1) << 62};
    return dice(12) == 0 ? nonsense[dice(6)] : ANY(pointers) + dice(3) * 16;
}

static void note(void *data)
{
    (void)data;
    __atomic_fetch_add(&host_ran, 1, __ATOMIC_RELAXED);
}

static int answered[1000];

static void told(CUresult result)
{
    EXPECT(result < 1000);
    answered[result]++;
}

static void objects(void)
{
    static const char image[] =
        "softgpu-image 1\nkernel t\n block_ns 500\nkernel f\n builtin fill\nkernel p\n params 8 4 8\n"
        " duration_param 2\n jitter 10%\n";
    static const char *const names[] = {"t", "f", "p", "absent"};
    size_t i = dice(PLACES);
    switch (dice(14)) {
    case 0:
        if (dice(20) == 0)
            told(cuCtxCreate_v2(&contexts[i], (unsigned)dice(10), (int)dice(2)));
        break;
    case 1:
        if (dice(12) == 0)
            told(cuCtxDestroy_v2(bogus(contexts[i])));
        break;
    case 2:
        told(cuCtxSetCurrent(bogus(contexts[i])));
        break;
    case 3:
        told(cuModuleLoadData(&modules[i], image));
        break;
    case 4:
        if (dice(4) == 0)
            told(cuModuleUnload(bogus(modules[i])));
        break;
    case 5:
        told(cuModuleGetFunction(&functions[i], bogus(ANY(modules)), names[dice(4)]));
        break;
    case 6:
        told(cuStreamCreateWithPriority(&streams[i], (unsigned)dice(3), (int)dice(20) - 10));
        break;
    case 7:
        told(cuStreamDestroy_v2(bogus(streams[i])));
        break;
    case 8:
        told(cuEventCreate(&events[i], (unsigned)dice(5)));
        break;
    case 9:
        told(cuEventDestroy_v2(bogus(events[i])));
        break;
    case 10:
        if (cuMemAlloc_v2(&pointers[i], sizes[i] = a_size()) != CUDA_SUCCESS)
            pointers[i] = 0;
        break;
    case 11:
        told(cuMemFree_v2(a_pointer()));
        break;
    case 12:
        told(cuMemAllocAsync(&pointers[i], 1 + dice(10000), a_stream()));
        break;
    default:
        told(cuMemFreeAsync(a_pointer(), a_stream()));
    }
}

static void work(void)
{
    static char host[4096];
    unsigned grid = (unsigned)dice(50), block = (unsigned)dice(300);
    uint64_t pointer = a_pointer(), count = dice(5000);
    float value = 1;
    void *values[] = {&pointer, &value, &count};
    if (dice(10))
        count %= 200;
    CUDA_MEMCPY2D flat = {.srcMemoryType = (int)dice(5),
                          .dstMemoryType = (int)dice(5),
                          .srcHost = host,
                          .dstHost = NULL,
                          .srcDevice = a_pointer(),
                          .dstDevice = a_pointer(),
                          .srcPitch = dice(200),
                          .dstPitch = dice(200),
                          .WidthInBytes = dice(100),
                          .Height = dice(20),
                          .srcY = dice(3),
                          .dstXInBytes = dice(3)};
    CUDA_MEMCPY3D solid = {.srcMemoryType = 2, .dstMemoryType = 2, .srcDevice = a_pointer(), .dstDevice = a_pointer(),
                           .srcPitch = dice(200), .srcHeight = a_size(), .dstPitch = dice(200), .dstHeight = dice(20),
                           .WidthInBytes = dice(100), .Height = dice(10), .Depth = dice(4), .srcZ = dice(2)};
    switch (dice(9)) {
    case 0:
    case 1:
        told(cuLaunchKernel(bogus(ANY(functions)), grid, 1, 1, block, 1, 1, (unsigned)dice(60000), a_stream(),
                       dice(20) ? values : NULL, NULL));
        break;
    case 2:
        told(cuMemcpyAsync(a_pointer(), a_pointer(), dice(20000), a_stream()));
        break;
    case 3:
        told(cuMemsetD8Async(a_pointer(), (unsigned char)dice(256), a_size(), a_stream()));
        break;
    case 4:
        told(cuMemsetD2D32_v2(a_pointer(), dice(512), 7, dice(100), dice(30)));
        break;
    case 5:
        told(cuMemcpy2D_v2(&flat));
        break;
    case 6:
        told(cuMemcpy3DAsync_v2(&solid, a_stream()));
        break;
    case 7:
        told(cuLaunchHostFunc(a_stream(), dice(9) ? note : NULL, NULL));
        break;
    default:
        told(cuMemcpy(a_pointer(), a_pointer(), dice(9000)));
    }
}

static void questions(void)
{
    float milliseconds;
    int a, b;
    char answer[64];
    size_t free_bytes, total_bytes;
    switch (dice(10)) {
    case 0:
        told(cuStreamSynchronize(a_stream()));
        break;
    case 1:
        told(cuStreamQuery(a_stream()));
        break;
    case 2:
        told(cuStreamWaitEvent(a_stream(), bogus(ANY(events)), (unsigned)dice(3)));
        break;
    case 3:
        told(cuEventRecord(bogus(ANY(events)), a_stream()));
        break;
    case 4:
        told(cuEventQuery(bogus(ANY(events))));
        break;
    case 5:
        told(cuEventSynchronize(bogus(ANY(events))));
        break;
    case 6:
        told(cuEventElapsedTime(&milliseconds, bogus(ANY(events)), bogus(ANY(events))));
        break;
    case 7:
        told(cuPointerGetAttribute(answer, (int)dice(25), a_pointer()));
        break;
    case 8:
        told(cuOccupancyMaxPotentialBlockSize(&a, &b, bogus(ANY(functions)), NULL, a_size(), (int)dice(2000) - 10));
        break;
    default:
        told(cuMemGetInfo_v2(&free_bytes, &total_bytes));
        if (dice(20) == 0)
            told(cuCtxSynchronize());
    }
}

/* One process's calls, until `calls` are made or it faulted a while ago: a faulted process answers nothing else. */
static int one_process(int calls)
{
    int made = 0, left_after_fault = 300;
    EXPECT_EQ(cuInit(0), CUDA_SUCCESS);
    for (int i = 0; i < PLACES; i++)
        EXPECT_EQ(cuCtxCreate_v2(&contexts[i], 0, 0), CUDA_SUCCESS);
    for (; made < calls && left_after_fault; made++) {
        left_after_fault -= sg_trouble(&sg_devices[0].link) != CUDA_SUCCESS;
        switch (dice(3)) {
        case 0:
            objects();
            break;
        case 1:
            work();
            break;
        default:
            questions();
        }
    }
    /* Whatever happened, everything can be given back. */
    for (int i = 0; i < PLACES; i++)
        cuCtxDestroy_v2(contexts[i]);
    cuDevicePrimaryCtxReset_v2(0);
    for (CUcontext context = sg_each(SG_CONTEXT, NULL); context; context = sg_each(SG_CONTEXT, NULL))
        EXPECT_EQ(cuCtxDestroy_v2(context), CUDA_SUCCESS);
    return made;
}

static void expect_all_memory_free(const char *path)
{
    struct test_line line = test_line_open(path);
    struct sg_request request = {.kind = SG_MEMORY_INFO};
    struct sg_reply reply;
    EXPECT(send(line.socket, &request, sizeof request, 0) == (ssize_t)sizeof request);
    EXPECT(recv(line.socket, &reply, sizeof reply, 0) == (ssize_t)sizeof reply);
    EXPECT_EQ(reply.a, reply.b);
    close(line.socket);
    munmap(line.ring, sizeof *line.ring);
}

/* The books of all processes. */
struct tally {
    int answered[1000];
    int calls, host_ran, processes;
};

int main(int argc, char **argv)
{
    struct test_server server;
    int calls = argc > 1 ? atoi(argv[1]) : CALLS;
    uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    struct tally *tally = mmap(NULL, sizeof *tally, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    test_server_start(&server, "v100");
    while (tally->calls < calls) {
        int status;
        pid_t child = fork();
        if (child == 0) {
            state = (seed + (uint64_t)tally->processes) * UINT64_C(0x9e3779b97f4a7c15) + 1;
            tally->processes++;
            tally->calls += one_process(calls - tally->calls);
            expect_all_memory_free(server.path);
            for (int i = 0; i < 1000; i++)
                tally->answered[i] += answered[i];
            tally->host_ran += host_ran;
            exit(0); /* with the sanitizer's look for leaks */
        }
        EXPECT(waitpid(child, &status, 0) == child);
        EXPECT_EQ(status, 0);
    }
    test_server_stop(&server);
    /* A fuzz whose calls are all refused shows nothing. */
    EXPECT(tally->answered[CUDA_SUCCESS] > calls / 4 && tally->host_ran > calls / 200 && tally->processes > 1);
    printf("%d calls of %d processes, %d done, %d host functions\n", calls, tally->processes,
           tally->answered[CUDA_SUCCESS], tally->host_ran);
    for (int i = 1; i < 1000; i++)
        if (tally->answered[i])
            printf("  %d answered %d\n", tally->answered[i], i);
    return 0;
}
