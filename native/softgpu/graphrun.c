/* Launching an executable graph: its steps into the ring, as one piece of work of the launch stream. */
#include "softgpu/graph.h"

#include <unistd.h>

enum { SETTLE_US = 50 };

/* Where a launch waits for room in the ring it gives up the lock: nobody else may then change the graph under it. */
CUresult sg_exec_settle(CUgraphExec exec)
{
    uint64_t id = exec->object.id;
    while (exec->users) {
        sg_unlock();
        usleep(SETTLE_US);
        sg_relock();
        if (!sg_alive(SG_EXEC, exec) || exec->object.id != id)
            return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

/* A launch that failed leaves none of its memory behind: the next one finds the addresses free. */
static void give_back(CUgraphExec exec, size_t count, CUstream stream)
{
    for (size_t i = 0; i < count; i++) {
        const struct sg_body *body = &exec->steps[i].body;
        if (body->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC && !sg_region_is_free(body->region))
            sg_region_empty(body->region, stream);
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
            result = sg_region_empty(body->region, stream);
        if (result == CUDA_SUCCESS)
            result = sg_region_fill(body->region, body->context);
    }
    if (result != CUDA_SUCCESS)
        give_back(exec, filled - 1, stream);
    return result;
}

static CUresult run_step(CUgraphExec exec, struct sg_step *step, CUstream stream, int is_first)
{
    struct sg_plan *plan = exec->plan;
    CUresult result = is_first ? sg_event_hold(stream, plan->begin) : CUDA_SUCCESS;
    for (size_t w = step->first_wait; w < step->first_wait + step->wait_count && result == CUDA_SUCCESS; w++)
        result = sg_event_hold(stream, plan->marks[exec->steps[plan->waits[w]].mark - 1].event);
    if (result == CUDA_SUCCESS && !step->is_disabled)
        result = sg_body_submit(&step->body, stream);
    if (result == CUDA_SUCCESS && step->mark)
        result = sg_event_record(plan->marks[step->mark - 1].event, stream);
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
    /* Whatever went wrong: nothing of it may be left running beside what comes next in the stream. */
    if (result != CUDA_SUCCESS) {
        for (uint32_t b = 1; b < plan->branches; b++)
            if (begun[b] && sg_event_record(plan->begin, plan->streams[b]) == CUDA_SUCCESS)
                sg_event_hold(stream, plan->begin);
        return result;
    }
    for (size_t i = 0; i < plan->end_count && result == CUDA_SUCCESS; i++)
        result = sg_event_hold(stream, plan->marks[exec->steps[plan->ends[i]].mark - 1].event);
    return result;
}

/* The next launch, in whatever stream, comes after this one. */
static CUresult behind_the_last(CUgraphExec exec, CUstream stream)
{
    int is_there = sg_alive(SG_EVENT, exec->done) && exec->done->object.id == exec->done_id;
    if (is_there && exec->done->stream != stream) {
        CUresult result = sg_event_hold(stream, exec->done);
        if (result != CUDA_SUCCESS)
            return result;
    }
    if (is_there && exec->done->context_id == stream->context_id)
        return CUDA_SUCCESS;
    if (is_there)
        sg_event_end(exec->done);
    exec->done = NULL;
    CUresult result = sg_event_make(stream->context, CU_EVENT_DISABLE_TIMING, &exec->done);
    if (result == CUDA_SUCCESS)
        exec->done_id = exec->done->object.id;
    return result;
}

CUresult sg_exec_launch(CUgraphExec exec, CUstream stream)
{
    CUresult result = sg_exec_settle(exec);
    if (result == CUDA_SUCCESS)
        result = sg_stream_take_turn(stream);
    if (result != CUDA_SUCCESS)
        return result;
    exec->users++;
    result = sg_plan_for(exec, stream);
    if (result == CUDA_SUCCESS)
        result = behind_the_last(exec, stream);
    if (result == CUDA_SUCCESS) {
        result = allocate(exec, stream);
        if (result == CUDA_SUCCESS && (result = run(exec, stream)) != CUDA_SUCCESS)
            give_back(exec, exec->count, stream);
        CUresult recorded = sg_event_record(exec->done, stream); /* of as much as there was */
        result = result == CUDA_SUCCESS ? recorded : result;
    }
    sg_stream_end_turn(stream);
    exec->users--;
    return result;
}

static CUresult with_stream(CUgraphExec exec, CUstream handle, int is_launch)
{
    struct sg_owneds released = {0};
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
        result = sg_exec_settle(exec);
        if (result == CUDA_SUCCESS)
            result = sg_plan_for(exec, stream);
    }
    if (exec->is_ended && !exec->users && exec->object.alive) /* destroyed while it waited for room */
        sg_exec_end(exec, &released);
    return sg_leave_releasing(result, &released);
}

API CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream)
{
    return with_stream(exec, stream, 1);
}

API CUresult cuGraphLaunch_ptsz(CUgraphExec exec, CUstream stream)
{
    return with_stream(exec, sg_twin(stream), 1);
}

API CUresult cuGraphUpload(CUgraphExec exec, CUstream stream)
{
    return with_stream(exec, stream, 0);
}

API CUresult cuGraphUpload_ptsz(CUgraphExec exec, CUstream stream)
{
    return with_stream(exec, sg_twin(stream), 0);
}
