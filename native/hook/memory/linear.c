/* Linear device memory: allocation, release, and queries of the free memory. */
#include "hook/memory/memory.h"

/* Counts the allocation if it succeeded, or releases the reservation. */
static CUresult settle(struct ct_memory *memory, enum ct_ledger_kind kind, uint64_t bytes, const CUdeviceptr *pointer,
                       CUresult result)
{
    ct_count_memory_call(0, result);
    const struct ct_holding holding = {.key = result == CUDA_SUCCESS ? *pointer : 0, .bytes = bytes,
                                       .home = result == CUDA_SUCCESS ? ct_memory_home(memory) : 0,
                                       .held = CT_HELD_MEMORY, .kind = (uint8_t)kind};
    return ct_memory_settle(memory, &holding, result);
}

CT_EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes)
{
    struct ct_memory *memory = ct_memory();
    struct ct_memory_wait wait = {0};
    const uint64_t rounded_bytes = ct_memory_rounded(bytes);
    CUresult result = ct_memory_reserve(memory, CT_LEDGER_ALLOCATED, rounded_bytes);
    if (result != CUDA_SUCCESS)
        return result;
    do
        result = CT_NEXT(cuMemAlloc_v2)(pointer, bytes);
    while (ct_memory_should_retry(memory, &wait, rounded_bytes, result));
    return settle(memory, CT_LEDGER_ALLOCATED, rounded_bytes, pointer, result);
}

/* Row pitches are a multiple of this on all known devices; the pitch that the driver returns is what counts. */
enum { ROW_BYTES = 512 };

static uint64_t saturating_product(uint64_t left, uint64_t right)
{
    uint64_t product;
    return __builtin_mul_overflow(left, right, &product) ? UINT64_MAX : product;
}

/* Changes a reservation to the actual size, which is returned. */
static uint64_t correct_reservation(struct ct_memory *memory, uint64_t reserved, uint64_t actual)
{
    if (actual < reserved)
        ct_memory_release(memory, CT_LEDGER_ALLOCATED, reserved - actual);
    else if (memory && actual > reserved) /* it is allocated, so it counts even beyond the quota */
        ct_ledger_reserve(&memory->ledger, CT_LEDGER_ALLOCATED, actual - reserved, 0);
    return actual;
}

CT_EXPORT CUresult cuMemAllocPitch_v2(CUdeviceptr *pointer, size_t *pitch, size_t width, size_t height,
                                      unsigned int element)
{
    struct ct_memory *memory = ct_memory();
    struct ct_memory_wait wait = {0};
    uint64_t row = width > UINT64_MAX - ROW_BYTES ? UINT64_MAX : (width + ROW_BYTES - 1) / ROW_BYTES * ROW_BYTES;
    uint64_t rounded_bytes = ct_memory_rounded(saturating_product(row, height));
    CUresult result = ct_memory_reserve(memory, CT_LEDGER_ALLOCATED, rounded_bytes);
    if (result != CUDA_SUCCESS)
        return result;
    do
        result = CT_NEXT(cuMemAllocPitch_v2)(pointer, pitch, width, height, element);
    while (ct_memory_should_retry(memory, &wait, rounded_bytes, result));
    if (result == CUDA_SUCCESS)
        rounded_bytes =
            correct_reservation(memory, rounded_bytes, ct_memory_rounded(saturating_product(*pitch, height)));
    return settle(memory, CT_LEDGER_ALLOCATED, rounded_bytes, pointer, result);
}

CT_EXPORT CUresult cuMemAllocManaged(CUdeviceptr *pointer, size_t bytes, unsigned int flags)
{
    struct ct_memory *memory = ct_memory();
    const uint64_t rounded_bytes = ct_memory_rounded(bytes);
    CUresult result = ct_memory_reserve(memory, CT_LEDGER_MANAGED, rounded_bytes);
    if (result != CUDA_SUCCESS)
        return result;
    return settle(memory, CT_LEDGER_MANAGED, rounded_bytes, pointer, CT_NEXT(cuMemAllocManaged)(pointer, bytes, flags));
}

/* Unknown pointers are passed to the driver unchanged. Memory of pools and graphs is counted by what those have
 * reserved. */
CT_EXPORT CUresult cuMemFree_v2(CUdeviceptr pointer)
{
    CT_ON_DEVICE(ct_pointer_device(pointer));
    struct ct_memory *memory = ct_memory();
    struct ct_holding holding;
    ct_memory_begin(memory);
    int was_held = ct_holding_take(memory, CT_HELD_MEMORY, pointer, &holding);
    int was_pooled = !was_held && ct_holding_take(memory, CT_HELD_POOLED, pointer, &holding);
    CUresult result = CT_NEXT(cuMemFree_v2)(pointer);
    ct_count_memory_call(1, result);
    if (was_pooled)
        ct_pool_freed(memory, &holding, result);
    if (memory && !was_held && result == CUDA_SUCCESS)
        ct_supplies_settle(memory, 0);
    return ct_memory_settle_free(memory, &holding, was_held, result);
}

/* ---- queries ------------------------------------------------------------------------------------------------------ */

CT_EXPORT CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes)
{
    CUresult result = CT_NEXT(cuMemGetInfo_v2)(free_bytes, total_bytes);
    struct ct_memory *memory = ct_memory();
    uint64_t quota = ct_memory_quota(memory);
    if (result != CUDA_SUCCESS || !quota)
        return ct_fault_check(result);
    uint64_t held = ct_memory_held(memory), remaining = quota > held ? quota - held : 0;
    if (*free_bytes > remaining)
        *free_bytes = remaining;
    if (*total_bytes > quota)
        *total_bytes = quota;
    return result;
}

CT_EXPORT CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
    CT_ON_DEVICE(device);
    CUresult result = CT_NEXT(cuDeviceTotalMem_v2)(bytes, device);
    uint64_t quota = ct_memory_quota(ct_memory());
    if (result == CUDA_SUCCESS && quota && *bytes > quota)
        *bytes = quota;
    return ct_fault_check(result);
}
