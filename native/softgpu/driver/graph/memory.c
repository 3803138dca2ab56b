/* Memory of graphs: constant addresses, with memory between the allocation node and the free node. */
#include "softgpu/driver/graph/graph.h"

#include <stdlib.h>

static struct sg_region *regions;
/* Memory of graphs per device. `reserved` includes memory that outlived its graph and is not freed yet. */
static struct usage {
    uint64_t bytes, high_bytes;
} used[SG_MAX_DEVICES], reserved[SG_MAX_DEVICES];

struct sg_region *sg_region_make(struct sg_device *device, uint64_t bytes, const CUmemPoolProps *props)
{
    struct sg_region *region = calloc(1, sizeof *region);
    if (!region)
        return NULL;
    region->charged_bytes = sg_memory_charged(bytes);
    region->address = region->charged_bytes ? sg_address_space_alloc(&device->address_space, region->charged_bytes) : 0;
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

void sg_region_retain(struct sg_region *region)
{
    region->users++;
}

void sg_region_release(struct sg_region *region)
{
    if (--region->users)
        return;
    struct sg_region **at = &regions;
    while (*at != region)
        at = &(*at)->next;
    *at = region->next;
    /* Memory that is still allocated outlives the graph and releases the address when it is freed. */
    struct sg_memory *memory = sg_memory_at(region->address);
    if (memory) {
        memory->is_of_graph = 0;
        sg_graph_memory_charge(region->device, -(int64_t)memory->charged_bytes, 0);
    } else {
        sg_address_space_free(&region->device->address_space, region->address, region->charged_bytes);
    }
    free(region);
}

static void add_usage(struct usage *usage, int64_t bytes)
{
    usage->bytes += (uint64_t)bytes;
    if (usage->bytes > usage->high_bytes)
        usage->high_bytes = usage->bytes;
}

void sg_graph_memory_charge(const struct sg_device *device, int64_t used_bytes, int64_t reserved_bytes)
{
    add_usage(&used[device->ordinal], used_bytes);
    add_usage(&reserved[device->ordinal], reserved_bytes);
}

int sg_region_is_free(const struct sg_region *region)
{
    const struct sg_memory *memory = sg_memory_at(region->address);
    return !memory || memory->is_ending;
}

/* If the memory has a pending stream-ordered free, keep it and let that free skip it. */
CUresult sg_region_allocate(struct sg_region *region, CUcontext context)
{
    struct sg_memory *memory = sg_memory_at(region->address);
    if (memory && !memory->is_ending)
        return CUDA_ERROR_INVALID_VALUE;
    if (memory) {
        memory->is_ending = 0;
        memory->skipped_frees++;
        return CUDA_SUCCESS;
    }
    return sg_memory_allocate_at(context, region->address, region->bytes);
}

CUresult sg_region_free(const struct sg_region *region, CUstream stream)
{
    struct sg_memory *memory = sg_memory_at(region->address);
    if (!memory || memory->is_ending)
        return CUDA_ERROR_INVALID_VALUE;
    return sg_memory_free_in(stream, memory);
}

/* Each graph may free an allocation once, either in the allocating graph or in another one. */
void sg_region_check_free(CUgraph graph, const struct sg_body *body, CUresult *result)
{
    struct sg_region *region = body->region;
    int is_own = 0, is_twice = 0;
    for (CUgraphNode node = graph->first; node; node = node->next) {
        if (node->body->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC && node->body->region == region)
            is_own = 1;
        is_twice |= node->body->type == CU_GRAPH_NODE_TYPE_MEM_FREE && node->body->region == region;
    }
    if (is_twice || (is_own ? region->freed_elsewhere : region->freed_in_graph))
        *result = CUDA_ERROR_INVALID_VALUE;
    else if (is_own)
        region->freed_in_graph = 1;
    else
        region->freed_elsewhere = 1;
}

#define ENTER(ordinal)                                                                                                 \
    CUresult result = sg_enter();                                                                                      \
    if (result != CUDA_SUCCESS)                                                                                        \
        return result;                                                                                                 \
    const struct sg_device *device = sg_device_at(ordinal);                                                            \
    if (!device)                                                                                                       \
    return sg_leave(CUDA_ERROR_INVALID_DEVICE)

static struct usage *usage_of(const struct sg_device *device, CUgraphMem_attribute attribute, int *is_high)
{
    *is_high = attribute == CU_GRAPH_MEM_ATTR_USED_MEM_HIGH || attribute == CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH;
    return attribute >= CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT ? &reserved[device->ordinal] : &used[device->ordinal];
}

/* There is nothing to trim: freed memory is released immediately. */
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
    const struct usage *usage = usage_of(device, attribute, &is_high);
    *(cuuint64_t *)value = is_high ? usage->high_bytes : usage->bytes;
    return sg_leave(CUDA_SUCCESS);
}

API CUresult cuDeviceSetGraphMemAttribute(CUdevice ordinal, CUgraphMem_attribute attribute, void *value)
{
    ENTER(ordinal);
    int is_high;
    struct usage *usage = usage_of(device, attribute, &is_high);
    if (!value || !is_high || *(cuuint64_t *)value)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    usage->high_bytes = usage->bytes;
    return sg_leave(CUDA_SUCCESS);
}
