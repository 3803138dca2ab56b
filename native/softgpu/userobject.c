/* User objects: things of the program that live as long as the graphs that hold references to them. */
#include "softgpu/graph.h"

#include <limits.h>
#include <stdlib.h>

#define ENTER(how)                                                                                                     \
    CUresult result = how;                                                                                             \
    if (result != CUDA_SUCCESS)                                                                                        \
    return result

static struct sg_owned *find(struct sg_owneds *owned, CUuserObject object)
{
    for (size_t i = 0; i < owned->count; i++)
        if (owned->at[i].object == object)
            return &owned->at[i];
    return NULL;
}

int sg_owned_add(struct sg_owneds *owned, CUuserObject object, unsigned count)
{
    struct sg_owned *known = find(owned, object);
    if (known) {
        known->count += count;
        return 0;
    }
    if (owned->count == owned->room) {
        size_t more = owned->room ? owned->room * 2 : 4;
        struct sg_owned *larger = realloc(owned->at, more * sizeof *larger);
        if (!larger)
            return -1;
        owned->at = larger;
        owned->room = more;
    }
    owned->at[owned->count++] = (struct sg_owned){object, count};
    return 0;
}

int sg_owned_copy(struct sg_owneds *to, const struct sg_owneds *from)
{
    for (size_t i = 0; i < from->count; i++) {
        if (sg_owned_add(to, from->at[i].object, from->at[i].count) < 0)
            return -1;
        from->at[i].object->users += from->at[i].count;
    }
    return 0;
}

void sg_owned_move(struct sg_owneds *from, struct sg_owneds *to)
{
    for (size_t i = 0; i < from->count; i++)
        sg_owned_add(to, from->at[i].object, from->at[i].count);
    free(from->at);
    *from = (struct sg_owneds){0};
}

/* Gives references back; what has none left becomes a call to be made once the lock is not held. */
static void release(struct sg_owneds *released, struct sg_owneds *ended)
{
    for (size_t i = 0; i < released->count; i++) {
        CUuserObject object = released->at[i].object;
        object->users -= released->at[i].count;
        if (!object->users && sg_owned_add(ended, object, 1) == 0)
            sg_hide(object);
    }
    free(released->at);
    *released = (struct sg_owneds){0};
}

static void destroy(struct sg_owneds *ended)
{
    int before = sg_in_callback(-1);
    sg_in_callback(1); /* a destructor may not call the driver */
    for (size_t i = 0; i < ended->count; i++)
        ended->at[i].object->destroy(ended->at[i].object->pointer);
    sg_in_callback(before);
    sg_relock();
    for (size_t i = 0; i < ended->count; i++)
        sg_unmake(SG_USER_OBJECT, ended->at[i].object);
    sg_unlock();
    free(ended->at);
}

CUresult sg_leave_releasing(CUresult result, struct sg_owneds *released)
{
    struct sg_owneds ended = {0};
    release(released, &ended);
    sg_leave(result);
    if (ended.count)
        destroy(&ended);
    return result;
}

/* As a host function: everything before it in its stream is done. */
static void release_later(void *data)
{
    struct sg_owneds *owned = data;
    sg_relock();
    sg_leave_releasing(CUDA_SUCCESS, owned);
    free(owned);
}

/* Launches that are still running use the objects: their references go when this event has come. */
void sg_owned_release_after(CUevent event, struct sg_owneds *owned)
{
    CUstream stream;
    struct sg_owneds *later = malloc(sizeof *later);
    if (!later || sg_stream_make(event->context, CU_STREAM_NON_BLOCKING, 0, &stream) != CUDA_SUCCESS) {
        free(later);
        return; /* never given back rather than too early */
    }
    *later = *owned;
    *owned = (struct sg_owneds){0};
    CUresult result = sg_event_hold(stream, event);
    if (result == CUDA_SUCCESS)
        result = sg_host_submit(stream, NULL, release_later, NULL, later);
    if (result != CUDA_SUCCESS)
        free(later);
    sg_stream_retire(stream);
}

API CUresult cuUserObjectCreate(CUuserObject *made, void *pointer, CUhostFn destroy_object, unsigned int count,
                                unsigned int flags)
{
    ENTER(sg_enter());
    if (!made || !destroy_object || !count || count > INT_MAX || flags != CU_USER_OBJECT_NO_DESTRUCTOR_SYNC)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    CUuserObject object = sg_make(SG_USER_OBJECT);
    if (!object)
        return sg_leave(CUDA_ERROR_OUT_OF_MEMORY);
    object->destroy = destroy_object;
    object->pointer = pointer;
    object->users = count;
    *made = object;
    return sg_leave(CUDA_SUCCESS);
}

static CUresult enter_object(CUuserObject object, unsigned count)
{
    ENTER(sg_enter());
    return sg_alive(SG_USER_OBJECT, object) && count && count <= INT_MAX ? CUDA_SUCCESS
                                                                         : sg_leave(CUDA_ERROR_INVALID_VALUE);
}

API CUresult cuUserObjectRetain(CUuserObject object, unsigned int count)
{
    ENTER(enter_object(object, count));
    object->users += count;
    return sg_leave(CUDA_SUCCESS);
}

API CUresult cuUserObjectRelease(CUuserObject object, unsigned int count)
{
    struct sg_owneds released = {0};
    ENTER(enter_object(object, count));
    if (count > object->users)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    if (sg_owned_add(&released, object, count) < 0)
        return sg_leave(CUDA_ERROR_OUT_OF_MEMORY);
    return sg_leave_releasing(CUDA_SUCCESS, &released);
}

API CUresult cuGraphRetainUserObject(CUgraph graph, CUuserObject object, unsigned int count, unsigned int flags)
{
    ENTER(enter_object(object, count));
    if (!sg_alive(SG_GRAPH, graph) || (flags & ~(unsigned)CU_GRAPH_USER_OBJECT_MOVE))
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    if (sg_owned_add(&graph->owned, object, count) < 0)
        return sg_leave(CUDA_ERROR_OUT_OF_MEMORY);
    if (!(flags & CU_GRAPH_USER_OBJECT_MOVE))
        object->users += count;
    return sg_leave(CUDA_SUCCESS);
}

API CUresult cuGraphReleaseUserObject(CUgraph graph, CUuserObject object, unsigned int count)
{
    struct sg_owneds released = {0};
    ENTER(enter_object(object, count));
    struct sg_owned *held = sg_alive(SG_GRAPH, graph) ? find(&graph->owned, object) : NULL;
    if (!held || held->count < count)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    if (sg_owned_add(&released, object, count) < 0)
        return sg_leave(CUDA_ERROR_OUT_OF_MEMORY);
    held->count -= count;
    if (!held->count)
        *held = graph->owned.at[--graph->owned.count];
    return sg_leave_releasing(CUDA_SUCCESS, &released);
}
