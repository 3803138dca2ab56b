/* Physical memory: counted from cuMemCreate until its last handle is released and its last mapping is removed. */
#define _GNU_SOURCE
#include "hook/memory/memory.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

enum { ENTRIES_BYTES = 4096 };

/* Protected by the lock of the supplies; found in the holdings by handle and by the start of each mapping. Entries are
 * reused but never freed, because a program that releases a handle twice concurrently may reach one after its end. */
struct ct_physical {
    struct ct_physical *next; /* of free entries */
    uint64_t bytes;
    uint32_t handles, maps;
    uint32_t releases_pending; /* handles that the driver is about to release */
    uint64_t key; /* of an export or import; 0: neither */
    int is_imported, is_ended, is_in_array;
    int has_aliases; /* the driver has given it more than one handle */
};

/* Maps a page of free entries; a forked child gets neither them nor the accounting that refers to them. */
static void add_entries(struct ct_memory *memory)
{
    const int saved_errno = errno;
    struct ct_physical *entries =
        mmap(NULL, ENTRIES_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (entries != MAP_FAILED) {
        madvise(entries, ENTRIES_BYTES, MADV_DONTFORK);
        for (size_t i = 0; i < ENTRIES_BYTES / sizeof *entries; i++) {
            entries[i].next = memory->free_physical;
            memory->free_physical = &entries[i];
        }
    }
    errno = saved_errno;
}

static struct ct_physical *make_physical(struct ct_memory *memory)
{
    ct_supplies_lock(&memory->supplies);
    if (!memory->free_physical)
        add_entries(memory);
    struct ct_physical *physical = memory->free_physical;
    if (physical) {
        memory->free_physical = physical->next;
        *physical = (struct ct_physical){0};
    }
    ct_supplies_unlock(&memory->supplies);
    return physical;
}

static void end_physical(struct ct_memory *memory, struct ct_physical *physical)
{
    if (!physical)
        return;
    ct_supplies_lock(&memory->supplies);
    physical->is_ended = 1;
    physical->next = memory->free_physical;
    memory->free_physical = physical;
    ct_supplies_unlock(&memory->supplies);
}

static struct ct_physical *physical_of(const struct ct_holding *holding)
{
    return (struct ct_physical *)(uintptr_t)holding->note;
}

static void add_handle(struct ct_memory *memory, uint64_t handle, struct ct_physical *physical)
{
    const struct ct_holding holding = {.key = handle, .note = (uintptr_t)physical, .held = CT_HELD_PHYSICAL};
    ct_holding_add(memory, &holding); /* on failure it is counted until the process ends */
}

/* Changes the counts; the memory ends when it has neither handles nor mappings. */
static void change_counts(struct ct_memory *memory, struct ct_physical *physical, int handles, int maps, uint32_t released)
{
    ct_supplies_lock(&memory->supplies);
    if (physical->is_ended) {
        ct_supplies_unlock(&memory->supplies);
        return;
    }
    physical->handles += (uint32_t)handles;
    physical->maps += (uint32_t)maps;
    physical->releases_pending -= released;
    const int has_ended = !physical->handles && !physical->maps;
    physical->is_ended = has_ended;
    ct_supplies_unlock(&memory->supplies);
    if (!has_ended)
        return;
    if (physical->has_aliases) /* a remaining handle could be reused for other memory */
        ct_holdings_forget(memory, CT_HELD_PHYSICAL, (uintptr_t)physical);
    if (physical->is_in_array)
        ; /* the bytes stay in our line */
    else if (!physical->is_imported)
        ct_share_freed(memory, CT_LEDGER_ALLOCATED, physical->bytes, physical->key);
    else
        ct_share_closed(memory, physical->key);
    end_physical(memory, physical);
}

/* ---- handles ------------------------------------------------------------------------------------------------------ */

CT_EXPORT CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes, const CUmemAllocationProp *props,
                               unsigned long long flags)
{
    const int is_on_device = props && props->location.type == CU_MEM_LOCATION_TYPE_DEVICE;
    CT_ON_DEVICE(is_on_device ? props->location.id : CT_ANY_DEVICE);
    struct ct_memory *memory = is_on_device ? ct_memory() : NULL;
    struct ct_physical *physical = memory ? make_physical(memory) : NULL;
    struct ct_memory_wait wait = {0};
    CUresult result = memory && !physical ? CUDA_ERROR_OUT_OF_MEMORY
        : ct_memory_reserve(memory, CT_LEDGER_ALLOCATED, bytes);
    if (result != CUDA_SUCCESS) {
        end_physical(memory, physical);
        return result;
    }
    do
        result = CT_NEXT(cuMemCreate)(handle, bytes, props, flags);
    while (ct_memory_should_retry(memory, &wait, bytes, result));
    ct_count_memory_call(0, result);
    if (memory && result == CUDA_SUCCESS) {
        *physical = (struct ct_physical){.bytes = bytes, .handles = 1};
        add_handle(memory, *handle, physical);
    } else {
        ct_memory_release(memory, CT_LEDGER_ALLOCATED, bytes);
        end_physical(memory, physical);
    }
    ct_memory_end(memory);
    return ct_fault_check(result);
}

static int is_unknown_handle(CUresult result)
{
    return result == CUDA_ERROR_INVALID_VALUE || result == CUDA_ERROR_INVALID_HANDLE || result == CUDA_ERROR_NOT_FOUND;
}

/* The last handle is removed from the table before the driver releases it, because the number may be reused at once. */
CT_EXPORT CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
    CT_ON_DEVICE(ct_holding_device(CT_HELD_PHYSICAL, handle));
    struct ct_memory *memory = ct_memory();
    struct ct_holding holding;
    int is_last = 0;
    ct_memory_begin(memory);
    struct ct_physical *physical =
        ct_holding_find(memory, CT_HELD_PHYSICAL, handle, &holding) ? physical_of(&holding) : NULL;
    if (physical) {
        ct_supplies_lock(&memory->supplies);
        is_last = physical->handles == ++physical->releases_pending;
        ct_supplies_unlock(&memory->supplies);
        if (is_last)
            ct_holding_take(memory, CT_HELD_PHYSICAL, handle, &holding);
    }
    CUresult result = CT_NEXT(cuMemRelease)(handle);
    ct_count_memory_call(1, result);
    /* If the driver does not know the handle, another thread released it after we removed the entry, and found nothing
     * to count. */
    const int is_released = result == CUDA_SUCCESS || (is_last && is_unknown_handle(result));
    if (is_last && !is_released)
        ct_holding_add(memory, &holding);
    if (physical)
        change_counts(memory, physical, is_released ? -1 : 0, 0, 1);
    ct_memory_end(memory);
    return ct_fault_check(result);
}

/* ---- mappings ----------------------------------------------------------------------------------------------------- */

CT_EXPORT CUresult cuMemMap(CUdeviceptr pointer, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
                            unsigned long long flags)
{
    CT_ON_DEVICE(ct_holding_device(CT_HELD_PHYSICAL, handle));
    struct ct_memory *memory = ct_memory();
    struct ct_holding holding;
    const int is_held = ct_holding_find(memory, CT_HELD_PHYSICAL, handle, &holding);
    if (is_held) /* before the call: another thread may release the handle as soon as it is mapped */
        change_counts(memory, physical_of(&holding), 0, 1, 0);
    CUresult result = CT_NEXT(cuMemMap)(pointer, bytes, offset, handle, flags);
    ct_count_memory_call(0, result);
    if (is_held && result == CUDA_SUCCESS) {
        const struct ct_holding mapping = {.key = pointer, .bytes = bytes, .note = holding.note,
                                           .held = CT_HELD_MAPPED};
        ct_holding_add(memory, &mapping);
    } else if (is_held) {
        change_counts(memory, physical_of(&holding), 0, -1, 0);
    }
    return ct_fault_check(result);
}

/* Adjacent mappings are removed together or not at all. Their addresses may be reused as soon as the driver returns. */
CT_EXPORT CUresult cuMemUnmap(CUdeviceptr pointer, size_t bytes)
{
    CT_ON_DEVICE(ct_holding_device(CT_HELD_MAPPED, pointer));
    struct ct_memory *memory = ct_memory();
    struct ct_holding *removed = NULL, holding;
    size_t count = 0, capacity = 0;
    ct_memory_begin(memory);
    for (uint64_t offset = 0; offset < bytes && ct_holding_take(memory, CT_HELD_MAPPED, pointer + offset, &holding);
         offset += holding.bytes) {
        if (count == capacity) {
            capacity = capacity ? 2 * capacity : 8;
            struct ct_holding *larger = realloc(removed, capacity * sizeof *larger);
            if (!larger) {
                ct_holding_add(memory, &holding);
                break;
            }
            removed = larger;
        }
        removed[count++] = holding;
    }
    CUresult result = CT_NEXT(cuMemUnmap)(pointer, bytes);
    ct_count_memory_call(1, result);
    for (size_t i = 0; i < count; i++)
        if (result == CUDA_SUCCESS)
            change_counts(memory, physical_of(&removed[i]), 0, -1, 0);
        else
            ct_holding_add(memory, &removed[i]);
    free(removed);
    ct_memory_end(memory);
    return ct_fault_check(result);
}

/* Adds a reference to a known handle, or another handle for what is mapped at the address. */
CT_EXPORT CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address)
{
    CUresult result = CT_NEXT(cuMemRetainAllocationHandle)(handle, address);
    CT_ON_DEVICE(result == CUDA_SUCCESS ? ct_holding_device(CT_HELD_PHYSICAL, *handle) : CT_ANY_DEVICE);
    struct ct_memory *memory = ct_memory();
    struct ct_holding holding;
    if (!memory || result != CUDA_SUCCESS)
        return ct_fault_check(result);
    const int is_known = ct_holding_find(memory, CT_HELD_PHYSICAL, *handle, &holding);
    if (is_known || ct_holding_around(memory, CT_HELD_MAPPED, (uintptr_t)address, &holding)) {
        change_counts(memory, physical_of(&holding), 1, 0, 0);
        if (!is_known) {
            ct_supplies_lock(&memory->supplies);
            physical_of(&holding)->has_aliases = 1;
            ct_supplies_unlock(&memory->supplies);
            add_handle(memory, *handle, physical_of(&holding));
        }
    }
    return result;
}

/* Marks memory that was mapped into a sparse array: unmapping is not reported, so it is counted until the process
 * ends. */
static void mark_mapped_arrays(const CUarrayMapInfo *infos, unsigned int number, CUresult result)
{
    struct ct_holding holding;
    for (unsigned int i = 0; result == CUDA_SUCCESS && infos && i < number; i++) {
        const int maps = infos[i].memOperationType == CU_MEM_OPERATION_TYPE_MAP;
        CT_ON_DEVICE(maps ? ct_holding_device(CT_HELD_PHYSICAL, infos[i].memHandle) : CT_ANY_DEVICE);
        if (maps && ct_holding_find(ct_memory(), CT_HELD_PHYSICAL, infos[i].memHandle, &holding))
            physical_of(&holding)->is_in_array = 1;
    }
}

#define MAP_ARRAY(symbol)                                                                                              \
    CT_EXPORT CUresult symbol(CUarrayMapInfo *infos, unsigned int number, CUstream stream)                             \
    {                                                                                                                  \
        CUresult result = CT_NEXT(symbol)(infos, number, stream);                                                      \
        mark_mapped_arrays(infos, number, result);                                                                     \
        return ct_fault_check(result);                                                                                 \
    }

MAP_ARRAY(cuMemMapArrayAsync)
MAP_ARRAY(cuMemMapArrayAsync_ptsz)

/* ---- sharing between processes ------------------------------------------------------------------------------------ */

/* Exported by a descriptor. Memory that has no entry in the ledger, or no key, cannot be tracked: see
 * docs/concepts/memory.md. */
CT_EXPORT CUresult cuMemExportToShareableHandle(void *shareable, CUmemGenericAllocationHandle handle,
                                                CUmemAllocationHandleType type, unsigned long long flags)
{
    CT_ON_DEVICE(ct_holding_device(CT_HELD_PHYSICAL, handle));
    struct ct_memory *memory = ct_memory();
    struct ct_holding holding;
    CUresult result = CT_NEXT(cuMemExportToShareableHandle)(shareable, handle, type, flags);
    if (result != CUDA_SUCCESS || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ||
        !ct_holding_find(memory, CT_HELD_PHYSICAL, handle, &holding) || physical_of(&holding)->is_imported)
        return ct_fault_check(result);
    struct ct_physical *physical = physical_of(&holding);
    const uint64_t key = ct_share_key_of_file(*(const int *)shareable);
    if (!key)
        return result;
    if (!ct_share_add(memory, CT_LEDGER_EXPORT, key, physical->bytes))
        return ct_share_refused(*(const int *)shareable);
    ct_supplies_lock(&memory->supplies);
    physical->key = key;
    ct_supplies_unlock(&memory->supplies);
    return result;
}

CT_EXPORT CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *os_handle,
                                                  CUmemAllocationHandleType type)
{
    struct ct_memory *memory = ct_memory();
    const uint64_t key = memory && type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
                             ? ct_share_key_of_file((int)(intptr_t)os_handle)
                             : 0;
    struct ct_physical *physical = key ? make_physical(memory) : NULL;
    if (key && (!physical || !ct_share_opens(memory, key))) {
        end_physical(memory, physical);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    CUresult result = CT_NEXT(cuMemImportFromShareableHandle)(handle, os_handle, type);
    ct_count_memory_call(0, result);
    if (key && result == CUDA_SUCCESS) {
        *physical = (struct ct_physical){.handles = 1, .key = key, .is_imported = 1};
        add_handle(memory, *handle, physical);
    } else if (key) {
        ct_share_closed(memory, key);
        end_physical(memory, physical);
    }
    return ct_fault_check(result);
}
