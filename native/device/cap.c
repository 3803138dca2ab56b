/* Caps: how many SMs' worth of blocks a kernel may claim within those of its client, its context and itself. */
#include "device/state.h"

static uint64_t remaining(uint32_t sm_cap, uint64_t held)
{
    uint64_t cap = sm_cap * CT_SM_UNITS;
    return !sm_cap ? UINT64_MAX : cap > held ? cap - held : 0;
}

/* Returns the SM units by which the placement exceeds what the kernel holds; unsigned, the difference may wrap. */
static uint64_t added_share(const struct ct_device *d, const struct ct_placement *placed)
{
    const struct ct_op *op = &ct_ops(d)[placed->op];
    return (placed->blocks - op->running_blocks) * op->share;
}

static int has_cap_within(const struct ct_device *d, const struct ct_op *op, uint32_t owner, uint32_t sm_cap)
{
    return op->sm_cap && op->sm_cap <= sm_cap && ct_context_of(d, op)->client == owner;
}

/* Returns the SM units of the client's kernels whose own caps are at most this one. */
static uint64_t held_within(const struct ct_device *d, uint32_t owner, uint32_t sm_cap,
                            const struct ct_placement *placed, uint32_t count)
{
    uint64_t held = 0;
    for (uint32_t op = ct_groups(d)[ct_clients(d)[owner].group].first_ready; op != CT_NONE; op = ct_ops(d)[op].ready_next)
        if (has_cap_within(d, &ct_ops(d)[op], owner, sm_cap))
            held += ct_ops(d)[op].running_blocks * ct_ops(d)[op].share;
    for (uint32_t i = 0; i < count; i++)
        if (has_cap_within(d, &ct_ops(d)[placed[i].op], owner, sm_cap))
            held += added_share(d, &placed[i]);
    return held;
}

/* Kernels with caps of their own run in partitions of the device, each of which contains the smaller ones: for every
 * cap, the kernels with this cap or a smaller one fit into that many SMs. */
static uint64_t available_in_partitions(const struct ct_device *d, const struct ct_op *op, uint32_t owner,
                                        const struct ct_placement *placed, uint32_t count)
{
    uint64_t available = remaining(op->sm_cap, held_within(d, owner, op->sm_cap, placed, count));
    uint32_t other = ct_groups(d)[ct_clients(d)[owner].group].first_ready;
    for (; other != CT_NONE && available > 0; other = ct_ops(d)[other].ready_next) {
        uint32_t sm_cap = ct_ops(d)[other].sm_cap;
        if (sm_cap > op->sm_cap && ct_context_of(d, &ct_ops(d)[other])->client == owner)
            available = ct_min(available, remaining(sm_cap, held_within(d, owner, sm_cap, placed, count)));
    }
    return available;
}

uint64_t ct_cap_available(const struct ct_device *d, const struct ct_op *op, const struct ct_placement *placed,
                          uint32_t count)
{
    const struct ct_context *context = ct_context_of(d, op);
    const struct ct_client *client = &ct_clients(d)[context->client];
    uint64_t of_context = context->held_share, of_client = client->held_share;
    for (uint32_t i = 0; i < count; i++) {
        uint64_t added = added_share(d, &placed[i]);
        of_client += added;
        if (ct_context_of(d, &ct_ops(d)[placed[i].op]) == context)
            of_context += added;
    }
    uint64_t available = ct_min(remaining(context->sm_cap, of_context), remaining(client->sm_cap, of_client));
    if (op->sm_cap)
        available = ct_min(available, available_in_partitions(d, op, context->client, placed, count));
    return available;
}
