/* Launch of an executable graph: its steps are submitted as one unit of the launch stream. */
#include "softgpu/driver/graph/graph.h"

#include <unistd.h>

enum { POLL_US = 50 };

/* A launch releases the lock while it waits for space in the ring. Other threads must not change the graph
 * meanwhile. */
CUresult sg_exec_wait_idle(CUgraphExec exec)
{
    uint64_t id = exec->object.id;
    while (exec->users) {
        sg_unlock();
        usleep(POLL_US);
        sg_relock();
        if (!sg_alive(SG_EXEC, exec) || exec->object.id != id)
            return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

/* Free the memory of a failed launch, so that the next one finds the addresses unused. */
static void free_allocations(CUgraphExec exec, size_t count, CUstream stream)
{
    for (size_t i = 0; i < count; i++) {
        const struct sg_body *body = &exec->steps[i].body;
        if (body->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC && !sg_region_is_free(body->region))
            sg_region_free(body->region, stream);
    }
}

static CUresult allocate(CUgraphExec exec, CUstream stream)
{
    int auto_free = (exec->flags & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH) != 0;
    CUresult result = CUDA_SUCCESS;
    size_t filled = 0;
    for (; filled < exec->count && result == CUDA_SUCCESS; filled++) {
        const struct sg_body *body = &exec->steps[filled].body;
        if (body->type != CU_GRAPH_NODE_TYPE_MEM_ALLOC)
            continue;
        if (auto_free && !sg_region_is_free(body->region))
            result = sg_region_free(body->region, stream);
        if (result == CUDA_SUCCESS)
            result = sg_region_allocate(body->region, body->context);
    }
    if (result != CUDA_SUCCESS)
        free_allocations(exec, filled - 1, stream);
    return result;
}

static CUresult run_step(CUgraphExec exec, struct sg_step *step, CUstream stream, int is_first)
{
    struct sg_plan *plan = exec->plan;
    CUresult result = is_first ? sg_stream_wait_event(stream, plan->begin) : CUDA_SUCCESS;
    for (size_t w = step->first_wait; w < step->first_wait + step->wait_count && result == CUDA_SUCCESS; w++)
        result = sg_stream_wait_event(stream, plan->events[exec->steps[plan->waits[w]].event - 1].event);
    if (result == CUDA_SUCCESS && !step->is_disabled)
        result = sg_body_submit(&step->body, stream);
    if (result == CUDA_SUCCESS && step->event)
        result = sg_event_record(plan->events[step->event - 1].event, stream);
    return result;
}

static CUresult run(CUgraphExec exec, CUstream stream)
{
    struct sg_plan *plan = exec->plan;
    int begun[SG_BRANCHES] = {1};
    CUresult result = plan->branches > 1 ? sg_event_record(plan->begin, stream) : CUDA_SUCCESS;
    for (size_t i = 0; i < exec->count && result == CUDA_SUCCESS; i++) {
        struct sg_step *step = &exec->steps[i];
        CUstream branch = step->branch ? plan->streams[step->branch] : stream;
        result = run_step(exec, step, branch, !begun[step->branch]);
        begun[step->branch] = 1;
    }
    /* After an error, no branch may run concurrently with later work of the stream. */
    if (result != CUDA_SUCCESS) {
        for (uint32_t b = 1; b < plan->branches; b++)
            if (begun[b] && sg_event_record(plan->begin, plan->streams[b]) == CUDA_SUCCESS)
                sg_stream_wait_event(stream, plan->begin);
        return result;
    }
    for (size_t i = 0; i < plan->end_count && result == CUDA_SUCCESS; i++)
        result = sg_stream_wait_event(stream, plan->events[exec->steps[plan->ends[i]].event - 1].event);
    return result;
}

/* Order this launch after the previous one, whatever their streams are. */
static CUresult wait_for_previous(CUgraphExec exec, CUstream stream)
{
    int is_alive = sg_alive(SG_EVENT, exec->done) && exec->done->object.id == exec->done_id;
    if (is_alive && exec->done->stream != stream) {
        CUresult result = sg_stream_wait_event(stream, exec->done);
        if (result != CUDA_SUCCESS)
            return result;
    }
    if (is_alive && exec->done->context_id == stream->context_id)
        return CUDA_SUCCESS;
    if (is_alive)
        sg_event_end(exec->done);
    exec->done = NULL;
    CUresult result = sg_event_make(stream->context, CU_EVENT_DISABLE_TIMING, &exec->done);
    if (result == CUDA_SUCCESS)
        exec->done_id = exec->done->object.id;
    return result;
}

CUresult sg_exec_launch(CUgraphExec exec, CUstream stream)
{
    CUresult result = sg_exec_wait_idle(exec);
    if (result == CUDA_SUCCESS)
        result = sg_stream_lock(stream);
    if (result != CUDA_SUCCESS)
        return result;
    exec->users++;
    result = sg_plan_for(exec, stream);
    if (result == CUDA_SUCCESS)
        result = wait_for_previous(exec, stream);
    if (result == CUDA_SUCCESS) {
        result = allocate(exec, stream);
        if (result == CUDA_SUCCESS && (result = run(exec, stream)) != CUDA_SUCCESS)
            free_allocations(exec, exec->count, stream);
        CUresult recorded = sg_event_record(exec->done, stream); /* covers the steps that were submitted */
        result = result == CUDA_SUCCESS ? recorded : result;
    }
    sg_stream_unlock(stream);
    exec->users--;
    return result;
}

static CUresult with_stream(CUgraphExec exec, CUstream handle, int is_launch)
{
    struct sg_references released = {0};
    CUcontext context;
    CUresult result = sg_enter_context(&context);
    if (result != CUDA_SUCCESS)
        return result;
    CUstream stream = sg_stream(context, handle);
    if (!sg_alive(SG_EXEC, exec))
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    if (!stream)
        return sg_leave(CUDA_ERROR_INVALID_HANDLE);
    if (stream->capture)
        return sg_leave(sg_capture_refuse(stream));
    if (is_launch) {
        result = sg_exec_launch(exec, stream);
    } else {
        result = sg_exec_wait_idle(exec);
        if (result == CUDA_SUCCESS)
            result = sg_plan_for(exec, stream);
    }
    /* It was destroyed while it waited for space in the ring. */
    if (exec->is_ended && !exec->users && exec->object.alive)
        sg_exec_end(exec, &released);
    return sg_leave_releasing(result, &released);
}

API CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream)
{
    return with_stream(exec, stream, 1);
}

API CUresult cuGraphLaunch_ptsz(CUgraphExec exec, CUstream stream)
{
    return with_stream(exec, sg_per_thread_stream(stream), 1);
}

API CUresult cuGraphUpload(CUgraphExec exec, CUstream stream)
{
    return with_stream(exec, stream, 0);
}

API CUresult cuGraphUpload_ptsz(CUgraphExec exec, CUstream stream)
{
    return with_stream(exec, sg_per_thread_stream(stream), 0);
}
