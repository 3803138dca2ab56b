/* User objects: objects of the program that live as long as graphs hold references to them. */
#include "softgpu/driver/graph/graph.h"

#include <limits.h>
#include <stdlib.h>

#define ENTER(how)                                                                                                     \
    CUresult result = how;                                                                                             \
    if (result != CUDA_SUCCESS)                                                                                        \
    return result

static struct sg_reference *find(struct sg_references *references, CUuserObject object)
{
    for (size_t i = 0; i < references->count; i++)
        if (references->at[i].object == object)
            return &references->at[i];
    return NULL;
}

int sg_references_add(struct sg_references *references, CUuserObject object, unsigned count)
{
    struct sg_reference *existing = find(references, object);
    if (existing) {
        existing->count += count;
        return 0;
    }
    if (references->count == references->capacity) {
        size_t more = references->capacity ? references->capacity * 2 : 4;
        struct sg_reference *larger = realloc(references->at, more * sizeof *larger);
        if (!larger)
            return -1;
        references->at = larger;
        references->capacity = more;
    }
    references->at[references->count++] = (struct sg_reference){object, count};
    return 0;
}

int sg_references_copy(struct sg_references *to, const struct sg_references *from)
{
    for (size_t i = 0; i < from->count; i++) {
        if (sg_references_add(to, from->at[i].object, from->at[i].count) < 0)
            return -1;
        from->at[i].object->users += from->at[i].count;
    }
    return 0;
}

void sg_references_move(struct sg_references *from, struct sg_references *to)
{
    for (size_t i = 0; i < from->count; i++)
        sg_references_add(to, from->at[i].object, from->at[i].count);
    free(from->at);
    *from = (struct sg_references){0};
}

/* Release references. Objects without references are collected in *ended, because destructors run without the lock. */
static void release(struct sg_references *released, struct sg_references *ended)
{
    for (size_t i = 0; i < released->count; i++) {
        CUuserObject object = released->at[i].object;
        object->users -= released->at[i].count;
        if (!object->users && sg_references_add(ended, object, 1) == 0)
            sg_object_hide(object);
    }
    free(released->at);
    *released = (struct sg_references){0};
}

static void destroy(struct sg_references *ended)
{
    int before = sg_in_callback(-1);
    sg_in_callback(1); /* a destructor must not call the driver */
    for (size_t i = 0; i < ended->count; i++)
        ended->at[i].object->destroy(ended->at[i].object->pointer);
    sg_in_callback(before);
    sg_relock();
    for (size_t i = 0; i < ended->count; i++)
        sg_delete(SG_USER_OBJECT, ended->at[i].object);
    sg_unlock();
    free(ended->at);
}

CUresult sg_leave_releasing(CUresult result, struct sg_references *released)
{
    struct sg_references ended = {0};
    release(released, &ended);
    sg_leave(result);
    if (ended.count)
        destroy(&ended);
    return result;
}

/* A host function: all earlier work of its stream is complete. */
static void release_later(void *data)
{
    struct sg_references *references = data;
    sg_relock();
    sg_leave_releasing(CUDA_SUCCESS, references);
    free(references);
}

/* Running launches use the objects, so release the references after this event. */
void sg_references_release_after(CUevent event, struct sg_references *references)
{
    CUstream stream;
    struct sg_references *later = malloc(sizeof *later);
    if (!later || sg_stream_make(event->context, CU_STREAM_NON_BLOCKING, 0, &stream) != CUDA_SUCCESS) {
        free(later);
        return; /* leaking them is safer than releasing them too early */
    }
    *later = *references;
    *references = (struct sg_references){0};
    CUresult result = sg_stream_wait_event(stream, event);
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
    CUuserObject object = sg_new(SG_USER_OBJECT);
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
    struct sg_references released = {0};
    ENTER(enter_object(object, count));
    if (count > object->users)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    if (sg_references_add(&released, object, count) < 0)
        return sg_leave(CUDA_ERROR_OUT_OF_MEMORY);
    return sg_leave_releasing(CUDA_SUCCESS, &released);
}

API CUresult cuGraphRetainUserObject(CUgraph graph, CUuserObject object, unsigned int count, unsigned int flags)
{
    ENTER(enter_object(object, count));
    if (!sg_alive(SG_GRAPH, graph) || (flags & ~(unsigned)CU_GRAPH_USER_OBJECT_MOVE))
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    if (sg_references_add(&graph->references, object, count) < 0)
        return sg_leave(CUDA_ERROR_OUT_OF_MEMORY);
    if (!(flags & CU_GRAPH_USER_OBJECT_MOVE))
        object->users += count;
    return sg_leave(CUDA_SUCCESS);
}

API CUresult cuGraphReleaseUserObject(CUgraph graph, CUuserObject object, unsigned int count)
{
    struct sg_references released = {0};
    ENTER(enter_object(object, count));
    struct sg_reference *held = sg_alive(SG_GRAPH, graph) ? find(&graph->references, object) : NULL;
    if (!held || held->count < count)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    if (sg_references_add(&released, object, count) < 0)
        return sg_leave(CUDA_ERROR_OUT_OF_MEMORY);
    held->count -= count;
    if (!held->count)
        *held = graph->references.at[--graph->references.count];
    return sg_leave_releasing(CUDA_SUCCESS, &released);
}
