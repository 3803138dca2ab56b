/* Advice and prefetch locations of managed memory by page range, and their attributes. */
#include "softgpu/driver/internal.h"

#include <stdlib.h>
#include <string.h>

enum { PAGE = 4096, CPU = -1, NO_LOCATION = -2 };

/* A range of pages with the same advice. The entries of an advised allocation cover it without gaps. */
struct advice {
    uint64_t start, end;
    int read_mostly;
    uint32_t accessed_by; /* one bit per device, the highest for the host */
    CUmemLocation preferred, prefetched;
};

static struct advice *table;
static size_t count, capacity;

static struct advice *add(void)
{
    if (count == capacity) {
        size_t more = capacity ? capacity * 2 : 16;
        struct advice *larger = realloc(table, more * sizeof *larger);
        if (!larger)
            return NULL;
        table = larger;
        capacity = more;
    }
    return &table[count++];
}

void sg_advice_remove(uint64_t start, uint64_t bytes)
{
    for (size_t i = 0; i < count;)
        if (table[i].start >= start && table[i].start < start + bytes)
            table[i] = table[--count];
        else
            i++;
}

/* Split the entry that contains the address, so that advice can change there. */
static int cut(uint64_t address)
{
    for (size_t i = 0; i < count; i++) {
        if (table[i].start >= address || address >= table[i].end)
            continue;
        struct advice *tail = add();
        if (!tail)
            return -1;
        *tail = table[i];
        tail->start = table[i].end = address;
        return 0;
    }
    return 0;
}

static const struct advice none = {.preferred = {0, NO_LOCATION}, .prefetched = {0, NO_LOCATION}};

/* Split entries at both ends of the range, so that whole entries can be changed. */
static int split_table(uint64_t start, uint64_t end)
{
    const struct sg_memory *memory = sg_memory_at(start);
    for (size_t i = 0; i < count; i++)
        if (table[i].start <= start && start < table[i].end)
            return cut(start) < 0 || cut(end) < 0 ? -1 : 0;
    struct advice *whole = add();
    if (!whole)
        return -1;
    *whole = none;
    whole->start = memory->start;
    whole->end = memory->start + memory->charged_bytes;
    return cut(start) < 0 || cut(end) < 0 ? -1 : 0;
}

/* Round the range to whole pages. Only managed memory accepts advice. */
static CUresult check(uint64_t address, uint64_t bytes, uint64_t *start, uint64_t *end)
{
    const struct sg_memory *memory = sg_memory_at(address);
    if (!bytes || !memory || memory->kind != SG_MEMORY_MANAGED || !sg_memory_allows(NULL, address, bytes, 0))
        return CUDA_ERROR_INVALID_VALUE;
    *start = address / PAGE * PAGE;
    *end = (address + bytes + PAGE - 1) / PAGE * PAGE;
    return CUDA_SUCCESS;
}

static CUresult check_location(const CUmemLocation *location)
{
    if (location->type == CU_MEM_LOCATION_TYPE_DEVICE)
        return sg_device_at(location->id) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
    return location->type >= CU_MEM_LOCATION_TYPE_HOST && location->type <= CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT
               ? CUDA_SUCCESS
               : CUDA_ERROR_INVALID_VALUE;
}

static CUmemLocation location_of(CUdevice device)
{
    return (CUmemLocation){device == CPU ? CU_MEM_LOCATION_TYPE_HOST : CU_MEM_LOCATION_TYPE_DEVICE,
                           device == CPU ? 0 : device};
}

static void update(struct advice *entry, int advice, const CUmemLocation *location)
{
    uint32_t bit = UINT32_C(1) << (location->type == CU_MEM_LOCATION_TYPE_DEVICE ? location->id : 31);
    switch (advice) {
    case CU_MEM_ADVISE_SET_READ_MOSTLY:
    case CU_MEM_ADVISE_UNSET_READ_MOSTLY:
        entry->read_mostly = advice == CU_MEM_ADVISE_SET_READ_MOSTLY;
        break;
    case CU_MEM_ADVISE_SET_PREFERRED_LOCATION:
        entry->preferred = *location;
        break;
    case CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION:
        entry->preferred = none.preferred;
        break;
    case CU_MEM_ADVISE_SET_ACCESSED_BY:
        entry->accessed_by |= bit;
        break;
    case CU_MEM_ADVISE_UNSET_ACCESSED_BY:
        entry->accessed_by &= ~bit;
        break;
    default: /* not advice but a prefetch */
        entry->prefetched = *location;
        break;
    }
}

static CUresult apply(uint64_t address, uint64_t bytes, int advice, const CUmemLocation *location)
{
    uint64_t start, end;
    CUresult result = check(address, bytes, &start, &end);
    if (result != CUDA_SUCCESS)
        return result;
    if (split_table(start, end) < 0)
        return CUDA_ERROR_OUT_OF_MEMORY;
    for (size_t i = 0; i < count; i++)
        if (table[i].start >= start && table[i].end <= end)
            update(&table[i], advice, location);
    return CUDA_SUCCESS;
}

API CUresult cuMemAdvise_v2(CUdeviceptr pointer, size_t bytes, CUmem_advise advice, CUmemLocation location)
{
    SG_ENTER(context);
    (void)context;
    if ((int)advice < CU_MEM_ADVISE_SET_READ_MOSTLY || (int)advice > CU_MEM_ADVISE_UNSET_ACCESSED_BY)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    int needs_location = (int)advice == CU_MEM_ADVISE_SET_PREFERRED_LOCATION ||
                      (int)advice >= CU_MEM_ADVISE_SET_ACCESSED_BY;
    if (needs_location) /* the other kinds ignore the location */
        result = check_location(&location);
    else
        location = (CUmemLocation){CU_MEM_LOCATION_TYPE_HOST, 0};
    return sg_leave(result == CUDA_SUCCESS ? apply(pointer, bytes, (int)advice, &location) : result);
}

API CUresult cuMemAdvise(CUdeviceptr pointer, size_t bytes, CUmem_advise advice, CUdevice device)
{
    return cuMemAdvise_v2(pointer, bytes, advice, location_of(device));
}

/* Managed memory needs no migration on this device; only the location of the prefetch is stored. */
static CUresult prefetch(CUdeviceptr pointer, size_t bytes, CUmemLocation location, unsigned flags, CUstream handle)
{
    SG_ENTER(context);
    CUstream stream = sg_stream(context, handle);
    if (!stream)
        return sg_leave(CUDA_ERROR_INVALID_HANDLE);
    if (stream->capture)
        return sg_leave(sg_capture_refuse(stream));
    result = flags ? CUDA_ERROR_INVALID_VALUE : check_location(&location);
    return sg_leave(result == CUDA_SUCCESS ? apply(pointer, bytes, 0, &location) : result);
}

API CUresult cuMemPrefetchAsync(CUdeviceptr pointer, size_t bytes, CUdevice device, CUstream stream)
{
    return prefetch(pointer, bytes, location_of(device), 0, stream);
}

API CUresult cuMemPrefetchAsync_ptsz(CUdeviceptr pointer, size_t bytes, CUdevice device, CUstream stream)
{
    return prefetch(pointer, bytes, location_of(device), 0, sg_per_thread_stream(stream));
}

API CUresult cuMemPrefetchAsync_v2(CUdeviceptr pointer, size_t bytes, CUmemLocation location, unsigned int flags,
                                   CUstream stream)
{
    return prefetch(pointer, bytes, location, flags, stream);
}

API CUresult cuMemPrefetchAsync_v2_ptsz(CUdeviceptr pointer, size_t bytes, CUmemLocation location, unsigned int flags,
                                        CUstream stream)
{
    return prefetch(pointer, bytes, location, flags, sg_per_thread_stream(stream));
}

static int is_same(CUmemLocation a, CUmemLocation b)
{
    return a.type == b.type && a.id == b.id;
}

/* Return the advice that all pages of the range have in common. */
static struct advice common(uint64_t start, uint64_t end)
{
    struct advice all = none;
    int found = 0;
    for (size_t i = 0; i < count; i++) {
        const struct advice *entry = &table[i];
        if (entry->end <= start || entry->start >= end)
            continue;
        if (!found++) {
            all = *entry;
            continue;
        }
        all.read_mostly &= entry->read_mostly;
        all.accessed_by &= entry->accessed_by;
        all.preferred = is_same(all.preferred, entry->preferred) ? all.preferred : none.preferred;
        all.prefetched = is_same(all.prefetched, entry->prefetched) ? all.prefetched : none.prefetched;
    }
    return all;
}

/* Convert to the older attributes: a device, the CPU or no location. */
static int device_number(CUmemLocation location)
{
    return location.type == CU_MEM_LOCATION_TYPE_DEVICE ? location.id : location.type ? CPU : NO_LOCATION;
}

static void list_devices(const struct advice *all, int *list, size_t list_length)
{
    size_t listed = 0;
    for (int i = 0; i < sg_device_count && listed < list_length; i++)
        if (all->accessed_by >> i & 1)
            list[listed++] = i;
    if (all->accessed_by >> 31 && listed < list_length)
        list[listed++] = CPU;
    while (listed < list_length)
        list[listed++] = NO_LOCATION;
}

static CUresult get_attribute(void *data, size_t data_bytes, int attribute, uint64_t address, uint64_t bytes)
{
    uint64_t start, end;
    CUresult result = check(address, bytes, &start, &end);
    if (result != CUDA_SUCCESS)
        return result;
    if (!data || !data_bytes || data_bytes % 4 ||
        (attribute != CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY && data_bytes != 4))
        return CUDA_ERROR_INVALID_VALUE;
    struct advice all = common(start, end);
    int *number = data;
    switch (attribute) {
    case CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY:
        *number = all.read_mostly;
        return CUDA_SUCCESS;
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION:
        *number = device_number(all.preferred);
        return CUDA_SUCCESS;
    case CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY:
        list_devices(&all, number, data_bytes / 4);
        return CUDA_SUCCESS;
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION:
        *number = device_number(all.prefetched);
        return CUDA_SUCCESS;
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE:
        *number = all.preferred.type;
        return CUDA_SUCCESS;
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID:
        *number = all.preferred.id;
        return CUDA_SUCCESS;
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE:
        *number = all.prefetched.type;
        return CUDA_SUCCESS;
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_ID:
        *number = all.prefetched.id;
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

API CUresult cuMemRangeGetAttribute(void *data, size_t data_bytes, CUmem_range_attribute attribute,
                                    CUdeviceptr pointer, size_t bytes)
{
    SG_ENTER(context);
    (void)context;
    return sg_leave(get_attribute(data, data_bytes, (int)attribute, pointer, bytes));
}

API CUresult cuMemRangeGetAttributes(void **data, size_t *data_bytes, CUmem_range_attribute *attributes,
                                     size_t attribute_count, CUdeviceptr pointer, size_t bytes)
{
    SG_ENTER(context);
    (void)context;
    if (!data || !data_bytes || !attributes || !attribute_count)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    for (size_t i = 0; i < attribute_count && result == CUDA_SUCCESS; i++)
        result = get_attribute(data[i], data_bytes[i], (int)attributes[i], pointer, bytes);
    return sg_leave(result);
}
