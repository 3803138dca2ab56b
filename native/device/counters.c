/* Counters of the device, its clients and contexts, and the records of completed work. A projection has no counters. */
#include "device/state.h"

#include <string.h>

/* Adds the time since the last call to the counters. */
static void settle_usage(struct ct_usage *usage, struct ct_device_counters *counters, uint64_t now_ns)
{
    uint64_t passed_ns = now_ns - usage->settled_ns;
    usage->settled_ns = now_ns;
    if (usage->on && usage->blocks > 0) {
        counters->busy_ns += passed_ns;
        counters->sm_ns += passed_ns * ct_min(usage->sms, usage->sm_limit);
        counters->thread_ns += passed_ns * usage->threads;
    }
}

/* Limits a usage to its cap, also in the counters that it is added to. Without a cap it may count for more SMs than
 * there are, because those counters have a limit of their own. */
static uint64_t within_cap(const struct ct_usage *usage, uint64_t sms)
{
    return usage->is_capped ? ct_min(sms, usage->sm_limit) : sms;
}

/* Changes a usage, and returns by how many SMs this changes the usage that contains it. */
static uint64_t change_usage(struct ct_usage *usage, uint64_t blocks, uint64_t sms, uint64_t threads)
{
    usage->blocks += blocks;
    usage->sms += sms;
    usage->threads += threads;
    return usage->is_capped ? within_cap(usage, usage->sms) - within_cap(usage, usage->sms - sms) : sms;
}

static uint64_t change_cap(const struct ct_device *d, struct ct_usage *usage, uint32_t sm_cap)
{
    uint64_t before = within_cap(usage, usage->sms);
    usage->is_capped = sm_cap > 0;
    usage->sm_limit = sm_cap ? sm_cap : d->config.sm_count;
    return within_cap(usage, usage->sms) - before;
}

static void change_device_usage(struct ct_device *d, const struct ct_client *client, uint64_t blocks, uint64_t sms,
                         uint64_t threads)
{
    if (!client->usage.on)
        return;
    settle_usage(&d->usage, &d->counters, d->now_ns);
    change_usage(&d->usage, blocks, sms, threads);
}

static void change_client_usage(struct ct_device *d, struct ct_client *client, uint64_t blocks, uint64_t sms,
                                uint64_t threads)
{
    settle_usage(&client->usage, &client->counters, d->now_ns);
    change_device_usage(d, client, blocks, change_usage(&client->usage, blocks, sms, threads), threads);
}

void ct_counters_blocks(struct ct_device *d, const struct ct_op *op, uint64_t before, uint64_t after)
{
    if (d->is_ahead || before == after)
        return;
    struct ct_context *context = ct_context_of(d, op);
    struct ct_client *client = &ct_clients(d)[context->client];
    uint64_t limit = op->sm_cap ? op->sm_cap : d->config.sm_count;
    uint64_t sms = ct_min(after, limit) - ct_min(before, limit);
    uint64_t blocks = after - before; /* unsigned differences, here and below */
    uint64_t threads = blocks * op->threads_per_block;
    settle_usage(&context->usage, &context->counters, d->now_ns);
    change_client_usage(d, client, blocks, change_usage(&context->usage, blocks, sms, threads), threads);
}

void ct_counters_context_cap(struct ct_device *d, struct ct_context *context)
{
    if (d->is_ahead)
        return;
    settle_usage(&context->usage, &context->counters, d->now_ns);
    uint64_t sms = change_cap(d, &context->usage, context->sm_cap);
    change_client_usage(d, &ct_clients(d)[context->client], 0, sms, 0);
}

void ct_counters_client_cap(struct ct_device *d, struct ct_client *client)
{
    if (d->is_ahead)
        return;
    settle_usage(&client->usage, &client->counters, d->now_ns);
    change_device_usage(d, client, 0, change_cap(d, &client->usage, client->sm_cap), 0);
}

static struct ct_device_record *next_record(struct ct_device *d)
{
    uint64_t slots = d->limits.records;
    if (d->record_count == slots) {
        d->record_first = d->record_first + 1 == slots ? 0 : d->record_first + 1;
        d->record_count--;
        d->counters.dropped_records++;
    }
    uint64_t slot = d->record_first + d->record_count;
    struct ct_device_record *record = ct_at(d, d->records_offset);
    d->record_count++;
    d->records_ever++;
    return record + (slot >= slots ? slot - slots : slot);
}

static uint32_t client_handle(const struct ct_device *d, uint32_t client)
{
    return (uint32_t)ct_clients(d)[client].generation << 16 | client;
}

/* Records that a client's blocks were switched out or in; the time in between is not time on the device. */
static void record_switch(struct ct_device *d, uint32_t client, int what)
{
    if (!(d->record_kinds & CT_RECORD_TURNS) || !ct_clients(d)[client].usage.blocks)
        return;
    *next_record(d) = (struct ct_device_record){.client = client_handle(d, client),
                                                .kind = CT_OP_KINDS,
                                                .what = (uint8_t)what,
                                                .submit_ns = d->now_ns,
                                                .ready_ns = d->now_ns,
                                                .start_ns = d->now_ns,
                                                .end_ns = d->now_ns};
}

/* Blocks that are switched out keep their slots but do not count as use. */
void ct_counters_group_on(struct ct_device *d, uint32_t group, uint32_t on)
{
    if (d->is_ahead)
        return;
    settle_usage(&d->usage, &d->counters, d->now_ns);
    for (uint64_t mask = ct_groups(d)[group].member_mask; mask; mask &= mask - 1) {
        struct ct_client *client = &ct_clients(d)[ct_lowest(mask)];
        uint64_t sign = on ? 1 : UINT64_MAX;
        settle_usage(&client->usage, &client->counters, d->now_ns);
        client->usage.on = (uint16_t)on;
        record_switch(d, ct_lowest(mask), on ? CT_RECORD_ON : CT_RECORD_OFF);
        change_usage(&d->usage, sign * client->usage.blocks, sign * within_cap(&client->usage, client->usage.sms),
                     sign * client->usage.threads);
        for (uint32_t c = client->first_context; c != CT_NONE; c = ct_contexts(d)[c].next) {
            settle_usage(&ct_contexts(d)[c].usage, &ct_contexts(d)[c].counters, d->now_ns);
            ct_contexts(d)[c].usage.on = (uint16_t)on;
        }
    }
}

void ct_counters_settle(struct ct_device *d)
{
    settle_usage(&d->usage, &d->counters, d->now_ns);
    for (uint32_t i = 0; i < d->limits.clients; i++) {
        struct ct_client *client = &ct_clients(d)[i];
        if (!client->used)
            continue;
        settle_usage(&client->usage, &client->counters, d->now_ns);
        for (uint32_t c = client->first_context; c != CT_NONE; c = ct_contexts(d)[c].next)
            settle_usage(&ct_contexts(d)[c].usage, &ct_contexts(d)[c].counters, d->now_ns);
    }
}

void ct_counters_retired(struct ct_device *d, const struct ct_op *op, uint64_t blocks)
{
    if (d->is_ahead)
        return;
    struct ct_context *context = ct_context_of(d, op);
    struct ct_device_counters *client = &ct_clients(d)[context->client].counters;
    uint64_t bytes = blocks * op->bytes_per_block;
    context->counters.blocks += blocks;
    context->counters.traffic_bytes += bytes;
    client->blocks += blocks;
    client->traffic_bytes += bytes;
    d->counters.blocks += blocks;
    d->counters.traffic_bytes += bytes;
}

static void count_completed(struct ct_device_counters *counters, const struct ct_op *op)
{
    switch (op->kind) {
    case CT_OP_KERNEL:
        counters->kernels++;
        break;
    case CT_OP_COPY_HTOD:
    case CT_OP_COPY_DTOH:
        counters->host_bytes += op->bytes;
        counters->to_host_bytes += op->kind == CT_OP_COPY_DTOH ? op->bytes : 0;
        counters->traffic_bytes += op->bytes;
        counters->copies++;
        break;
    case CT_OP_COPY_DTOD:
        counters->copies++;
        break;
    case CT_OP_MEMSET:
        counters->memsets++;
        break;
    case CT_OP_HOST:
        counters->host_functions++;
        break;
    default:
        break;
    }
}

void ct_counters_done(struct ct_device *d, const struct ct_op *op)
{
    if (d->is_ahead)
        return;
    struct ct_context *context = ct_context_of(d, op);
    count_completed(&context->counters, op);
    count_completed(&ct_clients(d)[context->client].counters, op);
    count_completed(&d->counters, op);
}

void ct_counters_record(struct ct_device *d, uint32_t op, int what)
{
    const struct ct_op *o = &ct_ops(d)[op];
    if (d->is_ahead || !(d->record_kinds >> o->kind & 1))
        return;
    const struct ct_stream *stream = &ct_streams(d)[o->stream];
    const struct ct_context *context = &ct_contexts(d)[stream->context];
    struct ct_device_record *record = next_record(d);
    record->op = ct_op_id(d, op);
    record->tag = o->tag;
    record->client = client_handle(d, context->client);
    record->context = (uint32_t)context->generation << 16 | stream->context;
    record->stream = stream->handle;
    record->kind = o->kind;
    record->what = (uint8_t)what;
    record->reserved = 0;
    record->submit_ns = o->submit_ns;
    record->ready_ns = o->ready_ns;
    record->start_ns = o->start_ns;
    record->end_ns = what == CT_RECORD_DONE ? d->now_ns : 0;
    record->delayed_ns = o->delayed_ns;
}

void ct_device_record_kinds(struct ct_device *d, uint32_t kinds)
{
    d->record_kinds = kinds & (2u * CT_RECORD_TURNS - 1);
}

size_t ct_device_drain(struct ct_device *d, struct ct_device_record *records, size_t capacity)
{
    const struct ct_device_record *ring = ct_at(d, d->records_offset);
    size_t count = 0;
    while (count < capacity && d->record_count > 0) {
        records[count++] = ring[d->record_first];
        d->record_first = d->record_first + 1 == d->limits.records ? 0 : d->record_first + 1;
        d->record_count--;
    }
    return count;
}

size_t ct_device_records(const struct ct_device *d, uint64_t from, const struct ct_device_record **records,
                         uint64_t *number)
{
    uint64_t oldest = d->records_ever - d->record_count;
    *number = ct_min(ct_max(from, oldest), d->records_ever);
    uint64_t slot = d->record_first + (*number - oldest), slots = d->limits.records;
    slot = slot >= slots ? slot - slots : slot;
    *records = (const struct ct_device_record *)ct_at(d, d->records_offset) + slot;
    return (size_t)ct_min(d->records_ever - *number, slots - slot);
}

void ct_device_count(struct ct_device *d, struct ct_device_counters *counters)
{
    ct_counters_settle(d);
    ct_delay_settle_all(d);
    *counters = d->counters;
}

int ct_device_count_client(struct ct_device *d, uint32_t client, struct ct_device_counters *counters)
{
    uint32_t slot = client & 0xffff;
    if (slot >= d->limits.clients || ct_clients(d)[slot].generation != client >> 16)
        return CT_DEVICE_STALE;
    ct_counters_settle(d);
    ct_delay_settle_all(d);
    *counters = ct_clients(d)[slot].counters;
    return CT_DEVICE_OK;
}

int ct_device_count_context(struct ct_device *d, uint32_t context, struct ct_device_counters *counters)
{
    uint32_t slot = ct_slot_context(d, context);
    if (slot == CT_NONE)
        return CT_DEVICE_STALE;
    ct_counters_settle(d);
    ct_delay_settle_all(d);
    *counters = ct_contexts(d)[slot].counters;
    return CT_DEVICE_OK;
}

uint64_t ct_device_delay(struct ct_device *d, uint32_t waiter, uint32_t culprit)
{
    uint32_t w = waiter & 0xffff, c = culprit & 0xffff;
    if (w >= d->limits.clients || c >= d->limits.clients || ct_clients(d)[w].generation != waiter >> 16 ||
        ct_clients(d)[c].generation != culprit >> 16)
        return 0;
    ct_delay_settle_all(d);
    return ct_clients(d)[w].delayed_by_ns[c];
}
