/* Memory pools: what they have reserved is counted, not what is allocated from them. */
#include "hook/launch/captures.h"
#include "hook/memory/memory.h"

/* ---- pools -------------------------------------------------------------------------------------------------------- */

/* Returns the supply of a pool. An unknown pool is assumed to be in device memory, because pools of other kinds are
 * only created by calls that specify the kind. */
static struct ct_supply *supply_for(struct ct_memory *memory, CUmemoryPool pool)
{
    struct ct_supplies *supplies = &memory->supplies;
    ct_supplies_lock(supplies);
    struct ct_supply *supply = ct_supply_of(supplies, pool, 0);
    if (!supply)
        supply = ct_supply_make(supplies, pool, 0);
    ct_supplies_unlock(supplies);
    return supply;
}

/* Records the kind of a pool that is not in device memory. */
static void set_pool_kind(CUresult result, const CUmemoryPool *pool, const CUmemLocation *location,
                          CUmemAllocationType type)
{
    int is_managed = type == CU_MEM_ALLOCATION_TYPE_MANAGED;
    const int is_on_device = location && location->type == CU_MEM_LOCATION_TYPE_DEVICE;
    CT_ON_DEVICE(is_on_device ? location->id : CT_ANY_DEVICE);
    struct ct_memory *memory = ct_memory();
    /* With several devices, allocations from it have to be counted on its own. */
    const int is_ordinary = !is_managed && is_on_device && !ct_has_several_devices(load_acquire(&ct_page));
    if (!memory || result != CUDA_SUCCESS || !pool || !*pool || !location || is_ordinary)
        return;
    struct ct_supply *supply = supply_for(memory, *pool);
    if (!supply)
        return;
    ct_supplies_lock(&memory->supplies);
    if (!supply->counted_bytes && !supply->pending_bytes && (is_managed || !is_on_device)) {
        supply->kind = is_managed ? CT_LEDGER_MANAGED : CT_LEDGER_ALLOCATED;
        supply->is_counted = is_managed;
    }
    ct_supplies_unlock(&memory->supplies);
}

CT_EXPORT CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *props)
{
    CUresult result = CT_NEXT(cuMemPoolCreate)(pool, props);
    ct_count_memory_call(0, result);
    if (props)
        set_pool_kind(result, pool, &props->location, props->allocType);
    return ct_fault_check(result);
}

CT_EXPORT CUresult cuMemGetDefaultMemPool(CUmemoryPool *pool, CUmemLocation *location, CUmemAllocationType type)
{
    CUresult result = CT_NEXT(cuMemGetDefaultMemPool)(pool, location, type);
    set_pool_kind(result, pool, location, type);
    return result;
}

CT_EXPORT CUresult cuMemGetMemPool(CUmemoryPool *pool, CUmemLocation *location, CUmemAllocationType type)
{
    CUresult result = CT_NEXT(cuMemGetMemPool)(pool, location, type);
    set_pool_kind(result, pool, location, type);
    return result;
}

CT_EXPORT CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t bytes)
{
    CT_ON_DEVICE(ct_pool_device(pool));
    struct ct_memory *memory = ct_memory();
    CUresult result = CT_NEXT(cuMemPoolTrimTo)(pool, bytes);
    if (memory && result == CUDA_SUCCESS)
        ct_supplies_settle(memory, 0);
    return result;
}

/* Ends the supply of a destroyed pool. Memory whose frees have not been executed yet is in use as long as the driver
 * reports it. */
static void end_pool(struct ct_memory *memory, struct ct_supply *supply, uint64_t used_bytes)
{
    struct ct_supplies *supplies = &memory->supplies;
    const struct ct_deferred_free deferred = {.context = supply->freed_in, .home = supply->freed_home,
                                              .supply = supply};
    ct_supplies_lock(supplies);
    int is_deferred = used_bytes && supply->freed_in;
    supply->allocations += (uint64_t)is_deferred;
    ct_supply_release(memory, supply, 0);
    ct_supplies_unlock(supplies);
    if (is_deferred)
        ct_deferred_add(memory, &deferred);
}

CT_EXPORT CUresult cuMemPoolDestroy(CUmemoryPool pool)
{
    CT_ON_DEVICE(ct_pool_device(pool));
    struct ct_memory *memory = ct_memory();
    struct ct_supplies *supplies = memory ? &memory->supplies : NULL;
    struct ct_supply *supply = NULL;
    cuuint64_t used_bytes = 0;
    if (memory) {
        ct_supplies_lock(supplies);
        supply = ct_supply_of(supplies, pool, 0);
        ct_supplies_unlock(supplies);
        ct_memory_begin(memory);
    }
    if (supply && supply->is_counted) { /* afterwards only memory in use remains, and the pool cannot be queried any
                                         * more */
        CT_NEXT(cuMemPoolTrimTo)(pool, 0);
        ct_supplies_settle(memory, 0);
        CT_NEXT(cuMemPoolGetAttribute)(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used_bytes);
    }
    if (supply)
        ct_supply_close(supplies, supply);
    CUresult result = CT_NEXT(cuMemPoolDestroy)(pool);
    ct_count_memory_call(1, result);
    if (supply && result == CUDA_SUCCESS) {
        end_pool(memory, supply, used_bytes);
    } else if (supply) {
        ct_supplies_lock(supplies);
        supply->is_ended = 0;
        ct_supplies_unlock(supplies);
    }
    ct_memory_end(memory);
    return ct_fault_check(result);
}

/* ---- allocation --------------------------------------------------------------------------------------------------- */

/* Returns whether the stream is being captured: then nothing is allocated yet. */
static int is_captured(CUstream stream, int is_per_thread)
{
    struct ct_session *session = ct_session();
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    if (session && !load_relaxed(&session->captures))
        return 0;
    CUresult result = is_per_thread ? CT_NEXT(cuStreamIsCapturing_ptsz)(stream, &status)
                              : CT_NEXT(cuStreamIsCapturing)(stream, &status);
    return result == CUDA_SUCCESS && status != CU_STREAM_CAPTURE_STATUS_NONE;
}

static CUmemoryPool current_pool(void)
{
    CUdevice device;
    CUmemoryPool pool = NULL;
    return CT_NEXT(cuCtxGetDevice)(&device) == CUDA_SUCCESS &&
                   CT_NEXT(cuDeviceGetMemPool)(&pool, device) == CUDA_SUCCESS
               ? pool
               : NULL;
}

struct pool_request {
    struct ct_memory *memory; /* NULL: nothing to do */
    struct ct_growth growth;
    struct ct_memory_wait wait;
    uint64_t bytes, before_bytes;
    CUmemoryPool pool;
    CUstream stream;
    int is_per_thread, is_current; /* current: the pool is the device's current one, which another thread may change */
};

/* Reserves what the pool may grow by; returns 0 if the quota does not permit it. */
static int reserve_growth(struct pool_request *pool_request, const CUdeviceptr *pointer)
{
    struct ct_memory *memory = ct_memory();
    if (!memory || !pointer || !pool_request->bytes || is_captured(pool_request->stream, pool_request->is_per_thread))
        return 1;
    if (pool_request->is_current)
        pool_request->pool = current_pool();
    struct ct_supply *supply = pool_request->pool ? supply_for(memory, pool_request->pool) : NULL;
    if (!supply || !supply->is_counted)
        return 1;
    ct_supplies_lock(&memory->supplies);
    uint64_t step = memory->supplies.step_bytes ? memory->supplies.step_bytes : CT_POOL_STEP;
    pool_request->before_bytes = supply->counted_bytes;
    ct_supplies_unlock(&memory->supplies);
    if (!ct_supply_reserve(memory, supply, ct_rounded(pool_request->bytes, step),
                           ct_rounded(pool_request->bytes, CT_PAGE_STEP),
                         &pool_request->growth))
        return 0;
    pool_request->memory = memory;
    return 1;
}

/* The step in which the driver's pools grow is undocumented: it is learned from the first growth, and from larger ones
 * later. */
static void learn_step(struct ct_supplies *supplies, const struct pool_request *pool_request)
{
    const struct ct_supply *supply = pool_request->growth.supply;
    ct_supplies_lock(supplies);
    uint64_t grown = supply->counted_bytes > pool_request->before_bytes
        ? supply->counted_bytes - pool_request->before_bytes : 0;
    if (grown && grown <= ct_rounded(pool_request->bytes, CT_PAGE_STEP)) {
        if (!supplies->step_bytes)
            supplies->step_bytes = CT_PAGE_STEP;
    } else if (grown > ct_rounded(pool_request->bytes, supplies->step_bytes ? supplies->step_bytes : CT_PAGE_STEP)) {
        supplies->step_bytes = grown > CT_POOL_STEP ? ct_rounded(grown, CT_PAGE_STEP) : CT_POOL_STEP;
    }
    ct_supplies_unlock(supplies);
}

/* Reverts an allocation for which the pool grew by more than expected, beyond the quota. */
static CUresult undo_allocation(const struct pool_request *pool_request, CUdeviceptr *pointer)
{
    struct ct_memory *memory = pool_request->memory;
    struct ct_holding holding = {.note = (uintptr_t)pool_request->growth.supply}; /* the table may have had no space for
                                                                                   * it */
    ct_holding_take(memory, CT_HELD_POOLED, *pointer, &holding);
    if (pool_request->is_per_thread)
        CT_NEXT(cuMemFreeAsync_ptsz)(*pointer, pool_request->stream);
    else
        CT_NEXT(cuMemFreeAsync)(*pointer, pool_request->stream);
    ct_pool_freed(memory, &holding, CUDA_SUCCESS);
    ct_supplies_trim(memory);
    ct_memory_deny(memory, pool_request->bytes);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult finish_allocation(const struct pool_request *pool_request, CUdeviceptr *pointer, CUresult result)
{
    struct ct_memory *memory = pool_request->memory;
    ct_count_memory_call(0, result);
    if (!memory)
        return ct_fault_check(result);
    struct ct_supply *supply = pool_request->growth.supply;
    if (result == CUDA_SUCCESS) {
        const struct ct_holding holding = {.key = *pointer, .home = ct_memory_home(memory), .note = (uintptr_t)supply,
                                           .held = CT_HELD_POOLED};
        ct_supplies_lock(&memory->supplies);
        supply->allocations++;
        ct_supplies_unlock(&memory->supplies);
        ct_holding_add(memory, &holding);
    }
    int exceeds_quota = ct_supply_settle(memory, &pool_request->growth, result);
    CUmemoryPool pool = pool_request->is_current && result == CUDA_SUCCESS ? current_pool() : pool_request->pool;
    if (pool && pool != pool_request->pool) { /* another thread has set another pool meanwhile */
        struct ct_growth growth = {supply_for(memory, pool), 0};
        ct_memory_begin(memory);
        if (growth.supply)
            exceeds_quota |= ct_supply_settle(memory, &growth, result);
    } else if (result == CUDA_SUCCESS) {
        learn_step(&memory->supplies, pool_request);
    }
    return exceeds_quota ? undo_allocation(pool_request, pointer) : ct_fault_check(result);
}

#define ALLOC_ASYNC(symbol, per_thread)                                                                                \
    CT_EXPORT CUresult symbol(CUdeviceptr *pointer, size_t bytes, CUstream stream)                                     \
    {                                                                                                                  \
        struct pool_request pool_request = {.bytes = bytes, .stream = stream, .is_per_thread = per_thread, .is_current = 1};                     \
        CUresult result;                                                                                               \
        if (!reserve_growth(&pool_request, pointer))                                                                   \
            return CUDA_ERROR_OUT_OF_MEMORY;                                                                           \
        do                                                                                                             \
            result = CT_NEXT(symbol)(pointer, bytes, stream);                                                          \
        while (ct_memory_should_retry(pool_request.memory, &pool_request.wait, bytes, result));                        \
        return finish_allocation(&pool_request, pointer, result);                                                      \
    }
#define ALLOC_FROM_POOL(symbol, per_thread)                                                                            \
    CT_EXPORT CUresult symbol(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, CUstream stream)                  \
    {                                                                                                                  \
        CT_ON_DEVICE(ct_pool_device(pool));                                                                            \
        struct pool_request pool_request = {.bytes = bytes, .stream = stream, .is_per_thread = per_thread, .pool = pool};                        \
        CUresult result;                                                                                               \
        if (!reserve_growth(&pool_request, pointer))                                                                   \
            return CUDA_ERROR_OUT_OF_MEMORY;                                                                           \
        do                                                                                                             \
            result = CT_NEXT(symbol)(pointer, bytes, pool, stream);                                                    \
        while (ct_memory_should_retry(pool_request.memory, &pool_request.wait, bytes, result));                        \
        return finish_allocation(&pool_request, pointer, result);                                                      \
    }

ALLOC_ASYNC(cuMemAllocAsync, 0)
ALLOC_ASYNC(cuMemAllocAsync_ptsz, 1)
ALLOC_FROM_POOL(cuMemAllocFromPoolAsync, 0)
ALLOC_FROM_POOL(cuMemAllocFromPoolAsync_ptsz, 1)

/* ---- release ------------------------------------------------------------------------------------------------------ */

CUresult ct_pool_freed(struct ct_memory *memory, const struct ct_holding *holding, CUresult result)
{
    if (result != CUDA_SUCCESS) {
        ct_holding_add(memory, holding);
        return result;
    }
    ct_supplies_lock(&memory->supplies);
    ct_supply_release(memory, (struct ct_supply *)(uintptr_t)holding->note, 1);
    ct_supplies_unlock(&memory->supplies);
    return result;
}

/* Completes a free in stream order. An existing pool reports what it has reserved; the bytes of a destroyed one and of
 * a linear allocation are released when the stream has executed the free. */
static CUresult finish_free(struct ct_memory *memory, const struct ct_holding *holding, CUstream stream,
                            int is_per_thread,
                      CUresult result)
{
    struct ct_supply *supply = holding->held == CT_HELD_POOLED ? (struct ct_supply *)(uintptr_t)holding->note : NULL;
    struct ct_deferred_free deferred = {.home = ct_memory_home(memory), .stream = stream,
                                        .is_per_thread = is_per_thread, .has_stream = 1,
                           .supply = supply, .bytes = holding->bytes, .key = holding->note,
                           .kind = (enum ct_ledger_kind)holding->kind};
    int is_deferred = !supply;
    if (result != CUDA_SUCCESS) {
        ct_holding_add(memory, holding);
        return result;
    }
    CT_NEXT(cuCtxGetCurrent)(&deferred.context);
    if (supply) {
        ct_supplies_lock(&memory->supplies);
        supply->freed_in = deferred.context;
        supply->freed_home = deferred.home;
        is_deferred = supply->is_ended;
        if (!is_deferred)
            ct_supply_release(memory, supply, 1);
        ct_supplies_unlock(&memory->supplies);
    }
    if (is_deferred)
        ct_deferred_add(memory, &deferred);
    return result;
}

#define FREE_ASYNC(symbol, per_thread)                                                                                 \
    CT_EXPORT CUresult symbol(CUdeviceptr pointer, CUstream stream)                                                    \
    {                                                                                                                  \
        CT_ON_DEVICE(ct_pointer_device(pointer));                                                                      \
        struct ct_memory *memory = ct_memory();                                                                        \
        struct ct_holding holding;                                                                                     \
        int is_held = 0;                                                                                               \
        ct_memory_begin(memory);                                                                                       \
        if (memory && !is_captured(stream, per_thread))                                                                \
            is_held = ct_holding_take(memory, CT_HELD_POOLED, pointer, &holding) ||                                    \
                      ct_holding_take(memory, CT_HELD_MEMORY, pointer, &holding);                                      \
        CUresult result = CT_NEXT(symbol)(pointer, stream);                                                            \
        ct_count_memory_call(1, result);                                                                               \
        if (is_held)                                                                                                   \
            finish_free(memory, &holding, stream, per_thread, result);                                                 \
        ct_memory_end(memory);                                                                                         \
        return ct_fault_check(result);                                                                                 \
    }

FREE_ASYNC(cuMemFreeAsync, 0)
FREE_ASYNC(cuMemFreeAsync_ptsz, 1)

#define STREAM_DESTROY(symbol)                                                                                         \
    CT_EXPORT CUresult symbol(CUstream stream)                                                                         \
    {                                                                                                                  \
        CT_ON_DEVICE(ct_stream_device(stream));                                                                        \
        struct ct_memory *memory = ct_memory();                                                                        \
        if (memory)                                                                                                    \
            ct_deferred_stream_ends(memory, stream);                                                                   \
        CUresult result = CT_NEXT(symbol)(stream);                                                                     \
        if (result == CUDA_SUCCESS)                                                                                    \
            ct_capture_stream_destroyed(stream);                                                                       \
        return ct_fault_check(result);                                                                                 \
    }

STREAM_DESTROY(cuStreamDestroy)
STREAM_DESTROY(cuStreamDestroy_v2)
