/* Clones of graphs, child graphs, and the lookup of nodes in a clone. */
#include "softgpu/driver/graph/graph.h"

#include <stdlib.h>

#define ENTER(how)                                                                                                     \
    CUresult result = how;                                                                                             \
    if (result != CUDA_SUCCESS)                                                                                        \
    return result

/* Copy the nodes of one graph into another. Child graphs start empty and their originals are added to *queue, linked by
 * `pending`. */
static CUresult copy_nodes(CUgraph source, CUgraph target, CUgraph *queue)
{
    for (CUgraphNode node = source->first; node; node = node->next) {
        struct sg_body body;
        CUgraphNode clone;
        if (sg_body_copy(&body, node->body) < 0)
            return CUDA_ERROR_OUT_OF_MEMORY;
        if (body.type == CU_GRAPH_NODE_TYPE_GRAPH) {
            CUgraph child = body.child.graph;
            CUresult result = sg_graph_make(&body.child.graph);
            if (result != CUDA_SUCCESS)
                return result;
            body.child.ownership = CU_GRAPH_CHILD_GRAPH_OWNERSHIP_CLONE;
            body.child.graph->original_id = child->object.id;
            child->pending = *queue;
            *queue = child;
        }
        CUresult result = sg_node_add(target, NULL, 0, &body, &clone);
        if (result != CUDA_SUCCESS) {
            sg_body_end(&body);
            return result;
        }
        clone->original_id = node->object.id;
        node->clone = clone;
    }
    for (CUgraphNode node = source->first; node; node = node->next)
        for (size_t i = 0; i < node->before.count; i++) {
            const struct sg_edge *edge = &node->before.at[i];
            if (sg_edges_add(&node->clone->before, edge->node->clone, &edge->data) < 0)
                return CUDA_ERROR_OUT_OF_MEMORY;
        }
    for (CUgraphNode node = source->first; node; node = node->next)
        for (size_t i = 0; i < node->after.count; i++) {
            const struct sg_edge *edge = &node->after.at[i];
            if (sg_edges_add(&node->clone->after, edge->node->clone, &edge->data) < 0)
                return CUDA_ERROR_OUT_OF_MEMORY;
        }
    return sg_references_copy(&target->references, &source->references) < 0 ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

CUresult sg_graph_clone(CUgraph source, CUgraph *made)
{
    CUgraph target, queue = source, first = NULL;
    CUresult result = sg_graph_make(&target);
    if (result != CUDA_SUCCESS)
        return result;
    target->original_id = source->object.id;
    first = target;
    source->pending = NULL;
    while (queue && result == CUDA_SUCCESS) {
        CUgraph from = queue;
        queue = from->pending;
        /* Each child graph has one owner node, and the clone of that node owns the clone of the child graph. */
        CUgraph to = from == source ? first : from->owner->clone->body->child.graph;
        result = copy_nodes(from, to, &queue);
    }
    if (result != CUDA_SUCCESS) {
        struct sg_references released = {0};
        sg_graph_end(first, &released);
        free(released.at); /* other graphs hold references to the copied user objects */
        return result;
    }
    *made = first;
    return CUDA_SUCCESS;
}

/* Make the graph in the body the node's own: a clone of it, or the graph itself. */
CUresult sg_child_adopt(CUgraph graph, struct sg_body *body)
{
    CUgraph child = body->child.graph;
    if (child == graph)
        return CUDA_ERROR_INVALID_VALUE;
    if (body->child.ownership == CU_GRAPH_CHILD_GRAPH_OWNERSHIP_CLONE)
        return child->memory_nodes ? CUDA_ERROR_NOT_SUPPORTED : sg_graph_clone(child, &body->child.graph);
    if (body->child.ownership != CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE || child->owner)
        return CUDA_ERROR_INVALID_VALUE;
    for (CUgraph ancestor = graph; ancestor; ancestor = ancestor->owner ? ancestor->owner->graph : NULL)
        if (ancestor == child)
            return CUDA_ERROR_INVALID_VALUE;
    for (CUgraph ancestor = graph; ancestor; ancestor = ancestor->owner ? ancestor->owner->graph : NULL)
        ancestor->memory_nodes += child->memory_nodes;
    return CUDA_SUCCESS;
}

API CUresult cuGraphClone(CUgraph *made, CUgraph source)
{
    ENTER(sg_enter());
    if (!made || !sg_alive(SG_GRAPH, source))
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    if (source->memory_nodes)
        return sg_leave(CUDA_ERROR_NOT_SUPPORTED);
    return sg_leave(sg_graph_clone(source, made));
}

API CUresult cuGraphNodeFindInClone(CUgraphNode *found, CUgraphNode original, CUgraph clone)
{
    ENTER(sg_enter());
    if (!found || !sg_alive(SG_NODE, original) || !sg_alive(SG_GRAPH, clone))
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    for (CUgraphNode node = clone->first; node; node = node->next)
        if (node->original_id == original->object.id) {
            *found = node;
            return sg_leave(CUDA_SUCCESS);
        }
    return sg_leave(CUDA_ERROR_INVALID_VALUE);
}

API CUresult cuGraphGetId(CUgraph graph, unsigned int *id)
{
    ENTER(sg_enter());
    if (!id || !sg_alive(SG_GRAPH, graph))
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    *id = (unsigned)graph->object.id;
    return sg_leave(CUDA_SUCCESS);
}

API CUresult cuGraphNodeGetContainingGraph(CUgraphNode node, CUgraph *graph)
{
    ENTER(sg_enter_node(node, -1));
    if (graph)
        *graph = node->graph;
    return sg_leave(graph ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}

API CUresult cuGraphNodeGetLocalId(CUgraphNode node, unsigned int *id)
{
    ENTER(sg_enter_node(node, -1));
    if (id)
        *id = (unsigned)node->object.id;
    return sg_leave(id ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}

API CUresult cuGraphNodeGetToolsId(CUgraphNode node, unsigned long long *id)
{
    ENTER(sg_enter_node(node, -1));
    if (id)
        *id = node->object.id;
    return sg_leave(id ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}
