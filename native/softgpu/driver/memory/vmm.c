/* Virtual memory management: reservation of addresses, mapping of physical memory, and access rights. */
#define _GNU_SOURCE
#include "softgpu/driver/memory/vmm.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { PAGE = 4096 };

static struct sg_extent *reserved; /* unsorted: programs have few reservations */
static size_t count, capacity;

static size_t find(uint64_t address, uint64_t bytes)
{
    for (size_t i = 0; i < count; i++)
        if (address >= reserved[i].start && address - reserved[i].start < reserved[i].bytes &&
            bytes <= reserved[i].bytes - (address - reserved[i].start))
            return i;
    return count;
}

static void *blank(uint64_t address, uint64_t bytes, int how)
{
    return mmap((void *)(uintptr_t)address, bytes, PROT_NONE,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | how, -1, 0);
}

/* Reserve at the hint if it is free, otherwise anywhere. */
static uint64_t space(uint64_t bytes, uint64_t alignment, uint64_t hint)
{
    void *start = MAP_FAILED;
    if (hint && hint % alignment == 0)
        start = blank(hint, bytes, MAP_FIXED_NOREPLACE);
    if (start != MAP_FAILED && (uintptr_t)start == hint)
        return hint;
    if (start != MAP_FAILED) /* an old kernel treated it as a hint */
        munmap(start, bytes);
    start = blank(0, bytes + alignment, 0);
    if (start == MAP_FAILED)
        return 0;
    uint64_t raw = (uintptr_t)start, aligned = (raw + alignment - 1) / alignment * alignment;
    if (aligned > raw)
        munmap(start, aligned - raw);
    munmap((void *)(uintptr_t)(aligned + bytes), alignment - (aligned - raw));
    return aligned;
}

API CUresult cuMemAddressReserve(CUdeviceptr *pointer, size_t bytes, size_t alignment, CUdeviceptr hint,
                                 unsigned long long flags)
{
    CUresult result = sg_enter();
    if (result != CUDA_SUCCESS)
        return result;
    if (!pointer || !bytes || bytes % PAGE || hint % PAGE || (alignment & (alignment - 1)) || flags)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    if (alignment < SG_GRANULARITY)
        alignment = SG_GRANULARITY;
    if (bytes > UINT64_MAX - alignment)
        return sg_leave(CUDA_ERROR_OUT_OF_MEMORY);
    if (count == capacity) {
        size_t more = capacity ? capacity * 2 : 16;
        struct sg_extent *larger = realloc(reserved, more * sizeof *larger);
        if (!larger)
            return sg_leave(CUDA_ERROR_OUT_OF_MEMORY);
        reserved = larger;
        capacity = more;
    }
    uint64_t start = space(bytes, alignment, hint);
    if (!start)
        return sg_leave(CUDA_ERROR_OUT_OF_MEMORY);
    reserved[count++] = (struct sg_extent){start, bytes};
    *pointer = start;
    return sg_leave(CUDA_SUCCESS);
}

API CUresult cuMemAddressFree(CUdeviceptr pointer, size_t bytes)
{
    CUresult result = sg_enter();
    if (result != CUDA_SUCCESS)
        return result;
    size_t at = find(pointer, bytes);
    if (at == count || reserved[at].start != pointer || reserved[at].bytes != bytes ||
        sg_memory_overlaps(pointer, bytes))
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    munmap((void *)(uintptr_t)pointer, bytes);
    reserved[at] = reserved[--count];
    return sg_leave(CUDA_SUCCESS);
}

int sg_view_protect(const struct sg_memory *memory)
{
    int protection = memory->writers ? PROT_READ | PROT_WRITE : memory->readers ? PROT_READ : PROT_NONE;
    return mprotect((void *)(uintptr_t)memory->start, memory->bytes, protection);
}

/* With an old size of 0, mremap creates a second mapping of the same shared pages. */
int sg_physical_view(const struct sg_physical *physical, uint64_t address, uint64_t bytes)
{
    void *made = mremap((void *)(uintptr_t)physical->base, 0, bytes, MREMAP_MAYMOVE | MREMAP_FIXED,
                        (void *)(uintptr_t)address);
    return made == MAP_FAILED ? -1 : 0;
}

int sg_views_renew(const struct sg_physical *physical)
{
    struct sg_memory *memory = NULL;
    while ((memory = sg_memory_next(memory)) != NULL)
        if (memory->physical == physical &&
            (sg_physical_view(physical, memory->start, memory->bytes) < 0 || sg_view_protect(memory) < 0))
            return -1;
    return 0;
}

API CUresult cuMemMap(CUdeviceptr pointer, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
                      unsigned long long flags)
{
    CUresult result = sg_enter();
    if (result != CUDA_SUCCESS)
        return result;
    struct sg_physical *physical = sg_physical_of(handle);
    if (!physical || !bytes || pointer % SG_GRANULARITY || bytes % SG_GRANULARITY || offset || flags ||
        bytes > physical->bytes || find(pointer, bytes) == count || sg_memory_overlaps(pointer, bytes))
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    if (sg_physical_view(physical, pointer, bytes) < 0)
        return sg_leave(CUDA_ERROR_OUT_OF_MEMORY);
    struct sg_memory *memory = sg_memory_insert(NULL, physical->device, pointer, bytes);
    if (!memory) {
        blank(pointer, bytes, MAP_FIXED);
        return sg_leave(CUDA_ERROR_OUT_OF_MEMORY);
    }
    memory->physical = physical;
    if (physical->props.location.type != CU_MEM_LOCATION_TYPE_DEVICE)
        memory->kind = SG_MEMORY_HOST;
    sg_view_protect(memory);
    physical->maps++;
    return sg_leave(CUDA_SUCCESS);
}

/* Whether whole adjacent mappings cover exactly these addresses. */
static int is_tiled(uint64_t address, uint64_t bytes)
{
    while (bytes) {
        const struct sg_memory *memory = sg_memory_at(address);
        if (!memory || !memory->physical || memory->start != address || memory->bytes > bytes)
            return 0;
        address += memory->bytes;
        bytes -= memory->bytes;
    }
    return 1;
}

static int is_whole(uint64_t address, uint64_t bytes)
{
    return bytes && address % SG_GRANULARITY == 0 && bytes % SG_GRANULARITY == 0 && is_tiled(address, bytes);
}

/* Pending work may use the range. The driver also waits for the device before a mapping changes. */
static CUresult wait_for_range(uint64_t address, uint64_t bytes)
{
    if (!is_whole(address, bytes))
        return CUDA_ERROR_INVALID_VALUE;
    if (!sg_effects_pending())
        return CUDA_SUCCESS;
    sg_wait_all(NULL);
    /* The lock was released during the wait. */
    return is_tiled(address, bytes) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuMemUnmap(CUdeviceptr pointer, size_t bytes)
{
    CUresult result = sg_enter();
    if (result != CUDA_SUCCESS)
        return result;
    result = wait_for_range(pointer, bytes);
    if (result != CUDA_SUCCESS)
        return sg_leave(result);
    for (uint64_t done = 0, mapped_bytes; done < bytes; done += mapped_bytes) {
        const struct sg_memory *memory = sg_memory_at(pointer + done);
        struct sg_physical *physical = memory->physical;
        mapped_bytes = memory->bytes;
        blank(pointer + done, mapped_bytes, MAP_FIXED);
        sg_memory_remove_entry(pointer + done);
        physical->maps--;
        sg_physical_release(physical);
    }
    return sg_leave(CUDA_SUCCESS);
}

/* Return the bit of a location: one per device, one for the host. */
static uint32_t location_bit(const CUmemLocation *location)
{
    if (location->type == CU_MEM_LOCATION_TYPE_DEVICE)
        return sg_device_at(location->id) ? UINT32_C(1) << location->id : 0;
    return location->type == CU_MEM_LOCATION_TYPE_HOST || location->type == CU_MEM_LOCATION_TYPE_HOST_NUMA
               ? UINT32_C(1) << 31
               : 0;
}

static CUresult check_access(const CUmemAccessDesc *access, size_t access_count)
{
    if (!access || !access_count)
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < access_count; i++) {
        int flags = (int)access[i].flags;
        if (!location_bit(&access[i].location))
            return access[i].location.type == CU_MEM_LOCATION_TYPE_DEVICE ? CUDA_ERROR_INVALID_DEVICE
                                                                          : CUDA_ERROR_INVALID_VALUE;
        if (flags != CU_MEM_ACCESS_FLAGS_PROT_NONE && flags != CU_MEM_ACCESS_FLAGS_PROT_READ &&
            flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
            return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

static void update_access(uint32_t *readers, uint32_t *writers, const CUmemAccessDesc *access, size_t access_count)
{
    for (size_t i = 0; i < access_count; i++) {
        uint32_t bit = location_bit(&access[i].location);
        *readers = (int)access[i].flags & 1 ? *readers | bit : *readers & ~bit;
        *writers = (int)access[i].flags & 2 ? *writers | bit : *writers & ~bit;
    }
}

/* Whether any location loses access. */
static int revokes_access(uint64_t address, uint64_t bytes, const CUmemAccessDesc *access, size_t access_count)
{
    for (uint64_t done = 0; done < bytes;) {
        const struct sg_memory *memory = sg_memory_at(address + done);
        uint32_t readers = memory->readers, writers = memory->writers;
        update_access(&readers, &writers, access, access_count);
        if ((memory->readers & ~readers) || (memory->writers & ~writers))
            return 1;
        done += memory->bytes;
    }
    return 0;
}

/* Granting access does not wait, because allocators extend ranges while the device is busy. */
API CUresult cuMemSetAccess(CUdeviceptr pointer, size_t bytes, const CUmemAccessDesc *access, size_t access_count)
{
    CUresult result = sg_enter();
    if (result != CUDA_SUCCESS)
        return result;
    result = check_access(access, access_count);
    if (result == CUDA_SUCCESS && !is_whole(pointer, bytes))
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS && revokes_access(pointer, bytes, access, access_count))
        result = wait_for_range(pointer, bytes);
    if (result != CUDA_SUCCESS)
        return sg_leave(result);
    for (uint64_t done = 0; done < bytes;) {
        struct sg_memory *memory = sg_memory_at(pointer + done);
        update_access(&memory->readers, &memory->writers, access, access_count);
        sg_view_protect(memory);
        done += memory->bytes;
    }
    return sg_leave(CUDA_SUCCESS);
}

API CUresult cuMemGetAccess(unsigned long long *flags, const CUmemLocation *location, CUdeviceptr pointer)
{
    CUresult result = sg_enter();
    if (result != CUDA_SUCCESS)
        return result;
    const struct sg_memory *memory = sg_memory_at(pointer);
    uint32_t bit = location ? location_bit(location) : 0;
    if (!flags || !bit || !memory || !memory->physical)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    *flags = memory->writers & bit   ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE
             : memory->readers & bit ? CU_MEM_ACCESS_FLAGS_PROT_READ
                                     : CU_MEM_ACCESS_FLAGS_PROT_NONE;
    return sg_leave(CUDA_SUCCESS);
}
