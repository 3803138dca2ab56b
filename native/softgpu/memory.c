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

int sg_memory_covers(uint64_t address, uint64_t bytes)
{
    struct sg_memory *memory = sg_memory_at(address);
    return memory && bytes <= memory->start + memory->bytes - address;
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

static uint64_t space(CUcontext context, uint64_t bytes, enum sg_memory_kind kind)
{
    if (kind == SG_MEMORY_DEVICE)
        return sg_arena_take(&context->device->arena, bytes);
    void *start = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return start == MAP_FAILED ? 0 : (uint64_t)(uintptr_t)start;
}

static void return_space(struct sg_device *device, enum sg_memory_kind kind, uint64_t start, uint64_t bytes)
{
    if (kind == SG_MEMORY_DEVICE)
        sg_arena_give(&device->arena, start, bytes);
    else if (kind != SG_MEMORY_REGISTERED)
        munmap((void *)(uintptr_t)start, bytes);
}

static CUresult take(CUcontext context, uint64_t bytes)
{
    CUresult result = book(context, bytes, 0);
    if (result == CUDA_ERROR_OUT_OF_MEMORY && sg_effects_pending()) {
        /* Frees in stream order may be waiting to be observed. */
        result = sg_context_wait(context);
        if (result == CUDA_SUCCESS)
            result = book(context, bytes, 0);
    }
    return result;
}

uint64_t sg_memory_taken(uint64_t bytes)
{
    return bytes > UINT64_MAX - BOOKED_BYTES ? 0 : (bytes + BOOKED_BYTES - 1) / BOOKED_BYTES * BOOKED_BYTES;
}

CUresult sg_memory_place(CUcontext context, uint64_t address, uint64_t bytes)
{
    uint64_t taken = sg_memory_taken(bytes);
    CUresult result = take(context, taken);
    if (result != CUDA_SUCCESS)
        return result;
    struct sg_memory *memory = insert(address, bytes);
    if (!memory) {
        book(context, taken, 1);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    memory->taken_bytes = taken;
    memory->kind = SG_MEMORY_DEVICE;
    memory->context = context;
    memory->context_id = context->object.id;
    memory->device = context->device;
    memory->is_of_graph = 1;
    sg_graph_memory_book(context->device, (int64_t)taken);
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
    if (kind == SG_MEMORY_DEVICE) {
        CUresult result = take(context, taken);
        if (result != CUDA_SUCCESS)
            return result;
    }
    uint64_t start = space(context, taken, kind);
    struct sg_memory *memory = start ? insert(start, bytes) : NULL;
    if (!memory) {
        if (start)
            return_space(context->device, kind, start, taken);
        if (kind == SG_MEMORY_DEVICE)
            book(context, taken, 1);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    memory->taken_bytes = taken;
    memory->kind = kind;
    memory->flags = flags;
    memory->context = context;
    memory->context_id = context->object.id;
    memory->device = context->device;
    *address = start;
    return CUDA_SUCCESS;
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
    if (memory.pool)
        memory.pool->used_bytes -= memory.taken_bytes;
    if (memory.kind == SG_MEMORY_DEVICE && !is_context_gone && sg_alive(SG_CONTEXT, memory.context) &&
        memory.context->object.id == memory.context_id)
        book(memory.context, memory.taken_bytes, 1);
    if (memory.is_of_graph)
        sg_graph_memory_book(memory.device, -(int64_t)memory.taken_bytes);
    else
        return_space(memory.device, memory.kind, memory.start, memory.taken_bytes);
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

void sg_memory_leave_pool(CUmemoryPool pool)
{
    for (size_t i = 0; i < count; i++)
        if (table[i].pool == pool)
            table[i].pool = NULL;
}
