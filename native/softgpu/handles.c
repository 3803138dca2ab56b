/* Pools of objects behind handles: an address outside of them, or a dead place inside, is never looked into. */
#include "softgpu/array.h"
#include "softgpu/green.h"
#include "softgpu/linker.h"
#include "softgpu/graph.h"

#include <string.h>
#include <sys/mman.h>

struct pool {
    char *start;
    size_t used_bytes;    /* what a handle may point into; 0 before the first object */
    uint32_t place_bytes; /* a power of two, so that the check of a handle needs no division */
    uint32_t room, used;
    uint32_t free_head; /* index plus one */
};

enum { SHIFT_CONTEXT = 11, SHIFT_STREAM = 8, SHIFT_EVENT = 8, SHIFT_MODULE = 7, SHIFT_FUNCTION = 7, SHIFT_POOL = 8,
       SHIFT_ARRAY = 7, SHIFT_MIPMAP = 8, SHIFT_SAMPLER = 9, SHIFT_LINKER = 7, SHIFT_GREEN = 6, SHIFT_GRAPH = 7,
       SHIFT_NODE = 7, SHIFT_EXEC = 8, SHIFT_USER_OBJECT = 6, SHIFT_PHYSICAL = 8 };

static struct pool pools[SG_KINDS] = {
    [SG_CONTEXT] = {.place_bytes = 1 << SHIFT_CONTEXT, .room = 4096},
    [SG_STREAM] = {.place_bytes = 1 << SHIFT_STREAM, .room = 65536},
    [SG_EVENT] = {.place_bytes = 1 << SHIFT_EVENT, .room = 1 << 20},
    [SG_MODULE] = {.place_bytes = 1 << SHIFT_MODULE, .room = 1 << 18},
    [SG_FUNCTION] = {.place_bytes = 1 << SHIFT_FUNCTION, .room = 1 << 20},
    [SG_POOL] = {.place_bytes = 1 << SHIFT_POOL, .room = 4096},
    [SG_ARRAY] = {.place_bytes = 1 << SHIFT_ARRAY, .room = 1 << 20},
    [SG_MIPMAP] = {.place_bytes = 1 << SHIFT_MIPMAP, .room = 1 << 16},
    [SG_SAMPLER] = {.place_bytes = 1 << SHIFT_SAMPLER, .room = 1 << 20},
    [SG_LINKER] = {.place_bytes = 1 << SHIFT_LINKER, .room = 4096},
    [SG_GREEN] = {.place_bytes = 1 << SHIFT_GREEN, .room = 4096},
    [SG_GRAPH] = {.place_bytes = 1 << SHIFT_GRAPH, .room = 1 << 22},
    [SG_NODE] = {.place_bytes = 1 << SHIFT_NODE, .room = 1 << 25}, /* more than memory holds of what is behind them */
    [SG_EXEC] = {.place_bytes = 1 << SHIFT_EXEC, .room = 1 << 20},
    [SG_USER_OBJECT] = {.place_bytes = 1 << SHIFT_USER_OBJECT, .room = 1 << 22},
    [SG_PHYSICAL] = {.place_bytes = 1 << SHIFT_PHYSICAL, .room = 1 << 20},
};

_Static_assert(sizeof(struct CUctx_st) <= 1 << SHIFT_CONTEXT, "a context fits its place");
_Static_assert(sizeof(struct CUstream_st) <= 1 << SHIFT_STREAM, "a stream fits its place");
_Static_assert(sizeof(struct CUevent_st) <= 1 << SHIFT_EVENT, "an event fits its place");
_Static_assert(sizeof(struct CUmod_st) <= 1 << SHIFT_MODULE, "a module fits its place");
_Static_assert(sizeof(struct CUfunc_st) <= 1 << SHIFT_FUNCTION, "a function fits its place");
_Static_assert(sizeof(struct CUmemPoolHandle_st) <= 1 << SHIFT_POOL, "a pool fits its place");
_Static_assert(sizeof(struct CUarray_st) <= 1 << SHIFT_ARRAY, "an array fits its place");
_Static_assert(sizeof(struct CUmipmappedArray_st) <= 1 << SHIFT_MIPMAP, "a mipmapped array fits its place");
_Static_assert(sizeof(struct sg_sampler) <= 1 << SHIFT_SAMPLER, "a texture object fits its place");
_Static_assert(sizeof(struct CUlinkState_st) <= 1 << SHIFT_LINKER, "a linker fits its place");
_Static_assert(sizeof(struct CUgreenCtx_st) <= 1 << SHIFT_GREEN, "a green context fits its place");
_Static_assert(sizeof(struct CUgraph_st) <= 1 << SHIFT_GRAPH, "a graph fits its place");
_Static_assert(sizeof(struct CUgraphNode_st) <= 1 << SHIFT_NODE, "a node fits its place");
_Static_assert(sizeof(struct CUgraphExec_st) <= 1 << SHIFT_EXEC, "an executable graph fits its place");
_Static_assert(sizeof(struct CUuserObject_st) <= 1 << SHIFT_USER_OBJECT, "a user object fits its place");
_Static_assert(sizeof(struct sg_physical) <= 1 << SHIFT_PHYSICAL, "physical memory fits its place");

static struct sg_object *place(const struct pool *pool, uint32_t index)
{
    return (struct sg_object *)(void *)(pool->start + (size_t)index * pool->place_bytes);
}

void *sg_make(enum sg_kind kind)
{
    struct pool *pool = &pools[kind];
    if (!pool->start) {
        void *start = mmap(NULL, (size_t)pool->place_bytes * pool->room, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (start == MAP_FAILED)
            return NULL;
        pool->start = start;
    }
    uint32_t index;
    if (pool->free_head) {
        index = pool->free_head - 1;
        pool->free_head = place(pool, index)->next;
    } else if (pool->used < pool->room) {
        index = pool->used++;
        pool->used_bytes += pool->place_bytes;
    } else {
        return NULL;
    }
    struct sg_object *object = place(pool, index);
    memset(object, 0, pool->place_bytes);
    object->alive = 1;
    object->index = index;
    object->id = sg_next_id();
    return object;
}

void sg_unmake(enum sg_kind kind, void *thing)
{
    struct pool *pool = &pools[kind];
    struct sg_object *dead = thing;
    dead->alive = 0;
    dead->next = pool->free_head;
    pool->free_head = dead->index + 1;
}

int sg_alive(enum sg_kind kind, const void *handle)
{
    const struct pool *pool = &pools[kind];
    uintptr_t offset = (uintptr_t)handle - (uintptr_t)pool->start;
    if (offset >= pool->used_bytes || (offset & (pool->place_bytes - 1)))
        return 0;
    return ((const struct sg_object *)handle)->alive == 1;
}

void sg_hide(void *object)
{
    ((struct sg_object *)object)->alive = 2;
}

void *sg_each(enum sg_kind kind, void *before)
{
    struct pool *pool = &pools[kind];
    uint32_t index = before ? ((struct sg_object *)before)->index + 1 : 0;
    for (; index < pool->used; index++) {
        struct sg_object *object = place(pool, index);
        if (object->alive)
            return object;
    }
    return NULL;
}
