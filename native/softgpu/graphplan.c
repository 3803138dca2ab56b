/* Which steps of an executable graph run side by side: branches, each a stream, and marks where one waits for another.
 *
 * The steps are walked in their order. Each goes behind one it depends on if that is the end of a branch; else into a
 * branch whose end it has to come after anyway; else into a new one. For each branch it is known up to where the others
 * are complete when its end is, so that only the waits that add something are made. A chain needs none: it runs in the
 * launch stream, and costs what its nodes cost. */
#include "softgpu/graph.h"

#include <stdlib.h>
#include <string.h>

/* Places in the order, counted from one: 0 is before everything. */
struct planner {
    CUgraphExec exec;
    struct sg_plan *plan;
    size_t tail[SG_BRANCHES];
    size_t known[SG_BRANCHES][SG_BRANCHES];
    size_t need[SG_BRANCHES], clock[SG_BRANCHES];
    uint32_t most;
};

static int fits(const struct planner *p, uint32_t branch, const struct sg_step *step)
{
    return !step->body.context || step->body.context == p->plan->contexts[branch];
}

static void look(struct planner *p, const struct sg_step *step)
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
            if (p->clock[c] < p->known[b][c])
                p->clock[c] = p->known[b][c];
    }
}

/* SG_BRANCHES: there is none to be had. */
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
        if (p->clock[b] >= p->tail[b]) /* the launch stream, empty, is one of these */
            return b;
        if (shortest == SG_BRANCHES || p->tail[b] < p->tail[shortest])
            shortest = b;
    }
    if (plan->branches == p->most)
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
    if (plan->wait_count == plan->wait_room) {
        size_t more = plan->wait_room ? plan->wait_room * 2 : 16;
        size_t *larger = realloc(plan->waits, more * sizeof *larger);
        if (!larger)
            return -1;
        plan->waits = larger;
        plan->wait_room = more;
    }
    plan->waits[plan->wait_count++] = on;
    p->exec->steps[step].wait_count++;
    p->exec->steps[on].last_wait = step + 1;
    return 0;
}

static CUresult place(struct planner *p, size_t index)
{
    struct sg_step *step = &p->exec->steps[index];
    look(p, step);
    uint32_t branch = choose(p, step);
    if (branch == SG_BRANCHES)
        return CUDA_ERROR_OUT_OF_MEMORY;
    step->branch = branch;
    step->first_wait = p->plan->wait_count;
    step->wait_count = 0;
    step->last_wait = step->mark = 0;
    for (uint32_t b = 0; b < p->plan->branches; b++)
        if (b != branch && p->need[b] > p->known[branch][b] && add_wait(p, index, p->need[b] - 1) < 0)
            return CUDA_ERROR_OUT_OF_MEMORY;
    for (uint32_t b = 0; b < p->plan->branches; b++)
        if (p->known[branch][b] < p->clock[b])
            p->known[branch][b] = p->clock[b];
    p->known[branch][branch] = p->tail[branch] = index + 1;
    return CUDA_SUCCESS;
}

/* A mark of this branch's context that nobody waits for any more, or a new one. 0: not to be had. */
static size_t take_mark(struct sg_plan *plan, uint32_t branch, size_t *free_marks, size_t *free_count)
{
    for (size_t i = *free_count; i > 0; i--) {
        size_t mark = free_marks[i - 1];
        if (plan->contexts[plan->marks[mark].branch] != plan->contexts[branch])
            continue;
        free_marks[i - 1] = free_marks[--*free_count];
        return mark + 1;
    }
    if (plan->mark_count == plan->mark_room) {
        size_t more = plan->mark_room ? plan->mark_room * 2 : 16;
        struct sg_mark *larger = realloc(plan->marks, more * sizeof *larger);
        if (!larger)
            return 0;
        plan->marks = larger;
        plan->mark_room = more;
    }
    struct sg_mark *made = &plan->marks[plan->mark_count];
    made->branch = branch;
    if (sg_event_make(plan->contexts[branch], CU_EVENT_DISABLE_TIMING, &made->event) != CUDA_SUCCESS)
        return 0;
    return ++plan->mark_count;
}

static CUresult assign_marks(CUgraphExec exec, struct sg_plan *plan)
{
    size_t *free_marks = malloc((exec->count + 1) * sizeof *free_marks), free_count = 0;
    CUresult result = free_marks ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    for (size_t i = 0; i < exec->count && result == CUDA_SUCCESS; i++) {
        struct sg_step *step = &exec->steps[i];
        for (size_t w = step->first_wait; w < step->first_wait + step->wait_count; w++) {
            struct sg_step *on = &exec->steps[plan->waits[w]];
            if (on->last_wait == i + 1)
                free_marks[free_count++] = on->mark - 1;
        }
        if (!step->last_wait)
            continue;
        step->mark = take_mark(plan, step->branch, free_marks, &free_count);
        if (!step->mark)
            result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    free(free_marks);
    return result;
}

static CUresult make(CUgraphExec exec, CUstream stream, uint32_t most, struct sg_plan *plan)
{
    struct planner *planner = calloc(1, sizeof *planner);
    if (!planner)
        return CUDA_ERROR_OUT_OF_MEMORY;
    planner->exec = exec;
    planner->plan = plan;
    planner->most = most;
    plan->context_id = plan->context_ids[0] = stream->context_id;
    plan->priority = stream->priority;
    plan->contexts[0] = stream->context;
    plan->branches = 1;
    CUresult result = CUDA_SUCCESS;
    for (size_t i = 0; i < exec->count && result == CUDA_SUCCESS; i++)
        result = place(planner, i);
    for (uint32_t b = 1; b < plan->branches && result == CUDA_SUCCESS; b++)
        if (planner->tail[b] > planner->known[0][b]) {
            plan->ends[plan->end_count++] = planner->tail[b] - 1;
            exec->steps[planner->tail[b] - 1].last_wait = SIZE_MAX;
        }
    free(planner);
    if (result == CUDA_SUCCESS)
        result = assign_marks(exec, plan);
    if (result == CUDA_SUCCESS && plan->branches > 1)
        result = sg_event_make(stream->context, CU_EVENT_DISABLE_TIMING, &plan->begin);
    return result;
}

static int has_context(const struct sg_plan *plan, uint32_t branch)
{
    return sg_alive(SG_CONTEXT, plan->contexts[branch]) &&
           plan->contexts[branch]->object.id == plan->context_ids[branch];
}

/* What was launched is queued and goes on: streams stay until their work is done. */
void sg_plan_end(struct sg_plan *plan)
{
    for (size_t i = 0; i < plan->mark_count; i++)
        if (has_context(plan, plan->marks[i].branch))
            sg_event_end(plan->marks[i].event);
    if (plan->begin && has_context(plan, 0))
        sg_event_end(plan->begin);
    for (uint32_t b = 1; b < plan->branches; b++)
        if (has_context(plan, b))
            sg_stream_retire(plan->streams[b]);
    free(plan->marks);
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
    sg_stream_sweep(stream->context); /* of graphs that were destroyed with launches running */
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    /* With no streams or events to be had all runs in the launch stream, one after the other. */
    for (uint32_t most = SG_BRANCHES; most && result != CUDA_SUCCESS; most = most > 1 ? 1 : 0) {
        struct sg_plan *plan = calloc(1, sizeof *plan);
        if (!plan)
            return CUDA_ERROR_OUT_OF_MEMORY;
        result = make(exec, stream, most, plan);
        if (result == CUDA_SUCCESS)
            exec->plan = plan;
        else
            sg_plan_end(plan);
    }
    return result;
}
