/* Object pools behind handles. An address outside the pools or of a free slot is never dereferenced. */
#include "softgpu/driver/array/array.h"
#include "softgpu/driver/context/green.h"
#include "softgpu/driver/module/linker.h"
#include "softgpu/driver/graph/graph.h"

#include <string.h>
#include <sys/mman.h>

struct pool {
    char *start;
    size_t used_bytes;   /* range that handles may point into; 0 before the first object */
    uint32_t slot_bytes; /* a power of two, so that checking a handle needs no division */
    uint32_t capacity, used;
    uint32_t free_head; /* index plus one */
};

enum { SHIFT_CONTEXT = 11, SHIFT_STREAM = 8, SHIFT_EVENT = 8, SHIFT_MODULE = 8, SHIFT_FUNCTION = 7, SHIFT_POOL = 8,
       SHIFT_ARRAY = 7, SHIFT_MIPMAP = 8, SHIFT_SAMPLER = 9, SHIFT_LINKER = 8, SHIFT_GREEN = 6, SHIFT_GRAPH = 7,
       SHIFT_NODE = 7, SHIFT_EXEC = 8, SHIFT_USER_OBJECT = 6, SHIFT_PHYSICAL = 8 };

static struct pool pools[SG_KINDS] = {
    [SG_CONTEXT] = {.slot_bytes = 1 << SHIFT_CONTEXT, .capacity = 4096},
    [SG_STREAM] = {.slot_bytes = 1 << SHIFT_STREAM, .capacity = 65536},
    [SG_EVENT] = {.slot_bytes = 1 << SHIFT_EVENT, .capacity = 1 << 20},
    [SG_MODULE] = {.slot_bytes = 1 << SHIFT_MODULE, .capacity = 1 << 18},
    [SG_FUNCTION] = {.slot_bytes = 1 << SHIFT_FUNCTION, .capacity = 1 << 20},
    [SG_POOL] = {.slot_bytes = 1 << SHIFT_POOL, .capacity = 4096},
    [SG_ARRAY] = {.slot_bytes = 1 << SHIFT_ARRAY, .capacity = 1 << 20},
    [SG_MIPMAP] = {.slot_bytes = 1 << SHIFT_MIPMAP, .capacity = 1 << 16},
    [SG_SAMPLER] = {.slot_bytes = 1 << SHIFT_SAMPLER, .capacity = 1 << 20},
    [SG_LINKER] = {.slot_bytes = 1 << SHIFT_LINKER, .capacity = 4096},
    [SG_GREEN] = {.slot_bytes = 1 << SHIFT_GREEN, .capacity = 4096},
    [SG_GRAPH] = {.slot_bytes = 1 << SHIFT_GRAPH, .capacity = 1 << 22},
    [SG_NODE] = {.slot_bytes = 1 << SHIFT_NODE, .capacity = 1 << 25}, /* memory limits the number of nodes first */
    [SG_EXEC] = {.slot_bytes = 1 << SHIFT_EXEC, .capacity = 1 << 20},
    [SG_USER_OBJECT] = {.slot_bytes = 1 << SHIFT_USER_OBJECT, .capacity = 1 << 22},
    [SG_PHYSICAL] = {.slot_bytes = 1 << SHIFT_PHYSICAL, .capacity = 1 << 20},
};

_Static_assert(sizeof(struct CUctx_st) <= 1 << SHIFT_CONTEXT, "a context fits its slot");
_Static_assert(sizeof(struct CUstream_st) <= 1 << SHIFT_STREAM, "a stream fits its slot");
_Static_assert(sizeof(struct CUevent_st) <= 1 << SHIFT_EVENT, "an event fits its slot");
_Static_assert(sizeof(struct CUmod_st) <= 1 << SHIFT_MODULE, "a module fits its slot");
_Static_assert(sizeof(struct CUfunc_st) <= 1 << SHIFT_FUNCTION, "a function fits its slot");
_Static_assert(sizeof(struct CUmemPoolHandle_st) <= 1 << SHIFT_POOL, "a pool fits its slot");
_Static_assert(sizeof(struct CUarray_st) <= 1 << SHIFT_ARRAY, "an array fits its slot");
_Static_assert(sizeof(struct CUmipmappedArray_st) <= 1 << SHIFT_MIPMAP, "a mipmapped array fits its slot");
_Static_assert(sizeof(struct sg_sampler) <= 1 << SHIFT_SAMPLER, "a texture object fits its slot");
_Static_assert(sizeof(struct CUlinkState_st) <= 1 << SHIFT_LINKER, "a linker fits its slot");
_Static_assert(sizeof(struct CUgreenCtx_st) <= 1 << SHIFT_GREEN, "a green context fits its slot");
_Static_assert(sizeof(struct CUgraph_st) <= 1 << SHIFT_GRAPH, "a graph fits its slot");
_Static_assert(sizeof(struct CUgraphNode_st) <= 1 << SHIFT_NODE, "a node fits its slot");
_Static_assert(sizeof(struct CUgraphExec_st) <= 1 << SHIFT_EXEC, "an executable graph fits its slot");
_Static_assert(sizeof(struct CUuserObject_st) <= 1 << SHIFT_USER_OBJECT, "a user object fits its slot");
_Static_assert(sizeof(struct sg_physical) <= 1 << SHIFT_PHYSICAL, "physical memory fits its slot");

static struct sg_object *object_at(const struct pool *pool, uint32_t index)
{
    return (struct sg_object *)(void *)(pool->start + (size_t)index * pool->slot_bytes);
}

void *sg_new(enum sg_kind kind)
{
    struct pool *pool = &pools[kind];
    if (!pool->start) {
        void *start = mmap(NULL, (size_t)pool->slot_bytes * pool->capacity, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (start == MAP_FAILED)
            return NULL;
        pool->start = start;
    }
    uint32_t index;
    if (pool->free_head) {
        index = pool->free_head - 1;
        pool->free_head = object_at(pool, index)->next;
    } else if (pool->used < pool->capacity) {
        index = pool->used++;
        pool->used_bytes += pool->slot_bytes;
    } else {
        return NULL;
    }
    struct sg_object *object = object_at(pool, index);
    memset(object, 0, pool->slot_bytes);
    object->alive = 1;
    object->index = index;
    object->id = sg_next_id();
    return object;
}

void sg_delete(enum sg_kind kind, void *object)
{
    struct pool *pool = &pools[kind];
    struct sg_object *dead = object;
    dead->alive = 0;
    dead->next = pool->free_head;
    pool->free_head = dead->index + 1;
}

int sg_alive(enum sg_kind kind, const void *handle)
{
    const struct pool *pool = &pools[kind];
    uintptr_t offset = (uintptr_t)handle - (uintptr_t)pool->start;
    if (offset >= pool->used_bytes || (offset & (pool->slot_bytes - 1)))
        return 0;
    return ((const struct sg_object *)handle)->alive == 1;
}

void sg_object_hide(void *object)
{
    ((struct sg_object *)object)->alive = 2;
}

void *sg_each(enum sg_kind kind, void *before)
{
    struct pool *pool = &pools[kind];
    uint32_t index = before ? ((struct sg_object *)before)->index + 1 : 0;
    for (; index < pool->used; index++) {
        struct sg_object *object = object_at(pool, index);
        if (object->alive)
            return object;
    }
    return NULL;
}
