/* Advice about managed memory: what was advised for which pages, where they were last sent, and the asking back. */
#include "softgpu/face.h"

#include <stdlib.h>
#include <string.h>

enum { PAGE = 4096, CPU = -1, NOWHERE = -2 };

/* Pages with the same advice. They make up each allocation that was ever advised, without gaps. */
struct advice {
    uint64_t start, end;
    int read_mostly;
    uint32_t accessed_by; /* a bit per device, the highest for the host */
    CUmemLocation preferred, prefetched;
};

static struct advice *table;
static size_t count, room;

static struct advice *add(void)
{
    if (count == room) {
        size_t more = room ? room * 2 : 16;
        struct advice *larger = realloc(table, more * sizeof *larger);
        if (!larger)
            return NULL;
        table = larger;
        room = more;
    }
    return &table[count++];
}

void sg_advice_forget(uint64_t start, uint64_t bytes)
{
    for (size_t i = 0; i < count;)
        if (table[i].start >= start && table[i].start < start + bytes)
            table[i] = table[--count];
        else
            i++;
}

/* So that advice changes at this address. */
static int cut(uint64_t address)
{
    for (size_t i = 0; i < count; i++) {
        if (table[i].start >= address || address >= table[i].end)
            continue;
        struct advice *rest = add();
        if (!rest)
            return -1;
        *rest = table[i];
        rest->start = table[i].end = address;
        return 0;
    }
    return 0;
}

static const struct advice none = {.preferred = {0, NOWHERE}, .prefetched = {0, NOWHERE}};

/* Pieces that begin and end with the range, to be changed together. */
static int pieces(uint64_t start, uint64_t end)
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
    whole->end = memory->start + memory->taken_bytes;
    return cut(start) < 0 || cut(end) < 0 ? -1 : 0;
}

/* The whole pages of a range; only managed memory can be advised. */
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

static void take(struct advice *piece, int advice, const CUmemLocation *location)
{
    uint32_t bit = UINT32_C(1) << (location->type == CU_MEM_LOCATION_TYPE_DEVICE ? location->id : 31);
    switch (advice) {
    case CU_MEM_ADVISE_SET_READ_MOSTLY:
    case CU_MEM_ADVISE_UNSET_READ_MOSTLY:
        piece->read_mostly = advice == CU_MEM_ADVISE_SET_READ_MOSTLY;
        break;
    case CU_MEM_ADVISE_SET_PREFERRED_LOCATION:
        piece->preferred = *location;
        break;
    case CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION:
        piece->preferred = none.preferred;
        break;
    case CU_MEM_ADVISE_SET_ACCESSED_BY:
        piece->accessed_by |= bit;
        break;
    case CU_MEM_ADVISE_UNSET_ACCESSED_BY:
        piece->accessed_by &= ~bit;
        break;
    default: /* not advice: it was sent there */
        piece->prefetched = *location;
        break;
    }
}

static CUresult apply(uint64_t address, uint64_t bytes, int advice, const CUmemLocation *location)
{
    uint64_t start, end;
    CUresult result = check(address, bytes, &start, &end);
    if (result != CUDA_SUCCESS)
        return result;
    if (pieces(start, end) < 0)
        return CUDA_ERROR_OUT_OF_MEMORY;
    for (size_t i = 0; i < count; i++)
        if (table[i].start >= start && table[i].end <= end)
            take(&table[i], advice, location);
    return CUDA_SUCCESS;
}

API CUresult cuMemAdvise_v2(CUdeviceptr pointer, size_t bytes, CUmem_advise advice, CUmemLocation location)
{
    SG_ENTER(context);
    (void)context;
    if ((int)advice < CU_MEM_ADVISE_SET_READ_MOSTLY || (int)advice > CU_MEM_ADVISE_UNSET_ACCESSED_BY)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    int names_place = (int)advice == CU_MEM_ADVISE_SET_PREFERRED_LOCATION ||
                      (int)advice >= CU_MEM_ADVISE_SET_ACCESSED_BY;
    if (names_place) /* the others do not look at it */
        result = check_location(&location);
    else
        location = (CUmemLocation){CU_MEM_LOCATION_TYPE_HOST, 0};
    return sg_leave(result == CUDA_SUCCESS ? apply(pointer, bytes, (int)advice, &location) : result);
}

API CUresult cuMemAdvise(CUdeviceptr pointer, size_t bytes, CUmem_advise advice, CUdevice device)
{
    return cuMemAdvise_v2(pointer, bytes, advice, location_of(device));
}

/* Managed memory is everywhere at once here: what remains is where it was sent. */
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
    return prefetch(pointer, bytes, location_of(device), 0, sg_twin(stream));
}

API CUresult cuMemPrefetchAsync_v2(CUdeviceptr pointer, size_t bytes, CUmemLocation location, unsigned int flags,
                                   CUstream stream)
{
    return prefetch(pointer, bytes, location, flags, stream);
}

API CUresult cuMemPrefetchAsync_v2_ptsz(CUdeviceptr pointer, size_t bytes, CUmemLocation location, unsigned int flags,
                                        CUstream stream)
{
    return prefetch(pointer, bytes, location, flags, sg_twin(stream));
}

static int is_same(CUmemLocation a, CUmemLocation b)
{
    return a.type == b.type && a.id == b.id;
}

/* What holds for every page of the range. */
static struct advice common(uint64_t start, uint64_t end)
{
    struct advice all = none;
    int found = 0;
    for (size_t i = 0; i < count; i++) {
        const struct advice *piece = &table[i];
        if (piece->end <= start || piece->start >= end)
            continue;
        if (!found++) {
            all = *piece;
            continue;
        }
        all.read_mostly &= piece->read_mostly;
        all.accessed_by &= piece->accessed_by;
        all.preferred = is_same(all.preferred, piece->preferred) ? all.preferred : none.preferred;
        all.prefetched = is_same(all.prefetched, piece->prefetched) ? all.prefetched : none.prefetched;
    }
    return all;
}

/* As the older attributes have it: a device, the CPU, or nowhere. */
static int place_of(CUmemLocation location)
{
    return location.type == CU_MEM_LOCATION_TYPE_DEVICE ? location.id : location.type ? CPU : NOWHERE;
}

static void list_devices(const struct advice *all, int *list, size_t places)
{
    size_t listed = 0;
    for (int i = 0; i < sg_device_count && listed < places; i++)
        if (all->accessed_by >> i & 1)
            list[listed++] = i;
    if (all->accessed_by >> 31 && listed < places)
        list[listed++] = CPU;
    while (listed < places)
        list[listed++] = NOWHERE;
}

static CUresult answer(void *data, size_t data_bytes, int attribute, uint64_t address, uint64_t bytes)
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
        *number = place_of(all.preferred);
        return CUDA_SUCCESS;
    case CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY:
        list_devices(&all, number, data_bytes / 4);
        return CUDA_SUCCESS;
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION:
        *number = place_of(all.prefetched);
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
    return sg_leave(answer(data, data_bytes, (int)attribute, pointer, bytes));
}

API CUresult cuMemRangeGetAttributes(void **data, size_t *data_bytes, CUmem_range_attribute *attributes,
                                     size_t attribute_count, CUdeviceptr pointer, size_t bytes)
{
    SG_ENTER(context);
    (void)context;
    if (!data || !data_bytes || !attributes || !attribute_count)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    for (size_t i = 0; i < attribute_count && result == CUDA_SUCCESS; i++)
        result = answer(data[i], data_bytes[i], (int)attributes[i], pointer, bytes);
    return sg_leave(result);
}
