/* Contexts: the memory that they occupy, and what is freed with them. */
#include "hook/launch/capture_mode.h"
#include "hook/memory/context.h"

static uint64_t context_bytes(struct ct_memory *memory)
{
    return memory ? ct_ledger_context_bytes(&memory->ledger) : 0;
}

uint64_t ct_memory_home(struct ct_memory *memory)
{
    struct ct_holding holding;
    uint64_t context = memory ? (uintptr_t)ct_current_context() : 0;
    return context && ct_holding_find(memory, CT_HELD_CONTEXT, context, &holding) ? holding.home : context;
}

/* ---- ordinary contexts -------------------------------------------------------------------------------------------- */

static CUresult settle_context(struct ct_memory *memory, uint64_t bytes, const CUcontext *context, CUresult result)
{
    const uint64_t handle = result == CUDA_SUCCESS ? (uintptr_t)*context : 0;
    const struct ct_holding holding = {.key = handle, .home = handle, .bytes = bytes, .held = CT_HELD_CONTEXT,
                                       .kind = CT_LEDGER_OWN};
    return ct_memory_settle(memory, &holding, result);
}

#define CREATE(symbol, ...)                                                                                            \
    CT_ON_DEVICE(device);                                                                                              \
    struct ct_memory *memory = ct_memory();                                                                            \
    struct ct_memory_wait wait = {0};                                                                                  \
    const uint64_t bytes = context_bytes(memory);                                                                      \
    CUresult result = ct_memory_reserve(memory, CT_LEDGER_OWN, bytes);                                                 \
    if (result != CUDA_SUCCESS)                                                                                        \
        return result;                                                                                                 \
    do                                                                                                                 \
        result = CT_NEXT(symbol)(context, __VA_ARGS__);                                                                \
    while (ct_memory_should_retry(memory, &wait, bytes, result));                                                      \
    return settle_context(memory, bytes, context, result)

CT_EXPORT CUresult cuCtxCreate(CUcontext *context, unsigned int flags, CUdevice device)
{
    CREATE(cuCtxCreate, flags, device);
}

CT_EXPORT CUresult cuCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice device)
{
    CREATE(cuCtxCreate_v2, flags, device);
}

CT_EXPORT CUresult cuCtxCreate_v3(CUcontext *context, CUexecAffinityParam *affinities, int count, unsigned int flags,
                                  CUdevice device)
{
    CREATE(cuCtxCreate_v3, affinities, count, flags, device);
}

CT_EXPORT CUresult cuCtxCreate_v4(CUcontext *context, CUctxCreateParams *params, unsigned int flags, CUdevice device)
{
    CREATE(cuCtxCreate_v4, params, flags, device);
}

uint64_t ct_memory_context_ending(struct ct_memory *memory, CUcontext context)
{
    static _Atomic uint64_t serial;
    const uint64_t ending_home = CT_HOME_ENDING | fetch_add_relaxed(&serial, 1);
    if (context)
        ct_holdings_move(memory, (uintptr_t)context, ending_home);
    return ending_home;
}

void ct_memory_context_ended(struct ct_memory *memory, CUcontext context, uint64_t ending_home, CUresult result)
{
    if (result == CUDA_SUCCESS)
        ct_holdings_end(memory, ending_home);
    else
        ct_holdings_move(memory, ending_home, (uintptr_t)context);
    ct_memory_end(memory);
}

/* An attached context remains until it is detached as often; the note counts the attachments. */
static uint64_t change_users(struct ct_memory *memory, CUcontext context, int64_t change)
{
    struct ct_holding holding;
    if (!ct_holding_take(memory, CT_HELD_CONTEXT, (uintptr_t)context, &holding))
        return 0;
    uint64_t users = holding.note;
    holding.note += (uint64_t)change;
    ct_holding_add(memory, &holding);
    return users;
}

CT_EXPORT CUresult cuCtxAttach(CUcontext *context, unsigned int flags)
{
    CUresult result = CT_NEXT(cuCtxAttach)(context, flags);
    if (result == CUDA_SUCCESS)
        change_users(ct_memory(), *context, 1);
    return ct_fault_check(result);
}

void ct_memory_context_detached(struct ct_memory *memory, CUcontext context, CUresult result)
{
    struct ct_holding holding;
    int has_others = ct_holding_find(memory, CT_HELD_CONTEXT, (uintptr_t)context, &holding) && holding.note;
    if (result == CUDA_SUCCESS && has_others)
        change_users(memory, context, -1);
    else if (result == CUDA_SUCCESS)
        ct_holdings_end(memory, (uintptr_t)context);
    ct_memory_end(memory);
}

/* ---- primary contexts: one per device, however often it is retained ----------------------------------------------- */

/* Records that the primary context of the device exists; `reserved` bytes were reserved for it unless it was already in
 * the table. */
static void add_primary(struct ct_memory *memory, CUdevice device, uint64_t reserved)
{
    struct ct_holding holding;
    const struct ct_holding primary = {.key = CT_HOME_PRIMARY(device), .home = CT_HOME_PRIMARY(device),
                                       .bytes = reserved, .held = CT_HELD_PRIMARY, .kind = CT_LEDGER_OWN};
    if (ct_holding_find(memory, CT_HELD_PRIMARY, CT_HOME_PRIMARY(device), &holding))
        ct_memory_release(memory, CT_LEDGER_OWN, reserved); /* another thread was faster */
    else
        ct_holding_add(memory, &primary);
}

/* Begins a change, and reserves memory for the primary context unless it is known to exist, and `more` bytes; `bytes`
 * receives the amount for the primary context. */
static CUresult reserve_primary(struct ct_memory *memory, CUdevice device, uint64_t more, uint64_t *bytes)
{
    struct ct_holding holding;
    *bytes = ct_holding_find(memory, CT_HELD_PRIMARY, CT_HOME_PRIMARY(device), &holding) ? 0 : context_bytes(memory);
    if (*bytes + more)
        return ct_memory_reserve(memory, CT_LEDGER_OWN, *bytes + more);
    ct_memory_begin(memory); /* it exists and needs no more memory, even if the tenant is over its quota */
    return CUDA_SUCCESS;
}

CT_EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    CT_ON_DEVICE(device);
    struct ct_memory *memory = ct_memory();
    struct ct_memory_wait wait = {0};
    uint64_t bytes;
    CUresult result = reserve_primary(memory, device, 0, &bytes);
    if (result != CUDA_SUCCESS)
        return result;
    do
        result = CT_NEXT(cuDevicePrimaryCtxRetain)(context, device);
    while (ct_memory_should_retry(memory, &wait, bytes, result));
    if (result == CUDA_SUCCESS && memory) {
        const struct ct_holding home = {.key = (uintptr_t)*context, .home = CT_HOME_PRIMARY(device),
                                        .held = CT_HELD_CONTEXT, .kind = CT_LEDGER_OWN};
        add_primary(memory, device, bytes);
        ct_holding_add(memory, &home);
    } else {
        ct_memory_release(memory, CT_LEDGER_OWN, bytes);
    }
    ct_memory_end(memory);
    return ct_fault_check(result);
}

static int is_active(CUdevice device)
{
    unsigned int flags;
    int active = 0;
    return CT_NEXT(cuDevicePrimaryCtxGetState)(device, &flags, &active) == CUDA_SUCCESS && active;
}

void ct_memory_primary_released(struct ct_memory *memory, CUdevice device, CUresult result)
{
    if (memory && result == CUDA_SUCCESS && !is_active(device))
        ct_holdings_end(memory, CT_HOME_PRIMARY(device));
    ct_memory_end(memory);
}

/* ---- green contexts: allocations in them belong to the primary context, which they retain ------------------------- */

/* Returns how much less memory is free than before, at most `max` bytes; `max` if the driver cannot tell. Other processes
 * may have allocated or freed memory meanwhile: the node tolerates a difference. */
static uint64_t taken_since(int was_known, size_t free_before, uint64_t max)
{
    size_t free_bytes = 0, total_bytes;
    if (!was_known || CT_NEXT(cuMemGetInfo_v2)(&free_bytes, &total_bytes) != CUDA_SUCCESS)
        return max;
    const uint64_t taken = free_before > free_bytes ? free_before - free_bytes : 0;
    return taken < max ? taken : max;
}

/* A green context takes memory of its own, at most as much as an ordinary one; drivers do not document how much. */
CT_EXPORT CUresult cuGreenCtxCreate(CUgreenCtx *green, CUdevResourceDesc resources, CUdevice device, unsigned int flags)
{
    CT_ON_DEVICE(device);
    struct ct_memory *memory = ct_memory();
    const uint64_t max = context_bytes(memory);
    uint64_t bytes;
    size_t free_before = 0, total_bytes;
    CUresult result = reserve_primary(memory, device, max, &bytes);
    if (result != CUDA_SUCCESS)
        return result;
    const int is_known = !bytes && CT_NEXT(cuMemGetInfo_v2)(&free_before, &total_bytes) == CUDA_SUCCESS;
    result = CT_NEXT(cuGreenCtxCreate)(green, resources, device, flags);
    if (result == CUDA_SUCCESS && memory) {
        const uint64_t taken = taken_since(is_known, free_before, max);
        const struct ct_holding holding = {.key = (uintptr_t)*green, .note = (uint64_t)device, .bytes = taken,
                                           .held = CT_HELD_GREEN, .kind = CT_LEDGER_OWN};
        ct_memory_release(memory, CT_LEDGER_OWN, max - taken);
        add_primary(memory, device, bytes);
        ct_holding_add(memory, &holding);
    } else {
        ct_memory_release(memory, CT_LEDGER_OWN, bytes + max);
    }
    ct_memory_end(memory);
    return ct_fault_check(result);
}

CT_EXPORT CUresult cuCtxFromGreenCtx(CUcontext *context, CUgreenCtx green)
{
    CT_ON_DEVICE(ct_holding_device(CT_HELD_GREEN, (uintptr_t)green));
    CUresult result = CT_NEXT(cuCtxFromGreenCtx)(context, green);
    struct ct_memory *memory = ct_memory();
    struct ct_holding holding;
    if (result == CUDA_SUCCESS && ct_holding_find(memory, CT_HELD_GREEN, (uintptr_t)green, &holding)) {
        const struct ct_holding home = {.key = (uintptr_t)*context, .home = CT_HOME_PRIMARY(holding.note),
                                        .held = CT_HELD_CONTEXT, .kind = CT_LEDGER_OWN};
        ct_holding_add(memory, &home);
    }
    return ct_fault_check(result);
}

void ct_memory_green_ended(struct ct_memory *memory, CUgreenCtx green, CUresult result)
{
    struct ct_holding holding;
    if (result != CUDA_SUCCESS || !ct_holding_take(memory, CT_HELD_GREEN, (uintptr_t)green, &holding)) {
        ct_memory_end(memory);
        return;
    }
    ct_memory_release(memory, CT_LEDGER_OWN, holding.bytes);
    ct_memory_primary_released(memory, (CUdevice)holding.note, result);
}
