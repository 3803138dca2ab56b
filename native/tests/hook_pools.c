/* Pools that grow in unknown steps, in several threads: the counted bytes equal what they have reserved, in the end and
 * at every refusal. */
#include "hook_tenant.h"

#include <pthread.h>

CUresult cuMemAllocFromPoolAsync(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, CUstream stream);
CUresult cuMemFreeAsync(CUdeviceptr pointer, CUstream stream);
CUresult cuMemPoolDestroy(CUmemoryPool pool);
CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t bytes);
CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes, const CUmemAllocationProp *props,
                     unsigned long long flags);
CUresult cuMemRelease(CUmemGenericAllocationHandle handle);
CUresult cuMemMapArrayAsync(CUarrayMapInfo *infos, unsigned int number, CUstream stream);

enum { MIB = 1 << 20 };
enum { THREADS = 4, ROUNDS = 4000, HELD = 8, POOLS = 3 };

static uint64_t counted_bytes(void)
{
    return line()->allocated_bytes;
}

/* ---- a driver with pools ------------------------------------------------------------------------------------------ */

/* It grows in undocumented steps, and keeps what it has reserved until it is trimmed. */
static struct {
    uint64_t used_bytes, reserved_bytes;
    int is_destroyed;
} pools[POOLS + 1];
static uint64_t step_bytes, next_pointer = 1 << 20;
static pthread_mutex_t driver_lock = PTHREAD_MUTEX_INITIALIZER;

/* A pointer encodes its pool and its size. */
static CUresult driver_allocate(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, CUstream stream)
{
    uintptr_t number = (uintptr_t)pool;
    (void)stream;
    pthread_mutex_lock(&driver_lock);
    EXPECT(number <= POOLS && !pools[number].is_destroyed);
    pools[number].used_bytes += bytes;
    while (pools[number].reserved_bytes < pools[number].used_bytes)
        pools[number].reserved_bytes += step_bytes;
    next_pointer += 1 << 12;
    *pointer = next_pointer << 32 | (bytes / MIB) << 8 | number;
    pthread_mutex_unlock(&driver_lock);
    return CUDA_SUCCESS;
}

static CUresult driver_free(CUdeviceptr pointer, CUstream stream)
{
    (void)stream;
    pthread_mutex_lock(&driver_lock);
    pools[pointer & 0xff].used_bytes -= (pointer >> 8 & 0xffffff) * MIB;
    pthread_mutex_unlock(&driver_lock);
    return CUDA_SUCCESS;
}

static CUresult driver_attribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value)
{
    pthread_mutex_lock(&driver_lock);
    EXPECT(!pools[(uintptr_t)pool].is_destroyed); /* a destroyed pool is not queried */
    *(cuuint64_t *)value = attribute == CU_MEMPOOL_ATTR_USED_MEM_CURRENT ? pools[(uintptr_t)pool].used_bytes
                                                                         : pools[(uintptr_t)pool].reserved_bytes;
    pthread_mutex_unlock(&driver_lock);
    return CUDA_SUCCESS;
}

static CUresult driver_trim(CUmemoryPool pool, size_t bytes)
{
    uintptr_t number = (uintptr_t)pool;
    pthread_mutex_lock(&driver_lock);
    EXPECT(!pools[number].is_destroyed);
    uint64_t minimum = (pools[number].used_bytes + step_bytes - 1) / step_bytes * step_bytes;
    if (pools[number].reserved_bytes > minimum && pools[number].reserved_bytes > bytes)
        pools[number].reserved_bytes = minimum > bytes ? minimum : bytes;
    pthread_mutex_unlock(&driver_lock);
    return CUDA_SUCCESS;
}

static CUresult driver_destroy(CUmemoryPool pool)
{
    pthread_mutex_lock(&driver_lock);
    pools[(uintptr_t)pool].is_destroyed = 1;
    pthread_mutex_unlock(&driver_lock);
    return CUDA_SUCCESS;
}

static CUresult driver_create(CUmemGenericAllocationHandle *handle, size_t bytes, const CUmemAllocationProp *props,
                              unsigned long long flags)
{
    (void)props;
    *handle = 7 + bytes;
    return flags ? CUDA_ERROR_NOT_SUPPORTED : CUDA_SUCCESS;
}

static CUresult driver_release(CUmemGenericAllocationHandle handle)
{
    return handle ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

static CUresult driver_map(CUarrayMapInfo *infos, unsigned int number, CUstream stream)
{
    (void)stream;
    return infos && number ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

static uint64_t reserved_total(void)
{
    uint64_t sum = 0;
    pthread_mutex_lock(&driver_lock);
    for (int i = 1; i <= POOLS; i++)
        sum += pools[i].is_destroyed && !pools[i].used_bytes ? 0 : pools[i].reserved_bytes;
    pthread_mutex_unlock(&driver_lock);
    return sum;
}

/* ---- what must hold ----------------------------------------------------------------------------------------------- */

/* An allocation for which the pool grows more than expected is refused, and nothing of it remains. */
static void allocation_that_grows_the_pool_beyond_the_quota_is_reverted(void)
{
    CUdeviceptr first, second;
    step_bytes = 64 * MIB;
    set_quota(80 * MIB, false);
    EXPECT_EQ(cuMemAllocFromPoolAsync(&first, 4 * MIB, (CUmemoryPool)1, NULL), CUDA_SUCCESS);
    EXPECT_EQ(counted_bytes(), 64 * MIB);
    EXPECT_EQ(cuMemAllocFromPoolAsync(&second, 4 * MIB, (CUmemoryPool)2, NULL), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(reserved_total(), 64 * MIB);
    EXPECT_EQ(counted_bytes(), 64 * MIB);
    EXPECT_EQ(cuMemFreeAsync(first, NULL), CUDA_SUCCESS);
    EXPECT_EQ(cuMemPoolTrimTo((CUmemoryPool)1, 0), CUDA_SUCCESS);
    EXPECT_EQ(counted_bytes(), 0);
}

static void *allocate_and_free(void *argument)
{
    CUdeviceptr held[HELD] = {0};
    uint64_t rng = (uintptr_t)argument * UINT64_C(0x9e3779b97f4a7c15) + 1;
    for (int i = 0; i < ROUNDS; i++) {
        rng = rng * UINT64_C(6364136223846793005) + 1442695040888963407;
        CUdeviceptr *pointer = &held[rng >> 60 & (HELD - 1)];
        if (*pointer) {
            EXPECT_EQ(cuMemFreeAsync(*pointer, NULL), CUDA_SUCCESS);
            *pointer = 0;
        } else if (cuMemAllocFromPoolAsync(pointer, (1 + (rng >> 40 & 7)) * MIB,
                                           (CUmemoryPool)(1 + (rng >> 50) % POOLS),
                                           NULL) != CUDA_SUCCESS) {
            *pointer = 0;
        }
        if (i % 64 == 0)
            cuCtxSynchronize();
    }
    for (int i = 0; i < HELD; i++)
        if (held[i])
            EXPECT_EQ(cuMemFreeAsync(held[i], NULL), CUDA_SUCCESS);
    return NULL;
}

/* If the driver grows by the page, reservations are never too small. */
static void counted_bytes_equal_reserved_bytes_after_concurrent_use(void)
{
    pthread_t threads[THREADS];
    CUdeviceptr last;
    step_bytes = CT_PAGE_STEP;
    set_quota(100 * MIB, false);
    for (uintptr_t i = 0; i < THREADS; i++)
        EXPECT_EQ(pthread_create(&threads[i], NULL, allocate_and_free, (void *)i), 0);
    for (int i = 0; i < THREADS; i++)
        EXPECT_EQ(pthread_join(threads[i], NULL), 0);
    EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
    EXPECT_EQ(counted_bytes(), reserved_total());
    EXPECT(reserved_total() <= 100 * MIB);
    EXPECT_EQ(cuMemAllocFromPoolAsync(&last, 8 * MIB, (CUmemoryPool)1, NULL), CUDA_SUCCESS);
    for (uintptr_t i = 1; i <= POOLS; i++)
        EXPECT_EQ(cuMemPoolDestroy((CUmemoryPool)i), CUDA_SUCCESS);
    EXPECT_EQ(counted_bytes(), 8 * MIB); /* until it is freed */
    EXPECT_EQ(cuMemFreeAsync(last, NULL), CUDA_SUCCESS);
    EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS); /* of earlier frees the stream is unknown */
    EXPECT_EQ(counted_bytes(), 0);
    EXPECT_EQ(reserved_total(), 0);
}

/* Memory that is mapped into a sparse array stays counted after its last handle was released. */
static void memory_mapped_into_an_array_stays_counted(void)
{
    const CUmemAllocationProp props = {.type = 1, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    CUmemGenericAllocationHandle mapped, other;
    const uint64_t before = counted_bytes();
    EXPECT_EQ(cuMemCreate(&mapped, 4 * MIB, &props, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuMemCreate(&other, 8 * MIB, &props, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuMemCreate(&other, 2 * MIB, &props, 1), CUDA_ERROR_NOT_SUPPORTED);
    CUarrayMapInfo map = {.memOperationType = CU_MEM_OPERATION_TYPE_MAP, .memHandle = mapped};
    EXPECT_EQ(cuMemMapArrayAsync(&map, 1, NULL), CUDA_SUCCESS);
    EXPECT_EQ(cuMemRelease(mapped), CUDA_SUCCESS);
    EXPECT_EQ(cuMemRelease(7 + 8 * MIB), CUDA_SUCCESS);
    EXPECT_EQ(counted_bytes(), before + 4 * MIB);
}

int main(void)
{
    test_hook_open("0", "0");
    make_tenant(0, false);
    EXPECT(ct_bind(1));
    ct_next[CT_cuMemAllocFromPoolAsync] = (void *)driver_allocate;
    ct_next[CT_cuMemFreeAsync] = (void *)driver_free;
    ct_next[CT_cuMemPoolGetAttribute] = (void *)driver_attribute;
    ct_next[CT_cuMemPoolTrimTo] = (void *)driver_trim;
    ct_next[CT_cuMemPoolDestroy] = (void *)driver_destroy;
    ct_next[CT_cuMemCreate] = (void *)driver_create;
    ct_next[CT_cuMemRelease] = (void *)driver_release;
    ct_next[CT_cuMemMapArrayAsync] = (void *)driver_map;
    allocation_that_grows_the_pool_beyond_the_quota_is_reverted();
    counted_bytes_equal_reserved_bytes_after_concurrent_use();
    memory_mapped_into_an_array_stays_counted();
    test_hook_close();
    return 0;
}
