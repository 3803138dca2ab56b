/* The calls that add nodes of each type and read and change their parameters, in terms of CUgraphNodeParams. */
#include "softgpu/driver/graph/graph.h"
#include "softgpu/abi/names.h"

#include <stdlib.h>
#include <string.h>

#define ENTER(how)                                                                                                     \
    CUresult result = how;                                                                                             \
    if (result != CUDA_SUCCESS)                                                                                        \
    return result

static CUresult add(CUgraph graph, const CUgraphNode *before, const CUgraphEdgeData *data, size_t count,
                    struct sg_body *body, CUgraphNode *made)
{
    struct sg_edge *edges = calloc(count ? count : 1, sizeof *edges);
    if (!edges)
        return CUDA_ERROR_OUT_OF_MEMORY;
    for (size_t i = 0; i < count; i++) {
        edges[i].node = before[i];
        if (data)
            edges[i].data = data[i];
    }
    CUresult result = sg_node_add(graph, edges, count, body, made);
    free(edges);
    return result;
}

CUresult sg_graph_call_add(CUgraphNode *made, CUgraph graph, const CUgraphNode *before, const CUgraphEdgeData *data,
                           size_t count, CUgraphNodeParams *params)
{
    struct sg_body body;
    ENTER(sg_enter());
    if (!made || !params || !sg_alive(SG_GRAPH, graph) || (count && !before))
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    result = sg_body_read(params, &body);
    int is_memory = params->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC || params->type == CU_GRAPH_NODE_TYPE_MEM_FREE;
    if (result == CUDA_SUCCESS && is_memory && graph->owner)
        result = CUDA_ERROR_INVALID_VALUE; /* a child graph accepts no further memory nodes */
    if (result == CUDA_SUCCESS && params->type == CU_GRAPH_NODE_TYPE_MEM_FREE)
        sg_region_check_free(graph, &body, &result);
    CUgraph borrowed = params->type == CU_GRAPH_NODE_TYPE_GRAPH ? params->graph.graph : NULL;
    if (result == CUDA_SUCCESS && borrowed)
        result = sg_child_adopt(graph, &body);
    if (result == CUDA_SUCCESS)
        result = add(graph, before, data, count, &body, made);
    struct sg_references released = {0};
    if (result != CUDA_SUCCESS) {
        if (borrowed && body.type == CU_GRAPH_NODE_TYPE_GRAPH && body.child.graph != borrowed)
            sg_graph_end(body.child.graph, &released);
        sg_body_end(&body);
    } else if (params->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC) {
        params->alloc.dptr = body.region->address;
    } else if (borrowed) {
        params->graph.graph = body.child.graph;
    }
    return sg_leave_releasing(result, &released);
}

CUresult sg_graph_call_set(CUgraphNode node, const CUgraphNodeParams *params)
{
    struct sg_body body;
    if (!params)
        return CUDA_ERROR_INVALID_VALUE;
    ENTER(sg_enter_node(node, params->type));
    switch (params->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
    case CU_GRAPH_NODE_TYPE_MEMCPY:
    case CU_GRAPH_NODE_TYPE_MEMSET:
    case CU_GRAPH_NODE_TYPE_HOST:
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
        result = sg_body_read(params, &body);
        break;
    default:
        return sg_leave(CUDA_ERROR_NOT_SUPPORTED); /* memory nodes and child graphs cannot be changed */
    }
    if (result != CUDA_SUCCESS) {
        sg_body_end(&body);
        return sg_leave(result);
    }
    if (params->type == CU_GRAPH_NODE_TYPE_KERNEL) { /* attributes are not parameters and are kept */
        body.kernel.attributes = node->body->kernel.attributes;
        body.kernel.is_cooperative = node->body->kernel.is_cooperative;
        node->body->kernel.attributes = NULL;
    }
    sg_body_end(node->body);
    *node->body = body;
    return sg_leave(CUDA_SUCCESS);
}

CUresult sg_graph_call_get(CUgraphNode node, CUgraphNodeParams *params)
{
    ENTER(sg_enter_node(node, params->type));
    sg_body_write(node->body, params);
    return sg_leave(CUDA_SUCCESS);
}

API CUresult cuGraphAddNode_v2(CUgraphNode *made, CUgraph graph, const CUgraphNode *before, const CUgraphEdgeData *data,
                               size_t count, CUgraphNodeParams *params)
{
    CUresult result = sg_graph_call_add(made, graph, before, data, count, params);
    return result == CUDA_ERROR_NOT_SUPPORTED ? (CUresult)sg_unsupported(SG_NAME_cuGraphAddNode_v2) : result;
}

API CUresult cuGraphAddNode(CUgraphNode *made, CUgraph graph, const CUgraphNode *before, size_t count,
                            CUgraphNodeParams *params)
{
    CUresult result = sg_graph_call_add(made, graph, before, NULL, count, params);
    return result == CUDA_ERROR_NOT_SUPPORTED ? (CUresult)sg_unsupported(SG_NAME_cuGraphAddNode) : result;
}

API CUresult cuGraphNodeSetParams(CUgraphNode node, CUgraphNodeParams *params)
{
    return sg_graph_call_set(node, params);
}

API CUresult cuGraphExecNodeSetParams(CUgraphExec exec, CUgraphNode node, CUgraphNodeParams *params)
{
    return params ? sg_graph_call_exec_set(exec, node, params) : CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuGraphNodeGetParams(CUgraphNode node, CUgraphNodeParams *params)
{
    ENTER(sg_enter_node(node, -1));
    if (params)
        sg_body_write(node->body, params);
    return sg_leave(params ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}

#define BEFORE CUgraphNode *made, CUgraph graph, const CUgraphNode *before, size_t count
#define ADD(params) sg_graph_call_add(made, graph, before, NULL, count, &params)

static CUgraphNodeParams kernel_v2(const CUDA_KERNEL_NODE_PARAMS_v2 *p)
{
    CUgraphNodeParams params = {.type = p ? CU_GRAPH_NODE_TYPE_KERNEL : -1};
    if (p)
        params.kernel = *p;
    return params;
}

static CUgraphNodeParams kernel_v1(const CUDA_KERNEL_NODE_PARAMS_v1 *p)
{
    CUgraphNodeParams params = {.type = p ? CU_GRAPH_NODE_TYPE_KERNEL : -1};
    if (p)
        memcpy(&params.kernel, p, sizeof *p);
    return params;
}

static CUgraphNodeParams copy(const CUDA_MEMCPY3D *p, CUcontext context)
{
    CUgraphNodeParams params = {.type = p ? CU_GRAPH_NODE_TYPE_MEMCPY : -1};
    if (p)
        params.memcpy = (CUDA_MEMCPY_NODE_PARAMS){.copyCtx = context, .copyParams = *p};
    return params;
}

static CUgraphNodeParams fill(const CUDA_MEMSET_NODE_PARAMS *p, CUcontext context)
{
    CUgraphNodeParams params = {.type = p ? CU_GRAPH_NODE_TYPE_MEMSET : -1};
    if (p)
        memcpy(&params.memset, p, sizeof *p);
    params.memset.ctx = context;
    return params;
}

static CUgraphNodeParams host(const CUDA_HOST_NODE_PARAMS *p)
{
    CUgraphNodeParams params = {.type = p ? CU_GRAPH_NODE_TYPE_HOST : -1};
    if (p)
        params.host = *p;
    return params;
}

static CUgraphNodeParams event_of(int type, CUevent event)
{
    CUgraphNodeParams params = {.type = type};
    params.eventWait.event = event;
    return params;
}

static CUgraphNodeParams child(CUgraph graph)
{
    return (CUgraphNodeParams){.type = CU_GRAPH_NODE_TYPE_GRAPH, .graph = {.graph = graph}};
}

/* The calls of one node type: add, get, set, and set in an executable graph. A changed node keeps its context. */
#define FORMS(add, get, set, exec_set, shape, number, field, make)                                                     \
    API CUresult add(BEFORE, const shape *p)                                                                           \
    {                                                                                                                  \
        CUgraphNodeParams params = make(p);                                                                            \
        return ADD(params);                                                                                            \
    }                                                                                                                  \
    API CUresult set(CUgraphNode node, const shape *p)                                                                 \
    {                                                                                                                  \
        const CUgraphNodeParams params = make(p);                                                                      \
        return sg_graph_call_set(node, &params);                                                                       \
    }                                                                                                                  \
    API CUresult exec_set(CUgraphExec exec, CUgraphNode node, const shape *p)                                          \
    {                                                                                                                  \
        const CUgraphNodeParams params = make(p);                                                                      \
        return sg_graph_call_exec_set(exec, node, &params);                                                            \
    }                                                                                                                  \
    GET(get, shape, number, field)

#define GET(get, shape, number, field)                                                                                 \
    API CUresult get(CUgraphNode node, shape *p)                                                                       \
    {                                                                                                                  \
        CUgraphNodeParams params = {.type = number};                                                                   \
        CUresult result = p ? sg_graph_call_get(node, &params) : CUDA_ERROR_INVALID_VALUE;                             \
        if (result == CUDA_SUCCESS)                                                                                    \
            memcpy(p, &params.field, sizeof *p);                                                                       \
        return result;                                                                                                 \
    }

FORMS(cuGraphAddKernelNode_v2, cuGraphKernelNodeGetParams_v2, cuGraphKernelNodeSetParams_v2,
      cuGraphExecKernelNodeSetParams_v2, CUDA_KERNEL_NODE_PARAMS_v2, CU_GRAPH_NODE_TYPE_KERNEL, kernel, kernel_v2)
FORMS(cuGraphAddKernelNode, cuGraphKernelNodeGetParams, cuGraphKernelNodeSetParams, cuGraphExecKernelNodeSetParams,
      CUDA_KERNEL_NODE_PARAMS_v1, CU_GRAPH_NODE_TYPE_KERNEL, kernel, kernel_v1)
FORMS(cuGraphAddHostNode, cuGraphHostNodeGetParams, cuGraphHostNodeSetParams, cuGraphExecHostNodeSetParams,
      CUDA_HOST_NODE_PARAMS, CU_GRAPH_NODE_TYPE_HOST, host, host)
GET(cuGraphMemcpyNodeGetParams, CUDA_MEMCPY3D, CU_GRAPH_NODE_TYPE_MEMCPY, memcpy.copyParams)
GET(cuGraphMemsetNodeGetParams, CUDA_MEMSET_NODE_PARAMS, CU_GRAPH_NODE_TYPE_MEMSET, memset)
GET(cuGraphMemAllocNodeGetParams, CUDA_MEM_ALLOC_NODE_PARAMS, CU_GRAPH_NODE_TYPE_MEM_ALLOC, alloc)
GET(cuGraphMemFreeNodeGetParams, CUdeviceptr, CU_GRAPH_NODE_TYPE_MEM_FREE, free)
GET(cuGraphChildGraphNodeGetGraph, CUgraph, CU_GRAPH_NODE_TYPE_GRAPH, graph)
GET(cuGraphEventRecordNodeGetEvent, CUevent, CU_GRAPH_NODE_TYPE_EVENT_RECORD, eventRecord)
GET(cuGraphEventWaitNodeGetEvent, CUevent, CU_GRAPH_NODE_TYPE_WAIT_EVENT, eventWait)

/* Copies and memsets take their context as a separate argument; a changed node keeps its context. */
#define FORMS_IN(add, set, exec_set, type, make)                                                                       \
    API CUresult add(BEFORE, const type *p, CUcontext context)                                                         \
    {                                                                                                                  \
        CUgraphNodeParams params = make(p, context);                                                                   \
        return ADD(params);                                                                                            \
    }                                                                                                                  \
    API CUresult set(CUgraphNode node, const type *p)                                                                  \
    {                                                                                                                  \
        CUcontext context = NULL;                                                                                      \
        ENTER(sg_enter_node(node, -1));                                                                                \
        context = node->body->context;                                                                                 \
        sg_leave(result);                                                                                              \
        const CUgraphNodeParams params = make(p, context);                                                             \
        return sg_graph_call_set(node, &params);                                                                       \
    }                                                                                                                  \
    API CUresult exec_set(CUgraphExec exec, CUgraphNode node, const type *p, CUcontext context)                        \
    {                                                                                                                  \
        const CUgraphNodeParams params = make(p, context);                                                             \
        return sg_graph_call_exec_set(exec, node, &params);                                                            \
    }

FORMS_IN(cuGraphAddMemcpyNode, cuGraphMemcpyNodeSetParams, cuGraphExecMemcpyNodeSetParams, CUDA_MEMCPY3D, copy)
FORMS_IN(cuGraphAddMemsetNode, cuGraphMemsetNodeSetParams, cuGraphExecMemsetNodeSetParams, CUDA_MEMSET_NODE_PARAMS,
         fill)

#define FORMS_OF_EVENT(add, set, exec_set, type)                                                                       \
    API CUresult add(BEFORE, CUevent event)                                                                            \
    {                                                                                                                  \
        CUgraphNodeParams params = event_of(type, event);                                                              \
        return ADD(params);                                                                                            \
    }                                                                                                                  \
    API CUresult set(CUgraphNode node, CUevent event)                                                                  \
    {                                                                                                                  \
        const CUgraphNodeParams params = event_of(type, event);                                                        \
        return sg_graph_call_set(node, &params);                                                                       \
    }                                                                                                                  \
    API CUresult exec_set(CUgraphExec exec, CUgraphNode node, CUevent event)                                           \
    {                                                                                                                  \
        const CUgraphNodeParams params = event_of(type, event);                                                        \
        return sg_graph_call_exec_set(exec, node, &params);                                                            \
    }

FORMS_OF_EVENT(cuGraphAddEventRecordNode, cuGraphEventRecordNodeSetEvent, cuGraphExecEventRecordNodeSetEvent,
               CU_GRAPH_NODE_TYPE_EVENT_RECORD)
FORMS_OF_EVENT(cuGraphAddEventWaitNode, cuGraphEventWaitNodeSetEvent, cuGraphExecEventWaitNodeSetEvent,
               CU_GRAPH_NODE_TYPE_WAIT_EVENT)

API CUresult cuGraphAddEmptyNode(BEFORE)
{
    CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_EMPTY};
    return ADD(params);
}

API CUresult cuGraphAddChildGraphNode(BEFORE, CUgraph graph_of_node)
{
    CUgraphNodeParams params = child(graph_of_node);
    return ADD(params);
}

API CUresult cuGraphExecChildGraphNodeSetParams(CUgraphExec exec, CUgraphNode node, CUgraph graph)
{
    const CUgraphNodeParams params = child(graph);
    return sg_graph_call_exec_set(exec, node, &params);
}

API CUresult cuGraphAddMemAllocNode(BEFORE, CUDA_MEM_ALLOC_NODE_PARAMS *p)
{
    CUgraphNodeParams params = {.type = p ? CU_GRAPH_NODE_TYPE_MEM_ALLOC : -1};
    if (p)
        params.alloc = *p;
    CUresult result = ADD(params);
    if (result == CUDA_SUCCESS)
        p->dptr = params.alloc.dptr;
    return result;
}

API CUresult cuGraphAddMemFreeNode(BEFORE, CUdeviceptr address)
{
    CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_MEM_FREE, .free = {address}};
    return ADD(params);
}
