/* Executable graphs: the nodes of a graph and its child graphs in one order, independent of the original graph. */
#include "softgpu/driver/graph/graph.h"

#include <stdlib.h>
#include <string.h>

#define ENTER(how)                                                                                                     \
    CUresult result = how;                                                                                             \
    if (result != CUDA_SUCCESS)                                                                                        \
    return result

/* A graph that is being flattened: its sorted nodes, the next one to emit, and the step at which it began. */
struct level {
    CUgraph graph;
    CUgraphNode *order;
    size_t at, begin; /* begin: step of the node that owns this child graph; SIZE_MAX: the top-level graph */
};

struct levels {
    struct level *at;
    size_t count, capacity;
};

static int grow(void **array, size_t *capacity, size_t count, size_t bytes)
{
    if (count < *capacity)
        return 0;
    size_t more = *capacity ? *capacity * 2 : 16;
    void *larger = realloc(*array, more * bytes);
    if (!larger)
        return -1;
    *array = larger;
    *capacity = more;
    return 0;
}

/* Sort the nodes topologically, in creation order where that leaves a choice. NULL: out of memory, or a cycle. */
static CUgraphNode *sorted(CUgraph graph, CUgraphNode *culprit)
{
    CUgraphNode *order = malloc((graph->count + 1) * sizeof *order);
    size_t ready = 0;
    for (CUgraphNode node = graph->first; node && order; node = node->next) {
        node->remaining = node->before.count;
        if (!node->remaining)
            order[ready++] = node;
    }
    for (size_t i = 0; i < ready; i++)
        for (size_t k = 0; k < order[i]->after.count; k++)
            if (--order[i]->after.at[k].node->remaining == 0)
                order[ready++] = order[i]->after.at[k].node;
    if (!order || ready == graph->count)
        return order;
    for (CUgraphNode node = graph->first; node; node = node->next)
        if (node->remaining)
            *culprit = node;
    free(order);
    return NULL;
}

static int descend(CUgraphExec exec, struct levels *levels, CUgraph graph, size_t begin, CUgraphNode *culprit)
{
    CUgraphNode *order = sorted(graph, culprit);
    if (!order || sg_references_copy(&exec->references, &graph->references) < 0 ||
        grow((void **)&levels->at, &levels->capacity, levels->count, sizeof *levels->at) < 0) {
        free(order);
        return -1;
    }
    levels->at[levels->count++] = (struct level){graph, order, 0, begin};
    return 0;
}

static struct sg_step *new_step(CUgraphExec exec)
{
    if (grow((void **)&exec->steps, &exec->capacity, exec->count, sizeof *exec->steps) < 0)
        return NULL;
    struct sg_step *step = &exec->steps[exec->count];
    memset(step, 0, sizeof *step);
    step->body.type = CU_GRAPH_NODE_TYPE_EMPTY;
    step->first = exec->depend_count;
    step->end = exec->count++;
    return step;
}

static int depend(CUgraphExec exec, struct sg_step *step, size_t on)
{
    if (grow((void **)&exec->depends, &exec->depend_capacity, exec->depend_count, sizeof *exec->depends) < 0)
        return -1;
    exec->depends[exec->depend_count++] = on;
    step->count++;
    return 0;
}

/* A child graph lies between two empty steps: one before all of its roots, one after all of its leaves. */
static int close_child(CUgraphExec exec, const struct level *level)
{
    struct sg_step *end = new_step(exec);
    int failed = !end || depend(exec, end, level->begin) < 0;
    for (CUgraphNode node = level->graph->first; node && !failed; node = node->next)
        if (!node->after.count)
            failed = depend(exec, end, node->remaining) < 0;
    if (failed)
        return -1;
    exec->steps[level->begin].end = exec->count - 1;
    level->graph->owner->remaining = exec->count - 1;
    return 0;
}

static int emit(CUgraphExec exec, const struct level *level, CUgraphNode node)
{
    struct sg_step *step = new_step(exec);
    if (!step)
        return -1;
    if (node->body->type != CU_GRAPH_NODE_TYPE_GRAPH && sg_body_copy(&step->body, node->body) < 0)
        return -1;
    step->node = node;
    step->node_id = node->object.id;
    for (size_t i = 0; i < node->before.count; i++)
        if (depend(exec, step, node->before.at[i].node->remaining) < 0)
            return -1;
    if (!node->before.count && level->begin != SIZE_MAX && depend(exec, step, level->begin) < 0)
        return -1;
    node->remaining = exec->count - 1;
    return 0;
}

CUresult sg_flatten(CUgraphExec exec, CUgraph graph, CUgraphNode *culprit)
{
    struct levels levels = {0};
    *culprit = NULL;
    int failed = descend(exec, &levels, graph, SIZE_MAX, culprit) < 0;
    while (!failed && levels.count) {
        struct level *level = &levels.at[levels.count - 1];
        if (level->at == level->graph->count) {
            failed = level->begin != SIZE_MAX && close_child(exec, level) < 0;
            free(level->order);
            levels.count--;
            continue;
        }
        CUgraphNode node = level->order[level->at++];
        failed = emit(exec, level, node) < 0;
        if (!failed && node->body->type == CU_GRAPH_NODE_TYPE_GRAPH)
            failed = descend(exec, &levels, node->body->child.graph, exec->count - 1, culprit) < 0;
    }
    while (levels.count)
        free(levels.at[--levels.count].order);
    free(levels.at);
    if (!failed)
        return CUDA_SUCCESS;
    return *culprit ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_OUT_OF_MEMORY;
}

void sg_exec_clear(CUgraphExec exec)
{
    for (size_t i = 0; i < exec->count; i++)
        sg_body_end(&exec->steps[i].body);
    free(exec->steps);
    free(exec->depends);
    free(exec->by_node);
}

static const struct sg_step *sorting;

static int by_node_id(const void *a, const void *b)
{
    uint64_t first = sorting[*(const size_t *)a].node_id, second = sorting[*(const size_t *)b].node_id;
    return (first > second) - (first < second);
}

static int index_nodes(CUgraphExec exec)
{
    exec->by_node = malloc((exec->count + 1) * sizeof *exec->by_node);
    if (!exec->by_node)
        return -1;
    for (size_t i = 0; i < exec->count; i++)
        exec->by_node[i] = i;
    sorting = exec->steps; /* protected by the lock */
    qsort(exec->by_node, exec->count, sizeof *exec->by_node, by_node_id);
    return 0;
}

struct sg_step *sg_exec_step(CUgraphExec exec, CUgraphNode node)
{
    size_t low = 0, high = exec->count;
    uint64_t id = node->object.id;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (exec->steps[exec->by_node[middle]].node_id < id)
            low = middle + 1;
        else
            high = middle;
    }
    struct sg_step *step = low < exec->count ? &exec->steps[exec->by_node[low]] : NULL;
    return step && step->node_id == id ? step : NULL;
}

/* The lock is held. Launches that wait for space in the ring keep the graph alive until they return. */
void sg_exec_end(CUgraphExec exec, struct sg_references *released)
{
    exec->is_ended = 1;
    sg_object_hide(exec);
    if (exec->users)
        return;
    if (sg_alive(SG_GRAPH, exec->graph) && exec->graph->object.id == exec->graph_id)
        exec->graph->execs--;
    CUevent done = sg_alive(SG_EVENT, exec->done) && exec->done->object.id == exec->done_id ? exec->done : NULL;
    if (exec->references.count && done && sg_event_ready(done) == CUDA_ERROR_NOT_READY)
        sg_references_release_after(done, &exec->references);
    sg_references_move(&exec->references, released);
    if (exec->plan)
        sg_plan_end(exec->plan);
    if (done)
        sg_event_end(done);
    sg_exec_clear(exec);
    sg_delete(SG_EXEC, exec);
}

static CUresult instantiate(CUgraphExec *made, CUgraph graph, uint64_t flags, CUgraphNode *culprit)
{
    const uint64_t valid = CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH | CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD |
                           CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY;
    *culprit = NULL;
    ENTER(sg_enter());
    if (!made || !sg_alive(SG_GRAPH, graph) || graph->owner || graph->capture)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    if (flags & ~valid)
        return sg_leave(flags & CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH ? CUDA_ERROR_NOT_SUPPORTED
                                                                          : CUDA_ERROR_INVALID_VALUE);
    if (graph->memory_nodes && graph->execs)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    CUgraphExec exec = sg_new(SG_EXEC);
    if (!exec)
        return sg_leave(CUDA_ERROR_OUT_OF_MEMORY);
    result = sg_flatten(exec, graph, culprit);
    if (result == CUDA_SUCCESS && index_nodes(exec) < 0)
        result = CUDA_ERROR_OUT_OF_MEMORY;
    if (result != CUDA_SUCCESS) {
        struct sg_references released = {0};
        sg_references_move(&exec->references, &released);
        sg_exec_clear(exec);
        sg_delete(SG_EXEC, exec);
        return sg_leave_releasing(result, &released);
    }
    exec->graph = graph;
    exec->graph_id = graph->object.id;
    exec->flags = flags;
    graph->execs++;
    *made = exec;
    return sg_leave(CUDA_SUCCESS);
}

API CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags)
{
    CUgraphNode culprit;
    return instantiate(exec, graph, flags, &culprit);
}

static CUresult with_params(CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params)
{
    if (!params)
        return CUDA_ERROR_INVALID_VALUE;
    params->result_out = CUDA_GRAPH_INSTANTIATE_SUCCESS;
    CUresult result = instantiate(exec, graph, params->flags, &params->hErrNode_out);
    if (result != CUDA_SUCCESS)
        params->result_out =
            params->hErrNode_out ? CUDA_GRAPH_INSTANTIATE_INVALID_STRUCTURE : CUDA_GRAPH_INSTANTIATE_ERROR;
    return result;
}

API CUresult cuGraphInstantiateWithParams(CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params)
{
    return with_params(exec, graph, params);
}

API CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params)
{
    return with_params(exec, graph, params);
}

static CUresult with_log(CUgraphExec *exec, CUgraph graph, CUgraphNode *culprit, char *log, size_t bytes)
{
    static const char cycle[] = "the graph has a cycle";
    CUgraphNode found;
    CUresult result = instantiate(exec, graph, 0, &found);
    if (culprit)
        *culprit = found;
    if (log && bytes) {
        log[0] = 0;
        if (found)
            strncat(log, cycle, bytes - 1);
    }
    return result;
}

API CUresult cuGraphInstantiate(CUgraphExec *exec, CUgraph graph, CUgraphNode *culprit, char *log, size_t bytes)
{
    return with_log(exec, graph, culprit, log, bytes);
}

API CUresult cuGraphInstantiate_v2(CUgraphExec *exec, CUgraph graph, CUgraphNode *culprit, char *log, size_t bytes)
{
    return with_log(exec, graph, culprit, log, bytes);
}

static CUresult enter_exec(CUgraphExec exec)
{
    ENTER(sg_enter());
    return sg_alive(SG_EXEC, exec) ? CUDA_SUCCESS : sg_leave(CUDA_ERROR_INVALID_VALUE);
}

API CUresult cuGraphExecDestroy(CUgraphExec exec)
{
    struct sg_references released = {0};
    ENTER(enter_exec(exec));
    sg_exec_end(exec, &released);
    return sg_leave_releasing(CUDA_SUCCESS, &released);
}

API CUresult cuGraphExecGetFlags(CUgraphExec exec, cuuint64_t *flags)
{
    ENTER(enter_exec(exec));
    if (flags)
        *flags = exec->flags;
    return sg_leave(flags ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}

API CUresult cuGraphExecGetId(CUgraphExec exec, unsigned int *id)
{
    ENTER(enter_exec(exec));
    if (id)
        *id = (unsigned)exec->object.id;
    return sg_leave(id ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}
