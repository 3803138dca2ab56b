/* The driver calls for stream capture, and the nodes that captured work becomes. */
#include "softgpu/driver/capture/internal.h"

#include <stdlib.h>
#include <string.h>

static CUresult add(CUstream stream, struct sg_body *body)
{
    struct sg_capture *capture = stream->capture;
    struct sg_frontier *frontier = sg_capture_frontier(stream);
    struct sg_edge *edges = calloc(frontier->count + 1, sizeof *edges);
    CUgraphNode node = NULL;
    CUresult result = edges ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    for (size_t i = 0; edges && i < frontier->count; i++)
        edges[i] = (struct sg_edge){frontier->nodes[i], frontier->data[i]};
    if (result == CUDA_SUCCESS)
        result = capture->is_invalid ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
                                  : sg_node_add(capture->graph, edges, frontier->count, body, &node);
    free(edges);
    if (result != CUDA_SUCCESS) {
        sg_body_end(body);
        return result;
    }
    frontier->count = 0;
    return sg_frontier_add(frontier, &node, NULL, 1);
}

static CUresult add_read(CUstream stream, const CUgraphNodeParams *params)
{
    struct sg_body body;
    CUresult result = sg_body_read(params, &body);
    int is_memory = params->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC || params->type == CU_GRAPH_NODE_TYPE_MEM_FREE;
    if (result == CUDA_SUCCESS && is_memory && stream->capture->graph->owner)
        result = CUDA_ERROR_INVALID_VALUE; /* a child graph accepts no further memory nodes */
    if (result == CUDA_SUCCESS && params->type == CU_GRAPH_NODE_TYPE_MEM_FREE)
        sg_region_check_free(stream->capture->graph, &body, &result);
    if (result == CUDA_SUCCESS)
        return add(stream, &body);
    sg_body_end(&body);
    return result;
}

CUresult sg_capture_kernel(CUstream stream, CUfunction function, const unsigned grid[3], const unsigned block[3],
                           unsigned shared_bytes, void **params, void **extra, const struct sg_launch_options *options)
{
    struct sg_body body;
    CUresult result = sg_body_kernel(&body, stream->context, function, grid, block, shared_bytes, params, extra);
    if (result != CUDA_SUCCESS) {
        sg_body_end(&body);
        return result;
    }
    body.kernel.is_cooperative = options->is_cooperative;
    body.kernel.attributes = calloc(SG_NODE_ATTRIBUTES, sizeof *body.kernel.attributes);
    if (body.kernel.attributes)
        body.kernel.attributes[CU_LAUNCH_ATTRIBUTE_PRIORITY].priority = stream->priority;
    if (body.kernel.attributes)
        memcpy(&body.kernel.attributes[CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION], options->cluster, sizeof options->cluster);
    return add(stream, &body);
}

static int type_of(enum sg_side side)
{
    return side == SG_SIDE_HOST     ? CU_MEMORYTYPE_HOST
           : side == SG_SIDE_DEVICE ? CU_MEMORYTYPE_DEVICE
                                    : CU_MEMORYTYPE_UNIFIED;
}

CUresult sg_capture_copy(CUstream stream, const struct sg_copy *copy)
{
    const struct sg_box *from = &copy->source, *to = &copy->target;
    CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_MEMCPY, .memcpy = {.copyCtx = stream->context}};
    params.memcpy.copyParams = (CUDA_MEMCPY3D){
        .srcMemoryType = type_of(copy->source_side),
        .srcPitch = from->pitch,
        .srcHeight = from->pitch ? from->slice / from->pitch : 0,
        .dstMemoryType = type_of(copy->target_side),
        .dstPitch = to->pitch,
        .dstHeight = to->pitch ? to->slice / to->pitch : 0,
        .WidthInBytes = copy->width,
        .Height = copy->height,
        .Depth = copy->depth,
    };
    if (copy->source_side == SG_SIDE_HOST)
        params.memcpy.copyParams.srcHost = (const void *)(uintptr_t)from->start;
    else
        params.memcpy.copyParams.srcDevice = from->start;
    if (copy->target_side == SG_SIDE_HOST)
        params.memcpy.copyParams.dstHost = (void *)(uintptr_t)to->start;
    else
        params.memcpy.copyParams.dstDevice = to->start;
    return add_read(stream, &params);
}

CUresult sg_capture_fill(CUstream stream, const struct sg_box *target, uint64_t width, uint64_t height, uint32_t value,
                         uint32_t element_bytes)
{
    const CUgraphNodeParams params = {
        .type = CU_GRAPH_NODE_TYPE_MEMSET,
        .memset = {target->start, target->pitch, value, element_bytes, width, height, stream->context},
    };
    return add_read(stream, &params);
}

CUresult sg_capture_host(CUstream stream, CUhostFn function, void *data)
{
    const CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_HOST, .host = {function, data}};
    return add_read(stream, &params);
}

CUresult sg_capture_add_event(CUstream stream, int type, CUevent event)
{
    CUgraphNodeParams params = {.type = type};
    params.eventWait.event = event;
    return add_read(stream, &params);
}

CUresult sg_capture_allocate(CUstream stream, const struct sg_device *device, uint64_t bytes, CUdeviceptr *address)
{
    const CUmemLocation location = {CU_MEM_LOCATION_TYPE_DEVICE, device->ordinal};
    const CUgraphNodeParams params = {
        .type = CU_GRAPH_NODE_TYPE_MEM_ALLOC,
        .alloc = {.poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = location}, .bytesize = bytes},
    };
    CUresult result = add_read(stream, &params);
    if (result == CUDA_SUCCESS)
        *address = sg_capture_frontier(stream)->nodes[0]->body->region->address;
    return result;
}

CUresult sg_capture_free(CUstream stream, uint64_t address)
{
    const CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_MEM_FREE, .free = {address}};
    return add_read(stream, &params);
}

static CUresult enter(CUstream *stream, int is_per_thread)
{
    CUcontext context;
    CUresult result = sg_enter_context(&context);
    if (result != CUDA_SUCCESS)
        return result;
    *stream = sg_stream(context, is_per_thread && !*stream ? CU_STREAM_PER_THREAD : *stream);
    return *stream ? CUDA_SUCCESS : sg_leave(CUDA_ERROR_INVALID_HANDLE);
}

#define ENTER(stream, is_per_thread)                                                                                   \
    CUresult result = enter(&stream, is_per_thread);                                                                   \
    if (result != CUDA_SUCCESS)                                                                                        \
    return result

static int are_of(CUgraph graph, const CUgraphNode *nodes, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (!nodes || !sg_alive(SG_NODE, nodes[i]) || nodes[i]->graph != graph)
            return 0;
    return 1;
}

static CUresult begin(CUstream stream, CUgraph graph, const CUgraphNode *nodes, const CUgraphEdgeData *data,
                      size_t count, int mode, int is_own, int is_per_thread)
{
    ENTER(stream, is_per_thread);
    if (mode < 0 || mode > CU_STREAM_CAPTURE_MODE_RELAXED)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    if (stream->is_legacy)
        return sg_leave(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    if (stream->capture)
        return sg_leave(CUDA_ERROR_ILLEGAL_STATE);
    if (!is_own && (!sg_alive(SG_GRAPH, graph) || graph->capture || !are_of(graph, nodes, count)))
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    if (is_own && (result = sg_graph_make(&graph)) != CUDA_SUCCESS)
        return sg_leave(result);
    struct sg_capture *capture = sg_capture_start(stream, graph, is_own, mode);
    struct sg_references released = {0};
    if (!capture) {
        if (is_own)
            sg_graph_end(graph, &released);
        return sg_leave(CUDA_ERROR_OUT_OF_MEMORY);
    }
    return sg_leave(sg_frontier_add(sg_capture_frontier(stream), nodes, data, count));
}

static CUresult end(CUstream stream, CUgraph *graph, int is_per_thread)
{
    struct sg_references released = {0};
    ENTER(stream, is_per_thread);
    struct sg_capture *capture = stream->capture;
    if (!graph || !capture)
        return sg_leave(graph ? CUDA_ERROR_ILLEGAL_STATE : CUDA_ERROR_INVALID_VALUE);
    if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED && capture->thread != sg_this_thread())
        return sg_leave(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
    if (capture->origin != stream) {
        capture->is_invalid = 1;
        return sg_leave(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
    }
    if (capture->is_invalid)
        result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    else if (!sg_capture_is_joined(capture))
        result = CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
    *graph = result == CUDA_SUCCESS ? capture->graph : NULL;
    sg_capture_end(capture, result == CUDA_SUCCESS, &released);
    return sg_leave_releasing(result, &released);
}

struct info {
    CUstreamCaptureStatus *status;
    cuuint64_t *id;
    CUgraph *graph;
    const CUgraphNode **nodes;
    const CUgraphEdgeData **data;
    size_t *count;
    int keeps_data;
};

static CUresult get_info(CUstream stream, const struct info *info, int is_per_thread)
{
    ENTER(stream, is_per_thread);
    const struct sg_capture *capture = stream->capture;
    if (!info->status)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    if (stream->is_legacy && sg_capture_is_implicit(stream))
        return sg_leave(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    *info->status = !capture           ? CU_STREAM_CAPTURE_STATUS_NONE
                    : capture->is_invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                       : CU_STREAM_CAPTURE_STATUS_ACTIVE;
    if (!capture || capture->is_invalid)
        return sg_leave(CUDA_SUCCESS);
    const struct sg_frontier *frontier = sg_capture_frontier(stream);
    static const CUgraphEdgeData plain;
    for (size_t i = 0; i < frontier->count && !info->data && info->nodes && info->keeps_data; i++)
        if (memcmp(&frontier->data[i], &plain, sizeof plain) != 0)
            return sg_leave(CUDA_ERROR_LOSSY_QUERY);
    if (info->id)
        *info->id = capture->id;
    if (info->graph)
        *info->graph = capture->graph;
    if (info->nodes)
        *info->nodes = frontier->nodes;
    if (info->data)
        *info->data = frontier->data;
    if (info->count)
        *info->count = frontier->count;
    return sg_leave(CUDA_SUCCESS);
}

static CUresult depend(CUstream stream, const CUgraphNode *nodes, const CUgraphEdgeData *data, size_t count,
                       unsigned flags, int is_per_thread)
{
    ENTER(stream, is_per_thread);
    if (!stream->capture)
        return sg_leave(CUDA_ERROR_ILLEGAL_STATE);
    if (flags > CU_STREAM_SET_CAPTURE_DEPENDENCIES || !are_of(stream->capture->graph, nodes, count))
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    if (stream->capture->is_invalid)
        return sg_leave(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    struct sg_frontier *frontier = sg_capture_frontier(stream);
    if (flags == CU_STREAM_SET_CAPTURE_DEPENDENCIES)
        frontier->count = 0;
    return sg_leave(sg_frontier_add(frontier, nodes, data, count));
}

#define FORMS(name, parameters, body)                                                                                  \
    API CUresult name parameters                                                                                       \
    {                                                                                                                  \
        enum { per_thread = 0 };                                                                                       \
        return body;                                                                                                   \
    }                                                                                                                  \
    API CUresult name##_ptsz parameters                                                                                \
    {                                                                                                                  \
        enum { per_thread = 1 };                                                                                       \
        return body;                                                                                                   \
    }

FORMS(cuStreamBeginCapture, (CUstream stream),
      begin(stream, NULL, NULL, NULL, 0, CU_STREAM_CAPTURE_MODE_GLOBAL, 1, per_thread))
FORMS(cuStreamBeginCapture_v2, (CUstream stream, CUstreamCaptureMode mode),
      begin(stream, NULL, NULL, NULL, 0, mode, 1, per_thread))
FORMS(cuStreamBeginCaptureToGraph,
      (CUstream stream, CUgraph graph, const CUgraphNode *nodes, const CUgraphEdgeData *data, size_t count,
       CUstreamCaptureMode mode),
      begin(stream, graph, nodes, data, count, mode, 0, per_thread))
FORMS(cuStreamEndCapture, (CUstream stream, CUgraph *graph), end(stream, graph, per_thread))
FORMS(cuStreamIsCapturing, (CUstream stream, CUstreamCaptureStatus *status),
      get_info(stream, &(struct info){.status = status}, per_thread))
FORMS(cuStreamGetCaptureInfo, (CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id),
      get_info(stream, &(struct info){.status = status, .id = id}, per_thread))
FORMS(cuStreamGetCaptureInfo_v2,
      (CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph, const CUgraphNode **nodes,
       size_t *count),
      get_info(stream, &(struct info){status, id, graph, nodes, NULL, count, 1}, per_thread))
FORMS(cuStreamGetCaptureInfo_v3,
      (CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph, const CUgraphNode **nodes,
       const CUgraphEdgeData **data, size_t *count),
      get_info(stream, &(struct info){status, id, graph, nodes, data, count, 1}, per_thread))
FORMS(cuStreamUpdateCaptureDependencies, (CUstream stream, CUgraphNode *nodes, size_t count, unsigned int flags),
      depend(stream, nodes, NULL, count, flags, per_thread))
FORMS(cuStreamUpdateCaptureDependencies_v2,
      (CUstream stream, CUgraphNode *nodes, const CUgraphEdgeData *data, size_t count, unsigned int flags),
      depend(stream, nodes, data, count, flags, per_thread))
