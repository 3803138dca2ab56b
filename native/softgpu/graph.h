/* Inside libsoftgpu.so: graphs, their executable forms, and streams that are captured into graphs. */
#ifndef COTENANT_SOFTGPU_GRAPH_H
#define COTENANT_SOFTGPU_GRAPH_H

#include "softgpu/copy.h"

/* ---- what a node does, all of it by value ----------------------------------------------------------------------- */

enum { SG_NODE_ATTRIBUTES = 19 };

/* An address that alloc nodes give out: it stays the same from launch to launch, the memory behind it comes and goes. */
struct sg_region {
    uint64_t address, bytes, taken_bytes;
    struct sg_device *device;
    CUmemPoolProps props;
    size_t users;        /* bodies that name it */
    int freed_at_home, freed_abroad; /* a free node in the graph that allocates it; in another */
    struct sg_region *next;
};

struct sg_body {
    CUgraphNodeType type;
    CUcontext context; /* NULL: none, it does nothing on a device */
    uint64_t context_id;
    union {
        struct {
            CUfunction function;
            uint64_t function_id;
            unsigned grid[3], block[3], shared_bytes;
            int is_cooperative;
            void **params; /* and behind the pointers the values; NULL: it has none */
            CUkernelNodeAttrValue *attributes; /* SG_NODE_ATTRIBUTES of them; NULL: none was set */
        } kernel;
        struct {
            CUDA_MEMCPY3D params;
            struct sg_copy copy;
        } copy;
        CUDA_MEMSET_NODE_PARAMS fill;
        CUDA_HOST_NODE_PARAMS host;
        struct {
            CUgraph graph;
            int ownership;
        } child;
        struct {
            CUevent event;
            uint64_t id;
        } event;
        struct sg_region *region;
    };
};

/* Reads and writes the driver's description. A body read must be ended; a child graph in it is not yet the node's own. */
CUresult sg_body_read(const CUgraphNodeParams *params, struct sg_body *body);
CUresult sg_body_kernel(struct sg_body *body, CUcontext context, CUfunction function, const unsigned grid[3],
                        const unsigned block[3], unsigned shared_bytes, void **params, void **extra);
void sg_body_write(const struct sg_body *body, CUgraphNodeParams *params);
int sg_body_copy(struct sg_body *copy, const struct sg_body *body); /* all but child graphs; -1: no memory */
void sg_body_end(struct sg_body *body);
CUresult sg_body_submit(const struct sg_body *body, CUstream stream);

struct sg_region *sg_region_make(struct sg_device *device, uint64_t bytes, const CUmemPoolProps *props);
struct sg_region *sg_region_at(uint64_t address);
void sg_region_use(struct sg_region *region);
void sg_region_leave(struct sg_region *region);
CUresult sg_region_fill(struct sg_region *region, CUcontext context); /* memory comes to the address */
CUresult sg_region_empty(const struct sg_region *region, CUstream stream);
int sg_region_is_free(const struct sg_region *region);
void sg_region_check_free(CUgraph graph, const struct sg_body *body, CUresult *result);

/* ---- graphs ------------------------------------------------------------------------------------------------------ */

struct sg_edge {
    CUgraphNode node;
    CUgraphEdgeData data;
};

struct sg_edges {
    struct sg_edge *at;
    size_t count, room;
};

struct CUgraphNode_st {
    struct sg_object object;
    CUgraph graph;
    CUgraphNode next, previous; /* in the order made */
    struct sg_edges before, after;
    struct sg_body *body;
    uint64_t original_id; /* of what it was cloned from */
    uint64_t stamp;       /* for walks: seen in this one */
    union {
        CUgraphNode twin; /* while cloning */
        size_t left;      /* while sorting: dependencies still to come; then its last step */
    };
};

struct sg_owned { /* references to a user object */
    CUuserObject object;
    unsigned count;
};

struct sg_owneds {
    struct sg_owned *at;
    size_t count, room;
};

struct CUgraph_st {
    struct sg_object object;
    CUgraphNode first, last, owner; /* owner: the node it is the child graph of */
    size_t count;
    size_t memory_nodes, execs; /* of those that allow one executable graph only */
    uint64_t original_id;
    struct sg_capture *capture; /* that is adding to it */
    struct sg_owneds owned;
    CUgraph pending; /* while cloning or destroying: the next one */
};

int sg_edges_add(struct sg_edges *edges, CUgraphNode node, const CUgraphEdgeData *data); /* 0, or -1: no memory */
CUresult sg_graph_make(CUgraph *graph);
void sg_graph_end(CUgraph graph, struct sg_owneds *released);
CUresult sg_graph_clone(CUgraph source, CUgraph *made);
/* Takes the body over if all is well. */
CUresult sg_node_add(CUgraph graph, const struct sg_edge *before, size_t count, struct sg_body *body, CUgraphNode *made);
CUresult sg_node_link(CUgraphNode from, CUgraphNode to, const CUgraphEdgeData *data);
uint64_t sg_stamp(void);
CUresult sg_child_adopt(CUgraph graph, struct sg_body *body);

/* ---- user objects: references are given back under the lock, destructors run after it ----------------------------- */

struct CUuserObject_st {
    struct sg_object object;
    CUhostFn destroy;
    void *pointer;
    uint64_t users;
};

int sg_owned_add(struct sg_owneds *owned, CUuserObject object, unsigned count);
int sg_owned_copy(struct sg_owneds *to, const struct sg_owneds *from);
void sg_owned_move(struct sg_owneds *from, struct sg_owneds *to);
CUresult sg_leave_releasing(CUresult result, struct sg_owneds *released); /* gives the lock back, runs what ended */
void sg_owned_release_after(CUevent event, struct sg_owneds *owned);

/* ---- executable graphs: nodes of all depths in one order in which each comes after what it depends on -------------- */

enum { SG_BRANCHES = 32 };

struct sg_step {
    struct sg_body body;
    uint64_t node_id;
    CUgraphNode node;
    size_t first, count; /* its dependencies in `depends` */
    size_t end;          /* of a child graph: the step that ends it; else itself */
    int is_disabled;
    uint32_t branch, wait_count; /* planned: where it runs, and which marks it waits for there */
    size_t first_wait;
    size_t mark;      /* its event, plus one, when others wait for it */
    size_t last_wait; /* the step, plus one, that is the last to wait for it; SIZE_MAX: the end */
};

/* An event between branches; used again as soon as all who wait for it are past. */
struct sg_mark {
    CUevent event;
    uint32_t branch;
};

struct sg_plan {
    uint64_t context_id; /* of the launch stream this was made for */
    int priority;
    uint32_t branches;
    CUstream streams[SG_BRANCHES]; /* [0]: the launch stream itself */
    CUcontext contexts[SG_BRANCHES];
    uint64_t context_ids[SG_BRANCHES];
    size_t *waits; /* steps whose marks are waited for */
    size_t wait_count, wait_room;
    struct sg_mark *marks;
    size_t mark_count, mark_room;
    size_t ends[SG_BRANCHES], end_count; /* steps whose marks the launch stream waits for at last */
    CUevent begin;
};

struct CUgraphExec_st {
    struct sg_object object;
    struct sg_step *steps;
    size_t count, room;
    size_t *depends;
    size_t depend_count, depend_room;
    size_t *by_node; /* steps in the order of node_id */
    uint64_t flags, graph_id, done_id;
    CUgraph graph;
    struct sg_plan *plan;
    CUevent done; /* the end of the latest launch */
    struct sg_owneds owned;
    uint32_t users; /* launches that have not returned */
    int is_ended;
};

CUresult sg_flatten(CUgraphExec exec, CUgraph graph, CUgraphNode *culprit);
void sg_exec_clear(CUgraphExec exec);
struct sg_step *sg_exec_step(CUgraphExec exec, CUgraphNode node);
CUresult sg_plan_for(CUgraphExec exec, CUstream stream);
void sg_plan_end(struct sg_plan *plan);
CUresult sg_exec_launch(CUgraphExec exec, CUstream stream);
void sg_exec_end(CUgraphExec exec, struct sg_owneds *released);
CUresult sg_exec_settle(CUgraphExec exec); /* waits until no other thread is within a launch of it */

/* ---- the face's calls, made once more from params ------------------------------------------------------------------ */

CUresult sg_graph_call_add(CUgraphNode *made, CUgraph graph, const CUgraphNode *before, const CUgraphEdgeData *data,
                           size_t count, CUgraphNodeParams *params);
CUresult sg_graph_call_set(CUgraphNode node, const CUgraphNodeParams *params);
CUresult sg_graph_call_get(CUgraphNode node, CUgraphNodeParams *params);
CUresult sg_graph_call_exec_set(CUgraphExec exec, CUgraphNode node, const CUgraphNodeParams *params);
CUresult sg_enter_node(CUgraphNode node, int type); /* type -1: any */

#endif
