/* Graphs and executable graphs. */
#ifndef COTENANT_SOFTGPU_DRIVER_GRAPH_GRAPH_H
#define COTENANT_SOFTGPU_DRIVER_GRAPH_GRAPH_H

#include "softgpu/driver/copy/copy.h"

/* ---- Operations of nodes, stored by value ------------------------------------------------------------------------ */

enum { SG_NODE_ATTRIBUTES = 19 };

/* An address that memory allocation nodes return. The address is constant across launches; its memory is allocated by
 * each launch and freed by a free node. */
struct sg_region {
    uint64_t address, bytes, charged_bytes;
    struct sg_device *device;
    CUmemPoolProps props;
    size_t users;                        /* number of bodies that refer to it */
    int freed_in_graph, freed_elsewhere; /* a free node exists in the allocating graph; in another graph */
    struct sg_region *next;
};

struct sg_body {
    CUgraphNodeType type;
    CUcontext context; /* NULL: the operation uses no device */
    uint64_t context_id;
    union {
        struct {
            CUfunction function;
            uint64_t function_id;
            unsigned grid[3], block[3], shared_bytes;
            int is_cooperative;
            void **params; /* pointers, followed by the values; NULL: no parameters */
            CUkernelNodeAttrValue *attributes; /* array of SG_NODE_ATTRIBUTES; NULL: none was set */
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

/* Convert the driver's parameters to a body and back. A body that was read must be ended with sg_body_end(). A child
 * graph in it does not belong to the node yet. */
CUresult sg_body_read(const CUgraphNodeParams *params, struct sg_body *body);
CUresult sg_body_kernel(struct sg_body *body, CUcontext context, CUfunction function, const unsigned grid[3],
                        const unsigned block[3], unsigned shared_bytes, void **params, void **extra);
void sg_body_write(const struct sg_body *body, CUgraphNodeParams *params);
/* Copy everything except child graphs. -1: out of memory. */
int sg_body_copy(struct sg_body *copy, const struct sg_body *body);
void sg_body_end(struct sg_body *body);
CUresult sg_body_submit(const struct sg_body *body, CUstream stream);

struct sg_region *sg_region_make(struct sg_device *device, uint64_t bytes, const CUmemPoolProps *props);
struct sg_region *sg_region_at(uint64_t address);
void sg_region_retain(struct sg_region *region);
void sg_region_release(struct sg_region *region);
CUresult sg_region_allocate(struct sg_region *region, CUcontext context); /* allocate the memory at the address */
CUresult sg_region_free(const struct sg_region *region, CUstream stream);
int sg_region_is_free(const struct sg_region *region);
void sg_region_check_free(CUgraph graph, const struct sg_body *body, CUresult *result);

/* ---- Graphs ------------------------------------------------------------------------------------------------------ */

struct sg_edge {
    CUgraphNode node;
    CUgraphEdgeData data;
};

struct sg_edges {
    struct sg_edge *at;
    size_t count, capacity;
};

struct CUgraphNode_st {
    struct sg_object object;
    CUgraph graph;
    CUgraphNode next, previous; /* in creation order */
    struct sg_edges before, after;
    struct sg_body *body;
    uint64_t original_id; /* of the node that this one was cloned from */
    uint64_t stamp;       /* mark of the latest traversal that visited the node */
    union {
        CUgraphNode clone; /* during cloning */
        size_t remaining;  /* while sorting: dependencies not yet sorted; while flattening: the node's last step */
    };
};

struct sg_reference { /* references to one user object */
    CUuserObject object;
    unsigned count;
};

struct sg_references {
    struct sg_reference *at;
    size_t count, capacity;
};

struct CUgraph_st {
    struct sg_object object;
    CUgraphNode first, last, owner; /* owner: the node whose child graph this is */
    size_t count;
    size_t memory_nodes, execs; /* memory nodes allow only one executable graph */
    uint64_t original_id;
    struct sg_capture *capture; /* the capture that adds nodes to it */
    struct sg_references references;
    CUgraph pending; /* next graph in a list, during cloning and destruction */
};

int sg_edges_add(struct sg_edges *edges, CUgraphNode node, const CUgraphEdgeData *data); /* 0, or -1: out of memory */
CUresult sg_graph_make(CUgraph *graph);
void sg_graph_end(CUgraph graph, struct sg_references *released);
CUresult sg_graph_clone(CUgraph source, CUgraph *made);
/* On success the graph owns the body. */
CUresult sg_node_add(CUgraph graph, const struct sg_edge *before, size_t count, struct sg_body *body,
                     CUgraphNode *made);
CUresult sg_node_link(CUgraphNode from, CUgraphNode to, const CUgraphEdgeData *data);
uint64_t sg_stamp(void);
CUresult sg_child_adopt(CUgraph graph, struct sg_body *body);

/* ---- User objects: references are released with the lock held, destructors run without it ------------------------ */

struct CUuserObject_st {
    struct sg_object object;
    CUhostFn destroy;
    void *pointer;
    uint64_t users;
};

int sg_references_add(struct sg_references *references, CUuserObject object, unsigned count);
int sg_references_copy(struct sg_references *to, const struct sg_references *from);
void sg_references_move(struct sg_references *from, struct sg_references *to);
/* Release the lock, then run the destructors of ended objects. */
CUresult sg_leave_releasing(CUresult result, struct sg_references *released);
void sg_references_release_after(CUevent event, struct sg_references *references);

/* ---- Executable graphs: steps in one order that respects all dependencies ---------------------------------------- */

enum { SG_BRANCHES = 32 };

struct sg_step {
    struct sg_body body;
    uint64_t node_id;
    CUgraphNode node;
    size_t first, count; /* range of its dependencies in `depends` */
    size_t end;          /* for a child graph the step that ends it, otherwise the step itself */
    int is_disabled;
    uint32_t branch, wait_count; /* planned stream, and the events it waits for */
    size_t first_wait;
    size_t event;     /* index of its event plus one if other steps wait for it */
    size_t last_wait; /* index plus one of the last step that waits for it; SIZE_MAX: the end of the launch */
};

/* An event between branches. It is reused after the last step that waits for it. */
struct sg_plan_event {
    CUevent event;
    uint32_t branch;
};

struct sg_plan {
    uint64_t context_id; /* context of the launch stream that this plan is for */
    int priority;
    uint32_t branches;
    CUstream streams[SG_BRANCHES]; /* [0]: the launch stream itself */
    CUcontext contexts[SG_BRANCHES];
    uint64_t context_ids[SG_BRANCHES];
    size_t *waits; /* steps whose events are waited for */
    size_t wait_count, wait_capacity;
    struct sg_plan_event *events;
    size_t event_count, event_capacity;
    size_t ends[SG_BRANCHES], end_count; /* steps whose events the launch stream waits for at the end */
    CUevent begin;
};

struct CUgraphExec_st {
    struct sg_object object;
    struct sg_step *steps;
    size_t count, capacity;
    size_t *depends;
    size_t depend_count, depend_capacity;
    size_t *by_node; /* step indexes sorted by node_id */
    uint64_t flags, graph_id, done_id;
    CUgraph graph;
    struct sg_plan *plan;
    CUevent done; /* end of the latest launch */
    struct sg_references references;
    uint32_t users; /* number of launches that have not returned */
    int is_ended;
};

CUresult sg_flatten(CUgraphExec exec, CUgraph graph, CUgraphNode *culprit);
void sg_exec_clear(CUgraphExec exec);
struct sg_step *sg_exec_step(CUgraphExec exec, CUgraphNode node);
CUresult sg_plan_for(CUgraphExec exec, CUstream stream);
void sg_plan_end(struct sg_plan *plan);
CUresult sg_exec_launch(CUgraphExec exec, CUstream stream);
void sg_exec_end(CUgraphExec exec, struct sg_references *released);
CUresult sg_exec_wait_idle(CUgraphExec exec); /* wait until no other thread is inside a launch of it */

/* ---- Driver calls in terms of CUgraphNodeParams ------------------------------------------------------------------ */

CUresult sg_graph_call_add(CUgraphNode *made, CUgraph graph, const CUgraphNode *before, const CUgraphEdgeData *data,
                           size_t count, CUgraphNodeParams *params);
CUresult sg_graph_call_set(CUgraphNode node, const CUgraphNodeParams *params);
CUresult sg_graph_call_get(CUgraphNode node, CUgraphNodeParams *params);
CUresult sg_graph_call_exec_set(CUgraphExec exec, CUgraphNode node, const CUgraphNodeParams *params);
CUresult sg_enter_node(CUgraphNode node, int type); /* type -1: any type */

#endif
