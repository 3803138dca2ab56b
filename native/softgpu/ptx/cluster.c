/* Clusters of blocks: their barrier, and addresses of each other's shared memory. */
#include "softgpu/ptx/vector.h"

enum { OP_ARRIVE, OP_WAIT };

struct ptx_block *ptx_shared_block(const struct ptx_block *block, uint64_t *address)
{
    const uint64_t rank = *address >> RANK_SHIFT;
    if (!rank)
        return (struct ptx_block *)(uintptr_t)block;
    *address &= (UINT64_C(1) << RANK_SHIFT) - 1;
    if (!block->cluster)
        return rank == 1 ? (struct ptx_block *)(uintptr_t)block : NULL;
    return rank <= block->cluster->count ? block->cluster->blocks[rank - 1] : NULL;
}

/* The number of completed phases of the barrier. */
static uint32_t *phases_of(struct ptx_block *block)
{
    return block->cluster ? &block->cluster->phases : &block->phases;
}

/* ---- The barrier ------------------------------------------------------------------------------------------------- */

/* Complete the phase if every thread that has not exited has arrived. */
static void complete(struct ptx_cluster *cluster, const struct ptx_warp *w)
{
    for (uint32_t b = 0; b < (cluster ? cluster->count : 1); b++) {
        const struct ptx_block *block = cluster ? cluster->blocks[b] : w->block;
        for (uint32_t k = 0; k < block->warp_count; k++)
            for (uint32_t t = 0; t < WARP; t++)
                if (block->warps[k].alive & ptx_bit[t] && block->warps[k].arrivals[t] <= *phases_of(w->block))
                    return;
    }
    ++*phases_of(w->block);
}

int ptx_cluster_barrier(struct ptx_warp *w, struct ptx_fragment *fragment, const struct ptx_ins *i, uint32_t mask)
{
    const uint32_t *phases = phases_of(w->block);
    uint32_t needed = 0;
    for (uint32_t t = 0; t < WARP; t++) {
        if (!(mask & ptx_bit[t]))
            continue;
        w->arrivals[t] += i->op == OP_ARRIVE;
        needed = w->arrivals[t] > needed ? w->arrivals[t] : needed;
    }
    if (i->op == OP_ARRIVE || *phases >= needed)
        return 1;
    fragment->state = FRAGMENT_CLUSTER;
    fragment->waits_for = needed;
    return 0;
}

int ptx_cluster_release(struct ptx_warp *w)
{
    int released = 0, is_waiting = 0;
    for (uint32_t k = 0; k < w->fragment_count; k++)
        is_waiting |= w->fragments[k].state == FRAGMENT_CLUSTER;
    if (!is_waiting)
        return 0;
    complete(w->block->cluster, w);
    for (uint32_t k = 0; k < w->fragment_count; k++) {
        struct ptx_fragment *one = &w->fragments[k];
        if (one->state == FRAGMENT_CLUSTER && *phases_of(w->block) >= one->waits_for) {
            one->state = FRAGMENT_READY;
            released = 1;
        }
    }
    return released;
}

void ptx_decode_cluster_barrier(struct parser *parser, struct statement *s)
{
    static const char *const orders[] = {"release", "acquire", "relaxed", "aligned", NULL};
    const int is_arrival = ptx_take(s, "arrive"), is_wait = ptx_take(s, "wait");
    while (ptx_take_any(s, orders))
        ;
    if (is_arrival == is_wait || s->count || !ptx_rest(parser, s)) {
        ptx_refuse(parser, "has an invalid barrier of a cluster");
        return;
    }
    ptx_emit(parser, s, NULL, INS_CLUSTER)->op = is_wait ? OP_WAIT : OP_ARRIVE;
}

/* ---- Addresses --------------------------------------------------------------------------------------------------- */

/* Give an address of shared memory the rank of o[2]. */
static void map_address(struct ptx_warp *w, const struct ptx_ins *i, uint32_t mask)
{
    const uint64_t offset_mask = (UINT64_C(1) << RANK_SHIFT) - 1;
    for (uint32_t t = 0; t < WARP; t++) {
        if (!(mask & ptx_bit[t]))
            continue;
        const uint64_t a = i->flags & FLAG_WIDE ? LONGS(1)[t] : WORDS(1)[t];
        const uint64_t v = (a & (offset_mask | WINDOW_MASK)) | ((uint64_t)WORDS(2)[t] + 1) << RANK_SHIFT;
        if (i->flags & FLAG_WIDE)
            LONGS(0)[t] = v;
        else
            WORDS(0)[t] = (uint32_t)v;
    }
}

static void rank_of_address(struct ptx_warp *w, const struct ptx_ins *i, uint32_t mask)
{
    for (uint32_t t = 0; t < WARP; t++) {
        const uint64_t a = i->flags & FLAG_WIDE ? LONGS(1)[t] & ~WINDOW_MASK : WORDS(1)[t];
        if (mask & ptx_bit[t])
            WORDS(0)[t] = a >> RANK_SHIFT ? (uint32_t)(a >> RANK_SHIFT) - 1 : w->block->rank;
    }
}

/* mapa and getctarank. */
int ptx_decode_cluster(struct parser *parser, struct statement *s)
{
    const int is_map = strcmp(s->name, "mapa") == 0;
    if (!is_map && strcmp(s->name, "getctarank") != 0)
        return 0;
    ptx_take(s, "shared::cluster"); /* without it the addresses are generic */
    const struct type *type = ptx_take_type(s), *b32 = ptx_named("b32");
    if (!type || type->bytes < 4 || type->class == CLASS_PREDICATE || s->count != 2 + is_map || !ptx_rest(parser, s)) {
        ptx_refuse(parser, "has an unsupported %.20s", s->name);
        return 1;
    }
    uint32_t d = ptx_destination(parser, &s->operands[0], is_map ? type : b32);
    uint32_t a = ptx_source(parser, s, &s->operands[1], type);
    uint32_t b = is_map ? ptx_source(parser, s, &s->operands[2], b32) : 0;
    if (d == NO_SLOT || a == NO_SLOT || b == NO_SLOT)
        return 1;
    struct ptx_ins *ins = ptx_emit(parser, s, is_map ? map_address : rank_of_address, INS_PLAIN);
    ins->o[0] = d;
    ins->o[1] = a;
    ins->o[2] = b;
    ins->flags = type->bytes == 8 ? FLAG_WIDE : 0;
    return 1;
}
