/* Inside libsoftgpu.so: an ongoing capture, for the two files that deal with it. */
#ifndef COTENANT_SOFTGPU_CAPTURES_H
#define COTENANT_SOFTGPU_CAPTURES_H

#include "softgpu/graph.h"

/* Nodes after which the next one comes: where a stream is, or was when an event was recorded in it. */
struct sg_tips {
    CUstream stream;
    uint64_t event_id;
    CUgraphNode *nodes;
    CUgraphEdgeData *data;
    size_t count, room;
};

struct sg_capture {
    uint64_t id;
    CUgraph graph;
    int is_own; /* made for this capture */
    int mode, is_void;
    const void *thread;
    CUstream origin;
    struct sg_tips *members, *marks;
    size_t member_count, mark_count;
    struct sg_capture *next;
};

struct sg_capture *sg_capture_find(uint64_t id);
struct sg_tips *sg_capture_tips(CUstream stream);
CUresult sg_tips_add(struct sg_tips *tips, const CUgraphNode *nodes, const CUgraphEdgeData *data, size_t count);
CUresult sg_capture_join(struct sg_capture *capture, CUstream stream, const struct sg_tips *tips);
struct sg_capture *sg_capture_start(CUstream stream, CUgraph graph, int is_own, int mode);
void sg_capture_end(struct sg_capture *capture, int keeps_graph, struct sg_owneds *released);
int sg_capture_is_joined(struct sg_capture *capture);
int sg_capture_is_implicit(CUstream legacy);
CUresult sg_capture_add_event(CUstream stream, int type, CUevent event);

#endif
