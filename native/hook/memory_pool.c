/* Pools: what they reserve counts, not what is allocated from them. */
#include "hook/memory.h"

/* ---- which pools there are ----------------------------------------------------------------------------------------- */

/* The supply of a pool, as soon as it is seen. One that we never heard of is taken for a device's: only those of other kinds
 * are made by calls that say so. */
static struct ct_supply *supply_for(struct ct_memory *memory, CUmemoryPool pool)
{
    struct ct_beyond *beyond = &memory->beyond;
    ct_beyond_hold(beyond);
    struct ct_supply *supply = ct_supply_of(beyond, pool, 0);
    if (!supply)
        supply = ct_supply_make(beyond, pool, 0);
    ct_beyond_let_go(beyond);
    return supply;
}

static void note_pool(CUresult result, const CUmemoryPool *pool, const CUmemLocation *location, CUmemAllocationType type)
{
    struct ct_memory *memory = ct_memory();
    int is_managed = type == CU_MEM_ALLOCATION_TYPE_MANAGED;
    if (!memory || result != CUDA_SUCCESS || !pool || !*pool || !location ||
        (!is_managed && location->type == CU_MEM_LOCATION_TYPE_DEVICE))
        return;
    struct ct_supply *supply = supply_for(memory, *pool);
    if (!supply)
        return;
    ct_beyond_hold(&memory->beyond);
    if (!supply->booked_bytes && !supply->pending_bytes) {
        supply->kind = is_managed ? CT_LEDGER_MANAGED : CT_LEDGER_BOOKED;
        supply->is_counted = is_managed;
    }
    ct_beyond_let_go(&memory->beyond);
}

CT_EXPORT CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *props)
{
    CUresult result = CT_NEXT(cuMemPoolCreate)(pool, props);
    ct_seen_memory(0, result);
    if (props)
        note_pool(result, pool, &props->location, props->allocType);
    return ct_fault_seen(result);
}

CT_EXPORT CUresult cuMemGetDefaultMemPool(CUmemoryPool *pool, CUmemLocation *location, CUmemAllocationType type)
{
    CUresult result = CT_NEXT(cuMemGetDefaultMemPool)(pool, location, type);
    note_pool(result, pool, location, type);
    return result;
}

CT_EXPORT CUresult cuMemGetMemPool(CUmemoryPool *pool, CUmemLocation *location, CUmemAllocationType type)
{
    CUresult result = CT_NEXT(cuMemGetMemPool)(pool, location, type);
    note_pool(result, pool, location, type);
    return result;
}

CT_EXPORT CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t bytes)
{
    struct ct_memory *memory = ct_memory();
    CUresult result = CT_NEXT(cuMemPoolTrimTo)(pool, bytes);
    if (memory && result == CUDA_SUCCESS)
        ct_beyond_settle(memory, 0);
    return result;
}

/* What its frees have not come to yet is in use as long as the driver says so. */
static void end_pool(struct ct_memory *memory, struct ct_supply *supply, uint64_t used_bytes)
{
    struct ct_beyond *beyond = &memory->beyond;
    const struct ct_late late = {.context = supply->freed_in, .home = supply->freed_home, .supply = supply};
    ct_beyond_hold(beyond);
    int is_late = used_bytes && supply->freed_in;
    supply->allocations += (uint64_t)is_late;
    ct_supply_left(memory, supply, 0);
    ct_beyond_let_go(beyond);
    if (is_late)
        ct_late_free(memory, &late);
}

CT_EXPORT CUresult cuMemPoolDestroy(CUmemoryPool pool)
{
    struct ct_memory *memory = ct_memory();
    struct ct_beyond *beyond = memory ? &memory->beyond : NULL;
    struct ct_supply *supply = NULL;
    cuuint64_t used_bytes = 0;
    if (memory) {
        ct_beyond_hold(beyond);
        supply = ct_supply_of(beyond, pool, 0);
        ct_beyond_let_go(beyond);
        ct_memory_begin(memory);
    }
    if (supply && supply->is_counted) { /* what is left of it afterwards is what is in use, and nobody can ask then */
        CT_NEXT(cuMemPoolTrimTo)(pool, 0);
        ct_beyond_settle(memory, 0);
        CT_NEXT(cuMemPoolGetAttribute)(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used_bytes);
    }
    if (supply)
        ct_supply_close(beyond, supply);
    CUresult result = CT_NEXT(cuMemPoolDestroy)(pool);
    ct_seen_memory(1, result);
    if (supply && result == CUDA_SUCCESS) {
        end_pool(memory, supply, used_bytes);
    } else if (supply) {
        ct_beyond_hold(beyond);
        supply->is_ended = 0;
        ct_beyond_let_go(beyond);
    }
    ct_memory_end(memory);
    return ct_fault_seen(result);
}

/* ---- allocating ---------------------------------------------------------------------------------------------------- */

/* Into a capture it is no allocation yet, only the description of one. */
static int is_captured(CUstream stream, int is_twin)
{
    struct ct_session *session = ct_session();
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    if (session && !atomic_load_explicit(&session->captures, memory_order_relaxed))
        return 0;
    CUresult result = is_twin ? CT_NEXT(cuStreamIsCapturing_ptsz)(stream, &status)
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

struct asked {
    struct ct_memory *memory; /* NULL: nothing is to be done */
    struct ct_growth growth;
    struct ct_wanting wanting;
    uint64_t bytes, before_bytes;
    CUmemoryPool pool;
    CUstream stream;
    int is_twin, is_current; /* current: it is the device's at the moment, and may be another one's by the next */
};

/* 0: past the quota. */
static int ask(struct asked *asked, const CUdeviceptr *pointer)
{
    struct ct_memory *memory = ct_memory();
    if (!memory || !pointer || !asked->bytes || is_captured(asked->stream, asked->is_twin))
        return 1;
    if (asked->is_current)
        asked->pool = current_pool();
    struct ct_supply *supply = asked->pool ? supply_for(memory, asked->pool) : NULL;
    if (!supply || !supply->is_counted)
        return 1;
    ct_beyond_hold(&memory->beyond);
    uint64_t step = memory->beyond.step_bytes ? memory->beyond.step_bytes : CT_POOL_STEP;
    asked->before_bytes = supply->booked_bytes;
    ct_beyond_let_go(&memory->beyond);
    if (!ct_supply_enter(memory, supply, ct_rounded(asked->bytes, step), ct_rounded(asked->bytes, CT_PAGE_STEP),
                         &asked->growth))
        return 0;
    asked->memory = memory;
    return 1;
}

/* In which steps the driver's pools grow is nowhere written: the first growth shows it, and a larger one later is believed. */
static void learn_step(struct ct_beyond *beyond, const struct asked *asked)
{
    const struct ct_supply *supply = asked->growth.supply;
    ct_beyond_hold(beyond);
    uint64_t grown = supply->booked_bytes > asked->before_bytes ? supply->booked_bytes - asked->before_bytes : 0;
    if (grown && grown <= ct_rounded(asked->bytes, CT_PAGE_STEP)) {
        if (!beyond->step_bytes)
            beyond->step_bytes = CT_PAGE_STEP;
    } else if (grown > ct_rounded(asked->bytes, beyond->step_bytes ? beyond->step_bytes : CT_PAGE_STEP)) {
        beyond->step_bytes = grown > CT_POOL_STEP ? ct_rounded(grown, CT_PAGE_STEP) : CT_POOL_STEP;
    }
    ct_beyond_let_go(beyond);
}

/* The pool grew by more than anybody expected, past the quota: it was not to be had. */
static CUresult undo(const struct asked *asked, CUdeviceptr *pointer)
{
    struct ct_memory *memory = asked->memory;
    struct ct_holding holding = {.note = (uintptr_t)asked->growth.supply}; /* there may have been no room to note it */
    ct_holding_take(memory, CT_HELD_POOLED, *pointer, &holding);
    if (asked->is_twin)
        CT_NEXT(cuMemFreeAsync_ptsz)(*pointer, asked->stream);
    else
        CT_NEXT(cuMemFreeAsync)(*pointer, asked->stream);
    ct_pool_freed(memory, &holding, CUDA_SUCCESS);
    ct_beyond_squeeze(memory);
    ct_memory_deny(memory, asked->bytes);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult answered(const struct asked *asked, CUdeviceptr *pointer, CUresult result)
{
    struct ct_memory *memory = asked->memory;
    ct_seen_memory(0, result);
    if (!memory)
        return ct_fault_seen(result);
    struct ct_supply *supply = asked->growth.supply;
    if (result == CUDA_SUCCESS) {
        const struct ct_holding holding = {.key = *pointer, .home = ct_memory_home(memory), .note = (uintptr_t)supply,
                                           .held = CT_HELD_POOLED};
        ct_beyond_hold(&memory->beyond);
        supply->allocations++;
        ct_beyond_let_go(&memory->beyond);
        ct_holding_add(memory, &holding);
    }
    int is_over = ct_supply_leave(memory, &asked->growth, result);
    CUmemoryPool now = asked->is_current && result == CUDA_SUCCESS ? current_pool() : asked->pool;
    if (now && now != asked->pool) { /* another thread chose another pool meanwhile */
        struct ct_growth growth = {supply_for(memory, now), 0};
        ct_memory_begin(memory);
        if (growth.supply)
            is_over |= ct_supply_leave(memory, &growth, result);
    } else if (result == CUDA_SUCCESS) {
        learn_step(&memory->beyond, asked);
    }
    return is_over ? undo(asked, pointer) : ct_fault_seen(result);
}

#define ALLOC_ASYNC(symbol, twin)                                                                                      \
    CT_EXPORT CUresult symbol(CUdeviceptr *pointer, size_t bytes, CUstream stream)                                     \
    {                                                                                                                  \
        struct asked asked = {.bytes = bytes, .stream = stream, .is_twin = twin, .is_current = 1};                     \
        CUresult result;                                                                                               \
        if (!ask(&asked, pointer))                                                                                     \
            return CUDA_ERROR_OUT_OF_MEMORY;                                                                           \
        do                                                                                                             \
            result = CT_NEXT(symbol)(pointer, bytes, stream);                                                          \
        while (ct_memory_wants(asked.memory, &asked.wanting, bytes, result));                                          \
        return answered(&asked, pointer, result);                                                                      \
    }
#define ALLOC_FROM_POOL(symbol, twin)                                                                                  \
    CT_EXPORT CUresult symbol(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, CUstream stream)                  \
    {                                                                                                                  \
        struct asked asked = {.bytes = bytes, .stream = stream, .is_twin = twin, .pool = pool};                        \
        CUresult result;                                                                                               \
        if (!ask(&asked, pointer))                                                                                     \
            return CUDA_ERROR_OUT_OF_MEMORY;                                                                           \
        do                                                                                                             \
            result = CT_NEXT(symbol)(pointer, bytes, pool, stream);                                                    \
        while (ct_memory_wants(asked.memory, &asked.wanting, bytes, result));                                          \
        return answered(&asked, pointer, result);                                                                      \
    }

ALLOC_ASYNC(cuMemAllocAsync, 0)
ALLOC_ASYNC(cuMemAllocAsync_ptsz, 1)
ALLOC_FROM_POOL(cuMemAllocFromPoolAsync, 0)
ALLOC_FROM_POOL(cuMemAllocFromPoolAsync_ptsz, 1)

/* ---- freeing ------------------------------------------------------------------------------------------------------- */

CUresult ct_pool_freed(struct ct_memory *memory, const struct ct_holding *holding, CUresult result)
{
    if (result != CUDA_SUCCESS) {
        ct_holding_add(memory, holding);
        return result;
    }
    ct_beyond_hold(&memory->beyond);
    ct_supply_left(memory, (struct ct_supply *)(uintptr_t)holding->note, 1);
    ct_beyond_let_go(&memory->beyond);
    return result;
}

/* In stream order. A pool that lives tells by itself what it still has; of one that is destroyed, and of a plain allocation,
 * the bytes go when the stream gets there. */
static CUresult freed(struct ct_memory *memory, const struct ct_holding *holding, CUstream stream, int is_twin,
                      CUresult result)
{
    struct ct_supply *supply = holding->held == CT_HELD_POOLED ? (struct ct_supply *)(uintptr_t)holding->note : NULL;
    struct ct_late late = {.home = ct_memory_home(memory), .stream = stream, .is_twin = is_twin, .has_stream = 1,
                           .supply = supply, .bytes = holding->bytes, .key = holding->note,
                           .kind = (enum ct_ledger_kind)holding->kind};
    int is_late = !supply;
    if (result != CUDA_SUCCESS) {
        ct_holding_add(memory, holding);
        return result;
    }
    CT_NEXT(cuCtxGetCurrent)(&late.context);
    if (supply) {
        ct_beyond_hold(&memory->beyond);
        supply->freed_in = late.context;
        supply->freed_home = late.home;
        is_late = supply->is_ended;
        if (!is_late)
            ct_supply_left(memory, supply, 1);
        ct_beyond_let_go(&memory->beyond);
    }
    if (is_late)
        ct_late_free(memory, &late);
    return result;
}

#define FREE_ASYNC(symbol, twin)                                                                                       \
    CT_EXPORT CUresult symbol(CUdeviceptr pointer, CUstream stream)                                                    \
    {                                                                                                                  \
        struct ct_memory *memory = ct_memory();                                                                        \
        struct ct_holding holding;                                                                                     \
        int is_held = 0;                                                                                               \
        ct_memory_begin(memory);                                                                                       \
        if (memory && !is_captured(stream, twin))                                                                      \
            is_held = ct_holding_take(memory, CT_HELD_POOLED, pointer, &holding) ||                                    \
                      ct_holding_take(memory, CT_HELD_MEMORY, pointer, &holding);                                      \
        CUresult result = CT_NEXT(symbol)(pointer, stream);                                                            \
        ct_seen_memory(1, result);                                                                                     \
        if (is_held)                                                                                                   \
            freed(memory, &holding, stream, twin, result);                                                             \
        ct_memory_end(memory);                                                                                         \
        return ct_fault_seen(result);                                                                                  \
    }

FREE_ASYNC(cuMemFreeAsync, 0)
FREE_ASYNC(cuMemFreeAsync_ptsz, 1)

#define STREAM_DESTROY(symbol)                                                                                         \
    CT_EXPORT CUresult symbol(CUstream stream)                                                                         \
    {                                                                                                                  \
        struct ct_memory *memory = ct_memory();                                                                        \
        if (memory)                                                                                                    \
            ct_late_stream_ends(memory, stream);                                                                       \
        return ct_fault_seen(CT_NEXT(symbol)(stream));                                                                 \
    }

STREAM_DESTROY(cuStreamDestroy)
STREAM_DESTROY(cuStreamDestroy_v2)
