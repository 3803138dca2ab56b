/* Attributes of kernel nodes, and the output of a graph in DOT format. */
#include "softgpu/driver/graph/graph.h"
#include "softgpu/abi/names.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ENTER(how)                                                                                                     \
    CUresult result = how;                                                                                             \
    if (result != CUDA_SUCCESS)                                                                                        \
    return result

static CUkernelNodeAttrValue *attribute_at(struct sg_body *body, int attribute)
{
    if (!body->kernel.attributes)
        body->kernel.attributes = calloc(SG_NODE_ATTRIBUTES, sizeof *body->kernel.attributes);
    return body->kernel.attributes ? &body->kernel.attributes[attribute] : NULL;
}

API CUresult cuGraphKernelNodeGetAttribute(CUgraphNode node, CUkernelNodeAttrID attribute, CUkernelNodeAttrValue *value)
{
    ENTER(sg_enter_node(node, CU_GRAPH_NODE_TYPE_KERNEL));
    if (!value || attribute < 1 || attribute >= SG_NODE_ATTRIBUTES)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    memset(value, 0, sizeof *value);
    if (node->body->kernel.attributes)
        *value = node->body->kernel.attributes[attribute];
    if (attribute == CU_LAUNCH_ATTRIBUTE_COOPERATIVE)
        memcpy(value, &node->body->kernel.is_cooperative, sizeof(int));
    return sg_leave(CUDA_SUCCESS);
}

API CUresult cuGraphKernelNodeSetAttribute(CUgraphNode node, CUkernelNodeAttrID attribute,
                                           const CUkernelNodeAttrValue *value)
{
    ENTER(sg_enter_node(node, CU_GRAPH_NODE_TYPE_KERNEL));
    if (!value || attribute < 1 || attribute >= SG_NODE_ATTRIBUTES)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    /* A priority is stored and returned because captured nodes have one. The documentation states that launches ignore
     * it. */
    CUresult support = attribute == CU_LAUNCH_ATTRIBUTE_PRIORITY ? CUDA_SUCCESS : sg_attribute_support(attribute);
    if (support != CUDA_SUCCESS) {
        sg_leave(support);
        return support == CUDA_ERROR_NOT_SUPPORTED
                   ? (CUresult)sg_unsupported(SG_NAME_cuGraphKernelNodeSetAttribute)
                   : support;
    }
    CUkernelNodeAttrValue *at = attribute_at(node->body, attribute);
    if (!at)
        return sg_leave(CUDA_ERROR_OUT_OF_MEMORY);
    *at = *value;
    if (attribute == CU_LAUNCH_ATTRIBUTE_COOPERATIVE)
        memcpy(&node->body->kernel.is_cooperative, value, sizeof(int));
    return sg_leave(CUDA_SUCCESS);
}

API CUresult cuGraphKernelNodeCopyAttributes(CUgraphNode target, CUgraphNode source)
{
    ENTER(sg_enter_node(target, CU_GRAPH_NODE_TYPE_KERNEL));
    if (!sg_alive(SG_NODE, source) || source->body->type != CU_GRAPH_NODE_TYPE_KERNEL)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    if (!attribute_at(target->body, 0) || !attribute_at(source->body, 0))
        return sg_leave(CUDA_ERROR_OUT_OF_MEMORY);
    memmove(target->body->kernel.attributes, source->body->kernel.attributes,
            SG_NODE_ATTRIBUTES * sizeof *source->body->kernel.attributes);
    target->body->kernel.is_cooperative = source->body->kernel.is_cooperative;
    return sg_leave(CUDA_SUCCESS);
}

static void describe(FILE *file, CUgraphNode node, unsigned flags)
{
    static const char *const kinds[] = {"KERNEL", "MEMCPY", "MEMSET", "HOST",          "GRAPH",         "EMPTY",
                                        "WAIT_EVENT", "EVENT_RECORD", "EXT_SEMAS_SIGNAL", "EXT_SEMAS_WAIT", "MEM_ALLOC",
                                        "MEM_FREE"};
    const struct sg_body *body = node->body;
    fprintf(file, "\"node_%llu\" [shape=record label=\"{%s", (unsigned long long)node->object.id, kinds[body->type]);
    if (flags & (CU_GRAPH_DEBUG_DOT_FLAGS_HANDLES | CU_GRAPH_DEBUG_DOT_FLAGS_VERBOSE))
        fprintf(file, "|handle %p", (void *)node);
    if (body->type == CU_GRAPH_NODE_TYPE_KERNEL && sg_alive(SG_FUNCTION, body->kernel.function))
        fprintf(file, "|%s\\<\\<\\<(%u,%u,%u),(%u,%u,%u),%u\\>\\>\\>", body->kernel.function->kernel->name,
                body->kernel.grid[0], body->kernel.grid[1], body->kernel.grid[2], body->kernel.block[0],
                body->kernel.block[1], body->kernel.block[2], body->kernel.shared_bytes);
    else if (body->type == CU_GRAPH_NODE_TYPE_MEMCPY)
        fprintf(file, "|%zu x %zu x %zu bytes", body->copy.params.WidthInBytes, body->copy.params.Height,
                body->copy.params.Depth);
    else if (body->type == CU_GRAPH_NODE_TYPE_MEMSET)
        fprintf(file, "|%zu x %zu elements of %u bytes", body->fill.width, body->fill.height, body->fill.elementSize);
    fprintf(file, "}\"];\n");
}

static void write_dot(FILE *file, CUgraph graph, unsigned flags)
{
    CUgraph queue = graph;
    graph->pending = NULL;
    fprintf(file, "digraph dot {\n");
    while (queue) {
        CUgraph each = queue;
        queue = each->pending;
        fprintf(file, "subgraph cluster_%llu {\nlabel=\"graph_%llu\";\n", (unsigned long long)each->object.id,
                (unsigned long long)each->object.id);
        for (CUgraphNode node = each->first; node; node = node->next) {
            describe(file, node, flags);
            if (node->body->type != CU_GRAPH_NODE_TYPE_GRAPH)
                continue;
            node->body->child.graph->pending = queue;
            queue = node->body->child.graph;
        }
        for (CUgraphNode node = each->first; node; node = node->next)
            for (size_t i = 0; i < node->after.count; i++)
                fprintf(file, "\"node_%llu\" -> \"node_%llu\";\n", (unsigned long long)node->object.id,
                        (unsigned long long)node->after.at[i].node->object.id);
        fprintf(file, "}\n");
    }
    fprintf(file, "}\n");
}

API CUresult cuGraphDebugDotPrint(CUgraph graph, const char *path, unsigned int flags)
{
    ENTER(sg_enter());
    FILE *file = path && sg_alive(SG_GRAPH, graph) ? fopen(path, "w") : NULL;
    if (!file)
        return sg_leave(path && sg_alive(SG_GRAPH, graph) ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_ERROR_INVALID_VALUE);
    write_dot(file, graph, flags);
    int failed = ferror(file) | fclose(file);
    return sg_leave(failed ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_SUCCESS);
}
