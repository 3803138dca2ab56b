/* What memory there is: a table of allocations by address; the device's share of it is booked at the server. */
#define _GNU_SOURCE
#include "softgpu/face.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { BOOKED_BYTES = 512, PAGE = 4096 };

static struct sg_memory *table; /* by address */
static size_t count, room;

/* The first one that ends after this address. */
static size_t place(uint64_t address)
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
    size_t at = place(address);
    return at < count && table[at].start <= address ? &table[at] : NULL;
}

int sg_memory_overlaps(uint64_t address, uint64_t bytes)
{
    size_t at = place(address);
    return at < count && table[at].start < address + bytes;
}

struct sg_memory *sg_memory_next(const struct sg_memory *memory)
{
    size_t at = memory ? (size_t)(memory - table) + 1 : 0;
    return at < count ? &table[at] : NULL;
}

static int is_allowed(const struct sg_memory *memory, const struct sg_device *device, int is_write)
{
    uint32_t who = device ? UINT32_C(1) << device->ordinal : UINT32_MAX;
    if (memory->physical)
        return ((is_write ? memory->writers : memory->readers) & who) != 0;
    if (memory->pool && memory->kind == SG_MEMORY_DEVICE)
        return ((is_write ? memory->pool->writers : memory->pool->readers) & who) != 0;
    return 1;
}

/* Mappings that lie side by side are one piece to who uses them. */
int sg_memory_allows(const struct sg_device *device, uint64_t address, uint64_t bytes, int is_write)
{
    size_t at = place(address);
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
    if (count == room) {
        size_t more = room ? room * 2 : 64;
        struct sg_memory *larger = realloc(table, more * sizeof *larger);
        if (!larger)
            return NULL;
        table = larger;
        room = more;
    }
    size_t at = place(start);
    memmove(&table[at + 1], &table[at], (count++ - at) * sizeof *table);
    table[at] = (struct sg_memory){.start = start, .bytes = bytes, .id = sg_next_id()};
    return &table[at];
}

static CUresult book(CUcontext context, uint64_t bytes, int is_give)
{
    struct sg_request request = {.kind = is_give ? SG_MEMORY_GIVE : SG_MEMORY_TAKE, .a = context->model, .b = bytes};
    struct sg_reply reply;
    if (sg_ask(&context->device->link, &request, &reply) < 0)
        return CUDA_ERROR_DEVICE_UNAVAILABLE;
    return sg_result(reply.result);
}

static uint64_t space(struct sg_arena *arena, uint64_t bytes)
{
    if (arena)
        return sg_arena_take(arena, bytes);
    void *start = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return start == MAP_FAILED ? 0 : (uint64_t)(uintptr_t)start;
}

static void return_space(struct sg_arena *arena, uint64_t start, uint64_t bytes)
{
    if (arena)
        sg_arena_give(arena, start, bytes);
    else
        munmap((void *)(uintptr_t)start, bytes);
}

/* NULL: pages of its own. */
static struct sg_arena *arena_of(struct sg_device *device, CUmemoryPool pool, enum sg_memory_kind kind)
{
    if (pool && pool->share)
        return &pool->arena;
    /* A pool may be of a device on which this process has no context. */
    if (kind == SG_MEMORY_DEVICE && !device->arena.start)
        sg_arena_open(&device->arena, device->config.memory_bytes);
    return kind == SG_MEMORY_DEVICE ? &device->arena : NULL;
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

static CUresult put(CUcontext context, struct sg_device *device, CUmemoryPool pool, uint64_t bytes, uint64_t taken,
                    enum sg_memory_kind kind, uint64_t *address)
{
    struct sg_arena *arena = arena_of(device, pool, kind);
    uint64_t start = space(arena, taken);
    struct sg_memory *memory = start ? sg_memory_insert(context, device, start, bytes) : NULL;
    if (!memory) {
        if (start)
            return_space(arena, start, taken);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    memory->taken_bytes = taken;
    memory->kind = kind;
    memory->pool = pool;
    if (kind == SG_MEMORY_MANAGED)
        atomic_fetch_add(&device->link.ring->managed_bytes, taken);
    *address = start;
    return CUDA_SUCCESS;
}

static CUresult book_anyhow(CUcontext context, uint64_t bytes)
{
    CUresult result = book(context, bytes, 0);
    if (result == CUDA_ERROR_OUT_OF_MEMORY && sg_effects_pending()) {
        /* Frees in stream order may be waiting to be observed. */
        result = sg_context_wait(context);
        if (result == CUDA_SUCCESS)
            result = book(context, bytes, 0);
    }
    if (result == CUDA_ERROR_OUT_OF_MEMORY && sg_pools_squeeze(context->device))
        result = book(context, bytes, 0);
    return result;
}

uint64_t sg_memory_taken(uint64_t bytes)
{
    return bytes > UINT64_MAX - BOOKED_BYTES ? 0 : (bytes + BOOKED_BYTES - 1) / BOOKED_BYTES * BOOKED_BYTES;
}

CUresult sg_memory_place(CUcontext context, uint64_t address, uint64_t bytes)
{
    uint64_t taken = sg_memory_taken(bytes);
    context = sg_home(context);
    CUresult result = book_anyhow(context, taken);
    if (result != CUDA_SUCCESS)
        return result;
    /* Booking may have waited: another launch may have been there meanwhile. */
    int is_taken = sg_memory_at(address) != NULL;
    struct sg_memory *memory = is_taken ? NULL : sg_memory_insert(context, context->device, address, bytes);
    if (!memory) {
        book(context, taken, 1);
        return is_taken ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_OUT_OF_MEMORY;
    }
    memory->taken_bytes = taken;
    memory->is_of_graph = memory->is_by_graph = 1;
    sg_graph_memory_book(context->device, (int64_t)taken, (int64_t)taken);
    return CUDA_SUCCESS;
}

/* Device memory is booked; managed memory can be evicted to the host and is not, nor is the host's own. */
CUresult sg_memory_make(CUcontext context, uint64_t bytes, enum sg_memory_kind kind, unsigned flags, uint64_t *address)
{
    uint64_t unit = kind == SG_MEMORY_DEVICE ? BOOKED_BYTES : PAGE;
    context = sg_home(context);
    if (bytes > UINT64_MAX - unit)
        return CUDA_ERROR_OUT_OF_MEMORY;
    uint64_t taken = (bytes + unit - 1) / unit * unit;
    CUresult result = kind == SG_MEMORY_DEVICE ? book_anyhow(context, taken) : CUDA_SUCCESS;
    if (result != CUDA_SUCCESS)
        return result;
    result = put(context, context->device, NULL, bytes, taken, kind, address);
    if (result != CUDA_SUCCESS && kind == SG_MEMORY_DEVICE)
        book(context, taken, 1);
    if (result == CUDA_SUCCESS)
        sg_memory_at(*address)->flags = flags;
    return result;
}

CUresult sg_memory_make_from(CUmemoryPool pool, CUcontext context, uint64_t bytes, uint64_t *address)
{
    uint64_t unit = pool->kind == SG_MEMORY_DEVICE ? BOOKED_BYTES : PAGE;
    if (bytes > UINT64_MAX - unit)
        return CUDA_ERROR_OUT_OF_MEMORY;
    uint64_t taken = (bytes + unit - 1) / unit * unit;
    CUresult result = sg_pool_take(pool, taken);
    if (result == CUDA_ERROR_OUT_OF_MEMORY && sg_effects_pending()) {
        uint64_t id = pool->object.id;
        result = sg_context_wait(context);
        if (result == CUDA_SUCCESS) /* another thread may have destroyed the pool meanwhile */
            result = sg_alive(SG_POOL, pool) && pool->object.id == id ? sg_pool_take(pool, taken)
                                                                      : CUDA_ERROR_INVALID_VALUE;
    }
    if (result != CUDA_SUCCESS)
        return result;
    result = put(sg_home(context), pool->device, pool, bytes, taken, pool->kind, address);
    if (result != CUDA_SUCCESS)
        sg_pool_give(pool, taken);
    return result;
}

CUresult sg_memory_register(CUcontext context, uint64_t address, uint64_t bytes, unsigned flags)
{
    size_t at = place(address);
    context = sg_home(context);
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
    int is_booked = memory.kind == SG_MEMORY_DEVICE && !memory.pool && !memory.share;
    if (is_booked && !is_context_gone && sg_alive(SG_CONTEXT, memory.context) &&
        memory.context->object.id == memory.context_id)
        book(memory.context, memory.taken_bytes, 1);
    if (memory.kind == SG_MEMORY_MANAGED) {
        sg_advice_forget(memory.start, memory.taken_bytes);
        atomic_fetch_sub(&memory.device->link.ring->managed_bytes, memory.taken_bytes);
    }
    if (memory.share) {
        void *start = (void *)(uintptr_t)memory.start;
        if (!memory.opened) /* from here on these addresses are private again */
            mmap(start, (memory.taken_bytes + PAGE - 1) / PAGE * PAGE, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
        else
            munmap(start, memory.taken_bytes);
        for (uint64_t i = memory.opened ? memory.opened : 1; i > 0; i--)
            sg_share_close(memory.device, memory.share);
        if (memory.opened)
            return;
    }
    if (memory.is_by_graph)
        sg_graph_memory_book(memory.device, memory.is_of_graph ? -(int64_t)memory.taken_bytes : 0,
                             -(int64_t)memory.taken_bytes);
    if (memory.is_of_graph)
        return;
    if (memory.kind != SG_MEMORY_REGISTERED && !(memory.pool && memory.pool->is_imported))
        return_space(arena_of(memory.device, memory.pool, memory.kind), memory.start, memory.taken_bytes);
    if (memory.pool)
        sg_pool_give(memory.pool, memory.taken_bytes);
}

void sg_memory_forget(uint64_t address)
{
    size_t at = place(address);
    if (at < count && table[at].start == address)
        memmove(&table[at], &table[at + 1], (--count - at) * sizeof *table);
}

void sg_memory_drop(uint64_t address)
{
    size_t at = place(address);
    if (at < count && table[at].start == address)
        drop_at(at, 0);
}

void sg_memory_drop_context(CUcontext context)
{
    for (size_t i = count; i > 0; i--)
        if (table[i - 1].context == context)
            drop_at(i - 1, 1);
}
