/* The table of allocations by address. Device memory is charged at the server. */
#define _GNU_SOURCE
#include "softgpu/driver/internal.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { CHARGE_UNIT = SG_MEMORY_UNIT, PAGE = 4096 };

static struct sg_memory *table; /* sorted by address */
static size_t count, capacity;

/* Return the index of the first entry that ends after this address. */
static size_t lower_bound(uint64_t address)
{
    size_t low = 0, high = count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (table[middle].start + table[middle].bytes <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

struct sg_memory *sg_memory_at(uint64_t address)
{
    size_t at = lower_bound(address);
    return at < count && table[at].start <= address ? &table[at] : NULL;
}

int sg_memory_overlaps(uint64_t address, uint64_t bytes)
{
    size_t at = lower_bound(address);
    return at < count && table[at].start < address + bytes;
}

struct sg_memory *sg_memory_next(const struct sg_memory *memory)
{
    size_t at = memory ? (size_t)(memory - table) + 1 : 0;
    return at < count ? &table[at] : NULL;
}

static int is_allowed(const struct sg_memory *memory, const struct sg_device *device, int is_write)
{
    uint32_t device_bits = device ? UINT32_C(1) << device->ordinal : UINT32_MAX;
    if (memory->physical)
        return ((is_write ? memory->writers : memory->readers) & device_bits) != 0;
    if (memory->pool && memory->kind == SG_MEMORY_DEVICE)
        return ((is_write ? memory->pool->writers : memory->pool->readers) & device_bits) != 0;
    return 1;
}

/* Adjacent mappings count as one range. */
int sg_memory_allows(const struct sg_device *device, uint64_t address, uint64_t bytes, int is_write)
{
    size_t at = lower_bound(address);
    if (at >= count || table[at].start > address || !is_allowed(&table[at], device, is_write))
        return 0;
    while (bytes > table[at].start + table[at].bytes - address) {
        uint64_t end = table[at].start + table[at].bytes;
        if (!table[at].physical || at + 1 == count || !table[at + 1].physical || table[at + 1].start != end ||
            !is_allowed(&table[at + 1], device, is_write))
            return 0;
        bytes -= end - address;
        address = end;
        at++;
    }
    return 1;
}

static struct sg_memory *insert(uint64_t start, uint64_t bytes)
{
    if (count == capacity) {
        size_t more = capacity ? capacity * 2 : 64;
        struct sg_memory *larger = realloc(table, more * sizeof *larger);
        if (!larger)
            return NULL;
        table = larger;
        capacity = more;
    }
    size_t at = lower_bound(start);
    memmove(&table[at + 1], &table[at], (count++ - at) * sizeof *table);
    table[at] = (struct sg_memory){.start = start, .bytes = bytes, .id = sg_next_id()};
    return &table[at];
}

static CUresult charge(CUcontext context, uint64_t bytes, int is_release)
{
    struct sg_request request = {.kind = is_release ? SG_MEMORY_GIVE : SG_MEMORY_TAKE, .a = context->model, .b = bytes};
    struct sg_reply reply;
    if (sg_call(&context->device->connection, &request, &reply) < 0)
        return CUDA_ERROR_DEVICE_UNAVAILABLE;
    return sg_result(reply.result);
}

static uint64_t space(struct sg_address_space *address_space, uint64_t bytes)
{
    if (address_space)
        return sg_address_space_alloc(address_space, bytes);
    void *start = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return start == MAP_FAILED ? 0 : (uint64_t)(uintptr_t)start;
}

static void return_space(struct sg_address_space *address_space, uint64_t start, uint64_t bytes)
{
    if (address_space)
        sg_address_space_free(address_space, start, bytes);
    else
        munmap((void *)(uintptr_t)start, bytes);
}

/* Return the address space of an allocation. NULL: it has its own mapping. */
static struct sg_address_space *address_space_of(struct sg_device *device, CUmemoryPool pool, enum sg_memory_kind kind)
{
    if (pool && pool->share)
        return &pool->address_space;
    /* A pool may be on a device on which this process has no context. */
    if (kind == SG_MEMORY_DEVICE && !device->address_space.start)
        sg_address_space_open(&device->address_space, device->config.memory_bytes);
    return kind == SG_MEMORY_DEVICE ? &device->address_space : NULL;
}

struct sg_memory *sg_memory_insert(CUcontext context, struct sg_device *device, uint64_t address, uint64_t bytes)
{
    struct sg_memory *memory = insert(address, bytes);
    if (!memory)
        return NULL;
    memory->kind = SG_MEMORY_DEVICE;
    memory->context = context;
    memory->context_id = context ? context->object.id : 0;
    memory->device = device;
    return memory;
}

static CUresult put(CUcontext context, struct sg_device *device, CUmemoryPool pool, uint64_t bytes, uint64_t charged,
                    enum sg_memory_kind kind, uint64_t *address)
{
    struct sg_address_space *address_space = address_space_of(device, pool, kind);
    uint64_t start = space(address_space, charged);
    struct sg_memory *memory = start ? sg_memory_insert(context, device, start, bytes) : NULL;
    if (!memory) {
        if (start)
            return_space(address_space, start, charged);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    memory->charged_bytes = charged;
    memory->kind = kind;
    memory->pool = pool;
    if (kind == SG_MEMORY_MANAGED)
        atomic_fetch_add(&device->connection.ring->managed_bytes, charged);
    *address = start;
    return CUDA_SUCCESS;
}

static CUresult charge_or_reclaim(CUcontext context, uint64_t bytes)
{
    CUresult result = charge(context, bytes, 0);
    if (result == CUDA_ERROR_OUT_OF_MEMORY && sg_effects_pending()) {
        /* Stream-ordered frees may be pending. */
        result = sg_context_wait(context);
        if (result == CUDA_SUCCESS)
            result = charge(context, bytes, 0);
    }
    if (result == CUDA_ERROR_OUT_OF_MEMORY && sg_pools_reclaim(context->device))
        result = charge(context, bytes, 0);
    return result;
}

uint64_t sg_memory_charged(uint64_t bytes)
{
    return bytes > UINT64_MAX - CHARGE_UNIT ? 0 : (bytes + CHARGE_UNIT - 1) / CHARGE_UNIT * CHARGE_UNIT;
}

CUresult sg_memory_allocate_at(CUcontext context, uint64_t address, uint64_t bytes)
{
    uint64_t charged = sg_memory_charged(bytes);
    context = sg_owner_context(context);
    CUresult result = charge_or_reclaim(context, charged);
    if (result != CUDA_SUCCESS)
        return result;
    /* Charging may have waited, and another launch may have allocated at the address. */
    int is_occupied = sg_memory_at(address) != NULL;
    struct sg_memory *memory = is_occupied ? NULL : sg_memory_insert(context, context->device, address, bytes);
    if (!memory) {
        charge(context, charged, 1);
        return is_occupied ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_OUT_OF_MEMORY;
    }
    memory->charged_bytes = charged;
    memory->is_of_graph = memory->is_by_graph = 1;
    sg_graph_memory_charge(context->device, (int64_t)charged, (int64_t)charged);
    return CUDA_SUCCESS;
}

/* Device memory is charged. Managed memory is not, because it can be evicted to the host; nor is host memory. */
CUresult sg_memory_make(CUcontext context, uint64_t bytes, enum sg_memory_kind kind, unsigned flags, uint64_t *address)
{
    uint64_t unit = kind == SG_MEMORY_DEVICE ? CHARGE_UNIT : PAGE;
    context = sg_owner_context(context);
    if (bytes > UINT64_MAX - unit)
        return CUDA_ERROR_OUT_OF_MEMORY;
    uint64_t charged = (bytes + unit - 1) / unit * unit;
    CUresult result = kind == SG_MEMORY_DEVICE ? charge_or_reclaim(context, charged) : CUDA_SUCCESS;
    if (result != CUDA_SUCCESS)
        return result;
    result = put(context, context->device, NULL, bytes, charged, kind, address);
    if (result != CUDA_SUCCESS && kind == SG_MEMORY_DEVICE)
        charge(context, charged, 1);
    if (result == CUDA_SUCCESS)
        sg_memory_at(*address)->flags = flags;
    return result;
}

CUresult sg_memory_make_from(CUmemoryPool pool, CUcontext context, uint64_t bytes, uint64_t *address)
{
    uint64_t unit = pool->kind == SG_MEMORY_DEVICE ? CHARGE_UNIT : PAGE;
    if (bytes > UINT64_MAX - unit)
        return CUDA_ERROR_OUT_OF_MEMORY;
    uint64_t charged = (bytes + unit - 1) / unit * unit;
    CUresult result = sg_pool_charge(pool, charged);
    if (result == CUDA_ERROR_OUT_OF_MEMORY && sg_effects_pending()) {
        uint64_t id = pool->object.id;
        result = sg_context_wait(context);
        if (result == CUDA_SUCCESS) /* another thread may have destroyed the pool */
            result = sg_alive(SG_POOL, pool) && pool->object.id == id ? sg_pool_charge(pool, charged)
                                                                      : CUDA_ERROR_INVALID_VALUE;
    }
    if (result != CUDA_SUCCESS)
        return result;
    result = put(sg_owner_context(context), pool->device, pool, bytes, charged, pool->kind, address);
    if (result != CUDA_SUCCESS)
        sg_pool_release(pool, charged);
    return result;
}

int sg_memory_reuse(CUmemoryPool pool, CUcontext context, CUstream stream, uint64_t bytes, uint64_t *address)
{
    const uint64_t unit = pool->kind == SG_MEMORY_DEVICE ? CHARGE_UNIT : PAGE;
    if (bytes > UINT64_MAX - unit)
        return 0;
    struct sg_memory *memory = sg_effects_freed_in(stream, pool, (bytes + unit - 1) / unit * unit);
    if (!memory || memory->context_id != sg_owner_context(context)->object.id)
        return 0;
    memory->is_ending = 0;
    memory->skipped_frees++; /* the pending free is of the earlier allocation */
    memory->bytes = bytes;
    memory->id = sg_next_id();
    *address = memory->start;
    return 1;
}

CUresult sg_memory_register(CUcontext context, uint64_t address, uint64_t bytes, unsigned flags)
{
    size_t at = lower_bound(address);
    context = sg_owner_context(context);
    if (address + bytes < address)
        return CUDA_ERROR_INVALID_VALUE;
    if (at < count && table[at].start < address + bytes)
        return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    struct sg_memory *memory = insert(address, bytes);
    if (!memory)
        return CUDA_ERROR_OUT_OF_MEMORY;
    memory->kind = SG_MEMORY_REGISTERED;
    memory->flags = flags;
    memory->context = context;
    memory->context_id = context->object.id;
    memory->device = context->device;
    return CUDA_SUCCESS;
}

static void drop_at(size_t at, int is_context_gone)
{
    struct sg_memory memory = table[at];
    memmove(&table[at], &table[at + 1], (--count - at) * sizeof *table);
    int is_charged = memory.kind == SG_MEMORY_DEVICE && !memory.pool && !memory.share;
    if (is_charged && !is_context_gone && sg_alive(SG_CONTEXT, memory.context) &&
        memory.context->object.id == memory.context_id)
        charge(memory.context, memory.charged_bytes, 1);
    if (memory.kind == SG_MEMORY_MANAGED) {
        sg_advice_remove(memory.start, memory.charged_bytes);
        atomic_fetch_sub(&memory.device->connection.ring->managed_bytes, memory.charged_bytes);
    }
    if (memory.share) {
        void *start = (void *)(uintptr_t)memory.start;
        if (!memory.opened) /* the addresses become private again */
            mmap(start, (memory.charged_bytes + PAGE - 1) / PAGE * PAGE, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
        else
            munmap(start, memory.charged_bytes);
        for (uint64_t i = memory.opened ? memory.opened : 1; i > 0; i--)
            sg_share_close(memory.device, memory.share);
        if (memory.opened)
            return;
    }
    if (memory.is_by_graph)
        sg_graph_memory_charge(memory.device, memory.is_of_graph ? -(int64_t)memory.charged_bytes : 0,
                               -(int64_t)memory.charged_bytes);
    if (memory.is_of_graph)
        return;
    if (memory.kind != SG_MEMORY_REGISTERED && !(memory.pool && memory.pool->is_imported))
        return_space(address_space_of(memory.device, memory.pool, memory.kind), memory.start, memory.charged_bytes);
    if (memory.pool)
        sg_pool_release(memory.pool, memory.charged_bytes);
}

void sg_memory_remove_entry(uint64_t address)
{
    size_t at = lower_bound(address);
    if (at < count && table[at].start == address)
        memmove(&table[at], &table[at + 1], (--count - at) * sizeof *table);
}

void sg_memory_drop(uint64_t address)
{
    size_t at = lower_bound(address);
    if (at < count && table[at].start == address)
        drop_at(at, 0);
}

void sg_memory_drop_context(CUcontext context)
{
    for (size_t i = count; i > 0; i--)
        if (table[i - 1].context == context)
            drop_at(i - 1, 1);
}
