/* Streams being captured: what is put into them becomes nodes, and what cannot become one makes the capture void. */
#include "softgpu/captures.h"

#include <stdlib.h>
#include <string.h>

static struct sg_capture *captures; /* the ongoing ones */

struct sg_capture *sg_capture_find(uint64_t id)
{
    struct sg_capture *capture = captures;
    while (capture && capture->id != id)
        capture = capture->next;
    return capture;
}

struct sg_tips *sg_capture_tips(CUstream stream)
{
    struct sg_capture *capture = stream->capture;
    for (size_t i = 0; i < capture->member_count; i++)
        if (capture->members[i].stream == stream)
            return &capture->members[i];
    return NULL; /* never: a captured stream is a member */
}

static int room_for(struct sg_tips *tips, size_t count)
{
    if (count <= tips->room)
        return 0;
    size_t more = count > 2 * tips->room ? count : 2 * tips->room;
    CUgraphNode *nodes = realloc(tips->nodes, more * sizeof *nodes);
    if (nodes)
        tips->nodes = nodes;
    CUgraphEdgeData *data = nodes ? realloc(tips->data, more * sizeof *data) : NULL;
    if (!data)
        return -1;
    tips->data = data;
    tips->room = more;
    return 0;
}

CUresult sg_tips_add(struct sg_tips *tips, const CUgraphNode *nodes, const CUgraphEdgeData *data, size_t count)
{
    if (room_for(tips, tips->count + count) < 0)
        return CUDA_ERROR_OUT_OF_MEMORY;
    uint64_t stamp = sg_stamp();
    for (size_t i = 0; i < tips->count; i++)
        tips->nodes[i]->stamp = stamp;
    for (size_t i = 0; i < count; i++) {
        if (nodes[i]->stamp == stamp)
            continue;
        nodes[i]->stamp = stamp;
        tips->nodes[tips->count] = nodes[i];
        tips->data[tips->count++] = data ? data[i] : (CUgraphEdgeData){0};
    }
    return CUDA_SUCCESS;
}

CUresult sg_capture_join(struct sg_capture *capture, CUstream stream, const struct sg_tips *tips)
{
    struct sg_tips *larger = realloc(capture->members, (capture->member_count + 1) * sizeof *larger);
    if (!larger)
        return CUDA_ERROR_OUT_OF_MEMORY;
    capture->members = larger;
    struct sg_tips *member = &larger[capture->member_count];
    *member = (struct sg_tips){.stream = stream};
    CUresult result = tips ? sg_tips_add(member, tips->nodes, tips->data, tips->count) : CUDA_SUCCESS;
    if (result != CUDA_SUCCESS)
        return result;
    capture->member_count++;
    stream->capture = capture;
    return CUDA_SUCCESS;
}

struct sg_capture *sg_capture_start(CUstream stream, CUgraph graph, int is_own, int mode)
{
    struct sg_capture *capture = calloc(1, sizeof *capture);
    if (!capture)
        return NULL;
    *capture = (struct sg_capture){.id = sg_next_id(), .graph = graph, .is_own = is_own, .mode = mode};
    capture->thread = sg_this_thread();
    capture->origin = stream;
    if (sg_capture_join(capture, stream, NULL) != CUDA_SUCCESS) {
        free(capture->members);
        free(capture);
        return NULL;
    }
    graph->capture = capture;
    capture->next = captures;
    captures = capture;
    return capture;
}

static void free_tips(struct sg_tips *tips, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        free(tips[i].nodes);
        free(tips[i].data);
    }
    free(tips);
}

/* The graph stays if it is to be given out or was the program's from the start. */
void sg_capture_end(struct sg_capture *capture, int keeps_graph, struct sg_owneds *released)
{
    struct sg_capture **at = &captures;
    while (*at != capture)
        at = &(*at)->next;
    *at = capture->next;
    for (size_t i = 0; i < capture->member_count; i++)
        if (capture->members[i].stream)
            capture->members[i].stream->capture = NULL;
    capture->graph->capture = NULL;
    if (capture->is_own && !keeps_graph)
        sg_graph_end(capture->graph, released);
    free_tips(capture->members, capture->member_count);
    free_tips(capture->marks, capture->mark_count);
    free(capture);
}

/* Every stream of the capture must have led back to the one in which it began. */
int sg_capture_is_joined(struct sg_capture *capture)
{
    uint64_t stamp = sg_stamp();
    CUgraphNode *queue = malloc((capture->graph->count + 1) * sizeof *queue);
    size_t count = 0;
    if (!queue)
        return 0;
    const struct sg_tips *origin = sg_capture_tips(capture->origin);
    for (size_t i = 0; i < origin->count; i++) {
        origin->nodes[i]->stamp = stamp;
        queue[count++] = origin->nodes[i];
    }
    for (size_t i = 0; i < count; i++)
        for (size_t k = 0; k < queue[i]->before.count; k++) {
            CUgraphNode node = queue[i]->before.at[k].node;
            if (node->stamp != stamp) {
                node->stamp = stamp;
                queue[count++] = node;
            }
        }
    free(queue);
    for (size_t i = 0; i < capture->member_count; i++)
        for (size_t k = 0; k < capture->members[i].count; k++)
            if (capture->members[i].nodes[k]->stamp != stamp)
                return 0;
    return 1;
}

void sg_capture_forget(CUstream stream)
{
    struct sg_capture *capture = stream->capture;
    struct sg_owneds released = {0};
    if (stream == capture->origin) { /* nobody can end it any more */
        sg_capture_end(capture, 0, &released);
        free(released.at); /* a graph just captured owns nothing */
        return;
    }
    sg_capture_tips(stream)->stream = NULL; /* what it left must still be joined */
    stream->capture = NULL;
}

CUresult sg_capture_refuse(CUstream stream)
{
    stream->capture->is_void = 1;
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

static int waits_for(const struct CUstream_st *legacy, const struct sg_capture *capture)
{
    for (size_t i = 0; i < capture->member_count; i++) {
        CUstream stream = capture->members[i].stream;
        if (stream && stream->context_id == legacy->context_id && !(stream->flags & CU_STREAM_NON_BLOCKING))
            return 1;
    }
    return 0;
}

int sg_capture_is_implicit(CUstream legacy)
{
    for (struct sg_capture *capture = captures; capture; capture = capture->next)
        if (waits_for(legacy, capture))
            return 1;
    return 0;
}

CUresult sg_capture_implicit(CUstream legacy)
{
    CUresult result = CUDA_SUCCESS;
    for (struct sg_capture *capture = captures; capture; capture = capture->next)
        if (waits_for(legacy, capture)) {
            capture->is_void = 1;
            result = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
        }
    return result;
}

CUresult sg_capture_context(CUcontext context)
{
    CUresult result = CUDA_SUCCESS;
    for (struct sg_capture *capture = captures; capture; capture = capture->next)
        for (size_t i = 0; i < capture->member_count; i++) {
            CUstream stream = capture->members[i].stream;
            if (!stream || stream->context_id != context->object.id)
                continue;
            capture->is_void = 1;
            result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        }
    return result;
}

static __thread int thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

CUresult sg_capture_unsafe(void)
{
    CUresult result = CUDA_SUCCESS;
    if (thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED)
        return result;
    for (struct sg_capture *capture = captures; capture; capture = capture->next) {
        int is_mine = capture->thread == sg_this_thread();
        if (is_mine ? capture->mode == CU_STREAM_CAPTURE_MODE_RELAXED
                    : capture->mode != CU_STREAM_CAPTURE_MODE_GLOBAL ||
                          thread_mode == CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)
            continue;
        capture->is_void = 1;
        result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    return result;
}

API CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
    if (!mode || *mode < 0 || *mode > CU_STREAM_CAPTURE_MODE_RELAXED)
        return CUDA_ERROR_INVALID_VALUE;
    int before = thread_mode;
    thread_mode = *mode;
    *mode = before;
    return CUDA_SUCCESS;
}

CUresult sg_capture_event(CUevent event)
{
    if (!event->captured_by)
        return sg_capture_unsafe();
    struct sg_capture *capture = sg_capture_find(event->captured_by);
    if (capture)
        capture->is_void = 1;
    return CUDA_ERROR_CAPTURED_EVENT;
}

static struct sg_tips *mark_of(struct sg_capture *capture, CUevent event)
{
    for (size_t i = 0; i < capture->mark_count; i++)
        if (capture->marks[i].event_id == event->object.id)
            return &capture->marks[i];
    return NULL;
}

/* The event stands for where the stream is now; no node is needed for that. */
static CUresult mark(struct sg_capture *capture, CUstream stream, CUevent event)
{
    struct sg_tips *known = mark_of(capture, event);
    if (!known) {
        struct sg_tips *larger = realloc(capture->marks, (capture->mark_count + 1) * sizeof *larger);
        if (!larger)
            return CUDA_ERROR_OUT_OF_MEMORY;
        capture->marks = larger;
        known = &larger[capture->mark_count++];
        *known = (struct sg_tips){.event_id = event->object.id};
    }
    const struct sg_tips *tips = sg_capture_tips(stream);
    known->count = 0;
    event->captured_by = capture->id;
    return sg_tips_add(known, tips->nodes, tips->data, tips->count);
}

CUresult sg_capture_record(CUstream stream, CUevent event, int is_external)
{
    if (sg_home(stream->context) != sg_home(event->context))
        return CUDA_ERROR_INVALID_HANDLE;
    if (stream->capture->is_void)
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    return is_external ? sg_capture_add_event(stream, CU_GRAPH_NODE_TYPE_EVENT_RECORD, event)
                       : mark(stream->capture, stream, event);
}

CUresult sg_capture_wait(CUstream stream, CUevent event, int is_external, int *taken)
{
    struct sg_capture *mine = stream->capture, *its = event->captured_by ? sg_capture_find(event->captured_by) : NULL;
    *taken = 1;
    if (mine && mine->is_void)
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (mine && is_external)
        return sg_capture_add_event(stream, CU_GRAPH_NODE_TYPE_WAIT_EVENT, event);
    if (!event->captured_by) { /* so the stream is captured */
        if (!event->order && !event->is_shared) /* of a shared one other processes' records count, too */
            return CUDA_SUCCESS;
        mine->is_void = 1;
        return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
    }
    if (!its)
        return CUDA_ERROR_CAPTURED_EVENT; /* of a capture that has ended: it will never come */
    if (mine && mine != its) {
        mine->is_void = its->is_void = 1;
        return CUDA_ERROR_STREAM_CAPTURE_MERGE;
    }
    if (its->is_void)
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (stream->is_legacy) {
        its->is_void = 1;
        return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
    const struct sg_tips *tips = mark_of(its, event);
    if (!mine)
        return sg_capture_join(its, stream, tips);
    return sg_tips_add(sg_capture_tips(stream), tips->nodes, tips->data, tips->count);
}
