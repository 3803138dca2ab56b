/* Graphs as a program builds them: creation, edges, queries and destruction. */
#include "softgpu/driver/graph/graph.h"

#include <stdlib.h>
#include <string.h>

uint64_t sg_stamp(void)
{
    static uint64_t stamps;
    return ++stamps;
}

int sg_edges_add(struct sg_edges *edges, CUgraphNode node, const CUgraphEdgeData *data)
{
    if (edges->count == edges->capacity) {
        size_t more = edges->capacity ? edges->capacity * 2 : 2;
        struct sg_edge *larger = realloc(edges->at, more * sizeof *larger);
        if (!larger)
            return -1;
        edges->at = larger;
        edges->capacity = more;
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
    *graph = sg_new(SG_GRAPH);
    return *graph ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* Free only the node. The caller has removed its edges and its child graph. */
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
    sg_delete(SG_NODE, node);
}

/* End the graph and all nested child graphs, iteratively to bound the stack. */
void sg_graph_end(CUgraph graph, struct sg_references *released)
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
        sg_references_move(&graph->references, released);
        sg_delete(SG_GRAPH, graph);
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

/* A programmatic edge, which lets the second kernel start early, is treated as a full dependency. That is always
 * allowed. */
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
    CUgraphNode node = sg_new(SG_NODE);
    struct sg_body *kept = malloc(sizeof *kept);
    if (!node || !kept) {
        free(kept);
        if (node)
            sg_delete(SG_NODE, node);
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
            return CUDA_ERROR_OUT_OF_MEMORY; /* the program is out of memory; no edge dangles */
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
    struct sg_references released = {0};
    ENTER(enter_graph(graph));
    if (graph->owner || graph->capture)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    sg_graph_end(graph, &released);
    return sg_leave_releasing(CUDA_SUCCESS, &released);
}

API CUresult cuGraphDestroyNode(CUgraphNode node)
{
    struct sg_references released = {0};
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

/* An output list of nodes. Without a buffer only the count is returned; excess entries of a buffer are set to NULL. */
struct output {
    CUgraphNode *nodes, *ends;
    CUgraphEdgeData *data;
    size_t capacity, count;
    int lossy, keeps_data;
};

static void append_node(struct output *output, CUgraphNode node, CUgraphNode end, const CUgraphEdgeData *data)
{
    static const CUgraphEdgeData plain;
    if (output->nodes && output->count < output->capacity) {
        output->nodes[output->count] = node;
        if (output->ends)
            output->ends[output->count] = end;
        if (output->data)
            output->data[output->count] = *data;
        output->lossy |= !output->data && data && memcmp(data, &plain, sizeof plain) != 0;
    }
    output->count++;
}

static CUresult finish_output(struct output *output, size_t *count)
{
    if (output->nodes) {
        for (size_t i = output->count; i < output->capacity; i++) {
            output->nodes[i] = NULL;
            if (output->ends)
                output->ends[i] = NULL;
        }
        if (output->lossy)
            return CUDA_ERROR_LOSSY_QUERY;
    }
    *count = output->nodes && output->capacity < output->count ? output->capacity : output->count;
    return CUDA_SUCCESS;
}

static CUresult nodes_of(CUgraph graph, CUgraphNode *nodes, size_t *count, int only_roots)
{
    ENTER(enter_graph(graph));
    if (!count)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    struct output output = {.nodes = nodes, .capacity = *count};
    for (CUgraphNode node = graph->first; node; node = node->next)
        if (!only_roots || !node->before.count)
            append_node(&output, node, NULL, NULL);
    return sg_leave(finish_output(&output, count));
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
    struct output output = {.nodes = from, .ends = to, .data = data, .capacity = *count};
    for (CUgraphNode node = graph->first; node; node = node->next)
        for (size_t i = 0; i < node->after.count; i++)
            append_node(&output, node, node->after.at[i].node, &node->after.at[i].data);
    return sg_leave(finish_output(&output, count));
}

API CUresult cuGraphGetEdges(CUgraph graph, CUgraphNode *from, CUgraphNode *to, size_t *count)
{
    return cuGraphGetEdges_v2(graph, from, to, NULL, count);
}

static CUresult edges_of(CUgraphNode node, CUgraphNode *nodes, CUgraphEdgeData *data, size_t *count, int is_after)
{
    ENTER(sg_enter_node(node, -1));
    if (!count || (data && !nodes))
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    struct output output = {.nodes = nodes, .data = data, .capacity = *count};
    const struct sg_edges *edges = is_after ? &node->after : &node->before;
    for (size_t i = 0; i < edges->count; i++)
        append_node(&output, edges->at[i].node, NULL, &edges->at[i].data);
    return sg_leave(finish_output(&output, count));
}

API CUresult cuGraphNodeGetDependencies_v2(CUgraphNode node, CUgraphNode *nodes, CUgraphEdgeData *data, size_t *count)
{
    return edges_of(node, nodes, data, count, 0);
}

API CUresult cuGraphNodeGetDependencies(CUgraphNode node, CUgraphNode *nodes, size_t *count)
{
    return edges_of(node, nodes, NULL, count, 0);
}

API CUresult cuGraphNodeGetDependentNodes_v2(CUgraphNode node, CUgraphNode *nodes, CUgraphEdgeData *data, size_t *count)
{
    return edges_of(node, nodes, data, count, 1);
}

API CUresult cuGraphNodeGetDependentNodes(CUgraphNode node, CUgraphNode *nodes, size_t *count)
{
    return edges_of(node, nodes, NULL, count, 1);
}

/* Add or remove all edges or none: earlier changes are reverted when a later one fails. */
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
