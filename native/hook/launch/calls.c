/* The shared function bodies of each kind of call, generated from hooked.def, and the initial entries that find the
 * driver. */
#include "hook/memory/context.h"
#include "hook/entry/parameters.h"
#include "hook/launch/captures.h"
#include "hook/launch/partition.h"

/* -- symbols and the table of hooks --------------------------------------------------------------------------------- */

#define CT_EACH_HOOK(kind, symbol, ...) CT_EXPORT CUresult symbol(__VA_ARGS__);
#define CALLED(symbol, ...)
#include "hook/entry/hooked.def"
#undef CT_EACH_HOOK

void *const ct_hooks[CT_HOOKED_COUNT] = {
#define CT_EACH_HOOK(kind, symbol, ...) [CT_##symbol] = (void *)symbol,
#include "hook/entry/hooked.def"
#undef CALLED
#undef CT_EACH_HOOK
};

/* -- the first call finds the driver -------------------------------------------------------------------------------- */

/* Without a driver, nothing can have been initialized. */
static int find_driver(void)
{
    int is_found = ct_bind(1);
    if (is_found)
        ct_session();
    return is_found;
}

/* The function without parameters has a kind of its own, because `void` is not a parameter that could be passed on. */
static CUresult first_cuCtxSynchronize(void)
{
    return find_driver() ? CT_NEXT(cuCtxSynchronize)() : CUDA_ERROR_NOT_INITIALIZED;
}

#define FIRST(symbol, ...)                                                                                             \
    static CUresult first_##symbol(CT_PARAMETERS(__VA_ARGS__))                                                         \
    {                                                                                                                  \
        return find_driver() ? CT_NEXT(symbol)(CT_ARGUMENTS(__VA_ARGS__)) : CUDA_ERROR_NOT_INITIALIZED;                \
    }
#define CT_EACH_HOOK(kind, symbol, ...) FIRST_##kind(symbol, __VA_ARGS__)
#define FIRST_CUSTOM FIRST
#define FIRST_NO_PARAMETERS(...)
#define FIRST_UNIDENTIFIED FIRST
#define FIRST_INSTANTIATE FIRST
#define FIRST_CAPTURE FIRST
#define FIRST_SYNC FIRST
#define FIRST_QUERY FIRST
#define FIRST_DESTROY_CONTEXT FIRST
#define FIRST_RELEASE_PRIMARY FIRST
#define FIRST_DETACH_CONTEXT FIRST
#define FIRST_RESET_PRIMARY FIRST
#define FIRST_DESTROY_GREEN FIRST
#define FIRST_ENGINE FIRST
#define FIRST_ALLOC FIRST
#define FIRST_FREE FIRST
#define CALLED(symbol, ...) FIRST(symbol, __VA_ARGS__)
#include "hook/entry/hooked.def"
#undef CALLED
#undef CT_EACH_HOOK

_Atomic(void *) ct_next[CT_CALL_COUNT] = {
#define CT_EACH_HOOK(kind, symbol, ...) [CT_##symbol] = (void *)first_##symbol,
#define CALLED(symbol, ...) [CT_##symbol] = (void *)first_##symbol,
#include "hook/entry/hooked.def"
#undef CALLED
#undef CT_EACH_HOOK
};

/* -- code around a call of each kind -------------------------------------------------------------------------------- */

static void collect_timings(void)
{
    struct ct_session *session = ct_session();
    if (session)
        ct_timing_collect(session);
}

/* Memory that was freed in stream order may be released by now. */
static void settle_memory(int is_all, CUresult result)
{
    struct ct_memory *memory = ct_memory();
    if (memory && result == CUDA_SUCCESS)
        ct_supplies_settle(memory, is_all);
}

static void finish_sync(uint64_t began_ticks, CUresult result)
{
    ct_sync_end(began_ticks, CT_AWAITED_SOME, NULL, 0, result);
    collect_timings();
    settle_memory(0, result);
}

/* Prepares the end of contexts; the caller must report the result to the ledger. */
static struct ct_memory *end_contexts(void)
{
    struct ct_session *session = ct_session();
    struct ct_memory *memory = ct_memory();
    if (session)
        ct_timing_drop(session);
    if (session && session->gateway) {
        ct_completions_drop(session);
        ct_partition_close();
    }
    ct_memory_begin(memory);
    return memory;
}

static void forget_functions(CUresult result)
{
    struct ct_session *session = ct_session();
    if (session && result == CUDA_SUCCESS)
        ct_functions_forget(session, 0);
}

static void end_context(CUresult result, CUcontext context)
{
    forget_functions(result);
    if (result == CUDA_SUCCESS)
        ct_capture_context_destroyed(context);
}

/* A primary context that has other users remains, with its functions. */
static void release_functions(CUresult result, CUdevice device)
{
    unsigned int flags;
    int is_active = 0;
    if (CT_NEXT(cuDevicePrimaryCtxGetState)(device, &flags, &is_active) != CUDA_SUCCESS || !is_active)
        forget_functions(result);
}

#define AROUND(symbol, before, after, ...)                                                                             \
    CUresult symbol(CT_PARAMETERS(__VA_ARGS__))                                                                        \
    {                                                                                                                  \
        before;                                                                                                        \
        CUresult result = CT_NEXT(symbol)(CT_ARGUMENTS(__VA_ARGS__));                                                  \
        after;                                                                                                         \
        return ct_fault_check(result);                                                                                 \
    }
#define NOTHING (void)0
#define BODY_CUSTOM(symbol, ...)
#define BODY_NO_PARAMETERS(symbol, ...)
#define BODY_ENGINE(symbol, ...)
#define BODY_INSTANTIATE(symbol, ...)
#define BODY_UNIDENTIFIED(symbol, ...)                                                                                 \
    AROUND(symbol, struct ct_launch launch; ct_unidentified_begin(&launch), ct_unidentified_end(&launch, result),      \
           __VA_ARGS__)
#define BODY_CAPTURE(symbol, ...)                                                                                      \
    AROUND(symbol, CT_ON_DEVICE(ct_stream_device(a)); ct_capture_begin(), ct_capture_begun(a, result), __VA_ARGS__)
#define BODY_SYNC(symbol, ...)                                                                                         \
    AROUND(symbol, const uint64_t began_ticks = ct_sync_begin(), finish_sync(began_ticks, result), __VA_ARGS__)
#define BODY_QUERY(symbol, ...) AROUND(symbol, NOTHING, ct_requests_polled(result); collect_timings(), __VA_ARGS__)
#define ENDING(symbol, device, functions, ended, ...)                                                                  \
    AROUND(symbol, CT_ON_DEVICE(device); struct ct_memory *memory = end_contexts(), functions;                         \
           ended(memory, a, result), __VA_ARGS__)
#define CONTEXT_DEVICE ct_holding_device(CT_HELD_CONTEXT, (uintptr_t)a)
#define BODY_DESTROY_CONTEXT(symbol, ...)                                                                              \
    AROUND(symbol, CT_ON_DEVICE(CONTEXT_DEVICE); struct ct_memory *memory = end_contexts();                            \
           const uint64_t ending_home = ct_memory_context_ending(memory, a), end_context(result, a);                   \
           ct_memory_context_ended(memory, a, ending_home, result), __VA_ARGS__)
#define BODY_DETACH_CONTEXT(symbol, ...)                                                                               \
    ENDING(symbol, CONTEXT_DEVICE, forget_functions(result), ct_memory_context_detached, __VA_ARGS__)
#define BODY_RESET_PRIMARY(symbol, ...) ENDING(symbol, a, forget_functions(result), ct_memory_primary_released, __VA_ARGS__)
#define BODY_DESTROY_GREEN(symbol, ...)                                                                                \
    ENDING(symbol, ct_holding_device(CT_HELD_GREEN, (uintptr_t)a), forget_functions(result), ct_memory_green_ended,    \
           __VA_ARGS__)
#define BODY_RELEASE_PRIMARY(symbol, ...)                                                                              \
    ENDING(symbol, a, release_functions(result, a), ct_memory_primary_released, __VA_ARGS__)
#define BODY_ALLOC(symbol, ...) AROUND(symbol, NOTHING, ct_count_memory_call(0, result), __VA_ARGS__)
#define BODY_FREE(symbol, ...) AROUND(symbol, NOTHING, ct_count_memory_call(1, result), __VA_ARGS__)

#define CT_EACH_HOOK(kind, symbol, ...) BODY_##kind(symbol, __VA_ARGS__)
#define CALLED(symbol, ...)
#include "hook/entry/hooked.def"
#undef CALLED
#undef CT_EACH_HOOK

/* -- waiting for all work, and for one stream ----------------------------------------------------------------------- */

/* Returns the number of calls recorded so far. */
static uint64_t call_count(void)
{
    struct ct_session *session = ct_session();
    return session ? load_relaxed(&session->record.header->calls) : 0;
}

static CUresult finish_sync_all(uint64_t calls, uint64_t began_ticks, CUresult result)
{
    struct ct_session *session = ct_session();
    if (session && result == CUDA_SUCCESS)
        store_relaxed(&session->calls_when_idle, calls);
    ct_sync_end(began_ticks, CT_AWAITED_ALL, NULL, 0, result);
    collect_timings();
    settle_memory(1, result);
    return ct_fault_check(result);
}

CUresult cuCtxSynchronize(void)
{
    uint64_t calls = call_count(), began_ticks = ct_sync_begin();
    return finish_sync_all(calls, began_ticks, CT_NEXT(cuCtxSynchronize)());
}

CUresult cuCtxSynchronize_v2(CUcontext context)
{
    CT_ON_DEVICE(ct_holding_device(CT_HELD_CONTEXT, (uintptr_t)context));
    uint64_t began_ticks = ct_sync_begin();
    CUresult result = CT_NEXT(cuCtxSynchronize_v2)(context);
    finish_sync(began_ticks, result); /* possibly not the context of the tracked work */
    return ct_fault_check(result);
}

#define WAIT_FOR_STREAM(symbol, is_per_thread)                                                                         \
    CUresult symbol(CUstream stream)                                                                                   \
    {                                                                                                                  \
        CT_ON_DEVICE(ct_stream_device(stream));                                                                        \
        const uint64_t began_ticks = ct_sync_begin();                                                                  \
        CUresult result = CT_NEXT(symbol)(stream);                                                                     \
        ct_sync_end(began_ticks, CT_AWAITED_STREAM, stream, is_per_thread, result);                                    \
        collect_timings();                                                                                             \
        settle_memory(0, result);                                                                                      \
        return ct_fault_check(result);                                                                                 \
    }

WAIT_FOR_STREAM(cuStreamSynchronize, 0)
WAIT_FOR_STREAM(cuStreamSynchronize_ptsz, 1)
