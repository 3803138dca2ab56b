/* Captures in progress. Work submitted to a captured stream becomes nodes; work that cannot be captured invalidates the
 * capture. */
#include "softgpu/driver/capture/internal.h"

#include <stdlib.h>
#include <string.h>

static struct sg_capture *captures; /* captures in progress */

struct sg_capture *sg_capture_find(uint64_t id)
{
    struct sg_capture *capture = captures;
    while (capture && capture->id != id)
        capture = capture->next;
    return capture;
}

struct sg_frontier *sg_capture_frontier(CUstream stream)
{
    struct sg_capture *capture = stream->capture;
    for (size_t i = 0; i < capture->stream_count; i++)
        if (capture->streams[i].stream == stream)
            return &capture->streams[i];
    return NULL; /* unreachable: every captured stream has an entry */
}

static int ensure_capacity(struct sg_frontier *frontier, size_t count)
{
    if (count <= frontier->capacity)
        return 0;
    size_t more = count > 2 * frontier->capacity ? count : 2 * frontier->capacity;
    CUgraphNode *nodes = realloc(frontier->nodes, more * sizeof *nodes);
    if (nodes)
        frontier->nodes = nodes;
    CUgraphEdgeData *data = nodes ? realloc(frontier->data, more * sizeof *data) : NULL;
    if (!data)
        return -1;
    frontier->data = data;
    frontier->capacity = more;
    return 0;
}

CUresult sg_frontier_add(struct sg_frontier *frontier, const CUgraphNode *nodes, const CUgraphEdgeData *data,
                         size_t count)
{
    if (ensure_capacity(frontier, frontier->count + count) < 0)
        return CUDA_ERROR_OUT_OF_MEMORY;
    uint64_t stamp = sg_stamp();
    for (size_t i = 0; i < frontier->count; i++)
        frontier->nodes[i]->stamp = stamp;
    for (size_t i = 0; i < count; i++) {
        if (nodes[i]->stamp == stamp)
            continue;
        nodes[i]->stamp = stamp;
        frontier->nodes[frontier->count] = nodes[i];
        frontier->data[frontier->count++] = data ? data[i] : (CUgraphEdgeData){0};
    }
    return CUDA_SUCCESS;
}

CUresult sg_capture_join(struct sg_capture *capture, CUstream stream, const struct sg_frontier *frontier)
{
    struct sg_frontier *larger = realloc(capture->streams, (capture->stream_count + 1) * sizeof *larger);
    if (!larger)
        return CUDA_ERROR_OUT_OF_MEMORY;
    capture->streams = larger;
    struct sg_frontier *entry = &larger[capture->stream_count];
    *entry = (struct sg_frontier){.stream = stream};
    CUresult result = CUDA_SUCCESS;
    if (frontier)
        result = sg_frontier_add(entry, frontier->nodes, frontier->data, frontier->count);
    if (result != CUDA_SUCCESS)
        return result;
    capture->stream_count++;
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
        free(capture->streams);
        free(capture);
        return NULL;
    }
    graph->capture = capture;
    capture->next = captures;
    captures = capture;
    return capture;
}

static void free_frontiers(struct sg_frontier *frontier, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        free(frontier[i].nodes);
        free(frontier[i].data);
    }
    free(frontier);
}

/* Keep the graph if it is returned to the program or belonged to it before the capture. */
void sg_capture_end(struct sg_capture *capture, int keeps_graph, struct sg_references *released)
{
    struct sg_capture **at = &captures;
    while (*at != capture)
        at = &(*at)->next;
    *at = capture->next;
    for (size_t i = 0; i < capture->stream_count; i++)
        if (capture->streams[i].stream)
            capture->streams[i].stream->capture = NULL;
    capture->graph->capture = NULL;
    if (capture->is_own && !keeps_graph)
        sg_graph_end(capture->graph, released);
    free_frontiers(capture->streams, capture->stream_count);
    free_frontiers(capture->events, capture->event_count);
    free(capture);
}

/* Whether every stream of the capture was joined to the stream in which the capture began. */
int sg_capture_is_joined(struct sg_capture *capture)
{
    uint64_t stamp = sg_stamp();
    CUgraphNode *queue = malloc((capture->graph->count + 1) * sizeof *queue);
    size_t count = 0;
    if (!queue)
        return 0;
    const struct sg_frontier *origin = sg_capture_frontier(capture->origin);
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
    for (size_t i = 0; i < capture->stream_count; i++)
        for (size_t k = 0; k < capture->streams[i].count; k++)
            if (capture->streams[i].nodes[k]->stamp != stamp)
                return 0;
    return 1;
}

void sg_capture_drop_stream(CUstream stream)
{
    struct sg_capture *capture = stream->capture;
    struct sg_references released = {0};
    if (stream == capture->origin) { /* without this stream no call can end the capture */
        sg_capture_end(capture, 0, &released);
        free(released.at); /* a graph under capture owns no user objects */
        return;
    }
    sg_capture_frontier(stream)->stream = NULL; /* its nodes must be joined nevertheless */
    stream->capture = NULL;
}

CUresult sg_capture_refuse(CUstream stream)
{
    stream->capture->is_invalid = 1;
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

static int waits_for(const struct CUstream_st *legacy, const struct sg_capture *capture)
{
    for (size_t i = 0; i < capture->stream_count; i++) {
        CUstream stream = capture->streams[i].stream;
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
            capture->is_invalid = 1;
            result = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
        }
    return result;
}

CUresult sg_capture_context(CUcontext context)
{
    CUresult result = CUDA_SUCCESS;
    for (struct sg_capture *capture = captures; capture; capture = capture->next)
        for (size_t i = 0; i < capture->stream_count; i++) {
            CUstream stream = capture->streams[i].stream;
            if (!stream || stream->context_id != context->object.id)
                continue;
            capture->is_invalid = 1;
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
        capture->is_invalid = 1;
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
        capture->is_invalid = 1;
    return CUDA_ERROR_CAPTURED_EVENT;
}

static struct sg_frontier *event_frontier(struct sg_capture *capture, CUevent event)
{
    for (size_t i = 0; i < capture->event_count; i++)
        if (capture->events[i].event_id == event->object.id)
            return &capture->events[i];
    return NULL;
}

/* Store the stream's current frontier for the event. The graph needs no node for it. */
static CUresult record_event(struct sg_capture *capture, CUstream stream, CUevent event)
{
    struct sg_frontier *entry = event_frontier(capture, event);
    if (!entry) {
        struct sg_frontier *larger = realloc(capture->events, (capture->event_count + 1) * sizeof *larger);
        if (!larger)
            return CUDA_ERROR_OUT_OF_MEMORY;
        capture->events = larger;
        entry = &larger[capture->event_count++];
        *entry = (struct sg_frontier){.event_id = event->object.id};
    }
    const struct sg_frontier *frontier = sg_capture_frontier(stream);
    entry->count = 0;
    event->captured_by = capture->id;
    return sg_frontier_add(entry, frontier->nodes, frontier->data, frontier->count);
}

CUresult sg_capture_record(CUstream stream, CUevent event, int is_external)
{
    if (sg_owner_context(stream->context) != sg_owner_context(event->context))
        return CUDA_ERROR_INVALID_HANDLE;
    if (stream->capture->is_invalid)
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    return is_external ? sg_capture_add_event(stream, CU_GRAPH_NODE_TYPE_EVENT_RECORD, event)
                       : record_event(stream->capture, stream, event);
}

CUresult sg_capture_wait(CUstream stream, CUevent event, int is_external, int *handled)
{
    struct sg_capture *mine = stream->capture, *its = event->captured_by ? sg_capture_find(event->captured_by) : NULL;
    *handled = 1;
    if (mine && mine->is_invalid)
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (mine && is_external)
        return sg_capture_add_event(stream, CU_GRAPH_NODE_TYPE_WAIT_EVENT, event);
    if (!event->captured_by) { /* then the stream is captured */
        if (!event->order && !event->is_shared) /* another process may have recorded a shared event */
            return CUDA_SUCCESS;
        mine->is_invalid = 1;
        return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
    }
    if (!its)
        return CUDA_ERROR_CAPTURED_EVENT; /* its capture has ended, so the event never completes */
    if (mine && mine != its) {
        mine->is_invalid = its->is_invalid = 1;
        return CUDA_ERROR_STREAM_CAPTURE_MERGE;
    }
    if (its->is_invalid)
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (stream->is_legacy) {
        its->is_invalid = 1;
        return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
    const struct sg_frontier *frontier = event_frontier(its, event);
    if (!mine)
        return sg_capture_join(its, stream, frontier);
    return sg_frontier_add(sg_capture_frontier(stream), frontier->nodes, frontier->data, frontier->count);
}
