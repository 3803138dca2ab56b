/* Physical memory is released once, however often and by whatever handle it is released. */
#include "hook_tenant.h"

#include <pthread.h>
#include <sys/wait.h>

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes, const CUmemAllocationProp *props,
                     unsigned long long flags);
CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address);
CUresult cuMemRelease(CUmemGenericAllocationHandle handle);
CUresult cuMemMap(CUdeviceptr pointer, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags);
CUresult cuMemUnmap(CUdeviceptr pointer, size_t bytes);

/* ---- a driver that returns a new number for every handle ---------------------------------------------------------- */

static _Atomic uint64_t last_handle;
static _Atomic uint64_t live_handles;

static CUresult driver_create(CUmemGenericAllocationHandle *handle, size_t bytes, const CUmemAllocationProp *props,
                              unsigned long long flags)
{
    (void)bytes, (void)props, (void)flags;
    *handle = ++last_handle;
    live_handles++;
    return CUDA_SUCCESS;
}

static CUresult driver_retain(CUmemGenericAllocationHandle *handle, void *address)
{
    (void)address;
    *handle = ++last_handle;
    live_handles++;
    return CUDA_SUCCESS;
}

static CUresult driver_release(CUmemGenericAllocationHandle handle)
{
    uint64_t count = live_handles;
    (void)handle;
    while (count && !atomic_compare_exchange_weak(&live_handles, &count, count - 1))
        ;
    return count ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

static CUresult driver_map(CUdeviceptr pointer, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
                           unsigned long long flags)
{
    (void)pointer, (void)bytes, (void)offset, (void)handle, (void)flags;
    return CUDA_SUCCESS;
}

static CUresult driver_unmap(CUdeviceptr pointer, size_t bytes)
{
    (void)pointer, (void)bytes;
    return CUDA_SUCCESS;
}

static void make_physical_driver(void)
{
    EXPECT_EQ(cuMemFree_v2(1), CUDA_SUCCESS); /* finds the driver */
    ct_next[CT_cuMemCreate] = (void *)driver_create;
    ct_next[CT_cuMemRetainAllocationHandle] = (void *)driver_retain;
    ct_next[CT_cuMemRelease] = (void *)driver_release;
    ct_next[CT_cuMemMap] = (void *)driver_map;
    ct_next[CT_cuMemUnmap] = (void *)driver_unmap;
}

static const CUmemAllocationProp ON_DEVICE = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};

static void memory_with_two_handles_is_released_once(void)
{
    CUmemGenericAllocationHandle first, second, next;
    struct ct_holding holding;
    make_tenant(64 * KIB, false);
    make_physical_driver();
    EXPECT_EQ(cuMemCreate(&first, 4 * KIB, &ON_DEVICE, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuMemMap(0x10000, 4 * KIB, 0, first, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuMemRetainAllocationHandle(&second, (void *)(uintptr_t)0x10000), CUDA_SUCCESS);
    EXPECT(first != second);
    EXPECT_EQ(cuMemRelease(first), CUDA_SUCCESS);
    EXPECT_EQ(cuMemUnmap(0x10000, 4 * KIB), CUDA_SUCCESS);
    EXPECT_EQ(held(), 4 * KIB);
    EXPECT_EQ(cuMemRelease(second), CUDA_SUCCESS);
    EXPECT_EQ(held(), 0);
    EXPECT(!ct_holding_find(ct_memory(), CT_HELD_PHYSICAL, first, &holding)); /* the number may be reused */
    EXPECT(!ct_holding_find(ct_memory(), CT_HELD_PHYSICAL, second, &holding));
    EXPECT_EQ(cuMemRelease(first), CUDA_ERROR_NOT_FOUND);
    EXPECT_EQ(cuMemCreate(&next, 8 * KIB, &ON_DEVICE, 0), CUDA_SUCCESS);
    EXPECT_EQ(held(), 8 * KIB);
    EXPECT_EQ(cuMemRelease(next), CUDA_SUCCESS);
    EXPECT_EQ(held(), 0);
}

static void *release_in_thread(void *handle)
{
    cuMemRelease(*(CUmemGenericAllocationHandle *)handle);
    return NULL;
}

/* An incorrect program: the driver refuses the second release, and the accounting must stay consistent. */
static void handle_released_twice_concurrently_counts_once(void)
{
    make_tenant(64 * KIB, false);
    make_physical_driver();
    for (int round = 0; round < 300; round++) {
        CUmemGenericAllocationHandle handle;
        pthread_t threads[2];
        EXPECT_EQ(cuMemCreate(&handle, 4 * KIB, &ON_DEVICE, 0), CUDA_SUCCESS);
        for (int i = 0; i < 2; i++)
            EXPECT_EQ(pthread_create(&threads[i], NULL, release_in_thread, &handle), 0);
        for (int i = 0; i < 2; i++)
            EXPECT_EQ(pthread_join(threads[i], NULL), 0);
        EXPECT_EQ(held(), 0);
    }
}

/* Runs each case in a separate process. */
int main(void)
{
    static void (*const cases[])(void) = {
        memory_with_two_handles_is_released_once,
        handle_released_twice_concurrently_counts_once,
    };
    test_hook_open("0", "8");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int status;
        pid_t child = fork();
        if (child == 0) {
            cases[i]();
            _exit(0);
        }
        EXPECT_EQ(waitpid(child, &status, 0), child);
        if (status)
            fprintf(stderr, "case %zu ended with %d\n", i, status);
        EXPECT_EQ(status, 0);
    }
    EXPECT_EQ(test_hook_close(), 0);
    return 0;
}
