/* Assign the steps of an executable graph to branches, each of which is a stream, and place events between them.
 *
 * The steps are visited in order. A step follows one of its dependencies if that is the last step of a branch;
 * otherwise it joins a branch whose last step it depends on indirectly; otherwise it starts a new branch. The plan
 * tracks for each branch which steps of the other branches are complete when its last step is, and adds only the waits
 * that are not implied. A chain needs no waits: it runs in the launch stream at the cost of its nodes. */
#include "softgpu/driver/graph/graph.h"

#include <stdlib.h>
#include <string.h>

/* Positions count from one; 0 is before the first step. */
struct planner {
    CUgraphExec exec;
    struct sg_plan *plan;
    size_t tail[SG_BRANCHES];
    size_t reached[SG_BRANCHES][SG_BRANCHES];
    size_t need[SG_BRANCHES], clock[SG_BRANCHES];
    uint32_t max_branches;
};

static int fits(const struct planner *p, uint32_t branch, const struct sg_step *step)
{
    return !step->body.context || step->body.context == p->plan->contexts[branch];
}

static void gather_dependencies(struct planner *p, const struct sg_step *step)
{
    memset(p->need, 0, sizeof p->need);
    memset(p->clock, 0, sizeof p->clock);
    for (size_t i = 0; i < step->count; i++) {
        size_t on = p->exec->depends[step->first + i];
        uint32_t branch = p->exec->steps[on].branch;
        if (p->need[branch] <= on)
            p->need[branch] = on + 1;
    }
    for (uint32_t b = 0; b < p->plan->branches; b++) {
        if (p->clock[b] < p->need[b])
            p->clock[b] = p->need[b];
        if (!p->need[b] || p->need[b] != p->tail[b])
            continue;
        for (uint32_t c = 0; c < p->plan->branches; c++)
            if (p->clock[c] < p->reached[b][c])
                p->clock[c] = p->reached[b][c];
    }
}

/* SG_BRANCHES: no branch is available. */
static uint32_t choose(struct planner *p, const struct sg_step *step)
{
    struct sg_plan *plan = p->plan;
    uint32_t shortest = SG_BRANCHES;
    for (uint32_t b = 0; b < plan->branches; b++)
        if (p->need[b] && p->need[b] == p->tail[b] && fits(p, b, step))
            return b;
    for (uint32_t b = 0; b < plan->branches; b++) {
        if (!fits(p, b, step))
            continue;
        if (p->clock[b] >= p->tail[b]) /* this includes the empty launch stream */
            return b;
        if (shortest == SG_BRANCHES || p->tail[b] < p->tail[shortest])
            shortest = b;
    }
    if (plan->branches == p->max_branches)
        return shortest;
    CUcontext context = step->body.context ? step->body.context : plan->contexts[0];
    uint32_t added = plan->branches;
    CUresult result = sg_stream_make(context, CU_STREAM_NON_BLOCKING, plan->priority, &plan->streams[added]);
    if (result != CUDA_SUCCESS)
        return shortest;
    plan->contexts[added] = context;
    plan->context_ids[added] = context->object.id;
    return plan->branches++;
}

static int add_wait(struct planner *p, size_t step, size_t on)
{
    struct sg_plan *plan = p->plan;
    if (plan->wait_count == plan->wait_capacity) {
        size_t more = plan->wait_capacity ? plan->wait_capacity * 2 : 16;
        size_t *larger = realloc(plan->waits, more * sizeof *larger);
        if (!larger)
            return -1;
        plan->waits = larger;
        plan->wait_capacity = more;
    }
    plan->waits[plan->wait_count++] = on;
    p->exec->steps[step].wait_count++;
    p->exec->steps[on].last_wait = step + 1;
    return 0;
}

static CUresult place_step(struct planner *p, size_t index)
{
    struct sg_step *step = &p->exec->steps[index];
    gather_dependencies(p, step);
    uint32_t branch = choose(p, step);
    if (branch == SG_BRANCHES)
        return CUDA_ERROR_OUT_OF_MEMORY;
    step->branch = branch;
    step->first_wait = p->plan->wait_count;
    step->wait_count = 0;
    step->last_wait = step->event = 0;
    for (uint32_t b = 0; b < p->plan->branches; b++)
        if (b != branch && p->need[b] > p->reached[branch][b] && add_wait(p, index, p->need[b] - 1) < 0)
            return CUDA_ERROR_OUT_OF_MEMORY;
    for (uint32_t b = 0; b < p->plan->branches; b++)
        if (p->reached[branch][b] < p->clock[b])
            p->reached[branch][b] = p->clock[b];
    p->reached[branch][branch] = p->tail[branch] = index + 1;
    return CUDA_SUCCESS;
}

/* Return the number of an unused event in this branch's context, or of a new one. 0: none is available. */
static size_t take_event(struct sg_plan *plan, uint32_t branch, size_t *free_events, size_t *free_count)
{
    for (size_t i = *free_count; i > 0; i--) {
        size_t event = free_events[i - 1];
        if (plan->contexts[plan->events[event].branch] != plan->contexts[branch])
            continue;
        free_events[i - 1] = free_events[--*free_count];
        return event + 1;
    }
    if (plan->event_count == plan->event_capacity) {
        size_t more = plan->event_capacity ? plan->event_capacity * 2 : 16;
        struct sg_plan_event *larger = realloc(plan->events, more * sizeof *larger);
        if (!larger)
            return 0;
        plan->events = larger;
        plan->event_capacity = more;
    }
    struct sg_plan_event *made = &plan->events[plan->event_count];
    made->branch = branch;
    if (sg_event_make(plan->contexts[branch], CU_EVENT_DISABLE_TIMING, &made->event) != CUDA_SUCCESS)
        return 0;
    return ++plan->event_count;
}

static CUresult assign_events(CUgraphExec exec, struct sg_plan *plan)
{
    size_t *free_events = malloc((exec->count + 1) * sizeof *free_events), free_count = 0;
    CUresult result = free_events ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    for (size_t i = 0; i < exec->count && result == CUDA_SUCCESS; i++) {
        struct sg_step *step = &exec->steps[i];
        for (size_t w = step->first_wait; w < step->first_wait + step->wait_count; w++) {
            struct sg_step *on = &exec->steps[plan->waits[w]];
            if (on->last_wait == i + 1)
                free_events[free_count++] = on->event - 1;
        }
        if (!step->last_wait)
            continue;
        step->event = take_event(plan, step->branch, free_events, &free_count);
        if (!step->event)
            result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    free(free_events);
    return result;
}

static CUresult make(CUgraphExec exec, CUstream stream, uint32_t max_branches, struct sg_plan *plan)
{
    struct planner *planner = calloc(1, sizeof *planner);
    if (!planner)
        return CUDA_ERROR_OUT_OF_MEMORY;
    planner->exec = exec;
    planner->plan = plan;
    planner->max_branches = max_branches;
    plan->context_id = plan->context_ids[0] = stream->context_id;
    plan->priority = stream->priority;
    plan->contexts[0] = stream->context;
    plan->branches = 1;
    CUresult result = CUDA_SUCCESS;
    for (size_t i = 0; i < exec->count && result == CUDA_SUCCESS; i++)
        result = place_step(planner, i);
    for (uint32_t b = 1; b < plan->branches && result == CUDA_SUCCESS; b++)
        if (planner->tail[b] > planner->reached[0][b]) {
            plan->ends[plan->end_count++] = planner->tail[b] - 1;
            exec->steps[planner->tail[b] - 1].last_wait = SIZE_MAX;
        }
    free(planner);
    if (result == CUDA_SUCCESS)
        result = assign_events(exec, plan);
    if (result == CUDA_SUCCESS && plan->branches > 1)
        result = sg_event_make(stream->context, CU_EVENT_DISABLE_TIMING, &plan->begin);
    return result;
}

static int has_context(const struct sg_plan *plan, uint32_t branch)
{
    return sg_alive(SG_CONTEXT, plan->contexts[branch]) &&
           plan->contexts[branch]->object.id == plan->context_ids[branch];
}

/* Launched work continues, so streams stay until they are idle. */
void sg_plan_end(struct sg_plan *plan)
{
    for (size_t i = 0; i < plan->event_count; i++)
        if (has_context(plan, plan->events[i].branch))
            sg_event_end(plan->events[i].event);
    if (plan->begin && has_context(plan, 0))
        sg_event_end(plan->begin);
    for (uint32_t b = 1; b < plan->branches; b++)
        if (has_context(plan, b))
            sg_stream_retire(plan->streams[b]);
    free(plan->events);
    free(plan->waits);
    free(plan);
}

CUresult sg_plan_for(CUgraphExec exec, CUstream stream)
{
    if (exec->plan && exec->plan->context_id == stream->context_id && exec->plan->priority == stream->priority) {
        for (uint32_t b = 1; b < exec->plan->branches; b++)
            if (!has_context(exec->plan, b))
                return CUDA_ERROR_CONTEXT_IS_DESTROYED;
        return CUDA_SUCCESS;
    }
    for (size_t i = 0; i < exec->count; i++) {
        const struct sg_body *body = &exec->steps[i].body;
        if (body->context && (!sg_alive(SG_CONTEXT, body->context) || body->context->object.id != body->context_id))
            return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    }
    if (exec->plan)
        sg_plan_end(exec->plan);
    exec->plan = NULL;
    sg_stream_sweep(stream->context); /* release streams of destroyed graphs whose launches have completed */
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    /* Without free streams or events, all steps run in sequence in the launch stream. */
    const uint32_t limits[] = {SG_BRANCHES, 1};
    for (size_t i = 0; i < sizeof limits / sizeof limits[0] && result != CUDA_SUCCESS; i++) {
        struct sg_plan *plan = calloc(1, sizeof *plan);
        if (!plan)
            return CUDA_ERROR_OUT_OF_MEMORY;
        result = make(exec, stream, limits[i], plan);
        if (result == CUDA_SUCCESS)
            exec->plan = plan;
        else
            sg_plan_end(plan);
    }
    return result;
}
