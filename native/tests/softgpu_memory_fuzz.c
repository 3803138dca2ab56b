/* Fuzz test of device memory: no sequence of calls in any number of processes and no killed process leaks memory. */
#define _GNU_SOURCE
#include "softgpu/driver/internal.h"
#include "softgpu_server.h"

/* The driver has no public header; these are the calls under test. */
CUresult cuInit(unsigned int);
CUresult cuCtxSynchronize(void);
CUresult cuMemGetInfo_v2(size_t *, size_t *);
CUresult cuMemAlloc_v2(CUdeviceptr *, size_t);
CUresult cuMemFree_v2(CUdeviceptr);
CUresult cuMemFreeAsync(CUdeviceptr, CUstream);
CUresult cuMemsetD8Async(CUdeviceptr, unsigned char, size_t, CUstream);
CUresult cuMemCreate(CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *, unsigned long long);
CUresult cuMemRelease(CUmemGenericAllocationHandle);
CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *, void *);
CUresult cuMemAddressReserve(CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long);
CUresult cuMemAddressFree(CUdeviceptr, size_t);
CUresult cuMemMap(CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long);
CUresult cuMemUnmap(CUdeviceptr, size_t);
CUresult cuMemSetAccess(CUdeviceptr, size_t, const CUmemAccessDesc *, size_t);
CUresult cuMemExportToShareableHandle(void *, CUmemGenericAllocationHandle, CUmemAllocationHandleType,
                                      unsigned long long);
CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *, void *, CUmemAllocationHandleType);
CUresult cuMemPoolCreate(CUmemoryPool *, const CUmemPoolProps *);
CUresult cuMemPoolDestroy(CUmemoryPool);
CUresult cuMemPoolTrimTo(CUmemoryPool, size_t);
CUresult cuMemPoolGetAttribute(CUmemoryPool, CUmemPool_attribute, void *);
CUresult cuMemPoolSetAttribute(CUmemoryPool, CUmemPool_attribute, void *);
CUresult cuMemAllocFromPoolAsync(CUdeviceptr *, size_t, CUmemoryPool, CUstream);
CUresult cuMemPoolExportToShareableHandle(void *, CUmemoryPool, CUmemAllocationHandleType, unsigned long long);
CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool *, void *, CUmemAllocationHandleType, unsigned long long);
CUresult cuMemPoolExportPointer(CUmemPoolPtrExportData *, CUdeviceptr);
CUresult cuMemPoolImportPointer(CUdeviceptr *, CUmemoryPool, CUmemPoolPtrExportData *);
CUresult cuIpcGetMemHandle(CUipcMemHandle *, CUdeviceptr);
CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *, CUipcMemHandle, unsigned int);
CUresult cuIpcCloseMemHandle(CUdeviceptr);

enum { SLOTS = 6, CALLS = 3000, THREADS = 3, WORKERS = 4, KILLS = 60, UNIT = 2 << 20, RESERVED = 8 };

/* Exchange between processes: handles in shared memory, descriptors over a common socket. */
static struct exchange {
    CUipcMemHandle handles[SLOTS];
    CUmemPoolPtrExportData pointers[SLOTS];
} *exchange;
static int descriptor_socket[2];

/* State of each thread. */
static __thread uint64_t state;
static __thread CUdeviceptr plain[SLOTS], pooled[SLOTS], opened[SLOTS], space, imported_pointer;
static __thread uint64_t plain_bytes[SLOTS];
static __thread CUmemGenericAllocationHandle handles[SLOTS];
static __thread uint64_t handle_units[SLOTS];
static __thread uint64_t mapped_units[RESERVED]; /* indexed by the first unit of the mapping */
static __thread CUmemoryPool pools[SLOTS], imported_pool;

static uint64_t rng(uint64_t below)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state % below;
}

static void send_descriptor(int descriptor)
{
    char word = 'd';
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr aligned;
    } control = {{0}};
    struct iovec vector = {&word, 1};
    struct msghdr message = {.msg_iov = &vector, .msg_iovlen = 1, .msg_control = control.bytes,
                             .msg_controllen = sizeof control.bytes};
    struct cmsghdr *rights = CMSG_FIRSTHDR(&message);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(rights), &descriptor, sizeof descriptor);
    sendmsg(descriptor_socket[0], &message, MSG_DONTWAIT);
    close(descriptor);
}

static int receive_descriptor(void)
{
    char word;
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr aligned;
    } control;
    struct iovec vector = {&word, 1};
    struct msghdr message = {.msg_iov = &vector, .msg_iovlen = 1, .msg_control = control.bytes,
                             .msg_controllen = sizeof control.bytes};
    int descriptor = -1;
    if (recvmsg(descriptor_socket[1], &message, MSG_DONTWAIT) != 1 || !CMSG_FIRSTHDR(&message))
        return -1;
    memcpy(&descriptor, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof descriptor);
    return descriptor;
}

static void step_plain(size_t i)
{
    if (!plain[i]) {
        plain_bytes[i] = 1 + rng(100000);
        EXPECT_EQ(cuMemAlloc_v2(&plain[i], plain_bytes[i]), CUDA_SUCCESS);
    } else if (rng(3) == 0) {
        EXPECT_EQ(cuIpcGetMemHandle(&exchange->handles[rng(SLOTS)], plain[i]), CUDA_SUCCESS);
    } else {
        EXPECT_EQ(cuMemFree_v2(plain[i]), CUDA_SUCCESS);
        plain[i] = 0;
    }
}

/* Opens or closes memory of other processes; own or freed memory is refused. */
static void step_open(size_t i)
{
    if (!opened[i])
        cuIpcOpenMemHandle_v2(&opened[i], exchange->handles[rng(SLOTS)], 1);
    else if (cuIpcCloseMemHandle(opened[i]) == CUDA_SUCCESS)
        opened[i] = 0;
}

static void step_physical(size_t i)
{
    static const CUmemAllocationProp props = {CU_MEM_ALLOCATION_TYPE_PINNED, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                              {CU_MEM_LOCATION_TYPE_DEVICE, 0}, NULL, {0, 0, 0, {0}}};
    int descriptor;
    if (!handles[i] && rng(3) == 0) {
        descriptor = receive_descriptor();
        if (descriptor < 0)
            return;
        if (cuMemImportFromShareableHandle(&handles[i], (void *)(intptr_t)descriptor, 1) == CUDA_SUCCESS)
            handle_units[i] = 1;
        else if (!imported_pool)
            cuMemPoolImportFromShareableHandle(&imported_pool, (void *)(intptr_t)descriptor, 1, 0);
        close(descriptor);
    } else if (!handles[i]) {
        handle_units[i] = 1 + rng(3);
        EXPECT_EQ(cuMemCreate(&handles[i], handle_units[i] * UNIT, &props, 0), CUDA_SUCCESS);
    } else if (rng(4) == 0) {
        EXPECT_EQ(cuMemExportToShareableHandle(&descriptor, handles[i], 1, 0), CUDA_SUCCESS);
        send_descriptor(descriptor);
    } else {
        EXPECT_EQ(cuMemRelease(handles[i]), CUDA_SUCCESS);
        handles[i] = 0;
    }
}

static void step_mapping(size_t i)
{
    static const CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    uint64_t unit_index = rng(RESERVED), units = handle_units[i];
    CUdeviceptr address = space + unit_index * UNIT;
    if (mapped_units[unit_index]) {
        EXPECT_EQ(cuMemUnmap(address, mapped_units[unit_index] * UNIT), CUDA_SUCCESS);
        mapped_units[unit_index] = 0;
        return;
    }
    if (!handles[i] || cuMemMap(address, units * UNIT, 0, handles[i], 0) != CUDA_SUCCESS)
        return;
    mapped_units[unit_index] = units;
    if (rng(2) && cuMemSetAccess(address, units * UNIT, &access, 1) == CUDA_SUCCESS)
        EXPECT_EQ(cuMemsetD8Async(address, (unsigned char)unit_index, units * UNIT / 100, NULL), CUDA_SUCCESS);
    if (rng(3) == 0) {
        CUmemGenericAllocationHandle retained;
        EXPECT_EQ(cuMemRetainAllocationHandle(&retained, (void *)(uintptr_t)(address + rng(UNIT))), CUDA_SUCCESS);
        EXPECT_EQ(retained, handles[i]);
        EXPECT_EQ(cuMemRelease(retained), CUDA_SUCCESS);
    }
}

static void step_pool(size_t i)
{
    CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .handleTypes = (int)rng(2),
                            .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    cuuint64_t bytes = rng(3) * UNIT;
    int descriptor;
    if (!pools[i]) {
        EXPECT_EQ(cuMemPoolCreate(&pools[i], &props), CUDA_SUCCESS);
        return;
    }
    switch (rng(5)) {
    case 0:
        EXPECT_EQ(cuMemPoolDestroy(pools[i]), CUDA_SUCCESS);
        pools[i] = NULL;
        break;
    case 1:
        EXPECT_EQ(cuMemPoolTrimTo(pools[i], bytes), CUDA_SUCCESS);
        break;
    case 2:
        EXPECT_EQ(cuMemPoolSetAttribute(pools[i], CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &bytes), CUDA_SUCCESS);
        break;
    case 3:
        if (cuMemPoolExportToShareableHandle(&descriptor, pools[i], 1, 0) == CUDA_SUCCESS)
            send_descriptor(descriptor);
        break;
    default:
        if (imported_pool) {
            EXPECT_EQ(cuMemPoolDestroy(imported_pool), CUDA_SUCCESS);
            imported_pool = NULL;
        }
        break;
    }
}

static void step_pooled(size_t i)
{
    if (!pooled[i]) {
        CUmemoryPool pool = pools[rng(SLOTS)];
        if (pool)
            EXPECT_EQ(cuMemAllocFromPoolAsync(&pooled[i], 1 + rng(5000000), pool, NULL), CUDA_SUCCESS);
        return;
    }
    if (rng(4) == 0)
        EXPECT_EQ(cuMemsetD8Async(pooled[i], 1, 1, NULL), CUDA_SUCCESS);
    if (rng(4) == 0 && cuMemPoolExportPointer(&exchange->pointers[rng(SLOTS)], pooled[i]) == CUDA_SUCCESS)
        return;
    EXPECT_EQ(rng(2) ? cuMemFreeAsync(pooled[i], NULL) : cuMemFree_v2(pooled[i]), CUDA_SUCCESS);
    pooled[i] = 0;
}

static void step_imported(void)
{
    if (imported_pointer) {
        EXPECT_EQ(cuMemFree_v2(imported_pointer), CUDA_SUCCESS);
        imported_pointer = 0;
    } else if (imported_pool) {
        cuMemPoolImportPointer(&imported_pointer, imported_pool, &exchange->pointers[rng(SLOTS)]);
    }
}

static void step_randomly(void)
{
    size_t i = rng(SLOTS);
    switch (rng(8)) {
    case 0:
        step_plain(i);
        break;
    case 1:
        step_physical(i);
        break;
    case 2:
        step_mapping(i);
        break;
    case 3:
        step_pool(i);
        break;
    case 4:
    case 5:
        step_pooled(i);
        break;
    case 6:
        step_open(i);
        break;
    default:
        step_imported();
        if (rng(4) == 0)
            EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
        break;
    }
}

static void set_up(uint64_t seed)
{
    CUcontext context;
    state = seed;
    EXPECT_EQ(cuInit(0), CUDA_SUCCESS);
    EXPECT_EQ(cuCtxCreate_v2(&context, 0, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuMemAddressReserve(&space, RESERVED * (size_t)UNIT, 0, 0, 0), CUDA_SUCCESS);
}

static void release_all(void)
{
    for (size_t i = 0; i < SLOTS; i++) {
        if (plain[i])
            EXPECT_EQ(cuMemFree_v2(plain[i]), CUDA_SUCCESS);
        while (opened[i] && cuIpcCloseMemHandle(opened[i]) == CUDA_SUCCESS)
            ;
        if (handles[i])
            EXPECT_EQ(cuMemRelease(handles[i]), CUDA_SUCCESS);
        if (pooled[i])
            EXPECT_EQ(cuMemFreeAsync(pooled[i], NULL), CUDA_SUCCESS);
        if (pools[i])
            EXPECT_EQ(cuMemPoolDestroy(pools[i]), CUDA_SUCCESS);
    }
    for (size_t i = 0; i < RESERVED; i++)
        if (mapped_units[i])
            EXPECT_EQ(cuMemUnmap(space + i * UNIT, mapped_units[i] * UNIT), CUDA_SUCCESS);
    EXPECT_EQ(cuMemAddressFree(space, RESERVED * (size_t)UNIT), CUDA_SUCCESS);
    if (imported_pointer)
        EXPECT_EQ(cuMemFree_v2(imported_pointer), CUDA_SUCCESS);
    if (imported_pool)
        EXPECT_EQ(cuMemPoolDestroy(imported_pool), CUDA_SUCCESS);
    for (int i = receive_descriptor(); i >= 0; i = receive_descriptor())
        close(i);
    EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
}

static void *run_thread(void *seed)
{
    set_up((uintptr_t)seed);
    for (int i = 0; i < CALLS; i++)
        step_randomly();
    release_all();
    return NULL;
}

/* After any sequence of calls in concurrent threads of a process, all memory is free. */
static void run_process(uint64_t seed)
{
    size_t free_bytes, total_bytes;
    pthread_t threads[THREADS];
    for (uint64_t i = 0; i < THREADS; i++)
        EXPECT_EQ(pthread_create(&threads[i], NULL, run_thread, (void *)(uintptr_t)(seed * THREADS + i)), 0);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    set_up(seed);
    EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
    EXPECT_EQ(cuMemGetInfo_v2(&free_bytes, &total_bytes), CUDA_SUCCESS);
    EXPECT_EQ(free_bytes, total_bytes);
    exit(0);
}

static pid_t start_worker(uint64_t seed)
{
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        set_up(seed);
        for (;;)
            step_randomly();
    }
    return pid;
}

/* The server notices deaths with a delay, so repeat the request. */
static int all_memory_is_free(struct test_client *client)
{
    struct sg_request request = {.kind = SG_MEMORY_INFO};
    struct sg_reply reply = {0};
    for (int tries = 0; tries < 5000; tries++) {
        EXPECT(send(client->socket, &request, sizeof request, 0) == (ssize_t)sizeof request);
        EXPECT(recv(client->socket, &reply, sizeof reply, 0) == (ssize_t)sizeof reply);
        if (reply.a == reply.b)
            return 1;
        usleep(1000);
    }
    return 0;
}

static void check_killed_processes(struct test_client *client)
{
    pid_t pids[WORKERS];
    int status;
    for (int i = 0; i < WORKERS; i++)
        pids[i] = start_worker(1000 + (uint64_t)i);
    for (int i = 0; i < KILLS; i++) {
        int victim = (int)rng(WORKERS);
        usleep((useconds_t)rng(40000));
        EXPECT_EQ(kill(pids[victim], SIGKILL), 0);
        EXPECT(waitpid(pids[victim], &status, 0) == pids[victim]);
        EXPECT(WIFSIGNALED(status)); /* it was killed and did not fail before */
        pids[victim] = start_worker(2000 + (uint64_t)i);
    }
    for (int i = 0; i < WORKERS; i++) {
        kill(pids[i], SIGKILL);
        EXPECT(waitpid(pids[i], &status, 0) == pids[i]);
        EXPECT(WIFSIGNALED(status));
    }
    EXPECT(all_memory_is_free(client));
}

int main(int argc, char **argv)
{
    struct test_server server;
    uint64_t rounds = argc > 1 ? strtoull(argv[1], NULL, 10) : 3;
    int status;
    exchange = mmap(NULL, sizeof *exchange, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    EXPECT(exchange != MAP_FAILED && socketpair(AF_UNIX, SOCK_DGRAM, 0, descriptor_socket) == 0);
    test_server_start(&server, "v100");
    struct test_client client = test_client_open(server.path);
    state = 7;
    for (uint64_t seed = 1; seed <= rounds; seed++) {
        pid_t pid = fork();
        if (pid == 0)
            run_process(seed);
        EXPECT(waitpid(pid, &status, 0) == pid);
        EXPECT_EQ(status, 0);
        EXPECT(all_memory_is_free(&client));
    }
    check_killed_processes(&client);
    close(client.socket);
    test_server_stop(&server);
    return 0;
}
