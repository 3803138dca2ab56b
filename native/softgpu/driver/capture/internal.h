/* The state of a capture in progress, shared by the files of this folder. */
#ifndef COTENANT_SOFTGPU_DRIVER_CAPTURE_INTERNAL_H
#define COTENANT_SOFTGPU_DRIVER_CAPTURE_INTERNAL_H

#include "softgpu/driver/graph/graph.h"

/* The nodes that the next node depends on: those of a stream, or of an event when it was recorded. */
struct sg_frontier {
    CUstream stream;
    uint64_t event_id;
    CUgraphNode *nodes;
    CUgraphEdgeData *data;
    size_t count, capacity;
};

struct sg_capture {
    uint64_t id;
    CUgraph graph;
    int is_own; /* the graph was created for this capture */
    int mode, is_invalid;
    const void *thread;
    CUstream origin;
    struct sg_frontier *streams, *events;
    size_t stream_count, event_count;
    struct sg_capture *next;
};

struct sg_capture *sg_capture_find(uint64_t id);
struct sg_frontier *sg_capture_frontier(CUstream stream);
CUresult sg_frontier_add(struct sg_frontier *frontier, const CUgraphNode *nodes, const CUgraphEdgeData *data,
                         size_t count);
CUresult sg_capture_join(struct sg_capture *capture, CUstream stream, const struct sg_frontier *frontier);
struct sg_capture *sg_capture_start(CUstream stream, CUgraph graph, int is_own, int mode);
void sg_capture_end(struct sg_capture *capture, int keeps_graph, struct sg_references *released);
int sg_capture_is_joined(struct sg_capture *capture);
int sg_capture_is_implicit(CUstream legacy);
CUresult sg_capture_add_event(CUstream stream, int type, CUevent event);

#endif
