/* Memory that graphs allocate: addresses that stay, and memory behind them from alloc to free. */
#include "softgpu/graph.h"

#include <stdlib.h>

static struct sg_region *regions;
static struct books {
    uint64_t bytes, high_bytes;
} used[SG_MAX_DEVICES], reserved[SG_MAX_DEVICES]; /* reserved: also what outlived its graph, until it is freed */

struct sg_region *sg_region_make(struct sg_device *device, uint64_t bytes, const CUmemPoolProps *props)
{
    struct sg_region *region = calloc(1, sizeof *region);
    if (!region)
        return NULL;
    region->taken_bytes = sg_memory_taken(bytes);
    region->address = region->taken_bytes ? sg_arena_take(&device->arena, region->taken_bytes) : 0;
    if (!region->address) {
        free(region);
        return NULL;
    }
    region->bytes = bytes;
    region->device = device;
    region->props = *props;
    region->users = 1;
    region->next = regions;
    regions = region;
    return region;
}

struct sg_region *sg_region_at(uint64_t address)
{
    struct sg_region *region = regions;
    while (region && region->address != address)
        region = region->next;
    return region;
}

void sg_region_use(struct sg_region *region)
{
    region->users++;
}

void sg_region_leave(struct sg_region *region)
{
    if (--region->users)
        return;
    struct sg_region **at = &regions;
    while (*at != region)
        at = &(*at)->next;
    *at = region->next;
    /* What is still allocated outlives the graph, and its address goes with it when it is freed. */
    struct sg_memory *memory = sg_memory_at(region->address);
    if (memory) {
        memory->is_of_graph = 0;
        sg_graph_memory_book(region->device, -(int64_t)memory->taken_bytes, 0);
    } else {
        sg_arena_give(&region->device->arena, region->address, region->taken_bytes);
    }
    free(region);
}

static void book(struct books *books, int64_t bytes)
{
    books->bytes += (uint64_t)bytes;
    if (books->bytes > books->high_bytes)
        books->high_bytes = books->bytes;
}

void sg_graph_memory_book(const struct sg_device *device, int64_t used_bytes, int64_t reserved_bytes)
{
    book(&used[device->ordinal], used_bytes);
    book(&reserved[device->ordinal], reserved_bytes);
}

int sg_region_is_free(const struct sg_region *region)
{
    const struct sg_memory *memory = sg_memory_at(region->address);
    return !memory || memory->is_ending;
}

/* Freed in stream order but not yet there: it is simply kept, and the free that is still to come passes it by. */
CUresult sg_region_fill(struct sg_region *region, CUcontext context)
{
    struct sg_memory *memory = sg_memory_at(region->address);
    if (memory && !memory->is_ending)
        return CUDA_ERROR_INVALID_VALUE;
    if (memory) {
        memory->is_ending = 0;
        memory->kept++;
        return CUDA_SUCCESS;
    }
    return sg_memory_place(context, region->address, region->bytes);
}

CUresult sg_region_empty(const struct sg_region *region, CUstream stream)
{
    struct sg_memory *memory = sg_memory_at(region->address);
    if (!memory || memory->is_ending)
        return CUDA_ERROR_INVALID_VALUE;
    return sg_memory_free_in(stream, memory);
}

/* One free per allocation and graph, and either at home or elsewhere. */
void sg_region_check_free(CUgraph graph, const struct sg_body *body, CUresult *result)
{
    struct sg_region *region = body->region;
    int is_home = 0, is_twice = 0;
    for (CUgraphNode node = graph->first; node; node = node->next) {
        if (node->body->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC && node->body->region == region)
            is_home = 1;
        is_twice |= node->body->type == CU_GRAPH_NODE_TYPE_MEM_FREE && node->body->region == region;
    }
    if (is_twice || (is_home ? region->freed_abroad : region->freed_at_home))
        *result = CUDA_ERROR_INVALID_VALUE;
    else if (is_home)
        region->freed_at_home = 1;
    else
        region->freed_abroad = 1;
}

#define ENTER(ordinal)                                                                                                 \
    CUresult result = sg_enter();                                                                                      \
    if (result != CUDA_SUCCESS)                                                                                        \
        return result;                                                                                                 \
    const struct sg_device *device = sg_device_at(ordinal);                                                            \
    if (!device)                                                                                                       \
    return sg_leave(CUDA_ERROR_INVALID_DEVICE)

static struct books *books_of(const struct sg_device *device, CUgraphMem_attribute attribute, int *is_high)
{
    *is_high = attribute == CU_GRAPH_MEM_ATTR_USED_MEM_HIGH || attribute == CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH;
    return attribute >= CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT ? &reserved[device->ordinal] : &used[device->ordinal];
}

/* Nothing is kept back that could be trimmed: memory goes back when it is freed. */
API CUresult cuDeviceGraphMemTrim(CUdevice ordinal)
{
    ENTER(ordinal);
    return sg_leave(CUDA_SUCCESS);
}

API CUresult cuDeviceGetGraphMemAttribute(CUdevice ordinal, CUgraphMem_attribute attribute, void *value)
{
    ENTER(ordinal);
    if (!value || attribute < 0 || attribute > CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    int is_high;
    const struct books *books = books_of(device, attribute, &is_high);
    *(cuuint64_t *)value = is_high ? books->high_bytes : books->bytes;
    return sg_leave(CUDA_SUCCESS);
}

API CUresult cuDeviceSetGraphMemAttribute(CUdevice ordinal, CUgraphMem_attribute attribute, void *value)
{
    ENTER(ordinal);
    int is_high;
    struct books *books = books_of(device, attribute, &is_high);
    if (!value || !is_high || *(cuuint64_t *)value)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    books->high_bytes = books->bytes;
    return sg_leave(CUDA_SUCCESS);
}
