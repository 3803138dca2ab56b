/* Graphs as a program builds them: made, linked, asked about and taken apart. */
#include "softgpu/graph.h"

#include <stdlib.h>
#include <string.h>

uint64_t sg_stamp(void)
{
    static uint64_t stamps;
    return ++stamps;
}

int sg_edges_add(struct sg_edges *edges, CUgraphNode node, const CUgraphEdgeData *data)
{
    if (edges->count == edges->room) {
        size_t more = edges->room ? edges->room * 2 : 2;
        struct sg_edge *larger = realloc(edges->at, more * sizeof *larger);
        if (!larger)
            return -1;
        edges->at = larger;
        edges->room = more;
    }
    struct sg_edge *edge = &edges->at[edges->count++];
    *edge = (struct sg_edge){.node = node};
    if (data)
        edge->data = *data;
    return 0;
}

static struct sg_edge *edge_to(const struct sg_edges *edges, CUgraphNode node)
{
    for (size_t i = 0; i < edges->count; i++)
        if (edges->at[i].node == node)
            return &edges->at[i];
    return NULL;
}

static void edges_remove(struct sg_edges *edges, CUgraphNode node)
{
    struct sg_edge *edge = edge_to(edges, node);
    if (!edge)
        return;
    memmove(edge, edge + 1, (size_t)(&edges->at[--edges->count] - edge) * sizeof *edge);
}

CUresult sg_graph_make(CUgraph *graph)
{
    *graph = sg_make(SG_GRAPH);
    return *graph ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* Frees the node alone: whoever calls has dealt with its edges and its child graph. */
static void node_end(CUgraphNode node)
{
    CUgraph graph = node->graph;
    *(node->previous ? &node->previous->next : &graph->first) = node->next;
    *(node->next ? &node->next->previous : &graph->last) = node->previous;
    graph->count--;
    sg_body_end(node->body);
    free(node->body);
    free(node->before.at);
    free(node->after.at);
    sg_unmake(SG_NODE, node);
}

/* With all the graphs in it, however deep: one after the other instead of one within the other. */
void sg_graph_end(CUgraph graph, struct sg_owneds *released)
{
    graph->pending = NULL;
    while (graph) {
        CUgraph next = graph->pending;
        while (graph->first) {
            CUgraphNode node = graph->first;
            if (node->body->type == CU_GRAPH_NODE_TYPE_GRAPH) {
                node->body->child.graph->pending = next;
                next = node->body->child.graph;
            }
            node_end(node);
        }
        sg_owned_move(&graph->owned, released);
        sg_unmake(SG_GRAPH, graph);
        graph = next;
    }
}

CUresult sg_node_link(CUgraphNode from, CUgraphNode to, const CUgraphEdgeData *data)
{
    const struct sg_edges *shorter = from->after.count < to->before.count ? &from->after : &to->before;
    if (from->graph != to->graph || from == to || edge_to(shorter, shorter == &to->before ? from : to))
        return CUDA_ERROR_INVALID_VALUE;
    if (sg_edges_add(&from->after, to, data) < 0)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (sg_edges_add(&to->before, from, data) == 0)
        return CUDA_SUCCESS;
    from->after.count--;
    return CUDA_ERROR_OUT_OF_MEMORY;
}

/* An edge that lets its second kernel begin early is one that orders them here: that is always allowed. */
static int is_edge(const CUgraphEdgeData *data, CUgraphNode from)
{
    static const unsigned char zeros[5];
    if (!data)
        return 1;
    if (data->to_port || memcmp(data->reserved, zeros, sizeof zeros) != 0)
        return 0;
    if (data->type == CU_GRAPH_DEPENDENCY_TYPE_DEFAULT)
        return data->from_port == 0;
    return data->type == CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC && data->from_port <= 2 &&
           from->body->type == CU_GRAPH_NODE_TYPE_KERNEL;
}

CUresult sg_node_add(CUgraph graph, const struct sg_edge *before, size_t count, struct sg_body *body, CUgraphNode *made)
{
    uint64_t stamp = sg_stamp();
    for (size_t i = 0; i < count; i++) {
        CUgraphNode node = before[i].node;
        if (!sg_alive(SG_NODE, node) || node->graph != graph || node->stamp == stamp || !is_edge(&before[i].data, node))
            return CUDA_ERROR_INVALID_VALUE;
        node->stamp = stamp;
    }
    CUgraphNode node = sg_make(SG_NODE);
    struct sg_body *kept = malloc(sizeof *kept);
    if (!node || !kept) {
        free(kept);
        if (node)
            sg_unmake(SG_NODE, node);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *kept = *body;
    node->graph = graph;
    node->body = kept;
    node->previous = graph->last;
    *(graph->last ? &graph->last->next : &graph->first) = node;
    graph->last = node;
    graph->count++;
    if (body->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC || body->type == CU_GRAPH_NODE_TYPE_MEM_FREE)
        graph->memory_nodes++;
    if (body->type == CU_GRAPH_NODE_TYPE_GRAPH)
        body->child.graph->owner = node;
    for (size_t i = 0; i < count; i++)
        if (sg_edges_add(&node->before, before[i].node, &before[i].data) < 0 ||
            sg_edges_add(&before[i].node->after, node, &before[i].data) < 0)
            return CUDA_ERROR_OUT_OF_MEMORY; /* the program is past saving; nothing dangles */
    *made = node;
    return CUDA_SUCCESS;
}

CUresult sg_enter_node(CUgraphNode node, int type)
{
    CUresult result = sg_enter();
    if (result != CUDA_SUCCESS)
        return result;
    if (!sg_alive(SG_NODE, node) || (type >= 0 && node->body->type != type))
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    return CUDA_SUCCESS;
}

static CUresult enter_graph(CUgraph graph)
{
    CUresult result = sg_enter();
    if (result != CUDA_SUCCESS)
        return result;
    return sg_alive(SG_GRAPH, graph) ? CUDA_SUCCESS : sg_leave(CUDA_ERROR_INVALID_VALUE);
}

#define ENTER(how)                                                                                                     \
    CUresult result = how;                                                                                             \
    if (result != CUDA_SUCCESS)                                                                                        \
    return result

API CUresult cuGraphCreate(CUgraph *graph, unsigned int flags)
{
    ENTER(sg_enter());
    if (!graph || flags)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    return sg_leave(sg_graph_make(graph));
}

API CUresult cuGraphDestroy(CUgraph graph)
{
    struct sg_owneds released = {0};
    ENTER(enter_graph(graph));
    if (graph->owner || graph->capture)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    sg_graph_end(graph, &released);
    return sg_leave_releasing(CUDA_SUCCESS, &released);
}

API CUresult cuGraphDestroyNode(CUgraphNode node)
{
    struct sg_owneds released = {0};
    ENTER(sg_enter_node(node, -1));
    if (node->graph->memory_nodes || node->graph->capture)
        return sg_leave(CUDA_ERROR_NOT_SUPPORTED);
    for (size_t i = 0; i < node->before.count; i++)
        edges_remove(&node->before.at[i].node->after, node);
    for (size_t i = 0; i < node->after.count; i++)
        edges_remove(&node->after.at[i].node->before, node);
    if (node->body->type == CU_GRAPH_NODE_TYPE_GRAPH)
        sg_graph_end(node->body->child.graph, &released);
    node_end(node);
    return sg_leave_releasing(CUDA_SUCCESS, &released);
}

API CUresult cuGraphNodeGetType(CUgraphNode node, CUgraphNodeType *type)
{
    ENTER(sg_enter_node(node, -1));
    if (type)
        *type = node->body->type;
    return sg_leave(type ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}

/* A list to give out: with no place for it only its length is told; a place too large is filled up with nothing. */
struct giving {
    CUgraphNode *nodes, *ends;
    CUgraphEdgeData *data;
    size_t room, count;
    int lossy, keeps_data;
};

static void give(struct giving *giving, CUgraphNode node, CUgraphNode end, const CUgraphEdgeData *data)
{
    static const CUgraphEdgeData plain;
    if (giving->nodes && giving->count < giving->room) {
        giving->nodes[giving->count] = node;
        if (giving->ends)
            giving->ends[giving->count] = end;
        if (giving->data)
            giving->data[giving->count] = *data;
        giving->lossy |= !giving->data && data && memcmp(data, &plain, sizeof plain) != 0;
    }
    giving->count++;
}

static CUresult given(struct giving *giving, size_t *count)
{
    if (giving->nodes) {
        for (size_t i = giving->count; i < giving->room; i++) {
            giving->nodes[i] = NULL;
            if (giving->ends)
                giving->ends[i] = NULL;
        }
        if (giving->lossy)
            return CUDA_ERROR_LOSSY_QUERY;
    }
    *count = giving->nodes && giving->room < giving->count ? giving->room : giving->count;
    return CUDA_SUCCESS;
}

static CUresult nodes_of(CUgraph graph, CUgraphNode *nodes, size_t *count, int only_roots)
{
    ENTER(enter_graph(graph));
    if (!count)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    struct giving giving = {.nodes = nodes, .room = *count};
    for (CUgraphNode node = graph->first; node; node = node->next)
        if (!only_roots || !node->before.count)
            give(&giving, node, NULL, NULL);
    return sg_leave(given(&giving, count));
}

API CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count)
{
    return nodes_of(graph, nodes, count, 0);
}

API CUresult cuGraphGetRootNodes(CUgraph graph, CUgraphNode *nodes, size_t *count)
{
    return nodes_of(graph, nodes, count, 1);
}

API CUresult cuGraphGetEdges_v2(CUgraph graph, CUgraphNode *from, CUgraphNode *to, CUgraphEdgeData *data, size_t *count)
{
    ENTER(enter_graph(graph));
    if (!count || !from != !to || (data && !from))
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    struct giving giving = {.nodes = from, .ends = to, .data = data, .room = *count};
    for (CUgraphNode node = graph->first; node; node = node->next)
        for (size_t i = 0; i < node->after.count; i++)
            give(&giving, node, node->after.at[i].node, &node->after.at[i].data);
    return sg_leave(given(&giving, count));
}

API CUresult cuGraphGetEdges(CUgraph graph, CUgraphNode *from, CUgraphNode *to, size_t *count)
{
    return cuGraphGetEdges_v2(graph, from, to, NULL, count);
}

static CUresult neighbours(CUgraphNode node, CUgraphNode *nodes, CUgraphEdgeData *data, size_t *count, int is_after)
{
    ENTER(sg_enter_node(node, -1));
    if (!count || (data && !nodes))
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    struct giving giving = {.nodes = nodes, .data = data, .room = *count};
    const struct sg_edges *edges = is_after ? &node->after : &node->before;
    for (size_t i = 0; i < edges->count; i++)
        give(&giving, edges->at[i].node, NULL, &edges->at[i].data);
    return sg_leave(given(&giving, count));
}

API CUresult cuGraphNodeGetDependencies_v2(CUgraphNode node, CUgraphNode *nodes, CUgraphEdgeData *data, size_t *count)
{
    return neighbours(node, nodes, data, count, 0);
}

API CUresult cuGraphNodeGetDependencies(CUgraphNode node, CUgraphNode *nodes, size_t *count)
{
    return neighbours(node, nodes, NULL, count, 0);
}

API CUresult cuGraphNodeGetDependentNodes_v2(CUgraphNode node, CUgraphNode *nodes, CUgraphEdgeData *data, size_t *count)
{
    return neighbours(node, nodes, data, count, 1);
}

API CUresult cuGraphNodeGetDependentNodes(CUgraphNode node, CUgraphNode *nodes, size_t *count)
{
    return neighbours(node, nodes, NULL, count, 1);
}

/* All of them or none: what was done is undone when a later one cannot be. */
static CUresult change(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, const CUgraphEdgeData *data,
                       size_t count, int is_removal)
{
    ENTER(enter_graph(graph));
    if (count && (!from || !to))
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    if (is_removal && graph->memory_nodes)
        return sg_leave(CUDA_ERROR_NOT_SUPPORTED);
    size_t done = 0;
    for (; done < count && result == CUDA_SUCCESS; done++) {
        const CUgraphEdgeData *edge = data ? &data[done] : NULL;
        if (!sg_alive(SG_NODE, from[done]) || !sg_alive(SG_NODE, to[done]) || from[done]->graph != graph ||
            to[done]->graph != graph || !is_edge(edge, from[done]))
            result = CUDA_ERROR_INVALID_VALUE;
        else if (!is_removal)
            result = sg_node_link(from[done], to[done], edge);
        else if (!edge_to(&from[done]->after, to[done]))
            result = CUDA_ERROR_INVALID_VALUE;
    }
    size_t undone = is_removal == (result == CUDA_SUCCESS) ? done : 0;
    for (size_t i = 0; i + (result != CUDA_SUCCESS) < undone; i++) {
        edges_remove(&from[i]->after, to[i]);
        edges_remove(&to[i]->before, from[i]);
    }
    return sg_leave(result);
}

API CUresult cuGraphAddDependencies_v2(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to,
                                       const CUgraphEdgeData *data, size_t count)
{
    return change(graph, from, to, data, count, 0);
}

API CUresult cuGraphAddDependencies(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, size_t count)
{
    return change(graph, from, to, NULL, count, 0);
}

API CUresult cuGraphRemoveDependencies_v2(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to,
                                          const CUgraphEdgeData *data, size_t count)
{
    return change(graph, from, to, data, count, 1);
}

API CUresult cuGraphRemoveDependencies(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, size_t count)
{
    return change(graph, from, to, NULL, count, 1);
}
