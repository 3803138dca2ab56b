/* Execution of a launch: blocks one after another. A block that runs for long gives way to others, so that blocks that
 * wait for each other make progress as on a device. */
#include "softgpu/ptx/vector.h"

#include <stdio.h>
#include <stdlib.h>

#define WARP_LIMIT (UINT64_C(1) << 28) /* instructions of a warp: some seconds */
enum { QUANTUM = 50000, SLICE = 2000000, SHARED_ALIGNMENT = 128, WORKSPACE_BYTES = 64 };

static uint32_t align(uint64_t value, uint32_t alignment)
{
    return (uint32_t)((value + alignment - 1) / alignment * alignment);
}

/* ---- Barriers ---------------------------------------------------------------------------------------------------- */

static void finish_barrier(struct ptx_block *block, uint32_t id)
{
    struct ptx_barrier *barrier = &block->barriers[id];
    for (uint32_t k = 0; k < block->warp_count; k++) {
        struct ptx_warp *w = &block->warps[k];
        for (uint32_t f = 0; f < w->fragment_count; f++) {
            struct ptx_fragment *one = &w->fragments[f];
            if (one->state != FRAGMENT_BARRIER || one->barrier != id)
                continue;
            one->state = FRAGMENT_READY;
            const struct ptx_ins *ins = &one->frame->function->code[one->pc - 1];
            if (ins->op < 2)
                continue;
            int is_true = ins->op == 3 ? barrier->true_count == barrier->voters : barrier->true_count > 0;
            unsigned char *target = one->frame->registers + ins->o[2];
            if (ins->op == 2)
                for (uint32_t t = 0; t < WARP; t++)
                    ((uint32_t *)target)[t] = one->mask & ptx_bit[t] ? barrier->true_count : ((uint32_t *)target)[t];
            else
                *(uint32_t *)target = (*(uint32_t *)target & ~one->mask) | (is_true ? one->mask : 0);
        }
    }
    *barrier = (struct ptx_barrier){0};
}

int ptx_block_release(struct ptx_block *block)
{
    uint32_t alive = 0;
    int released = 0;
    for (uint32_t k = 0; k < block->warp_count; k++)
        alive += (uint32_t)__builtin_popcount(block->warps[k].alive);
    for (uint32_t id = 0; id < BARRIERS; id++) {
        const struct ptx_barrier *barrier = &block->barriers[id];
        uint32_t expected = barrier->expected ? barrier->expected : alive;
        if (!barrier->arrived || barrier->arrived < expected)
            continue;
        finish_barrier(block, id);
        released = 1;
    }
    return released;
}

/* ---- Blocks ------------------------------------------------------------------------------------------------------ */

static struct ptx_block *make_block(struct ptx_run *run)
{
    const struct sg_ptx_launch *launch = run->launch;
    struct ptx_block *block = calloc(1, sizeof *block);
    if (!block)
        return NULL;
    block->run = run;
    block->thread_count = launch->block[0] * launch->block[1] * launch->block[2];
    block->warp_count = (block->thread_count + WARP - 1) / WARP;
    block->warps = calloc(block->warp_count, sizeof *block->warps);
    block->shared_bytes = run->shared_bytes;
    block->shared = aligned_alloc(SHARED_ALIGNMENT, align((uint64_t)block->shared_bytes + 1, SHARED_ALIGNMENT));
    if (!block->warps || !block->shared) {
        free(block->warps);
        free(block->shared);
        free(block);
        return NULL;
    }
    for (uint32_t k = 0; k < block->warp_count; k++) {
        block->warps[k].block = block;
        block->warps[k].number = k;
    }
    return block;
}

static void free_block(struct ptx_block *block)
{
    for (uint32_t k = 0; block && k < block->warp_count; k++)
        ptx_warp_end(&block->warps[k]);
    if (block) {
        free(block->warps);
        free(block->shared);
    }
    free(block);
}

/* Start the block of this rank in the cluster of this number; a cluster may be a single block. */
static void start_block(struct ptx_block *block, uint64_t number, uint32_t rank)
{
    const struct ptx_run *run = block->run;
    const uint32_t *grid = run->launch->grid, *cluster = run->cluster;
    const uint64_t width = grid[0] / cluster[0], height = grid[1] / cluster[1];
    block->index[0] = (uint32_t)(number % width) * cluster[0] + rank % cluster[0];
    block->index[1] = (uint32_t)(number / width % height) * cluster[1] + rank / cluster[0] % cluster[1];
    block->index[2] = (uint32_t)(number / width / height) * cluster[2] + rank / cluster[0] / cluster[1];
    block->number = block->index[0] + (uint64_t)grid[0] * (block->index[1] + (uint64_t)grid[1] * block->index[2]);
    block->rank = rank;
    block->phases = 0;
    memset(block->shared, 0, block->shared_bytes);
    memset(block->barriers, 0, sizeof block->barriers);
    for (uint32_t k = 0; k < block->warp_count; k++)
        ptx_warp_start(&block->warps[k]);
}

static int waits_for_others(const struct ptx_block *block)
{
    for (uint32_t k = 0; k < block->warp_count; k++)
        for (uint32_t f = 0; f < block->warps[k].fragment_count; f++)
            if (block->warps[k].fragments[f].state == FRAGMENT_GRID ||
                (block->warps[k].fragments[f].state == FRAGMENT_CLUSTER && block->cluster))
                return 1;
    return 0;
}

/* Run the block until it ends, waits for other blocks, or has used its slice. 1: it has ended. */
static int run_block(struct ptx_block *block)
{
    struct ptx_run *run = block->run;
    uint64_t end = run->executed + (block->cluster ? QUANTUM : SLICE); /* blocks of a cluster often wait for each other */
    while (!run->fault) {
        int is_done = 1, has_progress = 0;
        for (uint32_t k = 0; k < block->warp_count && !run->fault; k++) {
            uint64_t before = run->executed;
            enum step step = ptx_warp_run(&block->warps[k], QUANTUM);
            is_done &= step == STEP_DONE;
            has_progress |= step == STEP_PAUSED || run->executed != before;
        }
        if (run->fault || is_done)
            return 1;
        if (!ptx_block_release(block) && !has_progress) {
            if (waits_for_others(block))
                return 0;
            run->fault = SG_PTX_TIMEOUT; /* no warp can ever continue */
        }
        if (run->executed >= end)
            return 0;
    }
    return 1;
}

/* ---- The grid ---------------------------------------------------------------------------------------------------- */

struct queue { /* of blocks that gave way, the first one first */
    struct ptx_block *first, *last;
    uint64_t count;
};

static void push(struct queue *queue, struct ptx_block *block)
{
    block->next = NULL;
    if (queue->last)
        queue->last->next = block;
    else
        queue->first = block;
    queue->last = block;
    queue->count++;
}

static struct ptx_block *pop(struct queue *queue)
{
    struct ptx_block *block = queue->first;
    queue->first = block->next;
    if (!queue->first)
        queue->last = NULL;
    queue->count--;
    return block;
}

/* Start all blocks of a cluster, and queue them. -1: out of memory. */
static int start_cluster(struct ptx_run *run, struct queue *queue, uint64_t number)
{
    struct ptx_cluster *cluster = calloc(1, sizeof *cluster);
    if (!cluster)
        return -1;
    cluster->next = run->clusters;
    run->clusters = cluster;
    for (; cluster->count < run->cluster_blocks; cluster->count++) {
        struct ptx_block *block = make_block(run);
        if (!block)
            return -1;
        cluster->blocks[cluster->count] = block;
        block->cluster = cluster;
    }
    for (uint32_t rank = 0; rank < cluster->count; rank++) {
        start_block(cluster->blocks[rank], number, rank);
        push(queue, cluster->blocks[rank]);
    }
    return 0;
}

static void free_cluster(struct ptx_run *run, struct ptx_cluster *cluster)
{
    struct ptx_cluster **at = &run->clusters;
    while (*at != cluster)
        at = &(*at)->next;
    *at = cluster->next;
    for (uint32_t rank = 0; rank < cluster->count; rank++)
        free_block(cluster->blocks[rank]);
    free(cluster);
}

/* Return the next block to run: a new one while there is room for it, otherwise the one that waited longest. NULL: out
 * of memory. */
static struct ptx_block *next_block(struct ptx_run *run, struct queue *queue, uint64_t *next, uint64_t total,
                                    struct ptx_block **spare)
{
    const uint64_t resident = run->launch->resident_blocks ? run->launch->resident_blocks : 1;
    const int has_room = *next < total && (!queue->count || queue->count + run->cluster_blocks <= resident);
    if (run->cluster_blocks > 1 && has_room && start_cluster(run, queue, (*next)++) < 0)
        return NULL;
    if (run->cluster_blocks > 1 || !has_room)
        return pop(queue);
    struct ptx_block *block = *spare ? *spare : make_block(run);
    *spare = NULL;
    if (block)
        start_block(block, (*next)++, 0);
    return block;
}

/* Free the block, or keep its memory for the next one. */
static void end_block(struct ptx_run *run, struct ptx_block *block, struct ptx_block **spare)
{
    if (block->cluster) {
        if (++block->cluster->ended == block->cluster->count)
            free_cluster(run, block->cluster);
        return;
    }
    free_block(*spare);
    *spare = block;
}

static void run_grid(struct ptx_run *run)
{
    const struct sg_ptx_launch *launch = run->launch;
    uint64_t total = (uint64_t)launch->grid[0] * launch->grid[1] * launch->grid[2] / run->cluster_blocks, next = 0;
    uint64_t stalled = 0;
    struct queue queue = {NULL, NULL, 0};
    struct ptx_block *spare = NULL;
    while ((next < total || queue.count) && !run->fault) {
        const uint64_t started = next;
        struct ptx_block *block = next_block(run, &queue, &next, total, &spare);
        if (!block) {
            run->fault = SG_PTX_OUT_OF_MEMORY;
            break;
        }
        uint64_t before = run->executed;
        if (!run_block(block)) {
            push(&queue, block);
            stalled = run->executed == before && next == started ? stalled + 1 : 0;
            if (stalled > queue.count)
                run->fault = SG_PTX_TIMEOUT; /* all blocks wait for others, some of whose threads have exited */
            continue;
        }
        stalled = 0;
        end_block(run, block, &spare);
    }
    while (queue.count) {
        struct ptx_block *block = pop(&queue);
        if (!block->cluster)
            free_block(block);
    }
    while (run->clusters)
        free_cluster(run, run->clusters);
    free_block(spare);
}

/* The clusters of the launch, or those that the kernel requires. -1: the grid is no multiple of them. */
static int set_cluster(struct ptx_run *run)
{
    const struct sg_ptx_launch *launch = run->launch;
    run->is_cluster = launch->cluster[0] || run->entry->cluster[0];
    run->cluster_blocks = 1;
    for (int k = 0; k < 3; k++) {
        const uint32_t asked = launch->cluster[0] ? launch->cluster[k] : run->entry->cluster[k];
        run->cluster[k] = asked ? asked : 1;
        if (run->cluster[k] > CLUSTER_MAX || launch->grid[k] % run->cluster[k])
            return -1;
        run->cluster_blocks *= run->cluster[k];
    }
    return run->cluster_blocks <= CLUSTER_MAX ? 0 : -1;
}

/* Compute the addresses of variables. Shared memory: variables of functions, those of the entry, then dynamic memory. */
static int set_addresses(struct ptx_run *run)
{
    const struct sg_ptx *program = run->program;
    const struct sg_ptx_launch *launch = run->launch;
    uint32_t own_from = align(program->shared_bytes, SHARED_ALIGNMENT);
    uint32_t dynamic_from = align((uint64_t)own_from + run->entry->shared_bytes, SHARED_ALIGNMENT);
    run->shared_bytes = dynamic_from + launch->dynamic_bytes;
    run->addresses = aligned_alloc(64, program->address_bytes ? program->address_bytes : 64);
    if (!run->addresses)
        return -1;
    for (size_t k = 0; k < program->address_count; k++) {
        const struct ptx_address *one = &program->addresses[k];
        const struct ptx_variable *variable = &program->variables[one->variable];
        uint64_t value = 0;
        if (variable->space == SPACE_SHARED)
            value = variable->is_extern      ? dynamic_from
                    : variable->link != NONE ? own_from + variable->offset
                                             : variable->offset;
        else if (variable->link != NONE)
            value = launch->addresses[program->variables[variable->link].placed];
        for (int t = 0; t < WARP; t++)
            ((uint64_t *)(run->addresses + (one->slot & SLOT_OFFSET)))[t] = value + (uint64_t)one->addend;
    }
    return 0;
}

enum sg_ptx_fault sg_ptx_run(const struct sg_ptx_launch *launch)
{
    struct ptx_run run = {.launch = launch, .program = launch->program};
    run.entry = &launch->program->functions[launch->entry];
    run.warp_limit = launch->warp_limit ? launch->warp_limit : WARP_LIMIT;
    if (set_cluster(&run) < 0)
        return SG_PTX_ILLEGAL_ADDRESS; /* the driver has checked it */
    if (launch->is_cooperative && !(run.workspace = ptx_heap_take(WORKSPACE_BYTES, UINT64_MAX)))
        return SG_PTX_OUT_OF_MEMORY;
    if (set_addresses(&run) < 0)
        run.fault = SG_PTX_OUT_OF_MEMORY;
    else
        run_grid(&run);
    free(run.addresses);
    ptx_heap_give(run.workspace);
    fflush(stdout);
    return run.fault;
}
