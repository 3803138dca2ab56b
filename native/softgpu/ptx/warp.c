/* Execution of a warp. Threads at the same instruction form a fragment. A divergent branch splits a fragment; fragments
 * that reach the same instruction of the same call are merged. Among fragments that are ready, the one in the deepest
 * call with the lowest instruction runs, so that threads that are behind catch up. A fragment that spins gives way to
 * the others from time to time. */
#include "softgpu/ptx/vector.h"

#include <stdlib.h>

enum { TURN = 100000, MAX_DEPTH = 1024, MAX_LOCAL = 1 << 22 };

/* ---- Frames ------------------------------------------------------------------------------------------------------ */

static int fit_local(struct ptx_warp *w, uint32_t bytes)
{
    if (bytes <= w->local_bytes)
        return 0;
    bytes = (bytes + 15) / 16 * 16;
    unsigned char *larger = bytes > MAX_LOCAL ? NULL : calloc(WARP, bytes);
    if (!larger)
        return -1;
    for (uint32_t t = 0; t < WARP; t++)
        if (w->local_bytes)
            memcpy(larger + (uint64_t)t * bytes, w->local + (uint64_t)t * w->local_bytes, w->local_bytes);
    free(w->local);
    w->local = larger;
    w->local_bytes = bytes;
    return 0;
}

static struct ptx_frame *make_frame(struct ptx_warp *w, const struct ptx_function *function, struct ptx_frame *parent)
{
    struct ptx_frame *frame = calloc(1, sizeof *frame);
    if (!frame)
        return NULL;
    uint32_t registers = (function->register_bytes + 256 + 63) / 64 * 64;
    frame->function = function;
    frame->parent = parent;
    frame->depth = parent ? parent->depth + 1 : 0;
    frame->local_from = parent ? (parent->local_from + parent->function->local_bytes + 15) / 16 * 16 : 0;
    frame->registers = aligned_alloc(64, registers);
    frame->area = calloc(WARP, function->area_bytes ? function->area_bytes : 1);
    if (!frame->registers || !frame->area || fit_local(w, frame->local_from + function->local_bytes) < 0) {
        free(frame->registers);
        free(frame->area);
        free(frame);
        return NULL;
    }
    memset(frame->registers, 0, registers);
    frame->next = w->frames;
    w->frames = frame;
    return frame;
}

static void free_frame(struct ptx_warp *w, struct ptx_frame *frame)
{
    for (struct ptx_frame **at = &w->frames; *at; at = &(*at)->next)
        if (*at == frame) {
            *at = frame->next;
            break;
        }
    free(frame->registers);
    free(frame->area);
    free(frame);
}

/* The frame of the entry is reused by later blocks. */
void ptx_warp_start(struct ptx_warp *w)
{
    struct ptx_run *run = w->block->run;
    uint32_t first = w->number * WARP, left = w->block->thread_count - first;
    w->exists = w->alive = left >= WARP ? UINT32_MAX : ptx_bit[left] - 1;
    w->executed = 0;
    w->fragment_count = 0;
    memset(w->arrivals, 0, sizeof w->arrivals);
    if (!w->root)
        w->root = make_frame(w, run->entry, NULL);
    if (!w->root) {
        ptx_fail(w, SG_PTX_OUT_OF_MEMORY);
        return;
    }
    w->root->mask = w->exists;
    w->root->returned = 0;
    ptx_frame_specials(w, w->root);
    w->fragments[w->fragment_count++] = (struct ptx_fragment){.mask = w->exists, .frame = w->root};
    w->base[BASE_CONSTANTS] = run->program->constants;
    w->base[BASE_ADDRESSES] = run->addresses;
}

void ptx_warp_end(struct ptx_warp *w)
{
    while (w->frames)
        free_frame(w, w->frames);
    free(w->local);
}

/* ---- Fragments --------------------------------------------------------------------------------------------------- */

static struct ptx_fragment *add_fragment(struct ptx_warp *w, uint32_t mask, uint32_t pc, struct ptx_frame *frame)
{
    struct ptx_fragment *made = &w->fragments[w->fragment_count++];
    *made = (struct ptx_fragment){.mask = mask, .pc = pc, .frame = frame};
    return made;
}

static void remove_fragment(struct ptx_warp *w, struct ptx_fragment *fragment)
{
    *fragment = w->fragments[--w->fragment_count];
}

static struct ptx_fragment *pick(struct ptx_warp *w)
{
    struct ptx_fragment *best = NULL;
    for (uint32_t k = 0; k < w->fragment_count; k++) {
        struct ptx_fragment *one = &w->fragments[k];
        if (one->state != FRAGMENT_READY)
            continue;
        if (!best || one->spent / TURN < best->spent / TURN ||
            (one->spent / TURN == best->spent / TURN &&
             (one->frame->depth > best->frame->depth ||
              (one->frame->depth == best->frame->depth && one->pc < best->pc))))
            best = one;
    }
    return best;
}

/* Merge fragments at the same instruction into this one, and return the next instruction at which another waits. */
static uint32_t meet(struct ptx_warp *w, struct ptx_fragment **fragment)
{
    uint32_t stop = UINT32_MAX;
    for (uint32_t k = 0; k < w->fragment_count; k++) {
        struct ptx_fragment *one = &w->fragments[k], *self = *fragment;
        if (one == self || one->frame != self->frame || one->state == FRAGMENT_BARRIER ||
            one->state == FRAGMENT_GRID || one->state == FRAGMENT_CLUSTER)
            continue;
        if (one->pc == self->pc) {
            self->mask |= one->mask;
            if (one->spent > self->spent)
                self->spent = one->spent;
            if (self == &w->fragments[w->fragment_count - 1])
                *fragment = one; /* it takes the place of the removed one */
            remove_fragment(w, one);
            k--;
        } else if (one->pc > self->pc && one->pc < stop) {
            stop = one->pc;
        }
    }
    return stop;
}

static void set_frame(struct ptx_warp *w, struct ptx_frame *frame)
{
    w->frame = frame;
    w->base[BASE_REGISTERS] = frame->registers;
}

/* End frames all of whose threads have returned or exited; the others continue after the call. */
static void leave_frame(struct ptx_warp *w, struct ptx_frame *frame)
{
    while (frame && frame->parent && (frame->returned & frame->mask) == frame->mask) {
        struct ptx_frame *parent = frame->parent;
        uint32_t mask = frame->mask & w->alive, return_to = frame->return_to;
        if (w->frame == frame)
            set_frame(w, parent);
        free_frame(w, frame);
        if (mask) {
            add_fragment(w, mask, return_to, parent);
            return;
        }
        frame = parent;
    }
}

/* ---- Calls ------------------------------------------------------------------------------------------------------- */

/* Copy a value between a register or the area of one frame and that of another. */
static void copy_value(const struct ptx_warp *w, uint32_t mask, const struct ptx_frame *to, int is_to_area,
                       uint32_t to_at, const struct ptx_frame *from, int is_from_area, uint32_t from_at, uint32_t bytes,
                       int is_wide)
{
    uint32_t stride = is_wide ? 8 : 4;
    unsigned char *registers_from = from_at >> SLOT_SHIFT ? w->base[from_at >> SLOT_SHIFT] : from->registers;
    for (uint32_t t = 0; t < WARP; t++) {
        if (!(mask & ptx_bit[t]))
            continue;
        const unsigned char *source = is_from_area ? from->area + (uint64_t)t * from->function->area_bytes + from_at
                                                   : registers_from + (from_at & SLOT_OFFSET) + t * stride;
        unsigned char *target = is_to_area ? to->area + (uint64_t)t * to->function->area_bytes + to_at
                                           : to->registers + to_at + t * stride;
        if (!is_to_area && bytes < 4)
            memset(target, 0, 4);
        memcpy(target, source, bytes);
    }
}

static int enter_call(struct ptx_warp *w, const struct ptx_call *call, int index, uint32_t mask, uint32_t return_to)
{
    const struct sg_ptx *program = w->block->run->program;
    struct ptx_frame *parent = w->frame;
    int link = index >= 0 && (size_t)index < program->function_count ? program->functions[index].link : NONE;
    const struct ptx_function *callee = link == NONE ? NULL : &program->functions[link];
    if (!callee || callee->is_entry || callee->reason || callee->param_count != call->argument_count ||
        callee->result_count != call->result_count || parent->depth >= MAX_DEPTH) {
        ptx_fail(w, SG_PTX_ILLEGAL_ADDRESS);
        return -1;
    }
    struct ptx_frame *frame = make_frame(w, callee, parent);
    if (!frame) {
        ptx_fail(w, SG_PTX_OUT_OF_MEMORY);
        return -1;
    }
    frame->call = call;
    frame->return_to = return_to;
    frame->mask = mask;
    for (uint32_t k = 0; k < call->argument_count; k++) {
        const struct ptx_param *param = &callee->params[k];
        if (param->is_predicate) {
            *(uint32_t *)(frame->registers + param->slot) = *(uint32_t *)slot_at(w, call->arguments[k]);
            continue;
        }
        uint32_t bytes = param->bytes < call->bytes[k] ? param->bytes : call->bytes[k];
        copy_value(w, mask, frame, param->slot == NO_SLOT, param->slot == NO_SLOT ? param->offset : param->slot, parent,
                   call->is_area[k], call->arguments[k], bytes, bytes == 8);
    }
    ptx_frame_specials(w, frame);
    add_fragment(w, mask, 0, frame);
    return 0;
}

static void return_values(struct ptx_warp *w, struct ptx_frame *frame, uint32_t mask)
{
    const struct ptx_call *call = frame->call;
    for (uint32_t k = 0; k < call->result_count; k++) {
        const struct ptx_param *param = &frame->function->results[k];
        uint32_t at = call->argument_count + k;
        if (param->is_predicate) {
            uint32_t *to = (uint32_t *)(frame->parent->registers + call->results[k]);
            *to = (*to & ~mask) | (*(uint32_t *)(frame->registers + param->slot) & mask);
            continue;
        }
        uint32_t bytes = param->bytes < call->bytes[at] ? param->bytes : call->bytes[at];
        copy_value(w, mask, frame->parent, call->is_area[at], call->results[k], frame, param->slot == NO_SLOT,
                   param->slot == NO_SLOT ? param->offset : param->slot, bytes, bytes == 8);
    }
}

/* The threads wait until all threads of the grid have arrived. With bit 0 of its flags, a thread arrives for its block. */
static void wait_grid(struct ptx_warp *w, struct ptx_fragment *fragment, const struct ptx_ins *i, uint32_t mask)
{
    struct ptx_run *run = w->block->run;
    const uint32_t *grid = run->launch->grid;
    uint64_t total = (uint64_t)grid[0] * grid[1] * grid[2] * w->block->thread_count;
    int is_for_block = ptx_system_argument(w, i->call, 1, (uint32_t)__builtin_ctz(mask)) & 1;
    for (uint32_t t = 0; t < WARP; t++)
        if (mask & ptx_bit[t])
            ptx_system_result(w, i->call, t, 0);
    run->grid_arrived += is_for_block ? w->block->thread_count : (uint32_t)__builtin_popcount(mask);
    if (fragment->mask != mask) {
        add_fragment(w, fragment->mask & ~mask, fragment->pc + 1, fragment->frame);
        fragment->mask = mask;
    }
    fragment->pc++;
    if (run->grid_arrived >= total) {
        run->grid_arrived = 0;
        run->grid_waits++;
        return;
    }
    fragment->state = FRAGMENT_GRID;
    fragment->waits_for = run->grid_waits;
}

static int release_grid(struct ptx_warp *w)
{
    int released = 0;
    for (uint32_t k = 0; k < w->fragment_count; k++) {
        struct ptx_fragment *one = &w->fragments[k];
        if (one->state == FRAGMENT_GRID && one->waits_for != w->block->run->grid_waits) {
            one->state = FRAGMENT_READY;
            released = 1;
        }
    }
    return released;
}

/* Threads may call different functions through a pointer: one frame for each. */
static void call(struct ptx_warp *w, struct ptx_fragment *fragment, const struct ptx_ins *i, uint32_t mask)
{
    uint32_t pc = fragment->pc + 1, rest = fragment->mask & ~mask;
    if (i->call->system == SYSTEM_GRID_SYNC) {
        wait_grid(w, fragment, i, mask);
        return;
    }
    if (i->call->system) {
        ptx_system_call(w, i, mask);
        fragment->pc = pc;
        return;
    }
    if (rest) {
        fragment->mask = rest;
        fragment->pc = pc;
    } else {
        remove_fragment(w, fragment);
    }
    while (mask) {
        uint32_t same = mask;
        int index = i->call->function;
        if (index == NONE) {
            uint64_t address = LONGS(0)[__builtin_ctz(mask)];
            same = 0;
            for (int t = 0; t < WARP; t++)
                same |= mask & ptx_bit[t] && LONGS(0)[t] == address ? ptx_bit[t] : 0;
            index = (address & WINDOW_MASK) == WINDOW_FUNCTION ? (int)(address & INT32_MAX) : NONE;
        }
        if (enter_call(w, i->call, index, same, pc) < 0)
            return;
        mask &= ~same;
    }
}

/* ---- Branches, exits and barriers -------------------------------------------------------------------------------- */

/* Return 1 if the fragment continues as a whole. */
static int branch(struct ptx_warp *w, struct ptx_fragment *fragment, uint32_t target, uint32_t mask)
{
    uint32_t rest = fragment->mask & ~mask;
    if (!mask) {
        fragment->pc++;
        return 1;
    }
    if (!rest) {
        fragment->pc = target;
        return 1;
    }
    uint64_t spent = fragment->spent;
    fragment->mask = rest;
    fragment->pc++;
    add_fragment(w, mask, target, fragment->frame)->spent = spent;
    return 0;
}

static void branch_index(struct ptx_warp *w, struct ptx_fragment *fragment, const struct ptx_ins *i, uint32_t mask)
{
    uint32_t rest = fragment->mask & ~mask, pc = fragment->pc;
    uint64_t spent = fragment->spent;
    struct ptx_frame *frame = fragment->frame;
    remove_fragment(w, fragment);
    if (rest)
        add_fragment(w, rest, pc + 1, frame)->spent = spent;
    while (mask) {
        uint32_t index = WORDS(0)[__builtin_ctz(mask)], same = 0;
        for (int t = 0; t < WARP; t++)
            same |= mask & ptx_bit[t] && WORDS(0)[t] == index ? ptx_bit[t] : 0;
        if (index >= i->target) {
            ptx_fail(w, SG_PTX_ILLEGAL_ADDRESS);
            return;
        }
        add_fragment(w, same, i->list[index], frame)->spent = spent;
        mask &= ~same;
    }
}

static void leave(struct ptx_warp *w, struct ptx_fragment *fragment, uint32_t mask, int is_exit)
{
    struct ptx_frame *frame = fragment->frame;
    if (fragment->mask == mask) {
        remove_fragment(w, fragment);
    } else {
        fragment->mask &= ~mask;
        fragment->pc++;
    }
    if (is_exit || !frame->parent) {
        w->alive &= ~mask;
        for (struct ptx_frame *one = frame; one; one = one->parent)
            one->returned |= mask;
    } else {
        return_values(w, frame, mask);
        frame->returned |= mask;
    }
    leave_frame(w, frame);
}

static int wait_barrier(struct ptx_warp *w, struct ptx_fragment *fragment, const struct ptx_ins *i, uint32_t mask)
{
    uint32_t first = (uint32_t)__builtin_ctz(mask), id = WORDS(0)[first];
    if (id >= BARRIERS) {
        ptx_fail(w, SG_PTX_TRAP);
        return 0;
    }
    struct ptx_barrier *barrier = &w->block->barriers[id];
    uint32_t count = (uint32_t)__builtin_popcount(mask);
    if (i->o[1] != NO_SLOT) {
        barrier->expected = WORDS(1)[first];
        if (mask == w->alive) /* a count is in whole warps */
            count = WARP;
    }
    barrier->arrived += count;
    barrier->voters += (uint32_t)__builtin_popcount(mask);
    if (i->op >= 2)
        barrier->true_count += (uint32_t)__builtin_popcount(mask & PREDICATE(3));
    if (i->op == 1)
        return 1;
    if (fragment->mask != mask) {
        add_fragment(w, fragment->mask & ~mask, fragment->pc + 1, fragment->frame);
        fragment->mask = mask;
    }
    fragment->state = FRAGMENT_BARRIER;
    fragment->barrier = id;
    return 0;
}

/* Execute the instruction for each group of threads that name each other as members, if all of them are here. The
 * threads of a warp may be several such groups. A group whose members are not complete waits. Return 1 if the fragment
 * goes on. */
static int run_together(struct ptx_warp *w, struct ptx_fragment *fragment, const struct ptx_ins *i, uint32_t mask)
{
    uint32_t groups[WARP], members[WARP], count = 0, waiting = 0, here = fragment->mask, pc = fragment->pc;
    for (uint32_t rest = mask, group; rest; rest &= ~group) {
        uint32_t first = (uint32_t)__builtin_ctz(rest);
        uint32_t all = i->o[5] == NO_SLOT ? mask : WORDS(5)[first] & w->alive;
        group = (all & rest) | ptx_bit[first];
        if (all & ~here) {
            groups[count] = group;
            members[count++] = all;
            waiting |= group;
        } else if (i->kind == INS_WARP) {
            i->run(w, i, group);
        }
    }
    uint32_t next = 0;
    if (waiting == mask) { /* the fragment waits as the first group, together with threads that do not take part */
        fragment->mask &= ~waiting | groups[0];
        fragment->state = FRAGMENT_WARP;
        fragment->waits_for = members[next++];
    } else {
        fragment->mask &= ~waiting;
        fragment->pc++;
    }
    for (; next < count; next++) {
        struct ptx_fragment *one = add_fragment(w, groups[next], pc, fragment->frame);
        one->state = FRAGMENT_WARP;
        one->waits_for = members[next];
        one->spent = fragment->spent;
    }
    return waiting != mask;
}

/* Threads that wait for each other at different instructions go on when all of them have arrived. */
static int release_waits(struct ptx_warp *w)
{
    for (uint32_t k = 0; k < w->fragment_count; k++) {
        struct ptx_fragment *one = &w->fragments[k];
        uint32_t arrived = 0;
        if (one->state != FRAGMENT_WARP || one->frame->function->code[one->pc].kind != INS_WARP_WAIT)
            continue;
        for (uint32_t j = 0; j < w->fragment_count; j++) {
            const struct ptx_fragment *other = &w->fragments[j];
            if (other->state == FRAGMENT_WARP && other->frame->function->code[other->pc].kind == INS_WARP_WAIT)
                arrived |= other->mask;
        }
        uint32_t members = one->waits_for & w->alive;
        if (members & ~arrived)
            continue;
        for (uint32_t j = 0; j < w->fragment_count; j++) {
            struct ptx_fragment *other = &w->fragments[j];
            if (other->state == FRAGMENT_WARP && other->mask & members &&
                other->frame->function->code[other->pc].kind == INS_WARP_WAIT) {
                other->state = FRAGMENT_READY;
                other->pc++;
            }
        }
        return 1;
    }
    /* A thread that the others wait for may have exited. */
    for (uint32_t k = 0; k < w->fragment_count; k++) {
        struct ptx_fragment *one = &w->fragments[k];
        if (one->state == FRAGMENT_WARP && !(one->waits_for & w->alive & ~one->mask)) {
            one->state = FRAGMENT_READY;
            return 1;
        }
    }
    return 0;
}

/* ---- The main loop ----------------------------------------------------------------------------------------------- */

/* Execute an instruction that changes the fragments. Return 1 if the fragment goes on. */
static int control(struct ptx_warp *w, struct ptx_fragment *fragment, const struct ptx_ins *i, uint32_t mask)
{
    if (!mask && i->kind != INS_BRANCH) {
        fragment->pc++;
        return 1;
    }
    switch (i->kind) {
    case INS_BRANCH:
        return branch(w, fragment, i->target, mask);
    case INS_BRANCH_INDEX:
        branch_index(w, fragment, i, mask);
        return 0;
    case INS_CALL:
        call(w, fragment, i, mask);
        return 0;
    case INS_RETURN:
        leave(w, fragment, mask, 0);
        return 0;
    case INS_EXIT:
        leave(w, fragment, mask, 1);
        return 0;
    case INS_BARRIER: {
        int goes_on = wait_barrier(w, fragment, i, mask);
        fragment->pc++;
        return goes_on;
    }
    case INS_WARP:
    case INS_WARP_WAIT:
        return run_together(w, fragment, i, mask);
    case INS_CLUSTER:
        if (fragment->mask != mask) {
            add_fragment(w, fragment->mask & ~mask, fragment->pc + 1, fragment->frame);
            fragment->mask = mask;
        }
        fragment->pc++;
        return ptx_cluster_barrier(w, fragment, i, mask);
    case INS_TRAP:
        ptx_fail(w, SG_PTX_TRAP);
        return 0;
    default:
        fragment->pc++;
        return 1;
    }
}

/* Run until the fragment waits, splits or ends, or after a taken branch while other fragments exist. */
static void run_fragment(struct ptx_warp *w, struct ptx_fragment *fragment, uint64_t end)
{
    struct ptx_run *run = w->block->run;
    set_frame(w, fragment->frame);
    const struct ptx_ins *code = fragment->frame->function->code;
    uint32_t stop = meet(w, &fragment);
    uint64_t start = w->executed;
    for (;;) {
        const struct ptx_ins *i = &code[fragment->pc];
        uint32_t mask = fragment->mask;
        if (i->guard != NO_SLOT) {
            uint32_t p = *(uint32_t *)slot_at(w, i->guard);
            mask &= i->is_negated ? ~p : p;
        }
        w->executed++;
        if (i->kind <= INS_MEMORY) {
            if (mask)
                i->run(w, i, mask);
            fragment->pc++;
            if (i->kind == INS_MEMORY && run->fault)
                return;
        } else {
            uint32_t before = fragment->pc;
            if (!control(w, fragment, i, mask) || run->fault)
                return;
            if (fragment->pc != before + 1) {
                fragment->spent += w->executed - start;
                start = w->executed;
                if (w->executed >= end || w->fragment_count > 1)
                    return;
            }
        }
        if (fragment->pc == stop)
            stop = meet(w, &fragment);
    }
}

enum step ptx_warp_run(struct ptx_warp *w, uint64_t quantum)
{
    struct ptx_run *run = w->block->run;
    uint64_t before = w->executed, end = before + quantum;
    enum step step = STEP_DONE;
    while (w->alive && !run->fault) {
        struct ptx_fragment *fragment = pick(w);
        if (!fragment && !release_waits(w) && !release_grid(w) && !ptx_cluster_release(w)) {
            step = STEP_BLOCKED;
            break;
        }
        if (fragment)
            run_fragment(w, fragment, end);
        if (w->executed > run->warp_limit)
            ptx_fail(w, SG_PTX_TIMEOUT);
        if (w->executed >= end) {
            step = w->alive ? STEP_PAUSED : STEP_DONE;
            break;
        }
    }
    run->executed += w->executed - before;
    return step;
}
