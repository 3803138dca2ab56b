/* Memory shared between processes: it counts for its exporter until the last importer has closed it. */
#define _GNU_SOURCE
#include "hook/memory/memory.h"

#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

static uint64_t key_of(const void *bytes, size_t count)
{
    const unsigned char *byte = bytes;
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < count; i++)
        hash = (hash ^ byte[i]) * UINT64_C(0x100000001b3);
    hash ^= hash >> 29;
    return hash ? hash : 1;
}

/* Returns the key of the file behind a descriptor, if every allocation has its own file. NVIDIA's driver returns
 * descriptors of the device file, which are all alike. */
uint64_t ct_share_key_of_file(int descriptor)
{
    struct stat file;
    int saved_errno = errno, is_known = fstat(descriptor, &file) == 0 && S_ISREG(file.st_mode);
    errno = saved_errno;
    const uint64_t words[2] = {is_known ? file.st_dev : 0, is_known ? file.st_ino : 0};
    return is_known ? key_of(words, sizeof words) : 0;
}

CUresult ct_share_refused(int descriptor)
{
    int saved_errno = errno;
    close(descriptor);
    errno = saved_errno;
    return CUDA_ERROR_OUT_OF_MEMORY;
}

void ct_share_freed(struct ct_memory *memory, enum ct_ledger_kind kind, uint64_t bytes, uint64_t key)
{
    if (key)
        ct_ledger_share_drop(&memory->ledger, CT_LEDGER_EXPORT, key);
    else
        ct_memory_release(memory, kind, bytes);
}

int ct_share_add(struct ct_memory *memory, enum ct_ledger_role role, uint64_t key, uint64_t bytes)
{
    return ct_ledger_share_add(&memory->ledger, role, key, bytes);
}

int ct_share_opens(struct ct_memory *memory, uint64_t key)
{
    if (!memory)
        return 1;
    return ct_share_add(memory, CT_LEDGER_IMPORT, key, ct_ledger_exported_bytes(&memory->ledger, key));
}

/* Invalidates the measurement, because after the owner's death the device may have attributed the memory to this
 * process. */
void ct_share_closed(struct ct_memory *memory, uint64_t key)
{
    if (!key)
        return;
    ct_ledger_invalidate_measurement(&memory->ledger);
    ct_ledger_share_drop(&memory->ledger, CT_LEDGER_IMPORT, key);
}

/* ---- IPC handles -------------------------------------------------------------------------------------------------- */

/* The key is stored with the allocation that contains the pointer. */
CT_EXPORT CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr pointer)
{
    struct ct_memory *memory = ct_memory();
    struct ct_holding holding;
    CUdeviceptr start = pointer;
    size_t bytes;
    ct_memory_begin(memory);
    CUresult result = CT_NEXT(cuIpcGetMemHandle)(handle, pointer);
    if (memory && result == CUDA_SUCCESS) {
        if (CT_NEXT(cuMemGetAddressRange_v2)(&start, &bytes, pointer) != CUDA_SUCCESS)
            start = pointer;
        const uint64_t key = key_of(handle, sizeof *handle);
        if (ct_holding_find(memory, CT_HELD_MEMORY, start, &holding) && !holding.note) {
            holding.note = key;
            if (ct_share_add(memory, CT_LEDGER_EXPORT, key, holding.bytes))
                ct_holding_add(memory, &holding);
            else
                result = CUDA_ERROR_OUT_OF_MEMORY;
        }
    }
    ct_memory_end(memory);
    return ct_fault_check(result);
}

/* Completes the opening of an IPC handle. A handle that is opened again has the same address, and is closed as often;
 * `bytes` counts how often. It uses none of our memory. */
static CUresult settle_open(struct ct_memory *memory, const CUdeviceptr *pointer, uint64_t key, CUresult result)
{
    struct ct_holding holding;
    ct_count_memory_call(0, result);
    if (!memory)
        return ct_fault_check(result);
    if (result != CUDA_SUCCESS) {
        ct_share_closed(memory, key);
        return ct_fault_check(result);
    }
    if (ct_holding_find(memory, CT_HELD_OPENED, *pointer, &holding)) {
        holding.bytes++;
        ct_ledger_share_drop(&memory->ledger, CT_LEDGER_IMPORT, key);
    } else {
        holding = (struct ct_holding){.key = *pointer, .bytes = 1, .home = ct_memory_home(memory), .note = key,
                                      .held = CT_HELD_OPENED};
    }
    ct_holding_add(memory, &holding);
    return result;
}

#define IPC_OPEN(symbol)                                                                                               \
    CT_EXPORT CUresult symbol(CUdeviceptr *pointer, CUipcMemHandle handle, unsigned int flags)                         \
    {                                                                                                                  \
        struct ct_memory *memory = ct_memory();                                                                        \
        const uint64_t key = key_of(&handle, sizeof handle);                                                           \
        if (!ct_share_opens(memory, key))                                                                              \
            return CUDA_ERROR_MAP_FAILED;                                                                              \
        return settle_open(memory, pointer, key, CT_NEXT(symbol)(pointer, handle, flags));                             \
    }

IPC_OPEN(cuIpcOpenMemHandle)
IPC_OPEN(cuIpcOpenMemHandle_v2)

CT_EXPORT CUresult cuIpcCloseMemHandle(CUdeviceptr pointer)
{
    CT_ON_DEVICE(ct_holding_device(CT_HELD_OPENED, pointer));
    struct ct_memory *memory = ct_memory();
    struct ct_holding holding;
    ct_memory_begin(memory);
    const int was_held = ct_holding_take(memory, CT_HELD_OPENED, pointer, &holding);
    CUresult result = CT_NEXT(cuIpcCloseMemHandle)(pointer);
    ct_count_memory_call(1, result);
    if (was_held && result == CUDA_SUCCESS && !--holding.bytes)
        ct_share_closed(memory, holding.note);
    else if (was_held)
        ct_holding_add(memory, &holding);
    ct_memory_end(memory);
    return ct_fault_check(result);
}

/* ---- pools -------------------------------------------------------------------------------------------------------- */

CT_EXPORT CUresult cuMemPoolExportToShareableHandle(void *handle, CUmemoryPool pool, CUmemAllocationHandleType type,
                                                    unsigned long long flags)
{
    CT_ON_DEVICE(ct_pool_device(pool));
    struct ct_memory *memory = ct_memory();
    CUresult result = CT_NEXT(cuMemPoolExportToShareableHandle)(handle, pool, type, flags);
    if (!memory || result != CUDA_SUCCESS || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return ct_fault_check(result);
    const uint64_t key = ct_share_key_of_file(*(const int *)handle);
    ct_supplies_lock(&memory->supplies);
    struct ct_supply *supply = ct_supply_of(&memory->supplies, pool, 0);
    if (!supply)
        supply = ct_supply_make(&memory->supplies, pool, 0);
    int has_capacity = 1;
    if (supply && supply->is_counted && key && !supply->key) {
        has_capacity = ct_share_add(memory, CT_LEDGER_EXPORT, key, supply->counted_bytes + supply->pending_bytes);
        supply->key = has_capacity ? key : 0;
    }
    ct_supplies_unlock(&memory->supplies);
    return has_capacity ? result : ct_share_refused(*(const int *)handle);
}

/* The exporter is charged for it; an import only prevents its release. */
CT_EXPORT CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool *pool, void *handle, CUmemAllocationHandleType type,
                                                      unsigned long long flags)
{
    struct ct_memory *memory = ct_memory();
    const uint64_t key = memory && type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
                             ? ct_share_key_of_file((int)(intptr_t)handle)
                             : 0;
    if (key && !ct_share_opens(memory, key))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = CT_NEXT(cuMemPoolImportFromShareableHandle)(pool, handle, type, flags);
    ct_count_memory_call(0, result);
    if (!memory || result != CUDA_SUCCESS) {
        if (memory)
            ct_share_closed(memory, key);
        return ct_fault_check(result);
    }
    ct_supplies_lock(&memory->supplies);
    struct ct_supply *supply = ct_supply_make(&memory->supplies, *pool, 0);
    if (supply) {
        supply->is_counted = 0;
        supply->key = key;
    }
    ct_supplies_unlock(&memory->supplies);
    return result;
}

CT_EXPORT CUresult cuMemPoolImportPointer(CUdeviceptr *pointer, CUmemoryPool pool, CUmemPoolPtrExportData *data)
{
    CT_ON_DEVICE(ct_pool_device(pool));
    struct ct_memory *memory = ct_memory();
    CUresult result = CT_NEXT(cuMemPoolImportPointer)(pointer, pool, data);
    ct_count_memory_call(0, result);
    if (!memory || result != CUDA_SUCCESS)
        return ct_fault_check(result);
    ct_supplies_lock(&memory->supplies);
    struct ct_supply *supply = ct_supply_of(&memory->supplies, pool, 0);
    if (supply)
        supply->allocations++;
    ct_supplies_unlock(&memory->supplies);
    const struct ct_holding holding = {.key = *pointer, .home = 0, .note = (uintptr_t)supply, .held = CT_HELD_POOLED};
    if (supply)
        ct_holding_add(memory, &holding);
    return result;
}
