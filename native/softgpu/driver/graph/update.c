/* Changes to an executable graph: the parameters of a node, whether a node runs, or all nodes from a graph with the
 * same topology. */
#include "softgpu/driver/graph/graph.h"

#include <stdlib.h>
#include <string.h>

static CUresult enter_exec(CUgraphExec exec)
{
    CUresult result = sg_enter();
    if (result != CUDA_SUCCESS)
        return result;
    if (!sg_alive(SG_EXEC, exec))
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    result = sg_exec_wait_idle(exec);
    return result == CUDA_SUCCESS ? result : sg_leave(result);
}

#define ENTER(exec)                                                                                                    \
    CUresult result = enter_exec(exec);                                                                                \
    if (result != CUDA_SUCCESS)                                                                                        \
    return result

/* All host memory counts as one location; device memory is identified by its device. */
static const void *location_of(uint64_t address)
{
    const struct sg_memory *memory = sg_memory_at(address);
    int is_device = memory && (memory->kind == SG_MEMORY_DEVICE || memory->kind == SG_MEMORY_MANAGED);
    return is_device ? (const void *)memory->device : NULL;
}

/* Compare what must not change between launches. CU_GRAPH_EXEC_UPDATE_SUCCESS: nothing of it differs. */
static int difference(const struct sg_body *old, const struct sg_body *new)
{
    if (old->type != new->type)
        return CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED;
    switch (old->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
        if (old->context != new->context)
            return CU_GRAPH_EXEC_UPDATE_ERROR_UNSUPPORTED_FUNCTION_CHANGE;
        return old->kernel.is_cooperative == new->kernel.is_cooperative ? CU_GRAPH_EXEC_UPDATE_SUCCESS
                                                                        : CU_GRAPH_EXEC_UPDATE_ERROR_ATTRIBUTES_CHANGED;
    case CU_GRAPH_NODE_TYPE_MEMCPY: {
        const struct sg_copy *before = &old->copy.copy, *after = &new->copy.copy;
        int same = old->context == new->context &&
                   location_of(before->target.start) == location_of(after->target.start) &&
                   location_of(before->source.start) == location_of(after->source.start);
        return same ? CU_GRAPH_EXEC_UPDATE_SUCCESS : CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED;
    }
    case CU_GRAPH_NODE_TYPE_MEMSET: {
        int is_flat = old->fill.height == 1 && new->fill.height == 1;
        int same = old->context == new->context && location_of(old->fill.dst) == location_of(new->fill.dst) &&
                   (is_flat || (old->fill.width == new->fill.width && old->fill.height == new->fill.height &&
                                old->fill.elementSize == new->fill.elementSize && old->fill.pitch == new->fill.pitch));
        return same ? CU_GRAPH_EXEC_UPDATE_SUCCESS : CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED;
    }
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
        return old->context == new->context ? CU_GRAPH_EXEC_UPDATE_SUCCESS
                                            : CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED;
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
        return old->region == new->region ? CU_GRAPH_EXEC_UPDATE_SUCCESS : CU_GRAPH_EXEC_UPDATE_ERROR_NOT_SUPPORTED;
    default:
        return CU_GRAPH_EXEC_UPDATE_SUCCESS;
    }
}

/* Whether steps [from, from + fresh->count) and all steps of `fresh` have the same topology and compatible
 * operations. */
static int compare(CUgraphExec exec, size_t from, CUgraphExec fresh, CUgraphExecUpdateResultInfo *info)
{
    for (size_t i = 0; i < fresh->count; i++) {
        const struct sg_step *old = &exec->steps[from + i], *new = &fresh->steps[i];
        info->errorNode = new->node;
        /* The edge from the step before the child graph. */
        size_t outside = from && old->count && exec->depends[old->first] < from;
        if (!old->node != !new->node || old->end - from != new->end)
            return info->result = CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED;
        if (old->count - outside != new->count)
            return info->result = CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
        for (size_t k = 0; k < new->count; k++)
            if (exec->depends[old->first + k] != fresh->depends[new->first + k] + from) {
                info->errorFromNode = fresh->steps[fresh->depends[new->first + k]].node;
                return info->result = CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
            }
        info->result = difference(&old->body, &new->body);
        if (info->result != CU_GRAPH_EXEC_UPDATE_SUCCESS)
            return info->result;
    }
    info->errorNode = NULL;
    return CU_GRAPH_EXEC_UPDATE_SUCCESS;
}

static void exchange(struct sg_body *one, struct sg_body *other)
{
    struct sg_body kept = *one;
    *one = *other;
    *other = kept;
}

/* Replace steps [from, to) by those of a graph. References to user objects are replaced as well; the old ones are
 * released. */
static CUresult update(CUgraphExec exec, size_t from, size_t to, CUgraph graph, CUgraphExecUpdateResultInfo *info,
                       struct sg_references *released)
{
    struct CUgraphExec_st fresh = {0};
    *info = (CUgraphExecUpdateResultInfo){.result = CU_GRAPH_EXEC_UPDATE_ERROR};
    CUresult result = sg_flatten(&fresh, graph, &info->errorNode);
    if (result == CUDA_SUCCESS && fresh.count != to - from)
        info->result = CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
    else if (result == CUDA_SUCCESS)
        compare(exec, from, &fresh, info);
    int is_whole = to - from == exec->count;
    if (result == CUDA_SUCCESS && info->result == CU_GRAPH_EXEC_UPDATE_SUCCESS) {
        for (size_t i = 0; i < fresh.count; i++)
            exchange(&exec->steps[from + i].body, &fresh.steps[i].body);
        if (is_whole && exec->done && sg_alive(SG_EVENT, exec->done) && exec->done->object.id == exec->done_id &&
            exec->references.count && sg_event_ready(exec->done) == CUDA_ERROR_NOT_READY)
            sg_references_release_after(exec->done, &exec->references);
        if (is_whole)
            sg_references_move(&exec->references, released);
        sg_references_move(&fresh.references, &exec->references);
    } else if (result == CUDA_SUCCESS) {
        result = CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
    }
    sg_references_move(&fresh.references, released);
    sg_exec_clear(&fresh);
    return result;
}

API CUresult cuGraphExecUpdate_v2(CUgraphExec exec, CUgraph graph, CUgraphExecUpdateResultInfo *info)
{
    CUgraphExecUpdateResultInfo unseen;
    struct sg_references released = {0};
    if (!info)
        info = &unseen;
    *info = (CUgraphExecUpdateResultInfo){.result = CU_GRAPH_EXEC_UPDATE_ERROR};
    ENTER(exec);
    if (!sg_alive(SG_GRAPH, graph) || graph->owner || graph->capture)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    result = update(exec, 0, exec->count, graph, info, &released);
    return sg_leave_releasing(result, &released);
}

API CUresult cuGraphExecUpdate(CUgraphExec exec, CUgraph graph, CUgraphNode *culprit, CUgraphExecUpdateResult *why)
{
    CUgraphExecUpdateResultInfo info;
    CUresult result = cuGraphExecUpdate_v2(exec, graph, &info);
    if (culprit)
        *culprit = info.errorNode;
    if (why)
        *why = info.result;
    return result;
}

static CUresult replace(struct sg_step *step, const CUgraphNodeParams *params)
{
    struct sg_body body;
    if (step->body.type != params->type || params->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC ||
        params->type == CU_GRAPH_NODE_TYPE_MEM_FREE)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = sg_body_read(params, &body);
    if (result == CUDA_SUCCESS && params->type == CU_GRAPH_NODE_TYPE_KERNEL)
        body.kernel.is_cooperative = step->body.kernel.is_cooperative;
    if (result == CUDA_SUCCESS && difference(&step->body, &body) != CU_GRAPH_EXEC_UPDATE_SUCCESS)
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        exchange(&step->body, &body);
    sg_body_end(&body);
    return result;
}

CUresult sg_graph_call_exec_set(CUgraphExec exec, CUgraphNode node, const CUgraphNodeParams *params)
{
    struct sg_references released = {0};
    ENTER(exec);
    struct sg_step *step = sg_alive(SG_NODE, node) ? sg_exec_step(exec, node) : NULL;
    if (!step)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    if (params->type != CU_GRAPH_NODE_TYPE_GRAPH)
        return sg_leave(replace(step, params));
    CUgraphExecUpdateResultInfo info;
    size_t begin = (size_t)(step - exec->steps);
    if (node->body->type != CU_GRAPH_NODE_TYPE_GRAPH || !sg_alive(SG_GRAPH, params->graph.graph))
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    result = update(exec, begin + 1, step->end, params->graph.graph, &info, &released);
    if (result == CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE)
        result = CUDA_ERROR_INVALID_VALUE;
    return sg_leave_releasing(result, &released);
}

static struct sg_step *switchable(CUgraphExec exec, CUgraphNode node)
{
    struct sg_step *step = sg_alive(SG_NODE, node) ? sg_exec_step(exec, node) : NULL;
    return step && (step->body.type == CU_GRAPH_NODE_TYPE_KERNEL || step->body.type == CU_GRAPH_NODE_TYPE_MEMCPY ||
                    step->body.type == CU_GRAPH_NODE_TYPE_MEMSET)
               ? step
               : NULL;
}

API CUresult cuGraphNodeSetEnabled(CUgraphExec exec, CUgraphNode node, unsigned int is_enabled)
{
    ENTER(exec);
    struct sg_step *step = switchable(exec, node);
    if (step)
        step->is_disabled = !is_enabled;
    return sg_leave(step ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}

API CUresult cuGraphNodeGetEnabled(CUgraphExec exec, CUgraphNode node, unsigned int *is_enabled)
{
    ENTER(exec);
    const struct sg_step *step = switchable(exec, node);
    if (!step || !is_enabled)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    *is_enabled = !step->is_disabled;
    return sg_leave(CUDA_SUCCESS);
}
