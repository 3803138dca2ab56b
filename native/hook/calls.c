/* The bodies that all calls of a kind share, made from the list; and the way to the driver before it is found. */
#include "hook/memory_context.h"
#include "hook/parameters.h"
#include "hook/work.h"

/* -- every hook is a symbol, and an entry of the table ------------------------------------------------------------ */

#define CT_EACH_HOOK(what, symbol, ...) CT_EXPORT CUresult symbol(__VA_ARGS__);
#define ASKED(symbol, ...)
#include "hook/hooked.def"
#undef CT_EACH_HOOK

void *const ct_hooks[CT_HOOKED_COUNT] = {
#define CT_EACH_HOOK(what, symbol, ...) [CT_##symbol] = (void *)symbol,
#include "hook/hooked.def"
#undef ASKED
#undef CT_EACH_HOOK
};

/* -- the first call of each finds the driver ---------------------------------------------------------------------- */

/* The arguments are not looked at, which the x86-64 and AArch64 calling conventions allow; without a driver there is
 * nothing that could have been initialised. */
static int find_driver(void)
{
    int is_found = ct_bind(1);
    if (is_found)
        ct_session();
    return is_found;
}

/* The one without parameters is ALONE in the list: `void` has no name to pass on. */
static CUresult first_cuCtxSynchronize(void)
{
    return find_driver() ? CT_NEXT(cuCtxSynchronize)() : CUDA_ERROR_NOT_INITIALIZED;
}

#define FIRST(symbol, ...)                                                                                             \
    static CUresult first_##symbol(CT_PARAMETERS(__VA_ARGS__))                                                         \
    {                                                                                                                  \
        return find_driver() ? CT_NEXT(symbol)(CT_ARGUMENTS(__VA_ARGS__)) : CUDA_ERROR_NOT_INITIALIZED;                \
    }
#define CT_EACH_HOOK(what, symbol, ...) FIRST_##what(symbol, __VA_ARGS__)
#define FIRST_OWN FIRST
#define FIRST_ALONE(...)
#define FIRST_UNNAMED FIRST
#define FIRST_INSTANTIATE FIRST
#define FIRST_CAPTURE FIRST
#define FIRST_SYNC FIRST
#define FIRST_QUERY FIRST
#define FIRST_ENDS FIRST
#define FIRST_RELEASES FIRST
#define FIRST_DETACHES FIRST
#define FIRST_RESETS FIRST
#define FIRST_WITHERS FIRST
#define FIRST_ENGINE FIRST
#define FIRST_ALLOC FIRST
#define FIRST_FREE FIRST
#define ASKED(symbol, ...) FIRST(symbol, __VA_ARGS__)
#include "hook/hooked.def"
#undef ASKED
#undef CT_EACH_HOOK

_Atomic(void *) ct_next[CT_CALL_COUNT] = {
#define CT_EACH_HOOK(what, symbol, ...) [CT_##symbol] = (void *)first_##symbol,
#define ASKED(symbol, ...) [CT_##symbol] = (void *)first_##symbol,
#include "hook/hooked.def"
#undef ASKED
#undef CT_EACH_HOOK
};

/* -- what is done around a call of each kind ---------------------------------------------------------------------- */

static void harvest(void)
{
    struct ct_session *session = ct_session();
    if (session)
        ct_timing_harvest(session);
}

/* What was freed in stream order may be gone by now. */
static void settle_memory(int is_all, CUresult result)
{
    struct ct_memory *memory = ct_memory();
    if (memory && result == CUDA_SUCCESS)
        ct_beyond_settle(memory, is_all);
}

static void rested(uint64_t began_ticks, CUresult result)
{
    ct_rest_end(began_ticks, CT_AWAITED_SOME, NULL, 0, result);
    harvest();
    settle_memory(0, result);
}

/* Counted before the driver begins it: another thread must not time anything in the moment between. */
static void begin_capture(void)
{
    struct ct_session *session = ct_session();
    if (session)
        atomic_fetch_add(&session->captures, 1);
}

static void capture_begun(CUresult result)
{
    if (result != CUDA_SUCCESS)
        ct_capture_ended();
}

/* Begins what the ledger must hear the end of. */
static struct ct_memory *end_contexts(void)
{
    struct ct_session *session = ct_session();
    struct ct_memory *memory = ct_memory();
    if (session)
        ct_timing_drop(session);
    if (session && session->gateway)
        ct_marks_drop(session);
    ct_memory_begin(memory);
    return memory;
}

static void forget_functions(CUresult result)
{
    struct ct_session *session = ct_session();
    if (session && result == CUDA_SUCCESS)
        ct_functions_forget(session, 0);
}

/* A context that others hold too goes on, and its functions with it. */
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
        return ct_fault_seen(result);                                                                                  \
    }
#define NOTHING (void)0
#define BODY_OWN(symbol, ...)
#define BODY_ALONE(symbol, ...)
#define BODY_ENGINE(symbol, ...)
#define BODY_INSTANTIATE(symbol, ...)
#define BODY_UNNAMED(symbol, ...)                                                                                      \
    AROUND(symbol, struct ct_piece piece; ct_unnamed_begin(&piece), ct_unnamed_end(&piece, result), __VA_ARGS__)
#define BODY_CAPTURE(symbol, ...) AROUND(symbol, begin_capture(), capture_begun(result), __VA_ARGS__)
#define BODY_SYNC(symbol, ...)                                                                                         \
    AROUND(symbol, const uint64_t began_ticks = ct_rest_begin(), rested(began_ticks, result), __VA_ARGS__)
#define BODY_QUERY(symbol, ...) AROUND(symbol, NOTHING, ct_requests_polled(result); harvest(), __VA_ARGS__)
#define ENDING(symbol, functions, ended, ...)                                                                          \
    AROUND(symbol, struct ct_memory *memory = end_contexts(), functions; ended(memory, a, result), __VA_ARGS__)
#define BODY_ENDS(symbol, ...)                                                                                         \
    AROUND(symbol, struct ct_memory *memory = end_contexts();                                                          \
           const uint64_t leaving = ct_memory_context_leaves(memory, a), forget_functions(result);                     \
           ct_memory_context_ended(memory, a, leaving, result), __VA_ARGS__)
#define BODY_DETACHES(symbol, ...) ENDING(symbol, forget_functions(result), ct_memory_context_detached, __VA_ARGS__)
#define BODY_RESETS(symbol, ...) ENDING(symbol, forget_functions(result), ct_memory_primary_released, __VA_ARGS__)
#define BODY_WITHERS(symbol, ...) ENDING(symbol, forget_functions(result), ct_memory_green_ended, __VA_ARGS__)
#define BODY_RELEASES(symbol, ...) ENDING(symbol, release_functions(result, a), ct_memory_primary_released, __VA_ARGS__)
#define BODY_ALLOC(symbol, ...) AROUND(symbol, NOTHING, ct_seen_memory(0, result), __VA_ARGS__)
#define BODY_FREE(symbol, ...) AROUND(symbol, NOTHING, ct_seen_memory(1, result), __VA_ARGS__)

#define CT_EACH_HOOK(what, symbol, ...) BODY_##what(symbol, __VA_ARGS__)
#define ASKED(symbol, ...)
#include "hook/hooked.def"
#undef ASKED
#undef CT_EACH_HOOK

/* -- waits for all, and for one stream ------------------------------------------------------------------------------ */

static uint64_t calls_before(void)
{
    struct ct_session *session = ct_session();
    return session ? atomic_load_explicit(&session->record.header->calls, memory_order_relaxed) : 0;
}

static CUresult waited_for_all(uint64_t calls, uint64_t began_ticks, CUresult result)
{
    struct ct_session *session = ct_session();
    if (session && result == CUDA_SUCCESS)
        atomic_store_explicit(&session->calls_when_idle, calls, memory_order_relaxed);
    ct_rest_end(began_ticks, CT_AWAITED_ALL, NULL, 0, result);
    harvest();
    settle_memory(1, result);
    return ct_fault_seen(result);
}

CUresult cuCtxSynchronize(void)
{
    uint64_t calls = calls_before(), began_ticks = ct_rest_begin();
    return waited_for_all(calls, began_ticks, CT_NEXT(cuCtxSynchronize)());
}

CUresult cuCtxSynchronize_v2(CUcontext context)
{
    uint64_t began_ticks = ct_rest_begin();
    CUresult result = CT_NEXT(cuCtxSynchronize_v2)(context);
    rested(began_ticks, result); /* perhaps not the context that the work is in */
    return ct_fault_seen(result);
}

#define WAIT_FOR_STREAM(symbol, is_twin)                                                                               \
    CUresult symbol(CUstream stream)                                                                                   \
    {                                                                                                                  \
        const uint64_t began_ticks = ct_rest_begin();                                                                  \
        CUresult result = CT_NEXT(symbol)(stream);                                                                     \
        ct_rest_end(began_ticks, CT_AWAITED_STREAM, stream, is_twin, result);                                          \
        harvest();                                                                                                     \
        settle_memory(0, result);                                                                                      \
        return ct_fault_seen(result);                                                                                  \
    }

WAIT_FOR_STREAM(cuStreamSynchronize, 0)
WAIT_FOR_STREAM(cuStreamSynchronize_ptsz, 1)
