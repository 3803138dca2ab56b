/* Names a graph after its kernels, and computes the fraction of the device that they leave free. */
#include "hook/entry/session.h"

#include "hook/launch/collective.h"
#include "hook/timing/timing.h"

#include <stdio.h>
#include <stdlib.h>

enum { NODES_NAMED = 4096 }; /* of a larger graph only the number of nodes is part of the name */

/* Accumulated properties of the nodes of a graph. */
struct contents {
    const char *first; /* name of the first kernel */
    uint64_t hash;    /* a hash that depends on the kernels and their order */
    uint64_t free_ppm; /* sum over the kernels */
    size_t kernels;
    int has_collective;
};

static uint64_t hash_text(uint64_t hash, const char *text)
{
    while (*text)
        hash = (hash ^ (unsigned char)*text++) * UINT64_C(0x100000001b3);
    return hash;
}

static void read_kernel(struct ct_session *session, const CUDA_KERNEL_NODE_PARAMS *node, struct contents *contents)
{
    const struct ct_shape shape = {.grid = {node->gridDimX, node->gridDimY, node->gridDimZ},
                                   .block = {node->blockDimX, node->blockDimY, node->blockDimZ},
                                   .shared_bytes = node->sharedMemBytes};
    const uint64_t blocks = (uint64_t)node->gridDimX * node->gridDimY * node->gridDimZ;
    const uintptr_t handle = node->func ? (uintptr_t)node->func : (uintptr_t)node->kern;
    const char *name = NULL;
    if (!handle || (!ct_function_name(session, handle, &name) &&
                    CT_NEXT(cuFuncGetName)(&name, (CUfunction)handle) != CUDA_SUCCESS))
        return;
    contents->hash = hash_text(contents->hash, name) ^ node->gridDimX ^ ((uint64_t)node->blockDimX << 32);
    contents->free_ppm += ct_kernel_free_ppm(blocks, ct_blocks_per_sm(handle, &shape), &session->sms);
    contents->kernels++;
    contents->has_collective |= ct_name_is_collective(name);
    if (!contents->first)
        contents->first = name;
}

static void read_nodes(struct ct_session *session, CUgraphNode *nodes, size_t count, struct contents *contents)
{
    contents->hash = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < count; i++) {
        CUgraphNodeType type = -1;
        CUDA_KERNEL_NODE_PARAMS node = {0};
        if (CT_NEXT(cuGraphNodeGetType)(nodes[i], &type) != CUDA_SUCCESS)
            break;
        contents->hash = (contents->hash ^ (uint64_t)type) * UINT64_C(0x100000001b3);
        contents->has_collective |= type == CU_GRAPH_NODE_TYPE_BATCH_MEM_OP; /* it may wait for a value */
        if (type == CU_GRAPH_NODE_TYPE_KERNEL && CT_NEXT(cuGraphKernelNodeGetParams_v2)(nodes[i],
                                                                                        &node) == CUDA_SUCCESS)
            read_kernel(session, &node, contents);
    }
}

static int by_handle(const void *first, const void *second)
{
    const uintptr_t left = *(const uintptr_t *)first, right = *(const uintptr_t *)second;
    return (left > right) - (left < right);
}

static int are_distinct(CUgraphNode *nodes, size_t count)
{
    qsort(nodes, count, sizeof *nodes, by_handle);
    for (size_t i = 1; i < count; i++)
        if (nodes[i] == nodes[i - 1])
            return 0;
    return 1;
}

/* Returns whether the nodes form a chain, as those captured from one stream do. */
static int is_chain(CUgraph graph, size_t count)
{
    size_t edges = count - 1;
    if (count == 1)
        return 1;
    CUgraphNode *from = malloc(2 * edges * sizeof *from);
    if (!from)
        return 0;
    size_t edge_count = 0;
    const int forms_chain = CT_NEXT(cuGraphGetEdges_v2)(graph, NULL, NULL, NULL, &edge_count) == CUDA_SUCCESS &&
        edge_count == edges &&
                       CT_NEXT(cuGraphGetEdges_v2)(graph, from, from + edges, NULL, &edges) == CUDA_SUCCESS &&
                       edges == edge_count && are_distinct(from, edges) && are_distinct(from + edges, edges);
    free(from);
    return forms_chain;
}

void ct_graph_name(CUgraphExec exec, CUgraph graph)
{
    struct ct_session *session = ct_session();
    struct contents contents = {0};
    CUgraphNode *nodes = NULL;
    size_t count = 0;
    char name[CT_RECORD_NAME_BYTES];
    if (!session || !exec || CT_NEXT(cuGraphGetNodes)(graph, NULL, &count) != CUDA_SUCCESS)
        return;
    if (!load_acquire(&session->is_device_named))
        ct_timing_name_device(session);
    if (count && count <= NODES_NAMED && (nodes = malloc(count * sizeof *nodes)) &&
        CT_NEXT(cuGraphGetNodes)(graph, nodes, &count) == CUDA_SUCCESS)
        read_nodes(session, nodes, count, &contents);
    free(nodes);
    snprintf(name, sizeof name, "graph of %zu #%08x %.160s", count, (unsigned)(contents.hash ^ contents.hash >> 32),
             contents.first ? contents.first : "");
    ct_function_note(session, (uintptr_t)exec, (uintptr_t)exec, name);
    if (contents.has_collective)
        ct_function_set_collective(session, (uintptr_t)exec);
    /* The times of the kernels are unknown, so they are weighted equally. Concurrent kernels count as the whole
     * device. */
    if (session->gateway && contents.free_ppm && contents.kernels == count && is_chain(graph, count))
        ct_function_set_free(session, (uintptr_t)exec, (uint32_t)(contents.free_ppm / count));
}
